/* Prepared memory: what kernels make of the weights alone, once, when a model is opened.
 *
 * The PREPARE steps, which come first in the plan, run then; no run of the model executes them. All
 * contexts read what they made. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cpu.h"
#include "internal.h"

#define CORRUPT(...) cuvil_fail(CUVIL_ERROR_PACKAGE, "corrupt package: " __VA_ARGS__)
#define SHARED_BYTES (1u << 20) /* of less, one thread makes all: others take a while to start */

typedef struct {
    bool *known;      /* of each expression: no input decides it */
    int64_t *values;  /* of those */
    void **pointers;  /* of the operands of one step */
    int64_t *scalars;
    unsigned char *scratch;
    size_t scratch_stride;
    int32_t threads;
    cuvil_pool *pool;
} workshop;

/* Everything that depends on no input. */
static cuvil_status evaluate(const cuvil_model *model, workshop *shop)
{
    cuvil_status status = CUVIL_OK;
    for (uint32_t i = 0; i < model->expr_count && status == CUVIL_OK; i++) {
        const cuvil_expr *expr = &model->exprs[i];
        bool leaf = expr->op == CUVIL_EXPR_CONST || expr->op == CUVIL_EXPR_LEVEL;
        shop->known[i] = leaf || (expr->op != CUVIL_EXPR_SYMBOL && shop->known[expr->a] &&
                                  shop->known[expr->b] &&
                                  (expr->op != CUVIL_EXPR_SELECT || shop->known[expr->imm]));
        if (shop->known[i])
            status = cuvil_evaluate_one(model, NULL, shop->values, i);
    }
    return status;
}

/* Whether the step's sizes are known, and the weights that it reads lie inside their section. */
static bool fits(const cuvil_model *model, const workshop *shop, const cuvil_step *step)
{
    bool good = shop->known[step->tasks];
    if (step->scratch_bytes != CUVIL_NONE)
        good = good && shop->known[step->scratch_bytes] &&
               shop->values[step->scratch_bytes] <= (INT64_C(1) << 40);
    for (uint32_t i = 0; i < step->scalar_count; i++)
        good = good && shop->known[model->operands[step->scalars + i]];
    for (uint32_t i = 0; i < step->buffer_count && good; i++) {
        const cuvil_buffer *buffer = &model->buffers[model->operands[step->buffers + i]];
        good = shop->known[buffer->bytes];
        if (good && buffer->kind == CUVIL_BUFFER_WEIGHT)
            good = shop->values[buffer->bytes] >= 0 && buffer->place <= model->weight_bytes &&
                   (uint64_t)shop->values[buffer->bytes] <= model->weight_bytes - buffer->place;
    }
    return good;
}

static cuvil_status set_up(cuvil_model *model, workshop *shop)
{
    size_t most = 1, scratch = 0;
    for (uint32_t i = 0; i < model->prepare_count; i++) {
        const cuvil_step *step = &model->steps[i];
        if (!fits(model, shop, step))
            return CORRUPT("step %u prepares memory of a size that only a run can tell", i);
        most = step->buffer_count > most ? step->buffer_count : most;
        most = step->scalar_count > most ? step->scalar_count : most;
        int64_t need = step->scratch_bytes == CUVIL_NONE ? 0 : shop->values[step->scratch_bytes];
        scratch = need > (int64_t)scratch ? (size_t)need : scratch;
    }
    if (model->prepared_bytes >= SHARED_BYTES && cuvil_cpu_count() > 1)
        shop->threads = cuvil_cpu_count() < CUVIL_MAX_THREADS ? cuvil_cpu_count()
                                                              : CUVIL_MAX_THREADS;
    shop->scratch_stride = (scratch + 63) & ~(size_t)63;
    shop->pointers = calloc(most, sizeof(void *));
    shop->scalars = calloc(most, sizeof(int64_t));
    void *memory = NULL;
    if (posix_memalign(&memory, 64, shop->scratch_stride * (size_t)shop->threads + 64) == 0)
        shop->scratch = memory;
    if (shop->pointers == NULL || shop->scalars == NULL || shop->scratch == NULL)
        return cuvil_fail(CUVIL_ERROR_MEMORY, "out of memory to prepare weights with");
    return shop->threads > 1 ? cuvil_pool_create(shop->threads, &shop->pool) : CUVIL_OK;
}

