/* Check every index of an image, so that nothing after this needs to. */
#include "internal.h"

#define CORRUPT(...) cuvil_fail(CUVIL_ERROR_PACKAGE, "corrupt package: " __VA_ARGS__)

static bool good_string(const cuvil_model *model, uint32_t offset)
{
    return offset == CUVIL_NONE || offset < model->string_bytes;
}

static bool good_range(uint32_t first, uint32_t count, uint32_t limit)
{
    return first <= limit && count <= limit - first;
}

static cuvil_status check_texts(const cuvil_model *model)
{
    uint64_t metadata_bytes = model->header->sections[CUVIL_SECTION_METADATA].bytes;
    if (model->string_bytes > 0 && model->strings[model->string_bytes - 1] != '\0')
        return CORRUPT("the string section does not end with NUL");
    if (metadata_bytes == 0 || model->metadata[metadata_bytes - 1] != '\0')
        return CORRUPT("the metadata section does not end with NUL");
    if (model->level_count == 0)
        return CORRUPT("it has no CPU level");
    for (uint32_t i = 0; i < model->level_count; i++)
        if (!good_string(model, model->levels[i].name))
            return CORRUPT("level %u has no valid name", i);
    return CUVIL_OK;
}

static cuvil_status check_exprs(const cuvil_model *model)
{
    for (uint32_t i = 0; i < model->expr_count; i++) {
        const cuvil_expr *expr = &model->exprs[i];
        bool good;
        if (expr->op == CUVIL_EXPR_CONST || expr->op == CUVIL_EXPR_LEVEL)
            good = true;
        else if (expr->op == CUVIL_EXPR_SYMBOL)
            good = expr->a < model->symbol_count;
        else if (expr->op == CUVIL_EXPR_SELECT)
            good = expr->a < i && expr->b < i && expr->imm >= 0 && expr->imm < (int64_t)i;
        else
            good = expr->op <= CUVIL_EXPR_CEILDIV && expr->a < i && expr->b < i;
        if (!good)
            return CORRUPT("expression %u (op %u) has an operand out of range", i, expr->op);
    }
    for (uint32_t i = 0; i < model->dim_count; i++)
        if (model->dims[i] >= model->expr_count)
            return CORRUPT("dimension %u names expression %u of %u", i, model->dims[i],
                           model->expr_count);
    if (model->header->arena_bytes >= model->expr_count)
        return CORRUPT("the arena's size names expression %llu of %u",
                       (unsigned long long)model->header->arena_bytes, model->expr_count);
    return CUVIL_OK;
}

static cuvil_status check_ports(const cuvil_model *model, const cuvil_io *ports, uint32_t count,
                                uint32_t kind, const char *role)
{
    for (uint32_t i = 0; i < count; i++) {
        const cuvil_io *io = &ports[i];
        if (!good_string(model, io->name) || cuvil_dtype_bytes(io->dtype) == 0 ||
            io->rank > CUVIL_MAX_RANK || !good_range(io->dims, io->rank, model->dim_count))
            return CORRUPT("%s %u has a bad name, dtype (%u) or shape (rank %u)", role, i,
                           io->dtype, io->rank);
        if (io->buffer >= model->buffer_count || model->buffers[io->buffer].kind != kind ||
            model->buffers[io->buffer].place != i)
            return CORRUPT("%s %u lies in buffer %u, which is not its own", role, i, io->buffer);
    }
    return CUVIL_OK;
}

/* A symbol must be the very dimension that it is read from; computed ones come last. */
static cuvil_status check_symbols(const cuvil_model *model)
{
    for (uint32_t i = 0; i < model->symbol_count; i++) {
        const cuvil_symbol *symbol = &model->symbols[i];
        bool computed = symbol->input == CUVIL_NONE;
        bool good = computed ? symbol->axis == 0
                             : i < model->input_symbols && symbol->lo >= 0 &&
                                   symbol->input < model->input_count &&
                                   symbol->axis < model->inputs[symbol->input].rank;
        if (!good || !good_string(model, symbol->name) || symbol->hi < symbol->lo)
            return CORRUPT("symbol %u has a bad name or range, or no axis to be read from", i);
        if (computed)
            continue;
        uint32_t dim = model->dims[model->inputs[symbol->input].dims + symbol->axis];
        if (model->exprs[dim].op != CUVIL_EXPR_SYMBOL || model->exprs[dim].a != i)
            return CORRUPT("symbol `%s` is read from an axis of another dimension",
                           cuvil_string(model, symbol->name));
    }
    return CUVIL_OK;
}

