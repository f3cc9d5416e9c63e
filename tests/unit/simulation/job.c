/* Random jobs, determined by a seed: models, networks, plans, and faults. */
#include "simulation/job.h"

#include <math.h>

#include "support.h"

static bool one_in(uint64_t *random, uint64_t count)
{
    return random_below(random, count) == 0;
}

static double between(uint64_t *random, double low, double high)
{
    return low + random_unit(random) * (high - low);
}

static void put_at(mgw_operation *operations, size_t *count, size_t at, const mgw_operation *o)
{
    memmove(operations + at + 1, operations + at, (*count - at) * sizeof *o);
    operations[at] = *o;
    ++*count;
}

/* Where the last scatter of any of these tensors is, and one more. */
static size_t behind_scatters(const mgw_operation *operations, size_t count, size_t first,
                              size_t last)
{
    size_t behind = 0;
    for (size_t m = 0; m < count; m++)
        if (operations[m].kind == MGW_REDUCE_SCATTER && operations[m].first < last &&
            operations[m].first + operations[m].count > first)
            behind = m + 1;
    return behind;
}

/* All-gathers of the scattered tensors, with new boundaries, at the end or as early as possible. */
static void add_gathers(uint64_t *random, size_t n, const bool *scattered, bool early,
                        mgw_operation *operations, size_t *count)
{
    for (size_t first = n; first > 0;) { /* the last of the ready order is needed first */
        size_t last = first--;
        if (!scattered[first])
            continue;
        while (first > 0 && scattered[first - 1] && !one_in(random, 3))
            first--;
        mgw_operation o = {.kind = MGW_ALL_GATHER,
                           .release = MGW_AFTER_UPDATE,
                           .first = first,
                           .count = last - first};
        size_t least = behind_scatters(operations, *count, first, last);
        size_t at = early ? least + random_below(random, *count - least + 1) : *count;
        put_at(operations, count, at, &o);
    }
}

/* Any plan that may be adopted. */
size_t make_operations(uint64_t *random, size_t n, bool early, bool scattered[MOST_TENSORS],
                       mgw_operation *operations)
{
    size_t count = 0;
    uint64_t scatters = random_below(random, 4); /* of three */
    uint64_t cuts = 1 + random_below(random, 5);
    for (size_t first = 0; first < n;) {
        size_t last = first + 1;
        while (last < n && !one_in(random, cuts))
            last++;
        bool scatter = random_below(random, 3) < scatters;
        mgw_operation o = {.kind = scatter ? MGW_REDUCE_SCATTER : MGW_ALL_REDUCE,
                           .release = one_in(random, 4) ? MGW_AFTER_BACKWARD : MGW_WHEN_READY,
                           .first = first,
                           .count = last - first};
        size_t at = one_in(random, 6) ? random_below(random, count + 1) : count;
        put_at(operations, &count, at, &o);
        for (; first < last; first++)
            scattered[first] = scatter;
    }
    add_gathers(random, n, scattered, early, operations, &count);
    return count;
}

static void plan_job(job *j)
{
    scenario *s = &j->s;
    uint64_t *random = &j->random;
    bool early = one_in(random, 3); /* gathers between averages: their updates must not wait */
    unsigned step = 1;
    for (size_t i = 0; i < s->tensors; i++)
        j->updates[i] = early ? SIM_EARLY : (sim_update)random_below(random, 3);
    s->plan_count = 1 + random_below(random, SIM_PLANS);
    for (size_t p = 0; p < s->plan_count; p++) {
        bool scattered[MOST_TENSORS] = {false};
        s->plans[p] = (sim_plan){step, 0, j->operations[p]};
        s->plans[p].count = make_operations(random, s->tensors, early, scattered, j->operations[p]);
        for (size_t i = 0; i < s->tensors; i++) /* nothing else waits for what is not gathered */
            if (!scattered[i] && j->updates[i] == SIM_LATE)
                j->updates[i] = SIM_AT_END;
        step += 1 + (unsigned)random_below(random, 4);
    }
}

static const char *const policies[] = {"naive",   "wfbp",           "single",         "mgwfbp",
                                       "optimal", "threshold:4096", "ddp:1000B,5000", "ddp"};
/* They gather parameters beside the next forward pass. */
static const char *const sharing[] = {"overlap", "overlap", "zero:2000", "fsdp:3000"};

static const char *any_policy(uint64_t *random, bool gathers)
{
    if (gathers && !one_in(random, 4))
        return sharing[random_below(random, sizeof sharing / sizeof *sharing)];
    return policies[random_below(random, sizeof policies / sizeof *policies)];
}

/* Halves cost what the tuner, who is told of all-reduces, takes them for. */
static void cost_by_line(scenario *s)
{
    const mgw_line line = {s->cost.of[MGW_ALL_REDUCE].a_s, s->cost.of[MGW_ALL_REDUCE].b_s_per_byte};
    mgw_cluster *cluster = NULL;
    mgw_error error = {0};
    assert_int_equal(mgw_cluster_from_line("sim", s->workers, &line, &cluster, &error), MGW_OK);
    mgw_cluster_cost(cluster, &s->cost);
    s->cost.cluster = "sim";
    mgw_cluster_destroy(cluster);
}

