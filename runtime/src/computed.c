/* Computed sizes: what follows from each, and binding them while the model runs. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "internal.h"

#define VALUE_LIMIT (INT64_C(1) << 62)
#define CORRUPT(...) cuvil_fail(CUVIL_ERROR_PACKAGE, "corrupt package: " __VA_ARGS__)

static void find_epochs(cuvil_model *model)
{
    uint32_t *epochs = model->epochs;
    for (uint32_t i = 0; i < model->expr_count; i++) {
        const cuvil_expr *expr = &model->exprs[i];
        if (expr->op == CUVIL_EXPR_CONST || expr->op == CUVIL_EXPR_LEVEL)
            continue;
        if (expr->op == CUVIL_EXPR_SYMBOL) {
            epochs[i] = expr->a < model->input_symbols ? 0 : expr->a - model->input_symbols + 1;
            continue;
        }
        epochs[i] = epochs[expr->a] > epochs[expr->b] ? epochs[expr->a] : epochs[expr->b];
        if (expr->op == CUVIL_EXPR_SELECT && epochs[expr->imm] > epochs[i])
            epochs[i] = epochs[expr->imm];
    }
}

/* What the caller gives and what is laid out before the run has sizes that are known then. */
static cuvil_status check_epochs(const cuvil_model *model)
{
    if (model->epochs[model->header->arena_bytes] > 0)
        return CORRUPT("the arena has a computed size");
    for (uint32_t i = 0; i < model->input_count; i++)
        for (uint32_t axis = 0; axis < model->inputs[i].rank; axis++)
            if (model->epochs[model->dims[model->inputs[i].dims + axis]] > 0)
                return CORRUPT("input %u has a computed size", i);
    for (uint32_t i = 0; i < model->buffer_count; i++) {
        const cuvil_buffer *buffer = &model->buffers[i];
        bool given = buffer->kind == CUVIL_BUFFER_INPUT || buffer->kind == CUVIL_BUFFER_WEIGHT;
        if (given && model->epochs[buffer->bytes] > 0)
            return CORRUPT("buffer %u (kind %u) has a computed size", i, buffer->kind);
    }
    return CUVIL_OK;
}

/* Count a follower at first; once there is a table, enter it. */
static void note(cuvil_model *model, uint32_t epoch, uint32_t kind, uint32_t number)
{
    if (epoch == 0)
        return;
    size_t place = model->follower_ends[epoch]++;
    if (model->followers != NULL)
        model->followers[place] = (cuvil_follower){kind, number};
}

/* Note it for every epoch on which the buffer's size or place depends. */
static void note_buffer(cuvil_model *model, uint32_t buffer, uint32_t kind, uint32_t number)
{
    uint32_t place_kind = model->buffers[buffer].kind;
    uint64_t place = model->buffers[buffer].place;
    note(model, model->epochs[model->buffers[buffer].bytes], kind, number);
    if (place_kind == CUVIL_BUFFER_ARENA)
        note(model, model->epochs[place], kind, number);
    else if (place_kind == CUVIL_BUFFER_HEAP)
        note(model, model->epochs[place >> 32], kind, number);
    else if (place_kind == CUVIL_BUFFER_OUTPUT)
        for (uint32_t axis = 0; axis < model->outputs[place].rank; axis++)
            note(model, model->epochs[model->dims[model->outputs[place].dims + axis]], kind,
                 number);
}

/* In the order in which the followers of one epoch are served. */
static void note_all(cuvil_model *model)
{
    for (uint32_t i = 0; i < model->expr_count; i++)
        note(model, model->epochs[i], CUVIL_FOLLOWER_EXPR, i);
    for (uint32_t i = 0; i < model->output_count; i++)
        note_buffer(model, model->outputs[i].buffer, CUVIL_FOLLOWER_OUTPUT, i);
    for (uint32_t i = 0; i < model->buffer_count; i++)
        note_buffer(model, i, CUVIL_FOLLOWER_BUFFER, i);
    for (uint32_t i = 0; i < model->step_count; i++) {
        const cuvil_step *step = &model->steps[i];
        if (step->scratch_bytes != CUVIL_NONE)
            note(model, model->epochs[step->scratch_bytes], CUVIL_FOLLOWER_SCRATCH, i);
        for (uint32_t j = step->scalars; j < step->scalars + step->scalar_count; j++)
            note(model, model->epochs[model->operands[j]], CUVIL_FOLLOWER_SCALAR, j);
        for (uint32_t j = step->buffers; j < step->buffers + step->buffer_count; j++)
            note_buffer(model, model->operands[j], CUVIL_FOLLOWER_POINTER, j);
    }
}

cuvil_status cuvil_find_followers(cuvil_model *model)
{
    uint32_t computed = model->symbol_count - model->input_symbols;
    for (uint32_t i = 0; i < model->buffer_count; i++) {
        uint32_t slot = (uint32_t)model->buffers[i].place;
        if (model->buffers[i].kind == CUVIL_BUFFER_HEAP && slot >= model->slot_count)
            model->slot_count = slot + 1;
    }
    model->dynamic = computed > 0 || model->slot_count > 0;
    model->epochs = calloc(model->expr_count, sizeof model->epochs[0]);
    model->follower_ends = calloc(computed + 1, sizeof model->follower_ends[0]);
    if (model->epochs == NULL || model->follower_ends == NULL)
        return cuvil_fail(CUVIL_ERROR_MEMORY, "out of memory for a model's tables");
    find_epochs(model);
    cuvil_status status = check_epochs(model);
    if (status != CUVIL_OK || computed == 0)
        return status;
    note_all(model);
    size_t total = 0;
    for (uint32_t epoch = 1; epoch <= computed; epoch++) {
        size_t count = model->follower_ends[epoch];
        model->follower_ends[epoch] = total; /* where it begins, until all are entered */
        total += count;
    }
    model->followers = calloc(total + (total == 0), sizeof model->followers[0]);
    if (model->followers == NULL)
        return cuvil_fail(CUVIL_ERROR_MEMORY, "out of memory for a model's tables");
    note_all(model);
    return CUVIL_OK;
}

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
    if (stride < UINT64_MAX / 2048) /* twice as many as there can be threads */
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
    for (size_t i = model->follower_ends[epoch - 1];
         i < model->follower_ends[epoch] && status == CUVIL_OK; i++)
        status = serve(context, model->followers[i], epoch, layer);
    return status;
}

cuvil_status cuvil_check_known(const cuvil_context *context)
{
    const cuvil_model *model = context->model;
    for (uint32_t i = 0; i < model->output_count; i++)
        if (!context->outputs[i].set)
            return CORRUPT("the run did not compute the shape of output `%s`",
                           cuvil_string(model, model->outputs[i].name));
    return CUVIL_OK;
}
