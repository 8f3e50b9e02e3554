/* Drives batches from C, on the model `batched` of fake_adapters.py: each element of its result is
 * the number of that row's adapter, 0 for none, -1 for a mixture.
 *
 *     driver_batch ONE SEVEN    files of adapters that are 1, as the package's `one` is, and 7
 */
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "driver.h"

#define ROWS 5
#define ROUNDS 400

static _Atomic int done;
static const char *one_file, *seven_file;

static void run(cuvil_context *context, int rows, const int *numbers)
{
    float x[ROWS] = {0};
    cuvil_tensor input = {x, CUVIL_FLOAT32, 1, {rows}, NULL}, result;
    CHECK(cuvil_set_input(context, 0, &input) == CUVIL_OK);
    CHECK(cuvil_run(context) == CUVIL_OK);
    CHECK(cuvil_get_output(context, 0, &result) == CUVIL_OK && result.dims[0] == rows);
    for (int i = 0; i < rows; i++)
        CHECK((int)((const float *)result.data)[i] == numbers[i]);
}

static void *own(void *model)
{
    static const char *const names[] = {"one", NULL, "two", "two", "one"};
    static const int numbers[] = {1, 0, 2, 2, 1}, none[ROWS] = {0};
    for (int i = 0; i < ROUNDS; i++) {
        cuvil_context *context = new_context(model, 1 + i % 3);
        int rows = 1 + i % ROWS;
        CHECK(cuvil_set_adapters(context, NULL, names, rows) == CUVIL_OK);
        run(context, rows, numbers);
        CHECK(cuvil_set_adapters(context, NULL, NULL, 0) == CUVIL_OK);
        run(context, rows, none);
        cuvil_context_destroy(context);
    }
    done++;
    return NULL;
}

/* A tenant whose adapters come and go; the last ones go while a context holds them. */
static void tenant_of(cuvil_model *model, const char *called)
{
    static const char *const names[] = {"a", "b", NULL, "b", "a"};
    static const int numbers[] = {7, 1, 0, 1, 7};
    cuvil_tenant *tenant, *again;
    cuvil_context *context = new_context(model, 2);
    CHECK(cuvil_get_tenant(model, called, &tenant) == CUVIL_OK);
    CHECK(cuvil_get_tenant(model, called, &again) == CUVIL_OK && again == tenant);
    while (done < 1) {
        CHECK(cuvil_tenant_load_adapter(tenant, seven_file, "a") == CUVIL_OK);
        CHECK(cuvil_tenant_load_adapter(tenant, one_file, "b") == CUVIL_OK);
        CHECK(cuvil_tenant_load_adapter(tenant, one_file, "b") == CUVIL_ERROR_ADAPTER);
        CHECK(cuvil_tenant_adapter_count(tenant) == 2);
        CHECK(cuvil_set_adapters(context, tenant, names, ROWS) == CUVIL_OK);
        const char *foreign[] = {"one"};
        CHECK(cuvil_set_adapters(context, tenant, foreign, 1) == CUVIL_ERROR_NO_ADAPTER);
        run(context, ROWS, numbers);
        CHECK(cuvil_tenant_unload_adapter(tenant, "a") == CUVIL_OK);
        CHECK(cuvil_tenant_unload_adapter(tenant, "b") == CUVIL_OK);
        run(context, ROWS, numbers);
        CHECK(cuvil_set_adapters(context, NULL, NULL, 0) == CUVIL_OK);
    }
    cuvil_context_destroy(context);
}

static void *first_tenant(void *model)
{
    tenant_of(model, "first");
    return NULL;
}

static void *second_tenant(void *model)
{
    tenant_of(model, "second");
    return NULL;
}

static void *count(void *model)
{
    cuvil_pages_info info;
    while (done < 1) {
        CHECK(cuvil_get_pages(model, &info) == CUVIL_OK);
        CHECK(info.adapters >= 2 && info.bytes == (uint64_t)(info.pages * info.page_bytes));
    }
    return NULL;
}

static void check_errors(cuvil_model *model)
{
    cuvil_pages_info info;
    cuvil_tenant *tenant;
    cuvil_context *context = new_context(model, 1);
    CHECK(cuvil_input_count(model) == 1);
    CHECK(cuvil_get_tenant(NULL, "x", &tenant) == CUVIL_ERROR_ARGUMENT);
    CHECK(cuvil_get_tenant(model, NULL, &tenant) == CUVIL_ERROR_ARGUMENT);
    CHECK(cuvil_tenant_load_adapter(NULL, "x", NULL) == CUVIL_ERROR_ARGUMENT);
    CHECK(cuvil_tenant_unload_adapter(NULL, "x") == CUVIL_ERROR_ARGUMENT);
    CHECK(cuvil_tenant_adapter_count(NULL) == 0);
    CHECK(cuvil_get_pages(model, NULL) == CUVIL_ERROR_ARGUMENT);
    CHECK(cuvil_set_adapters(NULL, NULL, NULL, 0) == CUVIL_ERROR_ARGUMENT);
    CHECK(cuvil_set_adapters(context, NULL, NULL, 1) == CUVIL_ERROR_ARGUMENT);
    CHECK(cuvil_use_adapter(model, "one") == CUVIL_ERROR_NO_ADAPTER);
    const char *names[] = {"one", "two"};
    float x[3] = {0};
    cuvil_tensor input = {x, CUVIL_FLOAT32, 1, {3}, NULL};
    CHECK(cuvil_set_adapters(context, NULL, names, 2) == CUVIL_OK);
    CHECK(cuvil_set_input(context, 0, &input) == CUVIL_OK);
    CHECK(cuvil_set_input(context, 1, &input) == CUVIL_ERROR_INPUT);
    CHECK(cuvil_run(context) == CUVIL_ERROR_SHAPE);
    CHECK(strstr(cuvil_last_error(), "2 adapters are given for a batch of 3") != NULL);
    cuvil_context_destroy(context);
    CHECK(cuvil_get_pages(model, &info) == CUVIL_OK && info.adapters == 2);
}

int main(int argc, char **argv)
{
    cuvil_model *model;
    void *(*work[])(void *) = {own, first_tenant, second_tenant, count};
    pthread_t threads[4];
    cuvil_pages_info before, after;
    CHECK(argc == 3);
    one_file = argv[1];
    seven_file = argv[2];
    CHECK(cuvil_open(NULL, &model) == CUVIL_OK);
    check_errors(model);
    CHECK(cuvil_get_pages(model, &before) == CUVIL_OK);
    for (int i = 0; i < 4; i++)
        CHECK(pthread_create(&threads[i], NULL, work[i], model) == 0);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    CHECK(cuvil_get_pages(model, &after) == CUVIL_OK);
    CHECK(after.pages == before.pages && after.shared == before.shared && after.adapters == 2);
    cuvil_close(model);
    return 0;
}
