/* The sequential test: what it drops, when it ends, and who wins. */
#include <math.h>

#include "support.h"

static mgw_trial *make(mgw_trial_options options, size_t candidates)
{
    mgw_trial *trial = NULL;
    mgw_error error = {0};
    if (mgw_trial_create(&options, candidates, &trial, &error))
        fail_msg("%s", error.message);
    return trial;
}

static mgw_trial_outcome result_of(const mgw_trial *trial, size_t candidate)
{
    mgw_trial_outcome out;
    mgw_trial_result(trial, candidate, &out);
    return out;
}

/* A number of mean 0 and variance 1. */
static double normal(uint64_t *state)
{
    double sum = -6;
    for (int i = 0; i < 12; i++)
        sum += random_unit(state);
    return sum;
}

enum { MOST = 8 };

/* A round in which candidate i takes true_s[i], with noise. */
static void play(mgw_trial *trial, const double *true_s, double noise, uint64_t *random)
{
    size_t order[MOST];
    double seconds[MOST];
    size_t count = mgw_trial_left(trial, order);
    for (size_t i = 0; i < count; i++)
        seconds[i] = true_s[order[i]] * exp(noise * normal(random));
    mgw_trial_round(trial, seconds);
}

static size_t play_all(mgw_trial *trial, const double *true_s, double noise, uint64_t *random)
{
    size_t winner = SIZE_MAX;
    unsigned rounds = 0;
    mgw_trial_options o;
    mgw_trial_options_of(trial, &o);
    for (; !mgw_trial_over(trial, &winner); rounds++)
        play(trial, true_s, noise, random);
    assert_true(rounds <= o.most_rounds);
    return winner;
}

static void test_clear(void **unused)
{
    (void)unused;
    static const double true_s[] = {1.0, 0.8, 1.3, 0.9};
    for (uint64_t seed = 0; seed < 50; seed++) {
        uint64_t random = seed;
        mgw_trial *trial = make((mgw_trial_options){0}, 4);
        assert_int_equal(play_all(trial, true_s, 0.03, &random), 1);
        assert_false(result_of(trial, 2).left);
        assert_true(result_of(trial, 1).left);
        assert_true(result_of(trial, 2).rounds < 30);
        assert_true(fabs(result_of(trial, 2).ratio - 1.3 / 0.8) < 0.15);
        assert_true(fabs(result_of(trial, 1).mean_s - 0.8) < 0.04);
        assert_true(result_of(trial, 1).ratio == 1 && result_of(trial, 1).width == 0);
        mgw_trial_destroy(trial);
    }
}

/* ---- By hand ---- */

/* Rounds of exact numbers, each factor given in turn to the one candidate beside the baseline. */
static void rounds_of(mgw_trial *trial, const double *ratios, size_t count)
{
    for (size_t r = 0; r < count; r++) {
        size_t order[2];
        double seconds[2];
        assert_int_equal(mgw_trial_left(trial, order), 2);
        for (size_t i = 0; i < 2; i++)
            seconds[i] = order[i] ? 0.5 * ratios[r] : 0.5;
        mgw_trial_round(trial, seconds);
    }
}

/* Without trimming, the interval is the textbook's: t of 0.025 with two degrees of freedom is
 * 4.302653, and there is one look at one candidate. */
static void test_interval(void **unused)
{
    (void)unused;
    static const double ratios[] = {1.02, 1.04, 1.09};
    mgw_trial *trial = make((mgw_trial_options){.risk = 0.025, .most_rounds = 3}, 2);
    rounds_of(trial, ratios, 3);
    double mean = 0;
    double squares = 0;
    for (size_t r = 0; r < 3; r++)
        mean += log(ratios[r]) / 3;
    for (size_t r = 0; r < 3; r++)
        squares += pow(log(ratios[r]) - mean, 2);
    mgw_trial_outcome out = result_of(trial, 1);
    double half = log1p(out.width / out.ratio);
    assert_true(fabs(out.ratio / exp(mean) - 1) < 1e-12);
    assert_true(fabs(half / (4.302653 * sqrt(squares / 2 / 3)) - 1) < 1e-6);
    size_t winner = 2;
    assert_true(mgw_trial_over(trial, &winner)); /* rounds are spent */
    assert_int_equal(winner, 0);
    mgw_trial_destroy(trial);
}

/* Of sixteen, the two largest and least are left out of the mean, and count as the next ones in the
 * variance. There are looks after 3, 4, 5, 7, 9, 12, 15 and 16 rounds, of which each has an eighth
 * of the risk; t of 0.005 with eleven degrees of freedom is 3.105807. */
static void test_trimmed(void **unused)
{
    (void)unused;
    static const double ratios[] = {0.95, 9.0, 0.96, 0.97, 0.2, 0.98, 0.99, 1.00,
                                    1.01, 3.0, 1.02, 1.03, 0.4, 1.04, 1.05, 1.06};
    static const double sorted[] = {0.95, 0.95, 0.95, 0.96, 0.97, 0.98, 0.99, 1.00,
                                    1.01, 1.02, 1.03, 1.04, 1.05, 1.06, 1.06, 1.06};
    mgw_trial *trial = make((mgw_trial_options){.risk = 0.04, .most_rounds = 16}, 2);
    rounds_of(trial, ratios, 16);
    double mean = 0;
    double winsorized = 0;
    double squares = 0;
    for (size_t r = 2; r < 14; r++)
        mean += log(sorted[r]) / 12;
    for (size_t r = 0; r < 16; r++)
        winsorized += log(sorted[r]) / 16;
    for (size_t r = 0; r < 16; r++)
        squares += pow(log(sorted[r]) - winsorized, 2);
    mgw_trial_outcome out = result_of(trial, 1);
    assert_true(fabs(out.ratio / exp(mean) - 1) < 1e-12);
    double half = log1p(out.width / out.ratio);
    assert_true(fabs(half / (3.105807 * sqrt(squares / 12 / 11)) - 1) < 1e-6);
    mgw_trial_destroy(trial);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_clear),
                                       cmocka_unit_test(test_interval),
                                       cmocka_unit_test(test_trimmed)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
