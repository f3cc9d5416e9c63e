/* Between steps: do the workers agree, what do messages cost, which plan is best. Rank 0 decides;
 * the others follow, and all make sure that they follow the same. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/status.h"
#include "engine/device.h"
#include "engine/engine.h"

/* ---- Small exchanges ---- */

static uint64_t hash_bytes(uint64_t hash, const void *data, size_t size)
{
    const unsigned char *bytes = data;
    for (size_t i = 0; i < size; i++)
        hash = (hash ^ bytes[i]) * 0x100000001b3u;
    return hash;
}

#define HASH_SEED 0xcbf29ce484222325u

/*
 * What every rank has to say, for all to see: each fills its own row, and the sum of rows that
 * are zero elsewhere is all rows. Ownership: the caller frees *rows, of size * columns numbers.
 */
static mgw_status exchange(mgw_engine *engine, const double *own, size_t columns, double **rows,
                           mgw_error *error)
{
    size_t count = columns * engine->size;
    double *all = calloc(count ? count : 1, sizeof *all);
    if (!all)
        return mgw_fail_memory(error, "engine");
    memcpy(all + columns * engine->rank, own, columns * sizeof *own);
    mgw_status status =
        mgw_transport_all_reduce(engine->transport, all, count, MGW_F64, MGW_SUM, error);
    if (status)
        free(all);
    else
        *rows = all;
    return status;
}

/* Whether all ranks have the same hash; *differs is the first that has not rank 0's. */
static mgw_status same_hash(mgw_engine *engine, uint64_t hash, unsigned *differs, mgw_error *error)
{
    double halves[2] = {(double)(hash >> 32), (double)(hash & 0xffffffff)};
    double *rows = NULL;
    mgw_status status = exchange(engine, halves, 2, &rows, error);
    if (status)
        return status;
    *differs = 0;
    for (unsigned r = engine->size - 1; r > 0; r--)
        if (rows[2 * (size_t)r] != rows[0] || rows[2 * (size_t)r + 1] != rows[1])
            *differs = r;
    free(rows);
    return MGW_OK;
}

/* ---- Agreement on tensors ---- */

static void describe(const mgw_engine *engine, mgw_text *text)
{
    for (size_t i = 0; i < engine->tensor_count; i++) {
        mgw_text_plain(text, mgw_names_get(engine->names, i));
        mgw_text_printf(text, " %s[%zu]\n", mgw_dtype_name(engine->tensors[i].dtype),
                        engine->tensors[i].count);
    }
    /* What decides which collectives are called must be the same, too. */
    const mgw_engine_options *o = &engine->options;
    char policy[MGW_POLICY_NAME_MAX];
    mgw_text_printf(text, "wire %s op %d servers %d profile %d replan %d percent %d policy %s",
                    mgw_dtype_name(engine->wire), (int)o->op, o->servers, o->profile_steps,
                    o->replan_steps, o->replan_percent, mgw_policy_name(&engine->policy, policy));
    mgw_text_printf(text, " cluster ");
    mgw_text_plain(text, o->cluster ? o->cluster : "measured");
    mgw_text_printf(text, "\n");
}

enum { LINE = 160 };

/* The first line in which two descriptions differ, and that line of each. */
static size_t first_difference(const char *a, const char *b, char a_line[LINE], char b_line[LINE])
{
    for (size_t line = 0;; line++) {
        size_t a_length = strcspn(a, "\n");
        size_t b_length = strcspn(b, "\n");
        snprintf(a_line, LINE, "%.*s", (int)a_length, a);
        snprintf(b_line, LINE, "%.*s", (int)b_length, b);
        if (a_length != b_length || memcmp(a, b, a_length) != 0 || !*a || !*b)
            return line;
        a += a_length + 1;
        b += b_length + 1;
    }
}

