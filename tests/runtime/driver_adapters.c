/* Drives adapters from C, on the model `numbered` of fake_adapters.py: every exchangeable weight is
 * the number of the adapter in use everywhere, and the outputs are those numbers, -1 for a mixture.
 *
 *     driver_adapters threads FILE NUMBER   runs, swaps, loads, unloads and listings at once
 *     driver_adapters load FILE..           each may be damaged: prints "ran" or "refused"
 *     driver_adapters count                 how often each of six swaps and its run allocates
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>

#include "driver.h"

#define SWAPS 400
#define OUTPUTS 4

static _Atomic bool done;
static _Atomic int changes; /* that runs have seen */
static const char *late_file;
static int late_number;

/* The number that all weights are in one run. */
static int run(cuvil_context *context)
{
    int number = -1;
    CHECK(cuvil_run(context) == CUVIL_OK);
    for (int32_t i = 0; i < OUTPUTS; i++) {
        cuvil_tensor result;
        CHECK(cuvil_get_output(context, i, &result) == CUVIL_OK);
        int seen = (int)*(const float *)result.data;
        number = i == 0 ? seen : number;
        CHECK(seen >= 0 && seen == number);
    }
    return number;
}

static void *run_on(void *model)
{
    int before = 0;
    cuvil_context *one = new_context(model, 1), *three = new_context(model, 3);
    while (!done)
        for (int i = 0; i < 2; i++) {
            int number = run(i == 0 ? one : three);
            CHECK(number <= 2 || number == late_number);
            changes += number != before;
            before = number;
        }
    cuvil_context_destroy(one);
    cuvil_context_destroy(three);
    return NULL;
}

static void *swap(void *model)
{
    const char *names[] = {"one", "two", NULL, "late"};
    unsigned state = 1;
    for (int i = 0; i < SWAPS || changes < SWAPS / 4; i++) {
        state = state * 1103515245u + 12345u;
        cuvil_status status = cuvil_use_adapter(model, names[state >> 16 & 3u]);
        CHECK(status == CUVIL_OK || status == CUVIL_ERROR_NO_ADAPTER);
        CHECK(cuvil_use_adapter(model, "none") == CUVIL_ERROR_NO_ADAPTER);
    }
    return NULL;
}

static void *load(void *model)
{
    while (!done) {
        cuvil_status status = cuvil_load_adapter(model, late_file, "late");
        CHECK(status == CUVIL_OK || strstr(cuvil_last_error(), "is loaded already") != NULL);
        status = cuvil_unload_adapter(model, "late");
        CHECK(status == CUVIL_OK || strstr(cuvil_last_error(), "is in use") != NULL);
    }
    return NULL;
}

static void *list(void *model)
{
    cuvil_adapter_info info;
    while (!done) {
        int32_t count = cuvil_adapter_count(model), active = 0;
        CHECK(count == 2 || count == 3);
        for (int32_t i = 0; i < count; i++)
            if (cuvil_get_adapter(model, i, &info) == CUVIL_OK)
                active += info.active;
            else
                CHECK(i == 2);
        CHECK(active <= count);
    }
    return NULL;
}

static void drive_threads(cuvil_model *model)
{
    void *(*others[])(void *) = {run_on, run_on, load, list};
    pthread_t threads[4], swappers[2];
    for (int i = 0; i < 4; i++)
        CHECK(pthread_create(&threads[i], NULL, others[i], model) == 0);
    for (int i = 0; i < 2; i++)
        CHECK(pthread_create(&swappers[i], NULL, swap, model) == 0);
    for (int i = 0; i < 2; i++)
        pthread_join(swappers[i], NULL);
    done = true;
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    cuvil_context *context = new_context(model, 2);
    const char *names[] = {NULL, "one", "two", "one", NULL, "two"};
    const int numbers[] = {0, 1, 2, 1, 0, 2};
    for (int i = 0; i < 6; i++)
        CHECK(cuvil_use_adapter(model, names[i]) == CUVIL_OK && run(context) == numbers[i]);
    cuvil_context_destroy(context);
}

static bool drive_file(cuvil_model *model, cuvil_context *context, const char *file)
{
    cuvil_status status = cuvil_load_adapter(model, file, "late");
    CHECK(status == CUVIL_OK || status == CUVIL_ERROR_ADAPTER);
    if (status != CUVIL_OK)
        return false;
    status = cuvil_use_adapter(model, "late");
    CHECK(status == CUVIL_OK || status == CUVIL_ERROR_KERNEL);
    CHECK(cuvil_run(context) == CUVIL_OK);
    CHECK(cuvil_use_adapter(model, "one") == CUVIL_OK && run(context) == 1);
    CHECK(cuvil_unload_adapter(model, "late") == CUVIL_OK);
    return true;
}

#ifdef COUNT_ALLOCATIONS
static void drive_count(cuvil_model *model)
{
    cuvil_context *context = new_context(model, 2);
    const char *names[] = {"one", "two", NULL, "two", "one", "two"};
    run(context);
    for (int i = 0; i < 6; i++) {
        allocations = 0;
        CHECK(cuvil_use_adapter(model, names[i]) == CUVIL_OK);
        run(context);
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

static void check_errors(cuvil_model *model)
{
    cuvil_adapter_info info;
    CHECK(cuvil_adapter_count(NULL) == 0);
    CHECK(cuvil_get_adapter(NULL, 0, &info) == CUVIL_ERROR_ARGUMENT);
    CHECK(cuvil_get_adapter(model, 0, NULL) == CUVIL_ERROR_ARGUMENT);
    CHECK(cuvil_get_adapter(model, -1, &info) == CUVIL_ERROR_ARGUMENT);
    CHECK(cuvil_get_adapter(model, 2, &info) == CUVIL_ERROR_ARGUMENT);
    CHECK(cuvil_use_adapter(NULL, "one") == CUVIL_ERROR_ARGUMENT);
    CHECK(cuvil_load_adapter(NULL, "x", NULL) == CUVIL_ERROR_ARGUMENT);
    CHECK(cuvil_load_adapter(model, NULL, NULL) == CUVIL_ERROR_ARGUMENT);
    CHECK(cuvil_unload_adapter(NULL, "one") == CUVIL_ERROR_ARGUMENT);
    CHECK(cuvil_unload_adapter(model, NULL) == CUVIL_ERROR_ARGUMENT);
}

int main(int argc, char **argv)
{
    cuvil_model *model;
    CHECK(argc >= 2);
    CHECK(cuvil_open(NULL, &model) == CUVIL_OK);
    check_errors(model);
    if (strcmp(argv[1], "threads") == 0) {
        CHECK(argc == 4);
        late_file = argv[2];
        late_number = atoi(argv[3]);
        drive_threads(model);
    } else if (strcmp(argv[1], "load") == 0) {
        cuvil_context *context = new_context(model, 2);
        for (int i = 2; i < argc; i++)
            puts(drive_file(model, context, argv[i]) ? "ran" : "refused");
        cuvil_context_destroy(context);
    } else {
        drive_count(model);
    }
    cuvil_close(model);
    return 0;
}
