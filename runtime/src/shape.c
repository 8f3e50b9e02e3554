/* Bind symbols from the inputs' shapes; evaluate and check everything that follows from them. */
#include <inttypes.h>
#include <string.h>

#include "internal.h"

/* Read every symbol; *changed: some value differs from the last binding's. */
static cuvil_status read_symbols(cuvil_context *context, bool *changed)
{
    const cuvil_model *model = context->model;
    for (uint32_t i = 0; i < model->input_count; i++)
        if (!context->inputs[i].set)
            return cuvil_fail(CUVIL_ERROR_INPUT, "input `%s` (number %u) has not been set",
                              cuvil_string(model, model->inputs[i].name), i);
    *changed = !context->bound;
    for (uint32_t i = 0; i < model->symbol_count; i++) {
        const cuvil_symbol *symbol = &model->symbols[i];
        int64_t value = context->inputs[symbol->input].dims[symbol->axis];
        *changed |= value != context->symbols[i];
        context->symbols[i] = value;
    }
    return CUVIL_OK;
}

/* Every input axis has the value of its dimension: the same symbol twice, or an expression. */
static cuvil_status check_inputs(const cuvil_context *context)
{
    const cuvil_model *model = context->model;
    for (uint32_t i = 0; i < model->input_count; i++) {
        const cuvil_io *io = &model->inputs[i];
        for (uint32_t axis = 0; axis < io->rank; axis++) {
            uint32_t dim = model->dims[io->dims + axis];
            int64_t value = context->inputs[i].dims[axis], expected = context->values[dim];
            if (value == expected)
                continue;
            const char *name = cuvil_string(model, io->name), *text = model->texts[io->dims + axis];
            if (model->exprs[dim].op != CUVIL_EXPR_SYMBOL)
                return cuvil_fail(CUVIL_ERROR_SHAPE,
                                  "input `%s`: axis %u is %" PRId64 ", must be %s = %" PRId64
                                  " here",
                                  name, axis, value, text, expected);
            const cuvil_symbol *symbol = &model->symbols[model->exprs[dim].a];
            const char *source = cuvil_string(model, model->inputs[symbol->input].name);
            return cuvil_fail(CUVIL_ERROR_SHAPE,
                              "input `%s`: axis %u is %" PRId64 ", but %s is %" PRId64
                              " (axis %u of input `%s`)",
                              name, axis, value, text, expected, symbol->axis, source);
        }
    }
    return CUVIL_OK;
}

static cuvil_status infer_outputs(cuvil_context *context)
{
    const cuvil_model *model = context->model;
    for (uint32_t i = 0; i < model->output_count; i++) {
        const cuvil_io *io = &model->outputs[i];
        cuvil_slot *slot = &context->outputs[i];
        for (uint32_t axis = 0; axis < io->rank; axis++)
            slot->dims[axis] = context->values[model->dims[io->dims + axis]];
        if (!cuvil_shape_bytes(io->dtype, io->rank, slot->dims, &slot->bytes))
            return cuvil_fail(CUVIL_ERROR_SHAPE,
                              "output `%s` would have a negative dimension or more than 2^62 bytes",
                              cuvil_string(model, io->name));
    }
    return CUVIL_OK;
}

/* A branch not taken may have sizes without meaning: a negative one counts as empty. */
static int64_t buffer_bytes(const cuvil_context *context, uint32_t buffer)
{
    int64_t bytes = context->values[context->model->buffers[buffer].bytes];
    return bytes > 0 ? bytes : 0;
}

/* Sizes so small that a window does not fit, say, make an intermediate size negative: then places
 * in the arena mean nothing. */
static cuvil_status misfit(const cuvil_context *context, uint32_t buffer, int64_t room)
{
    const cuvil_model *model = context->model;
    for (uint32_t i = 0; i < model->buffer_count; i++)
        if (context->values[model->buffers[i].bytes] < 0) {
            char sizes[CUVIL_TEXT_BYTES];
            cuvil_symbols_text(model, context->symbols, sizes);
            return cuvil_fail(CUVIL_ERROR_SHAPE,
                              "the model has no result for %s: a size inside it would be negative",
                              sizes);
        }
    return cuvil_fail(CUVIL_ERROR_PACKAGE,
                      "corrupt package: buffer %u (kind %u) needs %" PRId64
                      " bytes for these shapes, its place has %" PRId64,
                      buffer, model->buffers[buffer].kind, buffer_bytes(context, buffer), room);
}