/* Everybody gets the description of rank 0 and of the rank that differs, to say the same. */
static mgw_status tell_difference(mgw_engine *engine, unsigned differs, const mgw_text *own,
                                  mgw_error *error)
{
    const unsigned who[2] = {0, differs};
    char *text[2] = {NULL, NULL};
    mgw_status status = MGW_OK;
    for (int i = 0; !status && i < 2; i++) {
        uint64_t size = own->size;
        status = mgw_transport_broadcast(engine->transport, &size, sizeof size, who[i], error);
        if (!status && !(text[i] = calloc(1, size + 1)))
            status = mgw_fail_memory(error, "engine");
        if (!status && engine->rank == who[i])
            memcpy(text[i], own->data, size);
        if (!status)
            status = mgw_transport_broadcast(engine->transport, text[i], size, who[i], error);
    }
    if (!status) {
        char lines[2][LINE];
        size_t tensor = first_difference(text[0], text[1], lines[0], lines[1]);
        char what[48] = "the options are";
        if (strncmp(lines[0], "wire ", 5) != 0 || strncmp(lines[1], "wire ", 5) != 0)
            snprintf(what, sizeof what, "tensor %zu is", tensor);
        status = mgw_fail(error, MGW_ERR_ARGUMENT,
                          "workers disagree: %s '%s' on rank 0 and '%s' on rank %u", what, lines[0],
                          lines[1], differs);
    }
    free(text[0]);
    free(text[1]);
    return status;
}

mgw_status engine_agree(mgw_engine *engine, mgw_error *error)
{
    mgw_text own;
    mgw_text_init(&own);
    describe(engine, &own);
    unsigned differs = 0;
    mgw_status status = mgw_text_status(&own, error);
    if (!status)
        status = same_hash(engine, hash_bytes(HASH_SEED, own.data, own.size), &differs, error);
    if (!status && differs)
        status = tell_difference(engine, differs, &own, error);
    mgw_text_fini(&own);
    return status;
}

/* ---- Calibration ---- */

enum { REPEATS = 5, SIZES_MAX = 16 };

/* The arena of the largest dtype is there, zero, and as large as any message can be. */
static int largest_arena(const mgw_engine *engine)
{
    int largest = 0;
    for (int d = 1; d < DTYPES; d++)
        if (engine->arena_count[d] * mgw_dtype_bytes((mgw_dtype)d) >
            engine->arena_count[largest] * mgw_dtype_bytes((mgw_dtype)largest))
            largest = d;
    return largest;
}

static int compare_doubles(const void *left, const void *right)
{
    double a = *(const double *)left;
    double b = *(const double *)right;
    return (a > b) - (a < b);
}

/* Medians of a whole aggregation, and of its push and pull if there are servers. */
typedef struct timing {
    double whole_s;
    double push_s;
    double pull_s;
} timing;

static double median_of(double *times)
{
    qsort(times, REPEATS, sizeof *times, compare_doubles);
    return times[REPEATS / 2];
}

/* On a device small messages follow each other without the host, in calibration as in steps. */
static size_t back_to_back(const mgw_engine *engine, size_t bytes)
{
    bool many = engine->device && engine->options.servers <= 0 && bytes <= 1 << 20;
    return many ? 16 : 1;
}

static mgw_status time_size(mgw_engine *engine, int d, size_t count, timing *out, mgw_error *error)
{
    double whole[REPEATS] = {0};
    double push[REPEATS] = {0};
    double pull[REPEATS] = {0};
    size_t repeats = back_to_back(engine, count * mgw_dtype_bytes((mgw_dtype)d));
    mgw_status status = MGW_OK;
    for (int i = -1; !status && i < REPEATS; i++) { /* the first warms up, and is overwritten */
        int k = i < 0 ? 0 : i;
        status = mgw_transport_barrier(engine->transport, error);
        double begin_s = mgw_now_s();
        mgw_transport_defer(engine->transport, repeats > 1);
        for (size_t r = 0; !status && r < repeats; r++)
            status = engine_aggregate(engine, (size_t)k, engine->arena[d], count, (mgw_dtype)d,
                                      &push[k], &pull[k], error);
        mgw_transport_defer(engine->transport, false);
        if (!status)
            status = mgw_transport_settle(engine->transport, error);
        whole[k] = (mgw_now_s() - begin_s) / (double)repeats;
    }
    *out = (timing){median_of(whole), median_of(push), median_of(pull)};
    return status;
}

