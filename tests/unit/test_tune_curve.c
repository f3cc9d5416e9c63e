/*
 * Calibration against curves that are known: lines, concave and convex ones, and ones that jump,
 * under noise.
 *
 *     test_tune_curve            what must hold
 *     test_tune_curve --table    how far each kind of curve was missed, and what that took
 */
#include <math.h>
#include <stdbool.h>

#include "support.h"

typedef enum shape { LINE, CONCAVE, CONVEX, JUMP, GPU, SHAPES } shape;

static const char *const shape_names[] = {"a line", "concave", "convex", "a jump", "of a GPU"};

enum { LEAST = 1024, MOST = 64 << 20, SIZES = 400 };

/* A machine whose T(M) is known, and whose clock is not quite right. */
typedef struct machine {
    uint64_t random;
    shape of;
    double a_s;
    double b_s_per_byte;
    double
        bend; /* concave: the power of M; convex: how many times b behind the knee; jump: times */
    double where; /* the bytes of the knee, or of the jump */
    double noise; /* standard deviation, as a share */
    unsigned calls;
    double spent_s;
} machine;

static double gauss(uint64_t *random)
{
    double sum = 0;
    for (int i = 0; i < 12; i++)
        sum += random_unit(random);
    return sum - 6;
}

/* All-reduces of two workers that share an H200, over sockets: on logarithmic axes. */
static double gpu_s(double bytes)
{
    static const double kib[] = {1, 4, 16, 64, 128, 256, 1024, 4096, 65536};
    static const double us[] = {67.5, 67.5, 92, 151, 190, 260, 537, 1650, 23700};
    double x = bytes / 1024;
    size_t i = 0;
    while (i + 2 < sizeof kib / sizeof *kib && kib[i + 1] < x)
        i++;
    double along = (log(x) - log(kib[i])) / (log(kib[i + 1]) - log(kib[i]));
    return 1e-6 * exp(log(us[i]) + along * (log(us[i + 1]) - log(us[i])));
}

static double true_s(const machine *m, uint64_t bytes)
{
    double x = (double)bytes;
    double line_s = m->a_s + m->b_s_per_byte * x;
    switch (m->of) {
    case CONCAVE:
        return m->a_s + m->b_s_per_byte * pow((double)MOST, 1 - m->bend) * pow(x, m->bend);
    case CONVEX:
        return line_s + m->b_s_per_byte * (m->bend - 1) * fmax(x - m->where, 0);
    case JUMP:
        return line_s * (x >= m->where ? m->bend : 1);
    case GPU:
        return gpu_s(x);
    default:
        return line_s;
    }
}

static mgw_status time_one(void *context, mgw_collective kind, uint64_t bytes, double *seconds,
                           mgw_error *error)
{
    machine *m = context;
    (void)kind;
    (void)error;
    double factor = exp(m->noise * gauss(&m->random));
    factor *= m->noise > 0 && random_below(&m->random, 20) == 0 ? 3 : 1; /* something else ran */
    *seconds = true_s(m, bytes) * factor;
    m->spent_s += *seconds;
    m->calls++;
    return MGW_OK;
}

/* Two equal workers. */
static mgw_status combine(void *context, double *values, size_t sums, size_t maxima,
                          mgw_error *error)
{
    (void)context;
    (void)values;
    (void)sums;
    (void)maxima;
    (void)error;
    return MGW_OK;
}

static machine any_machine(uint64_t seed, shape of, double noise)
{
    machine m = {.random = seed, .of = of, .noise = noise};
    double *b = &m.b_s_per_byte;
    m.a_s = 1e-5 * exp(4 * random_unit(&m.random));
    *b = m.a_s / (double)LEAST / exp(2 + 6 * random_unit(&m.random));
    m.where = LEAST * exp(log((double)MOST / LEAST) * (0.1 + 0.8 * random_unit(&m.random)));
    m.bend =
        of == CONCAVE ? 0.6 + 0.3 * random_unit(&m.random) : 1.3 + 1.2 * random_unit(&m.random);
    return m;
}

