/*
 * A random world for trials of plans, determined by a seed, under a virtual clock: a built-in
 * trace, a T(M) that no line fits, and the step times of each candidate, with noise, drift that
 * affects all alike, a worker that stalls sometimes, and a slower first step after a switch.
 */
#ifndef TESTS_TRIAL_WORLD_H
#define TESTS_TRIAL_WORLD_H

#include <math.h>

#include "support.h"

enum { WORLD_MOST = 8, WORLD_GRID = 65, WORLD_SAMPLES = 16 };

typedef struct world {
    uint64_t random;
    const mgw_trace *trace;
    unsigned workers;
    double noise;     /* of a step: one sigma of its logarithm */
    double stalls;    /* chance that a worker stalls in a step: its computation takes three times */
    double drift;     /* of the logarithm, over the whole trial */
    double period;    /* in steps: and back again; 0: it goes one way */
    double switching; /* the first step of a turn takes that share more */
    mgw_sample samples[WORLD_SAMPLES];
    size_t candidates; /* 0 is DDP's cut */
    size_t messages[WORLD_MOST];
    double untold[WORLD_MOST];             /* factor on the step time that no model knows */
    double step_s[WORLD_MOST][WORLD_GRID]; /* by how many times as long messages take: see reach */
    double mean_s[WORLD_MOST];             /* of a step, without stalls and drift */
    uint64_t steps;                        /* that were run */
    double spent_s;
} world;

/* A number of mean 0 and variance 1. */
static inline double random_normal(uint64_t *state)
{
    double radius = sqrt(-2 * log(1 - random_unit(state)));
    return radius * cos(2 * acos(-1) * random_unit(state));
}

static inline double random_between(uint64_t *state, double low, double high)
{
    return low + (high - low) * random_unit(state);
}

/* Grid point i stands for messages that take (i / 16)^2 times as long, 0 to 16. */
static inline double grid_factor(double i)
{
    return i * i / 256;
}

/* T(M) = a + b M^exponent, and dearer from some size on, as where a protocol ends. */
static inline void bend(world *w, double total_s)
{
    double exponent = random_between(&w->random, 0.7, 1.0);
    double jump = random_between(&w->random, 1.0, 1.6);
    uint64_t jump_bytes = (uint64_t)1 << (14 + random_below(&w->random, 8));
    double whole = (double)mgw_trace_bytes(w->trace);
    double b = total_s / pow(whole, exponent);
    double a = total_s * exp(random_between(&w->random, log(1e-4), log(1e-2)));
    for (size_t i = 0; i < WORLD_SAMPLES; i++) {
        uint64_t bytes = (uint64_t)1024 << (i + i / 4);
        double seconds = (a + b * pow((double)bytes, exponent)) * (bytes >= jump_bytes ? jump : 1);
        w->samples[i] = (mgw_sample){bytes, seconds};
    }
}

/* What steps take with a plan, by how dear messages are. */
static inline void time_plan(world *w, size_t candidate, mgw_plan *plan)
{
    mgw_error error = {0};
    mgw_sample scaled[WORLD_SAMPLES];
    mgw_cluster *cluster = NULL;
    mgw_cost cost;
    for (size_t g = 0; g < WORLD_GRID; g++) {
        double factor = fmax(grid_factor((double)g), 1e-6);
        for (size_t i = 0; i < WORLD_SAMPLES; i++)
            scaled[i] = (mgw_sample){w->samples[i].bytes, w->samples[i].seconds * factor};
        if (mgw_cluster_from_samples("scaled", w->workers, scaled, WORLD_SAMPLES, &cluster, &error))
            fail_msg("%s", error.message);
        mgw_cluster_cost(cluster, &cost);
        if (mgw_plan_time(plan, w->trace, &cost, &error))
            fail_msg("%s", error.message);
        w->step_s[candidate][g] = plan->iteration_s;
        mgw_cluster_destroy(cluster);
    }
}

/* A step whose slowest worker computes so many times as long as usual. */
static inline double step_with(const world *w, size_t candidate, double compute)
{
    double at = fmin(16 * sqrt(1 / compute), WORLD_GRID - 1.001);
    size_t g = (size_t)at;
    double low = grid_factor((double)g);
    double share = (1 / compute - low) / (grid_factor((double)g + 1) - low);
    const double *step_s = w->step_s[candidate];
    return w->untold[candidate] * compute * (step_s[g] + share * (step_s[g + 1] - step_s[g]));
}

