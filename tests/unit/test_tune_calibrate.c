/* Calibration, with a scripted clock. */
#include <math.h>
#include <stdbool.h>

#include "support.h"

enum { CALLS_MOST = 4096 };

/* A machine where a collective takes a + b*M, but for what the test does to it. */
typedef struct machine {
    double a_s[MGW_COLLECTIVE_COUNT];
    double b_s_per_byte[MGW_COLLECTIVE_COUNT];
    double factor;        /* of this worker */
    double others_factor; /* of the slowest of the others */
    double warm_up;       /* how many times as long the first of a size takes */
    double outlier;       /* and every third */
    unsigned calls;
    unsigned of_size;
    mgw_collective kinds[CALLS_MOST];
    uint64_t sizes[CALLS_MOST];
    unsigned combines;
    bool may_stop;
    unsigned stops_at;       /* combine: this worker wants to end */
    unsigned others_stop_at; /* or another */
    unsigned fails_at;       /* call */
    unsigned fails_at_combine;
    double alone_s; /* the last size, undisturbed */
} machine;

static mgw_status give_up(mgw_error *error, const char *what)
{
    error->status = MGW_ERR_PEER;
    snprintf(error->message, sizeof error->message, "%s", what);
    return MGW_ERR_PEER;
}

static mgw_status time_one(void *context, mgw_collective kind, uint64_t bytes, double *seconds,
                           mgw_error *error)
{
    machine *m = context;
    bool first = !m->calls || m->sizes[m->calls - 1] != bytes || m->kinds[m->calls - 1] != kind;
    m->of_size = first ? 0 : m->of_size + 1;
    assert_true(m->calls < CALLS_MOST);
    m->kinds[m->calls] = kind;
    m->sizes[m->calls++] = bytes;
    if (m->calls == m->fails_at)
        return give_up(error, "rank 1 is gone");
    m->alone_s = m->a_s[kind] + m->b_s_per_byte[kind] * (double)bytes;
    *seconds = m->alone_s * m->factor * (first ? m->warm_up : m->of_size % 3 ? 1 : m->outlier);
    return MGW_OK;
}

static mgw_status combine(void *context, double *values, size_t sums, size_t maxima,
                          mgw_error *error)
{
    machine *m = context;
    assert_int_equal(sums, 0);
    assert_int_equal(maxima, 2 + m->may_stop); /* how long, how sure that is, and whether to stop */
    if (++m->combines == m->fails_at_combine)
        return give_up(error, "rank 2 is gone");
    values[0] = fmax(values[0], m->alone_s * m->others_factor);
    if (m->combines == m->others_stop_at)
        values[2] = 1;
    return MGW_OK;
}

static mgw_status tell(void *context, void *data, size_t bytes, mgw_error *error)
{
    (void)context;
    (void)data;
    (void)bytes;
    (void)error;
    fail_msg("nothing is told");
    return MGW_OK;
}

static machine usual_machine(void)
{
    machine m = {.factor = 1, .warm_up = 100, .outlier = 50};
    for (int kind = 0; kind < MGW_COLLECTIVE_COUNT; kind++) {
        m.a_s[kind] = 1e-3 * (1 + kind);
        m.b_s_per_byte[kind] = 1e-8 * (5 - kind);
    }
    return m;
}

static mgw_calibration usual(machine *m)
{
    return (mgw_calibration){.name = "here",
                             .least_bytes = 1024,
                             .most_bytes = 1 << 20,
                             .factor = 4,
                             .repeats = 5,
                             .kinds = 1 << MGW_ALL_REDUCE,
                             .context = m,
                             .time = time_one};
}

static mgw_cluster *calibrate(const mgw_calibration *how, machine *m, unsigned size)
{
    mgw_cluster *cluster = NULL;
    mgw_error error = {0};
    const mgw_exchange exchange = {m, 0, size, combine, tell};
    if (mgw_calibrate(how, &exchange, &cluster, &error))
        fail_msg("%s", error.message);
    return cluster;
}

/* Nothing but the fit's arithmetic between the two. */
static void assert_near(double actual, double expected)
{
    if (!(fabs(actual - expected) <= 1e-9 * fabs(expected)))
        fail_msg("%.17g is not near %.17g", actual, expected);
}