static mgw_calibration usual(machine *m) /* as the engine's */
{
    return (mgw_calibration){.name = "here",
                             .least_bytes = LEAST,
                             .most_bytes = MOST,
                             .factor = 4,
                             .more_sizes = 8,
                             .repeats = 3,
                             .most_repeats = 9,
                             .kinds = 1 << MGW_ALL_REDUCE,
                             .context = m,
                             .time = time_one};
}

/* As it was before: sizes four times as large each, five of each, and the line that fits. */
static mgw_calibration plain(machine *m)
{
    mgw_calibration how = usual(m);
    how.more_sizes = how.most_repeats = 0;
    how.repeats = 5;
    how.keeps_samples = true;
    return how;
}

static mgw_cluster *calibrate(const mgw_calibration *how)
{
    mgw_cluster *cluster = NULL;
    mgw_error error = {0};
    const mgw_exchange exchange = {.size = 2, .combine = combine};
    if (mgw_calibrate(how, &exchange, &cluster, &error))
        fail_msg("%s", error.message);
    return cluster;
}

/* How far what was learned is from the truth, over sizes that are equally likely by their
 * logarithm: the mean, and the share of sizes that are off by more than 10%. */
typedef struct miss {
    double mean;
    double far;
} miss;

static miss miss_of(const machine *m, const mgw_cluster *cluster, bool line)
{
    miss out = {0};
    mgw_cost cost;
    mgw_cluster_cost(cluster, &cost);
    if (line)
        cost.of[MGW_ALL_REDUCE].sample_count = 0;
    for (int i = 0; i < SIZES; i++) {
        uint64_t bytes = (uint64_t)(LEAST * exp(log((double)MOST / LEAST) * (i + 0.5) / SIZES));
        double truth_s = true_s(m, bytes);
        double off = fabs(mgw_cost_seconds(&cost, MGW_ALL_REDUCE, bytes) / truth_s - 1);
        out.mean += off / SIZES;
        out.far += (off > 0.1) / (double)SIZES;
    }
    return out;
}

/* One kind of curve, over many machines. */
typedef struct total {
    miss now;
    miss before; /* a line through plain samples */
    double calls, calls_before;
    double spent_s, spent_before_s;
    double curves; /* how many were kept as such */
} total;

static total try_shape(shape of, double noise, unsigned runs)
{
    total t = {0};
    for (unsigned seed = 1; seed <= runs; seed++) {
        machine m = any_machine(seed, of, noise);
        machine again = m;
        mgw_calibration how = usual(&m);
        mgw_calibration how_before = plain(&again);
        mgw_cluster *now = calibrate(&how);
        mgw_cluster *before = calibrate(&how_before);
        miss a = miss_of(&m, now, false);
        miss b = miss_of(&again, before, true);
        t.now.mean += a.mean / runs;
        t.now.far += a.far / runs;
        t.before.mean += b.mean / runs;
        t.before.far += b.far / runs;
        t.calls += (double)m.calls / runs;
        t.calls_before += (double)again.calls / runs;
        t.spent_s += m.spent_s / runs;
        t.spent_before_s += again.spent_s / runs;
        t.curves += (now->kind == MGW_CLUSTER_SAMPLES) / (double)runs;
        mgw_cluster_destroy(now);
        mgw_cluster_destroy(before);
    }
    return t;
}

static void print_table(void)
{
    printf("curve | noise | kept as a curve | mean error | off by more than 10%% | collectives | "
           "time, of before\n");
    for (int noise = 0; noise <= 10; noise += 5)
        for (int of = 0; of < SHAPES; of++) {
            total t = try_shape((shape)of, noise / 100., 200);
            printf("%s | %d%% | %.0f%% | %.1f%% (%.1f%%) | %.1f%% (%.1f%%) | %.0f (%.0f) | %.2f\n",
                   shape_names[of], noise, 100 * t.curves, 100 * t.now.mean, 100 * t.before.mean,
                   100 * t.now.far, 100 * t.before.far, t.calls, t.calls_before,
                   t.spent_s / t.spent_before_s);
        }
}

/* ---- Tests ---- */

