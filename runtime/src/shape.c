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
    for (uint32_t i = 0; i < model->input_symbols; i++) {
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

cuvil_status cuvil_infer_output(cuvil_context *context, uint32_t number, uint32_t epoch)
{
    const cuvil_model *model = context->model;
    const cuvil_io *io = &model->outputs[number];
    cuvil_slot *slot = &context->outputs[number];
    bool good = true;
    slot->set = true;
    slot->bytes = 0;
    for (uint32_t axis = 0; axis < io->rank; axis++) {
        uint32_t dim = model->dims[io->dims + axis];
        if (model->epochs[dim] == epoch) {
            slot->dims[axis] = context->values[dim];
            good &= slot->dims[axis] >= 0;
        } else if (epoch == 0) {
            slot->dims[axis] = -1;
        }
        slot->set &= slot->dims[axis] >= 0;
    }
    if (slot->set)
        good = cuvil_shape_bytes(io->dtype, io->rank, slot->dims, &slot->bytes);
    if (good)
        return CUVIL_OK;
    return cuvil_fail(CUVIL_ERROR_SHAPE,
                      "output `%s` would have a negative dimension or more than 2^62 bytes",
                      cuvil_string(model, io->name));
}

/* A branch not taken may have sizes without meaning: a negative one counts as empty. */
static int64_t buffer_bytes(const cuvil_context *context, uint32_t buffer)
{
    int64_t bytes = context->values[context->model->buffers[buffer].bytes];
    return bytes > 0 ? bytes : 0;
}

/* Sizes so small that a window does not fit, say, make an intermediate size negative: then places
 * in the arena mean nothing. */
cuvil_status cuvil_misfit(const cuvil_context *context, uint32_t buffer, int64_t room)
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

cuvil_status cuvil_check_buffer(const cuvil_context *context, uint32_t number)
{
    const cuvil_model *model = context->model;
    const cuvil_buffer *buffer = &model->buffers[number];
    int64_t bytes = buffer_bytes(context, number), place, room;
    bool good;
    switch (buffer->kind) {
    case CUVIL_BUFFER_ARENA:
        place = context->values[buffer->place];
        room = context->values[model->header->arena_bytes];
        good = bytes == 0 || (place >= 0 && place <= room && bytes <= room - place);
        break;
    case CUVIL_BUFFER_WEIGHT:
        room = (int64_t)(model->weight_bytes - buffer->place);
        good = bytes <= room;
        break;
    case CUVIL_BUFFER_PREPARED:
        room = (int64_t)(model->prepared_bytes - buffer->place);
        good = bytes <= room;
        break;
    case CUVIL_BUFFER_ADAPTED:
        room = (int64_t)model->adaptable[buffer->place].bytes;
        good = bytes == room;
        break;
    case CUVIL_BUFFER_HEAP:
        room = 0;
        good = bytes == 0 || context->values[buffer->place >> 32] >= 0;
        break;
    default: /* an input or output */
        room = (buffer->kind == CUVIL_BUFFER_INPUT ? context->inputs
                                                   : context->outputs)[buffer->place]
                   .bytes;
        good = bytes == room;
    }
    return good ? CUVIL_OK : cuvil_misfit(context, number, room);
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
    for (uint32_t i = model->prepare_count; i < model->step_count && status == CUVIL_OK; i++) {
        const cuvil_step *step = &model->steps[i];
        if (step->kind != CUVIL_STEP_REQUIRE)
            break;
        if (model->epochs[model->operands[step->scalars]] == 0)
            status = cuvil_require(context, step);
    }
    return status;
}

/* Everything that follows from the sizes of the inputs. */
static cuvil_status check_sizes(cuvil_context *context)
{
    const cuvil_model *model = context->model;
    cuvil_status status = check_demands(context);
    for (uint32_t i = 0; i < model->output_count && status == CUVIL_OK; i++)
        status = cuvil_infer_output(context, i, 0);
    for (uint32_t i = 0; i < model->buffer_count && status == CUVIL_OK; i++)
        status = cuvil_check_buffer(context, i);
    /* Where places change, each step is checked when it runs. */
    for (uint32_t i = 0; i < model->step_count && status == CUVIL_OK && !model->dynamic; i++)
        status = cuvil_check_step(context, &model->steps[i]);
    return status;
}

cuvil_status cuvil_bind(cuvil_context *context)
{
    bool changed = false;
    if (context->model->dynamic)
        cuvil_forget(context);
    cuvil_status status = cuvil_set_hidden(context);
    if (status != CUVIL_OK || (!context->dims_stale && context->bound))
        return status;
    status = read_symbols(context, &changed);
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
    if (status == CUVIL_OK && changed)
        status = check_sizes(context);
    if (status == CUVIL_OK) {
        context->bound = true;
        context->dims_stale = false;
    }
    return status;
}