#define MOST_BYTES (INT64_C(1) << 47) /* what a process can address */

/* Of a PREPARED buffer. */
static bool good_prepared(const cuvil_model *model, const cuvil_buffer *buffer)
{
    const cuvil_expr *bytes = &model->exprs[buffer->bytes];
    return buffer->place % 64 == 0 && bytes->op == CUVIL_EXPR_CONST && bytes->imm >= 0 &&
           bytes->imm <= MOST_BYTES;
}

static cuvil_status check_buffers(const cuvil_model *model)
{
    for (uint32_t i = 0; i < model->buffer_count; i++) {
        const cuvil_buffer *buffer = &model->buffers[i];
        uint64_t limit = 0;
        switch (buffer->kind) {
        case CUVIL_BUFFER_ARENA: limit = model->expr_count; break;
        case CUVIL_BUFFER_WEIGHT: limit = model->weight_bytes + 1; break;
        case CUVIL_BUFFER_INPUT: limit = model->input_count; break;
        case CUVIL_BUFFER_OUTPUT: limit = model->output_count; break;
        case CUVIL_BUFFER_ADAPTED: limit = model->adaptable_count; break;
        case CUVIL_BUFFER_PREPARED: limit = MOST_BYTES; break;
        case CUVIL_BUFFER_HEAP:
            if ((uint32_t)buffer->place >= model->buffer_count)
                return CORRUPT("buffer %u lies in heap slot %u", i, (uint32_t)buffer->place);
            limit = (uint64_t)model->expr_count << 32;
            break;
        default: return CORRUPT("buffer %u has kind %u", i, buffer->kind);
        }
        if (buffer->bytes >= model->expr_count || buffer->place >= limit)
            return CORRUPT("buffer %u (kind %u) is out of range: place %llu of %llu", i,
                           buffer->kind, (unsigned long long)buffer->place,
                           (unsigned long long)limit);
        if (buffer->kind == CUVIL_BUFFER_PREPARED && !good_prepared(model, buffer))
            return CORRUPT("buffer %u, of prepared memory, is misaligned or of unknown size", i);
    }
    return CUVIL_OK;
}

static cuvil_status check_adaptable(const cuvil_model *model)
{
    if (model->adaptable_count > 0 && model->lora == NULL)
        return CORRUPT("weights may be exchanged, but there is no fingerprint of them");
    uint32_t hidden = model->lora != NULL ? model->lora->hidden_inputs : 0;
    if (hidden > 0 && (model->adaptable_count == 0 || hidden >= model->input_count))
        return CORRUPT("%u of %u inputs are the runtime's own", hidden, model->input_count);
    if (model->adaptable_count == 0 && model->adapter_bytes > 0)
        return CORRUPT("it has adapters, but no weight that they may exchange");
    for (uint32_t i = 0; i < model->adaptable_count; i++) {
        const cuvil_adaptable *site = &model->adaptable[i];
        uint64_t outputs = site->packed ? (uint64_t)cuvil_panels(site) * CUVIL_PANEL
                                        : site->outputs;
        bool good = good_string(model, site->name) && site->place % 64 == 0 &&
                    site->place <= model->weight_bytes &&
                    site->bytes <= model->weight_bytes - site->place;
        if (site->kernel != CUVIL_NONE) /* the product cannot wrap: at most 2^31 times 2^32 */
            good = good && site->kernel < cuvil_kernel_count && site->packed <= 1 &&
                   site->outputs > 0 && site->outputs <= INT32_MAX && site->rows > 0 &&
                   site->bytes % sizeof(float) == 0 &&
                   outputs * site->rows == site->bytes / sizeof(float);
        if (!good)
            return CORRUPT("adaptable weight %u is malformed or lies outside the weights", i);
    }
    return CUVIL_OK;
}