/* Without noise: a line is one, and found; nothing is measured between its sizes. */
static void test_lines(void **state)
{
    (void)state;
    for (unsigned seed = 1; seed <= 100; seed++) {
        machine m = any_machine(seed, LINE, 0);
        mgw_calibration how = usual(&m);
        mgw_cluster *cluster = calibrate(&how);
        assert_int_equal(cluster->kind, MGW_CLUSTER_COST);
        assert_int_equal(m.calls, 9 * 4);
        assert_true(miss_of(&m, cluster, false).mean < 1e-9);
        mgw_cluster_destroy(cluster);
    }
}

/* Bounds by kind of curve: the mean error, and how many sizes may be off by more than 10%. */
static void test_shapes(void **state)
{
    (void)state;
    static const struct {
        shape of;
        double noise, mean, far;
    } bounds[] = {
        {LINE, 0.05, 0.02, 0.01}, {CONCAVE, 0, 0.01, 0.001},  {CONCAVE, 0.05, 0.03, 0.02},
        {CONVEX, 0, 0.01, 0.005}, {CONVEX, 0.05, 0.03, 0.03}, {JUMP, 0, 0.02, 0.05},
        {JUMP, 0.05, 0.03, 0.06}, {GPU, 0, 0.02, 0.01},       {GPU, 0.05, 0.03, 0.03},
    };
    for (size_t i = 0; i < sizeof bounds / sizeof *bounds; i++) {
        total t = try_shape(bounds[i].of, bounds[i].noise, 100);
        if (!(t.now.mean <= bounds[i].mean && t.now.far <= bounds[i].far))
            fail_msg("%s, noise %g: mean error %g, %g of sizes off by more than 10%%",
                     shape_names[bounds[i].of], bounds[i].noise, t.now.mean, t.now.far);
        if (bounds[i].of != LINE)
            assert_true(t.now.mean < t.before.mean);
    }
}

/* In about half a second, however slow; and what was reached is known. */
static void test_budget(void **state)
{
    (void)state;
    unsigned cut = 0;
    unsigned looked = 0;
    unsigned missed = 0; /* two of three were held up */
    for (unsigned seed = 1; seed <= 300; seed++) {
        machine m = any_machine(seed, (shape)(seed % SHAPES), 0.02);
        m.a_s *= 10;
        m.b_s_per_byte *= 10;
        mgw_calibration how = usual(&m);
        how.enough_s = 0.5;
        how.keeps_samples = true;
        mgw_cluster *cluster = calibrate(&how);
        mgw_cost cost;
        mgw_cluster_cost(cluster, &cost);
        uint64_t last = cluster->samples[cluster->sample_count - 1].bytes;
        cut += last < MOST;
        assert_true(m.spent_s < 1); /* what is expected is not what it takes */
        for (uint64_t x = LEAST; x <= last && m.of != JUMP; x = x * 17 / 10) {
            double learned_s = mgw_cost_seconds(&cost, MGW_ALL_REDUCE, x);
            looked++;
            missed += fabs(learned_s / true_s(&m, x) - 1) > 0.25;
        }
        mgw_cluster_destroy(cluster);
    }
    assert_true(cut > 30 && cut < 270);
    assert_true(looked > 2000 && missed * 100 < looked);
}

/* Samples that differ are repeated; those that do not are not; and each says how sure it is. */
static void test_sure(void **state)
{
    (void)state;
    machine calm = any_machine(1, LINE, 0);
    machine rough = any_machine(1, LINE, 0.2);
    mgw_calibration how = usual(&calm);
    how.keeps_samples = true;
    mgw_cluster *cluster = calibrate(&how);
    for (size_t i = 0; i < cluster->sample_count; i++)
        assert_true(cluster->within[i] == 0);
    assert_int_equal(calm.calls, 4 * cluster->sample_count);
    mgw_cluster_destroy(cluster);
    how.context = &rough;
    cluster = calibrate(&how);
    unsigned held = 0;
    for (size_t i = 0; i < cluster->sample_count; i++) {
        double truth_s = true_s(&rough, cluster->samples[i].bytes);
        held += fabs(cluster->samples[i].seconds / truth_s - 1) <= 1.5 * cluster->within[i];
        assert_true(cluster->within[i] > 0.01);
    }
    assert_true(held + 1 >= cluster->sample_count);
    assert_true(rough.calls > 8 * cluster->sample_count);
    mgw_cluster_destroy(cluster);
}

