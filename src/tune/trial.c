/*
 * A sequential test that finds which of several candidates takes the least time per step.
 *
 * Candidates are compared within rounds, by the logarithm of the ratio of their step times. So
 * drift that affects all candidates cancels, and noise proportional to the step time has the same
 * weight for all. The estimate is the mean of these differences without the largest and smallest
 * eighth; its error comes from the winsorized variance (Tukey and McLaughlin). So a stall neither
 * shifts the mean nor, from eight rounds on, widens the interval. Intervals are Student's t with
 * the remaining degrees of freedom. While there are few rounds, the variance is pooled with that of
 * the other candidates. Looks come at round numbers that grow by a quarter. At a look, candidates
 * are dropped if the probability that they are better than the best by more than twice `close` is
 * negligible, whether they are worse or equal: it does not matter which of two equal ones is
 * better. The trial is over when these probabilities add up to less than half of `risk`. At the
 * end, the baseline wins if it is left and the best may be worse than it by more than twice
 * `close`. Otherwise the winner is the first candidate that is surely within `close` of the best.
 * These intervals divide the risk among all looks and candidates (Bonferroni, valid under any
 * dependence).
 */
#include <mgwfbp/trial.h>

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/median.h"
#include "base/status.h"

enum { FIRST_LOOK = 2, TRIMMED = 8, MOST_FREEDOM = 400 };
enum { LENT = 4 }; /* degrees of freedom pooled from the other candidates, at most */

/* The baseline wins if the probability that the best is clearly worse exceeds this. */
static const double DOUBTFUL = 0.05;

/* A step that takes longer than this multiple of the median of its turn has stalled. */
static const double STALLED = 1.75;

struct mgw_trial {
    mgw_trial_options options;
    size_t candidates;
    unsigned looks;   /* maximum number of looks */
    size_t played;    /* rounds so far */
    size_t rounds;    /*   of which count */
    size_t next_look; /* number of counted rounds at the next look */
    size_t steps;
    bool over;
    size_t winner;
    size_t *left; /* candidates still in, ascending */
    size_t left_count;
    size_t *order;   /* of their turns in the next round */
    size_t *known;   /* by candidate: its counted rounds */
    double *logs;    /* by candidate, then by round */
    double *scratch; /* for one candidate's rounds */
    double common;   /* variance of a round's difference, pooled over the candidates left; */
    size_t freedom;  /*   its degrees of freedom */
};

/* ---- Student's t ---- */

/* The upper tail probability of t for integer degrees of freedom, as a finite sum (Abramowitz and
 * Stegun, 26.7.3 and 26.7.4). Above MOST_FREEDOM, more degrees make no difference. */
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

/* The value that t exceeds with this probability. */
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

/* ---- Creating ---- */

static size_t after(size_t look)
{
    return look + (look + 3) / 4;
}

/* The order of turns is drawn at random (the same on all workers) for every second round, and
 * reversed for the round after it. So linear drift cancels, and periodic disturbances cannot
 * synchronize with the turns. */
static void shuffle(mgw_trial *trial)
{
    size_t *order = trial->order;
    size_t count = trial->left_count;
    uint64_t pair = trial->played / 2;
    memcpy(order, trial->left, count * sizeof *order);
    for (size_t i = count; i > 1; i--) {
        size_t other = mgw_mix(pair << 32 | i) % i;
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
    trial->looks = 1; /* at the last round */
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
    size_t freedom; /* degrees of freedom; 0: no interval yet */
    double mean;    /* of log(one) - log(other) */
    double error;   /* standard error of that mean */
} difference;

/* Sorts the values, and returns their trimmed mean with its error. */
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

/* The difference over the rounds that both candidates had, without pooling. */
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

/* Two or three rounds say little about their variance, so it is pooled with that of the other
 * candidates. */
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

/* Pools the variance over the candidates that are left. */
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
    /* All are compared with the same candidate, so the degrees of freedom count half. With two
     * candidates there is nothing to pool. */
    trial->freedom = trial->left_count > 2 ? freedom / 2 : 0;
}

/* Half the width of the confidence interval. */
static double half_width(const mgw_trial *trial, difference d)
{
    double share = trial->options.risk / (double)(trial->looks * (trial->candidates - 1));
    return d.freedom ? quantile(share, d.freedom) * d.error : INFINITY;
}

/* The best of those that are left. */
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

/* The probability that a candidate is better than the best so far by more than twice `close`. */
static double doubt_of(const mgw_trial *trial, size_t candidate, size_t best)
{
    difference d = compare(trial, candidate, best);
    double margin = 2 * log1p(trial->options.close);
    if (d.freedom == 0)
        return 1;
    return d.error > 0 ? tail((d.mean + margin) / d.error, d.freedom) : 0;
}

/* Probabilities below this are negligible: less than the risk, since the test is repeated at every
 * look. */
static double patience(const mgw_trial *trial)
{
    return trial->options.risk / 4;
}

/* Whether the candidate is surely within `close` of the best. */
static bool is_equal(const mgw_trial *trial, size_t candidate, size_t best)
{
    difference d = compare(trial, candidate, best);
    return candidate == best || d.mean + half_width(trial, d) <= log1p(trial->options.close);
}

/* Drops candidates that cannot be worthwhile. Equals of the best stay, since one of them may win.
 */
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

/* Whether one of the others may still be worthwhile. */
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

/* Whether the candidate may be better than the best so far, by any amount. */
static bool may_be_better(const mgw_trial *trial, size_t candidate, size_t best)
{
    difference d = compare(trial, candidate, best);
    return d.freedom == 0 || (d.error > 0 && tail(d.mean / d.error, d.freedom) > DOUBTFUL);
}

/* The baseline, if the best may be worse than it; the incumbent, if the best may be no better;
 * otherwise the first equal of the best. */
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

/* ---- Results ---- */

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
