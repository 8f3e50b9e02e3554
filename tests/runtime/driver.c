/* Drives the C API from C, for the sanitizers: linked into one program with the runtime, the
 * kernels and the image that the first argument names. Exit status 0: all was as it should be.
 *
 *     driver mlp       of at most 64 rows:
 *                      many shapes, own and caller memory, contexts in several threads, all errors
 *     driver gather    faults in a threaded kernel
 *     driver nonzero   sizes that only a run can tell: contexts in several threads, no growth after
 *                      the largest, errors
 *     driver grow      a loop whose value grows
 *     driver run       whatever the image is, damaged or not: prints "ran" or "refused"
 *     driver infer     the same, but no step is executed
 *     driver count     how often a repeated run allocates (needs the --wrap of test_native.py)
 */
#include <math.h>
#include <pthread.h>
#include <stdbool.h>
#include <string.h>

#include "driver.h"

#define K 5
#define N 7
#define ROWS 64
#define MANY 5000

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

static cuvil_tensor vector(float *data, int64_t count)
{
    return (cuvil_tensor){.data = data, .dtype = CUVIL_FLOAT32, .rank = 1, .dims = {count}};
}

/* Every third of the first `count` is not 0. */
static void run_nonzero(cuvil_context *context, int64_t count, bool own)
{
    static _Thread_local float x[3 * MANY];
    static _Thread_local int64_t memory[MANY];
    int64_t found = count / 3;
    cuvil_tensor input = vector(x, count), result;
    cuvil_tensor output = {.data = memory, .dtype = CUVIL_INT64, .rank = 1, .dims = {found}};
    for (int64_t i = 0; i < count; i++)
        x[i] = i % 3 == 2 ? 1.0f : 0.0f;
    CHECK(cuvil_set_input(context, 0, &input) == CUVIL_OK);
    CHECK(cuvil_set_output(context, 0, own ? &output : NULL) == CUVIL_OK);
    CHECK(cuvil_infer_shapes(context) == CUVIL_OK);
    CHECK(cuvil_get_output(context, 1, &result) == CUVIL_OK);
    CHECK(result.dims[0] == -1 && result.dims[1] == 2 && result.data == NULL);
    CHECK(cuvil_run(context) == CUVIL_OK);
    CHECK(cuvil_get_output(context, 0, &result) == CUVIL_OK && result.dims[0] == found);
    CHECK((result.data == memory) == own);
    for (int64_t i = 0; i < found; i++)
        CHECK(((int64_t *)result.data)[i] == 3 * i + 2);
    CHECK(cuvil_get_output(context, 1, &result) == CUVIL_OK && result.dims[0] == found);
    for (int64_t i = 0; i < found; i++) {
        CHECK(((int64_t *)result.data)[2 * i] == 6 * i + 4);
        CHECK(((int64_t *)result.data)[2 * i + 1] == count);
    }
}

static void *run_counts(void *model)
{
    const int64_t counts[] = {3000, 3 * MANY, 0, 7, 3 * MANY, 2999};
    cuvil_context *context = new_context(model, 3);
    for (int i = 0; i < 12; i++)
        run_nonzero(context, counts[i % 6], i % 5 == 4);
    size_t bytes = cuvil_context_bytes(context);
    for (int i = 0; i < 6; i++)
        run_nonzero(context, counts[i], false);
    CHECK(cuvil_context_bytes(context) == bytes && bytes > 24 * MANY);
    cuvil_context_destroy(context);
    return NULL;
}

static void drive_nonzero(cuvil_model *model)
{
    float x[6] = {0, 1, 0, 2, 3, 0};
    int64_t memory[4];
    pthread_t threads[3];
    for (int i = 0; i < 3; i++)
        CHECK(pthread_create(&threads[i], NULL, run_counts, model) == 0);
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    cuvil_context *context = new_context(model, 1);
    cuvil_tensor input = vector(x, 6), result;
    cuvil_tensor output = {.data = memory, .dtype = CUVIL_INT64, .rank = 1, .dims = {4}};
    CHECK(cuvil_set_input(context, 0, &input) == CUVIL_OK);
    CHECK(cuvil_set_output(context, 0, &output) == CUVIL_OK);
    CHECK(cuvil_run(context) == CUVIL_ERROR_SHAPE);
    CHECK(strcmp(cuvil_last_error(), "output `places`: axis 0 of the given memory is 4, the result "
                                     "has 3") == 0);
    CHECK(cuvil_get_output(context, 0, &result) == CUVIL_OK && result.data == NULL);
    output.dims[0] = 3;
    CHECK(cuvil_set_output(context, 0, &output) == CUVIL_OK);
    CHECK(cuvil_run(context) == CUVIL_OK && memory[0] == 1 && memory[2] == 4);
    cuvil_context_destroy(context);
}

static void drive_grow(cuvil_model *model)
{
    static float x[3] = {7, 8, 9};
    cuvil_context *context = new_context(model, 2);
    const int64_t counts[] = {5000, 0, 1, 20000, 300};
    for (int round = 0; round < 5; round++) {
        int64_t count = counts[round];
        cuvil_tensor tensor = vector(x, 3), trips = {.data = &count, .dtype = CUVIL_INT64}, result;
        CHECK(cuvil_set_input(context, 0, &trips) == CUVIL_OK);
        CHECK(cuvil_set_input(context, 1, &tensor) == CUVIL_OK);
        CHECK(cuvil_run(context) == CUVIL_OK);
        CHECK(cuvil_get_output(context, 0, &result) == CUVIL_OK && result.dims[0] == count + 3);
        for (int64_t i = 0; i < count + 3; i++)
            CHECK(fabsf(((float *)result.data)[i] - (i < 3 ? x[i] : (float)(i - 3))) <= 0.0f);
        CHECK(cuvil_get_output(context, 1, &result) == CUVIL_OK && result.dims[0] == count);
        for (int64_t i = 0; i < count; i++)
            CHECK(((int64_t *)result.data)[i] == i + 4);
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
    for (int32_t i = 0; good && i < cuvil_adapter_count(model); i++) {
        cuvil_adapter_info adapter;
        CHECK(cuvil_get_adapter(model, i, &adapter) == CUVIL_OK);
        good = cuvil_use_adapter(model, adapter.name) == CUVIL_OK;
    }
    good = good && (run ? cuvil_run(context) : cuvil_infer_shapes(context)) == CUVIL_OK;
    cuvil_context_destroy(context);
    return good;
}

#ifdef COUNT_ALLOCATIONS
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
    else if (strcmp(argv[1], "nonzero") == 0)
        drive_nonzero(model);
    else if (strcmp(argv[1], "grow") == 0)
        drive_grow(model);
    else
        drive_count(model);
    cuvil_close(model);
    return 0;
}
