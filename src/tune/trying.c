/* Trials on real steps: when to start one, whose turn it is, and the step times. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/median.h"
#include "base/status.h"
#include "tune/tuner.h"

/* Looks between two trials, which double each time the plan stays; and the factor by which the next
 * one comes sooner if the model promises a gain from a new plan. */
enum { AGAIN_LOOKS = 10, AGAIN_MOST = 80, SOONER = 5 };
enum { USUAL_STEPS = 2400 };       /* a trial with so many ends: the best so far wins */
enum { MOVING_TURN = 10 };         /* steps of a turn, if state moves with the plan */
static const double close = 0.004; /* candidates that differ by less are equally good */
static const double drift = 0.05;  /* relative change of the step time that restarts trials, */
static const double sigmas = 3;    /*   unless it is within this many standard errors */

bool tune_may_try(const mgw_tuner *tuner)
{
    return tuner->options.trials && tuner->options.size > 1;
}

bool tune_tries(const mgw_tuner *tuner)
{
    mgw_policy_kind kind = tuner->policy.kind;
    return tune_may_try(tuner) && !tuner->given &&
           (kind == MGW_OPTIMAL || kind == MGW_OVERLAP || kind == MGW_SHARDED);
}

/* ---- When to try ---- */

bool tune_was_tried(const mgw_tuner *tuner, const mgw_plan *plan)
{
    const tune_trying *t = &tuner->trying;
    uint64_t hash = mgw_plan_hash(plan->operations, plan->operation_count);
    for (size_t i = 0; i < TUNE_REMEMBERED && i < t->known_count; i++)
        if (t->known[i] == hash)
            return true;
    return false;
}

static bool has_drifted(const tune_trying *t, const tune_pace *now)
{
    double off_s = fabs(now->period_s - t->usual_s);
    return t->usual_s > 0 && now->period_s > 0 &&
           off_s > fmax(drift * t->usual_s, sigmas * now->error_s);
}

tune_reason tune_why(mgw_tuner *tuner, const mgw_plan *best, bool promises)
{
    tune_trying *t = &tuner->trying;
    if (!t->settled || has_drifted(t, &tuner->pace)) {
        t->known_count = 0;
        return TUNE_ALL;
    }
    if (t->usual_s == 0) /* measured in the same way as later, not as in the trial */
        t->usual_s = tuner->pace.period_s;
    bool is_time = t->looks + 1 >= t->again_after;
    bool is_new =
        t->looks + 1 >= t->again_after / SOONER && promises && !tune_was_tried(tuner, best);
    return is_time || is_new ? TUNE_FEW : TUNE_NONE;
}

void tune_count_look(mgw_tuner *tuner)
{
    tuner->trying.looks++;
}

size_t tune_round_steps(const mgw_tuner *tuner)
{
    return tuner->trying.order.left * tuner->trying.turn_steps;
}

/* ---- Step times ---- */

void tune_trying_observe(mgw_tuner *tuner, const mgw_step_record *record, uint64_t step)
{
    tune_trying *t = &tuner->trying;
    tune_periods *p = &tuner->periods;
    if (!tune_may_try(tuner) || !(record->period_s > 0))
        return;
    if (tune_is_trying(tuner)) {
        if (step > t->begun && step - t->begun <= tune_round_steps(tuner))
            t->seconds[step - t->begun - 1] = record->period_s;
        return;
    }
    size_t at = p->count++ % TUNE_PERIODS;
    p->period_s[at] = record->period_s;
    p->rest_s[at] = fmax(record->period_s - record->iteration_s, 0);
}

enum { PERIOD, ERROR, REST, KNOWN, PACE };
enum { STEP, SWITCH, COUNTS, TURN }; /* the numbers of a turn */

size_t tune_trying_size(const mgw_tuner *tuner)
{
    if (tune_is_trying(tuner))
        return TURN * tuner->trying.order.left;
    return tune_tries(tuner) ? PACE : 0;
}

/* The median and its standard error for normally distributed steps, from the median absolute
 * deviation. */
