/* Adapters of a model: listed by name, loaded from files and let go of. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "internal.h"

#define BAD(...) cuvil_fail(CUVIL_ERROR_ADAPTER, __VA_ARGS__)
#define MOST_READ (UINT64_C(1) << 30) /* Linux reads no more than 2 GiB at once */

/* cuvil_adapter.ends, or NULL. */
static int64_t *count_panels(const cuvil_adapter_header *header)
{
    int64_t *ends = calloc((size_t)header->entry_count + 1, sizeof *ends), total = 0;
    for (uint32_t i = 0; ends != NULL && i < header->entry_count; i++) {
        const cuvil_adapter_entry *entry = &cuvil_adapter_entries(header)[i];
        total += entry->kind == CUVIL_ADAPTER_FACTORS ? entry->panels : 0;
        ends[i] = total;
    }
    return ends;
}

void cuvil_drop_adapter(cuvil_model *model, cuvil_adapter *adapter)
{
    if (model->pages != NULL)
        cuvil_page_out(model->pages, &adapter->pages);
    if (adapter->mapped != NULL)
        munmap(adapter->mapped, adapter->header->bytes);
    free(adapter->name);
    free(adapter->ends);
    free(adapter);
}

/* The memory of a file's tensors, which lie in pages by now. */
static void forget_tensors(unsigned char *mapped)
{
    const cuvil_adapter_header *header = (const void *)mapped;
    const char *end = cuvil_adapter_strings(header) + header->string_bytes;
    uint64_t kept = ((uint64_t)((const unsigned char *)end - mapped) + CUVIL_PAGE_BYTES - 1) /
                    CUVIL_PAGE_BYTES * CUVIL_PAGE_BYTES;
    if (kept < header->bytes)
        madvise(mapped + kept, header->bytes - kept, MADV_DONTNEED);
}

/* Check an adapter's bytes and list it under `name` (NULL: its own). Takes what was mapped for it
 * over, on success. */
static cuvil_status enter(cuvil_model *model, cuvil_adapter **list, const void *data,
                          uint64_t bytes, const char *place, const char *name, void *mapped)
{
    const cuvil_adapter_header *header = data;
    cuvil_status status = cuvil_check_adapter_header(model, header, bytes, place);
    if (status == CUVIL_OK)
        status = cuvil_check_adapter(model, header, place);
    if (status != CUVIL_OK)
        return status;
    cuvil_adapter *adapter = calloc(1, sizeof *adapter);
    if (adapter == NULL)
        return cuvil_fail(CUVIL_ERROR_MEMORY, "out of memory for adapter `%s`", place);
    *adapter = (cuvil_adapter){
        .name = strdup(name != NULL ? name : cuvil_adapter_strings(header) + header->name),
        .header = header,
        .entries = cuvil_adapter_entries(header),
        .ends = count_panels(header),
    };
    if (adapter->name == NULL || adapter->ends == NULL) {
        cuvil_drop_adapter(model, adapter);
        return cuvil_fail(CUVIL_ERROR_MEMORY, "out of memory for adapter `%s`", place);
    }
    status = cuvil_hold_adapter(model, adapter);
    if (status != CUVIL_OK) {
        cuvil_drop_adapter(model, adapter);
        return status;
    }
    pthread_mutex_lock(&model->lock);
    if (cuvil_find_adapter(*list, adapter->name) != NULL)
        status = BAD("an adapter `%s` is loaded already: unload it, or load this one under another "
                     "name",
                     adapter->name);
    else {
        adapter->mapped = mapped;
        if (mapped != NULL && model->pages != NULL)
            forget_tensors(mapped);
        cuvil_adapter **last = list;
        while (*last != NULL)
            last = &(*last)->next;
        *last = adapter;
    }
    pthread_mutex_unlock(&model->lock);
    if (status != CUVIL_OK)
        cuvil_drop_adapter(model, adapter);
    return status;
}

