/* Contexts: create, destroy, set tensors, read results. */
#include <stdlib.h>
#include <string.h>

#include "cpu.h"
#include "internal.h"

static void *array(size_t count, size_t bytes)
{
    return calloc(count > 0 ? count : 1, bytes);
}

static cuvil_status allocate(cuvil_context *context)
{
    const cuvil_model *model = context->model;
    context->inputs = array(model->input_count, sizeof(cuvil_slot));
    context->targets = array(model->output_count, sizeof(cuvil_slot));
    context->outputs = array(model->output_count, sizeof(cuvil_slot));
    context->symbols = array(model->symbol_count, sizeof(int64_t));
    context->values = array(model->expr_count, sizeof(int64_t));
    context->pointers = array(model->operand_count, sizeof(void *));
    context->scalars = array(model->operand_count, sizeof(int64_t));
    context->heap_count = (size_t)model->slot_count + model->output_count + 1;
    context->heap = array(context->heap_count, sizeof(cuvil_block));
    bool good = context->inputs && context->targets && context->outputs && context->symbols &&
                context->values && context->pointers && context->scalars && context->heap;
    return good ? CUVIL_OK : cuvil_fail(CUVIL_ERROR_MEMORY, "out of memory for a context's tables");
}

static cuvil_status choose_threads(const cuvil_options *options, int32_t *threads)
{
    *threads = 0;
    if (options != NULL) {
        if (options->struct_bytes < offsetof(cuvil_options, threads) + sizeof options->threads)
            return cuvil_fail(CUVIL_ERROR_ARGUMENT,
                              "cuvil_options.struct_bytes is %zu, must be "
                              "sizeof(cuvil_options)",
                              options->struct_bytes);
        *threads = options->threads;
    }
    if (*threads < 0 || *threads > CUVIL_MAX_THREADS)
        return cuvil_fail(CUVIL_ERROR_ARGUMENT, "%d threads asked for, allowed is 0..%d", *threads,
                          CUVIL_MAX_THREADS);
    if (*threads == 0)
        *threads = cuvil_cpu_count() < CUVIL_MAX_THREADS ? cuvil_cpu_count() : CUVIL_MAX_THREADS;
    return CUVIL_OK;
}

cuvil_status cuvil_context_create(cuvil_model *model, const cuvil_options *options,
                                  cuvil_context **result)
{
    if (model == NULL || result == NULL)
        return cuvil_fail(CUVIL_ERROR_ARGUMENT, "cuvil_context_create: the %s is NULL",
                          model == NULL ? "model" : "place for the result");
    *result = NULL;
    int32_t threads;
    cuvil_status status = choose_threads(options, &threads);
    if (status != CUVIL_OK)
        return status;
    cuvil_context *context = calloc(1, sizeof *context);
    if (context == NULL)
        return cuvil_fail(CUVIL_ERROR_MEMORY, "out of memory for a context");
    context->model = context->owner = model;
    context->threads = threads;
    context->dims_stale = context->memory_stale = true;
    status = allocate(context);
    if (status == CUVIL_OK && threads > 1)
        status = cuvil_pool_create(threads, &context->pool);
    if (status != CUVIL_OK)
        cuvil_context_destroy(context);
    else
        *result = context;
    return status;
}

void cuvil_context_destroy(cuvil_context *context)
{
    if (context == NULL)
        return;
    cuvil_pool_destroy(context->pool);
    cuvil_release_adapters(context);
    cuvil_release(context);
    cuvil_release_heap(context);
    free(context->heap);
    free(context->inputs);
    free(context->targets);
    free(context->outputs);
    free(context->symbols);
    free(context->values);
    free(context->pointers);
    free(context->scalars);
    free(context);
}

/* A context and an index below count, or why not. */
static cuvil_status check_index(const char *function, const cuvil_context *context, bool given,
                                int32_t index, bool output)
{
    if (context == NULL || !given)
        return cuvil_fail(CUVIL_ERROR_ARGUMENT, "%s: the %s is NULL", function,
                          context == NULL ? "context" : "tensor");
    uint32_t count =
        output ? context->model->output_count : cuvil_visible_inputs(context->model);
    if (index < 0 || (uint32_t)index >= count)
        return cuvil_fail(output ? CUVIL_ERROR_ARGUMENT : CUVIL_ERROR_INPUT,
                          "%s: there is no %s %d, the model has %u", function,
                          output ? "output" : "input", index, count);
    return CUVIL_OK;
}

cuvil_status cuvil_set_input(cuvil_context *context, int32_t index, const cuvil_tensor *tensor)
{
    cuvil_status status = check_index("cuvil_set_input", context, tensor != NULL, index, false);
    if (status != CUVIL_OK)
        return status;
    const cuvil_io *io = &context->model->inputs[index];
    cuvil_slot *slot = &context->inputs[index], before = *slot;
    status = cuvil_accept(context->model, io, "input", tensor, slot);
    if (status != CUVIL_OK)
        return status;
    if (!before.set || memcmp(before.dims, slot->dims, io->rank * sizeof slot->dims[0]) != 0)
        context->dims_stale = true;
    return CUVIL_OK;
}

cuvil_status cuvil_set_output(cuvil_context *context, int32_t index, const cuvil_tensor *tensor)
{
    cuvil_status status = check_index("cuvil_set_output", context, true, index, true);
    if (status != CUVIL_OK)
        return status;
    const cuvil_io *io = &context->model->outputs[index];
    cuvil_slot *slot = &context->targets[index], before = *slot;
    if (tensor != NULL)
        status = cuvil_accept(context->model, io, "output", tensor, slot);
    else
        slot->set = false;
    if (before.set != slot->set || memcmp(before.dims, slot->dims, sizeof slot->dims) != 0)
        context->memory_stale = true;
    return status;
}

cuvil_status cuvil_infer_shapes(cuvil_context *context)
{
    if (context == NULL)
        return cuvil_fail(CUVIL_ERROR_ARGUMENT, "cuvil_infer_shapes: the context is NULL");
    return cuvil_bind(context);
}

cuvil_status cuvil_get_output(cuvil_context *context, int32_t index, cuvil_tensor *tensor)
{
    cuvil_status status = check_index("cuvil_get_output", context, tensor != NULL, index, true);
    if (status != CUVIL_OK)
        return status;
    if (!context->bound)
        return cuvil_fail(CUVIL_ERROR_INPUT, "the shapes of the outputs are not known yet: set the "
                                             "inputs and call cuvil_infer_shapes or cuvil_run");
    const cuvil_io *io = &context->model->outputs[index];
    const cuvil_slot *slot = &context->outputs[index];
    *tensor = (cuvil_tensor){.dtype = (cuvil_dtype)io->dtype, .rank = (int32_t)io->rank};
    tensor->data = context->ran ? slot->data : NULL;
    memcpy(tensor->dims, slot->dims, io->rank * sizeof slot->dims[0]);
    return CUVIL_OK;
}

size_t cuvil_context_bytes(const cuvil_context *context)
{
    return context == NULL ? 0 : context->block_bytes + cuvil_heap_bytes(context);
}

cuvil_status cuvil_set_probe(cuvil_context *context, cuvil_probe probe, void *user)
{
    if (context == NULL)
        return cuvil_fail(CUVIL_ERROR_ARGUMENT, "cuvil_set_probe: the context is NULL");
    context->probe = probe;
    context->probe_user = user;
    return CUVIL_OK;
}
