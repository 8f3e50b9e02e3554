/* What follows from each computed symbol: found when a model is opened, sorted by epoch. */
#include <stdlib.h>

#include "internal.h"

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
        bool given = buffer->kind == CUVIL_BUFFER_INPUT || buffer->kind == CUVIL_BUFFER_WEIGHT ||
                     buffer->kind == CUVIL_BUFFER_ADAPTED;
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
