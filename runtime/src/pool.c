/* The thread pool. Two words carry everything:
 *
 *   epoch  counts jobs; idle workers watch it, first spinning, then asleep in a futex.
 *   gate   how many workers are inside the job, and whether it is closed. A worker enters only
 * through an open gate, and the caller, once no task is left, closes it and waits for those inside
 * alone. So a worker that wakes late, on a busy core, misses the job instead of holding everybody
 * up.
 *
 * The gate orders the job's fields too: written while closed and empty, read only from inside.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "cpu.h"
#include "internal.h"

#define CLOSED 0x80000000u
#define AWAITED 0x40000000u /* the caller sleeps until the last worker leaves */
#define INSIDE 0x3fffffffu

/* A thread takes this share of a fair part of the tasks that are left (Polychronopoulos and Kuck
 * 1987): large pieces first, which keep neighbouring tasks together, single ones at the end, which
 * even out cores of unlike speed. */
#define SHARE 2
/* Longer than the gap between steps of one run, shorter than a time slice. */
#define SPIN_NS 30000u
/* A worker offers its core to others this often, between jobs, where nobody waits for it. Else, on
 * a core that another program wants too, its time slice ends within a piece, and the caller waits
 * for the other program's slice. */
#define YIELD_NS 400000u
#define STACK_BYTES (512u << 10) /* under 2 MiB, lest a transparent huge page back it */

typedef struct {
    cuvil_pool *pool;
    pthread_t thread;
    uint32_t number; /* 1 .. threads - 1 */
} worker;

struct cuvil_pool {
    _Alignas(64) _Atomic uint32_t epoch;
    _Atomic uint32_t sleepers;
    _Atomic bool stopping;
    _Alignas(64) _Atomic uint32_t gate;
    _Alignas(64) _Atomic int64_t next; /* first task that nobody has taken */
    _Alignas(64) cuvil_job job;
    _Atomic int32_t fault;
    _Atomic uint32_t joined;

    int32_t threads;
    uint32_t spin_ns;
    pid_t owner; /* a forked child has the memory but none of the threads */
    worker workers[];
};

