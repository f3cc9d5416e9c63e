/* How many lanes there are, with a scripted machine. */
#include <math.h>
#include <stdbool.h>
#include <unistd.h>

#include "support.h"

enum { WORKERS = 4, MOST = 4, PROBES = 3, CALLS_MOST = 64 };

/* A machine whose hosts, cores and times the test decides. */
typedef struct machine {
    unsigned size;
    unsigned rank;
    double hosts[WORKERS]; /* any number that differs from host to host */
    double cores[WORKERS];
    double own_s[MOST + 1];     /* by lanes: what a message takes on this worker */
    double others_s[MOST + 1];  /* and on the slowest of the others */
    double factors[PROBES + 1]; /* by call with so many lanes; the first is the warm-up */
    unsigned calls;
    unsigned of_lanes; /* calls with the same number */
    unsigned lanes[CALLS_MOST];
    unsigned combines;
    unsigned fails_at;         /* call */
    unsigned fails_at_combine; /* the first of which is about the crowd */
} machine;

static mgw_status give_up(mgw_error *error, const char *what)
{
    error->status = MGW_ERR_PEER;
    snprintf(error->message, sizeof error->message, "%s", what);
    return MGW_ERR_PEER;
}

static mgw_status time_one(void *context, unsigned lanes, double *seconds, mgw_error *error)
{
    machine *m = context;
    assert_true(m->calls < CALLS_MOST);
    assert_in_range(lanes, 1, MOST);
    m->of_lanes = m->calls && m->lanes[m->calls - 1] == lanes ? m->of_lanes + 1 : 0;
    assert_in_range(m->of_lanes, 0, PROBES);
    m->lanes[m->calls++] = lanes;
    if (m->calls == m->fails_at)
        return give_up(error, "rank 1 is gone");
    *seconds = m->own_s[lanes] * m->factors[m->of_lanes];
    return MGW_OK;
}

/* A row of a sum in which the others have not put anything yet. */
static void put_rows(const machine *m, double *rows)
{
    for (unsigned r = 0; r < m->size; r++) {
        bool own = r == m->rank;
        assert_true(rows[2 * r] == floor(rows[2 * r]) && rows[2 * r] < 0x1p52); /* no bit is lost */
        assert_true(own || rows[2 * r] == 0);
        assert_true(rows[2 * r + 1] == (own ? (double)sysconf(_SC_NPROCESSORS_ONLN) : 0));
        rows[2 * r] = m->hosts[r];
        rows[2 * r + 1] = m->cores[r];
    }
}

