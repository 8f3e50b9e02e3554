/* Models: open, choose the CPU level, describe inputs and outputs. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cpu.h"
#include "internal.h"

#define LIST_BYTES 400

static void append(char text[LIST_BYTES], const char *part)
{
    size_t used = strlen(text);
    snprintf(text + used, LIST_BYTES - used, "%s", part);
}

/* Add "avx512f, avx512bw (for x86-64-v4)". */
static void list_missing(const cuvil_model *model, uint32_t level, uint64_t missing,
                         char text[LIST_BYTES])
{
    bool first = true;
    char number[24];
    if (text[0] != '\0')
        append(text, "; ");
    for (unsigned i = 0; i < CUVIL_CPU_FEATURE_LIMIT; i++) {
        if (!(missing >> i & 1u))
            continue;
        const char *name = cuvil_cpu_feature_names[i];
        snprintf(number, sizeof number, "feature %u", i);
        append(text, first ? "" : ", ");
        append(text, name != NULL ? name : number);
        first = false;
    }
    append(text, " (for ");
    append(text, cuvil_string(model, model->levels[level].name));
    append(text, ")");
}

/* The first level that the CPU can run, or the one asked for. */
static cuvil_status choose_level(cuvil_model *model, const char *wanted)
{
    char missing_text[LIST_BYTES] = "", names[LIST_BYTES] = "";
    for (uint32_t i = 0; i < model->level_count; i++) {
        const char *name = cuvil_string(model, model->levels[i].name);
        append(names, i ? ", " : "");
        append(names, name);
        if (wanted != NULL && strcmp(wanted, name) != 0)
            continue;
        uint64_t missing =
            model->levels[i].features & ~cuvil_cpu_features(model->levels[i].features);
        if (missing == 0) {
            model->level = i;
            return CUVIL_OK;
        }
        list_missing(model, i, missing, missing_text);
    }
    if (missing_text[0] == '\0')
        return cuvil_fail(CUVIL_ERROR_ARGUMENT, "the package has no level `%s`, only %s",
                          wanted != NULL ? wanted : "", names);
    return cuvil_fail(CUVIL_ERROR_CPU, "this CPU lacks %s", missing_text);
}

static bool is_io(uint32_t kind)
{
    return kind == CUVIL_BUFFER_INPUT || kind == CUVIL_BUFFER_OUTPUT;
}

static bool is_adapted(uint32_t kind)
{
    return kind == CUVIL_BUFFER_ADAPTED;
}

/* Note where the steps name buffers of some kinds. */
static cuvil_status find_operands(const cuvil_model *model, bool (*wanted)(uint32_t),
                                  uint32_t **operands, uint32_t *total)
{
    for (int pass = 0; pass < 2; pass++) {
        uint32_t count = 0;
        for (uint32_t i = 0; i < model->step_count; i++) {
            const cuvil_step *step = &model->steps[i];
            for (uint32_t j = step->buffers; j < step->buffers + step->buffer_count; j++) {
                if (!wanted(model->buffers[model->operands[j]].kind))
                    continue;
                if (pass == 1)
                    (*operands)[count] = j;
                count++;
            }
        }
        *total = count;
        if (pass == 0)
            *operands = calloc(count + (count == 0), sizeof(uint32_t));
        if (*operands == NULL)
            return cuvil_fail(CUVIL_ERROR_MEMORY, "out of memory for a model's tables");
    }
    return CUVIL_OK;
}

static cuvil_status spell_dims(cuvil_model *model)
{
    model->texts = calloc(model->dim_count + (model->dim_count == 0), sizeof model->texts[0]);
    if (model->texts == NULL)
        return cuvil_fail(CUVIL_ERROR_MEMORY, "out of memory for a model's dimensions");
    for (uint32_t i = 0; i < model->dim_count; i++)
        cuvil_expr_text(model, model->dims[i], model->texts[i]);
    return CUVIL_OK;
}

/* What a model has whose weights adapters may exchange. */
static cuvil_status open_adapters(cuvil_model *model)
{
    if (model->adaptable_count == 0)
        return CUVIL_OK;
    model->takes_adapters = true;
    cuvil_status status = cuvil_open_views(model);
    if (status == CUVIL_OK)
        status = cuvil_open_batch(model);
    return status == CUVIL_OK ? cuvil_list_adapters(model) : status;
}

