/* Chooses the boundaries of operations with fixed kinds and order: one dynamic program for all
 * phases. */
#include "plan/sequence.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"

/* Limit on choices that mgw_sequence_plan keeps in the search for the fewest operations: 256 MiB.
 */
enum { CHOICES_MAX = 1 << 26 };

/* Limit on operations tried on curves. */
#define TRIES_MAX 3e8

static bool lane_init(mgw_lane *lane, size_t room)
{
    *lane = (mgw_lane){.tensor = malloc((room + 1) * sizeof *lane->tensor),
                       .ready_s = malloc((room + 1) * sizeof *lane->ready_s),
                       .needed_s = malloc((room + 1) * sizeof *lane->needed_s),
                       .prefix = malloc((room + 1) * sizeof *lane->prefix)};
    return lane->tensor && lane->ready_s && lane->needed_s && lane->prefix;
}

static void lane_fini(mgw_lane *lane)
{
    free(lane->tensor);
    free(lane->ready_s);
    free(lane->needed_s);
    free(lane->prefix);
}

mgw_status mgw_sequence_init(mgw_sequence *sequence, const mgw_problem *problem, mgw_error *error)
{
    size_t room = 2 * problem->n + 1;
    *sequence = (mgw_sequence){.problem = problem,
                               .needed_s = malloc((problem->n + 1) * sizeof(double)),
                               .ends = malloc(room * sizeof(double)),
                               .ends_before = malloc(room * sizeof(double)),
                               .from = malloc(room * sizeof(uint32_t)),
                               .window = malloc(room * sizeof(uint32_t))};
    bool lane = lane_init(&sequence->lane, room);
    bool mirror = lane_init(&sequence->mirror, room);
    if (!lane || !mirror || !sequence->needed_s || !sequence->ends || !sequence->ends_before ||
        !sequence->from || !sequence->window) {
        mgw_sequence_fini(sequence);
        return mgw_fail_memory(error, "overlap plan");
    }
    for (size_t j = 1; j <= problem->n; j++)
        sequence->needed_s[j] = mgw_problem_needed(problem, j);
    return MGW_OK;
}

void mgw_sequence_fini(mgw_sequence *sequence)
{
    lane_fini(&sequence->lane);
    lane_fini(&sequence->mirror);
    free(sequence->needed_s);
    free(sequence->ends);
    free(sequence->ends_before);
    free(sequence->from);
    free(sequence->window);
}

/* ---- Kinds and order ---- */

static void add_item(const mgw_sequence *sequence, mgw_lane *lane, mgw_collective kind,
                     uint32_t tensor)
{
    size_t at = ++lane->count;
    bool gathers = kind == MGW_ALL_GATHER;
    lane->tensor[at] = tensor;
    lane->ready_s[at] = gathers ? 0 : sequence->problem->ready_s[tensor];
    lane->needed_s[at] = kind == MGW_REDUCE_SCATTER ? INFINITY : sequence->needed_s[tensor];
    lane->prefix[at] =
        lane->prefix[at - 1] + mgw_problem_bytes(sequence->problem, kind,
                                                 gathers ? MGW_AFTER_UPDATE : MGW_WHEN_READY,
                                                 tensor - 1, tensor);
}

/* Adds tensors first+1..last, in ascending order or, for gathers, in descending order. */
static void add_phase(const mgw_sequence *sequence, mgw_lane *lane, mgw_collective kind,
                      size_t first, size_t last)
{
    if (first == last)
        return;
    size_t begin = lane->count;
    for (size_t i = 0; i < last - first; i++)
        add_item(sequence, lane, kind,
                 (uint32_t)(kind == MGW_ALL_GATHER ? last - i : first + 1 + i));
    lane->phases[lane->phase_count++] = (mgw_phase){kind, begin, lane->count};
}

