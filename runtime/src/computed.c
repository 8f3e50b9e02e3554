/* Bind computed sizes while the model runs, and renew all that follows from them. */
#include <inttypes.h>
#include <string.h>

#include "internal.h"

#define VALUE_LIMIT (INT64_C(1) << 62)

void cuvil_forget(cuvil_context *context)
{
    const cuvil_model *model = context->model;
    context->ran = false;
    const size_t count = model->follower_ends[model->symbol_count - model->input_symbols];
    for (size_t i = 0; i < count; i++) {
        const cuvil_follower follower = model->followers[i];
        if (follower.kind == CUVIL_FOLLOWER_EXPR)
            context->values[follower.number] = 0;
        else if (follower.kind == CUVIL_FOLLOWER_SCALAR)
            context->scalars[follower.number] = 0;
    }
    for (uint32_t i = 0; context->bound && i < model->output_count; i++)
        cuvil_infer_output(context, i, 0);
}

static cuvil_status serve_output(cuvil_context *context, uint32_t number, uint32_t epoch,
                                 const char *layer)
{
    cuvil_slot *output = &context->outputs[number];
    cuvil_status status = cuvil_infer_output(context, number, epoch);
    if (status != CUVIL_OK || !output->set)
        return status;
    if (context->targets[number].set)
        return cuvil_check_target(context, number);
    cuvil_block *block = &context->heap[context->model->slot_count + number];
    status = cuvil_grow(block, (uint64_t)output->bytes + (output->bytes == 0), layer);
    output->data = block->data;
    return status;
}

static cuvil_status serve_buffer(cuvil_context *context, uint32_t number, uint32_t epoch,
                                 const char *layer)
{
    const cuvil_buffer *buffer = &context->model->buffers[number];
    if (context->values[buffer->bytes] < 0)
        return cuvil_misfit(context, number, 0);
    /* Between two of its epochs, an output's size may not be that of its dims yet. */
    if (buffer->kind == CUVIL_BUFFER_OUTPUT &&
        (context->model->epochs[buffer->bytes] != epoch || !context->outputs[buffer->place].set))
        return CUVIL_OK;
    cuvil_status status = cuvil_check_buffer(context, number);
    if (status == CUVIL_OK && buffer->kind == CUVIL_BUFFER_HEAP)
        status = cuvil_reserve_heap(context, number, layer);
    return status;
}

static cuvil_status serve_scratch(cuvil_context *context, const cuvil_step *step)
{
    const cuvil_model *model = context->model;
    int64_t bytes = context->values[step->scratch_bytes];
    if (bytes <= 0 || (uint64_t)bytes <= context->scratch_stride)
        return CUVIL_OK;
    uint64_t stride = ((uint64_t)bytes + 63) & ~UINT64_C(63), total = UINT64_MAX;
    if (stride < UINT64_MAX / CUVIL_MAX_THREADS)
        total = stride * (uint64_t)context->threads;
    cuvil_block *block = &context->heap[model->slot_count + model->output_count];
    cuvil_status status = cuvil_grow(block, total, cuvil_string(model, step->layer));
    if (status != CUVIL_OK)
        return status;
    context->scratch = block->data;
    context->scratch_stride = stride;
    return CUVIL_OK;
}

static cuvil_status serve(cuvil_context *context, cuvil_follower follower, uint32_t epoch,
                          const char *layer)
{
    const cuvil_model *model = context->model;
    uint32_t number = follower.number;
    switch (follower.kind) {
    case CUVIL_FOLLOWER_EXPR:
        return cuvil_evaluate_one(model, context->symbols, context->values, number);
    case CUVIL_FOLLOWER_OUTPUT: return serve_output(context, number, epoch, layer);
    case CUVIL_FOLLOWER_BUFFER: return serve_buffer(context, number, epoch, layer);
    case CUVIL_FOLLOWER_SCRATCH: return serve_scratch(context, &model->steps[number]);
    case CUVIL_FOLLOWER_SCALAR:
        context->scalars[number] = context->values[model->operands[number]];
        return CUVIL_OK;
    default: context->pointers[number] = cuvil_locate(context, model->operands[number]);
    }
    return CUVIL_OK;
}

/* What the steps right after this BIND demand of its symbol: before memory is reserved for it. */
static cuvil_status check_demands(const cuvil_context *context, const cuvil_step *step,
                                  uint32_t epoch)
{
    const cuvil_model *model = context->model;
    const cuvil_step *end = model->steps + model->step_count;
    cuvil_status status = CUVIL_OK;
    while (++step < end && step->kind == CUVIL_STEP_REQUIRE && status == CUVIL_OK)
        if (model->epochs[model->operands[step->scalars]] == epoch)
            status = cuvil_require(context, step);
    return status;
}

cuvil_status cuvil_bind_computed(cuvil_context *context, const cuvil_step *step)
{
    const cuvil_model *model = context->model;
    const cuvil_symbol *symbol = &model->symbols[step->target];
    const char *layer = cuvil_string(model, step->layer);
    int64_t value = context->scalars[step->scalars];
    if (step->buffer_count > 0) /* cuvil_check_step has seen to the index */
        memcpy(&value, (const char *)context->pointers[step->buffers] + value * 8, sizeof value);
    value = value > VALUE_LIMIT ? VALUE_LIMIT : value < -VALUE_LIMIT ? -VALUE_LIMIT : value;
    if (value < symbol->lo || value > symbol->hi) {
        char range[CUVIL_TEXT_BYTES];
        cuvil_range_text(symbol, range);
        return cuvil_fail(CUVIL_ERROR_SHAPE,
                          "layer `%s`: the computed size `%s` is %" PRId64 ", must be %s", layer,
                          cuvil_string(model, symbol->name), value, range);
    }
    context->symbols[step->target] = value;
    uint32_t epoch = step->target - model->input_symbols + 1;
    cuvil_status status = CUVIL_OK;
    bool demanded = false;
    for (size_t i = model->follower_ends[epoch - 1];
         i < model->follower_ends[epoch] && status == CUVIL_OK; i++) {
        if (!demanded && model->followers[i].kind != CUVIL_FOLLOWER_EXPR) {
            demanded = true; /* all expressions have their values */
            status = check_demands(context, step, epoch);
        }
        if (status == CUVIL_OK)
            status = serve(context, model->followers[i], epoch, layer);
    }
    return status;
}

cuvil_status cuvil_check_known(const cuvil_context *context)
{
    const cuvil_model *model = context->model;
    for (uint32_t i = 0; i < model->output_count; i++)
        if (!context->outputs[i].set)
            return cuvil_fail(CUVIL_ERROR_PACKAGE,
                              "corrupt package: the run did not compute the shape of output `%s`",
                              cuvil_string(model, model->outputs[i].name));
    return CUVIL_OK;
}
