/* Pages of adapters: found by content, counted, given back. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "internal.h"
#include "pages.h"

#define MOST_BYTES (UINT64_C(1) << 36) /* of addresses, not of memory */
#define LEAST_BYTES (UINT64_C(1) << 26)
#define BUCKETS 4096u /* a power of two */
#define COLUMNS CUVIL_TABLE_COLUMNS

struct cuvil_page_run {
    cuvil_page_run *next;  /* by place */
    cuvil_page_run *other; /* in the same bucket */
    uint64_t hash, bytes;
    uint64_t first, pages;
    int64_t users;
};

struct cuvil_pages {
    pthread_mutex_t lock; /* guards all but the addresses */
    unsigned char *data;
    uint64_t bytes;
    cuvil_page_run *runs, *buckets[BUCKETS];
    int64_t *tables;
    size_t table_bytes, *table_places; /* of each, in numbers */
    cuvil_table_shape *shapes;
    uint32_t count, slots;
    bool *used; /* of each slot */
    int64_t adapters, in_use, shared;
};

/* FNV-1a, eight bytes at a time; the tensors are floats, so four may be left. */
static uint64_t hash_of(const void *data, uint64_t bytes)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325), word;
    for (uint64_t i = 0; i < bytes; i += sizeof word) {
        uint64_t left = bytes - i;
        word = 0;
        memcpy(&word, (const unsigned char *)data + i, left < sizeof word ? left : sizeof word);
        hash = (hash ^ word) * UINT64_C(0x100000001b3);
        hash ^= hash >> 29;
    }
    return hash;
}

static unsigned char *place_of(const cuvil_pages *pages, const cuvil_page_run *run)
{
    return pages->data + run->first * CUVIL_PAGE_BYTES;
}

static cuvil_page_run *find(const cuvil_pages *pages, const void *data, uint64_t bytes,
                            uint64_t hash)
{
    cuvil_page_run *run = pages->buckets[hash % BUCKETS];
    while (run != NULL && (run->hash != hash || run->bytes != bytes ||
                           memcmp(place_of(pages, run), data, bytes) != 0))
        run = run->other;
    return run;
}

/* A run in the first gap that is wide enough. */
static cuvil_page_run *add(cuvil_pages *pages, const void *data, uint64_t bytes, uint64_t hash)
{
    uint64_t count = (bytes + CUVIL_PAGE_BYTES - 1) / CUVIL_PAGE_BYTES, first = 0;
    cuvil_page_run **link = &pages->runs;
    while (*link != NULL && (*link)->first - first < count) {
        first = (*link)->first + (*link)->pages;
        link = &(*link)->next;
    }
    if (count > pages->bytes / CUVIL_PAGE_BYTES - first)
        return NULL;
    cuvil_page_run *run = malloc(sizeof *run);
    unsigned char *place = pages->data + first * CUVIL_PAGE_BYTES;
    if (run == NULL ||
        mprotect(place, count * CUVIL_PAGE_BYTES, PROT_READ | PROT_WRITE) != 0) {
        free(run);
        return NULL;
    }
    memcpy(place, data, bytes);
    cuvil_page_run **bucket = &pages->buckets[hash % BUCKETS];
    *run = (cuvil_page_run){*link, *bucket, hash, bytes, first, count, 0};
    *link = *bucket = run;
    pages->in_use += (int64_t)count;
    return run;
}

/* The caller has the lock. */
static void let_go(cuvil_pages *pages, cuvil_page_run *run)
{
    if (--run->users > 0) {
        pages->shared -= (int64_t)run->pages;
        return;
    }
    cuvil_page_run **link = &pages->runs, **other = &pages->buckets[run->hash % BUCKETS];
    while (*link != run)
        link = &(*link)->next;
    *link = run->next;
    while (*other != run)
        other = &(*other)->other;
    *other = run->other;
    madvise(place_of(pages, run), run->pages * CUVIL_PAGE_BYTES, MADV_DONTNEED);
    pages->in_use -= (int64_t)run->pages;
    free(run);
}