static void tune_job(job *j)
{
    scenario *s = &j->s;
    uint64_t *random = &j->random;
    bool gathers = one_in(random, 2);
    s->options = (mgw_tuner_options){
        .policy = one_in(random, 2) ? gathers ? "overlap" : "optimal" : any_policy(random, gathers),
        .profile_steps = 1 + (int)random_below(random, 4),
        .replan_steps = 1 + (int)random_below(random, 6),
        .replan_percent = (int)random_below(random, 10),
        .early_looks = (int)random_below(random, 4),
        .sampled = one_in(random, 3) ? (int)random_below(random, 4) : 0,
        .whole_steps = one_in(random, 3),
        .crowd = 1,
        .size = s->workers,
        .parameter_ratio = gathers ? 1 + (double)random_below(random, 2) : 0,
        .trials = one_in(random, 2)};
    if (gathers)
        cost_by_line(s);
    for (size_t i = 0; gathers && i < s->tensors; i++)
        j->updates[i] = one_in(random, 2) ? SIM_EARLY : SIM_AT_END;
    if (s->options.trials && one_in(random, 8)) /* some until a trial is over */
        s->steps += (unsigned)random_below(random, 150);
    if (s->options.trials && one_in(random, 4))
        s->believed = (mgw_line){between(random, 1e-5, 0.01), between(random, 0, 1e-5)};
    if (one_in(random, 3)) {
        s->policy_step = 1 + (unsigned)random_below(random, s->steps);
        s->new_policy = any_policy(random, gathers);
    }
}

/* Longer than any step takes, but for those who stop. */
static double usual_s(const scenario *s)
{
    double compute_s = 0;
    double send_s = mgw_cost_seconds(&s->cost, MGW_ALL_REDUCE, 512 * (s->tensors + 1));
    for (size_t i = 0; i < s->tensors; i++) {
        compute_s += s->forward_s[i] + s->backward_s[i];
        for (int kind = MGW_ALL_REDUCE; kind <= MGW_ALL_GATHER; kind++)
            send_s += mgw_cost_seconds(&s->cost, (mgw_collective)kind, s->bytes[i]);
    }
    return compute_s * (1 + s->jitter) * fmax(1, s->compute_drift) +
           send_s * fmax(1, s->network_drift) + 3 * s->update_s;
}

/* Who stops when, for how long. */
static void trouble_job(job *j)
{
    scenario *s = &j->s;
    uint64_t *random = &j->random;
    double job_s = usual_s(s) * s->steps / 3;
    s->timeout_s = 30 * usual_s(s);
    s->look_s = s->timeout_s / (double)(1 + random_below(random, 100));
    if (one_in(random, 4)) {
        s->joiner = (unsigned)random_below(random, s->workers);
        s->joins_s = between(random, 0, s->timeout_s / 4);
    }
    if (one_in(random, 5)) {
        s->victim = (unsigned)random_below(random, s->workers);
        s->stalls[0] =
            (sim_stall){s->victim, between(random, 0, job_s),
                        one_in(random, 2) ? INFINITY : s->timeout_s * between(random, 2.5, 4)};
        s->stall_count = 1;
        return;
    }
    for (; s->stall_count < SIM_STALLS && one_in(random, 3); s->stall_count++)
        s->stalls[s->stall_count] =
            (sim_stall){(unsigned)random_below(random, s->workers), between(random, 0, job_s),
                        between(random, 0, s->timeout_s / 4)};
}

void make_job(uint64_t seed, job *j)
{
    *j = (job){.random = seed * 0x9e3779b97f4a7c15u + 12345};
    uint64_t *random = &j->random;
    scenario *s = &j->s;
    *s = (scenario){.seed = seed,
                    .workers = 2 + (unsigned)random_below(random, one_in(random, 12) ? 63 : 7),
                    .steps = 2 + (unsigned)random_below(random, 14),
                    .tensors = 1 + random_below(random, one_in(random, 4) ? MOST_TENSORS : 8),
                    .bytes = j->bytes,
                    .forward_s = j->forward_s,
                    .backward_s = j->backward_s,
                    .updates = j->updates,
                    .update_s = one_in(random, 2) ? 0 : between(random, 0, 0.01),
                    .jitter = one_in(random, 4) ? 0 : random_unit(random),
                    .overlaps = one_in(random, 2),
                    .drains = one_in(random, 4),
                    .victim = SIM_NOBODY,
                    .joiner = SIM_NOBODY,
                    .compute_drift = 1,
                    .network_drift = 1};
    s->shuffles = s->jitter > 0 && one_in(random, 3);
    s->cost = (mgw_cost){.workers = s->workers, .cluster = "sim"};
    for (int kind = 0; kind < MGW_COLLECTIVE_COUNT; kind++)
        s->cost.of[kind] =
            (mgw_curve){.a_s = between(random, 0, 0.01), .b_s_per_byte = between(random, 0, 1e-5)};
    for (size_t i = 0; i < s->tensors; i++) { /* some come at the same time */
        j->bytes[i] = 2 * random_below(random, 2000);
        j->forward_s[i] = one_in(random, 5) ? 0 : between(random, 0, 0.01);
        j->backward_s[i] = one_in(random, 5) ? 0 : between(random, 0, 0.02);
    }
    if (one_in(random, 3)) {
        s->drift_step = 1 + (unsigned)random_below(random, s->steps);
        s->compute_drift = one_in(random, 2) ? between(random, 0.2, 4) : 1;
        s->network_drift = one_in(random, 2) ? between(random, 0.2, 4) : 1;
    }
    if (one_in(random, 2))
        plan_job(j);
    else
        tune_job(j);
    if (one_in(random, 2))
        trouble_job(j);
    else
        s->timeout_s = 30 * usual_s(s);
    if (s->look_s == 0)
        s->look_s = s->timeout_s / 10;
}
