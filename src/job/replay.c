/* Runs the steps of a trace with the real engine, by round and policy. */

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

#include "base/clock.h"
#include "base/status.h"
#include "job/interrupt.h"
#include "job/replay_steps.h"
#include "job/steps.h"

void replay_sleep_until(const struct timespec *begin, double after_s)
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

/* Splits the forward pass off: the engine counts everything after the last stall as backward pass.
 * There is room for one more span. */
static void add_forward(mgw_timeline *timeline, double end_s)
{
    size_t i = 0;
    while (timeline->spans[i].kind != MGW_SPAN_BACKWARD)
        i++;
    mgw_span *rest = timeline->spans + i;
    memmove(rest + 1, rest, (timeline->span_count++ - i) * sizeof *rest);
    rest[0] = (mgw_span){.kind = MGW_SPAN_FORWARD, .start_s = rest[1].start_s, .end_s = end_s};
    rest[1].start_s = end_s;
}

/* Keeps the engine's timeline of the last step. */
static mgw_status keep_timeline(job_replay *r, job_outcome *o, unsigned round, mgw_error *error)
{
    mgw_timeline_destroy(o->timeline);
    o->timeline = NULL;
    mgw_status status = mgw_engine_timeline(r->engine, &o->timeline, error);
    if (status)
        return status;
    mgw_timeline *timeline = o->timeline;
    mgw_span *spans = realloc(timeline->spans, (timeline->span_count + 1) * sizeof *spans);
    if (!spans)
        return mgw_fail_memory(error, "replay");
    timeline->spans = spans;
    add_forward(timeline, r->options.trace->forward_s + r->stalled_s);
    if (o->predicted->overlaps_forward)
        timeline->period_s = o->iteration_s[round];
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
    mgw_status status = mgw_engine_set_plan(r->engine, o->predicted->operations,
                                            o->predicted->operation_count, error);
    if (!status)
        status = r->parameters ? replay_parameters_round(r, o, round, error)
                               : replay_gradients_round(r, o, round, error);
    mgw_engine_statistics statistics;
    mgw_engine_measure(r->engine, &statistics);
    o->messages = statistics.messages;
    if (!status && r->options.timelines)
        status = keep_timeline(r, o, round, error);
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
    mgw_engine_options engine_options = {.profile_steps = 2,
                                         .replan_steps = 1000000,
                                         .trials = -1, /* its plans are given */
                                         .cluster = o->cluster,
                                         .servers = (int)o->servers,
                                         .keeps_parameters = !o->cuda && !o->servers};
    if (o->network)
        engine_options.transport.name = o->transport;
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
    if (!status && engine_options.keeps_parameters)
        status = replay_parameters_join(r, error);
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

/* All workers agree, so that they stop together. */
static mgw_status ask_whether_to_stop(job_replay *r, bool *stops, mgw_error *error)
{
    double told = job_interrupted() != 0;
    mgw_status status = mgw_engine_all_reduce(r->engine, &told, 1, MGW_F64, MGW_SUM, error);
    *stops = told > 0;
    return status;
}

/* Reports progress by the predicted times of policies; `last` is the last one done. */
static void tell_progress(const job_replay *r, size_t last)
{
    double done_s = 0;
    double round_s = 0;
    for (size_t i = 0; i < r->options.policy_count; i++) {
        round_s += r->outcomes[i].predicted->iteration_s;
        done_s += i <= last ? r->outcomes[i].predicted->iteration_s : 0;
    }
    if (r->options.progress && round_s > 0)
        r->options.progress(r->options.context, r->rounds,
                            (r->rounds + done_s / round_s) / r->options.rounds);
}

static mgw_status run_all(job_replay *r, mgw_error *error)
{
    prctl(PR_SET_TIMERSLACK, 1UL); /* wake up when the gradient is due, not 50 us later */
    mgw_status status = MGW_OK;
    int profiled = r->device ? 10 : 3; /* steps that the engine measures before it plans */
    for (int i = 0; !status && i < profiled; i++)
        status = r->parameters ? replay_parameters_step(r, error) : replay_gradients_step(r, error);
    bool stops = false;
    while (!status && !stops && r->rounds < r->options.rounds) {
        for (size_t i = 0; !status && !stops && i < r->options.policy_count; i++) {
            status = run_round(r, &r->outcomes[i], r->rounds, error);
            if (!status)
                status = ask_whether_to_stop(r, &stops, error);
            tell_progress(r, i);
        }
        r->rounds += !status && !stops;
        job_end_in_order(); /* there are results to show */
    }
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
    replay_parameters_leave(r);
    free(r->numbers);
    free(r->outcomes);
    mgw_text_fini(&r->timelines);
}