static void expect_sizes(const machine *m, unsigned repeats, const uint64_t *sizes, size_t count)
{
    assert_int_equal(m->calls, count * (repeats + 1));
    for (size_t i = 0; i < m->calls; i++)
        assert_int_equal(m->sizes[i], sizes[i / (repeats + 1)]);
    assert_int_equal(m->combines, count);
}

static bool is_over(void *context)
{
    const machine *m = context;
    return m->stops_at && m->combines + 1 >= m->stops_at;
}

/* Whoever wants to end: all do, and what was measured by then makes the cluster. */
static void test_stops(void **state)
{
    (void)state;
    for (unsigned at = 1; at <= 6; at++)
        for (int others = 0; others < 2; others++) {
            machine m = usual_machine();
            m.may_stop = true;
            *(others ? &m.others_stop_at : &m.stops_at) = at;
            mgw_calibration how = usual(&m);
            how.stops = is_over;
            how.more_sizes = 4;
            mgw_cluster *cluster = calibrate(&how, &m, 4);
            assert_int_equal(m.combines, at);
            assert_int_equal(m.sizes[m.calls - 1], 1024u << (2 * (at - 1)));
            assert_near(cluster->cost.a_s, at == 1 ? 1e-3 + 1024 * 5e-8 : 1e-3);
            mgw_cluster_destroy(cluster);
        }
}

/* The median of a size, without the warm-up; the line through them. */
static void test_line(void **state)
{
    (void)state;
    static const uint64_t sizes[] = {1024, 4096, 16384, 65536, 262144, 1048576};
    machine m = usual_machine();
    mgw_calibration how = usual(&m);
    mgw_cluster *cluster = calibrate(&how, &m, 4);
    expect_sizes(&m, 5, sizes, 6);
    assert_int_equal(cluster->kind, MGW_CLUSTER_COST);
    assert_int_equal(cluster->workers, 4);
    assert_string_equal(cluster->name, "here");
    assert_near(cluster->cost.a_s, 1e-3);
    assert_near(cluster->cost.b_s_per_byte, 5e-8);
    mgw_cluster_destroy(cluster);
}

/* The largest size is measured, whatever the factor makes of the least. */
static void test_sizes(void **state)
{
    (void)state;
    static const uint64_t sizes[] = {1000, 3000, 9000, 10000};
    machine m = usual_machine();
    mgw_calibration how = usual(&m);
    how.least_bytes = 1000;
    how.most_bytes = 10000;
    how.factor = 3;
    how.repeats = 2;
    mgw_cluster_destroy(calibrate(&how, &m, 2));
    expect_sizes(&m, 2, sizes, 4);
    m = usual_machine();
    how.most_bytes = 9000;
    mgw_cluster_destroy(calibrate(&how, &m, 2));
    expect_sizes(&m, 2, sizes, 3);
}

/* Of workers the slowest counts. */
static void test_slowest_worker(void **state)
{
    (void)state;
    machine m = usual_machine();
    m.others_factor = 3;
    mgw_calibration how = usual(&m);
    mgw_cluster *cluster = calibrate(&how, &m, 2);
    assert_near(cluster->cost.a_s, 3e-3);
    assert_near(cluster->cost.b_s_per_byte, 15e-8);
    mgw_cluster_destroy(cluster);
}

static unsigned calls_of(const machine *m, uint64_t bytes)
{
    unsigned count = 0;
    for (unsigned i = 0; i < m->calls; i++)
        count += m->sizes[i] == bytes;
    return count;
}

/* Fewer repeats, and no larger sizes, than there is time for: by what all have agreed on, so that
 * all stop at the same size. By hand, of 40 ms of which the first sizes may have 30: 6 times 1.051
 * ms, and 4 KiB may take 4.2 ms each: five of them fit. They took 1.205 ms, and what is left is
 * three times the 4.82 ms that 16 KiB may take. Then it is once the 7.28 ms of 64 KiB. */