/* Where a tensor begins in the pool, in floats; -1: there is no room. */
static int64_t hold(cuvil_pages *pages, const void *data, uint64_t bytes, cuvil_page_table *table)
{
    uint64_t hash = hash_of(data, bytes);
    cuvil_page_run *run = find(pages, data, bytes, hash);
    if (run == NULL)
        run = add(pages, data, bytes, hash);
    if (run == NULL)
        return -1;
    if (run->users++ > 0)
        pages->shared += (int64_t)run->pages;
    table->runs[table->count++] = run;
    return (int64_t)(run->first * (CUVIL_PAGE_BYTES / sizeof(float)));
}

static int64_t *line_of(const cuvil_pages *pages, uint32_t table, uint32_t change, uint32_t slot)
{
    return pages->tables + pages->table_places[table] +
           ((size_t)change * pages->slots + slot) * COLUMNS;
}

/* The same of `count` floats of an adapter, into `place`: -1 if it has none; false: no room. */
static bool hold_floats(cuvil_pages *pages, const cuvil_adapter_header *header, uint64_t offset,
                        uint64_t count, cuvil_page_table *table, int64_t *place)
{
    *place = -1;
    if (offset == 0 || count == 0)
        return true;
    *place = hold(pages, (const unsigned char *)header + offset, count * sizeof(float), table);
    return *place >= 0;
}

/* One change into the table of its weight; false: there is no room for its tensors. */
static bool enter(cuvil_pages *pages, const cuvil_adapter_header *header,
                  const cuvil_adapter_entry *entry, uint32_t change, uint64_t rows,
                  cuvil_page_table *table)
{
    uint64_t columns = (uint64_t)entry->panels * CUVIL_PANEL, rank = entry->rank;
    int64_t a, b, gain, bias;
    if (!hold_floats(pages, header, entry->a, rank * rows, table, &a) ||
        !hold_floats(pages, header, entry->b, rank * columns, table, &b) ||
        !hold_floats(pages, header, entry->gain, columns, table, &gain) ||
        !hold_floats(pages, header, entry->bias, columns, table, &bias))
        return false;
    int64_t line[COLUMNS] = {entry->rank, a, b, gain, bias, entry->first_panel, entry->panels, 0};
    memcpy(line_of(pages, entry->site, change, table->slot), line, sizeof line);
    return true;
}

/* A free slot without any change; 0: there is none. */
static uint32_t take_slot(cuvil_pages *pages)
{
    uint32_t slot = 1;
    while (slot < pages->slots && pages->used[slot])
        slot++;
    if (slot == pages->slots)
        return 0;
    pages->used[slot] = true;
    for (uint32_t i = 0; i < pages->count; i++)
        for (uint32_t j = 0; j < pages->shapes[i].changes; j++)
            memset(line_of(pages, i, j, slot), 0, COLUMNS * sizeof(int64_t));
    return slot;
}

static void give_back(cuvil_pages *pages, cuvil_page_table *table)
{
    for (uint32_t i = 0; i < table->count; i++)
        let_go(pages, table->runs[i]);
    pages->used[table->slot] = false;
    free(table->runs);
    *table = (cuvil_page_table){0};
}

cuvil_status cuvil_page_in(cuvil_pages *pages, const cuvil_adapter_header *header,
                           const cuvil_adapter_entry *entries, const uint32_t *rows,
                           const char *name, cuvil_page_table *table)
{
    uint32_t change = 0;
    for (uint32_t i = 0; i < header->entry_count; i++) {
        change = i > 0 && entries[i].site == entries[i - 1].site ? change + 1 : 0;
        if (entries[i].kind != CUVIL_ADAPTER_FACTORS || entries[i].site >= pages->count ||
            change >= pages->shapes[entries[i].site].changes)
            return cuvil_fail(CUVIL_ERROR_ADAPTER,
                              "adapter `%s`: entry %u cannot be one of a batch", name, i);
    }
    *table = (cuvil_page_table){
        .runs = calloc((size_t)header->entry_count * 4 + 1, sizeof(cuvil_page_run *))};
    if (table->runs == NULL)
        return cuvil_fail(CUVIL_ERROR_MEMORY, "out of memory for adapter `%s`", name);
    pthread_mutex_lock(&pages->lock);
    table->slot = take_slot(pages);
    bool good = table->slot != 0;
    for (uint32_t i = 0; good && i < header->entry_count; i++) {
        const cuvil_adapter_entry *entry = &entries[i];
        change = i > 0 && entry->site == entry[-1].site ? change + 1 : 0;
        good = enter(pages, header, entry, change, rows[entry->site], table);
        table->rank = entry->rank > table->rank ? entry->rank : table->rank;
    }
    int64_t others = pages->adapters;
    if (good)
        pages->adapters++;
    else
        give_back(pages, table);
    pthread_mutex_unlock(&pages->lock);
    return good ? CUVIL_OK
                : cuvil_fail(CUVIL_ERROR_MEMORY,
                             "adapter `%s`: there is no room for another one beside %lld", name,
                             (long long)others);
}

