/* Batches whose rows have adapters of their own: tenants, which adapters a run has, and the inputs
 * that tell kernels of them. Those are the last inputs of the model (cuvil_lora.hidden_inputs):
 * slots, a line as long as the largest rank, the pool, and a table for each adaptable weight that
 * rows change. Those come first; others only say what the model has, for whoever makes adapters.
 */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#include "internal.h"

enum { SLOTS, RANK, POOL, TABLES }; /* the hidden inputs in order */

struct cuvil_tenant {
    cuvil_model *model;
    char *name;
    cuvil_adapter *adapters;
    cuvil_tenant *next;
};

uint32_t cuvil_visible_inputs(const cuvil_model *model)
{
    return model->input_count - (model->lora != NULL ? model->lora->hidden_inputs : 0);
}

/* How many adaptable weights have a table. */
static uint32_t table_count(const cuvil_model *model)
{
    return model->lora->hidden_inputs - TABLES;
}

/* The value of a constant dimension of an input, -1 of another. */
static int64_t constant_dim(const cuvil_model *model, const cuvil_io *io, uint32_t axis)
{
    const cuvil_expr *expr = &model->exprs[model->dims[io->dims + axis]];
    return expr->op == CUVIL_EXPR_CONST ? expr->imm : -1;
}

static bool has_type(const cuvil_io *io, cuvil_dtype dtype, uint32_t rank)
{
    return io->dtype == (uint32_t)dtype && io->rank == rank;
}

/* A batched model's pages. The hidden inputs are such as cuvilc makes them. */
cuvil_status cuvil_open_batch(cuvil_model *model)
{
    uint32_t hidden = model->lora->hidden_inputs;
    if (hidden == 0)
        return CUVIL_OK;
    bool good = hidden > TABLES && hidden - TABLES <= model->adaptable_count &&
                hidden < model->input_count;
    uint32_t count = good ? table_count(model) : 0;
    const cuvil_io *inputs = good ? model->inputs + cuvil_visible_inputs(model) : NULL;
    good = good && model->inputs[0].rank > 0 && has_type(&inputs[SLOTS], CUVIL_INT64, 1) &&
           has_type(&inputs[RANK], CUVIL_UINT8, 1) && has_type(&inputs[POOL], CUVIL_FLOAT32, 1);
    cuvil_table_shape *shapes = calloc((size_t)count + 1, sizeof *shapes);
    if (shapes == NULL)
        return cuvil_fail(CUVIL_ERROR_MEMORY, "out of memory for a model's adapters");
    for (uint32_t i = 0; good && i < count; i++) {
        const cuvil_io *io = &inputs[TABLES + i];
        good = has_type(io, CUVIL_INT64, 3);
        int64_t changes = good ? constant_dim(model, io, 0) : 0;
        int64_t slots = good ? constant_dim(model, io, 1) : 0;
        good = good && constant_dim(model, io, 2) == CUVIL_TABLE_COLUMNS && changes > 0 &&
               changes <= 1024 && slots > 1 && slots <= 65536 &&
               (i == 0 || slots == shapes[0].slots);
        shapes[i] = (cuvil_table_shape){(uint32_t)changes, (uint32_t)slots};
    }
    cuvil_status status =
        good ? cuvil_pages_create(shapes, count, &model->pages)
             : cuvil_fail(CUVIL_ERROR_PACKAGE, "corrupt package: its %u hidden inputs are not those "
                                               "of a model for batches of adapters",
                          hidden);
    free(shapes);
    return status;
}

void cuvil_close_batch(cuvil_model *model)
{
    while (model->tenants != NULL) {
        cuvil_tenant *tenant = model->tenants;
        model->tenants = tenant->next;
        cuvil_drop_adapters(model, &tenant->adapters);
        free(tenant->name);
        free(tenant);
    }
    cuvil_pages_destroy(model->pages);
}

/* A batched model holds what kernels read of an adapter in its pages. */
cuvil_status cuvil_hold_adapter(cuvil_model *model, cuvil_adapter *adapter)
{
    if (model->pages == NULL)
        return CUVIL_OK;
    uint32_t *rows = calloc((size_t)model->adaptable_count + 1, sizeof *rows);
    if (rows == NULL)
        return cuvil_fail(CUVIL_ERROR_MEMORY, "out of memory for adapter `%s`", adapter->name);
    for (uint32_t i = 0; i < model->adaptable_count; i++)
        rows[i] = model->adaptable[i].rows;
    cuvil_status status = cuvil_page_in(model->pages, adapter->header, adapter->entries, rows,
                                        adapter->name, &adapter->pages);
    free(rows);
    return status;
}

