/* DDP's bucket size that is advised: against an exhaustive sweep, and cases solved by hand. */
#include "support.h"

#include <math.h>

#include <mgwfbp/advise.h>

/* Of every size in steps of a 64th of a MiB none is more than 0.1% better than the one that is
 * named. */
static void no_bucket_size_is_better(void **unused)
{
    (void)unused;
    static const char *const traces[] = {"resnet50-b32-fp32-h200", "googlenet-b64-fp32-h200",
                                         "densenet201-b64-fp32-h200", "vit_b_16-b64-fp32-h200"};
    static const char *const clusters[] = {"paper-2-10gbe", "paper-3-56gbib", "25gbe"};
    for (size_t i = 0; i < sizeof traces / sizeof *traces * 3; i++) {
        mgw_trace *trace = NULL;
        mgw_cluster *cluster = NULL;
        mgw_cost cost;
        double cap = 0;
        double best_s = 0;
        mgw_error error = {0};
        assert_int_equal(mgw_trace_load(traces[i / 3], &trace, &error), MGW_OK);
        assert_int_equal(mgw_cluster_load(clusters[i % 3], &cluster, &error), MGW_OK);
        mgw_cluster_cost(cluster, &cost);
        assert_int_equal(mgw_advise_buckets(trace, &cost, &cap, &best_s, &error), MGW_OK);
        uint64_t step = 1 << 14;
        for (uint64_t bytes = 16 * step; bytes < mgw_trace_bytes(trace) + step; bytes += step) {
            const mgw_policy policy = {MGW_DDP, bytes, bytes};
            mgw_plan *plan = NULL;
            assert_int_equal(mgw_plan_make(trace, &cost, &policy, &plan, &error), MGW_OK);
            if (best_s > plan->iteration_s * 1.001)
                fail_msg("%s on %s: %g MiB %.6f s, %.4f MiB %.6f s", traces[i / 3], clusters[i % 3],
                         cap, best_s, (double)bytes / (1 << 20), plan->iteration_s);
            if (bytes == (uint64_t)(cap * (1 << 20)))
                assert_close(plan->iteration_s, best_s);
            mgw_plan_destroy(plan);
        }
        mgw_cluster_destroy(cluster);
        mgw_trace_destroy(trace);
    }
}

/* ---- Networks like the given one ---- */

enum { SIZES = 4 * 32 };

static double time_of(const mgw_trace *trace, mgw_line line, uint64_t bytes)
{
    const mgw_cost cost = {.of[MGW_ALL_REDUCE] = {line.a_s, line.b_s_per_byte, 0, NULL},
                           .workers = 2};
    const mgw_policy policy = {MGW_DDP, bytes, bytes};
    mgw_plan *plan = NULL;
    mgw_error error = {0};
    if (mgw_plan_make(trace, &cost, &policy, &plan, &error))
        fail_msg("%s", error.message);
    double iteration_s = plan->iteration_s;
    mgw_plan_destroy(plan);
    return iteration_s;
}

static double mean_of(const mgw_trace *trace, mgw_line line, uint64_t bytes)
{
    static const double speeds[] = {0.8, 0.9, 1, 1.1, 1.25};
    double sum_s = 0;
    for (size_t i = 0; i < 5; i++)
        for (int latency = 1; latency <= 2; latency++)
            sum_s += time_of(
                trace, (mgw_line){line.a_s * speeds[i] * latency, line.b_s_per_byte * speeds[i]},
                bytes);
    return sum_s / 10;
}

/* Of the sizes that are good on the given network, none is better on average over all ten. */
static void no_bucket_size_is_better_on_average(void **unused)
{
    (void)unused;
    uint64_t random = 5;
    for (int k = 0; k < 60; k++) {
        mgw_tensor tensors[24];
        for (size_t i = 0; i < 24; i++)
            tensors[i] = (mgw_tensor){.count = 1 + random_below(&random, 40000),
                                      .backward_s = random_unit(&random)};
        mgw_trace *trace = make_trace(1, 24, tensors);
        double bytes = (double)mgw_trace_bytes(trace);
        mgw_line line = {2 * random_unit(&random), 20 * random_unit(&random) / bytes};
        const mgw_cost cost = {.of[MGW_ALL_REDUCE] = {line.a_s, line.b_s_per_byte, 0, NULL},
                               .workers = 2};
        double cap = 0;
        double step_s = 0;
        mgw_error error = {0};
        assert_int_equal(mgw_advise_buckets(trace, &cost, &cap, &step_s, &error), MGW_OK);
        double best_s = INFINITY;
        double least_s = INFINITY;
        for (uint64_t size = 1; size < SIZES; size++)
            best_s = fmin(best_s, time_of(trace, line, size << 15));
        for (uint64_t size = 1; size < SIZES; size++)
            if (time_of(trace, line, size << 15) <= best_s * 1.0008)
                least_s = fmin(least_s, mean_of(trace, line, size << 15));
        uint64_t advised = (uint64_t)(cap * (1 << 20));
        assert_true(time_of(trace, line, advised) <= best_s * 1.0008);
        bool whole = advised % (1 << 20) == 0;
        assert_true(mean_of(trace, line, advised) <= least_s * (whole ? 1.0005 : 1 + 1e-12));
        mgw_trace_destroy(trace);
    }
}