/* The adapters that came with the package. */
cuvil_status cuvil_list_adapters(cuvil_model *model)
{
    const unsigned char *data = model->adapter_data;
    uint64_t left = model->adapter_bytes;
    cuvil_status status = CUVIL_OK;
    char place[48];
    for (unsigned number = 0; status == CUVIL_OK && left > 0; number++) {
        uint64_t bytes =
            left < sizeof(cuvil_adapter_header) ? 0 : ((const cuvil_adapter_header *)data)->bytes;
        if (bytes == 0 || bytes > left)
            return BAD("corrupt package: adapter %u has %llu bytes of %llu", number,
                       (unsigned long long)bytes, (unsigned long long)left);
        snprintf(place, sizeof place, "number %u of the package", number);
        status = enter(model, &model->adapters, data, bytes, place, NULL, NULL);
        uint64_t step = (bytes + 63) & ~(uint64_t)63; /* at most 63 more than the image has */
        left -= step < left ? step : left;
        data += step;
    }
    return status;
}

cuvil_adapter *cuvil_find_adapter(cuvil_adapter *list, const char *name)
{
    while (list != NULL && strcmp(list->name, name) != 0)
        list = list->next;
    return list;
}

void cuvil_drop_adapters(cuvil_model *model, cuvil_adapter **list)
{
    while (*list != NULL) {
        cuvil_adapter *next = (*list)->next;
        cuvil_drop_adapter(model, *list);
        *list = next;
    }
}

cuvil_status cuvil_need_adapters(const cuvil_model *model, const char *function)
{
    if (model == NULL)
        return cuvil_fail(CUVIL_ERROR_ARGUMENT, "%s: the model is NULL", function);
    if (model->adaptable_count == 0)
        return cuvil_fail(CUVIL_ERROR_NO_ADAPTER,
                          "this package takes no adapters: it was not built with --lora swap or "
                          "batch");
    return CUVIL_OK;
}

/* Whether exactly `bytes` could be read, from where the file stands. */
static bool read_all(int file, void *data, uint64_t bytes)
{
    for (unsigned char *place = data; bytes > 0;) {
        ssize_t got = read(file, place, bytes < MOST_READ ? bytes : MOST_READ);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return false;
        place += got;
        bytes -= (uint64_t)got;
    }
    return true;
}

/* A copy of a whole file, so that nothing that happens to the file afterwards can reach it. What is
 * no adapter is refused before there is memory for it. */
static cuvil_status read_file(const cuvil_model *model, int file, const char *path, void **result,
                              uint64_t *bytes)
{
    struct stat about;
    cuvil_adapter_header header;
    if (fstat(file, &about) != 0 || !S_ISREG(about.st_mode))
        return BAD("adapter `%s` cannot be read: it is no file", path);
    *bytes = (uint64_t)about.st_size;
    if (*bytes < sizeof header || !read_all(file, &header, sizeof header))
        return BAD("`%s` is not an adapter that cuvilc built (.cuvla)", path);
    cuvil_status status = cuvil_check_adapter_header(model, &header, *bytes, path);
    if (status != CUVIL_OK)
        return status;
    unsigned char *data =
        mmap(NULL, *bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED)
        return cuvil_fail(CUVIL_ERROR_MEMORY, "out of memory for the %llu bytes of adapter `%s`",
                          (unsigned long long)*bytes, path);
    memcpy(data, &header, sizeof header);
    if (!read_all(file, data + sizeof header, *bytes - sizeof header)) {
        munmap(data, *bytes);
        return BAD("adapter `%s` cannot be read to its end", path);
    }
    mprotect(data, *bytes, PROT_READ);
    *result = data;
    return CUVIL_OK;
}

cuvil_status cuvil_load_into(cuvil_model *model, cuvil_adapter **list, const char *path,
                             const char *name)
{
    cuvil_status status = cuvil_need_adapters(model, "cuvil_load_adapter");
    if (status == CUVIL_OK && path == NULL)
        status = cuvil_fail(CUVIL_ERROR_ARGUMENT, "cuvil_load_adapter: the path is NULL");
    if (status != CUVIL_OK)
        return status;
    int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe would hold us up */
    if (file < 0)
        return BAD("adapter `%s` cannot be read: %s", path, strerror(errno));
    void *data = NULL;
    uint64_t bytes = 0;
    status = read_file(model, file, path, &data, &bytes);
    close(file);
    if (status != CUVIL_OK)
        return status;
    status = enter(model, list, data, bytes, path, name, data);
    if (status != CUVIL_OK)
        munmap(data, bytes);
    return status;
}

cuvil_status cuvil_load_adapter(cuvil_model *model, const char *path, const char *name)
{
    return cuvil_load_into(model, model != NULL ? &model->adapters : NULL, path, name);
}

