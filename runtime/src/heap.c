/* Blocks that grow while the model runs: heap slots, outputs of computed sizes, scratch. */
#define _GNU_SOURCE
#include <string.h>
#include <sys/mman.h>

#include "internal.h"

#define PAGE_BYTES 4096u /* the kernel rounds up to its own, larger or not */

/* Room of `bytes`, more than before, that begins with what the block holds; its pages move. */
static void *resize(const cuvil_block *block, size_t bytes)
{
#ifndef __SANITIZE_THREAD__
    if (block->data != NULL)
        return mremap(block->data, block->bytes, bytes, MREMAP_MAYMOVE);
#endif
    void *data = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
#ifdef __SANITIZE_THREAD__
    /* The sanitizer does not see mremap: an address that one thread left and another got is a race
     * to it. */
    if (data != MAP_FAILED && block->data != NULL) {
        memcpy(data, block->data, block->bytes);
        munmap(block->data, block->bytes);
    }
#endif
    return data;
}

cuvil_status cuvil_grow(cuvil_block *block, uint64_t bytes, const char *layer)
{
    if (bytes <= block->bytes)
        return CUVIL_OK;
    if (bytes <= SIZE_MAX / 4) {
        size_t whole = ((size_t)bytes + PAGE_BYTES - 1) & ~(size_t)(PAGE_BYTES - 1);
        size_t twice = 2 * block->bytes; /* so that growing little by little costs little */
        size_t room = whole > twice ? whole : twice;
        void *data = resize(block, room);
        if (data == MAP_FAILED && room > whole)
            data = resize(block, room = whole);
        if (data != MAP_FAILED) {
            *block = (cuvil_block){data, room};
            cuvil_prefer_huge_pages(data, room);
            return CUVIL_OK;
        }
    }
    if (layer == NULL)
        return cuvil_fail(CUVIL_ERROR_MEMORY,
                          "out of memory: a buffer needs %llu bytes for these shapes",
                          (unsigned long long)bytes);
    return cuvil_fail(CUVIL_ERROR_MEMORY, "out of memory: layer `%s` needs %llu bytes", layer,
                      (unsigned long long)bytes);
}

cuvil_status cuvil_reserve_heap(cuvil_context *context, uint32_t number, const char *layer)
{
    const cuvil_buffer *buffer = &context->model->buffers[number];
    int64_t bytes = context->values[buffer->bytes], place = context->values[buffer->place >> 32];
    cuvil_block *block = &context->heap[(uint32_t)buffer->place];
    const unsigned char *before = block->data;
    if (bytes <= 0)
        return CUVIL_OK;
    cuvil_status status = cuvil_grow(block, (uint64_t)place + (uint64_t)bytes, layer);
    if (block->data != before)
        cuvil_resolve(context); /* buffers of other epochs lie in it too */
    return status;
}

size_t cuvil_heap_bytes(const cuvil_context *context)
{
    size_t total = 0;
    for (size_t i = 0; i < context->heap_count; i++)
        total += context->heap[i].bytes;
    return total;
}

void cuvil_release_heap(cuvil_context *context)
{
    for (size_t i = 0; i < context->heap_count; i++)
        if (context->heap[i].data != NULL)
            munmap(context->heap[i].data, context->heap[i].bytes);
}

/* Bytes from the buffer's place to the end of what it lies in; 0 where it lies outside. */
static int64_t room(const cuvil_context *context, const cuvil_buffer *buffer)
{
    int64_t place = 0, whole;
    switch (buffer->kind) {
    case CUVIL_BUFFER_ARENA:
        place = context->values[buffer->place];
        whole = context->values[context->model->header->arena_bytes];
        break;
    case CUVIL_BUFFER_HEAP:
        place = context->values[buffer->place >> 32];
        whole = (int64_t)context->heap[(uint32_t)buffer->place].bytes;
        break;
    case CUVIL_BUFFER_OUTPUT: whole = context->outputs[buffer->place].bytes; break;
    default: whole = context->values[buffer->bytes]; /* checked when shapes were bound */
    }
    return place < 0 || place > whole ? 0 : whole - place;
}

static int64_t held(const cuvil_context *context, uint32_t number)
{
    const cuvil_buffer *buffer = &context->model->buffers[number];
    int64_t bytes = context->values[buffer->bytes], most = room(context, buffer);
    return bytes < 0 ? 0 : bytes < most ? bytes : most;
}

cuvil_status cuvil_check_step(const cuvil_context *context, const cuvil_step *step)
{
    const cuvil_model *model = context->model;
    const uint32_t *buffers = model->operands + step->buffers;
    bool good = true;
    if (step->kind == CUVIL_STEP_COPY) {
        int64_t bytes = context->values[model->buffers[buffers[1]].bytes];
        const cuvil_buffer *from = &model->buffers[buffers[0]];
        int64_t most =
            from->kind == CUVIL_BUFFER_HEAP ? room(context, from) : held(context, buffers[0]);
        good = bytes <= held(context, buffers[1]) && bytes <= most;
    } else if (step->kind == CUVIL_STEP_DIMS) {
        good = held(context, buffers[0]) >= (int64_t)step->scalar_count * 8;
    } else if (step->kind == CUVIL_STEP_BRANCH && step->buffer_count > 0) {
        good = held(context, buffers[0]) >= 1;
    } else if (step->kind == CUVIL_STEP_BIND && step->buffer_count > 0) {
        int64_t index = context->scalars[step->scalars];
        good = index >= 0 && index < held(context, buffers[0]) / 8;
    }
    if (good)
        return CUVIL_OK;
    return cuvil_fail(CUVIL_ERROR_PACKAGE,
                      "corrupt package: step %u (kind %u) reaches outside its buffers",
                      (uint32_t)(step - model->steps), step->kind);
}

cuvil_status cuvil_reach(cuvil_context *context, const cuvil_step *step)
{
    for (uint32_t j = step->buffers; j < step->buffers + step->buffer_count; j++)
        context->pointers[j] = cuvil_locate(context, context->model->operands[j]);
    return cuvil_check_step(context, step);
}