static cuvil_status check_buffers(const cuvil_context *context)
{
    const cuvil_model *model = context->model;
    int64_t arena = context->values[model->header->arena_bytes];
    for (uint32_t i = 0; i < model->buffer_count; i++) {
        const cuvil_buffer *buffer = &model->buffers[i];
        int64_t bytes = buffer_bytes(context, i), place, room;
        bool good;
        switch (buffer->kind) {
        case CUVIL_BUFFER_ARENA:
            place = context->values[buffer->place];
            room = arena;
            good = bytes == 0 || (place >= 0 && place <= arena && bytes <= arena - place);
            break;
        case CUVIL_BUFFER_WEIGHT:
            room = (int64_t)(model->weight_bytes - buffer->place);
            good = bytes <= room;
            break;
        default: /* an input or output */
            room = (buffer->kind == CUVIL_BUFFER_INPUT ? context->inputs
                                                       : context->outputs)[buffer->place]
                       .bytes;
            good = bytes == room;
        }
        if (!good)
            return misfit(context, i, room);
    }
    return CUVIL_OK;
}

cuvil_status cuvil_require(const cuvil_context *context, const cuvil_step *step)
{
    const cuvil_model *model = context->model;
    if (context->values[model->operands[step->scalars]] != 0)
        return CUVIL_OK;
    char sizes[CUVIL_TEXT_BYTES];
    cuvil_symbols_text(model, context->symbols, sizes);
    return cuvil_fail(CUVIL_ERROR_SHAPE, "layer `%s`: %s, for %s",
                      cuvil_string(model, step->layer), cuvil_string(model, step->name), sizes);
}

/* What the model demands of its sizes before anything runs. */
static cuvil_status check_demands(const cuvil_context *context)
{
    const cuvil_model *model = context->model;
    cuvil_status status = CUVIL_OK;
    for (uint32_t i = 0; i < model->step_count && status == CUVIL_OK; i++) {
        if (model->steps[i].kind != CUVIL_STEP_REQUIRE)
            break;
        status = cuvil_require(context, &model->steps[i]);
    }
    return status;
}

/* Steps that the runtime itself executes must stay inside their buffers; kernels are trusted. */
static cuvil_status check_steps(const cuvil_context *context)
{
    const cuvil_model *model = context->model;
    for (uint32_t i = 0; i < model->step_count; i++) {
        const cuvil_step *step = &model->steps[i];
        const uint32_t *buffers = model->operands + step->buffers;
        bool good = true;
        if (step->kind == CUVIL_STEP_COPY)
            good = buffer_bytes(context, buffers[0]) >= buffer_bytes(context, buffers[1]);
        else if (step->kind == CUVIL_STEP_DIMS)
            good = buffer_bytes(context, buffers[0]) >= (int64_t)step->scalar_count * 8;
        else if (step->kind == CUVIL_STEP_BRANCH)
            good = buffer_bytes(context, buffers[0]) >= 1;
        if (!good)
            return cuvil_fail(CUVIL_ERROR_PACKAGE,
                              "corrupt package: step %u (kind %u) reaches outside its buffers", i,
                              step->kind);
    }
    return CUVIL_OK;
}

cuvil_status cuvil_bind(cuvil_context *context)
{
    bool changed = false;
    if (!context->dims_stale && context->bound)
        return CUVIL_OK;
    cuvil_status status = read_symbols(context, &changed);
    if (status != CUVIL_OK)
        return status;
    if (changed) {
        context->bound = false;
        context->ran = false;
        context->memory_stale = true;
        status = cuvil_evaluate(context->model, context->symbols, context->values);
    }
    if (status == CUVIL_OK)
        status = check_inputs(context);
    if (status == CUVIL_OK && changed) {
        status = check_demands(context);
        if (status == CUVIL_OK)
            status = infer_outputs(context);
        if (status == CUVIL_OK)
            status = check_buffers(context);
        if (status == CUVIL_OK)
            status = check_steps(context);
    }
    if (status == CUVIL_OK) {
        context->bound = true;
        context->dims_stale = false;
    }
    return status;
}
