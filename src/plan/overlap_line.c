/* Policy `overlap` on a + b*M for many tensors: examines all k at once, and pairs of s and k if
 * worthwhile. */
#include <math.h>
#include <stdlib.h>

#include "base/status.h"
#include "plan/overlap.h"

/* Limit on the numbers in the layers, of each kind. */
enum { LAYERED_MAX = 1 << 23 };

/* Limit on pairs of s and k to examine. */
#define PAIRS_MAX 4e6

/* Limit on k to examine one by one, if an all-reduced tensor determines the period. */
enum { EXACT_MAX = 64 };

/* Pairs of s and k are examined if the period is above the lower bound by more than this factor. */
#define WORTH_PAIRS 1.005

typedef struct search {
    mgw_sequence *sequence;
    const mgw_problem *problem;
    size_t n;
    mgw_layers scatters;
    mgw_layers gathers;
    double *due_s;       /* negated times of need of tensors 1..n: gathers, backwards in time */
    double *reduced_s;   /* earliest ends of all-reduces 1..k */
    double *late_s;      /* their longest time from need to return */
    double *least_s;     /* lower bound on the period of any plan for k */
    double *scattered_s; /* earliest ends of reduce-scatters 1..s */
    double *gathered_s;  /* the same for gathers, backwards */
    double *scratch_s;
    double *odd; /* nonzero: an all-reduced tensor may determine the period */
} search;

/* ---- Chains of operations of one kind ---- */

typedef struct chain {
    const double *ready_s;
    const double *work_s; /* prefix sums of b times bytes */
    double a_s;
} chain;

/* The earliest ends of first+1..j for all j, if the channel is free from ends[first] on. */
static void run_chain(const chain *c, size_t first, size_t n, double *ends, uint32_t *from)
{
    size_t done = first;
    double ready_s = -INFINITY;
    for (size_t j = first + 1; j <= n; j++) {
        ready_s = mgw_later(ready_s, c->ready_s[j]);
        while (done + 1 < j && ends[done + 1] <= ready_s)
            done++;
        double start_s = mgw_later(ready_s, ends[done]);
        ends[j] = start_s + c->a_s + (c->work_s[j] - c->work_s[done]);
        size_t best = done;
        if (done + 1 < j) {
            double queued_s = ends[done + 1] + c->a_s + (c->work_s[j] - c->work_s[done + 1]);
            if (queued_s < ends[j]) {
                ends[j] = queued_s;
                best = done + 1;
            }
        }
        if (from)
            from[j] = (uint32_t)best;
    }
}

/* b times the bytes of tensors 1..j, as sent by that kind. */
static void add_up(const mgw_problem *problem, mgw_collective kind, double *work_s)
{
    double b = problem->cost->of[kind].b_s_per_byte;
    for (size_t j = 0; j <= problem->n; j++)
        work_s[j] = b * (double)mgw_problem_bytes(problem, kind, MGW_AFTER_UPDATE, 0, j);
}

static double curve_start(const search *s, mgw_collective kind)
{
    return s->problem->cost->of[kind].a_s;
}

/* ---- All k ---- */

/* The ends of all-reduces 1..k for all k, and how much they delay the next forward pass. */
static void reduce_prefixes(search *s, const double *work_s)
{
    chain c = {s->problem->ready_s, work_s, curve_start(s, MGW_ALL_REDUCE)};
    uint32_t *from = s->sequence->from;
    const double *needed_s = s->sequence->needed_s;
    uint32_t *window = s->sequence->window; /* tensors of the last message, by need */
    size_t head = 0;
    size_t tail = 0;
    s->reduced_s[0] = 0;
    s->late_s[0] = -INFINITY;
    run_chain(&c, 0, s->n, s->reduced_s, from);
    for (size_t j = 1; j <= s->n; j++) { /* from[j] only moves forward */
        while (tail > head && needed_s[window[tail - 1]] >= needed_s[j])
            tail--;
        window[tail++] = (uint32_t)j;
        while (window[head] <= from[j])
            head++;
        s->late_s[j] = mgw_later(s->late_s[from[j]], s->reduced_s[j] - needed_s[window[head]]);
    }
}

/* A lower bound on the period for every k, which is achieved unless an all-reduced tensor
 * determines it. */
static void bound_all(search *s)
{
    double compute_s = s->problem->ready_s[s->n];
    double reduced_s = compute_s;
    for (size_t k = 0; k <= s->n; k++) {
        if (k > 0)
            reduced_s = mgw_later(reduced_s, s->reduced_s[k] - s->sequence->needed_s[k]);
        s->least_s[k] = reduced_s;
        if (k == s->n)
            break;
        double end_s = mgw_layers_end(&s->scatters, k, s->reduced_s[k]);
        double lead_s = mgw_layers_end(&s->gathers, k, -INFINITY);
        s->least_s[k] = mgw_later(reduced_s, end_s + lead_s);
    }
}

static double find_period(search *s, size_t first, size_t k)
{
    mgw_sequence_set(s->sequence, first, k);
    return mgw_sequence_period(s->sequence);
}

