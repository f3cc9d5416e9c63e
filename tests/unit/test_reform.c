/* The surviving workers continue after a failure, over shm. */
#include "reform_ranks.h"

static void test_one_after_the_other(void **state)
{
    (void)state;
    try_dying("shm", (unsigned[]){NEVER, 10, NEVER, 30, NEVER}, false);
    try_dying("shm", (unsigned[]){5, NEVER, NEVER, NEVER, NEVER}, true); /* the old rank 0 */
    try_dying("emulated:1e-4,1e-10:shm", (unsigned[]){NEVER, NEVER, 2, NEVER, 50}, true);
}

static void test_several_at_once(void **state)
{
    (void)state;
    try_dying("shm", (unsigned[]){20, 20, NEVER, NEVER, NEVER}, false);
    try_dying("shm", (unsigned[]){7, 7, 7, NEVER, 7}, false); /* one survives */
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

/* ---- With parameters ---- */

enum { KEEPERS = 3, KEPT = 5000, KEEPS = 20, LAST_OF_ALL = 10 };

/* A program that updates in the engine's callback, and keeps its own copy of the last step. */
typedef struct keeper {
    mgw_engine *engine;
    unsigned updates; /* of this engine */
    float step;       /* completed steps, and their result */
    float own[KEPT];
} keeper;

static mgw_status add_up(void *context, const mgw_shard *shards, size_t count, mgw_error *error)
{
    keeper *k = context;
    float *parameters = mgw_engine_parameter_memory(k->engine, MGW_F32);
    const float *gradients = mgw_engine_gradient_memory(k->engine, MGW_F32);
    (void)error;
    for (size_t s = 0; s < count; s++)
        for (size_t i = shards[s].begin; i < shards[s].begin + shards[s].count; i++)
            parameters[i] += gradients[i];
    __atomic_add_fetch(&k->updates, 1, __ATOMIC_RELAXED);
    return MGW_OK;
}

static mgw_status keep_none(void *context, const mgw_shard *before, size_t before_count,
                            const mgw_shard *after, size_t after_count, mgw_error *error)
{
    (void)context, (void)before, (void)before_count, (void)after, (void)after_count, (void)error;
    return MGW_OK;
}

static mgw_status keep_step(keeper *k, mgw_error *error)
{
    mgw_status status = mgw_engine_begin(k->engine, error);
    if (!status && mgw_engine_size(k->engine) == KEEPERS && k->step == LAST_OF_ALL &&
        mgw_engine_rank(k->engine) == 1)
        raise(SIGKILL);
    if (!status)
        status = mgw_engine_need(k->engine, 0, error);
    float *gradient = mgw_engine_gradient(k->engine, 0);
    for (size_t i = 0; !status && i < KEPT; i++)
        gradient[i] = 1;
    if (!status)
        mgw_engine_ready(k->engine, 0);
    if (!status)
        status = mgw_engine_wait(k->engine, error);
    return status ? status : mgw_engine_drain(k->engine, error);
}

/* All take rank 0's: some may be a step ahead. */
static mgw_status restore(keeper *k, mgw_error *error)
{
    mgw_status status = mgw_engine_broadcast(k->engine, &k->step, sizeof k->step, error);
    if (!status)
        status = mgw_engine_broadcast(k->engine, k->own, sizeof k->own, error);
    if (!status)
        memcpy(mgw_engine_parameter(k->engine, 0), k->own, sizeof k->own);
    k->updates = 0;
    return status;
}

static void keep(unsigned rank, const char *job)
{
    static keeper k;
    mgw_engine_options options = {
        .transport = {.name = "shm", .rank = rank, .size = KEEPERS, .job = job, .timeout_s = 10},
        .op = MGW_SUM,
        .profile_steps = 2,
        .keeps_parameters = true};
    mgw_error error = {.message = "?"};
    unsigned id = 0;
    mgw_status status = mgw_engine_open(&options, &k.engine, &error);
    if (!status)
        status = mgw_engine_add(k.engine, "kept", KEPT, MGW_F32, &id, &error);
    if (!status)
        status = mgw_engine_on_update(k.engine, add_up, &k, &error);
    if (!status)
        status = mgw_engine_on_reshard(k.engine, keep_none, &k, &error);
    if (!status)
        status = mgw_engine_start(k.engine, &error);
    while (!status && k.step < KEEPS) {
        status = keep_step(&k, &error);
        if (!status) {
            k.step++;
            memcpy(k.own, mgw_engine_parameter(k.engine, 0), sizeof k.own);
        } else if (status == MGW_ERR_PEER) {
            status = mgw_engine_reform(k.engine, &options, &k.engine, &error);
            if (!status)
                status = restore(&k, &error);
        }
    }
    bool good = !status && k.updates > 0 && mgw_engine_size(k.engine) == KEEPERS - 1;
    for (size_t i = 0; i < KEPT; i++)
        good &= k.own[i] == KEEPERS * LAST_OF_ALL + (KEEPERS - 1) * (KEEPS - LAST_OF_ALL);
    if (!good)
        fprintf(stderr, "rank %u: step %g, %u updates, %g: %s\n", rank, (double)k.step, k.updates,
                (double)k.own[0], status ? error.message : "");
    mgw_engine_close(k.engine);
    _exit(good ? 0 : 1);
}

static void test_parameters_are_updated_again(void **state)
{
    (void)state;
    pid_t pids[KEEPERS];
    char job[64];
    snprintf(job, sizeof job, "keep-%ld", (long)getpid());
    for (unsigned r = 0; r < KEEPERS; r++) {
        pids[r] = fork();
        assert_true(pids[r] >= 0);
        if (pids[r] == 0)
            keep(r, job);
    }
    for (unsigned r = 0; r < KEEPERS; r++) {
        int status = 0;
        assert_int_equal(waitpid(pids[r], &status, 0), pids[r]);
        assert_int_equal(r == 1 ? WTERMSIG(status) : status, r == 1 ? SIGKILL : 0);
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
        cmocka_unit_test(test_parameters_are_updated_again),
        cmocka_unit_test(test_misuse_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
