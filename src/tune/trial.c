/*
 * A sequential test: which of several candidates takes least time per step.
 *
 * Candidates are compared within rounds, by the logarithm of the ratio of what their steps took: so
 * drift that hits all alike cancels, and noise that grows with the step counts the same for all. Of
 * these differences the mean without the largest and least eighth is taken, and its error from the
 * winsorized variance (Tukey and McLaughlin), so that a stall neither moves the mean nor, once
 * there are eight rounds, hides what the others say; intervals are Student's t with as many degrees
 * of freedom as are left. While rounds are few, what all candidates show of how much rounds differ
 * counts for each of them, too. Looks come at rounds that grow by a quarter. Then those are dropped
 * whose chance to be better than the best by more than twice `close` has become negligible, be they
 * worse or equal: nobody has to know which of two equal ones is better. The trial is over once
 * these chances add up to less than half of `risk`. In the end the baseline wins if it is left
 * and the best may well be worse than it, by as much; else the first of those surely within `close`
 * of the best: by intervals that share the risk among all looks and candidates (Bonferroni:
 * whatever depends on whatever).
 */
#include <mgwfbp/trial.h>

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/median.h"
#include "base/status.h"

enum { FIRST_LOOK = 2, TRIMMED = 8, MOST_FREEDOM = 400 };
enum { LENT = 4 }; /* degrees of freedom that the other candidates lend to one, at most */

/* The baseline wins if the best is clearly worse than it with a chance above this. */
static const double DOUBTFUL = 0.05;

/* A step that takes so many times the median of its turn has stalled. */
static const double STALLED = 1.75;

struct mgw_trial {
    mgw_trial_options options;
    size_t candidates;
    unsigned looks;   /* that there will be at most */
    size_t played;    /* rounds */
    size_t rounds;    /*   that count */
    size_t next_look; /* after so many of those */
    size_t steps;
    bool over;
    size_t winner;
    size_t *left; /* candidates still in, ascending */
    size_t left_count;
    size_t *order;   /* of their turns in the next round */
    size_t *known;   /* by candidate: its rounds that count */
    double *logs;    /* by candidate, then by round */
    double *scratch; /* for one candidate's rounds */
    double common;   /* variance of a round's difference, of all that are left; */
    size_t freedom;  /*   by how many degrees of freedom */
};

/* ---- Student's t ---- */

/* The chance of more than t, for whole degrees of freedom: a finite sum (Abramowitz and Stegun,
 * 26.7.3 and 26.7.4). More of them than MOST_FREEDOM make no difference. */
static double tail(double t, size_t degrees)
{
    unsigned freedom = degrees < MOST_FREEDOM ? (unsigned)degrees : MOST_FREEDOM;
    double angle = atan(t / sqrt(freedom));
    double square = cos(angle) * cos(angle);
    bool odd = freedom % 2;
    double term = odd ? cos(angle) : 1;
    double sum = 0;
    for (unsigned k = odd ? 3 : 2; k <= freedom; k += 2) {
        sum += term;
        term *= square * (k - 1) / k;
    }
    double within = odd ? (angle + sin(angle) * sum) * 2 / acos(-1) : sin(angle) * sum;
    return (1 - within) / 2;
}

/* Above which t lies with that chance. */
static double quantile(double chance, size_t freedom)
{
    double low = 0;
    double high = 1;
    while (tail(high, freedom) > chance && high < 1e12)
        high *= 2;
    for (int i = 0; i < 60; i++) {
        double middle = (low + high) / 2;
        if (tail(middle, freedom) > chance)
            low = middle;
        else
            high = middle;
    }
    return high;
}

/* ---- Life ---- */

static size_t after(size_t look)
{
    return look + (look + 3) / 4;
}

