/* A context's block of memory, and where every operand of every step lies. */
#define _GNU_SOURCE
#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>

#include "internal.h"

#define ALIGNMENT 64u

/* Reserve `bytes` at the end of *total; returns where they begin. Sizes near 2^63 saturate. */
static size_t reserve(size_t *total, uint64_t bytes)
{
    size_t begin = *total;
    if (bytes > SIZE_MAX / 4 || begin > SIZE_MAX / 4)
        *total = SIZE_MAX / 2;
    else
        *total = begin + (((size_t)bytes + ALIGNMENT - 1) & ~(size_t)(ALIGNMENT - 1));
    return begin;
}

static uint64_t at_least_0(int64_t value)
{
    return value > 0 ? (uint64_t)value : 0;
}

/* Fewer TLB misses; refused where unsupported. */
void cuvil_prefer_huge_pages(void *data, size_t bytes)
{
    if (bytes >= 2u << 20)
        madvise(data, bytes, MADV_HUGEPAGE);
}

/* Grow the block to `bytes`. Its contents are lost: they belong to the previous run. */
static cuvil_status grow(cuvil_context *context, size_t bytes)
{
    if (bytes <= context->block_bytes)
        return CUVIL_OK;
    cuvil_release(context);
    void *block = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (block == MAP_FAILED)
        return cuvil_fail(CUVIL_ERROR_MEMORY,
                          "out of memory: these shapes need %zu bytes (%zu for each of %d threads)",
                          bytes, context->scratch_stride, context->threads);
    cuvil_prefer_huge_pages(block, bytes);
    context->block = block;
    context->block_bytes = bytes;
    return CUVIL_OK;
}

void cuvil_release(cuvil_context *context)
{
    if (context->block != NULL)
        munmap(context->block, context->block_bytes);
    context->block = NULL;
    context->block_bytes = 0;
}

void *cuvil_locate(const cuvil_context *context, uint32_t number)
{
    const cuvil_buffer *buffer = &context->model->buffers[number];
    void *place;
    switch (buffer->kind) {
    case CUVIL_BUFFER_ARENA:
        /* Of an empty buffer, the offset may lie anywhere. */
        if (context->values[buffer->bytes] <= 0)
            return context->block;
        return context->block + context->values[buffer->place];
    case CUVIL_BUFFER_ADAPTED:
        return (void *)(uintptr_t)context->view->places[buffer->place];
    case CUVIL_BUFFER_PREPARED: return context->model->prepared + buffer->place;
    case CUVIL_BUFFER_WEIGHT: return (void *)(uintptr_t)(context->model->weights + buffer->place);
    case CUVIL_BUFFER_HEAP: {
        const cuvil_block *slot = &context->heap[(uint32_t)buffer->place];
        int64_t offset = context->values[buffer->place >> 32];
        bool inside = offset >= 0 && (uint64_t)offset < slot->bytes; /* if not, it is empty */
        place = inside ? slot->data + offset : slot->data;
        break;
    }
    case CUVIL_BUFFER_INPUT: place = context->inputs[buffer->place].data; break;
    default: place = context->outputs[buffer->place].data;
    }
    return place != NULL ? place : context->block; /* an empty tensor may have no address */
}

void cuvil_resolve(cuvil_context *context)
{
    const cuvil_model *model = context->model;
    for (uint32_t i = 0; i < model->step_count; i++) {
        const cuvil_step *step = &model->steps[i];
        for (uint32_t j = step->buffers; j < step->buffers + step->buffer_count; j++)
            context->pointers[j] = cuvil_locate(context, model->operands[j]);
        for (uint32_t j = step->scalars; j < step->scalars + step->scalar_count; j++)
            context->scalars[j] = context->values[model->operands[j]];
    }
}

/* Another adapter is in use than in the run before. */
static void resolve_adapted(cuvil_context *context)
{
    const cuvil_model *model = context->model;
    for (uint32_t i = 0; i < model->adapted_operand_count; i++) {
        uint32_t operand = model->adapted_operands[i];
        context->pointers[operand] = cuvil_locate(context, model->operands[operand]);
    }
}

cuvil_status cuvil_check_target(const cuvil_context *context, uint32_t number)
{
    const cuvil_model *model = context->model;
    const cuvil_slot *target = &context->targets[number], *output = &context->outputs[number];
    for (uint32_t axis = 0; target->set && axis < model->outputs[number].rank; axis++)
        if (output->dims[axis] >= 0 && target->dims[axis] != output->dims[axis])
            return cuvil_fail(CUVIL_ERROR_SHAPE,
                              "output `%s`: axis %u of the given memory is %" PRId64
                              ", the result has %" PRId64,
                              cuvil_string(model, model->outputs[number].name), axis,
                              target->dims[axis], output->dims[axis]);
    return CUVIL_OK;
}