/* The best k; those whose period is not known exactly but might be better are examined one by one.
 */
static mgw_choice choose_prefix(search *s)
{
    mgw_choice best = {.period_s = INFINITY};
    for (size_t k = 0; k <= s->n; k++) {
        double period_s = mgw_later(s->least_s[k], s->late_s[k]);
        if (period_s <= best.period_s)
            best = (mgw_choice){.k = k, .period_s = period_s};
    }
    size_t looked = 0;
    for (size_t k = 0; k <= s->n && looked < EXACT_MAX; k++) {
        if (s->late_s[k] <= s->least_s[k] || s->least_s[k] >= best.period_s)
            continue;
        looked++;
        double period_s = find_period(s, 0, k);
        if (period_s < best.period_s)
            best = (mgw_choice){.k = k, .period_s = period_s};
        s->late_s[k] = period_s;
    }
    return best;
}

/* ---- The fewest operations ---- */

/* The earliest ends of all-reduces 1..j for all j, with one more operation than before. */
static void reduce_once_more(const search *s, const double *before, double *next)
{
    const mgw_problem *problem = s->problem;
    size_t done = 0;
    next[0] = 0;
    for (size_t j = 1; j <= s->n; j++) {
        double ready_s = problem->ready_s[j];
        while (done + 1 < j && before[done + 1] <= ready_s)
            done++;
        next[j] = mgw_later(ready_s, before[done]) + mgw_problem_seconds(problem, done, j);
        if (done + 1 < j) {
            double queued_s = before[done + 1] + mgw_problem_seconds(problem, done + 1, j);
            next[j] = queued_s < next[j] ? queued_s : next[j];
        }
    }
}

/* The number of halves that k needs in addition to all-reduces that end at `free_s`, if less than
 * `most`. */
static size_t count_halves(const search *s, size_t k, double free_s, double limit_s, size_t most)
{
    for (size_t g = 1; g <= s->gathers.count && g + 1 < most; g++) {
        double end_s = limit_s - s->gathers.ends[g][k];
        size_t m = mgw_layers_fewest(&s->scatters, k, end_s);
        if (m && g + m < most &&
            free_s + s->scatters.a_s * (double)m + s->scatters.work_s[k] <= end_s)
            most = g + m;
    }
    return most;
}

/* Marks the k whose period an all-reduced tensor may determine: one is needed before all gathered
 * ones. */
static void mark_odd(search *s)
{
    const double *needed_s = s->sequence->needed_s;
    double gathered_s = INFINITY;
    for (size_t k = s->n; k > 0; k--) {
        s->odd[k] = gathered_s; /* for now */
        gathered_s = needed_s[k] < gathered_s ? needed_s[k] : gathered_s;
    }
    double reduced_s = INFINITY;
    s->odd[0] = 0;
    for (size_t k = 1; k <= s->n; k++) {
        reduced_s = needed_s[k] < reduced_s ? needed_s[k] : reduced_s;
        s->odd[k] = reduced_s < s->odd[k];
    }
}

/* The k with the fewest operations so far; `most` is their number. */
typedef struct fewest {
    mgw_choice *choice;
    double limit_s;
    size_t most;
    size_t looked; /* k that were counted one by one */
} fewest;

static void consider(search *s, fewest *f, size_t wholes, size_t k, double free_s)
{
    size_t most = f->most - (k < f->choice->k); /* an equal number is better if k is larger */
    if (wholes > most)
        return;
    size_t room = most - wholes + 1;
    size_t halves = k < s->n ? count_halves(s, k, free_s, f->limit_s, room) : 0;
    if (halves >= room)
        return;
    size_t count = wholes + halves;
    if (s->odd[k]) {
        if (f->looked++ >= EXACT_MAX)
            return;
        s->least_s[k] = INFINITY; /* do not examine it again */
        mgw_sequence_set(s->sequence, 0, k);
        count = mgw_sequence_fewest(s->sequence, f->limit_s, most);
        if (!count)
            return;
    }
    f->most = count;
    f->choice->k = k;
}

/* Among all k with that period, chooses the fewest operations, then the largest k. */
static void prefer_fewest(search *s, double *next, mgw_choice *choice)
{
    fewest f = {.choice = choice, .limit_s = choice->period_s * (1 + MGW_ROUNDING)};
    double *before = s->scratch_s;
    f.most = 2 * s->n;
    mark_odd(s);
    before[0] = 0;
    for (size_t k = 1; k <= s->n; k++)
        before[k] = INFINITY;
    for (size_t wholes = 0; wholes <= f.most && wholes <= s->n; wholes++) {
        for (size_t k = 0; k <= s->n; k++)
            if (s->least_s[k] <= f.limit_s && before[k] < INFINITY)
                consider(s, &f, wholes, k, before[k]);
        reduce_once_more(s, before, next);
        double *swap = before;
        before = next;
        next = swap;
    }
}

/* ---- All s and k ---- */

