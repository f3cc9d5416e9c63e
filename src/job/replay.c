/* A trace's steps for real: gradients whose averages are known, computation that is waited out. */
#include "job/replay.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

#include "base/clock.h"
#include "base/status.h"
#include "job/steps.h"

/* ---- The gradients: whole numbers whose averages are whole, so that sums can be checked ---- */

static void fill(float *gradient, size_t count, unsigned rank, unsigned size, int step)
{
    float base = (float)(rank + (unsigned)(step % 7));
    for (size_t i = 0; i < count; i++)
        gradient[i] = (base + (float)(i % 16)) * (float)size;
}

static bool check(const float *gradient, size_t count, unsigned size, int step)
{
    float sum = 0;
    for (unsigned r = 0; r < size; r++)
        sum += (float)(r + (unsigned)(step % 7));
    size_t wrong = 0;
    for (size_t i = 0; i < count; i++)
        wrong += gradient[i] != sum + (float)(i % 16) * (float)size;
    return wrong == 0;
}

static mgw_status fill_all(job_replay *r, int step, mgw_error *error)
{
    unsigned rank = mgw_engine_rank(r->engine);
    unsigned size = mgw_engine_size(r->engine);
    mgw_status status = MGW_OK;
    for (unsigned i = 0; !status && i < r->options.trace->tensor_count; i++) {
        size_t count = r->options.trace->tensors[i].count;
        void *gradient = mgw_engine_gradient(r->engine, i);
        fill(r->device ? r->numbers : gradient, count, rank, size, step);
        if (r->device)
            status =
                mgw_device_write(r->device, gradient, r->numbers, count * sizeof(float), error);
    }
    return status || !r->device ? status : mgw_device_finish(r->device, error);
}

static mgw_status check_all(job_replay *r, int step, mgw_error *error)
{
    mgw_status status = MGW_OK;
    for (unsigned i = 0; !status && i < r->options.trace->tensor_count; i++) {
        size_t count = r->options.trace->tensors[i].count;
        const void *gradient = mgw_engine_gradient(r->engine, i);
        if (r->device)
            status = mgw_device_read(r->device, r->numbers, gradient, count * sizeof(float), error);
        if (!status &&
            !check(r->device ? r->numbers : gradient, count, mgw_engine_size(r->engine), step))
            status = mgw_fail(
                error, MGW_ERR_UNSUPPORTED, "rank %u, step %d: the average of '%.60s' is wrong",
                mgw_engine_rank(r->engine), step, mgw_trace_tensor_name(r->options.trace, i));
    }
    return status;
}

/* ---- One step: computation is waited out, as a GPU would compute meanwhile ---- */

static void sleep_until(const struct timespec *begin, double after_s)
{
    struct timespec until = *begin;
    double whole = floor(after_s);
    until.tv_sec += (time_t)whole;
    until.tv_nsec += (long)((after_s - whole) * 1e9);
    if (until.tv_nsec >= 1000000000) {
        until.tv_nsec -= 1000000000;
        until.tv_sec++;
    }
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) == EINTR)
        continue;
}

/* Computes as the trace says: the host waits, or a kernel on the GPU does. */
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
            sleep_until(&begin, ready_s);
        mgw_engine_ready(r->engine, i);
    }
    return status;
}

static mgw_status run_step(job_replay *r, mgw_error *error)
{
    int number = r->step++;
    mgw_status status = fill_all(r, number, error);
    if (!status)
        status = mgw_engine_barrier(r->engine, error); /* all begin together */
    if (!status)
        status = mgw_engine_begin(r->engine, error);
    if (!status)
        status = compute(r, error);
    if (!status)
        status = mgw_engine_wait(r->engine, error);
    if (!status)
        status = mgw_engine_synchronize(r->engine, error);
    if (!status) /* who checks already would take the cores of those who still communicate */
        status = mgw_engine_barrier(r->engine, error);
    return status ? status : check_all(r, number, error);
}

/* The last step as the engine saw it, with the forward pass that only we know of. */
static mgw_status keep_timeline(job_replay *r, job_outcome *o, mgw_error *error)
{
    mgw_status status = mgw_engine_timeline(r->engine, &o->timeline, error);
    if (status)
        return status;
    mgw_timeline *timeline = o->timeline;
    mgw_span *spans = realloc(timeline->spans, (timeline->span_count + 1) * sizeof *spans);
    if (!spans)
        return mgw_fail_memory(error, "replay");
    timeline->spans = spans;
    memmove(spans + 1, spans, timeline->span_count++ * sizeof *spans);
    spans[0] = (mgw_span){.kind = MGW_SPAN_FORWARD, .end_s = r->options.trace->forward_s};
    spans[1].start_s = r->options.trace->forward_s;
    char name[MGW_POLICY_NAME_MAX];
    mgw_text title;
    mgw_text_init(&title);
    mgw_text_printf(&title, "%s, %s", mgw_policy_name(&o->policy, name), timeline->title);
    status = mgw_text_status(&title, error);
    free(timeline->title);
    timeline->title = title.data;
    o->begin_s = r->begin_s;
    return status;
}