/* ---- By hand ---- */

static mgw_trace *five(double last_s)
{
    const mgw_tensor tensors[] = {{.count = 1 << 20, .backward_s = 0.5},
                                  {.count = 1 << 18, .backward_s = 1},
                                  {.count = 1 << 18, .backward_s = 1},
                                  {.count = 1 << 18, .backward_s = 1},
                                  {.count = 1 << 18, .backward_s = last_s}};
    static const char *const names[] = {"large", "a", "b", "c", "last"};
    mgw_trace *trace = NULL;
    mgw_error error = {0};
    if (mgw_trace_create("five", MGW_F32, 0.5, 5, names, tensors, &trace, &error))
        fail_msg("%s", error.message);
    return trace;
}

/* What is advised on a line, and on a curve that is the same. */
static void expect(mgw_trace *trace, mgw_line line, double cap_mb, double iteration_s)
{
    const double sizes[] = {1 << 10, 1 << 20, 1 << 23};
    mgw_sample samples[3];
    mgw_error error = {0};
    mgw_cluster *clusters[2] = {0};
    for (size_t i = 0; i < 3; i++)
        samples[i] = (mgw_sample){(uint64_t)sizes[i], line.a_s + line.b_s_per_byte * sizes[i]};
    assert_int_equal(mgw_cluster_from_line("line", 2, &line, &clusters[0], &error), MGW_OK);
    assert_int_equal(mgw_cluster_from_samples("curve", 2, samples, 3, &clusters[1], &error),
                     MGW_OK);
    for (size_t i = 0; i < 2; i++) {
        mgw_cost cost;
        double cap = 0;
        double step_s = 0;
        mgw_cluster_cost(clusters[i], &cost);
        assert_int_equal(mgw_advise_buckets(trace, &cost, &cap, &step_s, &error), MGW_OK);
        if (cap != cap_mb)
            fail_msg("%g MiB, not %g", cap, cap_mb);
        assert_true(fabs(step_s / iteration_s - 1) < 1e-6);
        mgw_cluster_destroy(clusters[i]);
    }
    mgw_trace_destroy(trace);
}

static const mgw_line mebibyte_per_second = {1e-4, 1.0 / (1 << 20)};

/*
 * `large` (4 MiB) is sent from second 1 to second 5. The others, of 1 MiB, are ready by then, so
 * all buckets that do not wait for more end at second 9. Those of 4 MiB leave {a, b, c, last} as
 * one, which is ready just when the channel is free: on a faster network the channel would wait for
 * it. With 3 MiB, `last` is alone and nothing waits. So 3 is advised, though 4 is faster by a
 * latency on the given network.
 */
static void sizes_at_the_edge_are_not_advised(void **unused)
{
    (void)unused;
    expect(five(1), mebibyte_per_second, 3, 9.0003);
}

/*
 * The last tensor is ready at second 7. Both {a, b}, {c, last} (2 MiB) and {a, b, c}, {last} (3
 * MiB) end at second 9. But on a faster network the first must wait for the last tensor, and then
 * send two: as many buckets, and not the same.
 */
static void buckets_of_the_same_number_differ(void **unused)
{
    (void)unused;
    expect(five(3), mebibyte_per_second, 3, 9.0003);
}

/* If each message costs more than it gains, one bucket is best. */
static void one_bucket_is_advised(void **unused)
{
    (void)unused;
    expect(five(1), (mgw_line){100, 1e-9}, 8, 5 + 100 + 1e-9 * (8 << 20));
}

/* Two tensors of 2.5 MiB are best sent one by one, with any limit up to 2.5: 2 is the whole number
 * nearest to the default. */
static void whole_numbers_are_preferred(void **unused)
{
    (void)unused;
    const mgw_tensor tensors[] = {{.count = 655360, .backward_s = 1},
                                  {.count = 655360, .backward_s = 5}};
    expect(make_trace(0, 2, tensors), mebibyte_per_second, 2, 8.5001);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_bucket_size_is_better),
        cmocka_unit_test(no_bucket_size_is_better_on_average),
        cmocka_unit_test(sizes_at_the_edge_are_not_advised),
        cmocka_unit_test(buckets_of_the_same_number_differ),
        cmocka_unit_test(one_bucket_is_advised),
        cmocka_unit_test(whole_numbers_are_preferred),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