static void futex_wait(_Atomic uint32_t *word, uint32_t seen)
{
    syscall(SYS_futex, (void *)word, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
}

static void futex_wake(_Atomic uint32_t *word, uint32_t count)
{
    syscall(SYS_futex, (void *)word, FUTEX_WAKE_PRIVATE, count, NULL, NULL, 0);
}

static inline void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static uint64_t now_ns(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

/* Wait, for at most spin_ns, until *word & mask differs from `value`. */
static bool spin(const cuvil_pool *pool, _Atomic uint32_t *word, uint32_t mask, uint32_t value)
{
    uint64_t deadline = 0;
    if (pool->spin_ns == 0)
        return (atomic_load_explicit(word, memory_order_acquire) & mask) != value;
    do {
        for (int i = 0; i < 32; i++) {
            if ((atomic_load_explicit(word, memory_order_acquire) & mask) != value)
                return true;
            relax();
        }
        if (deadline == 0)
            deadline = now_ns() + pool->spin_ns;
    } while (now_ns() < deadline);
    return false;
}

/* Take pieces until none is left. A fault ends the job for everybody. */
static void work(cuvil_pool *pool, uint32_t thread)
{
    const cuvil_job *job = &pool->job;
    void *scratch = job->scratch + thread * job->scratch_stride;
    int64_t begin = atomic_load_explicit(&pool->next, memory_order_relaxed), end;
    for (;;) {
        do {
            if (begin >= job->tasks)
                return;
            int64_t piece = (job->tasks - begin) / ((int64_t)pool->threads * SHARE);
            end = begin + (piece > 0 ? piece : 1);
        } while (!atomic_compare_exchange_weak_explicit(&pool->next, &begin, end,
                                                        memory_order_relaxed,
                                                        memory_order_relaxed));
        int32_t fault = job->kernel(job->buffers, job->scalars, begin, end, scratch);
        if (fault != 0) {
            atomic_store_explicit(&pool->fault, fault, memory_order_relaxed);
            atomic_store_explicit(&pool->next, job->tasks, memory_order_relaxed);
        }
        begin = atomic_load_explicit(&pool->next, memory_order_relaxed);
    }
}

static void join_job(cuvil_pool *pool, uint32_t thread)
{
    uint32_t gate = atomic_load_explicit(&pool->gate, memory_order_relaxed);
    do {
        if (gate & CLOSED)
            return;
    } while (!atomic_compare_exchange_weak_explicit(&pool->gate, &gate, gate + 1,
                                                    memory_order_acquire, memory_order_relaxed));
    atomic_fetch_add_explicit(&pool->joined, 1, memory_order_relaxed);
    work(pool, thread);
    gate = atomic_fetch_sub_explicit(&pool->gate, 1, memory_order_release);
    if (gate & AWAITED && (gate & INSIDE) == 1)
        futex_wake(&pool->gate, 1);
}

static void *worker_main(void *argument)
{
    worker *self = argument;
    cuvil_pool *pool = self->pool;
    uint32_t seen = 0;
    uint64_t yielded = now_ns();
    for (;;) {
        if (now_ns() - yielded > YIELD_NS) {
            sched_yield();
            yielded = now_ns();
        }
        if (!spin(pool, &pool->epoch, UINT32_MAX, seen)) {
            /* Announced before the futex looks at epoch again, so the caller cannot miss it. */
            atomic_fetch_add(&pool->sleepers, 1);
            futex_wait(&pool->epoch, seen);
            atomic_fetch_sub(&pool->sleepers, 1);
            yielded = now_ns();
        }
        uint32_t epoch = atomic_load_explicit(&pool->epoch, memory_order_acquire);
        if (atomic_load_explicit(&pool->stopping, memory_order_relaxed))
            return NULL;
        if (epoch != seen)
            join_job(pool, self->number);
        seen = epoch;
    }
}

static void wait_until_empty(cuvil_pool *pool)
{
    uint32_t gate = atomic_fetch_or_explicit(&pool->gate, CLOSED, memory_order_acquire);
    if ((gate & INSIDE) == 0)
        return;
    while ((gate & INSIDE) != 0) {
        if (spin(pool, &pool->gate, UINT32_MAX, gate | CLOSED)) {
            gate = atomic_load_explicit(&pool->gate, memory_order_acquire);
            continue;
        }
        gate = atomic_fetch_or_explicit(&pool->gate, AWAITED, memory_order_acquire) | AWAITED;
        if ((gate & INSIDE) != 0)
            futex_wait(&pool->gate, gate);
        gate = atomic_load_explicit(&pool->gate, memory_order_acquire);
    }
    atomic_fetch_and_explicit(&pool->gate, ~AWAITED, memory_order_relaxed);
}

bool cuvil_pool_awake(cuvil_pool *pool)
{
    return atomic_load_explicit(&pool->sleepers, memory_order_relaxed) == 0;
}

int32_t cuvil_pool_run(cuvil_pool *pool, const cuvil_job *job, uint32_t *used)
{
    pool->job = *job;
    atomic_store_explicit(&pool->next, 0, memory_order_relaxed);
    atomic_store_explicit(&pool->fault, 0, memory_order_relaxed);
    atomic_store_explicit(&pool->joined, 1, memory_order_relaxed);
    atomic_store_explicit(&pool->gate, 0, memory_order_release);
    atomic_fetch_add(&pool->epoch, 1);
    if (atomic_load(&pool->sleepers) > 0) {
        int64_t helpers = job->tasks - 1 < pool->threads - 1 ? job->tasks - 1 : pool->threads - 1;
        futex_wake(&pool->epoch, (uint32_t)helpers);
    }
    work(pool, 0);
    wait_until_empty(pool);
    *used = atomic_load_explicit(&pool->joined, memory_order_relaxed);
    return atomic_load_explicit(&pool->fault, memory_order_relaxed);
}

/* Start the workers with every signal blocked: those belong to the application's own threads. */
static cuvil_status start(cuvil_pool *pool)
{
    sigset_t all, before;
    pthread_attr_t attributes;
    cuvil_status status = CUVIL_OK;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, STACK_BYTES);
    int32_t wanted = pool->threads;
    for (pool->threads = 1; pool->threads < wanted; pool->threads++) {
        worker *next = &pool->workers[pool->threads - 1];
        *next = (worker){.pool = pool, .number = (uint32_t)pool->threads};
        int error = pthread_create(&next->thread, &attributes, worker_main, next);
        if (error != 0) {
            status = cuvil_fail(CUVIL_ERROR_MEMORY, "cannot start thread %d of %d: %s",
                                pool->threads + 1, wanted, strerror(error));
            break;
        }
    }
    pthread_attr_destroy(&attributes);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return status;
}

cuvil_status cuvil_pool_create(int32_t threads, cuvil_pool **result)
{
    cuvil_pool *pool;
    size_t bytes = sizeof *pool + (size_t)(threads - 1) * sizeof(worker);
    if (posix_memalign((void **)&pool, 64, bytes) != 0)
        return cuvil_fail(CUVIL_ERROR_MEMORY, "out of memory for a pool of %d threads", threads);
    memset(pool, 0, bytes);
    pool->threads = threads;
    pool->owner = getpid();
    atomic_init(&pool->gate, CLOSED);
    /* With more threads than CPUs, a spinning one keeps a working one off its core. */
    pool->spin_ns = threads <= cuvil_cpu_count() ? SPIN_NS : 0;
    cuvil_status status = start(pool);
    if (status != CUVIL_OK)
        cuvil_pool_destroy(pool);
    else
        *result = pool;
    return status;
}

void cuvil_pool_destroy(cuvil_pool *pool)
{
    if (pool == NULL)
        return;
    atomic_store(&pool->stopping, true);
    atomic_fetch_add(&pool->epoch, 1);
    futex_wake(&pool->epoch, (uint32_t)pool->threads);
    if (pool->owner == getpid())
        for (int32_t i = 0; i + 1 < pool->threads; i++)
            pthread_join(pool->workers[i].thread, NULL);
    free(pool);
}
