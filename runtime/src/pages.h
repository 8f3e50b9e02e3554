/* What the adapters of a batched model hold: tensors as runs of pages in one range of addresses.
 *
 * Equal tensors are one run, whoever brought them. A table for each adaptable weight says where the
 * tensors of each slot begin (cuvilc/dialect/ops/lora_batch.py); kernels read it while runs go on,
 * so a line is written before any run can have its slot, and not again while one has it.
 */
#ifndef CUVIL_PAGES_H
#define CUVIL_PAGES_H

#include "../include/cuvil.h"
#include "adapter.h"

#define CUVIL_PAGE_BYTES 4096u
#define CUVIL_TABLE_COLUMNS 8 /* COLUMNS of cuvilc/dialect/ops/lora_batch.py */

typedef struct cuvil_pages cuvil_pages;
typedef struct cuvil_page_run cuvil_page_run;

typedef struct {
    uint32_t changes; /* of one slot to the weight */
    uint32_t slots;   /* with that of none */
} cuvil_table_shape;

/* One adapter's page table: the runs that its tensors lie in. */
typedef struct {
    uint32_t slot; /* 0: none yet */
    uint32_t rank; /* the largest */
    uint32_t count;
    cuvil_page_run **runs;
} cuvil_page_table;

/* `shapes`: of each of `count` tables; all have the same number of slots. */
cuvil_status cuvil_pages_create(const cuvil_table_shape *shapes, uint32_t count,
                                cuvil_pages **result);
void cuvil_pages_destroy(cuvil_pages *pages);

/* Give an adapter whose entries fit the model a slot, and its tensors pages. */
cuvil_status cuvil_page_in(cuvil_pages *pages, const cuvil_adapter_header *header,
                           const cuvil_adapter_entry *entries, const uint32_t *rows,
                           const char *name, cuvil_page_table *table);
/* Nothing reads them any more. */
void cuvil_page_out(cuvil_pages *pages, cuvil_page_table *table);

float *cuvil_pages_pool(const cuvil_pages *pages, int64_t *floats);
int64_t *cuvil_pages_table(const cuvil_pages *pages, uint32_t number);
void cuvil_pages_count(cuvil_pages *pages, cuvil_pages_info *info);

#endif
