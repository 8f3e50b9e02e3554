/* Check an adapter's bytes, so that nothing after this needs to. */
#include <string.h>

#include "internal.h"

#define BAD(...) cuvil_fail(CUVIL_ERROR_ADAPTER, __VA_ARGS__)

const cuvil_adapter_entry *cuvil_adapter_entries(const cuvil_adapter_header *header)
{
    return (const cuvil_adapter_entry *)(header + 1);
}

const char *cuvil_adapter_strings(const cuvil_adapter_header *header)
{
    return (const char *)(cuvil_adapter_entries(header) + header->entry_count);
}

cuvil_status cuvil_check_adapter_header(const cuvil_model *model,
                                        const cuvil_adapter_header *header, uint64_t bytes,
                                        const char *place)
{
    if (bytes < sizeof *header || header->magic != CUVIL_ADAPTER_MAGIC)
        return BAD("`%s` is not an adapter that cuvilc built (.cuvla)", place);
    if (header->version != CUVIL_ADAPTER_VERSION)
        return BAD("adapter `%s`: format %u, this runtime reads %u", place, header->version,
                   CUVIL_ADAPTER_VERSION);
    if (header->bytes != bytes)
        return BAD("adapter `%s`: %llu bytes, its header says %llu", place,
                   (unsigned long long)bytes, (unsigned long long)header->bytes);
    if (memcmp(header->base, model->lora->fingerprint, sizeof header->base) != 0)
        return BAD("adapter `%s` was built for another package: base %02x%02x%02x%02x, this one "
                   "is %02x%02x%02x%02x",
                   place, header->base[0], header->base[1], header->base[2], header->base[3],
                   model->lora->fingerprint[0], model->lora->fingerprint[1],
                   model->lora->fingerprint[2], model->lora->fingerprint[3]);
    return CUVIL_OK;
}

static cuvil_status check_tables(const cuvil_adapter_header *header, const char *place)
{
    uint64_t table = header->entry_count * sizeof(cuvil_adapter_entry) + sizeof *header;
    if (table > header->bytes || header->string_bytes == 0 ||
        header->string_bytes > header->bytes - table || header->name >= header->string_bytes ||
        cuvil_adapter_strings(header)[header->string_bytes - 1] != '\0')
        return BAD("adapter `%s`: its tables do not fit into its %llu bytes", place,
                   (unsigned long long)header->bytes);
    uint32_t sum = cuvil_adapter_sum(header);
    if (sum != header->checksum)
        return BAD("adapter `%s`: its checksum is %08x, the header says %08x", place, sum,
                   header->checksum);
    return CUVIL_OK;
}

/* Whether `bytes` from `offset` on are in the file and aligned. */
static bool inside(const cuvil_adapter_header *header, uint64_t offset, uint64_t bytes)
{
    return offset % 64 == 0 && offset <= header->bytes && bytes <= header->bytes - offset;
}

/* The same of an array float [rows, columns]; columns > 0. */
static bool floats_inside(const cuvil_adapter_header *header, uint64_t offset, uint64_t rows,
                          uint64_t columns)
{
    return rows <= header->bytes / sizeof(float) / columns &&
           inside(header, offset, rows * columns * sizeof(float));
}

static bool good_entry(const cuvil_model *model, const cuvil_adapter_header *header, uint32_t i)
{
    const cuvil_adapter_entry *entry = &cuvil_adapter_entries(header)[i], *before = entry - 1;
    if (entry->site >= model->adaptable_count || entry->module >= header->string_bytes)
        return false;
    const cuvil_adaptable *site = &model->adaptable[entry->site];
    if (i > 0 && (before->site > entry->site ||
                  (before->site == entry->site &&
                   (entry->kind == CUVIL_ADAPTER_WHOLE || before->kind == CUVIL_ADAPTER_WHOLE ||
                    entry->first_panel < before->first_panel + before->panels))))
        return false;
    if (entry->kind == CUVIL_ADAPTER_WHOLE)
        return inside(header, entry->a, site->bytes);
    uint32_t panels = cuvil_panels(site);
    if (entry->kind != CUVIL_ADAPTER_FACTORS || site->kernel == CUVIL_NONE ||
        entry->rank > header->rank || entry->panels == 0 || entry->first_panel > panels ||
        entry->panels > panels - entry->first_panel)
        return false;
    if (entry->bias != 0 ? model->lora->hidden_inputs == 0 : entry->rank == 0)
        return false;
    if (!site->packed && entry->panels != panels)
        return false;
    uint64_t columns = (uint64_t)entry->panels * CUVIL_PANEL;
    return floats_inside(header, entry->a, entry->rank, site->rows) &&
           floats_inside(header, entry->b, entry->rank, columns) &&
           (entry->gain == 0 || floats_inside(header, entry->gain, 1, columns)) &&
           (entry->bias == 0 || floats_inside(header, entry->bias, 1, columns));
}

cuvil_status cuvil_check_adapter(const cuvil_model *model, const cuvil_adapter_header *header,
                                 const char *place)
{
    cuvil_status status = check_tables(header, place);
    for (uint32_t i = 0; status == CUVIL_OK && i < header->entry_count; i++)
        if (!good_entry(model, header, i))
            status = BAD("adapter `%s`: entry %u is malformed or does not fit this package", place,
                         i);
    return status;
}