static void test_enough(void **state)
{
    (void)state;
    static const uint64_t sizes[] = {1024, 4096, 16384, 65536};
    static const unsigned calls[] = {6, 5, 3, 0};
    for (int worker = 0; worker < 2; worker++) {
        machine m = usual_machine();
        m.factor = worker ? 1 : 0.01;
        m.others_factor = worker ? 0.01 : 1;
        mgw_calibration how = usual(&m);
        how.enough_s = 0.04;
        mgw_cluster_destroy(calibrate(&how, &m, 2));
        for (size_t i = 0; i < 4; i++)
            assert_int_equal(calls_of(&m, sizes[i]), calls[i]);
        assert_int_equal(m.calls, 14);
        m.calls = m.combines = 0;
        how.enough_s = 10; /* enough for all */
        mgw_cluster_destroy(calibrate(&how, &m, 2));
        assert_int_equal(m.calls, 6 * 6);
    }
}

/* One size, as of a model that has no more, or where the first took long enough: any size takes as
 * long. */
static void test_one_size(void **state)
{
    (void)state;
    static const uint64_t bytes[] = {100, 0};
    for (size_t i = 0; i < 2; i++) {
        machine m = usual_machine();
        mgw_calibration how = usual(&m);
        mgw_cost cost;
        how.most_bytes = bytes[i];
        mgw_cluster *cluster = calibrate(&how, &m, 2);
        expect_sizes(&m, 5, &bytes[i], 1);
        mgw_cluster_cost(cluster, &cost);
        double seconds = 1e-3 + 5e-8 * (double)bytes[i];
        assert_near(mgw_cost_seconds(&cost, MGW_ALL_REDUCE, bytes[i]), seconds);
        assert_near(mgw_cost_seconds(&cost, MGW_ALL_REDUCE, 2 * bytes[i] + 1), seconds);
        mgw_cluster_destroy(cluster);
    }
}

/* A clock that sees nothing. */
static void test_no_time_at_all(void **state)
{
    (void)state;
    machine m = {.factor = 0, .warm_up = 1, .outlier = 1};
    mgw_calibration how = usual(&m);
    mgw_cluster *cluster = calibrate(&how, &m, 1); /* alone, but a cluster has two */
    assert_int_equal(cluster->workers, 2);
    assert_near(cluster->cost.a_s, 1e-9);
    mgw_cluster_destroy(cluster);
}

/* Fewer repeats than one, and more than there is room for. */
static void test_repeats(void **state)
{
    (void)state;
    static const unsigned repeats[] = {0, 1, 1000};
    static const unsigned timed[] = {0, 1, 32};
    for (size_t i = 0; i < 3; i++) {
        machine m = usual_machine();
        m.warm_up = m.outlier = 1;
        mgw_calibration how = usual(&m);
        how.repeats = repeats[i];
        mgw_cluster *cluster = calibrate(&how, &m, 2);
        assert_int_equal(m.calls, 6 * (timed[i] + 1));
        assert_near(cluster->cost.a_s, 1e-3);
        mgw_cluster_destroy(cluster);
    }
}

/* As measured, where a line will not do. */
static void test_samples(void **state)
{
    (void)state;
    machine m = usual_machine();
    mgw_calibration how = usual(&m);
    how.keeps_samples = true;
    how.kinds |= 1 << MGW_ALL_GATHER;
    mgw_cost cost;
    mgw_cluster *cluster = calibrate(&how, &m, 2);
    assert_int_equal(cluster->kind, MGW_CLUSTER_SAMPLES);
    mgw_cluster_cost(cluster, &cost);
    static const int kinds[] = {MGW_ALL_REDUCE, MGW_ALL_GATHER};
    for (size_t k = 0; k < 2; k++) {
        const mgw_curve *curve = &cost.of[kinds[k]];
        assert_int_equal(curve->sample_count, 6);
        for (size_t i = 0; i < 6; i++) {
            assert_int_equal(curve->samples[i].bytes, (uint64_t)1024 << 2 * i);
            assert_near(curve->samples[i].seconds,
                        m.a_s[kinds[k]] +
                            m.b_s_per_byte[kinds[k]] * (double)curve->samples[i].bytes);
        }
    }
    mgw_cluster_destroy(cluster);
}

