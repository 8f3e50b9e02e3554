/* The plan interpreter. */
#define _GNU_SOURCE
#include <string.h>
#include <time.h>

#include "internal.h"

/* Costs are FLOPs or 4 x bytes, of which a core does about 100 a nanosecond. Handing a step to
 * spinning workers costs 0.3 us, waking sleeping ones 3 to 14 us [measured, 2 cores]. So a step
 * goes to awake workers from 3 us on; sleeping ones are woken once steps worth 20 us have gone by
 * that they could have shared. */
#define SHARED_COST 300000
#define WAKE_COST 2000000
/* More tasks than any kernel has; beyond, the pool's counter could wrap. */
#define THREADED_TASKS (INT64_C(1) << 48)

static uint64_t now_ns(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

static int64_t cost_of(const cuvil_context *context, const cuvil_step *step)
{
    return step->cost == CUVIL_NONE ? 0 : context->values[step->cost];
}

static cuvil_status kernel_fault(const cuvil_model *model, const cuvil_step *step, int32_t fault)
{
    const char *what = fault == CUVIL_FAULT_INDEX    ? "an index in the data lies outside its axis"
                       : fault == CUVIL_FAULT_DIVIDE ? "an integer is divided by zero"
                                                     : "it reported an unknown fault";
    return cuvil_fail(CUVIL_ERROR_KERNEL, "kernel `%s` of layer `%s`: %s (fault %d)",
                      cuvil_string(model, step->name), cuvil_string(model, step->layer), what,
                      fault);
}

static bool worth_sharing(cuvil_context *context, const cuvil_step *step, int64_t tasks)
{
    int64_t cost = cost_of(context, step);
    if (context->pool == NULL || tasks < 2 || tasks >= THREADED_TASKS || cost < SHARED_COST)
        return false;
    if (!cuvil_pool_awake(context->pool) && cost < WAKE_COST - context->unshared_cost) {
        context->unshared_cost += cost;
        return false;
    }
    context->unshared_cost = 0;
    return true;
}

static cuvil_status run_kernel(cuvil_context *context, const cuvil_step *step, uint32_t *used)
{
    const cuvil_model *model = context->model;
    int64_t tasks = context->values[step->tasks];
    cuvil_job job = {.kernel = cuvil_kernel_of(model, step->target),
                     .buffers = context->pointers + step->buffers,
                     .scalars = context->scalars + step->scalars,
                     .tasks = tasks,
                     .scratch = context->scratch,
                     .scratch_stride = context->scratch_stride};
    cuvil_pool *pool = worth_sharing(context, step, tasks) ? context->pool : NULL;
    int32_t fault = cuvil_run_tasks(pool, &job, used);
    return fault == 0 ? CUVIL_OK : kernel_fault(model, step, fault);
}

/* Execute one step that is no kernel; *next holds the number of the step after it and changes on a
 * jump. */
static cuvil_status run_step(cuvil_context *context, const cuvil_step *step, uint32_t *next)
{
    const cuvil_model *model = context->model;
    void *const *buffers = context->pointers + step->buffers;
    if (model->dynamic) {
        cuvil_status status = cuvil_reach(context, step);
        if (status != CUVIL_OK)
            return status;
    }
    switch (step->kind) {
    case CUVIL_STEP_COPY: {
        int64_t bytes = context->values[model->buffers[model->operands[step->buffers + 1]].bytes];
        if (bytes > 0 && buffers[0] != buffers[1])
            memmove(buffers[1], buffers[0], (size_t)bytes);
        return CUVIL_OK;
    }
    case CUVIL_STEP_DIMS:
        if (step->scalar_count > 0)
            memcpy(buffers[0], context->scalars + step->scalars,
                   step->scalar_count * sizeof(int64_t));
        return CUVIL_OK;
    case CUVIL_STEP_BRANCH:
        if (step->buffer_count > 0 ? *(const uint8_t *)buffers[0] == 0
                                   : context->scalars[step->scalars] == 0)
            *next = step->target;
        return CUVIL_OK;
    case CUVIL_STEP_BIND: return cuvil_bind_computed(context, step);
    case CUVIL_STEP_REQUIRE: return cuvil_require(context, step);
    default: *next = step->target; return CUVIL_OK;
    }
}

static void report(const cuvil_context *context, const cuvil_step *step, uint32_t used,
                   uint64_t begin_ns)
{
    const cuvil_model *model = context->model;
    cuvil_event event = {
        .kernel = cuvil_string(model, step->name),
        .layer = cuvil_string(model, step->layer),
        .step = (uint32_t)(step - model->steps),
        .threads = used,
        .begin_ns = begin_ns,
        .end_ns = now_ns(),
        .cost = cost_of(context, step),
    };
    context->probe(&event, context->probe_user);
}

static cuvil_status interpret(cuvil_context *context)
{
    const cuvil_model *model = context->model;
    const bool probe = context->probe != NULL;
    for (uint32_t next = model->prepare_count; next < model->step_count;) {
        const cuvil_step *step = &model->steps[next++];
        uint32_t used = 1;
        uint64_t begin_ns = probe ? now_ns() : 0;
        cuvil_status status = step->kind == CUVIL_STEP_KERNEL ? run_kernel(context, step, &used)
                                                              : run_step(context, step, &next);
        if (status != CUVIL_OK)
            return status;
        if (probe && step->kind != CUVIL_STEP_REQUIRE)
            report(context, step, used, begin_ns);
    }
    return CUVIL_OK;
}

cuvil_status cuvil_run(cuvil_context *context)
{
    if (context == NULL)
        return cuvil_fail(CUVIL_ERROR_ARGUMENT, "cuvil_run: the context is NULL");
    cuvil_status status = cuvil_bind(context);
    bool adapted = context->model->adapted_operand_count > 0; /* of batches none is */
    if (adapted)
        context->view = cuvil_take_view(context->owner);
    if (status == CUVIL_OK)
        status = cuvil_place(context);
    context->ran = false;
    if (status == CUVIL_OK)
        status = interpret(context);
    if (adapted)
        cuvil_give_view(context->owner, context->view);
    if (status == CUVIL_OK && context->model->dynamic)
        status = cuvil_check_known(context);
    context->ran = status == CUVIL_OK;
    return status;
}