static mgw_status combine(void *context, double *values, size_t sums, size_t maxima,
                          mgw_error *error)
{
    machine *m = context;
    bool about_crowd = m->combines == 0;
    assert_int_equal(sums, about_crowd ? 2 * m->size : 0);
    assert_int_equal(maxima, about_crowd ? 0 : 1);
    if (++m->combines == m->fails_at_combine)
        return give_up(error, "rank 2 is gone");
    if (about_crowd)
        put_rows(m, values);
    else
        values[0] = fmax(values[0], m->others_s[m->lanes[m->calls - 1]]);
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

static mgw_exchange exchange_of(machine *m)
{
    return (mgw_exchange){m, m->rank, m->size, combine, tell};
}

/* Two workers on a host with cores for all lanes; with so many lanes a message takes that long. The
 * warm-up is the fastest call, so that it is noticed if it counts. */
static machine usual(double with_1_s, double with_2_s, double with_4_s)
{
    return (machine){.size = 2,
                     .rank = 1,
                     .hosts = {7, 7},
                     .cores = {16, 16},
                     .own_s = {0, with_1_s, with_2_s, 0, with_4_s},
                     .factors = {0.01, 3, 1, 2}};
}

static unsigned choose(machine *m)
{
    const mgw_exchange exchange = exchange_of(m);
    mgw_error error = {0};
    unsigned lanes = 0;
    if (mgw_choose_lanes(&exchange, m, time_one, &lanes, &error))
        fail_msg("%s", error.message);
    return lanes;
}

/* So many lanes are chosen, and no more than `tried` were timed: each number four times, in order.
 */
static void expect(machine *m, unsigned lanes, unsigned tried)
{
    unsigned calls = 0;
    assert_int_equal(choose(m), lanes);
    for (unsigned l = 1; l <= tried; l *= 2)
        for (int i = 0; i <= PROBES; i++, calls++) {
            assert_true(calls < m->calls);
            assert_int_equal(m->lanes[calls], l);
        }
    assert_int_equal(m->calls, calls);
    assert_int_equal(m->combines, 1 + calls / (PROBES + 1));
}

/* ---- By hand ---- */

/* They double while messages become a tenth faster, and are never more than four. */
static void test_doubles(void **state)
{
    (void)state;
    static const double base_s = 1.0 / 32;
    machine m = usual(0.032, 0.016, 0.008);
    expect(&m, 4, 4);
    m = usual(0.032, 0.028, 0.025);
    expect(&m, 4, 4);
    m = usual(base_s, 0.9 * base_s, 0.9 * (0.9 * base_s)); /* just enough */
    expect(&m, 4, 4);
    m = usual(1e-3, 1e-4, 1e-5);
    for (unsigned r = 0; r < 2; r++)
        m.cores[r] = 1024;
    expect(&m, 4, 4);
}

static void test_stops(void **state)
{
    (void)state;
    static const double base_s = 1.0 / 32;
    machine m = usual(0.030, 0.028, 0.001); /* the next would be worth it, but is not tried */
    expect(&m, 1, 2);
    m = usual(base_s, nextafter(0.9 * base_s, 1), 0.001);
    expect(&m, 1, 2);
    m = usual(0.010, 0.020, 0.001); /* slower */
    expect(&m, 1, 2);
    m = usual(0.032, 0.016, 0.015);
    expect(&m, 2, 4);
    m = usual(0.032, 0.016, 0.024); /* faster than one lane, but not than two */
    expect(&m, 2, 4);
}

/* Where one lane takes long, the network is the limit. */
static void test_slow_network(void **state)
{
    (void)state;
    machine m = usual(0.041, 0.020, 0.010);
    expect(&m, 1, 1);
    m = usual(nextafter(40e-3, 1), 0.020, 0.010);
    expect(&m, 1, 1);
    m = usual(40e-3, 0.020, 0.010);
    expect(&m, 4, 4);
    m = usual(0.001, 0.0005, 0.0002);
    m.others_s[1] = 0.041; /* on another worker */
    expect(&m, 1, 1);
}

/* Two cores for each lane of each worker on a host. */
static void test_cores(void **state)
{
    (void)state;
    static const struct {
        double cores[2];
        bool apart; /* on two hosts */
        unsigned lanes;
        unsigned tried;
    } cases[] = {
        {{16, 16}, false, 4, 4}, {{15, 15}, false, 2, 2}, {{8, 8}, false, 2, 2},
        {{7, 7}, false, 1, 1},   {{4, 4}, false, 1, 1},   {{3, 3}, false, 1, 0},
        {{2, 2}, false, 1, 0},   {{1, 1}, false, 1, 0},   {{8, 8}, true, 4, 4},
        {{7, 7}, true, 2, 2},    {{4, 4}, true, 2, 2},    {{3, 64}, true, 1, 1},
        {{64, 3}, true, 1, 1},   {{64, 1}, true, 1, 0},   {{64, -1}, true, 1, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        machine m = usual(0.032, 0.016, 0.008);
        m.hosts[1] += cases[i].apart;
        for (unsigned r = 0; r < 2; r++)
            m.cores[r] = cases[i].cores[r];
        expect(&m, cases[i].lanes, cases[i].tried);
    }
}

/* Of workers the slowest counts, whichever it is. */
static void test_slowest_worker(void **state)
{
    (void)state;
    machine m = usual(0.032, 0.016, 0.008);
    m.others_s[2] = 0.030;
    expect(&m, 1, 2);
    m = usual(0.032, 0.016, 0.008);
    m.others_s[4] = 0.015;
    expect(&m, 2, 4);
    m = usual(0.001, 0.001, 0.001); /* the others gain, and this one does not lose */
    m.others_s[1] = 0.032;
    m.others_s[2] = 0.016;
    m.others_s[4] = 0.008;
    expect(&m, 4, 4);
}

/* Of a number's calls the fastest counts, but for the first, in which lanes connect. */
static void test_calls(void **state)
{
    (void)state;
    static const double factors[][PROBES + 1] = {
        {100, 1, 5, 5}, {100, 5, 1, 5}, {100, 5, 5, 1}, {0.5, 1, 1, 1}, {0, 9, 9, 1}};
    for (size_t i = 0; i < sizeof factors / sizeof *factors; i++) {
        machine m = usual(0.032, 0.016, 0.0145);
        memcpy(m.factors, factors[i], sizeof m.factors);
        expect(&m, 2, 4);
        m = usual(0.032, 0.016, 0.014);
        memcpy(m.factors, factors[i], sizeof m.factors);
        expect(&m, 4, 4);
    }
}

/* What fails is passed on, and nothing more is measured. */
static void test_failures(void **state)
{
    (void)state;
    for (unsigned at = 1; at <= 3 * (PROBES + 1); at++) {
        machine m = usual(0.032, 0.016, 0.008);
        const mgw_exchange exchange = exchange_of(&m);
        mgw_error error = {0};
        unsigned lanes = 0;
        m.fails_at = at;
        assert_int_equal(mgw_choose_lanes(&exchange, &m, time_one, &lanes, &error), MGW_ERR_PEER);
        assert_contains(error.message, "rank 1 is gone");
        assert_int_equal(m.calls, at);
        assert_int_equal(m.combines, 1 + (at - 1) / (PROBES + 1));
    }
    for (unsigned at = 1; at <= 4; at++) {
        machine m = usual(0.032, 0.016, 0.008);
        const mgw_exchange exchange = exchange_of(&m);
        mgw_error error = {0};
        unsigned lanes = 0;
        m.fails_at_combine = at;
        assert_int_equal(mgw_choose_lanes(&exchange, &m, time_one, &lanes, &error), MGW_ERR_PEER);
        assert_contains(error.message, "rank 2 is gone");
        assert_int_equal(m.calls, (at - 1) * (PROBES + 1));
        assert_int_equal(m.combines, at);
    }
}

/* ---- Workers per core ---- */

static double crowd_of(unsigned rank, const double hosts[3], const double cores[3])
{
    machine m = {.size = 3, .rank = rank};
    double crowd = -1;
    mgw_error error = {0};
    memcpy(m.hosts, hosts, 3 * sizeof *hosts);
    memcpy(m.cores, cores, 3 * sizeof *cores);
    const mgw_exchange exchange = exchange_of(&m);
    if (mgw_crowd(&exchange, &crowd, &error))
        fail_msg("%s", error.message);
    assert_int_equal(m.combines, 1);
    return crowd;
}

/* Three workers, on two hosts. */
static void test_crowd(void **state)
{
    (void)state;
    static const double hosts[] = {5, 9, 5};
    for (unsigned rank = 0; rank < 3; rank++) {
        assert_close(crowd_of(rank, hosts, (double[]){4, 4, 4}), 0.5); /* two on four cores */
        assert_close(crowd_of(rank, hosts, (double[]){4, 1, 4}), 1);   /* one on one */
        assert_close(crowd_of(rank, hosts, (double[]){16, 8, 16}), 0.125);
        assert_close(crowd_of(rank, hosts, (double[]){16, 10, 16}), 0.125);
        assert_close(crowd_of(rank, hosts, (double[]){1, 64, 1}), 2);
        assert_close(crowd_of(rank, hosts, (double[]){64, -1, 64}), 1); /* how many is not known */
    }
    machine m = {.size = 3, .fails_at_combine = 1};
    const mgw_exchange exchange = exchange_of(&m);
    double crowd = 0;
    mgw_error error = {0};
    assert_int_equal(mgw_crowd(&exchange, &crowd, &error), MGW_ERR_PEER);
    assert_contains(error.message, "rank 2 is gone");
}

/* The real names and cores of the workers of this host, as a sum that adds nothing: one worker. */
static mgw_status combine_alone(void *context, double *values, size_t sums, size_t maxima,
                                mgw_error *error)
{
    (void)context;
    (void)values;
    (void)error;
    assert_int_equal(sums, 2);
    assert_int_equal(maxima, 0);
    return MGW_OK;
}

static void test_crowd_of_one(void **state)
{
    (void)state;
    const mgw_exchange exchange = {NULL, 0, 1, combine_alone, tell};
    double crowd = 0;
    mgw_error error = {0};
    assert_int_equal(mgw_crowd(&exchange, &crowd, &error), MGW_OK);
    assert_close(crowd, 1.0 / (double)sysconf(_SC_NPROCESSORS_ONLN));
}

/* ---- Against an oracle ---- */

/* What the cores of a job allow: a whole number for each worker. */
static unsigned allowed(const machine *m)
{
    unsigned least = MOST;
    for (unsigned r = 0; r < m->size; r++) {
        unsigned beside = 0;
        for (unsigned s = 0; s < m->size; s++)
            beside += m->hosts[s] == m->hosts[r];
        unsigned lanes = (unsigned)m->cores[r] / (2 * beside);
        least = lanes < least ? lanes : least;
    }
    return least;
}

static double took_s(const machine *m, unsigned lanes)
{
    double fastest = INFINITY;
    for (int i = 1; i <= PROBES; i++)
        fastest = fmin(fastest, m->factors[i]);
    return fmax(m->own_s[lanes] * fastest, m->others_s[lanes]);
}

static void test_random_machines(void **state)
{
    (void)state;
    uint64_t random = 11;
    unsigned seen[MOST + 1] = {0};
    for (int run = 0; run < 20000; run++) {
        machine m = {.size = 1 + (unsigned)random_below(&random, WORKERS)};
        m.rank = (unsigned)random_below(&random, m.size);
        for (unsigned r = 0; r < m.size; r++) {
            m.hosts[r] = (double)random_below(&random, 2);
            m.cores[r] = (double)(1 + random_below(&random, 40));
        }
        for (unsigned l = 1; l <= MOST; l++) {
            m.own_s[l] = 0.05 * random_unit(&random) / l;
            m.others_s[l] = 0.05 * random_unit(&random) / l;
        }
        for (int i = 0; i <= PROBES; i++)
            m.factors[i] = 0.5 + random_unit(&random);
        unsigned lanes = 1;
        while (2 * lanes <= allowed(&m) && took_s(&m, lanes) <= 0.040 &&
               took_s(&m, 2 * lanes) <= 0.9 * took_s(&m, lanes))
            lanes *= 2;
        bool tries_more = 2 * lanes <= allowed(&m) && took_s(&m, lanes) <= 0.040;
        expect(&m, lanes, !allowed(&m) ? 0 : tries_more ? 2 * lanes : lanes);
        seen[lanes]++;
    }
    assert_true(seen[1] > 1000 && seen[2] > 300 && seen[4] > 300);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_doubles),        cmocka_unit_test(test_stops),
        cmocka_unit_test(test_slow_network),   cmocka_unit_test(test_cores),
        cmocka_unit_test(test_slowest_worker), cmocka_unit_test(test_calls),
        cmocka_unit_test(test_failures),       cmocka_unit_test(test_crowd),
        cmocka_unit_test(test_crowd_of_one),   cmocka_unit_test(test_random_machines),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