/* The halves of an all-reduce, each with a line of its own. */
static void test_halves(void **state)
{
    (void)state;
    machine m = usual_machine();
    mgw_calibration how = usual(&m);
    how.kinds |= 1 << MGW_REDUCE_SCATTER | 1 << MGW_ALL_GATHER;
    mgw_cost cost;
    mgw_cluster *cluster = calibrate(&how, &m, 2);
    mgw_cluster_cost(cluster, &cost);
    for (int kind = MGW_ALL_REDUCE; kind <= MGW_ALL_GATHER; kind++) {
        assert_near(cost.of[kind].a_s, m.a_s[kind]);
        assert_near(cost.of[kind].b_s_per_byte, m.b_s_per_byte[kind]);
    }
    assert_int_equal(m.combines, 3 * 6);
    mgw_cluster_destroy(cluster);
}

/* A parameter server's. */
static void test_push_and_pull(void **state)
{
    (void)state;
    machine m = usual_machine();
    mgw_calibration how = usual(&m);
    how.kinds = 1 << MGW_PUSH | 1 << MGW_PULL;
    mgw_cluster *cluster = calibrate(&how, &m, 2);
    assert_int_equal(cluster->kind, MGW_CLUSTER_PUSH_PULL);
    assert_near(cluster->push.a_s, m.a_s[MGW_PUSH]);
    assert_near(cluster->push.b_s_per_byte, m.b_s_per_byte[MGW_PUSH]);
    assert_near(cluster->pull.a_s, m.a_s[MGW_PULL]);
    assert_near(cluster->pull.b_s_per_byte, m.b_s_per_byte[MGW_PULL]);
    for (unsigned i = 0; i < m.calls; i++)
        assert_true(m.kinds[i] == MGW_PUSH || m.kinds[i] == MGW_PULL);
    mgw_cluster_destroy(cluster);
}

/* What fails is passed on, and nothing more is measured. */
static void test_failures(void **state)
{
    (void)state;
    for (unsigned at = 1; at <= 8; at++) {
        machine m = usual_machine();
        mgw_calibration how = usual(&m);
        mgw_cluster *cluster = NULL;
        mgw_error error = {0};
        const mgw_exchange exchange = {&m, 0, 2, combine, tell};
        m.fails_at = at;
        assert_int_equal(mgw_calibrate(&how, &exchange, &cluster, &error), MGW_ERR_PEER);
        assert_contains(error.message, "rank 1 is gone");
        assert_int_equal(m.calls, at);
        assert_null(cluster);
        m = usual_machine();
        m.fails_at_combine = at;
        mgw_status status = mgw_calibrate(&how, &exchange, &cluster, &error);
        assert_int_equal(status, at <= 6 ? MGW_ERR_PEER : MGW_OK);
        assert_int_equal(m.calls, 6 * (at < 6 ? at : 6));
        mgw_cluster_destroy(cluster);
    }
}

/* What would never end. */
static void test_refusals(void **state)
{
    (void)state;
    const mgw_calibration wrong[] = {
        {.name = "n", .least_bytes = 0, .most_bytes = 64, .factor = 4, .repeats = 3},
        {.name = "n", .least_bytes = 1, .most_bytes = 64, .factor = 1, .repeats = 3},
        {.name = "n", .least_bytes = 1, .most_bytes = 64, .factor = 0, .repeats = 3},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        machine m = usual_machine();
        mgw_exchange exchange = {&m, 0, 2, combine, tell};
        mgw_calibration how = wrong[i];
        mgw_cluster *cluster = NULL;
        mgw_error error = {0};
        how.kinds = 1u << MGW_ALL_REDUCE;
        how.context = &m;
        how.time = time_one;
        assert_int_equal(mgw_calibrate(&how, &exchange, &cluster, &error), MGW_ERR_ARGUMENT);
        assert_null(cluster);
        assert_int_equal(m.calls, 0);
        assert_contains(error.message, "calibration");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stops),          cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_line),           cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_slowest_worker), cmocka_unit_test(test_enough),
        cmocka_unit_test(test_one_size),       cmocka_unit_test(test_no_time_at_all),
        cmocka_unit_test(test_repeats),        cmocka_unit_test(test_samples),
        cmocka_unit_test(test_halves),         cmocka_unit_test(test_push_and_pull),
        cmocka_unit_test(test_failures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
