/* The fit of a and b, T(M) on curves, and the algorithms' formulas. */
#include <math.h>

#include "support.h"

static void exact_lines_are_found(void **unused)
{
    (void)unused;
    uint64_t state = 11;
    for (int i = 0; i < 2000; i++) {
        double a = random_below(&state, 8) ? pow(10, -7 + 5 * random_unit(&state)) : 0;
        double b = random_below(&state, 8) || a == 0 ? pow(10, -12 + 4 * random_unit(&state)) : 0;
        mgw_sample samples[21];
        for (int k = 0; k <= 20; k++) {
            uint64_t bytes = (uint64_t)1024 << k; /* 1 KiB to 1 GiB */
            samples[k] = (mgw_sample){bytes, a + b * (double)bytes};
        }
        mgw_fit fit;
        assert_int_equal(mgw_fit_line(samples, 21, &fit, NULL), MGW_OK);
        assert_true(fabs(fit.line.a_s - a) <= 1e-9 * (a + b * 1024));
        assert_true(fabs(fit.line.b_s_per_byte - b) <= 1e-9 * (b + a / 1024));
        assert_true(fit.max_relative_error < 1e-9);
        assert_true(fit.r2 > 1 - 1e-9);
    }
}

/* Whatever was measured: a, b >= 0, and no pair nearby has a smaller sum of squares. */
static double squares(const mgw_sample *samples, size_t count, double a, double b)
{
    double sum = 0;
    for (size_t i = 0; i < count; i++) {
        double e = (a + b * (double)samples[i].bytes - samples[i].seconds) / samples[i].seconds;
        sum += e * e;
    }
    return sum;
}

static void the_fit_is_a_minimum(void **unused)
{
    (void)unused;
    uint64_t state = 12;
    for (int i = 0; i < 3000; i++) {
        mgw_sample samples[30];
        size_t count = 2 + random_below(&state, 28);
        for (size_t k = 0; k < count; k++)
            samples[k] =
                (mgw_sample){k == 0 ? 0 : random_bits(&state) >> (34 + random_below(&state, 24)),
                             pow(10, -6 + 5 * random_unit(&state))};
        mgw_fit fit;
        if (mgw_fit_line(samples, count, &fit, NULL))
            continue; /* all of one size */
        double a = fit.line.a_s;
        double b = fit.line.b_s_per_byte;
        assert_true(a >= 0 && b >= 0 && isfinite(a) && isfinite(b));
        double best = squares(samples, count, a, b);
        double step_a = a > 0 ? a * 1e-4 : 1e-9;
        double step_b = b > 0 ? b * 1e-4 : 1e-15;
        for (int da = -1; da <= 1; da++)
            for (int db = -1; db <= 1; db++)
                if (a + da * step_a >= 0 && b + db * step_b >= 0)
                    assert_true(squares(samples, count, a + da * step_a, b + db * step_b) >=
                                best * (1 - 1e-9));
    }
}

/* Plain least squares of the same samples, which only sees the large sizes. */
static double plain_a(const mgw_sample *samples, size_t count)
{
    double x = 0, t = 0, xx = 0, xt = 0, n = (double)count;
    for (size_t i = 0; i < count; i++) {
        double size = (double)samples[i].bytes;
        x += size;
        t += samples[i].seconds;
        xx += size * size;
        xt += size * samples[i].seconds;
    }
    double b = (n * xt - x * t) / (n * xx - x * x);
    return (t - b * x) / n;
}

/* A curve measured with Open MPI: past the caches every byte costs more, so a line bends below 0.
 */
static void a_measured_curve_stays_sane(void **unused)
{
    (void)unused;
    mgw_import about;
    mgw_cluster *cluster = NULL;
    mgw_error error = {0};
    if (mgw_cluster_import_file(FIXTURES "/osu_allreduce_full.txt", 2, &about, &cluster, &error))
        fail_msg("%s", error.message);
    assert_true(plain_a(cluster->samples, cluster->sample_count) < -5e-4);
    assert_true(cluster->cost.a_s > 1e-7 && cluster->cost.a_s < 1e-4);
    assert_true(cluster->cost.b_s_per_byte > 0);
    mgw_cluster_destroy(cluster);
}