void cuvil_page_out(cuvil_pages *pages, cuvil_page_table *table)
{
    if (table->slot == 0)
        return;
    pthread_mutex_lock(&pages->lock);
    give_back(pages, table);
    pages->adapters--;
    pthread_mutex_unlock(&pages->lock);
}

/* Addresses for as much as there may be; memory comes when a page is written. */
static bool reserve(cuvil_pages *pages)
{
    for (pages->bytes = MOST_BYTES; pages->bytes >= LEAST_BYTES; pages->bytes /= 2) {
        void *data = mmap(NULL, pages->bytes, PROT_NONE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (data != MAP_FAILED) {
            pages->data = data;
            return true;
        }
    }
    return false;
}

static bool allocate(cuvil_pages *pages, const cuvil_table_shape *shapes, uint32_t count)
{
    size_t total = 0;
    pages->shapes = calloc((size_t)count + 1, sizeof *shapes);
    pages->table_places = calloc((size_t)count + 1, sizeof(size_t));
    pages->used = calloc((size_t)pages->slots + 1, sizeof(bool));
    if (pages->shapes == NULL || pages->table_places == NULL || pages->used == NULL)
        return false;
    for (uint32_t i = 0; i < count; i++) {
        pages->shapes[i] = shapes[i];
        pages->table_places[i] = total;
        total += (size_t)shapes[i].changes * pages->slots * COLUMNS;
    }
    pages->table_bytes = total * sizeof(int64_t);
    void *tables = mmap(NULL, pages->table_bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    pages->tables = tables == MAP_FAILED ? NULL : tables;
    return pages->tables != NULL && reserve(pages);
}

cuvil_status cuvil_pages_create(const cuvil_table_shape *shapes, uint32_t count,
                                cuvil_pages **result)
{
    cuvil_pages *pages = calloc(1, sizeof *pages);
    if (pages == NULL)
        return cuvil_fail(CUVIL_ERROR_MEMORY, "out of memory for a model's adapters");
    pthread_mutex_init(&pages->lock, NULL);
    pages->count = count;
    pages->slots = shapes[0].slots;
    if (allocate(pages, shapes, count)) {
        *result = pages;
        return CUVIL_OK;
    }
    cuvil_pages_destroy(pages);
    return cuvil_fail(CUVIL_ERROR_MEMORY, "out of memory for the tables of a model's adapters");
}

void cuvil_pages_destroy(cuvil_pages *pages)
{
    if (pages == NULL)
        return;
    while (pages->runs != NULL) {
        cuvil_page_run *next = pages->runs->next;
        free(pages->runs);
        pages->runs = next;
    }
    if (pages->data != NULL)
        munmap(pages->data, pages->bytes);
    if (pages->tables != NULL)
        munmap(pages->tables, pages->table_bytes);
    free(pages->shapes);
    free(pages->table_places);
    free(pages->used);
    pthread_mutex_destroy(&pages->lock);
    free(pages);
}

float *cuvil_pages_pool(const cuvil_pages *pages, int64_t *floats)
{
    *floats = (int64_t)(pages->bytes / sizeof(float));
    return (float *)(void *)pages->data;
}

int64_t *cuvil_pages_table(const cuvil_pages *pages, uint32_t number)
{
    return pages->tables + pages->table_places[number];
}

void cuvil_pages_count(cuvil_pages *pages, cuvil_pages_info *info)
{
    pthread_mutex_lock(&pages->lock);
    *info = (cuvil_pages_info){
        .page_bytes = CUVIL_PAGE_BYTES,
        .pages = pages->in_use,
        .shared = pages->shared,
        .bytes = (uint64_t)pages->in_use * CUVIL_PAGE_BYTES,
        .adapters = pages->adapters,
    };
    pthread_mutex_unlock(&pages->lock);
}