/* Numbers that look drawn, the same ones everywhere (the last steps of splitmix64). */
static uint64_t mixed(uint64_t z)
{
    z *= 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* Turns come in an order that is drawn anew for every other round, and turned around in between: so
 * what drifts evenly cancels, and what comes and goes cannot fall in step with the turns. */
static void shuffle(mgw_trial *trial)
{
    size_t *order = trial->order;
    size_t count = trial->left_count;
    uint64_t pair = trial->played / 2;
    memcpy(order, trial->left, count * sizeof *order);
    for (size_t i = count; i > 1; i--) {
        size_t other = mixed(pair << 32 | i) % i;
        size_t moved = order[i - 1];
        order[i - 1] = order[other];
        order[other] = moved;
    }
    for (size_t i = 0; trial->played % 2 && i < count / 2; i++) {
        size_t moved = order[i];
        order[i] = order[count - 1 - i];
        order[count - 1 - i] = moved;
    }
}

void mgw_trial_destroy(mgw_trial *trial)
{
    if (!trial)
        return;
    free(trial->left);
    free(trial->order);
    free(trial->known);
    free(trial->logs);
    free(trial->scratch);
    free(trial);
}

static mgw_status complete(const mgw_trial_options *given, mgw_trial_options *out, mgw_error *error)
{
    mgw_trial_options usual = MGW_TRIAL_DEFAULTS;
    *out = *given;
    out->close = given->close != 0 ? given->close : usual.close;
    out->risk = given->risk != 0 ? given->risk : usual.risk;
    out->turn_steps = given->turn_steps ? given->turn_steps : usual.turn_steps;
    out->most_rounds = given->most_rounds ? given->most_rounds : usual.most_rounds;
    if (!(out->close > 0 && out->close < 1))
        return mgw_fail(error, MGW_ERR_ARGUMENT, "trial: close is %g, not between 0 and 1",
                        given->close);
    if (!(out->risk > 0 && out->risk < 1))
        return mgw_fail(error, MGW_ERR_ARGUMENT, "trial: risk is %g, not between 0 and 1",
                        given->risk);
    if (out->turn_steps < 2)
        return mgw_fail(error, MGW_ERR_ARGUMENT, "trial: in turns of %u steps, no step counts",
                        out->turn_steps);
    return MGW_OK;
}

mgw_status mgw_trial_create(const mgw_trial_options *options, size_t candidates, mgw_trial **out,
                            mgw_error *error)
{
    mgw_trial_options o;
    mgw_status status = complete(options, &o, error);
    if (status)
        return status;
    if (candidates == 0 || candidates > SIZE_MAX / sizeof(double) / o.most_rounds)
        return mgw_fail(error, MGW_ERR_ARGUMENT, "trial: %zu candidates", candidates);
    if (o.incumbent >= candidates)
        return mgw_fail(error, MGW_ERR_ARGUMENT, "trial: incumbent %u of %zu candidates",
                        o.incumbent, candidates);
    mgw_trial *trial = calloc(1, sizeof *trial);
    if (!trial)
        return mgw_fail_memory(error, "trial");
    trial->options = o;
    trial->candidates = candidates;
    trial->left = calloc(candidates, sizeof *trial->left);
    trial->order = calloc(candidates, sizeof *trial->order);
    trial->known = calloc(candidates, sizeof *trial->known);
    trial->logs = calloc(candidates * o.most_rounds, sizeof *trial->logs);
    trial->scratch = calloc(o.most_rounds, sizeof *trial->scratch);
    if (!trial->left || !trial->order || !trial->known || !trial->logs || !trial->scratch) {
        mgw_trial_destroy(trial);
        return mgw_fail_memory(error, "trial");
    }
    trial->left_count = candidates;
    for (size_t i = 0; i < candidates; i++)
        trial->left[i] = i;
    trial->next_look = FIRST_LOOK;
    trial->looks = 1; /* when rounds are spent */
    for (size_t look = FIRST_LOOK; look < o.most_rounds; look = after(look))
        trial->looks++;
    trial->over = candidates == 1;
    shuffle(trial);
    *out = trial;
    return MGW_OK;
}

/* ---- Two candidates ---- */

typedef struct difference {
    size_t rounds;
    size_t freedom; /* degrees of; 0: there is no interval yet */
    double mean;    /* of log(one) - log(other) */
    double error;   /* of that mean: one sigma */
} difference;

/* Sorts the values: their mean without those at the ends, and its error. */
static difference estimate(double *values, size_t count)
{
    difference d = {.rounds = count};
    size_t cut = count / TRIMMED;
    size_t kept = count - 2 * cut;
    if (count == 0)
        return d;
    qsort(values, count, sizeof *values, mgw_compare_doubles);
    double sum = 0;
    for (size_t i = cut; i < count - cut; i++)
        sum += values[i];
    d.mean = sum / (double)kept;
    double winsorized =
        (sum + (double)cut * (values[cut] + values[count - 1 - cut])) / (double)count;
    double squares = (double)cut * (pow(values[cut] - winsorized, 2) +
                                    pow(values[count - 1 - cut] - winsorized, 2));
    for (size_t i = cut; i < count - cut; i++)
        squares += pow(values[i] - winsorized, 2);
    d.freedom = kept - 1;
    if (kept > 1)
        d.error = sqrt(squares / (double)(kept * (kept - 1)));
    return d;
}

static const double *logs_of(const mgw_trial *trial, size_t candidate)
{
    return trial->logs + candidate * trial->options.most_rounds;
}

/* Over the rounds that both had, by themselves: those of whoever was dropped first. */
static difference difference_of(const mgw_trial *trial, size_t one, size_t other)
{
    size_t count =
        trial->known[one] < trial->known[other] ? trial->known[one] : trial->known[other];
    const double *a = logs_of(trial, one);
    const double *b = logs_of(trial, other);
    for (size_t r = 0; r < count; r++)
        trial->scratch[r] = a[r] - b[r];
    return estimate(trial->scratch, count);
}

/* Rounds are few at first, and two of them say little of how much they differ: what the other
 * candidates show counts, too, as far as it goes. */
static difference compare(const mgw_trial *trial, size_t one, size_t other)
{
    difference d = difference_of(trial, one, other);
    double kept = (double)(d.freedom + 1);
    size_t lent = trial->freedom < LENT ? trial->freedom : LENT;
    if (d.freedom == 0 || lent == 0)
        return d;
    double variance =
        ((double)d.freedom * d.error * d.error * kept + (double)lent * trial->common) /
        (double)(d.freedom + lent);
    d.error = sqrt(variance / kept);
    d.freedom += lent;
    return d;
}

/* What those that are left show together. */
static void pool(mgw_trial *trial, size_t best)
{
    double sum = 0;
    size_t freedom = 0;
    for (size_t i = 0; i < trial->left_count; i++) {
        difference d = difference_of(trial, trial->left[i], best);
        if (trial->left[i] == best)
            continue;
        sum += (double)d.freedom * d.error * d.error * (double)(d.freedom + 1);
        freedom += d.freedom;
    }
    trial->common = freedom ? sum / (double)freedom : 0;
    /* All are compared with the same one, so that they say less than they seem to; and the only one
     * has nothing to lend to itself. */
    trial->freedom = trial->left_count > 2 ? freedom / 2 : 0;
}

/* How far to either side of the mean the truth may lie. */
static double half_width(const mgw_trial *trial, difference d)
{
    double share = trial->options.risk / (double)(trial->looks * (trial->candidates - 1));
    return d.freedom ? quantile(share, d.freedom) * d.error : INFINITY;
}

/* Of those left. */
static size_t find_best(const mgw_trial *trial)
{
    size_t best = trial->left[0];
    for (size_t i = 1; i < trial->left_count; i++)
        if (difference_of(trial, trial->left[i], best).mean < 0)
            best = trial->left[i];
    return best;
}

/* ---- Rounds ---- */

static bool is_usable(const mgw_trial *trial, const double *seconds)
{
    for (size_t i = 0; i < trial->left_count; i++)
        if (!(seconds[i] > 0 && isfinite(seconds[i])))
            return false;
    return true;
}

static void keep(mgw_trial *trial, const double *seconds)
{
    for (size_t i = 0; i < trial->left_count; i++) {
        size_t candidate = trial->order[i];
        size_t at = candidate * trial->options.most_rounds + trial->known[candidate]++;
        trial->logs[at] = log(seconds[i]);
    }
    trial->rounds++;
}

/* The chance that a candidate is better than the best so far by more than twice what is close. */
static double doubt_of(const mgw_trial *trial, size_t candidate, size_t best)
{
    difference d = compare(trial, candidate, best);
    double margin = 2 * log1p(trial->options.close);
    if (d.freedom == 0)
        return 1;
    return d.error > 0 ? tail((d.mean + margin) / d.error, d.freedom) : 0;
}

/* Doubt that is small enough: less than the risk, as the question comes again and again. */
static double patience(const mgw_trial *trial)
{
    return trial->options.risk / 4;
}

/* Whether it is surely close to the best. */
static bool is_equal(const mgw_trial *trial, size_t candidate, size_t best)
{
    difference d = compare(trial, candidate, best);
    return candidate == best || d.mean + half_width(trial, d) <= log1p(trial->options.close);
}

/* Drops those that cannot be worth while; the best's equals stay, as one of them may win. */
static void drop(mgw_trial *trial, size_t best)
{
    size_t kept = 0;
    double little = patience(trial) / (double)(trial->candidates - 1);
    for (size_t i = 0; i < trial->left_count; i++) {
        size_t candidate = trial->left[i];
        if (is_equal(trial, candidate, best) || doubt_of(trial, candidate, best) > little)
            trial->left[kept++] = candidate;
    }
    trial->left_count = kept;
}

/* Whether one of the others may still be worth while. */
static bool is_open(const mgw_trial *trial, size_t best)
{
    double doubt = 0;
    for (size_t i = 0; i < trial->left_count; i++)
        doubt += trial->left[i] == best ? 0 : doubt_of(trial, trial->left[i], best);
    return doubt > 2 * patience(trial);
}

static bool is_left(const mgw_trial *trial, size_t candidate)
{
    bool found = false;
    for (size_t i = 0; i < trial->left_count; i++)
        found = found || trial->left[i] == candidate;
    return found;
}

/* Than the best so far, however little. */
static bool may_be_better(const mgw_trial *trial, size_t candidate, size_t best)
{
    difference d = compare(trial, candidate, best);
    return d.freedom == 0 || (d.error > 0 && tail(d.mean / d.error, d.freedom) > DOUBTFUL);
}

/* The first of the best's equals; the baseline, as long as the best may be worse; and the
 * incumbent, as long as the best may be no better. */
static size_t find_winner(const mgw_trial *trial, size_t best)
{
    size_t incumbent = trial->options.incumbent;
    if (best != 0 && trial->left[0] == 0 && doubt_of(trial, 0, best) > DOUBTFUL)
        return 0;
    if (incumbent && is_left(trial, incumbent) && may_be_better(trial, incumbent, best))
        return incumbent;
    size_t i = 0;
    while (!is_equal(trial, trial->left[i], best))
        i++;
    return trial->left[i];
}

static void look(mgw_trial *trial, bool spent)
{
    size_t best = find_best(trial);
    pool(trial, best);
    drop(trial, best);
    trial->over = spent || !is_open(trial, best);
    trial->winner = find_winner(trial, best);
    while (trial->next_look <= trial->rounds)
        trial->next_look = after(trial->next_look);
}

void mgw_trial_round(mgw_trial *trial, const double *seconds)
{
    if (trial->over)
        return;
    if (is_usable(trial, seconds))
        keep(trial, seconds);
    trial->played++;
    trial->steps += trial->left_count * trial->options.turn_steps;
    bool spent = trial->played >= trial->options.most_rounds;
    if (spent || trial->rounds >= trial->next_look)
        look(trial, spent);
    shuffle(trial);
}

void mgw_trial_end(mgw_trial *trial)
{
    if (!trial->over)
        look(trial, true);
}

size_t mgw_trial_left(const mgw_trial *trial, size_t *candidates)
{
    memcpy(candidates, trial->order, trial->left_count * sizeof *candidates);
    return trial->left_count;
}

double mgw_trial_turn(double *seconds, size_t count)
{
    double sum = 0;
    size_t kept = 0;
    qsort(seconds, count, sizeof *seconds, mgw_compare_doubles);
    double most_s = count > 2 ? STALLED * seconds[(count - 1) / 2] : INFINITY;
    for (; kept < count && seconds[kept] <= most_s; kept++)
        sum += seconds[kept];
    return sum / (double)kept;
}

/* ---- What is known ---- */

bool mgw_trial_over(const mgw_trial *trial, size_t *winner)
{
    if (trial->over)
        *winner = trial->winner;
    return trial->over;
}

void mgw_trial_result(const mgw_trial *trial, size_t candidate, mgw_trial_outcome *out)
{
    size_t best = find_best(trial);
    size_t count = trial->known[candidate];
    *out = (mgw_trial_outcome){.rounds = count, .ratio = 1};
    out->left = is_left(trial, candidate);
    if (count == 0)
        return;
    memcpy(trial->scratch, logs_of(trial, candidate), count * sizeof *trial->scratch);
    out->mean_s = exp(estimate(trial->scratch, count).mean);
    if (candidate == best)
        return;
    difference d = compare(trial, candidate, best);
    double half = half_width(trial, d);
    out->ratio = exp(d.mean);
    out->width = isfinite(half) ? out->ratio * expm1(half) : 0;
}

void mgw_trial_options_of(const mgw_trial *trial, mgw_trial_options *out)
{
    *out = trial->options;
}

size_t mgw_trial_steps(const mgw_trial *trial)
{
    return trial->steps;
}