static mgw_status run_round(job_replay *r, job_outcome *o, unsigned round, mgw_error *error)
{
    char name[MGW_POLICY_NAME_MAX];
    mgw_status status = mgw_engine_set_policy(r->engine, mgw_policy_name(&o->policy, name), error);
    for (unsigned i = 0; !status && i < r->options.steps; i++)
        status = run_step(r, error);
    mgw_engine_statistics statistics;
    mgw_engine_measure(r->engine, &statistics);
    o->iteration_s[round] = statistics.iteration_s;
    o->compute_s[round] = statistics.compute_s;
    o->messages = statistics.messages;
    if (!status && r->options.timelines && round + 1 == r->options.rounds)
        status = keep_timeline(r, o, error);
    return status;
}

/* ---- The worker ---- */

static mgw_status open_device(job_replay *r, mgw_error *error)
{
    size_t most = 1;
    for (size_t i = 0; i < r->options.trace->tensor_count; i++)
        most =
            r->options.trace->tensors[i].count > most ? r->options.trace->tensors[i].count : most;
    r->numbers = malloc(most * sizeof *r->numbers);
    mgw_status status =
        r->numbers ? mgw_device_open(&r->device, error) : mgw_fail_memory(error, "replay");
    if (!status)
        mgw_engine_set_stream(r->engine, mgw_device_stream(r->device));
    return status;
}

static mgw_status open_engine(job_replay *r, mgw_error *error)
{
    const job_replay_options *o = &r->options;
    char transport[96];
    mgw_engine_options engine_options = {.profile_steps = 2,
                                         .replan_steps = 1000000,
                                         .cluster = o->cluster,
                                         .servers = (int)o->servers};
    if (o->network) {
        snprintf(transport, sizeof transport, "emulated:%.17g,%.17g", o->network->cost.a_s,
                 o->network->cost.b_s_per_byte);
        engine_options.transport.name = transport;
    }
    if (o->cuda)
        engine_options.device = "cuda";
    mgw_status status = mgw_engine_open(&engine_options, &r->engine, error);
    if (!status && o->cuda)
        status = open_device(r, error);
    for (size_t i = 0; !status && i < o->trace->tensor_count; i++) {
        unsigned id = 0;
        status = mgw_engine_add(r->engine, mgw_trace_tensor_name(o->trace, i),
                                o->trace->tensors[i].count, MGW_F32, &id, error);
    }
    return status ? status : mgw_engine_start(r->engine, error);
}

const mgw_cluster *job_replay_network(const job_replay *r)
{
    return r->options.network && !r->options.servers ? r->options.network
                                                     : mgw_engine_cluster(r->engine);
}

static mgw_status predict(job_replay *r, mgw_error *error)
{
    mgw_cost cost;
    mgw_cluster_cost(job_replay_network(r), &cost);
    mgw_status status = MGW_OK;
    for (size_t i = 0; !status && i < r->options.policy_count; i++)
        status = mgw_plan_make(r->options.trace, &cost, &r->outcomes[i].policy,
                               &r->outcomes[i].predicted, error);
    return status;
}

static mgw_status run_all(job_replay *r, mgw_error *error)
{
    prctl(PR_SET_TIMERSLACK, 1UL); /* wake when the gradient is due, not 50 us later */
    mgw_status status = MGW_OK;
    int profiled = r->device ? 10 : 3; /* what the engine measures before it plans */
    for (int i = 0; !status && i < profiled; i++)
        status = run_step(r, error);
    for (unsigned round = 0; !status && round < r->options.rounds; round++)
        for (size_t i = 0; !status && i < r->options.policy_count; i++)
            status = run_round(r, &r->outcomes[i], round, error);
    return status;
}

static mgw_status gather_timelines(job_replay *r, mgw_error *error)
{
    size_t count = r->options.policy_count;
    job_step *steps = calloc(count, sizeof *steps);
    if (!steps)
        return mgw_fail_memory(error, "replay");
    for (size_t i = 0; i < count; i++)
        steps[i] =
            (job_step){r->outcomes[i].predicted, r->outcomes[i].timeline, r->outcomes[i].begin_s};
    mgw_status status = job_gather_steps(r->options.trace, steps, count, &r->timelines, error);
    free(steps);
    return status;
}

mgw_status job_replay_run(const job_replay_options *options, job_replay *out, mgw_error *error)
{
    *out = (job_replay){.options = *options};
    mgw_text_init(&out->timelines);
    out->outcomes = calloc(options->policy_count, sizeof *out->outcomes);
    if (!out->outcomes)
        return mgw_fail_memory(error, "replay");
    for (size_t i = 0; i < options->policy_count; i++)
        out->outcomes[i].policy = options->policies[i];
    mgw_status status = open_engine(out, error);
    if (!status)
        status = predict(out, error);
    if (!status)
        status = run_all(out, error);
    if (!status && options->timelines)
        status = gather_timelines(out, error);
    return status;
}

void job_replay_fini(job_replay *r)
{
    for (size_t i = 0; r->outcomes && i < r->options.policy_count; i++) {
        mgw_plan_destroy(r->outcomes[i].predicted);
        mgw_timeline_destroy(r->outcomes[i].timeline);
    }
    mgw_engine_close(r->engine);
    mgw_device_close(r->device);
    free(r->numbers);
    free(r->outcomes);
    mgw_text_fini(&r->timelines);
}
