/* The channel over TCP: what the other ranks report when one dies, leaves, hangs or mismatches. */
#include "tcp_ranks.h"

static unsigned victim;

static void one_dies(mgw_transport *t, rank_result *result)
{
    float data[100000] = {0};
    for (int i = 0; !result->status; i++) {
        if (mgw_transport_rank(t) == victim && i == 20)
            kill(getpid(), SIGKILL);
        result->status = mgw_transport_all_reduce(t, data, i % 2 ? 100 : 100000, MGW_F32, MGW_SUM,
                                                  &result->error);
    }
}

/* Rank 0 is busy elsewhere, and so is the rank that dies; the others still learn of it. */
static void one_dies_meanwhile(mgw_transport *t, rank_result *result)
{
    if (mgw_transport_rank(t) == 0)
        sleep(3);
    if (mgw_transport_rank(t) == victim) {
        usleep(200000);
        kill(getpid(), SIGKILL);
    }
    result->status = mgw_transport_barrier(t, &result->error);
}

/* Its child must not keep the connection open. */
static void one_forks_and_dies(mgw_transport *t, rank_result *result)
{
    if (mgw_transport_rank(t) == victim) {
        if (fork() == 0) {
            sleep(4);
            _exit(0);
        }
        kill(getpid(), SIGKILL);
    }
    result->status = mgw_transport_barrier(t, &result->error);
}

static void one_leaves(mgw_transport *t, rank_result *result)
{
    for (int i = 0; !result->status && !(mgw_transport_rank(t) == victim && i == 5); i++)
        result->status = mgw_transport_barrier(t, &result->error);
}

static void one_hangs(mgw_transport *t, rank_result *result)
{
    if (mgw_transport_rank(t) == victim)
        usleep(3500000);
    result->status = mgw_transport_barrier(t, &result->error);
}

/* Stopped until the others have ended. */
static void one_stops(mgw_transport *t, rank_result *result)
{
    if (mgw_transport_rank(t) == victim && fork() == 0) {
        usleep(5000000); /* the timeout, and the hub's time to answer */
        kill(getppid(), SIGCONT);
        _exit(0);
    }
    if (mgw_transport_rank(t) == victim)
        kill(getpid(), SIGSTOP);
    result->status = mgw_transport_barrier(t, &result->error);
}

static void expect_named(void (*body)(mgw_transport *, rank_result *), unsigned first,
                         double timeout_s, const char *word)
{
    for (victim = first; victim < 2; victim++) {
        set_port("127.0.0.1");
        job j = make_job(4, timeout_s);
        char name[16];
        snprintf(name, sizeof name, "rank %u", victim);
        j.body = body;
        run_processes(&j);
        for (unsigned r = 0; r < j.size; r++) {
            if (r == victim)
                continue;
            assert_int_not_equal(j.results[r].status, MGW_OK);
            assert_contains(j.results[r].error.message, name);
            if (!strstr(j.results[r].error.message, "failed"))
                assert_contains(j.results[r].error.message, word);
        }
        end_job(&j);
    }
}

static void the_dead_are_named(void **unused)
{
    (void)unused;
    double begun_s = clock_s();
    expect_named(one_dies, 0, 60, "died");
    assert_true(clock_s() - begun_s < 4); /* twice */
}

static void those_who_leave_are_named(void **unused)
{
    (void)unused;
    expect_named(one_leaves, 0, 60, "left");
}

static void those_who_hang_are_named(void **unused)
{
    (void)unused;
    expect_named(one_hangs, 1, 2, "did not come within 2 s");
    expect_named(one_stops, 0, 2, "did not"); /* rank 0 has the hub */
}

static void the_dead_are_named_whatever_rank_0_does(void **unused)
{
    (void)unused;
    void (*const bodies[])(mgw_transport *, rank_result *) = {one_dies_meanwhile,
                                                              one_forks_and_dies};
    victim = 3;
    for (size_t i = 0; i < 2; i++) {
        set_port("127.0.0.1");
        job j = make_job(4, 60);
        j.body = bodies[i];
        pid_t workers[4];
        double begun_s = clock_s();
        for (unsigned r = 0; r < 4; r++)
            workers[r] = start_worker(&j, r, NULL);
        await(workers[1]);
        await(workers[2]);
        assert_true(clock_s() - begun_s < 2);
        await(workers[0]);
        await(workers[3]);
        for (unsigned r = 0; r < 3; r++)
            assert_contains(j.results[r].error.message, r ? "rank 3 has died" : "rank 3");
        end_job(&j);
    }
}