static cuvil_status need_batches(const cuvil_model *model, const char *function)
{
    if (model == NULL)
        return cuvil_fail(CUVIL_ERROR_ARGUMENT, "%s: the model is NULL", function);
    if (model->pages == NULL)
        return cuvil_fail(CUVIL_ERROR_NO_ADAPTER, "this package has no batches of adapters: it was "
                                                  "not built with --lora batch");
    return CUVIL_OK;
}

cuvil_status cuvil_get_tenant(cuvil_model *model, const char *name, cuvil_tenant **result)
{
    cuvil_status status = need_batches(model, "cuvil_get_tenant");
    if (status == CUVIL_OK && (name == NULL || result == NULL))
        status = cuvil_fail(CUVIL_ERROR_ARGUMENT, "cuvil_get_tenant: the %s is NULL",
                            name == NULL ? "name" : "place for the result");
    if (status != CUVIL_OK)
        return status;
    pthread_mutex_lock(&model->lock);
    cuvil_tenant *tenant = model->tenants;
    while (tenant != NULL && strcmp(tenant->name, name) != 0)
        tenant = tenant->next;
    if (tenant == NULL && (tenant = calloc(1, sizeof *tenant)) != NULL) {
        *tenant = (cuvil_tenant){model, strdup(name), NULL, model->tenants};
        if (tenant->name != NULL) {
            model->tenants = tenant;
        } else {
            free(tenant);
            tenant = NULL;
        }
    }
    pthread_mutex_unlock(&model->lock);
    *result = tenant;
    return tenant != NULL ? CUVIL_OK
                          : cuvil_fail(CUVIL_ERROR_MEMORY, "out of memory for tenant `%s`", name);
}

static cuvil_status need_tenant(const cuvil_tenant *tenant, const char *function)
{
    return tenant != NULL ? CUVIL_OK
                          : cuvil_fail(CUVIL_ERROR_ARGUMENT, "%s: the tenant is NULL", function);
}

cuvil_status cuvil_tenant_load_adapter(cuvil_tenant *tenant, const char *path, const char *name)
{
    cuvil_status status = need_tenant(tenant, "cuvil_tenant_load_adapter");
    return status != CUVIL_OK ? status
                              : cuvil_load_into(tenant->model, &tenant->adapters, path, name);
}

cuvil_status cuvil_tenant_unload_adapter(cuvil_tenant *tenant, const char *name)
{
    cuvil_status status = need_tenant(tenant, "cuvil_tenant_unload_adapter");
    return status != CUVIL_OK ? status : cuvil_unload_from(tenant->model, &tenant->adapters, name);
}

int32_t cuvil_tenant_adapter_count(cuvil_tenant *tenant)
{
    return tenant == NULL ? 0 : cuvil_count_adapters(tenant->model, &tenant->adapters);
}

cuvil_status cuvil_tenant_get_adapter(cuvil_tenant *tenant, int32_t index,
                                      cuvil_adapter_info *info)
{
    cuvil_status status = need_tenant(tenant, "cuvil_tenant_get_adapter");
    return status != CUVIL_OK
               ? status
               : cuvil_describe_adapter(tenant->model, &tenant->adapters, index, info);
}

cuvil_status cuvil_get_pages(cuvil_model *model, cuvil_pages_info *info)
{
    cuvil_status status = need_batches(model, "cuvil_get_pages");
    if (status == CUVIL_OK && info == NULL)
        status = cuvil_fail(CUVIL_ERROR_ARGUMENT, "cuvil_get_pages: the result is NULL");
    if (status == CUVIL_OK)
        cuvil_pages_count(model->pages, info);
    return status;
}

/* A run no longer has these. Those that were unloaded meanwhile go with the last one. The caller
 * has the model's lock. */
static void let_go(cuvil_model *model, cuvil_adapter **adapters, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        if (adapters[i] != NULL && --adapters[i]->users == 0 && adapters[i]->unloaded)
            cuvil_drop_adapter(model, adapters[i]);
}

/* The adapters of these names, each with one user more. The caller has the model's lock. */
static cuvil_status find_all(cuvil_model *model, cuvil_tenant *tenant, const char *const *names,
                             int32_t count, cuvil_adapter **found)
{
    cuvil_adapter *list = tenant != NULL ? tenant->adapters : model->adapters;
    for (int32_t i = 0; i < count; i++) {
        if (names[i] == NULL)
            continue;
        found[i] = cuvil_find_adapter(list, names[i]);
        if (found[i] == NULL)
            return cuvil_unknown_adapter(list, names[i]);
    }
    for (int32_t i = 0; i < count; i++)
        if (found[i] != NULL)
            found[i]->users++;
    return CUVIL_OK;
}

