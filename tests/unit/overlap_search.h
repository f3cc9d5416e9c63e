/* Policy `overlap` by exhaustive search over every s, k and set of boundaries; and random problems
 * for it. */
#ifndef TESTS_OVERLAP_SEARCH_H
#define TESTS_OVERLAP_SEARCH_H

#include <math.h>

#include "wire_by_hand.h"

enum { SEARCH_MAX = 128, SAMPLES_MAX = 6 };

typedef struct overlap_problem {
    size_t n;
    double forward_s;
    mgw_tensor tensors[SEARCH_MAX];
    mgw_dtype parameters;
    mgw_cost cost;
    mgw_sample samples[MGW_COLLECTIVE_COUNT][SAMPLES_MAX];
    double ready_s[SEARCH_MAX];
    double needed_s[SEARCH_MAX];
} overlap_problem;

static inline void overlap_add_up(overlap_problem *p)
{
    double now_s = p->forward_s;
    for (size_t i = 0; i < p->n; i++) {
        now_s += p->tensors[i].backward_s;
        p->ready_s[i] = now_s;
        double at = p->tensors[i].forward_start_s;
        p->needed_s[i] = at == MGW_TIME_UNKNOWN                        ? 0
                         : at == MGW_NEVER_NEEDED || at > p->forward_s ? p->forward_s
                                                                       : at;
    }
}

/* ---- Random problems ---- */

/* Whole numbers, so that ties are exact; or any. */
static inline double overlap_number(uint64_t *state, bool whole, double most)
{
    return whole ? (double)random_below(state, (uint64_t)most + 1) : random_unit(state) * most;
}

static inline void overlap_needs(overlap_problem *p, bool whole, uint64_t *state)
{
    uint64_t order = random_below(state, 4);
    double at = p->forward_s;
    for (size_t i = 0; i < p->n; i++) {
        at = fmax(0, at - overlap_number(state, whole, 2 * p->forward_s / (double)p->n));
        double needed_s = at; /* the reverse of ready order */
        if (order == 1 && random_below(state, 3) == 0)
            needed_s = fmin(p->forward_s, needed_s + overlap_number(state, whole, 2));
        if (order >= 2)
            needed_s = overlap_number(state, whole, p->forward_s + 1);
        if (order == 3 && random_below(state, 4) == 0)
            needed_s = random_below(state, 2) ? MGW_NEVER_NEEDED : MGW_TIME_UNKNOWN;
        p->tensors[i].forward_start_s = needed_s;
    }
    if (random_below(state, 3) == 0) /* as usual: the last ready is the first needed */
        p->tensors[p->n - 1].forward_start_s = 0;
}

static inline void overlap_costs(overlap_problem *p, bool whole, uint64_t *state)
{
    double a = random_below(state, 5) ? overlap_number(state, whole, 4) : 0;
    double b = random_below(state, 6) ? overlap_number(state, whole, 4) / 8 : 0;
    uint64_t halves = random_below(state, 4);
    p->cost = (mgw_cost){.workers = 2, .cluster = "c"};
    for (int kind = 0; kind < MGW_COLLECTIVE_COUNT; kind++) {
        p->cost.of[kind] = (mgw_curve){.a_s = a / 2, .b_s_per_byte = b / 2};
        if (halves == 0)
            p->cost.of[kind] = (mgw_curve){.a_s = overlap_number(state, whole, 3) / 2,
                                           .b_s_per_byte = overlap_number(state, whole, 3) / 16};
    }
    if (halves > 0) /* or all-reduces that cost less than their halves */
        p->cost.of[MGW_ALL_REDUCE] =
            (mgw_curve){.a_s = halves == 1 ? a / 2 : a, .b_s_per_byte = halves == 1 ? b * 0.75 : b};
}

/* Jumps and flat parts, as protocols make them. */
static inline void overlap_curve(overlap_problem *p, mgw_collective kind, uint64_t *state)
{
    size_t count = 1 + random_below(state, SAMPLES_MAX);
    uint64_t bytes = random_below(state, 4);
    double seconds = (double)random_below(state, 3) / 2;
    for (size_t i = 0; i < count; i++) {
        p->samples[kind][i] = (mgw_sample){bytes, seconds};
        bytes += 1 + random_below(state, 12);
        seconds += random_below(state, 3) ? (double)random_below(state, 4) / 2 : 0;
    }
    p->cost.of[kind].samples = p->samples[kind];
    p->cost.of[kind].sample_count = count;
}

static inline void overlap_random(overlap_problem *p, size_t n, bool curves, uint64_t *state)
{
    bool whole = random_below(state, 2);
    p->n = n;
    p->forward_s = overlap_number(state, whole, 8);
    for (size_t i = 0; i < n; i++)
        p->tensors[i] =
            (mgw_tensor){random_below(state, 6),
                         random_below(state, 5) ? overlap_number(state, whole, 3) : 0, 0};
    p->parameters = random_below(state, 4) ? MGW_F32 : MGW_BF16;
    overlap_needs(p, whole, state);
    overlap_costs(p, whole, state);
    for (int kind = 0; curves && kind < MGW_COLLECTIVE_COUNT; kind++)
        if (random_below(state, 3))
            overlap_curve(p, (mgw_collective)kind, state);
    overlap_add_up(p);
}