static void bad_samples_are_refused(void **unused)
{
    (void)unused;
    mgw_fit fit;
    mgw_error error = {0};
    mgw_sample same[] = {{8, 1}, {8, 2}};
    mgw_sample zero[] = {{8, 1}, {16, 0}};
    mgw_sample nan[] = {{8, 1}, {16, NAN}};
    assert_int_equal(mgw_fit_line(same, 2, &fit, &error), MGW_ERR_INPUT);
    assert_contains(error.message, "two different sizes");
    assert_int_equal(mgw_fit_line(same, 1, &fit, &error), MGW_ERR_INPUT);
    assert_int_equal(mgw_fit_line(zero, 2, &fit, &error), MGW_ERR_INPUT);
    assert_contains(error.message, "16 bytes: its time must be between");
    assert_int_equal(mgw_fit_line(nan, 2, &fit, &error), MGW_ERR_INPUT);
}

static void curves_by_hand(void **unused)
{
    (void)unused;
    mgw_sample samples[] = {{10, 2}, {20, 3}, {40, 3}, {50, 8}};
    mgw_cost cost = {.of[MGW_ALL_REDUCE] = {.samples = samples, .sample_count = 4}};
    static const struct {
        uint64_t bytes;
        double seconds;
    } expected[] = {{0, 2}, {10, 2}, {15, 2.5}, {20, 3}, {30, 3}, {45, 5.5}, {50, 8}, {60, 9.5}};
    /* the last: from 10 on, which is the last quarter's, it rose by 6 over 40 */
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++)
        assert_close(mgw_cost_seconds(&cost, MGW_ALL_REDUCE, expected[i].bytes),
                     expected[i].seconds);
}

/* Noisy samples in any order: the curve never falls, is never negative, keeps the overall mean. */
static void curves_never_fall(void **unused)
{
    (void)unused;
    uint64_t state = 13;
    for (int i = 0; i < 500; i++) {
        mgw_sample samples[40];
        size_t count = 2 + random_below(&state, 38);
        for (size_t k = 0; k < count; k++)
            samples[k] =
                (mgw_sample){k < 2 ? k : random_below(&state, 1000), 1e-6 + random_unit(&state)};
        mgw_cluster *cluster = NULL;
        assert_int_equal(mgw_cluster_from_samples("noisy", 4, samples, count, &cluster, NULL),
                         MGW_OK);
        mgw_cost cost;
        mgw_cluster_cost(cluster, &cost);
        double before = 0;
        for (uint64_t bytes = 0; bytes < 3000; bytes++) {
            double now = mgw_cost_seconds(&cost, MGW_ALL_REDUCE, bytes);
            assert_true(now >= before && isfinite(now));
            before = now;
        }
        assert_true(mgw_cost_seconds(&cost, MGW_ALL_REDUCE, INT64_MAX) >= before);
        mgw_cluster_destroy(cluster);
    }
}

/* Between samples far apart, rounding alone could carry the curve past the next sample. */
static void rounding_does_not_make_curves_fall(void **unused)
{
    (void)unused;
    uint64_t state = 14;
    for (int i = 0; i < 100000; i++) {
        uint64_t bytes = (uint64_t)1 << 52;
        mgw_sample samples[] = {
            {random_below(&state, 100), random_unit(&state)},
            {bytes + random_below(&state, bytes), 1 + random_unit(&state)},
        };
        mgw_cost cost = {.of[MGW_ALL_REDUCE] = {.samples = samples, .sample_count = 2}};
        assert_true(mgw_cost_seconds(&cost, MGW_ALL_REDUCE, samples[1].bytes - 1) <=
                    samples[1].seconds);
    }
}

