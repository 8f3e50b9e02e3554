/* Which weights a run sees: the package's own, or those that an adapter made of them.
 *
 * A view is one state of all adaptable weights. View 0 is the package's, pristine and mapped; views
 * 1 and 2 are shadows that take turns: while runs still read one, the next adapter is merged into
 * the other, always from the pristine weights, so no trace of any adapter is left. A run holds the
 * view that it began with.
 */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "cpu.h"
#include "internal.h"

enum { UNKNOWN = 0, PRISTINE = 1 }; /* what a shadow's panel holds beside the adapter's own */

/* Of a weight that is merged into. */
uint32_t cuvil_panels(const cuvil_adaptable *site)
{
    return (site->outputs + CUVIL_PANEL - 1) / CUVIL_PANEL;
}

static uint64_t panel_bytes(const cuvil_adaptable *site)
{
    return (uint64_t)site->rows * CUVIL_PANEL * sizeof(float);
}

static const unsigned char *pristine(const cuvil_model *model, uint32_t site)
{
    return model->weights + model->adaptable[site].place;
}

/* Tables for the views, when a model that takes adapters is opened. */
cuvil_status cuvil_open_views(cuvil_model *model)
{
    pthread_mutex_init(&model->lock, NULL);
    pthread_mutex_init(&model->swapping, NULL);
    pthread_cond_init(&model->idle, NULL);
    uint32_t count = model->adaptable_count;
    size_t panels = 0;
    model->shadow_offsets = calloc(count, sizeof(uint64_t));
    model->first_panels = calloc(count, sizeof(size_t));
    for (int i = 0; i < CUVIL_VIEWS; i++)
        model->views[i].places = calloc(count, sizeof(void *));
    bool good = model->shadow_offsets != NULL && model->first_panels != NULL &&
                model->views[0].places != NULL && model->views[1].places != NULL &&
                model->views[2].places != NULL;
    for (uint32_t i = 0; good && i < count; i++) {
        for (int j = 0; j < CUVIL_VIEWS; j++)
            model->views[j].places[i] = pristine(model, i);
        if (model->adaptable[i].kernel == CUVIL_NONE)
            continue; /* exchanged whole: read where the adapter has it */
        model->shadow_offsets[i] = model->shadow_bytes;
        model->shadow_bytes += (model->adaptable[i].bytes + 4095) & ~UINT64_C(4095);
        model->first_panels[i] = panels;
        panels += cuvil_panels(&model->adaptable[i]);
    }
    for (int i = 1; good && i < CUVIL_VIEWS; i++)
        good = (model->views[i].panels = calloc(panels + 1, 1)) != NULL;
    return good ? CUVIL_OK : cuvil_fail(CUVIL_ERROR_MEMORY, "out of memory for a model's views");
}

void cuvil_close_views(cuvil_model *model)
{
    cuvil_pool_destroy(model->pool);
    for (int i = 0; i < CUVIL_VIEWS; i++) {
        if (model->views[i].shadow != NULL)
            munmap(model->views[i].shadow, model->shadow_bytes);
        free(model->views[i].places);
        free(model->views[i].panels);
    }
    free(model->ones);
    free(model->shadow_offsets);
    free(model->first_panels);
    pthread_cond_destroy(&model->idle);
    pthread_mutex_destroy(&model->swapping);
    pthread_mutex_destroy(&model->lock);
}

const cuvil_view *cuvil_take_view(cuvil_model *model)
{
    pthread_mutex_lock(&model->lock);
    cuvil_view *view = &model->views[model->current];
    view->readers++;
    pthread_mutex_unlock(&model->lock);
    return view;
}

void cuvil_give_view(cuvil_model *model, const cuvil_view *taken)
{
    pthread_mutex_lock(&model->lock);
    cuvil_view *view = &model->views[taken - model->views];
    if (--view->readers == 0)
        pthread_cond_broadcast(&model->idle);
    pthread_mutex_unlock(&model->lock);
}

/* Views that hold the adapter hold nothing any more. The caller has the locks. */
void cuvil_forget_views(cuvil_model *model, const cuvil_adapter *adapter)
{
    for (int i = 1; i < CUVIL_VIEWS; i++) {
        cuvil_view *view = &model->views[i];
        while (view->adapter == adapter && view->readers > 0)
            pthread_cond_wait(&model->idle, &model->lock);
        if (view->adapter == adapter)
            view->adapter = NULL;
    }
}