static cuvil_status lay_out(cuvil_context *context)
{
    const cuvil_model *model = context->model;
    cuvil_status status = CUVIL_OK;
    for (uint32_t i = 0; i < model->output_count && status == CUVIL_OK; i++)
        status = cuvil_check_target(context, i);
    if (status != CUVIL_OK)
        return status;
    size_t total = 0, scratch = 0;
    reserve(&total, at_least_0(context->values[model->header->arena_bytes]));
    size_t outputs = total;
    for (uint32_t i = 0; i < model->output_count; i++)
        if (!context->targets[i].set)
            reserve(&total, (uint64_t)context->outputs[i].bytes);
    for (uint32_t i = model->prepare_count; i < model->step_count; i++) {
        size_t need = 0;
        if (model->steps[i].scratch_bytes != CUVIL_NONE)
            reserve(&need, at_least_0(context->values[model->steps[i].scratch_bytes]));
        scratch = need > scratch ? need : scratch;
    }
    context->scratch_stride = scratch;
    size_t scratch_begin = total;
    for (int32_t i = 0; i < context->threads; i++)
        reserve(&total, scratch);
    status = grow(context, total > ALIGNMENT ? total : ALIGNMENT);
    if (status != CUVIL_OK)
        return status;
    context->scratch = context->block + scratch_begin;
    for (uint32_t i = 0; i < model->output_count; i++)
        if (!context->targets[i].set)
            context->outputs[i].data =
                context->block + reserve(&outputs, (uint64_t)context->outputs[i].bytes);
    for (uint32_t i = 0; i < model->buffer_count && status == CUVIL_OK; i++)
        if (model->buffers[i].kind == CUVIL_BUFFER_HEAP)
            status = cuvil_reserve_heap(context, i, NULL);
    return status;
}

static bool overlap(const cuvil_slot *a, const cuvil_slot *b)
{
    uintptr_t first = (uintptr_t)a->data, second = (uintptr_t)b->data;
    return a->bytes > 0 && b->bytes > 0 && first < second + (uintptr_t)b->bytes &&
           second < first + (uintptr_t)a->bytes;
}

/* Inputs are read while outputs are written, in an order that is the compiler's own. */
static cuvil_status check_overlap(const cuvil_context *context, uint32_t output)
{
    const cuvil_model *model = context->model;
    const cuvil_slot *target = &context->targets[output];
    const char *other = NULL;
    for (uint32_t i = 0; i < model->input_count; i++)
        if (overlap(target, &context->inputs[i]))
            other = cuvil_string(model, model->inputs[i].name);
    for (uint32_t i = 0; i < output; i++)
        if (context->targets[i].set && overlap(target, &context->targets[i]))
            other = cuvil_string(model, model->outputs[i].name);
    if (other == NULL)
        return CUVIL_OK;
    return cuvil_fail(CUVIL_ERROR_ARGUMENT,
                      "the memory given for output `%s` overlaps that of `%s`",
                      cuvil_string(model, model->outputs[output].name), other);
}

/* Afterwards every pointer and scalar of every step fits the shapes bound and the tensors set. */
cuvil_status cuvil_place(cuvil_context *context)
{
    const cuvil_model *model = context->model;
    bool stale = context->memory_stale;
    if (stale) {
        cuvil_status status = lay_out(context);
        if (status != CUVIL_OK)
            return status;
    }
    for (uint32_t i = 0; i < model->output_count; i++) {
        if (!context->targets[i].set)
            continue;
        cuvil_status status = check_overlap(context, i);
        if (status != CUVIL_OK)
            return status;
        context->outputs[i].data = context->targets[i].data;
    }
    if (stale)
        cuvil_resolve(context);
    else if (context->view != NULL && context->view->serial != context->view_serial)
        resolve_adapted(context);
    context->view_serial = context->view != NULL ? context->view->serial : 0;
    for (uint32_t i = 0; !stale && i < model->io_operand_count; i++) {
        uint32_t operand = model->io_operands[i];
        context->pointers[operand] = cuvil_locate(context, model->operands[operand]);
    }
    context->memory_stale = false;
    return CUVIL_OK;
}
