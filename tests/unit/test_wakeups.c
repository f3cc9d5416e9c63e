/* Callers that wait for the engine are woken. Each wait also ends after 100 ms to look around; a
 * wakeup that is lost is thus a step that takes that long. */
#include <dlfcn.h>
#include <time.h>

#include "ranks.h"

enum { RANKS = 2, TENSORS = 4, STEPS = 500, LATE_MAX = 5 };

#if !defined __SANITIZE_THREAD__ /* which has its own */
/* In place of the C library's: the caller's thread stays a while after each unlock, so that things
 * do happen between an unlock and the next lock. */
__attribute__((visibility("default"))) int pthread_mutex_unlock(pthread_mutex_t *mutex)
{
    static int (*unlock)(pthread_mutex_t *);
    static unsigned draws;
    if (!unlock)
        *(void **)&unlock = dlsym(RTLD_NEXT, "pthread_mutex_unlock");
    int code = unlock(mutex);
    if (gettid() == getpid()) {
        draws = draws * 1664525U + 1013904223U;
        usleep((draws >> 16) % 300);
    }
    return code;
}
#endif

static const double look_s = 0.095;

static double now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static mgw_status run_step(mgw_engine *engine, bool keeps, mgw_error *error)
{
    mgw_status status = mgw_engine_begin(engine, error);
    for (unsigned t = TENSORS; keeps && !status && t-- > 0;)
        status = mgw_engine_need(engine, t, error);
    for (unsigned t = 0; !status && t < TENSORS; t++)
        mgw_engine_ready(engine, t);
    if (!status)
        status = mgw_engine_wait(engine, error);
    if (keeps && !status)
        status = mgw_engine_update(engine, MGW_NO_OPERATION, error);
    return status;
}

static mgw_status open_engine(const job *j, unsigned rank, bool keeps, const char *policy,
                              mgw_engine **engine, mgw_error *error)
{
    mgw_engine_options options = {
        .transport = {.name = "shm", .rank = rank, .size = RANKS, .job = j->name, .timeout_s = 60},
        .policy = policy,
        .trials = -1,
        .keeps_parameters = keeps};
    mgw_status status = mgw_engine_open(&options, engine, error);
    for (unsigned t = 0; !status && t < TENSORS; t++) {
        char name[16];
        unsigned id = 0;
        snprintf(name, sizeof name, "layer%u", t);
        status = mgw_engine_add(*engine, name, 64, MGW_F32, &id, error);
    }
    return status ? status : mgw_engine_start(*engine, error);
}

/* Its exit status is the number of steps that took as long as a lost wakeup makes them. */
static int run_late(const job *j, unsigned rank, bool keeps, const char *policy)
{
    mgw_engine *engine = NULL;
    mgw_error error = {0};
    int late = 0;
    mgw_status status = open_engine(j, rank, keeps, policy, &engine, &error);
    for (int step = 0; !status && late <= LATE_MAX && step < STEPS; step++) {
        double begun_s = now_s();
        status = run_step(engine, keeps, &error);
        late += now_s() - begun_s >= look_s;
    }
    mgw_engine_close(engine);
    if (status)
        fprintf(stderr, "rank %u: %s\n", rank, error.message);
    return status ? 100 : late;
}

static void run_job(bool keeps, const char *policy)
{
    job j = {.size = RANKS};
    pid_t children[RANKS];
    int ended[RANKS];
    start_job(&j);
    for (unsigned r = 0; r < RANKS; r++)
        if ((children[r] = fork()) == 0)
            _exit(run_late(&j, r, keeps, policy));
    for (unsigned r = 0; r < RANKS; r++)
        waitpid(children[r], &ended[r], 0);
    end_job(&j);
    for (unsigned r = 0; r < RANKS; r++)
        assert_in_range(WEXITSTATUS(ended[r]), 0, LATE_MAX); /* a busy machine makes some late */
}

static void of_all_reduces(void **unused)
{
    (void)unused;
    run_job(false, "wfbp");
}

static void of_updates(void **unused)
{
    (void)unused;
    run_job(true, "wfbp");
}

static void of_gathers(void **unused)
{
    (void)unused;
    run_job(true, "fsdp");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(of_all_reduces),
        cmocka_unit_test(of_updates),
        cmocka_unit_test(of_gathers),
    };
    return cmocka_run_group_tests_name("wakeups", tests, NULL, NULL);
}