/* A parameter server's push and pull on a curve: behind each other they are an all-reduce. */
static void test_push_and_pull(void **state)
{
    (void)state;
    machine m = any_machine(3, CONCAVE, 0);
    mgw_calibration how = usual(&m);
    how.kinds = 1 << MGW_PUSH | 1 << MGW_PULL;
    mgw_cluster *cluster = calibrate(&how);
    mgw_cost cost;
    mgw_cluster_cost(cluster, &cost);
    assert_int_equal(cluster->kind, MGW_CLUSTER_SAMPLES);
    for (uint64_t bytes = LEAST; bytes < MOST; bytes *= 3) {
        double push_s = mgw_cost_seconds(&cost, MGW_PUSH, bytes);
        assert_true(fabs(push_s / true_s(&m, bytes) - 1) < 0.05);
        assert_close(mgw_cost_seconds(&cost, MGW_ALL_REDUCE, bytes), 2 * push_s);
    }
    mgw_cluster_destroy(cluster);
}

/* What a file has of it comes back. */
static void test_file(void **state)
{
    (void)state;
    machine m = any_machine(5, CONCAVE, 0.1);
    mgw_calibration how = usual(&m);
    how.kinds |= 1 << MGW_ALL_GATHER;
    mgw_cluster *cluster = calibrate(&how);
    mgw_cluster *read = NULL;
    mgw_error error = {0};
    mgw_text text;
    mgw_text_init(&text);
    mgw_cluster_write(cluster, &text);
    if (mgw_cluster_parse("a file", text.data, text.size, &read, &error))
        fail_msg("%s", error.message);
    assert_int_equal(read->sample_count, cluster->sample_count);
    for (size_t i = 0; i < read->sample_count; i++) {
        assert_true(read->within[i] == cluster->within[i]);
        assert_true(read->given[MGW_ALL_GATHER].within[i] ==
                    cluster->given[MGW_ALL_GATHER].within[i]);
    }
    mgw_text_fini(&text);
    mgw_cluster_destroy(cluster);
    mgw_cluster_destroy(read);
    static const char some[] =
        "{\"format\": \"mgwfbp-cluster-1\", \"name\": \"c\", \"workers\": 2, \"samples\": "
        "[{\"bytes\": 9, \"seconds\": 2, \"within\": 0.5}, {\"bytes\": 1, \"seconds\": 1}]}";
    assert_int_equal(mgw_cluster_parse("a file", some, sizeof some - 1, &read, &error), MGW_OK);
    assert_null(read->within); /* not all of them say */
    mgw_cluster_destroy(read);
    static const char unsure[] =
        "{\"format\": \"mgwfbp-cluster-1\", \"name\": \"c\", \"workers\": 2, \"samples\": "
        "[{\"bytes\": 9, \"seconds\": 2, \"within\": 1e300}, "
        "{\"bytes\": 1, \"seconds\": 2, \"within\": 1e300}, "
        "{\"bytes\": 1, \"seconds\": 6, \"within\": 1e300}]}";
    assert_int_equal(mgw_cluster_parse("a file", unsure, sizeof unsure - 1, &read, &error), MGW_OK);
    /* 2 and 6 s count as 9 to 1, so 2.4 s; which with the 2 s of the larger is between the two */
    assert_true(read->of[MGW_ALL_REDUCE].samples[0].seconds > 2.1);
    assert_true(read->of[MGW_ALL_REDUCE].samples[1].seconds < 2.4);
    mgw_cluster_destroy(read);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lines),         cmocka_unit_test(test_shapes),
        cmocka_unit_test(test_budget),        cmocka_unit_test(test_sure),
        cmocka_unit_test(test_push_and_pull), cmocka_unit_test(test_file),
    };
    if (argc > 1 && !strcmp(argv[1], "--table")) {
        print_table();
        return 0;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