static void find_pace(const tune_periods *p, double *row)
{
    double values[TUNE_PERIODS];
    size_t count = p->count < TUNE_PERIODS ? p->count : TUNE_PERIODS;
    if (count == 0)
        return;
    memcpy(values, p->rest_s, count * sizeof *values);
    row[REST] = mgw_median(values, count);
    memcpy(values, p->period_s, count * sizeof *values);
    row[PERIOD] = mgw_median(values, count);
    for (size_t i = 0; i < count; i++)
        values[i] = fabs(p->period_s[i] - row[PERIOD]);
    row[ERROR] = 1.25 * 1.48 * mgw_median(values, count) / sqrt((double)count);
    row[KNOWN] = 1;
}

/* The step time in a turn, without its first step; 0: unknown. And how much longer that one took
 * than the others, which are all counted here: any step may be disturbed, the first one too. */
static double turn_s(const tune_trying *t, size_t turn, double *switch_s)
{
    double values[64];
    double sum_s = 0;
    size_t count = 0;
    const double *seconds = t->seconds + turn * t->turn_steps;
    for (size_t k = 1; k < t->turn_steps && count < sizeof values / sizeof *values; k++) {
        values[count] = seconds[k];
        sum_s += seconds[k];
        count += seconds[k] > 0;
    }
    *switch_s = count && seconds[0] > 0 ? seconds[0] - sum_s / (double)count : 0;
    return count ? mgw_trial_turn(values, count) : 0;
}

void tune_trying_row(const mgw_tuner *tuner, double *row)
{
    memset(row, 0, tune_trying_size(tuner) * sizeof *row);
    if (!tune_is_trying(tuner)) {
        if (tune_tries(tuner))
            find_pace(&tuner->periods, row);
        return;
    }
    const tune_trying *t = &tuner->trying;
    for (size_t turn = 0; turn < t->order.left; turn++, row += TURN) {
        row[STEP] = turn_s(t, turn, &row[SWITCH]);
        row[COUNTS] = row[STEP] > 0;
    }
}

void tune_take_pace(mgw_tuner *tuner, const double *combined)
{
    tuner->pace = (tune_pace){0};
    if (!tune_tries(tuner) || !(combined[KNOWN] > 0))
        return;
    tuner->pace = (tune_pace){.period_s = combined[PERIOD] / combined[KNOWN],
                              .error_s = combined[ERROR] / combined[KNOWN],
                              .rest_s = combined[REST] / combined[KNOWN]};
}

/* ---- A round ---- */

static void tell(tune_trying *t)
{
    for (size_t c = 0; c < t->count; c++) {
        mgw_trial_outcome found;
        mgw_trial_result(t->trial, c, &found);
        t->tried[c].rounds = found.rounds;
        t->tried[c].measured_s = found.mean_s;
        t->tried[c].ratio = found.ratio;
        t->tried[c].width = found.width;
        t->tried[c].left = found.left;
    }
}

/* All workers compute this from the same numbers. Rank 0's order is used nevertheless, since
 * machines may differ in the last bit; a candidate that is not in it has no time. */
void tune_play(mgw_tuner *tuner, const double *combined)
{
    tune_trying *t = &tuner->trying;
    double by_candidate[MGW_TRIED_MAX] = {0};
    double seconds[MGW_TRIED_MAX] = {0};
    size_t order[MGW_TRIED_MAX] = {0};
    for (size_t turn = 0; turn < t->order.left; turn++) {
        size_t c = t->order.of[turn];
        const double *numbers = combined + TURN * turn;
        if (!(numbers[COUNTS] > 0))
            continue;
        by_candidate[c] = numbers[STEP] / numbers[COUNTS];
        t->spent_s[c] += by_candidate[c] * (double)t->turn_steps;
        t->spent_steps[c] += t->turn_steps;
        t->switched_s += numbers[SWITCH] / numbers[COUNTS];
    }
    size_t left = mgw_trial_left(t->trial, order);
    for (size_t i = 0; i < left; i++)
        seconds[i] = by_candidate[order[i]];
    mgw_trial_round(t->trial, seconds);
    size_t enough = tuner->options.trials > 1 ? tuner->options.trials : USUAL_STEPS;
    if (mgw_trial_steps(t->trial) >= enough)
        mgw_trial_end(t->trial);
    tell(t);
    t->next.left = mgw_trial_left(t->trial, t->next.of);
    size_t winner = 0;
    if (mgw_trial_over(t->trial, &winner))
        t->next = (tune_order){1, {winner}};
}

