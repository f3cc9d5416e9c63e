/* NCCL that takes its time, or fails, while all workers are alive: the fake one, which does so. */
#include "ranks.h"

enum { RANKS = 2 };

static void train(const char *name, unsigned rank, double timeout_s, rank_result *result)
{
    mgw_engine_options options = {.transport = {.name = "nccl:shm",
                                                .rank = rank,
                                                .size = RANKS,
                                                .job = name,
                                                .timeout_s = timeout_s},
                                  .device = "cuda",
                                  .op = MGW_SUM,
                                  .policy = "single"};
    mgw_engine *engine = NULL;
    mgw_error *error = &result->error;
    unsigned id = 0;
    result->status = mgw_engine_open(&options, &engine, error);
    if (!result->status)
        result->status = mgw_engine_add(engine, "t", 100, MGW_F32, &id, error);
    if (!result->status)
        result->status = mgw_engine_start(engine, error);
    if (!result->status)
        result->status = mgw_engine_begin(engine, error);
    if (!result->status) {
        float *gradient = mgw_engine_gradient(engine, 0); /* the fake GPU's memory is ours */
        for (unsigned i = 0; i < 100; i++)
            gradient[i] = (float)(rank + 1);
        mgw_engine_ready(engine, 0);
        result->status = mgw_engine_wait(engine, error);
        if (!result->status)
            result->status = mgw_engine_synchronize(engine, error);
        if (!result->status && gradient[99] != 3)
            snprintf(result->wrong, sizeof result->wrong, "the sum is %g", (double)gradient[99]);
    }
    mgw_engine_close(engine);
}

/* Returns how long it took. */
static double run(job *j, const char *slow_ms, bool broken)
{
    pid_t children[RANKS];
    double begun_s = clock_s();
    start_job(j);
    for (unsigned r = 0; r < RANKS; r++)
        if ((children[r] = fork()) == 0) {
            if (slow_ms)
                setenv("FAKE_NCCL_SLOW", slow_ms, 1);
            if (broken)
                setenv("FAKE_NCCL_BROKEN", "1", 1);
            train(j->name, r, j->timeout_s, &j->results[r]);
            _exit(0);
        }
    for (unsigned r = 0; r < RANKS; r++)
        waitpid(children[r], NULL, 0);
    return clock_s() - begun_s;
}

static void what_is_slow_is_waited_for(void **unused)
{
    (void)unused;
    job j = {.transport = "nccl:shm", .size = RANKS, .timeout_s = 20};
    run(&j, "100", false);
    expect_good(&j);
    end_job(&j);
}

static void expect_failure(const char *slow_ms, bool broken, const char *words)
{
    job j = {.transport = "nccl:shm", .size = RANKS, .timeout_s = 2};
    double took_s = run(&j, slow_ms, broken);
    for (unsigned r = 0; r < RANKS; r++) {
        assert_int_equal(j.results[r].status, MGW_ERR_PEER);
        assert_contains(j.results[r].error.message, "nccl: joining: ");
        assert_contains(j.results[r].error.message, words);
        assert_contains(j.results[r].error.message, "though all workers are alive");
    }
    assert_true(took_s < 20);
    end_job(&j);
}

static void what_does_not_end_is_told(void **unused)
{
    (void)unused;
    expect_failure("1000000", false, "it did not end in time");
}

static void what_fails_is_told(void **unused)
{
    (void)unused;
    expect_failure(NULL, true, "an error of the fake NCCL");
    expect_failure("300", true, "an error of the fake NCCL");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_slow_is_waited_for),
        cmocka_unit_test(what_does_not_end_is_told),
        cmocka_unit_test(what_fails_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