/* The slowest worker's times count. */
static mgw_status take_slowest(mgw_engine *engine, timing *own, mgw_error *error)
{
    double mine[3] = {own->whole_s, own->push_s, own->pull_s};
    double *rows = NULL;
    mgw_status status = exchange(engine, mine, 3, &rows, error);
    for (size_t r = 0; !status && r < engine->size; r++)
        *own = (timing){fmax(own->whole_s, rows[3 * r]), fmax(own->push_s, rows[3 * r + 1]),
                        fmax(own->pull_s, rows[3 * r + 2])};
    free(rows);
    return status;
}

/* Samples of each kind, by size. */
typedef struct samples {
    mgw_sample whole[SIZES_MAX + 1];
    mgw_sample push[SIZES_MAX + 1];
    mgw_sample pull[SIZES_MAX + 1];
    size_t count;
} samples;

static void add_sample(samples *s, uint64_t bytes, const timing *t)
{
    /* A clock may not see the fastest; a fit wants times above 0. */
    s->whole[s->count] = (mgw_sample){bytes, fmax(t->whole_s, 1e-9)};
    s->push[s->count] = (mgw_sample){bytes, fmax(t->push_s, 1e-9)};
    s->pull[s->count++] = (mgw_sample){bytes, fmax(t->pull_s, 1e-9)};
}

static mgw_status sweep(mgw_engine *engine, samples *s, mgw_error *error)
{
    int d = largest_arena(engine);
    size_t element = mgw_dtype_bytes((mgw_dtype)d);
    size_t most = engine->arena_count[d];
    timing t = {0};
    mgw_status status = MGW_OK;
    for (size_t bytes = 1024; !status && s->count < SIZES_MAX; bytes *= 4) {
        size_t elements = bytes / element < most ? bytes / element : most;
        status = time_size(engine, d, elements, &t, error);
        if (!status)
            status = take_slowest(engine, &t, error);
        add_sample(s, elements * element, &t);
        if (elements == most || bytes >= (size_t)64 << 20)
            break;
    }
    if (s->count == 1) /* a tiny model: a line needs two points */
        add_sample(s, 2 * s->whole[0].bytes + 1, &t);
    return status;
}

mgw_status engine_calibrate(mgw_engine *engine, mgw_error *error)
{
    if (engine->options.cluster)
        return mgw_cluster_load(engine->options.cluster, &engine->cluster, error);
    samples s = {.count = 0};
    mgw_fit whole;
    mgw_fit push;
    mgw_fit pull;
    char name[64];
    snprintf(name, sizeof name, "%.40s-%u", mgw_transport_name(engine->transport), engine->size);
    unsigned workers = engine->size < 2 ? 2 : engine->size;
    mgw_status status = sweep(engine, &s, error);
    if (!status)
        status = mgw_fit_line(s.whole, s.count, &whole, error);
    if (status || engine->options.servers <= 0)
        return status ? status
                      : mgw_cluster_from_line(name, workers, &whole.line, &engine->cluster, error);
    status = mgw_fit_line(s.push, s.count, &push, error);
    if (!status)
        status = mgw_fit_line(s.pull, s.count, &pull, error);
    if (!status)
        status = mgw_cluster_from_push_pull(name, workers, &push.line, &pull.line, &engine->cluster,
                                            error);
    return status;
}

/* ---- Planning ---- */

