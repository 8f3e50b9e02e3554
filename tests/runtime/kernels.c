/* Hand-written kernels for the tests: the ABI of image.h and nothing of the compiler. */
#include <string.h>

#include "../../runtime/src/image.h"

#define KERNEL(name)                                                                       \
    int32_t name(void *const *buffers, const int64_t *scalars, int64_t begin, int64_t end, \
                 void *scratch);                                                           \
    int32_t name(void *const *buffers, const int64_t *scalars, int64_t begin, int64_t end, \
                 void *scratch)

/* out[i] = a[i] + b[i % period]; a task is one element; scalars: period. */
KERNEL(test_add)
{
    const float *a = buffers[0], *b = buffers[1];
    float *out = buffers[2];
    (void)scratch;
    for (int64_t i = begin; i < end; i++)
        out[i] = a[i] + b[i % scalars[0]];
    return CUVIL_FAULT_NONE;
}

/* y[m, n] = x[m, k] w[k, n]; a task is one row; scalars: k, n; scratch: one row of n. */
KERNEL(test_matmul)
{
    const float *x = buffers[0], *w = buffers[1];
    float *y = buffers[2], *row = scratch;
    int64_t k = scalars[0], n = scalars[1];
    for (int64_t i = begin; i < end; i++) {
        memset(row, 0, (size_t)n * sizeof *row);
        for (int64_t p = 0; p < k; p++)
            for (int64_t j = 0; j < n; j++)
                row[j] += x[i * k + p] * w[p * n + j];
        memcpy(y + i * n, row, (size_t)n * sizeof *row);
    }
    return CUVIL_FAULT_NONE;
}

/* y[i] = table[index[i]]; a task is one element; scalars: length of the table. */
KERNEL(test_gather)
{
    const float *table = buffers[0];
    const int64_t *index = buffers[1];
    float *y = buffers[2];
    (void)scratch;
    for (int64_t i = begin; i < end; i++) {
        if (index[i] < 0 || index[i] >= scalars[0])
            return CUVIL_FAULT_INDEX;
        y[i] = table[index[i]];
    }
    return CUVIL_FAULT_NONE;
}

/* flag[0] = count[0] > 0, count[0] -= 1: the condition of a loop. */
KERNEL(test_countdown)
{
    int64_t *count = buffers[0];
    unsigned char *flag = buffers[1];
    (void)scalars, (void)begin, (void)end, (void)scratch;
    *flag = *count > 0;
    *count -= 1;
    return CUVIL_FAULT_NONE;
}

/* count[0] = how many of x are not 0; one task; scalars: length of x. */
KERNEL(test_count_nonzero)
{
    const float *x = buffers[0];
    int64_t *count = buffers[1];
    (void)begin, (void)end, (void)scratch;
    *count = 0;
    for (int64_t i = 0; i < scalars[0]; i++)
        *count += x[i] < 0.0f || x[i] > 0.0f;
    return CUVIL_FAULT_NONE;
}

/* places = the indices of what is not 0 in x; one task; scalars: length of x. */
KERNEL(test_nonzero)
{
    const float *x = buffers[0];
    int64_t *places = buffers[1];
    (void)begin, (void)end, (void)scratch;
    for (int64_t i = 0; i < scalars[0]; i++)
        if (x[i] < 0.0f || x[i] > 0.0f)
            *places++ = i;
    return CUVIL_FAULT_NONE;
}

/* out[i] = [2 in[i], n]; a task is one row; scalars: rows, n; scratch: all rows, as int64. */
KERNEL(test_pairs)
{
    const int64_t *in = buffers[0];
    int64_t *out = buffers[1], *rows = scratch;
    for (int64_t i = begin; i < end; i++)
        rows[i] = 2 * in[i];
    for (int64_t i = begin; i < end; i++) {
        out[2 * i] = rows[i];
        out[2 * i + 1] = scalars[1];
    }
    return CUVIL_FAULT_NONE;
}

/* value[length - 1] = i; scalars: length, i. */
KERNEL(test_put)
{
    float *value = buffers[0];
    (void)begin, (void)end, (void)scratch;
    value[scalars[0] - 1] = (float)scalars[1];
    return CUVIL_FAULT_NONE;
}

/* scalars[0] bytes of 0. */
KERNEL(test_zero)
{
    (void)begin, (void)end, (void)scratch;
    memset(buffers[0], 0, (size_t)scalars[0]);
    return CUVIL_FAULT_NONE;
}

KERNEL(test_nothing)
{
    (void)buffers, (void)scalars, (void)begin, (void)end, (void)scratch;
    return CUVIL_FAULT_NONE;
}