/* ---- Starting and ending a trial ---- */

void tune_keep_earlier(mgw_tuner *tuner, mgw_plan *plan)
{
    tune_trying *t = &tuner->trying;
    mgw_plan_destroy(t->earlier[TUNE_EARLIER - 1]);
    memmove(t->earlier + 1, t->earlier, (TUNE_EARLIER - 1) * sizeof *t->earlier);
    t->earlier[0] = plan;
}

static void forget_earlier(tune_trying *t)
{
    for (size_t i = 0; i < TUNE_EARLIER; i++) {
        mgw_plan_destroy(t->earlier[i]);
        t->earlier[i] = NULL;
    }
}

static void end_trial(tune_trying *t)
{
    for (size_t c = 0; c < MGW_TRIED_MAX; c++) {
        mgw_plan_destroy(t->plans[c]);
        t->plans[c] = NULL;
    }
    mgw_trial_destroy(t->trial);
    free(t->seconds);
    t->trial = NULL;
    t->seconds = NULL;
}

void tune_trying_fini(mgw_tuner *tuner)
{
    end_trial(&tuner->trying);
    forget_earlier(&tuner->trying);
    tune_slate_clear(&tuner->slate);
}

void tune_stop_trying(mgw_tuner *tuner)
{
    tune_trying *t = &tuner->trying;
    if (tune_is_trying(tuner))
        t->stopped = tuner->steps;
    end_trial(t);
    forget_earlier(t);
    t->settled = false;
    t->usual_s = 0;
    t->again_after = AGAIN_LOOKS;
}

static mgw_status make_trial(mgw_tuner *tuner, const uint64_t *word, const mgw_cost *cost,
                             mgw_error *error)
{
    tune_trying *t = &tuner->trying;
    mgw_trial_options options = {.close = close,
                                 .turn_steps = tune_gathers(tuner) ? MOVING_TURN : 0,
                                 .incumbent = t->settled ? tune_incumbent(word) : 0};
    size_t count = tune_read_order(word, &t->order);
    mgw_status status = mgw_trial_create(&options, count, &t->trial, error);
    for (size_t c = 0; !status && c < count; c++) {
        status = tune_read_candidate(tuner, word, c, cost, &t->plans[c], error);
        if (!status)
            status = tune_correct(tuner, t->plans[c], error);
    }
    if (status)
        return status;
    mgw_trial_options_of(t->trial, &options);
    t->turn_steps = options.turn_steps;
    size_t steps = count * t->turn_steps;
    t->seconds = calloc(steps ? steps : 1, sizeof *t->seconds);
    return t->seconds ? MGW_OK : mgw_fail_memory(error, "tuner");
}

static void introduce(mgw_tuner *tuner, size_t c)
{
    tune_trying *t = &tuner->trying;
    const mgw_plan *plan = t->plans[c];
    bool limited = tune_is_limited(tuner, plan->operations, plan->operation_count);
    t->hashes[c] = mgw_plan_hash(plan->operations, plan->operation_count);
    t->tried[c] = (mgw_tried){.messages = plan->operation_count,
                              .ratio = 1,
                              .predicted_s = limited ? 0 : plan->iteration_s + tuner->pace.rest_s,
                              .left = true};
    snprintf(t->tried[c].name, sizeof t->tried[c].name, "%s", plan->policy);
    t->known[t->known_count++ % TUNE_REMEMBERED] = t->hashes[c];
    t->spent_s[c] = 0;
    t->spent_steps[c] = 0;
}

mgw_status tune_begin_trial(mgw_tuner *tuner, const uint64_t *word, const mgw_cost *cost,
                            mgw_error *error)
{
    tune_trying *t = &tuner->trying;
    mgw_status status = make_trial(tuner, word, cost, error);
    if (status) {
        end_trial(t);
        return status;
    }
    t->count = t->tried_count = tune_read_order(word, &t->order);
    for (size_t c = 0; c < t->count; c++)
        introduce(tuner, c);
    t->in_force =
        tuner->plan ? mgw_plan_hash(tuner->plan->operations, tuner->plan->operation_count) : 0;
    tuner->plans += !tuner->plan;
    mgw_plan_destroy(tuner->plan);
    t->switched_s = 0;
    t->turn = 0;
    t->now = t->order.of[0];
    tuner->plan = t->plans[t->now];
    t->plans[t->now] = NULL;
    return MGW_OK;
}

