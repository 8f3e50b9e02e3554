/* A pool of threads that belongs to one context. It shares one step's tasks between the caller and
 * itself. */
#ifndef CUVIL_POOL_H
#define CUVIL_POOL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../include/cuvil.h"
#include "image.h"

typedef struct cuvil_pool cuvil_pool;

typedef struct {
    cuvil_kernel kernel;
    void *const *buffers;
    const int64_t *scalars;
    int64_t tasks;
    unsigned char *scratch; /* thread i's begins at i * scratch_stride; the caller is thread 0 */
    size_t scratch_stride;
} cuvil_job;

/* threads: with the caller, so at least 2. */
cuvil_status cuvil_pool_create(int32_t threads, cuvil_pool **pool);
void cuvil_pool_destroy(cuvil_pool *pool);

/* Whether every worker would notice a job without being woken. */
bool cuvil_pool_awake(cuvil_pool *pool);

/* Run all tasks; returns the kernel's fault or 0. *used: how many threads took part. */
int32_t cuvil_pool_run(cuvil_pool *pool, const cuvil_job *job, uint32_t *used);

/* The same on the caller alone where there is no pool, or nothing to share. */
static inline int32_t cuvil_run_tasks(cuvil_pool *pool, const cuvil_job *job, uint32_t *used)
{
    if (pool != NULL && job->tasks > 1)
        return cuvil_pool_run(pool, job, used);
    *used = 1;
    return job->tasks > 0 ? job->kernel(job->buffers, job->scalars, 0, job->tasks, job->scratch)
                          : 0;
}

#endif