/* Everything that swaps allocate; once. The caller is the one that swaps. */
static cuvil_status prepare(cuvil_model *model)
{
    uint32_t panels = 1;
    if (model->ones != NULL || model->shadow_bytes == 0)
        return CUVIL_OK;
    for (uint32_t i = 0; i < model->adaptable_count; i++)
        if (model->adaptable[i].kernel != CUVIL_NONE &&
            cuvil_panels(&model->adaptable[i]) > panels)
            panels = cuvil_panels(&model->adaptable[i]);
    float *ones = malloc((size_t)panels * CUVIL_PANEL * sizeof(float));
    for (size_t i = 0; ones != NULL && i < (size_t)panels * CUVIL_PANEL; i++)
        ones[i] = 1.0f;
    bool good = ones != NULL;
    for (int i = 1; good && i < CUVIL_VIEWS; i++) {
        void *shadow = model->views[i].shadow;
        if (shadow == NULL)
            shadow = mmap(NULL, model->shadow_bytes, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        good = shadow != MAP_FAILED;
        if (good && model->views[i].shadow == NULL) /* a third of the time that small ones cost */
            cuvil_prefer_huge_pages(shadow, model->shadow_bytes);
        model->views[i].shadow = good ? shadow : NULL;
    }
    cuvil_status status = CUVIL_OK;
    if (good && model->pool == NULL && cuvil_cpu_count() > 1)
        status = cuvil_pool_create(cuvil_cpu_count(), &model->pool);
    if (!good)
        status = cuvil_fail(CUVIL_ERROR_MEMORY, "out of memory: adapters need a copy of %llu bytes",
                            (unsigned long long)model->shadow_bytes);
    if (status != CUVIL_OK) {
        free(ones);
        return status;
    }
    model->ones = ones;
    return CUVIL_OK;
}

/* What merge_panels works on. */
typedef struct {
    const cuvil_model *model;
    const cuvil_view *view;
    const cuvil_adapter *adapter;
} merging;

/* Merge the factors of one entry into its panels [begin, end), in the shadow of its site. */
static int32_t merge(const merging *all, const cuvil_adapter_entry *entry, int64_t begin,
                     int64_t end)
{
    const cuvil_model *model = all->model;
    const cuvil_adaptable *site = &model->adaptable[entry->site];
    const unsigned char *data = (const unsigned char *)all->adapter->header;
    uint64_t skip = site->packed ? entry->first_panel * panel_bytes(site) : 0;
    void *buffers[] = {
        (void *)(uintptr_t)(pristine(model, entry->site) + skip),
        (void *)(uintptr_t)(data + entry->a),
        (void *)(uintptr_t)(data + entry->b),
        entry->gain != 0 ? (void *)(uintptr_t)(data + entry->gain) : model->ones,
        all->view->shadow + model->shadow_offsets[entry->site] + skip,
    };
    int64_t rank = entry->rank;
    return cuvil_kernel_of(model, site->kernel)(buffers, &rank, begin, end, NULL);
}

/* A job over the panels of all entries, one behind the other: threads meet once a swap, not once a
 * weight, which counts where other work keeps them off their cores. */
static int32_t merge_panels(void *const *buffers, const int64_t *scalars, int64_t begin,
                            int64_t end, void *scratch)
{
    const merging *all = buffers[0];
    const int64_t *ends = all->adapter->ends;
    uint32_t entry = 0, above = all->adapter->header->entry_count;
    (void)scalars, (void)scratch;
    while (entry < above) { /* the first that ends behind `begin` */
        uint32_t middle = entry + (above - entry) / 2;
        if (ends[middle] > begin)
            above = middle;
        else
            entry = middle + 1;
    }
    int32_t fault = 0;
    for (; begin < end && fault == 0; entry++) {
        int64_t first = entry > 0 ? ends[entry - 1] : 0;
        int64_t last = ends[entry] < end ? ends[entry] : end;
        if (last > begin)
            fault = merge(all, &all->adapter->entries[entry], begin - first, last - first);
        begin = last;
    }
    return fault;
}

static cuvil_status merge_all(cuvil_model *model, cuvil_view *view, const cuvil_adapter *adapter)
{
    uint32_t entries = adapter->header->entry_count, used;
    merging all = {model, view, adapter};
    void *buffers[] = {&all};
    cuvil_job job = {.kernel = merge_panels,
                     .buffers = buffers,
                     .tasks = entries > 0 ? adapter->ends[entries - 1] : 0};
    if (cuvil_run_tasks(model->pool, &job, &used) == 0)
        return CUVIL_OK;
    return cuvil_fail(CUVIL_ERROR_KERNEL, "adapter `%s`: merging it failed", adapter->name);
}

/* Panels of a site that the adapter leaves alone hold the package's own. */
static void fill_panels(cuvil_model *model, cuvil_view *view, uint32_t site, uint32_t from,
                        uint32_t to)
{
    uint64_t bytes = panel_bytes(&model->adaptable[site]);
    uint8_t *known = view->panels + model->first_panels[site];
    unsigned char *shadow = view->shadow + model->shadow_offsets[site];
    for (uint32_t i = from; i < to; i++) {
        if (known[i] != PRISTINE)
            memcpy(shadow + i * bytes, pristine(model, site) + i * bytes, bytes);
        known[i] = PRISTINE;
    }
}

/* All places of the view as the adapter has them. Nobody reads the view meanwhile. */
static cuvil_status fill(cuvil_model *model, cuvil_view *view, const cuvil_adapter *adapter)
{
    const cuvil_adapter_entry *entry = adapter->entries;
    const cuvil_adapter_entry *end = entry + adapter->header->entry_count;
    for (uint32_t site = 0; site < model->adaptable_count; site++) {
        view->places[site] = pristine(model, site);
        if (entry == end || entry->site != site)
            continue;
        if (entry->kind == CUVIL_ADAPTER_WHOLE) {
            view->places[site] = (const unsigned char *)adapter->header + entry->a;
            entry++;
            continue;
        }
        uint32_t done = 0, panels = cuvil_panels(&model->adaptable[site]);
        for (; entry != end && entry->site == site; entry++) {
            fill_panels(model, view, site, done, entry->first_panel);
            done = entry->first_panel + entry->panels;
            memset(view->panels + model->first_panels[site] + entry->first_panel, UNKNOWN,
                   entry->panels);
        }
        fill_panels(model, view, site, done, panels);
        view->places[site] = view->shadow + model->shadow_offsets[site];
    }
    return merge_all(model, view, adapter);
}

/* The shadow that holds the adapter already, else one that is not in use. The caller has the
 * locks. */
static cuvil_view *choose(cuvil_model *model, const cuvil_adapter *adapter)
{
    cuvil_view *first = &model->views[1], *second = &model->views[2];
    if (first->adapter == adapter || second->adapter == adapter)
        return first->adapter == adapter ? first : second;
    if (model->current != 0)
        return model->current == 1 ? second : first;
    return second->readers == 0 && first->readers > 0 ? second : first;
}

/* The adapter cannot go meanwhile: unloading is swapping too. */
static cuvil_status put_to_use(cuvil_model *model, const char *name)
{
    pthread_mutex_lock(&model->lock);
    cuvil_adapter *adapter = cuvil_find_adapter(model->adapters, name);
    cuvil_status status = adapter == NULL ? cuvil_unknown_adapter(model->adapters, name) : CUVIL_OK;
    pthread_mutex_unlock(&model->lock);
    if (status == CUVIL_OK)
        status = prepare(model);
    if (status != CUVIL_OK)
        return status;
    pthread_mutex_lock(&model->lock);
    cuvil_view *view = choose(model, adapter);
    bool ready = view->adapter == adapter;
    while (!ready && view->readers > 0)
        pthread_cond_wait(&model->idle, &model->lock);
    if (!ready)
        view->adapter = NULL;
    pthread_mutex_unlock(&model->lock);
    if (!ready)
        status = fill(model, view, adapter);
    if (status != CUVIL_OK)
        return status;
    pthread_mutex_lock(&model->lock);
    if (!ready)
        view->serial = ++model->serials;
    view->adapter = adapter;
    model->current = (uint32_t)(view - model->views);
    pthread_mutex_unlock(&model->lock);
    return CUVIL_OK;
}

cuvil_status cuvil_use_adapter(cuvil_model *model, const char *name)
{
    if (model == NULL || (model->adaptable_count == 0 && name != NULL))
        return cuvil_need_adapters(model, "cuvil_use_adapter");
    if (model->pages != NULL && name != NULL)
        return cuvil_fail(CUVIL_ERROR_NO_ADAPTER,
                          "this package was built with --lora batch: adapters are given to a run "
                          "(cuvil_set_adapters), not to the model");
    pthread_mutex_lock(&model->swapping);
    cuvil_status status = CUVIL_OK;
    if (name != NULL)
        status = put_to_use(model, name);
    else {
        pthread_mutex_lock(&model->lock);
        model->current = 0;
        pthread_mutex_unlock(&model->lock);
    }
    pthread_mutex_unlock(&model->swapping);
    return status;
}