/* One rank's call differs from the others'; `oddity` says how. */
static int oddity;

static void one_differs(mgw_transport *t, rank_result *result)
{
    static float data[200000];
    mgw_error *error = &result->error;
    switch (mgw_transport_rank(t) == 1 ? oddity : -1) {
    case 0:
        result->status = mgw_transport_broadcast(t, data, sizeof data, 0, error);
        break;
    case 1:
        result->status = mgw_transport_all_reduce(t, data, 199999, MGW_F32, MGW_SUM, error);
        break;
    case 2:
        result->status = mgw_transport_all_reduce(t, data, 200000, MGW_BF16, MGW_SUM, error);
        break;
    case 3:
        result->status = mgw_transport_all_reduce(t, data, 200000, MGW_F32, MGW_MAX, error);
        break;
    case 4:
        result->status = mgw_transport_barrier(t, error);
        break;
    default:
        result->status = mgw_transport_all_reduce(t, data, 200000, MGW_F32, MGW_SUM, error);
    }
}

/* Different segments. */
static void one_cuts_differently(mgw_transport *t, rank_result *result)
{
    static float data[200];
    bool other = mgw_transport_rank(t) == 1;
    const size_t segments[] = {other ? 50 : 100, other ? 150 : 100};
    const mgw_call call = {.kind = oddity ? MGW_ALL_GATHER : MGW_REDUCE_SCATTER,
                           .data = data,
                           .count = 200,
                           .dtype = MGW_F32,
                           .op = MGW_SUM,
                           .segments = segments,
                           .segment_count = 2};
    mgw_request request;
    result->status = mgw_transport_post(t, &call, &request, &result->error);
    if (!result->status)
        result->status = mgw_request_wait(t, &request, &result->error);
}

static void those_who_cut_differently_are_named(void **unused)
{
    (void)unused;
    for (oddity = 0; oddity < 2; oddity++) {
        set_port("127.0.0.1");
        job j = make_job(3, 60);
        j.body = one_cuts_differently;
        run_processes(&j);
        for (unsigned r = 0; r < j.size; r++) {
            assert_int_equal(j.results[r].status, MGW_ERR_PEER);
            assert_contains(j.results[r].error.message, "with other segments");
            assert_contains(j.results[r].error.message, "rank 1");
        }
        end_job(&j);
    }
}

static void those_who_differ_are_named(void **unused)
{
    (void)unused;
    for (oddity = 0; oddity < 5; oddity++) {
        set_port("127.0.0.1");
        job j = make_job(3, 60);
        j.body = one_differs;
        run_processes(&j);
        for (unsigned r = 0; r < j.size; r++) {
            assert_int_equal(j.results[r].status, MGW_ERR_PEER);
            assert_contains(j.results[r].error.message, "workers disagree");
            assert_contains(j.results[r].error.message, "rank 1");
        }
        end_job(&j);
    }
}

/* One after the other at the same port, as in a program that opens several. */
static void ports_are_used_again(void **unused)
{
    (void)unused;
    set_port("127.0.0.1");
    for (int i = 0; i < 5; i++) {
        job j = make_job(3, 20);
        run_processes(&j);
        expect_good(&j);
        end_job(&j);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_dead_are_named),
        cmocka_unit_test(those_who_leave_are_named),
        cmocka_unit_test(those_who_hang_are_named),
        cmocka_unit_test(the_dead_are_named_whatever_rank_0_does),
        cmocka_unit_test(those_who_differ_are_named),
        cmocka_unit_test(those_who_cut_differently_are_named),
        cmocka_unit_test(ports_are_used_again),
    };
    unsetenv("MGWFBP_SECRET");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