/* Backwards in time, a gather with a deadline becomes one that may begin from then on. */
static void add_mirrored(const mgw_lane *lane, const mgw_phase *phase, mgw_lane *mirror)
{
    size_t begin = mirror->count;
    double ready_s = -INFINITY;
    for (size_t i = phase->end; i > phase->begin; i--) {
        size_t at = ++mirror->count;
        ready_s = mgw_later(ready_s, -lane->needed_s[i]);
        mirror->ready_s[at] = ready_s;
        mirror->needed_s[at] = INFINITY;
        mirror->prefix[at] = mirror->prefix[at - 1] + lane->prefix[i] - lane->prefix[i - 1];
    }
    mirror->phases[mirror->phase_count++] = (mgw_phase){MGW_ALL_GATHER, begin, mirror->count};
}

void mgw_sequence_set(mgw_sequence *sequence, size_t s, size_t k)
{
    size_t n = sequence->problem->n;
    mgw_lane *lane = &sequence->lane;
    mgw_lane *mirror = &sequence->mirror;
    sequence->whole_begin = s;
    sequence->whole_end = k;
    lane->count = lane->phase_count = lane->prefix[0] = 0;
    mirror->count = mirror->phase_count = mirror->prefix[0] = 0;
    add_phase(sequence, lane, MGW_REDUCE_SCATTER, 0, s);
    add_phase(sequence, lane, MGW_ALL_REDUCE, s, k);
    add_phase(sequence, lane, MGW_REDUCE_SCATTER, k, n);
    add_phase(sequence, lane, MGW_ALL_GATHER, k, n);
    add_phase(sequence, lane, MGW_ALL_GATHER, 0, s);
    for (size_t p = lane->phase_count; p > 0; p--)
        if (lane->phases[p - 1].kind == MGW_ALL_GATHER)
            add_mirrored(lane, &lane->phases[p - 1], mirror);
}

/* ---- The dynamic program ---- */

/*
 * One step: `next[j]` becomes the earliest end of items 1..j if the preceding operations end at
 * `before`, and `from[j]` the last item before the last operation; INFINITY if an operation would
 * end more than `limit_s` after it is needed. If `before` is `next` itself, any number of
 * operations is allowed; otherwise one more than before.
 */
typedef struct step {
    const mgw_sequence *sequence;
    const mgw_lane *lane;
    double limit_s;
    const double *before;
    double *next;
    uint32_t *from;
    double tries;
} step;

static double seconds(const step *s, mgw_collective kind, size_t i, size_t j)
{
    uint64_t bytes = s->lane->prefix[j] - s->lane->prefix[i];
    const mgw_curve *curve = &s->sequence->problem->cost->of[kind];
    if (curve->sample_count)
        return mgw_cost_seconds(s->sequence->problem->cost, kind, bytes);
    return curve->a_s + curve->b_s_per_byte * (double)bytes;
}

static double end_of(const step *s, mgw_collective kind, size_t i, size_t j)
{
    return mgw_later(s->lane->ready_s[j], s->before[i]) + seconds(s, kind, i, j);
}

/*
 * For a + b*M, handles all items of a phase in linear time. `done` is the last i that is finished
 * when j is ready; none before it is better. Among those after it, the first that keeps the limit
 * is best; one that exceeds it for j exceeds it for every later j. If `done` keeps the limit, its
 * successor is the only other candidate. See docs/explanation/model.md for the proof.
 */
static void walk_line(step *s, const mgw_phase *phase)
{
    const mgw_lane *lane = s->lane;
    uint32_t *window = s->sequence->window; /* items after `first` by increasing need */
    size_t head = 0;
    size_t tail = 0;
    size_t done = phase->begin;
    size_t first = phase->begin;
    for (size_t j = phase->begin + 1; j <= phase->end; j++) {
        while (tail > head && lane->needed_s[window[tail - 1]] >= lane->needed_s[j])
            tail--;
        window[tail++] = (uint32_t)j;
        while (done + 1 < j && s->before[done + 1] <= lane->ready_s[j])
            done++;
        first = first < done ? done : first;
        double end_s = INFINITY;
        for (; first < j; first++) {
            while (window[head] <= first)
                head++;
            end_s = end_of(s, phase->kind, first, j);
            if (end_s <= s->limit_s + lane->needed_s[window[head]])
                break;
            end_s = INFINITY;
        }
        s->next[j] = end_s;
        s->from[j] = (uint32_t)first;
        if (first == done && done + 1 < j) {
            double queued_s = end_of(s, phase->kind, done + 1, j);
            if (queued_s < end_s) {
                s->next[j] = queued_s;
                s->from[j] = (uint32_t)(done + 1);
            }
        }
    }
}