static bool writable(const cuvil_model *model, uint32_t operand)
{
    uint32_t kind = model->buffers[model->operands[operand]].kind;
    return kind == CUVIL_BUFFER_ARENA || kind == CUVIL_BUFFER_OUTPUT || kind == CUVIL_BUFFER_HEAP;
}

/* The step runs once, before there are inputs and an arena. */
static bool good_prepare(const cuvil_model *model, const cuvil_step *step)
{
    for (uint32_t i = 0; i < step->buffer_count; i++) {
        uint32_t kind = model->buffers[model->operands[step->buffers + i]].kind;
        if (kind != CUVIL_BUFFER_WEIGHT && kind != CUVIL_BUFFER_PREPARED)
            return false;
    }
    return (uint32_t)(step - model->steps) < model->prepare_count &&
           step->target < cuvil_kernel_count && step->tasks < model->expr_count;
}

static bool good_target(const cuvil_model *model, const cuvil_step *step)
{
    return step->target >= model->prepare_count && step->target <= model->step_count;
}

/* Whether the step's own kind finds what it needs; its operands are in range already. */
static bool good_kind(const cuvil_model *model, const cuvil_step *step)
{
    switch (step->kind) {
    case CUVIL_STEP_KERNEL:
        return step->target < cuvil_kernel_count && step->tasks < model->expr_count;
    case CUVIL_STEP_COPY: return step->buffer_count == 2 && writable(model, step->buffers + 1);
    case CUVIL_STEP_DIMS: return step->buffer_count == 1 && writable(model, step->buffers);
    case CUVIL_STEP_BRANCH:
        return good_target(model, step) &&
               (step->buffer_count == 1 || (step->buffer_count == 0 && step->scalar_count == 1));
    case CUVIL_STEP_JUMP: return good_target(model, step);
    case CUVIL_STEP_REQUIRE: return step->scalar_count == 1;
    case CUVIL_STEP_BIND:
        return step->target >= model->input_symbols && step->target < model->symbol_count &&
               step->buffer_count <= 1 && step->scalar_count == 1;
    case CUVIL_STEP_PREPARE: return good_prepare(model, step);
    default: return false;
    }
}

static bool good_operands(const cuvil_model *model, const cuvil_step *step)
{
    if (!good_range(step->buffers, step->buffer_count, model->operand_count) ||
        !good_range(step->scalars, step->scalar_count, model->operand_count))
        return false;
    for (uint32_t i = 0; i < step->buffer_count; i++)
        if (model->operands[step->buffers + i] >= model->buffer_count)
            return false;
    for (uint32_t i = 0; i < step->scalar_count; i++)
        if (model->operands[step->scalars + i] >= model->expr_count)
            return false;
    return true;
}

static cuvil_status check_steps(const cuvil_model *model)
{
    for (uint32_t i = 0; i < model->step_count; i++) {
        const cuvil_step *step = &model->steps[i];
        if (!good_string(model, step->name) || !good_string(model, step->layer) ||
            (step->scratch_bytes != CUVIL_NONE && step->scratch_bytes >= model->expr_count) ||
            (step->cost != CUVIL_NONE && step->cost >= model->expr_count))
            return CORRUPT("step %u has a bad name, scratch size or cost", i);
        if (!good_operands(model, step))
            return CORRUPT("step %u has an operand out of range", i);
        if (!good_kind(model, step))
            return CORRUPT("step %u (kind %u, target %u) is malformed", i, step->kind,
                           step->target);
    }
    return CUVIL_OK;
}

cuvil_status cuvil_image_check(const cuvil_model *model)
{
    cuvil_status status = check_texts(model);
    if (status == CUVIL_OK)
        status = check_exprs(model);
    if (status == CUVIL_OK)
        status = check_buffers(model);
    if (status == CUVIL_OK)
        status = check_ports(model, model->inputs, model->input_count, CUVIL_BUFFER_INPUT, "input");
    if (status == CUVIL_OK)
        status =
            check_ports(model, model->outputs, model->output_count, CUVIL_BUFFER_OUTPUT, "output");
    if (status == CUVIL_OK)
        status = check_symbols(model);
    if (status == CUVIL_OK)
        status = check_steps(model);
    if (status == CUVIL_OK)
        status = check_adaptable(model);
    return status;
}