/* Mean ready times of the slowest worker, never falling: a message waits for all before it. */
static mgw_status gather_ready_times(mgw_engine *engine, double *ready_s, mgw_error *error)
{
    size_t n = engine->tensor_count;
    double *rows = NULL;
    for (size_t i = 0; i < n; i++) /* who was not measured since then is as before */
        if (engine->ready_count[i])
            engine->ready_mean_s[i] = engine->ready_sum_s[i] / engine->ready_count[i];
    mgw_status status = exchange(engine, engine->ready_mean_s, n, &rows, error);
    if (status)
        return status;
    double latest = 0;
    for (size_t i = 0; i < n; i++) {
        for (unsigned r = 0; r < engine->size; r++)
            latest = rows[r * n + i] > latest ? rows[r * n + i] : latest;
        ready_s[i] = latest;
    }
    free(rows);
    return MGW_OK;
}

/* The measured step as a trace of bytes: tensors may differ in dtype, but all are bytes. */
static mgw_status make_trace(const mgw_engine *engine, const double *ready_s, mgw_trace **out,
                             mgw_error *error)
{
    size_t n = engine->tensor_count;
    mgw_tensor *tensors = malloc(n * sizeof *tensors);
    const char **names = malloc(n * sizeof *names);
    mgw_status status = tensors && names ? MGW_OK : mgw_fail_memory(error, "engine");
    for (size_t i = 0; !status && i < n; i++) {
        const engine_tensor *tensor = &engine->tensors[i];
        size_t width = tensor->dtype == MGW_F32 ? mgw_dtype_bytes(engine->wire)
                                                : mgw_dtype_bytes(tensor->dtype);
        tensors[i] = (mgw_tensor){.count = (tensor->count * width + 1) / 2, /* as f16 */
                                  .backward_s = ready_s[i] - (i ? ready_s[i - 1] : 0),
                                  .forward_start_s = MGW_TIME_UNKNOWN};
        names[i] = mgw_names_get(engine->names, i);
    }
    if (!status)
        status = mgw_trace_create("measured", MGW_F16, 0, n, names, tensors, out, error);
    free(tensors);
    free((void *)names);
    return status;
}

/* What rank 0 broadcasts: whether to switch, the plan's cuts, its prediction. */
typedef struct decision {
    uint64_t change;
    uint64_t after_backward;
    uint64_t count;
    uint64_t hash;
} decision;

/* Makes the new plan; with one in force, keeps that unless the new one promises enough. */
static mgw_status decide(mgw_engine *engine, const mgw_trace *trace, mgw_plan **made,
                         mgw_error *error)
{
    mgw_cost cost;
    mgw_cluster_cost(engine->cluster, &cost);
    mgw_plan *plan = NULL;
    mgw_status status = mgw_plan_make(trace, &cost, &engine->policy, &plan, error);
    bool keep = false;
    if (!status && engine->plan && !strcmp(engine->plan->policy, plan->policy)) {
        status = mgw_plan_time(engine->plan, trace, &cost, error);
        double enough = 1 - engine->options.replan_percent / 100.0;
        keep = !status && plan->iteration_s >= engine->plan->iteration_s * enough;
    }
    if (status || keep) {
        mgw_plan_destroy(plan);
        plan = NULL;
    }
    *made = plan;
    return status;
}

static void forget_window(mgw_engine *engine)
{
    if (engine->window) { /* what statistics show until there is more */
        engine->last_iteration_mean_s = engine->iteration_sum_s / (double)engine->window;
        engine->last_compute_mean_s = engine->compute_sum_s / (double)engine->window;
    }
    memset(engine->ready_sum_s, 0, engine->tensor_count * sizeof *engine->ready_sum_s);
    memset(engine->ready_count, 0, engine->tensor_count * sizeof *engine->ready_count);
    engine->since_look = 0;
    engine->window = 0;
    engine->iteration_sum_s = 0;
    engine->compute_sum_s = 0;
}

