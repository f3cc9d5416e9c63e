/* The clock that stands still while the process is stopped. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"

static void pause_ms(long ms)
{
    nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000}, NULL);
}

static void test_it_runs(void **state)
{
    (void)state;
    double begun_s = mgw_awake_s();
    double real_s = mgw_now_s();
    for (int i = 0; i < 20; i++) {
        double before_s = mgw_awake_s();
        pause_ms(10);
        assert_true(mgw_awake_s() > before_s);
    }
    double lasted_s = mgw_awake_s() - begun_s;
    assert_true(lasted_s >= 0.2 && lasted_s <= mgw_now_s() - real_s + 0.01);
}

/* Waits as transports do, in a process that is stopped meanwhile. */
static void wait_in_slices(int out)
{
    double times_s[] = {mgw_awake_s(), mgw_now_s()};
    double begun_s = times_s[1];
    while (mgw_now_s() - begun_s < 3.5) {
        pause_ms(20);
        (void)mgw_awake_s();
    }
    times_s[0] = mgw_awake_s() - times_s[0];
    times_s[1] = mgw_now_s() - times_s[1];
    _exit(write(out, times_s, sizeof times_s) != sizeof times_s);
}

static void test_it_stands_still_while_we_do(void **state)
{
    (void)state;
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    if (child == 0)
        wait_in_slices(ends[1]);
    pause_ms(300);
    kill(child, SIGSTOP);
    pause_ms(3000);
    kill(child, SIGCONT);
    double times_s[2];
    assert_int_equal(read(ends[0], times_s, sizeof times_s), sizeof times_s);
    assert_true(times_s[1] >= 3.5);
    assert_true(times_s[1] - times_s[0] > 1); /* of 3 s, a second and a half count */
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_it_runs),
        cmocka_unit_test(test_it_stands_still_while_we_do),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
