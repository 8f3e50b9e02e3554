/* Hand-written kernels for the tests: the ABI of image.h and nothing of the compiler. */
#include <string.h>
#include <time.h>

#include "../../runtime/src/image.h"

#define TEST_MERGE_ROWS 3 /* as fake_adapters.py has them */
#define TEST_MERGE_COLUMNS 40

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

/* What an adapter makes of a panel: w [rows, 32], then an array of gains and one of factors. */
static void merge_panel(const float *w, const float *a, const float *b, const float *gain,
                        float *out, int64_t rows, int64_t stride, int64_t columns, int64_t rank)
{
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < columns; j++) {
            float sum = w[i * stride + j] * gain[j];
            for (int64_t r = 0; r < rank; r++)
                sum += a[r * rows + i] * b[r * 32 + j];
            out[i * stride + j] = sum;
        }
}

/* The two below fail where the first factor is not finite, as no kernel of the compiler does. */
#define FAILS(a) (!((a)[0] - (a)[0] <= 0.0f))

/* Merge into panels of TEST_MERGE_ROWS rows; a task is a panel; scalars: rank. */
KERNEL(test_merge_panels)
{
    const float *w = buffers[0], *a = buffers[1], *b = buffers[2], *gain = buffers[3];
    float *out = buffers[4];
    (void)scratch;
    for (int64_t p = begin; p < end; p++) {
        int64_t at = p * TEST_MERGE_ROWS * 32;
        if (FAILS(a))
            return CUVIL_FAULT_INDEX;
        merge_panel(w + at, a, b + p * scalars[0] * 32, gain + p * 32, out + at, TEST_MERGE_ROWS,
                    32, 32, scalars[0]);
    }
    return CUVIL_FAULT_NONE;
}

/* The same into a row-major weight of TEST_MERGE_ROWS rows of TEST_MERGE_COLUMNS. */
KERNEL(test_merge_rows)
{
    const float *w = buffers[0], *a = buffers[1], *b = buffers[2], *gain = buffers[3];
    float *out = buffers[4];
    (void)scratch;
    for (int64_t p = begin; p < end; p++) {
        int64_t left = TEST_MERGE_COLUMNS - p * 32;
        if (FAILS(a))
            return CUVIL_FAULT_INDEX;
        merge_panel(w + p * 32, a, b + p * scalars[0] * 32, gain + p * 32, out + p * 32,
                    TEST_MERGE_ROWS, TEST_MERGE_COLUMNS, left < 32 ? left : 32, scalars[0]);
    }
    return CUVIL_FAULT_NONE;
}

/* gate[0] = 1, then wait until gate[1] is not 0: from outside, by way of the input's memory. */
KERNEL(test_gate)
{
    int32_t *gate = buffers[0];
    (void)scalars, (void)begin, (void)end, (void)scratch;
    __atomic_store_n(&gate[0], 1, __ATOMIC_RELEASE);
    for (time_t last = time(NULL) + 60; __atomic_load_n(&gate[1], __ATOMIC_ACQUIRE) == 0;)
        if (time(NULL) > last)
            return CUVIL_FAULT_INDEX;
    return CUVIL_FAULT_NONE;
}

/* out[0] = the number that all of w are, or -1 where they differ; scalars: length of w. */
KERNEL(test_number_of)
{
    const float *w = buffers[0];
    float *out = buffers[1];
    (void)begin, (void)end, (void)scratch;
    out[0] = w[0];
    for (int64_t i = 1; i < scalars[0]; i++)
        if (w[i] < w[0] || w[i] > w[0])
            out[0] = -1.0f;
    return CUVIL_FAULT_NONE;
}

KERNEL(test_nothing)
{
    (void)buffers, (void)scalars, (void)begin, (void)end, (void)scratch;
    return CUVIL_FAULT_NONE;
}

/* y[i] = the number that row i's adapter is: that of all of its b, 0 without one, -1 for a mixture.
 * Buffers: slots, table of one change, pool, y; a task is one row. */
KERNEL(test_adapted_rows)
{
    const int64_t *slots = buffers[0], *table = buffers[1];
    const float *pool = buffers[2];
    float *y = buffers[3];
    (void)scalars, (void)scratch;
    for (int64_t i = begin; i < end; i++) {
        const int64_t *line = table + slots[i] * 8;
        const float *b = pool + line[2];
        y[i] = slots[i] == 0 ? 0.0f : b[0];
        for (int64_t j = 0; slots[i] != 0 && j < line[0] * line[6] * 32; j++)
            if (b[j] < b[0] || b[j] > b[0])
                y[i] = -1.0f;
    }
    return CUVIL_FAULT_NONE;
}