/* The best k for a given s, if better than `choice`: reduce-scatters first, then all-reduces. */
static void choose_behind(search *s, const chain *wholes, size_t first, mgw_choice *choice)
{
    const double *needed_s = s->sequence->needed_s;
    double *ends = s->scratch_s;
    double least_s = s->problem->ready_s[s->n];
    ends[first] = s->scattered_s[first];
    run_chain(wholes, first, s->n, ends, NULL);
    for (size_t k = first + 1; k <= s->n; k++) {
        if (ends[k] - needed_s[1] > choice->period_s)
            return; /* tensor 1 is gathered after them */
        least_s = mgw_later(least_s, ends[k] - needed_s[k]);
        double end_s = mgw_layers_end(&s->scatters, k, ends[k]);
        double lead_s = mgw_layers_end(&s->gathers, k, s->gathered_s[first]);
        double period_s = mgw_later(least_s, end_s + lead_s);
        if (period_s < choice->period_s)
            *choice = (mgw_choice){first, k, period_s};
    }
}

static void choose_interval(search *s, double *work_s, mgw_choice *best)
{
    chain scatters = {s->problem->ready_s, work_s, curve_start(s, MGW_REDUCE_SCATTER)};
    add_up(s->problem, MGW_REDUCE_SCATTER, work_s);
    s->scattered_s[0] = 0;
    run_chain(&scatters, 0, s->n, s->scattered_s, NULL);
    chain gathers = {s->due_s, work_s, curve_start(s, MGW_ALL_GATHER)};
    add_up(s->problem, MGW_ALL_GATHER, work_s);
    s->gathered_s[0] = -INFINITY;
    run_chain(&gathers, 0, s->n, s->gathered_s, NULL);
    chain wholes = {s->problem->ready_s, work_s, curve_start(s, MGW_ALL_REDUCE)};
    add_up(s->problem, MGW_ALL_REDUCE, work_s);
    double pairs = (double)s->n * (double)s->n / 2;
    size_t stride = 1 + (size_t)(pairs / PAIRS_MAX);
    mgw_choice found = *best;
    for (size_t first = 1; first < s->n; first += stride)
        choose_behind(s, &wholes, first, &found);
    if (!(found.period_s < best->period_s * (1 - MGW_ROUNDING)))
        return;
    found.period_s = find_period(s, found.s, found.k);
    if (found.period_s < best->period_s * (1 - MGW_ROUNDING))
        *best = found;
}

/* ---- The search ---- */

static mgw_status make_layers(search *s, double *work_s, mgw_error *error)
{
    size_t most = LAYERED_MAX / (s->n + 1) + 1;
    add_up(s->problem, MGW_REDUCE_SCATTER, work_s);
    mgw_status status = mgw_layers_init(&s->scatters, s->n, s->problem->ready_s, work_s,
                                        curve_start(s, MGW_REDUCE_SCATTER), most, error);
    for (size_t j = 1; j <= s->n; j++)
        s->due_s[j] = -s->sequence->needed_s[j];
    add_up(s->problem, MGW_ALL_GATHER, work_s);
    if (!status)
        status = mgw_layers_init(&s->gathers, s->n, s->due_s, work_s,
                                 curve_start(s, MGW_ALL_GATHER), most, error);
    return status;
}

static mgw_status run_search(search *s, double *work_s, mgw_choice *out, mgw_error *error)
{
    mgw_status status = make_layers(s, work_s, error);
    if (status)
        return status;
    add_up(s->problem, MGW_ALL_REDUCE, work_s);
    reduce_prefixes(s, work_s);
    bound_all(s);
    mgw_choice best = choose_prefix(s);
    mgw_choice interval = best;
    double bound_s = mgw_problem_forward_bound(s->problem);
    if (bound_s < 0)
        return mgw_fail_memory(error, "overlap plan");
    if (best.period_s > WORTH_PAIRS * bound_s)
        choose_interval(s, work_s, &interval);
    if (interval.period_s < best.period_s)
        best = interval;
    else
        prefer_fewest(s, work_s, &best);
    *out = best;
    return MGW_OK;
}

mgw_status mgw_overlap_line(mgw_sequence *sequence, mgw_choice *out, mgw_error *error)
{
    size_t n = sequence->problem->n;
    enum { ARRAYS = 9 };
    double *arrays = malloc(ARRAYS * (n + 1) * sizeof *arrays);
    if (!arrays)
        return mgw_fail_memory(error, "overlap plan");
    search s = {.sequence = sequence,
                .problem = sequence->problem,
                .n = n,
                .due_s = arrays,
                .reduced_s = arrays + (n + 1),
                .late_s = arrays + 2 * (n + 1),
                .least_s = arrays + 3 * (n + 1),
                .scattered_s = arrays + 4 * (n + 1),
                .gathered_s = arrays + 5 * (n + 1),
                .scratch_s = arrays + 6 * (n + 1),
                .odd = arrays + 7 * (n + 1)};
    mgw_status status = run_search(&s, arrays + 8 * (n + 1), out, error);
    mgw_layers_fini(&s.scatters);
    mgw_layers_fini(&s.gathers);
    free(arrays);
    return status;
}