static void algorithms_by_hand(void **unused)
{
    (void)unused;
    /* alpha 3, beta 5, gamma 7, 8 workers: log N = 3 */
    mgw_link link = {3, 5, 7};
    static const struct {
        mgw_algorithm algorithm;
        unsigned servers;
        double a, b;
    } expected[] = {
        {MGW_BINARY_TREE, 1, 18, 51},
        {MGW_RECURSIVE_DOUBLING, 1, 9, 36},
        {MGW_RECURSIVE_HALVING_DOUBLING, 1, 18, 10 - 17.0 / 8 + 7},
        {MGW_DOUBLE_BINARY_TREES, 1, 18, 12},
        {MGW_RING, 1, 42, 14.0 / 8 * 5 + 7.0 / 8 * 7},
        /* one server: 8 messages in and out, 7 sums; four: a quarter; sixteen: the worker's own
           link takes a message's worth, a sixteenth of the sums */
        {MGW_PARAMETER_SERVER, 1, 6, 80 + 49},
        {MGW_PARAMETER_SERVER, 4, 6, 20 + 49.0 / 4},
        {MGW_PARAMETER_SERVER, 16, 6, 10 + 49.0 / 16},
    };
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++) {
        mgw_line line;
        assert_int_equal(
            mgw_algorithm_line(expected[i].algorithm, &link, 8, expected[i].servers, &line, NULL),
            MGW_OK);
        assert_close(line.a_s, expected[i].a);
        assert_close(line.b_s_per_byte, expected[i].b);
    }
}

static void links_are_the_inverse(void **unused)
{
    (void)unused;
    for (int g = 0; g < MGW_ALGORITHM_COUNT; g++)
        for (unsigned workers = 2; workers <= 2048; workers *= 2) {
            mgw_line line = {9.72e-4, 1.97e-9};
            mgw_line again;
            mgw_link link;
            mgw_algorithm algorithm = (mgw_algorithm)g;
            assert_int_equal(mgw_algorithm_link(algorithm, &line, workers, 2, &link, NULL), MGW_OK);
            assert_int_equal(mgw_algorithm_line(algorithm, &link, workers, 2, &again, NULL),
                             MGW_OK);
            assert_close(again.a_s, line.a_s);
            assert_close(again.b_s_per_byte, line.b_s_per_byte);
        }
}

static void impossible_numbers_of_workers(void **unused)
{
    (void)unused;
    mgw_link link = {1, 1, 1};
    mgw_line line;
    mgw_error error = {0};
    for (int g = 0; g < MGW_ALGORITHM_COUNT; g++) {
        mgw_algorithm algorithm = (mgw_algorithm)g;
        assert_int_equal(mgw_algorithm_line(algorithm, &link, 0, 1, &line, &error),
                         MGW_ERR_ARGUMENT);
        assert_int_equal(mgw_algorithm_line(algorithm, &link, 1, 1, &line, &error),
                         MGW_ERR_ARGUMENT);
        assert_contains(error.message, "workers");
        bool any = algorithm == MGW_RING || algorithm == MGW_PARAMETER_SERVER;
        assert_int_equal(mgw_algorithm_line(algorithm, &link, 12, 1, &line, &error),
                         any ? MGW_OK : MGW_ERR_ARGUMENT);
    }
    assert_int_equal(mgw_algorithm_line(MGW_BINARY_TREE, &link, 12, 1, &line, &error),
                     MGW_ERR_ARGUMENT);
    assert_contains(error.message, "power of two");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exact_lines_are_found),
        cmocka_unit_test(the_fit_is_a_minimum),
        cmocka_unit_test(a_measured_curve_stays_sane),
        cmocka_unit_test(bad_samples_are_refused),
        cmocka_unit_test(curves_by_hand),
        cmocka_unit_test(curves_never_fall),
        cmocka_unit_test(rounding_does_not_make_curves_fall),
        cmocka_unit_test(algorithms_by_hand),
        cmocka_unit_test(links_are_the_inverse),
        cmocka_unit_test(impossible_numbers_of_workers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
