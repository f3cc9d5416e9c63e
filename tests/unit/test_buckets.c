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
        cmocka_unit_test(sizes_at_the_edge_are_not_advised),
        cmocka_unit_test(buckets_of_the_same_number_differ),
        cmocka_unit_test(one_bucket_is_advised),
        cmocka_unit_test(whole_numbers_are_preferred),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