/* Every rank builds the plan from the cuts it was told, and all compare what they have built. */
static mgw_status adopt(mgw_engine *engine, const decision *told, size_t *ends, mgw_trace *trace,
                        mgw_plan *plan, mgw_error *error)
{
    unsigned differs = 0;
    uint64_t hash = hash_bytes(HASH_SEED, ends, told->count * sizeof *ends);
    if (hash != told->hash)
        hash = ~told->hash; /* damaged on the way: all shall see it */
    mgw_status status = same_hash(engine, hash, &differs, error);
    if (!status && differs)
        status = mgw_fail(error, MGW_ERR_PEER, "rank %u has another plan than rank 0", differs);
    if (!status)
        status = engine_cut(engine, ends, told->count, error);
    if (status)
        return status;
    engine->after_backward = told->after_backward;
    mgw_plan_destroy(engine->plan);
    mgw_trace_destroy(engine->trace);
    engine->plan = plan;
    engine->trace = trace;
    engine->plans++;
    return MGW_OK;
}

/* Rank 0's decision, as everybody hears it. */
static mgw_status hear(mgw_engine *engine, const mgw_plan *plan, decision *told, size_t *ends,
                       mgw_error *error)
{
    *told = (decision){0};
    if (engine->rank == 0 && plan) {
        for (size_t m = 0; m < plan->message_count; m++)
            ends[m] = plan->messages[m].first + plan->messages[m].count;
        *told = (decision){.change = 1,
                           .after_backward = engine->policy.kind == MGW_NAIVE,
                           .count = plan->message_count,
                           .hash = hash_bytes(HASH_SEED, ends, plan->message_count * sizeof *ends)};
    }
    mgw_status status = mgw_transport_broadcast(engine->transport, told, sizeof *told, 0, error);
    if (!status && told->count > engine->tensor_count)
        status = mgw_fail(error, MGW_ERR_PEER, "rank 0's plan has too many messages");
    if (!status)
        status =
            mgw_transport_broadcast(engine->transport, ends, told->count * sizeof *ends, 0, error);
    return status;
}

mgw_status engine_replan(mgw_engine *engine, mgw_error *error)
{
    size_t n = engine->tensor_count;
    double *ready_s = calloc(n, sizeof *ready_s);
    size_t *ends = calloc(n, sizeof *ends);
    mgw_trace *trace = NULL;
    mgw_plan *plan = NULL;
    decision told = {0};
    mgw_status status = ready_s && ends ? MGW_OK : mgw_fail_memory(error, "engine");
    if (!status && engine->device)
        status = engine_device_settle(engine, error);
    if (!status)
        status = gather_ready_times(engine, ready_s, error);
    if (!status)
        status = make_trace(engine, ready_s, &trace, error);
    /* Ranks other than 0 plan too, for their statistics; they follow what they are told. */
    if (!status)
        status = decide(engine, trace, &plan, error);
    if (!status)
        status = hear(engine, plan, &told, ends, error);
    if (!status && told.change) {
        if (!plan) { /* cannot be, with the same numbers; but rank 0's word counts */
            status = mgw_fail(error, MGW_ERR_PEER, "rank 0 has a plan that rank %u did not find",
                              engine->rank);
        } else {
            status = adopt(engine, &told, ends, trace, plan, error);
            if (!status) {
                trace = NULL;
                plan = NULL;
            }
        }
    }
    if (!status)
        forget_window(engine);
    mgw_plan_destroy(plan);
    mgw_trace_destroy(trace);
    free(ends);
    free(ready_s);
    return status;
}

static mgw_status replan_for_policy(mgw_engine *engine, mgw_error *error)
{
    return engine->steps ? engine_replan(engine, error) : MGW_OK;
}

mgw_status mgw_engine_set_policy(mgw_engine *engine, const char *policy, mgw_error *error)
{
    if (engine->failed || !engine->started || engine->in_step)
        return mgw_fail(error, MGW_ERR_ARGUMENT, "set_policy: only between steps");
    mgw_status status = mgw_policy_parse(policy, &engine->policy, error);
    return status ? status : engine_run(engine, replan_for_policy, error);
}