/* How long the slowest worker computes, against usual. */
static inline double slowest(world *w, bool stalls)
{
    double most = 0;
    for (unsigned i = 0; i < w->workers; i++)
        most = fmax(most, exp(w->noise / 2 * random_normal(&w->random)));
    return stalls && random_unit(&w->random) < w->stalls ? 3 * most : most;
}

static inline bool add_candidate(world *w, const mgw_plan *const *plans, mgw_plan *plan)
{
    for (size_t c = 0; c < w->candidates && plans[c]; c++) {
        const mgw_plan *other = plans[c];
        bool same = other->operation_count == plan->operation_count;
        for (size_t i = 0; same && i < plan->operation_count; i++)
            same = other->operations[i].count == plan->operations[i].count;
        if (same)
            return false;
    }
    w->messages[w->candidates++] = plan->operation_count;
    return true;
}

/* DDP's cut, the best on the line that fits and on the curve, and neighbours: the best if messages
 * cost more or less to start. */
static inline void make_candidates(world *w)
{
    mgw_error error = {0};
    mgw_cluster *curve = NULL;
    mgw_plan *plans[WORLD_MOST] = {0};
    if (mgw_cluster_from_samples("bent", w->workers, w->samples, WORLD_SAMPLES, &curve, &error))
        fail_msg("%s", error.message);
    static const double starts[] = {1, 3, 0.3, 30};
    for (size_t i = 0; i < 6; i++) {
        mgw_cost cost;
        mgw_cluster *line = NULL;
        mgw_line fit = curve->cost;
        fit.a_s *= i < 2 ? 1 : starts[i - 2];
        if (mgw_cluster_from_line("line", w->workers, &fit, &line, &error))
            fail_msg("%s", error.message);
        mgw_cluster_cost(i == 1 ? curve : line, &cost);
        mgw_plan *plan = make_plan(w->trace, &cost, i == 0 ? "ddp" : "optimal");
        mgw_cluster_destroy(line);
        if (add_candidate(w, (const mgw_plan *const *)plans, plan))
            plans[w->candidates - 1] = plan;
        else
            mgw_plan_destroy(plan);
    }
    for (size_t c = 0; c < w->candidates; c++) {
        time_plan(w, c, plans[c]);
        mgw_plan_destroy(plans[c]);
    }
    mgw_cluster_destroy(curve);
}

/* The mean of many steps: the same ones for all candidates, so that they can be compared. */
static inline void find_means(world *w)
{
    enum { DRAWS = 2000 };
    for (size_t i = 0; i < DRAWS; i++) {
        double compute = slowest(w, false);
        for (size_t c = 0; c < w->candidates; c++)
            w->mean_s[c] += step_with(w, c, compute) / DRAWS;
    }
}

static inline void make_world(uint64_t seed, const mgw_trace *const *traces, size_t trace_count,
                              world *w)
{
    *w = (world){.random = seed * 0x9e3779b97f4a7c15u + 1};
    uint64_t *r = &w->random;
    w->trace = traces[random_below(r, trace_count ? trace_count : 1)];
    w->workers = 2 + (unsigned)random_below(r, 7);
    w->noise = random_between(r, 0.05, 0.20);
    w->stalls = random_below(r, 2) ? random_between(r, 0, 0.03) : 0;
    w->drift = random_between(r, -0.4, 0.4);
    w->period = random_below(r, 2) ? random_between(r, 200, 4000) : 0;
    w->switching = random_between(r, 0, 0.5);
    double share = exp(random_between(r, log(0.1), log(3)));
    bend(w, share * mgw_trace_backward_s(w->trace));
    make_candidates(w);
    double untold = random_below(r, 2) ? 0.05 : 0;
    for (size_t c = 0; c < w->candidates; c++)
        w->untold[c] = 1 + random_between(r, 0, untold);
    find_means(w);
}

/* What a step of a candidate takes now. */
static inline double run_step(world *w, size_t candidate, bool switched)
{
    double age = (double)w->steps++;
    double drift = w->period > 0 ? sin(age / w->period * 2 * acos(-1)) : age / (age + 2000);
    double step_s = step_with(w, candidate, slowest(w, true));
    step_s *= exp(w->drift * drift + w->noise * random_normal(&w->random));
    step_s *= switched ? 1 + w->switching : 1;
    w->spent_s += step_s / exp(w->drift * drift);
    return step_s;
}

#endif