cuvil_status cuvil_unload_from(cuvil_model *model, cuvil_adapter **list, const char *name)
{
    cuvil_status status = cuvil_need_adapters(model, "cuvil_unload_adapter");
    if (status == CUVIL_OK && name == NULL)
        status = cuvil_fail(CUVIL_ERROR_ARGUMENT, "cuvil_unload_adapter: the name is NULL");
    if (status != CUVIL_OK)
        return status;
    pthread_mutex_lock(&model->swapping);
    pthread_mutex_lock(&model->lock);
    cuvil_adapter *adapter = cuvil_find_adapter(*list, name);
    if (adapter == NULL)
        status = cuvil_unknown_adapter(*list, name);
    else if (model->views[model->current].adapter == adapter)
        status = BAD("adapter `%s` is in use: use another one, or none, before it is unloaded",
                     name);
    if (status == CUVIL_OK) {
        cuvil_forget_views(model, adapter);
        cuvil_adapter **link = list;
        while (*link != adapter)
            link = &(*link)->next;
        *link = adapter->next;
        adapter->unloaded = true;
        if (adapter->users == 0)
            cuvil_drop_adapter(model, adapter);
    }
    pthread_mutex_unlock(&model->lock);
    pthread_mutex_unlock(&model->swapping);
    return status;
}

cuvil_status cuvil_unload_adapter(cuvil_model *model, const char *name)
{
    return cuvil_unload_from(model, model != NULL ? &model->adapters : NULL, name);
}

cuvil_status cuvil_unknown_adapter(const cuvil_adapter *list, const char *name)
{
    char names[256] = "";
    size_t used = 0;
    for (const cuvil_adapter *a = list; a != NULL && used < sizeof names - 1; a = a->next) {
        size_t bytes = strlen(a->name);
        bool fits = used + bytes + 3 < sizeof names;
        if (used > 0 && fits) {
            memcpy(names + used, ", ", 3);
            used += 2;
        }
        if (!fits)
            break;
        memcpy(names + used, a->name, bytes + 1);
        used += bytes;
    }
    return cuvil_fail(CUVIL_ERROR_NO_ADAPTER, "there is no adapter `%s`; loaded: %s", name,
                      used > 0 ? names : "none");
}

int32_t cuvil_count_adapters(cuvil_model *model, cuvil_adapter *const *list)
{
    int32_t count = 0;
    if (model == NULL || model->adaptable_count == 0)
        return 0;
    pthread_mutex_lock(&model->lock);
    for (const cuvil_adapter *a = *list; a != NULL; a = a->next)
        count++;
    pthread_mutex_unlock(&model->lock);
    return count;
}

int32_t cuvil_adapter_count(cuvil_model *model)
{
    return cuvil_count_adapters(model, model != NULL ? &model->adapters : NULL);
}

cuvil_status cuvil_describe_adapter(cuvil_model *model, cuvil_adapter *const *list, int32_t index,
                                    cuvil_adapter_info *info)
{
    cuvil_status status = cuvil_need_adapters(model, "cuvil_get_adapter");
    if (status == CUVIL_OK && info == NULL)
        status = cuvil_fail(CUVIL_ERROR_ARGUMENT, "cuvil_get_adapter: the result is NULL");
    if (status != CUVIL_OK)
        return status;
    pthread_mutex_lock(&model->lock);
    const cuvil_adapter *adapter = *list;
    for (int32_t i = 0; adapter != NULL && i < index; i++)
        adapter = adapter->next;
    if (adapter == NULL || index < 0)
        status = cuvil_fail(CUVIL_ERROR_ARGUMENT, "there is no adapter number %d", index);
    else {
        *info = (cuvil_adapter_info){.rank = (int32_t)adapter->header->rank,
                                     .tensors = (int32_t)adapter->header->entry_count,
                                     .bytes = adapter->header->bytes,
                                     .active =
                                         model->views[model->current].adapter == adapter};
        strncpy(info->name, adapter->name, sizeof info->name - 1);
        memcpy(info->source, adapter->header->source, sizeof info->source);
    }
    pthread_mutex_unlock(&model->lock);
    return status;
}

cuvil_status cuvil_get_adapter(cuvil_model *model, int32_t index, cuvil_adapter_info *info)
{
    return cuvil_describe_adapter(model, model != NULL ? &model->adapters : NULL, index, info);
}