/* For any non-decreasing curve. Among the i that are finished when j is ready, the last is best. */
static void walk_curve(step *s, const mgw_phase *phase)
{
    const mgw_lane *lane = s->lane;
    for (size_t j = phase->begin + 1; j <= phase->end; j++) {
        double needed_s = INFINITY;
        s->next[j] = INFINITY;
        s->from[j] = (uint32_t)j;
        size_t i = j;
        do {
            needed_s = needed_s < lane->needed_s[i] ? needed_s : lane->needed_s[i];
            i--;
            double end_s = end_of(s, phase->kind, i, j);
            if (end_s < s->next[j] && end_s <= s->limit_s + needed_s) {
                s->next[j] = end_s;
                s->from[j] = (uint32_t)i;
            }
        } while (i > phase->begin && s->before[i] > lane->ready_s[j]);
        s->tries += (double)(j - i);
    }
}

static void walk(step *s)
{
    for (size_t p = 0; p < s->lane->phase_count; p++) {
        const mgw_phase *phase = &s->lane->phases[p];
        if (s->sequence->problem->cost->of[phase->kind].sample_count)
            walk_curve(s, phase);
        else
            walk_line(s, phase);
    }
}

/* ---- The least period ---- */

/* How much earlier than the period the gathers must begin. */
static double find_lead(mgw_sequence *sequence)
{
    sequence->ends_before[0] = -INFINITY;
    step s = {.sequence = sequence,
              .lane = &sequence->mirror,
              .limit_s = INFINITY,
              .before = sequence->ends_before,
              .next = sequence->ends_before,
              .from = sequence->from};
    walk(&s);
    return sequence->ends_before[sequence->mirror.count];
}

/* Finds the earliest ends with any number of operations; returns whether the last item is in time.
 */
static bool find_earliest(mgw_sequence *sequence, double limit_s)
{
    sequence->ends[0] = 0;
    step s = {.sequence = sequence,
              .lane = &sequence->lane,
              .limit_s = limit_s,
              .before = sequence->ends,
              .next = sequence->ends,
              .from = sequence->from};
    walk(&s);
    return sequence->ends[sequence->lane.count] < INFINITY;
}

/* The longest time from need to return of items up to `last`, with the current choices. */
static double find_latest(const mgw_sequence *sequence, size_t last)
{
    const mgw_lane *lane = &sequence->lane;
    double latest_s = -INFINITY;
    for (size_t j = last; j > 0; j = sequence->from[j])
        for (size_t i = sequence->from[j] + 1; i <= j; i++)
            latest_s = mgw_later(latest_s, sequence->ends[j] - lane->needed_s[i]);
    return latest_s;
}

/* Finds the period by bisection, if an all-reduced tensor is needed so early that it affects the
 * period. */
static double bisect(mgw_sequence *sequence, double low_s, double high_s)
{
    double compute_s = sequence->problem->ready_s[sequence->problem->n];
    while (high_s - low_s > MGW_ROUNDING / 8 * high_s) {
        double middle_s = low_s + (high_s - low_s) / 2;
        if (!find_earliest(sequence, middle_s)) {
            low_s = middle_s;
            continue;
        }
        double found_s = mgw_later(compute_s, find_latest(sequence, sequence->lane.count));
        high_s = found_s < middle_s ? found_s : middle_s;
    }
    return high_s;
}

double mgw_sequence_period(mgw_sequence *sequence)
{
    const mgw_lane *lane = &sequence->lane;
    size_t sent = lane->count - sequence->mirror.count;
    double least_s = sequence->problem->ready_s[sequence->problem->n];
    double lead_s = find_lead(sequence);
    if (!find_earliest(sequence, INFINITY))
        return INFINITY;
    if (sent < lane->count)
        least_s = mgw_later(least_s, sequence->ends[sent] + lead_s);
    /* No plan has tensor i back before the earliest end of 1..i. */
    double latest_s = find_latest(sequence, sent);
    for (size_t i = 1; i <= sent; i++)
        least_s = mgw_later(least_s, sequence->ends[i] - lane->needed_s[i]);
    if (latest_s <= least_s)
        return least_s;
    double any_s = latest_s; /* possible, with gathers that begin in time for that period */
    return bisect(sequence, least_s, any_s);
}

