/* mgwfbp replay: a trace's step for real, with the engine, on this host. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

#include "base/clock.h"
#include "cli/workers.h"
#include "job/steps.h"

static const cli_option options[] = {
    {"workers", 'n', "N", "number of workers on this host (default 4); not under another launcher"},
    {"cluster", 'c', "C", "emulate this cluster's network (a file or built-in name)"},
    {"network", 0, "A,B", "emulate a network on which M bytes take A + B*M seconds"},
    {"device", 'd', "D", "host, or cuda: gradients in the memory of GPUs (MGWFBP_TRANSPORT: nccl)"},
    {"servers", 0, "K", "parameter-server aggregation: each message is summed by one of K workers"},
    {"policy", 'p', "LIST", "policies, separated by commas, or all (default: all)"},
    {"scale-compute", 0, "X", "make all computation X times as long (default 1)"},
    {"steps", 's', "N", "steps per policy and round (default 5)"},
    {"rounds", 0, "N", "rounds over all policies, in turn (default 3)"},
    {"chrome-trace", 0, "FILE",
     "write the last step of each policy to FILE, predicted and as measured by every worker, on "
     "one clock: for Perfetto, chrome://tracing and 'mgwfbp report'"},
    {"json", 0, NULL, "print JSON: the rows of the table"},
};

/* What was predicted and measured under one policy. */
typedef struct outcome {
    mgw_policy policy;
    mgw_plan *predicted;
    size_t messages;
    double iteration_s[64]; /* by round */
    double compute_s[64];
    mgw_timeline *timeline; /* of the last step, if it is wanted */
    double begin_s;         /* when that step began */
} outcome;

typedef struct replay {
    mgw_trace *trace;
    mgw_cluster *cluster; /* what the network costs: a line */
    bool curve;           /* was measured, which that line stands for */
    mgw_engine *engine;
    outcome *outcomes;
    size_t outcome_count;
    mgw_device *device; /* null: gradients are in the host's memory */
    float *numbers;     /* to or from there: as many as the largest tensor has */
    unsigned servers;   /* 0: all-reduce */
    unsigned steps;
    unsigned rounds;
    bool timelines; /* are wanted */
    double begin_s; /* of the last step */
    int step;       /* so far, which the gradients' values depend on */
} replay;

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

static mgw_status fill_all(replay *r, int step, mgw_error *error)
{
    unsigned rank = mgw_engine_rank(r->engine);
    unsigned size = mgw_engine_size(r->engine);
    mgw_status status = MGW_OK;
    for (unsigned i = 0; !status && i < r->trace->tensor_count; i++) {
        size_t count = r->trace->tensors[i].count;
        void *gradient = mgw_engine_gradient(r->engine, i);
        fill(r->device ? r->numbers : gradient, count, rank, size, step);
        if (r->device)
            status =
                mgw_device_write(r->device, gradient, r->numbers, count * sizeof(float), error);
    }
    return status || !r->device ? status : mgw_device_finish(r->device, error);
}