static inline mgw_trace *overlap_trace(const overlap_problem *p)
{
    mgw_trace *trace = make_trace(p->forward_s, p->n, p->tensors);
    trace->parameter_dtype = p->parameters;
    return trace;
}

static inline double overlap_seconds(const overlap_problem *p, mgw_collective kind, size_t low,
                                     size_t high)
{
    uint64_t elements = 0;
    for (size_t i = low; i < high; i++)
        elements += p->tensors[i].count;
    bool halved = kind == MGW_ALL_GATHER && p->parameters == MGW_BF16;
    return by_hand_least(&p->cost, kind, elements * (halved ? 2 : 4));
}

/* ---- The search ---- */

typedef struct overlap_found {
    double period_s;
    size_t operations;
    size_t whole; /* tensors that are all-reduced */
} overlap_found;

typedef struct overlap_visit {
    const overlap_problem *p;
    size_t s;
    size_t k;
    double limit_s; /* infinite: looks for the least period; else for the fewest operations */
    overlap_found *best;
    double worth_s; /* added to the period, for each operation */
} overlap_visit;

/* Phases 0..4: scatter ..s, reduce ..k, scatter ..n, gather from n to k, gather from s to 0. */
static inline void overlap_cut(const overlap_visit *v, int phase, size_t at, double free_s,
                               double late_s, size_t operations)
{
    const overlap_problem *p = v->p;
    const size_t begins[] = {0, v->s, v->k, p->n, v->s};
    const size_t ends[] = {v->s, v->k, p->n, v->k, 0};
    static const mgw_collective kinds[] = {MGW_REDUCE_SCATTER, MGW_ALL_REDUCE, MGW_REDUCE_SCATTER,
                                           MGW_ALL_GATHER, MGW_ALL_GATHER};
    double takes_s = late_s + v->worth_s * (double)operations;
    if (late_s > v->limit_s || (v->limit_s == INFINITY && takes_s >= v->best->period_s))
        return;
    while (phase < 5 && at == ends[phase])
        at = ++phase < 5 ? begins[phase] : 0;
    if (phase == 5) {
        size_t whole = v->k - v->s;
        overlap_found *best = v->best;
        if (v->limit_s == INFINITY)
            best->period_s = takes_s;
        else if (operations < best->operations ||
                 (operations == best->operations && whole > best->whole)) {
            best->operations = operations;
            best->whole = whole;
        }
        return;
    }
    bool gathers = kinds[phase] == MGW_ALL_GATHER;
    for (size_t count = 1; count <= (gathers ? at - ends[phase] : ends[phase] - at); count++) {
        size_t low = gathers ? at - count : at;
        double end_s = fmax(free_s, gathers ? 0 : p->ready_s[low + count - 1]) +
                       overlap_seconds(p, kinds[phase], low, low + count);
        double late_now_s = late_s;
        for (size_t i = low; kinds[phase] != MGW_REDUCE_SCATTER && i < low + count; i++)
            late_now_s = fmax(late_now_s, end_s - p->needed_s[i]);
        overlap_cut(v, phase, gathers ? low : low + count, end_s, late_now_s, operations + 1);
    }
}

/* With all-reduces of at most the first `most` tensors; `pairs`: with reduce-scatters before them,
 * too. */
static inline overlap_found overlap_search_up_to(const overlap_problem *p, size_t most, bool pairs)
{
    overlap_found best = {INFINITY, SIZE_MAX, 0};
    double limit_s = INFINITY;
    for (int pass = 0; pass < 2; pass++) {
        for (size_t k = 0; k <= most; k++)
            for (size_t s = 0; s == 0 || (pairs && s < k); s++) {
                overlap_visit v = {p, s, k, limit_s, &best, 0};
                overlap_cut(&v, 0, 0, 0, p->ready_s[p->n - 1], 0);
            }
        limit_s = best.period_s * (1 + 1e-12);
    }
    return best;
}

static inline overlap_found overlap_search(const overlap_problem *p, bool pairs)
{
    return overlap_search_up_to(p, p->n, pairs);
}

/* Whether the plan is of the class: its gathers are in the reverse of ready order. */
static inline bool overlap_in_class(const mgw_plan *plan)
{
    size_t last = SIZE_MAX;
    for (size_t m = 0; m < plan->operation_count; m++) {
        const mgw_operation *o = &plan->operations[m];
        if (o->kind == MGW_ALL_GATHER && o->first > last)
            return false;
        last = o->kind == MGW_ALL_GATHER ? o->first : last;
    }
    return true;
}

#endif