cuvil_status cuvil_open(const char *level, cuvil_model **result)
{
    if (result == NULL)
        return cuvil_fail(CUVIL_ERROR_ARGUMENT, "cuvil_open: the place for the result is NULL");
    *result = NULL;
    cuvil_model *model = calloc(1, sizeof *model);
    if (model == NULL)
        return cuvil_fail(CUVIL_ERROR_MEMORY, "out of memory for a model");
    cuvil_status status = cuvil_image_find(model);
    if (status == CUVIL_OK)
        status = cuvil_image_check(model);
    if (status == CUVIL_OK)
        status = choose_level(model, level);
    if (status == CUVIL_OK) /* read from the disk as such, too */
        cuvil_prefer_huge_pages((void *)(uintptr_t)model->weights, model->weight_bytes);
    if (status == CUVIL_OK) /* only these move from run to run */
        status = find_operands(model, is_io, &model->io_operands, &model->io_operand_count);
    if (status == CUVIL_OK)
        status = find_operands(model, is_adapted, &model->adapted_operands,
                               &model->adapted_operand_count);
    if (status == CUVIL_OK)
        status = open_adapters(model);
    if (status == CUVIL_OK)
        status = cuvil_find_followers(model);
    if (status == CUVIL_OK)
        status = spell_dims(model);
    if (status == CUVIL_OK)
        status = cuvil_prepare(model);
    if (status != CUVIL_OK)
        cuvil_close(model);
    else
        *result = model;
    return status;
}

void cuvil_close(cuvil_model *model)
{
    if (model == NULL)
        return;
    if (model->takes_adapters) {
        cuvil_drop_adapters(model, &model->adapters);
        cuvil_close_batch(model);
        cuvil_close_views(model);
    }
    cuvil_drop_prepared(model);
    free(model->adapted_operands);
    free(model->io_operands);
    free(model->epochs);
    free(model->followers);
    free(model->follower_ends);
    free(model->texts);
    free(model);
}

uint32_t cuvil_api_version(void)
{
    return CUVIL_API_VERSION;
}

const char *cuvil_metadata(void)
{
    cuvil_model model = {0};
    if (cuvil_image_find(&model) != CUVIL_OK || cuvil_image_check(&model) != CUVIL_OK)
        return NULL;
    return model.metadata;
}

const char *cuvil_level_name(const cuvil_model *model)
{
    return model == NULL ? "" : cuvil_string(model, model->levels[model->level].name);
}

int32_t cuvil_input_count(const cuvil_model *model)
{
    return model == NULL ? 0 : (int32_t)cuvil_visible_inputs(model);
}

int32_t cuvil_output_count(const cuvil_model *model)
{
    return model == NULL ? 0 : (int32_t)model->output_count;
}

static void describe_axis(const cuvil_model *model, uint32_t dim, uint32_t axis,
                          cuvil_tensor_info *info)
{
    const cuvil_expr *expr = &model->exprs[model->dims[dim]];
    if (expr->op == CUVIL_EXPR_CONST) {
        info->dims[axis] = info->lo[axis] = info->hi[axis] = expr->imm;
        return;
    }
    info->dims[axis] = -1;
    info->symbols[axis] = model->texts[dim];
    info->lo[axis] = 0;
    info->hi[axis] = INT64_MAX;
    if (expr->op == CUVIL_EXPR_SYMBOL) {
        int64_t lo = model->symbols[expr->a].lo;
        info->lo[axis] = lo > 0 ? lo : 0; /* a computed symbol may be less */
        info->hi[axis] = model->symbols[expr->a].hi;
    }
}

static cuvil_status describe(const cuvil_model *model, bool output, int32_t index,
                             cuvil_tensor_info *info)
{
    if (model == NULL || info == NULL)
        return cuvil_fail(CUVIL_ERROR_ARGUMENT, "tensor info: the %s is NULL",
                          model == NULL ? "model" : "place for the result");
    uint32_t count = output ? model->output_count : cuvil_visible_inputs(model);
    if (index < 0 || (uint32_t)index >= count)
        return cuvil_fail(CUVIL_ERROR_ARGUMENT, "there is no %s %d, the model has %u",
                          output ? "output" : "input", index, count);
    const cuvil_io *io = output ? &model->outputs[index] : &model->inputs[index];
    *info = (cuvil_tensor_info){.name = cuvil_string(model, io->name),
                                .dtype = (cuvil_dtype)io->dtype,
                                .rank = (int32_t)io->rank};
    for (uint32_t axis = 0; axis < io->rank; axis++)
        describe_axis(model, io->dims + axis, axis, info);
    return CUVIL_OK;
}

cuvil_status cuvil_input_info(const cuvil_model *model, int32_t index, cuvil_tensor_info *info)
{
    return describe(model, false, index, info);
}

cuvil_status cuvil_output_info(const cuvil_model *model, int32_t index, cuvil_tensor_info *info)
{
    return describe(model, true, index, info);
}