cuvil_status cuvil_set_adapters(cuvil_context *context, cuvil_tenant *tenant,
                                const char *const *names, int32_t count)
{
    if (context == NULL || count < 0 || (count > 0 && names == NULL))
        return cuvil_fail(CUVIL_ERROR_ARGUMENT, "cuvil_set_adapters: the %s",
                          context == NULL ? "context is NULL" : "names are NULL or too few");
    cuvil_model *model = context->owner;
    cuvil_status status = need_batches(model, "cuvil_set_adapters");
    if (status == CUVIL_OK && tenant != NULL && tenant->model != model)
        status = cuvil_fail(CUVIL_ERROR_ARGUMENT, "cuvil_set_adapters: tenant `%s` is another "
                                                  "model's", tenant->name);
    if (status != CUVIL_OK || (count == 0 && context->adapter_count == 0))
        return status;
    cuvil_adapter **found = calloc((size_t)count + 1, sizeof *found);
    if (found == NULL)
        return cuvil_fail(CUVIL_ERROR_MEMORY, "out of memory for the adapters of a batch");
    pthread_mutex_lock(&model->lock);
    status = find_all(model, tenant, names, count, found);
    if (status == CUVIL_OK) {
        let_go(model, context->adapters, context->adapter_count);
        cuvil_adapter **before = context->adapters;
        context->adapters = found;
        context->adapter_count = count;
        found = before;
    }
    pthread_mutex_unlock(&model->lock);
    free(found);
    return status;
}

void cuvil_release_adapters(cuvil_context *context)
{
    cuvil_model *model = context->owner;
    if (model->pages != NULL) {
        pthread_mutex_lock(&model->lock);
        let_go(model, context->adapters, context->adapter_count);
        pthread_mutex_unlock(&model->lock);
    }
    free(context->adapters);
    free(context->slots);
}

static void set_hidden(cuvil_context *context, uint32_t which, void *data, int64_t dim,
                       int64_t item)
{
    cuvil_slot *slot = &context->inputs[cuvil_visible_inputs(context->model) + which];
    if (!slot->set || slot->dims[0] != dim)
        context->dims_stale = true;
    *slot = (cuvil_slot){.data = data, .dims = {dim}, .bytes = dim * item, .set = true};
}

static void set_tables(cuvil_context *context)
{
    const cuvil_model *model = context->model;
    for (uint32_t i = 0; i < table_count(model); i++) {
        const cuvil_io *io = &model->inputs[cuvil_visible_inputs(model) + TABLES + i];
        cuvil_slot *slot = &context->inputs[cuvil_visible_inputs(model) + TABLES + i];
        *slot = (cuvil_slot){.data = cuvil_pages_table(model->pages, i),
                             .bytes = sizeof(int64_t), .set = true};
        for (uint32_t axis = 0; axis < io->rank; axis++) {
            slot->dims[axis] = constant_dim(model, io, axis);
            slot->bytes *= slot->dims[axis];
        }
    }
}

/* The slot of each part of the batch. */
static cuvil_status fill_slots(cuvil_context *context, int64_t batch, int64_t *rank)
{
    if (context->adapter_count > 0 && context->adapter_count != batch)
        return cuvil_fail(CUVIL_ERROR_SHAPE, "%lld adapters are given for a batch of %lld",
                          (long long)context->adapter_count, (long long)batch);
    if (batch > context->slot_room) {
        int64_t *slots = realloc(context->slots, (size_t)batch * sizeof *slots);
        if (slots == NULL)
            return cuvil_fail(CUVIL_ERROR_MEMORY, "out of memory for a batch of %lld",
                              (long long)batch);
        context->slots = slots;
        context->slot_room = batch;
    }
    if (batch > 0)
        memset(context->slots, 0, (size_t)batch * sizeof(int64_t));
    for (int64_t i = 0; i < context->adapter_count; i++) {
        const cuvil_adapter *adapter = context->adapters[i];
        if (adapter == NULL)
            continue;
        context->slots[i] = adapter->pages.slot;
        int64_t wide = adapter->pages.rank > 0 ? adapter->pages.rank : 1;
        *rank = wide > *rank ? wide : *rank;
    }
    return CUVIL_OK;
}

/* Before shapes are bound: the batch is the first axis of the first input. Another rank would mean
 * that all sizes are bound anew, so a context keeps the largest that it had. */
cuvil_status cuvil_set_hidden(cuvil_context *context)
{
    const cuvil_model *model = context->model;
    if (model->pages == NULL || !context->inputs[0].set)
        return CUVIL_OK;
    int64_t rank = 0, floats, batch = context->inputs[0].dims[0];
    cuvil_status status = fill_slots(context, batch, &rank);
    if (status != CUVIL_OK)
        return status;
    if (rank > context->rank)
        context->rank = rank;
    float *pool = cuvil_pages_pool(model->pages, &floats);
    set_hidden(context, SLOTS, context->slots, batch, sizeof(int64_t));
    set_hidden(context, RANK, pool, rank > 0 ? context->rank : 0, 1);
    set_hidden(context, POOL, pool, floats, sizeof(float));
    set_tables(context);
    return CUVIL_OK;
}
