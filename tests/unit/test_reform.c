/* Workers that are left go on, over shm. */
#include "reform_ranks.h"

static void test_one_after_the_other(void **state)
{
    (void)state;
    try_dying("shm", (unsigned[]){NEVER, 10, NEVER, 30, NEVER}, false);
    try_dying("shm", (unsigned[]){5, NEVER, NEVER, NEVER, NEVER}, true); /* who was rank 0 */
    try_dying("emulated:1e-4,1e-10:shm", (unsigned[]){NEVER, NEVER, 2, NEVER, 50}, true);
}

static void test_several_at_once(void **state)
{
    (void)state;
    try_dying("shm", (unsigned[]){20, 20, NEVER, NEVER, NEVER}, false);
    try_dying("shm", (unsigned[]){7, 7, 7, NEVER, 7}, false); /* one is left */
}

/* At any moment: while they run, while they agree, while they join again. */
static void test_at_any_moment(void **state)
{
    (void)state;
    uint64_t random = 7;
    for (int i = 0; i < 8; i++) {
        pid_t pids[WORKERS];
        const unsigned dies[] = {NEVER, NEVER, NEVER, NEVER, NEVER};
        board *seen = start("emulated:1e-3,0:shm", dies, i % 2, pids);
        while (!seen->done[0])
            nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        unsigned first = (unsigned)random_below(&random, WORKERS);
        kill(pids[first], SIGKILL);
        nanosleep(&(struct timespec){.tv_nsec = (long)random_below(&random, 60) * 1000000}, NULL);
        kill(pids[(first + 1 + (unsigned)random_below(&random, WORKERS - 1)) % WORKERS], SIGKILL);
        unsigned killed = end(seen, pids);
        assert_true(__builtin_popcount(killed) >= 1 && __builtin_popcount(killed) <= 2);
        munmap(seen, sizeof *seen);
    }
}

static void test_misuse_is_refused(void **state)
{
    (void)state;
    mgw_error error;
    mgw_engine *engine = NULL;
    mgw_engine *other = NULL;
    const mgw_engine_options options = {.transport = {.name = "self"}};
    assert_int_equal(mgw_engine_reform(NULL, &options, &other, &error), MGW_ERR_ARGUMENT);
    assert_int_equal(mgw_engine_open(&options, &engine, &error), MGW_OK);
    assert_int_equal(mgw_engine_reform(engine, &options, &other, &error), MGW_ERR_ARGUMENT);
    assert_non_null(strstr(error.message, "no worker was lost"));
    assert_null(other);
    mgw_engine_close(engine);
}

int main(void)
{
    setenv("MGWFBP_DUMP", "", 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_after_the_other),
        cmocka_unit_test(test_several_at_once),
        cmocka_unit_test(test_at_any_moment),
        cmocka_unit_test(test_misuse_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