static mgw_status check_all(replay *r, int step, mgw_error *error)
{
    mgw_status status = MGW_OK;
    for (unsigned i = 0; !status && i < r->trace->tensor_count; i++) {
        size_t count = r->trace->tensors[i].count;
        const void *gradient = mgw_engine_gradient(r->engine, i);
        if (r->device)
            status = mgw_device_read(r->device, r->numbers, gradient, count * sizeof(float), error);
        if (!status &&
            !check(r->device ? r->numbers : gradient, count, mgw_engine_size(r->engine), step))
            status = cli_fail(error, "rank %u, step %d: the average of '%.60s' is wrong",
                              mgw_engine_rank(r->engine), step, mgw_trace_tensor_name(r->trace, i));
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
static mgw_status compute(replay *r, mgw_error *error)
{
    const mgw_trace *trace = r->trace;
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

static mgw_status run_step(replay *r, mgw_error *error)
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
static mgw_status keep_timeline(replay *r, outcome *o, mgw_error *error)
{
    mgw_status status = mgw_engine_timeline(r->engine, &o->timeline, error);
    if (status)
        return status;
    mgw_timeline *timeline = o->timeline;
    mgw_span *spans = realloc(timeline->spans, (timeline->span_count + 1) * sizeof *spans);
    if (!spans)
        return cli_fail(error, "out of memory");
    timeline->spans = spans;
    memmove(spans + 1, spans, timeline->span_count++ * sizeof *spans);
    spans[0] = (mgw_span){.kind = MGW_SPAN_FORWARD, .end_s = r->trace->forward_s};
    spans[1].start_s = r->trace->forward_s;
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

static mgw_status run_round(replay *r, outcome *o, unsigned round, mgw_error *error)
{
    char name[MGW_POLICY_NAME_MAX];
    mgw_status status = mgw_engine_set_policy(r->engine, mgw_policy_name(&o->policy, name), error);
    for (unsigned i = 0; !status && i < r->steps; i++)
        status = run_step(r, error);
    mgw_engine_statistics statistics;
    mgw_engine_measure(r->engine, &statistics);
    o->iteration_s[round] = statistics.iteration_s;
    o->compute_s[round] = statistics.compute_s;
    o->messages = statistics.messages;
    if (!status && r->timelines && round + 1 == r->rounds)
        status = keep_timeline(r, o, error);
    return status;
}

/* ---- The worker ---- */

static mgw_status open_device(replay *r, mgw_error *error)
{
    size_t most = 1;
    for (size_t i = 0; i < r->trace->tensor_count; i++)
        most = r->trace->tensors[i].count > most ? r->trace->tensors[i].count : most;
    r->numbers = malloc(most * sizeof *r->numbers);
    mgw_status status =
        r->numbers ? mgw_device_open(&r->device, error) : cli_fail(error, "out of memory");
    if (!status)
        mgw_engine_set_stream(r->engine, mgw_device_stream(r->device));
    return status;
}

static mgw_status open_engine(replay *r, const cli_args *args, mgw_error *error)
{
    char transport[96];
    mgw_engine_options engine_options = {
        .profile_steps = 2, .replan_steps = 1000000, .cluster = cli_value(args, "cluster")};
    engine_options.servers = (int)r->servers;
    if (r->servers || r->curve) /* a push and a pull cost what they cost: they are measured */
        engine_options.cluster = NULL;
    if (r->cluster) {
        snprintf(transport, sizeof transport, "emulated:%.17g,%.17g", r->cluster->cost.a_s,
                 r->cluster->cost.b_s_per_byte);
        engine_options.transport.name = transport;
    }
    bool cuda = false;
    mgw_status status = cli_device(args, &cuda, error);
    if (cuda)
        engine_options.device = "cuda";
    if (!status && cuda && r->cluster)
        status = cli_fail(error, "--device cuda: its network is as fast as it is; leave out "
                                 "--cluster and --network");
    if (!status && cuda && r->timelines)
        status = cli_fail(error, "--device cuda: messages are not timed one by one; leave out "
                                 "--chrome-trace");
    if (!status)
        status = mgw_engine_open(&engine_options, &r->engine, error);
    if (!status && cuda)
        status = open_device(r, error);
    for (size_t i = 0; !status && i < r->trace->tensor_count; i++) {
        unsigned id = 0;
        status = mgw_engine_add(r->engine, mgw_trace_tensor_name(r->trace, i),
                                r->trace->tensors[i].count, MGW_F32, &id, error);
    }
    return status ? status : mgw_engine_start(r->engine, error);
}

/* What predictions are made from: the network that is emulated, or what was measured. */
static const mgw_cluster *network_of(const replay *r)
{
    return r->cluster && !r->servers ? r->cluster : mgw_engine_cluster(r->engine);
}

static mgw_status predict(replay *r, mgw_error *error)
{
    mgw_cost cost;
    mgw_cluster_cost(network_of(r), &cost);
    mgw_status status = MGW_OK;
    for (size_t i = 0; !status && i < r->outcome_count; i++)
        status = mgw_plan_make(r->trace, &cost, &r->outcomes[i].policy, &r->outcomes[i].predicted,
                               error);
    return status;
}

static mgw_status run_all(replay *r, mgw_error *error)
{
    prctl(PR_SET_TIMERSLACK, 1UL); /* wake when the gradient is due, not 50 us later */
    mgw_status status = MGW_OK;
    int profiled = r->device ? 10 : 3; /* what the engine measures before it plans */
    for (int i = 0; !status && i < profiled; i++)
        status = run_step(r, error);
    for (unsigned round = 0; !status && round < r->rounds; round++)
        for (size_t i = 0; !status && i < r->outcome_count; i++)
            status = run_round(r, &r->outcomes[i], round, error);
    return status;
}

static void print_table(replay *r, mgw_text *text)
{
    mgw_table *table = mgw_table_create("<policy|messages|predicted|measured|difference|spread|"
                                        "predicted exposed|measured exposed");
    for (size_t i = 0; i < r->outcome_count; i++) {
        outcome *o = &r->outcomes[i];
        char units[MGW_UNITS_MAX];
        char name[MGW_POLICY_NAME_MAX];
        double spread = 0;
        double median_s = cli_median(o->iteration_s, r->rounds, &spread);
        double compute_s = cli_median(o->compute_s, r->rounds, NULL);
        mgw_table_cell(table, "%s", mgw_policy_name(&o->policy, name));
        mgw_table_cell(table, "%zu", o->messages);
        mgw_table_cell(table, "%s", mgw_format_seconds(o->predicted->iteration_s, units));
        mgw_table_cell(table, "%s", mgw_format_seconds(median_s, units));
        mgw_table_cell(table, "%+.1f%%", 100 * (median_s / o->predicted->iteration_s - 1));
        mgw_table_cell(table, "%.1f%%", 100 * spread);
        mgw_table_cell(table, "%s", mgw_format_seconds(o->predicted->exposed_s, units));
        mgw_table_cell(table, "%s", mgw_format_seconds(median_s - compute_s, units));
    }
    mgw_table_write(table, text);
    mgw_table_destroy(table);
}

static void print_json(replay *r, mgw_text *text)
{
    mgw_text_printf(text, "[\n");
    for (size_t i = 0; i < r->outcome_count; i++) {
        outcome *o = &r->outcomes[i];
        char name[MGW_POLICY_NAME_MAX];
        double spread = 0;
        double median_s = cli_median(o->iteration_s, r->rounds, &spread);
        double compute_s = cli_median(o->compute_s, r->rounds, NULL);
        mgw_text_printf(text,
                        "  {\"policy\": \"%s\", \"workers\": %u, \"messages\": %zu, "
                        "\"predicted_iteration_s\": %.12g, \"measured_iteration_s\": %.12g, "
                        "\"spread\": %.6g, \"predicted_exposed_s\": %.12g, "
                        "\"measured_exposed_s\": %.12g, \"measured_compute_s\": %.12g}%s\n",
                        mgw_policy_name(&o->policy, name), mgw_engine_size(r->engine), o->messages,
                        o->predicted->iteration_s, median_s, spread, o->predicted->exposed_s,
                        median_s - compute_s, compute_s, i + 1 < r->outcome_count ? "," : "");
    }
    mgw_text_printf(text, "]\n");
}

static mgw_status print_outcomes(replay *r, const cli_args *args, mgw_error *error)
{
    if (mgw_engine_rank(r->engine) != 0)
        return MGW_OK;
    mgw_text text;
    mgw_text_init(&text);
    if (cli_value(args, "json")) {
        print_json(r, &text);
    } else {
        cli_describe_trace(r->trace, &text);
        cli_describe_cluster(network_of(r), &text);
        mgw_text_printf(&text,
                        "workers  %u on this host; %u steps of each policy in %u rounds; all "
                        "averages were right\n\n",
                        mgw_engine_size(r->engine), r->steps * r->rounds, r->rounds);
        print_table(r, &text);
    }
    mgw_status status = cli_print(&text, error);
    mgw_text_fini(&text);
    return status;
}

static mgw_status save_timelines(const replay *r, const cli_args *args, mgw_error *error)
{
    size_t count = r->outcome_count;
    cli_step *steps = calloc(count, sizeof *steps);
    if (!steps)
        return cli_fail(error, "out of memory");
    for (size_t i = 0; i < count; i++)
        steps[i] =
            (cli_step){r->outcomes[i].predicted, r->outcomes[i].timeline, r->outcomes[i].begin_s};
    mgw_status status = cli_save_steps(args, "chrome-trace", r->trace, steps, count, error);
    free(steps);
    return status;
}

static mgw_status be_worker(const cli_args *args, replay *r, mgw_error *error)
{
    mgw_status status = open_engine(r, args, error);
    if (!status)
        status = predict(r, error);
    if (!status)
        status = run_all(r, error);
    if (!status && r->timelines)
        status = save_timelines(r, args, error);
    if (!status)
        status = print_outcomes(r, args, error);
    return status;
}

static mgw_status run(const cli_args *args, mgw_error *error)
{
    replay r = {.timelines = cli_value(args, "chrome-trace") != NULL};
    mgw_policy *policies = NULL;
    unsigned workers = 0;
    double factor = 1;
    const char *list = cli_value(args, "policy");
    mgw_status status = cli_count(args, "workers", 4, 64, &workers, error);
    if (!status)
        status = cli_count(args, "steps", 5, 10000, &r.steps, error);
    if (!status)
        status = cli_count(args, "rounds", 3, 64, &r.rounds, error);
    if (!status && cli_value(args, "servers"))
        status = cli_count(args, "servers", 1, 64, &r.servers, error);
    if (!status)
        status = cli_number(args, "scale-compute", 1, &factor, error);
    if (!status)
        status = cli_policy_list(list ? list : "all", &policies, &r.outcome_count, error);
    if (!status)
        status = cli_network(args, &r.cluster, &r.curve, error);
    if (!status)
        status = mgw_trace_load(args->positional[0], &r.trace, error);
    if (!status)
        r.trace->gradient_dtype = MGW_F32; /* as which all travel here */
    if (!status)
        status = mgw_trace_scale_compute(r.trace, factor, error);
    if (!status && !(r.outcomes = calloc(r.outcome_count, sizeof *r.outcomes)))
        status = cli_fail(error, "out of memory");
    for (size_t i = 0; !status && i < r.outcome_count; i++)
        r.outcomes[i].policy = policies[i];
    if (!status)
        status =
            job_is_joined() ? be_worker(args, &r, error) : cli_run_workers(args, workers, error);
    for (size_t i = 0; r.outcomes && i < r.outcome_count; i++) {
        mgw_plan_destroy(r.outcomes[i].predicted);
        mgw_timeline_destroy(r.outcomes[i].timeline);
    }
    mgw_engine_close(r.engine);
    mgw_device_close(r.device);
    free(r.numbers);
    free(r.outcomes);
    free(policies);
    mgw_cluster_destroy(r.cluster);
    mgw_trace_destroy(r.trace);
    return status;
}

const cli_command cli_replay = {
    .name = "replay",
    .arguments = "TRACE",
    .least = 1,
    .most = 1,
    .summary = "run a trace's steps for real on this host: predicted beside measured",
    .details =
        "Starts workers on this host that run the trace's step with the real engine: arena, "
        "communication thread and transport. Computation is replayed by waiting out the trace's "
        "times, as if a GPU computed meanwhile; gradients are real numbers, as f32, and every "
        "average is "
        "checked. With --cluster or --network each message lasts as long as it would there; "
        "without, shared memory is as fast as it is, and is calibrated first. With --device cuda "
        "a kernel waits out the times on the GPU, and messages go over NCCL, or over shm or mpi if "
        "MGWFBP_TRANSPORT says so.\n"
        "Policies run in turn, round after round; the table shows the median of the rounds, and "
        "how far they are apart.",
    .examples = "mgwfbp replay resnet50-b32-fp32-h200 --cluster paper-2-10gbe\n"
                "mgwfbp replay googlenet-b64-fp32-h200 -n 2 --network 1e-3,1e-9 --policy "
                "wfbp,optimal --chrome-trace run.trace.json\n",
    .options = options,
    .option_count = sizeof options / sizeof *options,
    .run = run,
};