/* Makes a candidate the current plan; returns whether that is a change. */
static bool put_in_force(mgw_tuner *tuner, size_t candidate)
{
    tune_trying *t = &tuner->trying;
    if (candidate == t->now)
        return false;
    t->plans[t->now] = tuner->plan;
    tuner->plan = t->plans[candidate];
    t->plans[candidate] = NULL;
    t->now = candidate;
    return true;
}

bool mgw_tuner_turn(mgw_tuner *tuner)
{
    tune_trying *t = &tuner->trying;
    if (!tune_is_trying(tuner))
        return false;
    size_t turn = tuner->since_look / t->turn_steps;
    if (turn == t->turn || turn >= t->order.left)
        return false;
    t->turn = turn;
    return put_in_force(tuner, t->order.of[turn]);
}

/* How much longer all turns, and the changes between them, took than the winner alone. */
static double cost_of(const tune_trying *t, size_t winner)
{
    double cost_s = t->switched_s;
    if (t->spent_steps[winner] == 0)
        return 0;
    double best_s = t->spent_s[winner] / (double)t->spent_steps[winner];
    for (size_t c = 0; c < t->count; c++)
        cost_s += t->spent_s[c] - (double)t->spent_steps[c] * best_s;
    return cost_s;
}

/* Records the candidates' step times, without the time between steps, for later predictions. These
 * work without them if memory runs out. */
static void note_candidates(mgw_tuner *tuner)
{
    const tune_trying *t = &tuner->trying;
    for (size_t c = 0; c < t->count; c++) {
        const mgw_plan *plan = c == t->now ? tuner->plan : t->plans[c];
        double step_s = t->tried[c].measured_s - tuner->pace.rest_s;
        mgw_error no_memory;
        if (tune_note_plan(tuner, plan->operations, plan->operation_count,
                           &(mgw_step_times){.iteration_s = step_s}, 0.01, &no_memory))
            break;
    }
}

/* Keeps the plan that the winner replaces: it may have been better than the measurements say, or be
 * so again, and takes part in the next trial of all plans. */
static void keep_replaced(mgw_tuner *tuner)
{
    tune_trying *t = &tuner->trying;
    for (size_t c = 0; c < t->count; c++)
        if (t->plans[c] && t->hashes[c] == t->in_force) {
            tune_keep_earlier(tuner, t->plans[c]);
            t->plans[c] = NULL;
        }
}

static void settle(mgw_tuner *tuner)
{
    tune_trying *t = &tuner->trying;
    bool stays = t->hashes[t->now] == t->in_force;
    t->tried[t->now].kept = true;
    note_candidates(tuner);
    t->cost_s += cost_of(t, t->now);
    t->trials++;
    tuner->plans += !stays && t->in_force;
    t->settled = true;
    t->looks = 0;
    t->usual_s = 0;
    t->again_after = !stays                        ? AGAIN_LOOKS
                     : t->again_after < AGAIN_MOST ? 2 * t->again_after
                                                   : AGAIN_MOST;
    keep_replaced(tuner);
    end_trial(t);
}

void tune_follow_round(mgw_tuner *tuner, const uint64_t *word, bool *changed)
{
    tune_trying *t = &tuner->trying;
    t->steps += tune_round_steps(tuner);
    tune_read_order(word, &t->order);
    t->turn = 0;
    *changed = put_in_force(tuner, t->order.of[0]);
    memset(t->seconds, 0, t->count * t->turn_steps * sizeof *t->seconds);
    if (t->order.left == 1)
        settle(tuner);
}

const mgw_tried *mgw_tuner_tried(const mgw_tuner *tuner, size_t *count)
{
    *count = tuner->trying.tried_count;
    return tuner->trying.tried;
}