/* ---- The fewest operations ---- */

/* Runs rounds until one reaches the last item, at most `most`; `kept`, if not null, gets the
 * choices of each. */
static size_t run_rounds(mgw_sequence *sequence, double limit_s, size_t most, uint32_t **kept)
{
    size_t count = sequence->lane.count;
    double *before = sequence->ends_before;
    double *next = sequence->ends;
    step s = {.sequence = sequence, .lane = &sequence->lane, .limit_s = limit_s};
    before[0] = next[0] = 0;
    for (size_t i = 1; i <= count; i++)
        before[i] = INFINITY;
    for (size_t round = 1; round <= most && s.tries < TRIES_MAX; round++) {
        if (kept && !(kept[round - 1] = malloc((count + 1) * sizeof **kept)))
            return 0;
        s.before = before;
        s.next = next;
        s.from = kept ? kept[round - 1] : sequence->from;
        walk(&s);
        if (next[count] < INFINITY)
            return round;
        double *swap = before;
        before = next;
        next = swap;
    }
    return 0;
}

size_t mgw_sequence_fewest(mgw_sequence *sequence, double limit_s, size_t most)
{
    return run_rounds(sequence, limit_s, most, NULL);
}

/* Appends the operations, from the back. `kept` has the choices of each round; null: use
 * sequence->from. */
static void emit(const mgw_sequence *sequence, uint32_t *const *kept, size_t count,
                 mgw_operations *out)
{
    const mgw_lane *lane = &sequence->lane;
    size_t end = lane->count;
    size_t phase = lane->phase_count - 1;
    for (size_t m = count; m > 0; m--) {
        size_t begin = kept ? kept[m - 1][end] : sequence->from[end];
        while (lane->phases[phase].begin >= end)
            phase--;
        mgw_collective kind = lane->phases[phase].kind;
        size_t low = lane->tensor[begin + 1];
        size_t high = lane->tensor[end];
        if (low > high) {
            size_t swap = low;
            low = high;
            high = swap;
        }
        mgw_operation *o = &out->list[out->count + m - 1];
        *o = (mgw_operation){.kind = kind,
                             .release = kind == MGW_ALL_GATHER ? MGW_AFTER_UPDATE : MGW_WHEN_READY,
                             .first = low - 1,
                             .count = high - low + 1};
        end = begin;
    }
    out->count += count;
}

static mgw_status plan_any(mgw_sequence *sequence, double limit_s, mgw_operations *out,
                           mgw_error *error)
{
    double rounding = MGW_ROUNDING; /* which accumulates over very many operations */
    while (!find_earliest(sequence, limit_s)) {
        if (rounding > 1)
            return mgw_fail(error, MGW_ERR_UNSUPPORTED, "the predicted time is not finite");
        limit_s *= 1 + rounding;
        rounding *= 4;
    }
    size_t count = 0;
    for (size_t j = sequence->lane.count; j > 0; j = sequence->from[j])
        count++;
    emit(sequence, NULL, count, out);
    return MGW_OK;
}

mgw_status mgw_sequence_plan(mgw_sequence *sequence, double period_s, mgw_operations *out,
                             mgw_error *error)
{
    size_t most = CHOICES_MAX / (sequence->lane.count + 1);
    most = most < sequence->lane.count ? most : sequence->lane.count;
    uint32_t **kept = calloc(most + 1, sizeof *kept);
    double limit_s = period_s * (1 + MGW_ROUNDING);
    size_t count = kept ? run_rounds(sequence, limit_s, most, kept) : 0;
    if (count)
        emit(sequence, kept, count, out);
    for (size_t i = 0; kept && i < most; i++)
        free(kept[i]);
    free(kept);
    return count ? MGW_OK : plan_any(sequence, limit_s, out, error);
}
