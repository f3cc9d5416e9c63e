/* The channel over TCP when sends fail. */
#include "tcp_ranks.h"

#include <errno.h>
#include <stdatomic.h>
#include <sys/syscall.h>

/* Replaces the system's. One in this many calls of this process fails, in this way; 0: none. */
static _Atomic unsigned one_in;
static _Atomic int reason;
static _Atomic unsigned slowly_us; /* it takes so long */

__attribute__((visibility("default"))) ssize_t send(int fd, const void *buf, size_t n, int flags)
{
    static _Atomic unsigned calls;
    if (one_in && ++calls % one_in == 0) {
        usleep(slowly_us);
        errno = reason;
        return -1;
    }
    return syscall(SYS_sendto, fd, buf, n, flags, NULL, 0);
}

static void meet_with_data(mgw_transport *t, rank_result *result)
{
    static float data[100000];
    for (int i = 0; !result->status && i < 20; i++) {
        for (size_t j = 0; j < 100000; j++)
            data[j] = 1;
        result->status =
            mgw_transport_all_reduce(t, data, 100000, MGW_F32, MGW_SUM, &result->error);
        if (!result->status && (data[0] != 3 || data[99999] != 3))
            snprintf(result->wrong, sizeof result->wrong, "the sum is %g", (double)data[0]);
    }
}

/* A momentary lack of memory is waited out, at the hub and at other ranks. */
static void memory_is_waited_for(void **unused)
{
    (void)unused;
    static const int reasons[] = {ENOBUFS, ENOMEM};
    for (size_t i = 0; i < 2; i++) {
        set_port("127.0.0.1");
        job j = make_job(3, 20);
        j.body = meet_with_data;
        one_in = 3;
        reason = reasons[i];
        run_processes(&j);
        one_in = 0;
        expect_good(&j);
        end_job(&j);
    }
}

/* From here on rank 1 sends nothing. The others come later, so that its timeout expires first. */
static void one_sends_nothing(mgw_transport *t, rank_result *result)
{
    result->status = mgw_transport_barrier(t, &result->error);
    if (mgw_transport_rank(t) == 1)
        one_in = 1;
    else
        usleep(700 * 1000);
    if (!result->status)
        result->status = mgw_transport_barrier(t, &result->error);
    one_in = 0;
}

/* Rank 2 leaves while rank 1 tries to send; its connection breaks only then. */
static void one_leaves_meanwhile(mgw_transport *t, rank_result *result)
{
    result->status = mgw_transport_barrier(t, &result->error);
    if (mgw_transport_rank(t) == 2)
        return;
    if (mgw_transport_rank(t) == 1) {
        slowly_us = 500 * 1000;
        one_in = 1;
    }
    if (!result->status)
        result->status = mgw_transport_barrier(t, &result->error);
    one_in = 0;
    mgw_error again = {0};
    if (mgw_transport_barrier(t, &again) != MGW_ERR_PEER ||
        !strstr(again.message, "failed before; close it"))
        snprintf(result->wrong, sizeof result->wrong, "then: %s", again.message);
}

/* The reason is what the hub reported before; and nothing continues after that. */
static void what_others_did_goes_before(void **unused)
{
    (void)unused;
    set_port("127.0.0.1");
    job j = make_job(3, 20);
    j.body = one_leaves_meanwhile;
    reason = EPIPE;
    run_processes(&j);
    for (unsigned r = 0; r < 2; r++) {
        assert_int_equal(j.results[r].status, MGW_ERR_PEER);
        assert_contains(j.results[r].error.message, "rank 2");
        assert_string_equal(j.results[r].wrong, "");
    }
    end_job(&j);
}

/* A rank that cannot send reports it at once; if it is for lack of memory, after its timeout. */
static void who_cannot_send_says_so(void **unused)
{
    (void)unused;
    static const struct {
        int reason;
        double timeout_s;
        const char *words;
    } cases[] = {
        {EACCES, 60, "rank 1 cannot send to rank 0: Permission denied"},
        {ENOBUFS, 1, "rank 0 took nothing within 1 s"},
    };
    for (size_t i = 0; i < 2; i++) {
        set_port("127.0.0.1");
        job j = make_job(3, cases[i].timeout_s);
        double begun_s = clock_s();
        j.body = one_sends_nothing;
        reason = cases[i].reason;
        run_processes(&j);
        assert_true(clock_s() - begun_s < 10);
        assert_contains(j.results[1].error.message, cases[i].words);
        assert_contains(j.results[0].error.message, "rank 1");
        assert_contains(j.results[2].error.message, "rank 1");
        end_job(&j);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_is_waited_for),
        cmocka_unit_test(who_cannot_send_says_so),
        cmocka_unit_test(what_others_did_goes_before),
    };
    unsetenv("MGWFBP_SECRET");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
