/* What the programs that drive the C API share. */
#ifndef DRIVER_H
#define DRIVER_H

#include <stdio.h>
#include <stdlib.h>

#include "../../runtime/include/cuvil.h"

#define CHECK(condition)                                                                    \
    do {                                                                                    \
        if (!(condition)) {                                                                 \
            fprintf(stderr, "line %d: %s: %s\n", __LINE__, #condition, cuvil_last_error()); \
            exit(1);                                                                        \
        }                                                                                   \
    } while (0)

static inline cuvil_context *new_context(cuvil_model *model, int32_t threads)
{
    cuvil_options options = {sizeof options, threads};
    cuvil_context *context;
    CHECK(cuvil_context_create(model, &options, &context) == CUVIL_OK);
    return context;
}

/* How often the runtime allocates; needs the --wrap of test_native.py. */
#ifdef COUNT_ALLOCATIONS
static _Atomic int allocations;
#define COUNT(type, name, parameters, arguments) \
    type __real_##name parameters;               \
    type __wrap_##name parameters;               \
    type __wrap_##name parameters                \
    {                                            \
        allocations++;                           \
        return __real_##name arguments;          \
    }
COUNT(void *, malloc, (size_t a), (a))
COUNT(void *, calloc, (size_t a, size_t b), (a, b))
COUNT(void *, realloc, (void *a, size_t b), (a, b))
COUNT(int, posix_memalign, (void **a, size_t b, size_t c), (a, b, c))
COUNT(void *, mmap, (void *a, size_t b, int c, int d, int e, long f), (a, b, c, d, e, f))
#endif

#endif