static cuvil_status run(const cuvil_model *model, workshop *shop, const cuvil_step *step)
{
    for (uint32_t i = 0; i < step->buffer_count; i++) {
        const cuvil_buffer *buffer = &model->buffers[model->operands[step->buffers + i]];
        shop->pointers[i] = buffer->kind == CUVIL_BUFFER_PREPARED
                                ? model->prepared + buffer->place
                                : (void *)(uintptr_t)(model->weights + buffer->place);
    }
    for (uint32_t i = 0; i < step->scalar_count; i++)
        shop->scalars[i] = shop->values[model->operands[step->scalars + i]];
    cuvil_job job = {.kernel = cuvil_kernel_of(model, step->target),
                     .buffers = shop->pointers,
                     .scalars = shop->scalars,
                     .tasks = shop->values[step->tasks],
                     .scratch = shop->scratch,
                     .scratch_stride = shop->scratch_stride};
    uint32_t used;
    int32_t fault = cuvil_run_tasks(shop->pool, &job, &used);
    if (fault == 0)
        return CUVIL_OK;
    return cuvil_fail(CUVIL_ERROR_KERNEL, "kernel `%s`: preparing weights failed (fault %d)",
                      cuvil_string(model, step->name), fault);
}

/* The package's pages with weights that only PREPARE steps read need not stay in memory. Should
 * others lie in them too, they come again. */
static void give_back(const cuvil_model *model, const workshop *shop, const cuvil_step *step)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    for (uint32_t i = 0; i < step->buffer_count; i++) {
        const cuvil_buffer *buffer = &model->buffers[model->operands[step->buffers + i]];
        uintptr_t begin = ((uintptr_t)model->weights + buffer->place + page - 1) & ~(page - 1);
        uintptr_t end = ((uintptr_t)model->weights + buffer->place +
                         (uintptr_t)shop->values[buffer->bytes]) & ~(page - 1);
        if (buffer->kind == CUVIL_BUFFER_WEIGHT && end > begin)
            madvise((void *)begin, end - begin, MADV_DONTNEED);
    }
}

static cuvil_status prepare(cuvil_model *model, workshop *shop)
{
    cuvil_status status = evaluate(model, shop);
    if (status == CUVIL_OK)
        status = set_up(model, shop);
    if (status != CUVIL_OK)
        return status;
    void *memory = mmap(NULL, model->prepared_bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return cuvil_fail(CUVIL_ERROR_MEMORY,
                          "out of memory: prepared weights need %zu bytes", model->prepared_bytes);
    cuvil_prefer_huge_pages(memory, model->prepared_bytes);
    model->prepared = memory;
    for (uint32_t i = 0; i < model->prepare_count && status == CUVIL_OK; i++) {
        status = run(model, shop, &model->steps[i]);
        give_back(model, shop, &model->steps[i]);
    }
    return status;
}

cuvil_status cuvil_prepare(cuvil_model *model)
{
    for (uint32_t i = 0; i < model->buffer_count; i++) {
        const cuvil_buffer *buffer = &model->buffers[i];
        if (buffer->kind != CUVIL_BUFFER_PREPARED)
            continue;
        uint64_t end = buffer->place + (uint64_t)model->exprs[buffer->bytes].imm; /* checked */
        model->prepared_bytes = end > model->prepared_bytes ? end : model->prepared_bytes;
    }
    if (model->prepared_bytes == 0)
        return CUVIL_OK;
    workshop shop = {.threads = 1};
    shop.known = calloc(model->expr_count, sizeof(bool));
    shop.values = calloc(model->expr_count, sizeof(int64_t));
    cuvil_status status = shop.known != NULL && shop.values != NULL
                              ? prepare(model, &shop)
                              : cuvil_fail(CUVIL_ERROR_MEMORY, "out of memory for a model's sizes");
    cuvil_pool_destroy(shop.pool);
    free(shop.known);
    free(shop.values);
    free(shop.pointers);
    free(shop.scalars);
    free(shop.scratch);
    return status;
}

void cuvil_drop_prepared(cuvil_model *model)
{
    if (model->prepared != NULL)
        munmap(model->prepared, model->prepared_bytes);
}

size_t cuvil_model_bytes(const cuvil_model *model)
{
    return model == NULL || model->prepared == NULL ? 0 : model->prepared_bytes;
}
