/* Single steps of a replay: gradients are averaged, and every average is checked. */
#include "base/clock.h"
#include "base/status.h"
#include "job/numbers.h"
#include "job/replay_steps.h"

static mgw_status fill_all(job_replay *r, unsigned step, mgw_error *error)
{
    unsigned rank = mgw_engine_rank(r->engine);
    unsigned size = mgw_engine_size(r->engine);
    mgw_status status = MGW_OK;
    for (unsigned i = 0; !status && i < r->options.trace->tensor_count; i++) {
        size_t count = r->options.trace->tensors[i].count;
        void *gradient = mgw_engine_gradient(r->engine, i);
        job_fill(r->device ? r->numbers : gradient, job_all(0, count), rank, size, step);
        if (r->device)
            status =
                mgw_device_write(r->device, gradient, r->numbers, count * sizeof(float), error);
    }
    return status || !r->device ? status : mgw_device_finish(r->device, error);
}

static mgw_status check_all(job_replay *r, unsigned step, mgw_error *error)
{
    mgw_status status = MGW_OK;
    for (unsigned i = 0; !status && i < r->options.trace->tensor_count; i++) {
        size_t count = r->options.trace->tensors[i].count;
        const void *gradient = mgw_engine_gradient(r->engine, i);
        if (r->device)
            status = mgw_device_read(r->device, r->numbers, gradient, count * sizeof(float), error);
        if (!status && !job_check(r->device ? r->numbers : gradient, job_all(0, count),
                                  mgw_engine_size(r->engine), step))
            status = mgw_fail(
                error, MGW_ERR_UNSUPPORTED, "rank %u, step %u: the average of '%.60s' is wrong",
                mgw_engine_rank(r->engine), step, mgw_trace_tensor_name(r->options.trace, i));
    }
    return status;
}

/* Emulates the computation of the trace: the host waits, or a kernel on the GPU does. */
static mgw_status compute(job_replay *r, mgw_error *error)
{
    const mgw_trace *trace = r->options.trace;
    r->begin_s = mgw_now_s();
    mgw_status status = r->device ? mgw_device_begin(r->device, error) : MGW_OK;
    struct timespec begin;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    double ready_s = trace->forward_s;
    for (unsigned i = 0; !status && i < trace->tensor_count; i++) {
        ready_s += trace->tensors[i].backward_s;
        bool waits = trace->tensors[i].backward_s > 0 || i == 0;
        if (waits && r->device)
            status = mgw_device_hold(r->device, ready_s, error);
        else if (waits)
            replay_sleep_until(&begin, ready_s);
        mgw_engine_ready(r->engine, i);
    }
    return status;
}

mgw_status replay_gradients_step(job_replay *r, mgw_error *error)
{
    unsigned number = r->step++;
    mgw_status status = fill_all(r, number, error);
    if (!status)
        status = mgw_engine_barrier(r->engine, error); /* start at the same time */
    if (!status)
        status = mgw_engine_begin(r->engine, error);
    if (!status)
        status = compute(r, error);
    if (!status)
        status = mgw_engine_wait(r->engine, error);
    if (!status)
        status = mgw_engine_synchronize(r->engine, error);
    if (!status) /* checking would take cores from workers that still communicate */
        status = mgw_engine_barrier(r->engine, error);
    return status ? status : check_all(r, number, error);
}

mgw_status replay_gradients_round(job_replay *r, job_outcome *o, unsigned round, mgw_error *error)
{
    mgw_status status = MGW_OK;
    for (unsigned i = 0; !status && i < r->options.steps; i++)
        status = replay_gradients_step(r, error);
    mgw_engine_statistics statistics;
    mgw_engine_measure(r->engine, &statistics);
    o->iteration_s[round] = statistics.iteration_s;
    o->compute_s[round] = statistics.compute_s;
    return status;
}
