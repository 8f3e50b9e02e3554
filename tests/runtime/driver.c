/* Drives the C API from C, for the sanitizers: linked into one program with the runtime, the
 * kernels and the image of fake_models.mlp() with at most 64 rows, or of fake_models.gather(). Exit
 * status 0: all was as it should be.
 *
 *     driver mlp       many shapes, own and caller memory, contexts in several threads, all errors
 *     driver gather    faults in a threaded kernel
 *     driver run       whatever the image is, damaged or not: prints "ran" or "refused"
 *     driver infer     the same, but no step is executed
 *     driver count     how often a repeated run allocates (needs the --wrap of test_native.py)
 */
#include <math.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../runtime/include/cuvil.h"

#define K 5
#define N 7
#define ROWS 64
#define CHECK(condition)                                                                    \
    do {                                                                                    \
        if (!(condition)) {                                                                 \
            fprintf(stderr, "line %d: %s: %s\n", __LINE__, #condition, cuvil_last_error()); \
            exit(1);                                                                        \
        }                                                                                   \
    } while (0)

static cuvil_context *new_context(cuvil_model *model, int32_t threads)
{
    cuvil_options options = {sizeof options, threads};
    cuvil_context *context;
    CHECK(cuvil_context_create(model, &options, &context) == CUVIL_OK);
    return context;
}

static cuvil_tensor matrix(float *data, int64_t rows, int64_t columns)
{
    return (cuvil_tensor){.data = data, .dtype = CUVIL_FLOAT32, .rank = 2, .dims = {rows, columns}};
}

/* Each row of x is the same, so each row of y must be. */
static void check_rows(const float *y, int64_t rows)
{
    for (int64_t i = 0; i < rows * N; i++)
        CHECK(fabsf(y[i] - y[i % N]) <= 1e-6f);
}

static void *run_shapes(void *model)
{
    float x[ROWS * K], own[ROWS * N];
    cuvil_context *context = new_context(model, 3);
    cuvil_tensor result;
    for (int i = 0; i < ROWS * K; i++)
        x[i] = (float)(i % K);
    for (int round = 0; round < 60; round++) {
        int64_t rows = 1 + (round * 37) % ROWS;
        cuvil_tensor input = matrix(x, rows, K), output = matrix(own, rows, N);
        CHECK(cuvil_set_input(context, 0, &input) == CUVIL_OK);
        CHECK(cuvil_set_output(context, 0, round % 3 ? &output : NULL) == CUVIL_OK);
        CHECK(cuvil_run(context) == CUVIL_OK);
        CHECK(cuvil_get_output(context, 0, &result) == CUVIL_OK);
        CHECK(result.dims[0] == rows && result.dims[1] == N);
        CHECK((result.data == own) == (round % 3 != 0));
        check_rows(result.data, rows);
        CHECK(cuvil_get_output(context, 1, &result) == CUVIL_OK);
        CHECK(((int64_t *)result.data)[0] == rows);
    }
    cuvil_context_destroy(context);
    return NULL;
}

static void check_errors(cuvil_model *model)
{
    float x[ROWS * K] = {0};
    int64_t strides[2] = {1, 2};
    cuvil_context *context = new_context(model, 1), *none = context;
    cuvil_tensor tensor = matrix(x, 2, K), result;
    cuvil_tensor_info info;
    cuvil_options bad = {0, 1};
    CHECK(cuvil_run(context) == CUVIL_ERROR_INPUT);
    CHECK(strcmp(cuvil_last_error(), "input `x` (number 0) has not been set") == 0);
    CHECK(cuvil_get_output(context, 0, &result) == CUVIL_ERROR_INPUT);
    CHECK(cuvil_set_input(context, 1, &tensor) == CUVIL_ERROR_INPUT);
    CHECK(cuvil_set_input(context, -1, &tensor) == CUVIL_ERROR_INPUT);
    CHECK(cuvil_set_input(context, 0, NULL) == CUVIL_ERROR_ARGUMENT);
    CHECK(cuvil_set_input(NULL, 0, &tensor) == CUVIL_ERROR_ARGUMENT);
    CHECK(cuvil_set_output(context, 2, NULL) == CUVIL_ERROR_ARGUMENT);
    CHECK(cuvil_run(NULL) == CUVIL_ERROR_ARGUMENT);
    CHECK(cuvil_infer_shapes(NULL) == CUVIL_ERROR_ARGUMENT);
    CHECK(cuvil_set_probe(NULL, NULL, NULL) == CUVIL_ERROR_ARGUMENT);
    CHECK(cuvil_open(NULL, NULL) == CUVIL_ERROR_ARGUMENT);
    CHECK(cuvil_context_create(model, &bad, &none) == CUVIL_ERROR_ARGUMENT && none == NULL);
    CHECK(cuvil_input_info(model, 1, &info) == CUVIL_ERROR_ARGUMENT);
    CHECK(cuvil_input_info(NULL, 0, &info) == CUVIL_ERROR_ARGUMENT);
    cuvil_context_destroy(NULL);
    cuvil_close(NULL);
    tensor.strides = strides;
    CHECK(cuvil_set_input(context, 0, &tensor) == CUVIL_ERROR_STRIDES);
    CHECK(strstr(cuvil_last_error(), "axis 1 has stride 2, expected 1") != NULL);
    tensor.strides = NULL;
    tensor.data = (char *)x + 1;
    CHECK(cuvil_set_input(context, 0, &tensor) == CUVIL_ERROR_STRIDES);
    tensor.data = NULL;
    CHECK(cuvil_set_input(context, 0, &tensor) == CUVIL_ERROR_ARGUMENT);
    tensor.data = x;
    CHECK(cuvil_set_input(context, 0, &tensor) == CUVIL_OK);
    CHECK(cuvil_infer_shapes(context) == CUVIL_OK);
    CHECK(cuvil_get_output(context, 0, &result) == CUVIL_OK);
    CHECK(result.data == NULL && result.dims[0] == 2 && result.dims[1] == N);
    CHECK(cuvil_context_bytes(context) == 0);
    CHECK(cuvil_run(context) == CUVIL_OK && cuvil_context_bytes(context) > 0);
    cuvil_context_destroy(context);
}

static void count_event(const cuvil_event *event, void *user)
{
    CHECK(event->end_ns >= event->begin_ns && event->threads >= 1 && event->layer[0] == '/');
    ++*(int *)user;
}

static void check_probe(cuvil_model *model)
{
    float x[K] = {0};
    int events = 0;
    cuvil_tensor tensor = matrix(x, 1, K);
    cuvil_context *context = new_context(model, 2);
    CHECK(cuvil_set_input(context, 0, &tensor) == CUVIL_OK);
    CHECK(cuvil_set_probe(context, count_event, &events) == CUVIL_OK);
    CHECK(cuvil_run(context) == CUVIL_OK && events == 3);
    CHECK(cuvil_set_probe(context, NULL, NULL) == CUVIL_OK);
    CHECK(cuvil_run(context) == CUVIL_OK && events == 3);
    cuvil_context_destroy(context);
}

static void drive_mlp(cuvil_model *model)
{
    pthread_t threads[3];
    for (int i = 0; i < 3; i++)
        CHECK(pthread_create(&threads[i], NULL, run_shapes, model) == 0);
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    check_errors(model);
    check_probe(model);
}

static void drive_gather(cuvil_model *model)
{
    int64_t index[200];
    cuvil_tensor tensor = {.data = index, .dtype = CUVIL_INT64, .rank = 1, .dims = {200}}, result;
    cuvil_context *context = new_context(model, 4);
    for (int i = 0; i < 200; i++)
        index[i] = i % 9;
    CHECK(cuvil_set_input(context, 0, &tensor) == CUVIL_OK);
    for (int round = 0; round < 50; round++) {
        index[round] = 9;
        CHECK(cuvil_run(context) == CUVIL_ERROR_KERNEL);
        CHECK(strstr(cuvil_last_error(), "test_gather") != NULL);
        index[round] = round % 9;
        CHECK(cuvil_run(context) == CUVIL_OK);
        CHECK(cuvil_get_output(context, 0, &result) == CUVIL_OK);
        for (int i = 0; i < 200; i++)
            CHECK(fabsf(((float *)result.data)[i] - (float)(10 * index[i])) <= 0.0f);
    }
    cuvil_context_destroy(context);
}

/* Zeros of the smallest shapes. Damaged images come here too: a refusal is as good as a result. */
static bool drive_any(cuvil_model *model, bool run)
{
    static int64_t zeros[4096];
    cuvil_context *context = new_context(model, 2);
    cuvil_tensor_info info;
    bool good = true;
    for (int32_t i = 0; good && i < cuvil_input_count(model); i++) {
        int64_t count = 1;
        CHECK(cuvil_input_info(model, i, &info) == CUVIL_OK);
        cuvil_tensor tensor = {.data = zeros, .dtype = info.dtype, .rank = info.rank};
        for (int32_t axis = 0; good && axis < info.rank; axis++) {
            tensor.dims[axis] = info.lo[axis];
            good = info.lo[axis] >= 0 && info.lo[axis] <= 4096;
            count *= good ? info.lo[axis] : 1;
            good = good && count <= 4096;
        }
        good = good && cuvil_set_input(context, i, &tensor) == CUVIL_OK;
    }
    good = good && (run ? cuvil_run(context) : cuvil_infer_shapes(context)) == CUVIL_OK;
    cuvil_context_destroy(context);
    return good;
}

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

static void drive_count(cuvil_model *model)
{
    float x[ROWS * K] = {0};
    cuvil_context *context = new_context(model, 2);
    const int64_t rows[] = {64, 64, 3, 64, 1, 64};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        cuvil_tensor tensor = matrix(x, rows[i], K);
        allocations = 0;
        CHECK(cuvil_set_input(context, 0, &tensor) == CUVIL_OK && cuvil_run(context) == CUVIL_OK);
        printf("%d ", allocations);
    }
    cuvil_context_destroy(context);
}
#else
static void drive_count(cuvil_model *model)
{
    (void)model;
}
#endif

int main(int argc, char **argv)
{
    cuvil_model *model;
    CHECK(argc == 2);
    if (strcmp(argv[1], "run") == 0 || strcmp(argv[1], "infer") == 0) {
        bool ran = cuvil_open(NULL, &model) == CUVIL_OK && drive_any(model, argv[1][0] == 'r');
        puts(ran ? "ran" : "refused");
        cuvil_close(model);
        return 0;
    }
    CHECK(cuvil_open(NULL, &model) == CUVIL_OK);
    CHECK(cuvil_metadata() != NULL && cuvil_metadata()[0] == '{');
    if (strcmp(argv[1], "mlp") == 0)
        drive_mlp(model);
    else if (strcmp(argv[1], "gather") == 0)
        drive_gather(model);
    else
        drive_count(model);
    cuvil_close(model);
    return 0;
}
