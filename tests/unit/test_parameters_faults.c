/* Failures of the engine with parameters: misuse, and workers that die or stop during gathers. */
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "support.h"

enum { TENSORS = 5, COUNT = 4000 };

static const mgw_operation halves[] = {
    {.kind = MGW_REDUCE_SCATTER, .release = MGW_WHEN_READY, .first = 0, .count = 3},
    {.kind = MGW_ALL_REDUCE, .release = MGW_WHEN_READY, .first = 3, .count = 2},
    {.kind = MGW_ALL_GATHER, .release = MGW_AFTER_UPDATE, .first = 2, .count = 1},
    {.kind = MGW_ALL_GATHER, .release = MGW_AFTER_UPDATE, .first = 0, .count = 2}};

static void add_tensors(mgw_engine *engine)
{
    mgw_error error = {0};
    for (int t = 0; t < TENSORS; t++) {
        char name[8];
        unsigned id = 0;
        snprintf(name, sizeof name, "t%d", t);
        if (mgw_engine_add(engine, name, COUNT, MGW_F32, &id, &error))
            fail_msg("%s", error.message);
    }
}

static mgw_engine *open_alone(mgw_engine_options options)
{
    mgw_engine *engine = NULL;
    mgw_error error = {0};
    options.transport.name = "self";
    options.transport.size = 1;
    options.keeps_parameters = true;
    if (mgw_engine_open(&options, &engine, &error))
        fail_msg("%s", error.message);
    add_tensors(engine);
    if (mgw_engine_start(engine, &error) || mgw_engine_set_plan(engine, halves, 4, &error))
        fail_msg("%s", error.message);
    return engine;
}

static void run_backward(mgw_engine *engine)
{
    for (unsigned t = 0; t < TENSORS; t++)
        mgw_engine_ready(engine, t);
}

/* ---- Misuse ---- */

static void updates_must_be_said(void **unused)
{
    (void)unused;
    mgw_engine *engine = open_alone((mgw_engine_options){0});
    mgw_error error = {0};
    assert_int_equal(mgw_engine_update(engine, 0, &error), MGW_ERR_ARGUMENT);
    assert_contains(error.message, "operation 1: it is not averaged");
    assert_int_equal(mgw_engine_begin(engine, &error), MGW_OK);
    assert_int_equal(mgw_engine_update(engine, 0, &error), MGW_ERR_ARGUMENT);
    assert_contains(error.message, "only after mgw_engine_wait");
    run_backward(engine);
    assert_int_equal(mgw_engine_wait(engine, &error), MGW_OK);
    assert_int_equal(mgw_engine_update(engine, 2, &error), MGW_ERR_ARGUMENT);
    assert_contains(error.message, "operation 3: it is not averaged");
    assert_int_equal(mgw_engine_update(engine, 0, &error), MGW_OK);
    assert_int_equal(mgw_engine_update(engine, 0, &error), MGW_ERR_ARGUMENT);
    assert_contains(error.message, "was already updated");
    /* Nobody else can say it: so there is nothing to wait for. */
    const char *missing =
        "rank 0: operation 2 (from 't3') is averaged, but its update was not reported";
    assert_int_equal(mgw_engine_begin(engine, &error), MGW_ERR_ARGUMENT);
    assert_contains(error.message, missing);
    assert_int_equal(mgw_engine_need(engine, 0, &error), MGW_ERR_ARGUMENT);
    assert_contains(error.message, missing);
    assert_int_equal(mgw_engine_drain(engine, &error), MGW_ERR_ARGUMENT);
    assert_int_equal(mgw_engine_set_policy(engine, "optimal", &error), MGW_ERR_ARGUMENT);
    assert_int_equal(mgw_engine_set_plan(engine, halves, 4, &error), MGW_ERR_ARGUMENT);
    assert_contains(error.message, missing);
    assert_int_equal(mgw_engine_update(engine, MGW_NO_OPERATION, &error), MGW_OK);
    assert_int_equal(mgw_engine_drain(engine, &error), MGW_OK);
    assert_int_equal(mgw_engine_need(engine, TENSORS, &error), MGW_ERR_ARGUMENT);
    assert_contains(error.message, "there is no tensor 5");
    assert_int_equal(mgw_engine_begin(engine, &error), MGW_OK);
    mgw_engine_close(engine); /* in the middle of a step */
}

static void parameters_that_are_not_kept(void **unused)
{
    (void)unused;
    mgw_engine *engine = NULL;
    mgw_error error = {0};
    mgw_engine_options options = {.transport = {.name = "self", .size = 1}};
    static const char *const policies[] = {"overlap", "sharded", "zero:1MiB", "dear:1MiB", "fsdp"};
    for (size_t i = 0; i < sizeof policies / sizeof *policies; i++) {
        options.policy = policies[i];
        assert_int_equal(mgw_engine_open(&options, &engine, &error), MGW_ERR_UNSUPPORTED);
        assert_contains(error.message, "keeps_parameters");
    }
    options.policy = NULL;
    options.parameters = "bf16";
    assert_int_equal(mgw_engine_open(&options, &engine, &error), MGW_ERR_ARGUMENT);
    assert_contains(error.message, "does not keep them");
    options.keeps_parameters = true;
    options.parameters = "f64";
    assert_int_equal(mgw_engine_open(&options, &engine, &error), MGW_ERR_ARGUMENT);
    assert_contains(error.message, "parameters: 'f64' is not");
    options.parameters = NULL;
    options.servers = 1;
    assert_int_equal(mgw_engine_open(&options, &engine, &error), MGW_ERR_UNSUPPORTED);
    assert_contains(error.message, "servers");
    options = (mgw_engine_options){.transport = {.name = "self", .size = 1}};
    assert_int_equal(mgw_engine_open(&options, &engine, &error), MGW_OK);
    assert_int_equal(mgw_engine_on_update(engine, NULL, NULL, &error), MGW_ERR_ARGUMENT);
    add_tensors(engine);
    assert_int_equal(mgw_engine_start(engine, &error), MGW_OK);
    size_t count = 1;
    assert_null(mgw_engine_parameter(engine, 0));
    assert_null(mgw_engine_shards(engine, &count));
    assert_int_equal(count, 0);
    assert_int_equal(mgw_engine_need(engine, 0, &error), MGW_ERR_ARGUMENT);
    assert_contains(error.message, "does not keep parameters");
    assert_int_equal(mgw_engine_drain(engine, &error), MGW_ERR_ARGUMENT);
    assert_int_equal(mgw_engine_update(engine, 0, &error), MGW_ERR_ARGUMENT);
    assert_int_equal(mgw_engine_set_policy(engine, "overlap", &error), MGW_ERR_UNSUPPORTED);
    assert_int_equal(mgw_engine_set_plan(engine, halves, 4, &error), MGW_ERR_UNSUPPORTED);
    assert_contains(error.message, "operation 1 is half of an all-reduce");
    mgw_engine_close(engine);
}

static void plans_that_cannot_be(void **unused)
{
    (void)unused;
    mgw_engine *engine = open_alone((mgw_engine_options){0});
    mgw_error error = {0};
    const mgw_operation early[] = {halves[0], halves[2], halves[3], halves[1]};
    assert_int_equal(mgw_engine_set_plan(engine, early, 4, &error), MGW_ERR_INPUT);
    assert_contains(error.message, "operation 4 averages after an all-gather");
    assert_int_equal(mgw_engine_set_plan(engine, halves, 3, &error), MGW_ERR_INPUT);
    assert_contains(error.message, "not gathered");
    mgw_operation unreleased[4];
    memcpy(unreleased, halves, sizeof halves);
    unreleased[3].release = MGW_WHEN_READY;
    assert_int_equal(mgw_engine_set_plan(engine, unreleased, 4, &error), MGW_ERR_INPUT);
    assert_contains(error.message, "operation 4: all-gathers are released after-backward or");
    assert_int_equal(mgw_engine_begin(engine, &error), MGW_OK); /* with the plan before */
    run_backward(engine);
    assert_int_equal(mgw_engine_wait(engine, &error), MGW_OK);
    float before = 0;
    float after = 0;
    assert_int_equal(mgw_engine_move(engine, MGW_F32, &before, &after, 4, &error),
                     MGW_ERR_ARGUMENT);
    mgw_engine_close(engine);
}

/* From a file: the error names it. */
static void pinned_plans_that_cannot_be(void **unused)
{
    (void)unused;
    char path[64];
    mgw_engine *engine = NULL;
    mgw_error error = {0};
    snprintf(path, sizeof path, "/tmp/mgwfbp-halves-%ld.json", (long)getpid());
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fprintf(file,
            "{\"format\": \"mgwfbp-plan-2\", \"policy\": \"mine\", \"model\": \"five\", "
            "\"cluster\": \"none\", \"workers\": 1, \"compute_s\": 1, \"iteration_s\": 2, "
            "\"exposed_s\": 1, \"lower_bound_s\": 1, \"operations\": [{\"kind\": "
            "\"reduce-scatter\", \"release\": \"when-ready\", \"tensors\": [\"t0\", \"t1\", "
            "\"t2\", \"t3\", \"t4\"], \"bytes\": %d, \"start_s\": 1, \"end_s\": 2}]}",
            TENSORS * COUNT * 4);
    fclose(file);
    mgw_engine_options options = {
        .transport = {.name = "self", .size = 1}, .keeps_parameters = true, .plan = path};
    assert_int_equal(mgw_engine_open(&options, &engine, &error), MGW_OK);
    add_tensors(engine);
    assert_int_equal(mgw_engine_start(engine, &error), MGW_ERR_INPUT);
    assert_contains(error.message, path);
    assert_contains(error.message, "tensor 0 is scattered but not gathered");
    mgw_engine_close(engine);
    unlink(path);
}

static mgw_status refuse(void *context, const mgw_shard *shards, size_t count, mgw_error *error)
{
    (void)context, (void)shards, (void)count;
    snprintf(error->message, sizeof error->message, "a number is not finite");
    return MGW_ERR_INPUT;
}

static void updates_that_fail(void **unused)
{
    (void)unused;
    mgw_engine *engine = NULL;
    mgw_error error = {0};
    mgw_engine_options options = {.transport = {.name = "self", .size = 1},
                                  .keeps_parameters = true};
    assert_int_equal(mgw_engine_open(&options, &engine, &error), MGW_OK);
    assert_int_equal(mgw_engine_on_update(engine, refuse, NULL, &error), MGW_OK);
    add_tensors(engine);
    assert_int_equal(mgw_engine_start(engine, &error), MGW_OK);
    assert_int_equal(mgw_engine_on_update(engine, refuse, NULL, &error), MGW_ERR_ARGUMENT);
    assert_int_equal(mgw_engine_begin(engine, &error), MGW_OK);
    run_backward(engine);
    assert_int_equal(mgw_engine_wait(engine, &error), MGW_ERR_INPUT);
    assert_contains(error.message, "rank 0: update of operation 1: a number is not finite");
    assert_int_equal(mgw_engine_begin(engine, &error), MGW_ERR_ARGUMENT);
    assert_contains(error.message, "failed before");
    mgw_engine_close(engine);
}

static void a_gradient_that_never_comes(void **unused)
{
    (void)unused;
    mgw_engine *engine = open_alone((mgw_engine_options){.transport = {.timeout_s = 0.3}});
    mgw_error error = {0};
    assert_int_equal(mgw_engine_begin(engine, &error), MGW_OK);
    mgw_engine_ready(engine, 0);
    assert_int_equal(mgw_engine_wait(engine, &error), MGW_ERR_TIMEOUT);
    assert_contains(error.message, "'t1' was not ready within 0.3 s");
    mgw_engine_close(engine);
}

/* ---- Workers that die or stop ---- */

typedef enum moment { FORWARD, BACKWARD, UPDATING, BEHIND_WAIT, MOMENTS } moment;

typedef struct fault {
    char job[64];
    unsigned rank;
    moment when;
    int signal;
    int step; /* of rank 1's end */
    bool says;
    int now;
} fault;

typedef struct outcome {
    mgw_status status;
    mgw_error error;
    double took_s;
} outcome;

static double now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static void meet_fate(const fault *f, moment here)
{
    if (f->rank == 1 && f->now == f->step && f->when == here)
        kill(getpid(), f->signal);
}

static mgw_status update(void *context, const mgw_shard *shards, size_t count, mgw_error *error)
{
    (void)shards, (void)count, (void)error;
    meet_fate(context, UPDATING);
    return MGW_OK;
}

static mgw_status run_step(fault *f, mgw_engine *engine, mgw_error *error)
{
    mgw_status status = mgw_engine_begin(engine, error);
    for (unsigned t = TENSORS; !status && t-- > 0;) {
        status = mgw_engine_need(engine, t, error);
        if (t == 2)
            meet_fate(f, FORWARD);
    }
    for (unsigned t = 0; !status && t < TENSORS; t++) {
        if (t == 3)
            meet_fate(f, BACKWARD);
        mgw_engine_ready(engine, t);
    }
    if (!status)
        status = mgw_engine_wait(engine, error);
    if (!status)
        meet_fate(f, BEHIND_WAIT);
    if (!status && f->says)
        status = mgw_engine_update(engine, MGW_NO_OPERATION, error);
    return status;
}

static void work(fault *f, outcome *out)
{
    mgw_engine_options options = {.transport = {.name = "emulated:1e-3,0:shm",
                                                .rank = f->rank,
                                                .size = 3,
                                                .job = f->job,
                                                .timeout_s = 1},
                                  .keeps_parameters = true};
    mgw_engine *engine = NULL;
    mgw_error *error = &out->error;
    out->status = mgw_engine_open(&options, &engine, error);
    if (!out->status && !f->says)
        out->status = mgw_engine_on_update(engine, update, f, error);
    if (!out->status)
        add_tensors(engine);
    if (!out->status)
        out->status = mgw_engine_start(engine, error);
    if (!out->status)
        out->status = mgw_engine_set_plan(engine, halves, 4, error);
    double begin_s = 0;
    for (f->now = 0; !out->status && f->now < 100; f->now++) {
        begin_s = now_s();
        out->status = run_step(f, engine, error);
    }
    mgw_engine_close(engine);
    out->took_s = now_s() - begin_s;
}

static void expect_named(const outcome *out, const fault *f, unsigned rank)
{
    if (out->status != MGW_ERR_PEER && out->status != MGW_ERR_TIMEOUT)
        fail_msg("moment %d, signal %d, rank %u: %d %s", f->when, f->signal, rank, out->status,
                 out->error.message);
    assert_contains(out->error.message, "rank 1");
    assert_true(out->took_s < 20); /* the timeout is 1 s; the machine may be busy */
}

static void workers_that_die_or_stop_are_named(void **unused)
{
    (void)unused;
    outcome *outcomes =
        mmap(NULL, 3 * sizeof *outcomes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    for (int number = 0; number < 4 * MOMENTS; number++) {
        fault f = {.when = (moment)(number % MOMENTS),
                   .signal = number / MOMENTS % 2 ? SIGSTOP : SIGKILL,
                   .says = number / MOMENTS / 2,
                   .step = 3};
        if (f.says && f.when == UPDATING)
            continue;
        snprintf(f.job, sizeof f.job, "fate-%ld-%d", (long)getpid(), number);
        memset(outcomes, 0, 3 * sizeof *outcomes);
        pid_t children[3];
        for (unsigned r = 0; r < 3; r++)
            if ((children[r] = fork()) == 0) {
                f.rank = r;
                work(&f, &outcomes[r]);
                _exit(0);
            }
        for (unsigned r = 0; r < 3; r += 2)
            assert_int_equal(waitpid(children[r], NULL, 0), children[r]);
        kill(children[1], SIGKILL);
        assert_int_equal(waitpid(children[1], NULL, 0), children[1]);
        for (unsigned r = 0; r < 3; r += 2)
            expect_named(&outcomes[r], &f, r);
    }
    munmap(outcomes, 3 * sizeof *outcomes);
}

/* ---- Shards that cannot move ---- */

typedef struct mover {
    mgw_engine *engine;
    unsigned rank;
    bool wrong; /* what makes no sense was taken */
} mover;

static mgw_status move_nothing(void *context, const mgw_shard *before, size_t before_count,
                               const mgw_shard *after, size_t after_count, mgw_error *error)
{
    mover *m = context;
    float none = 0;
    (void)before, (void)before_count, (void)after, (void)after_count;
    if (m->rank == 0)
        return MGW_OK;
    m->wrong = mgw_engine_move(m->engine, MGW_F32, &none, &none, 3, error) != MGW_ERR_ARGUMENT ||
               !strstr(error->message, "elements must have 2, 4 or 8 bytes, not 3");
    snprintf(error->message, sizeof error->message, "no room for moments");
    return MGW_ERR_NO_MEMORY;
}

static void adopt_and_step(const char *job_name, unsigned rank, outcome *out)
{
    mgw_engine_options options = {
        .transport = {.name = "shm", .rank = rank, .size = 2, .job = job_name, .timeout_s = 20},
        .keeps_parameters = true};
    mover m = {.rank = rank};
    mgw_error *error = &out->error;
    out->status = mgw_engine_open(&options, &m.engine, error);
    if (!out->status)
        out->status = mgw_engine_on_reshard(m.engine, move_nothing, &m, error);
    if (!out->status)
        add_tensors(m.engine);
    if (!out->status)
        out->status = mgw_engine_start(m.engine, error);
    if (!out->status)
        out->status = mgw_engine_set_plan(m.engine, halves, 4, error);
    if (!out->status)
        out->status = mgw_engine_begin(m.engine, error);
    for (unsigned t = 0; !out->status && t < TENSORS; t++)
        mgw_engine_ready(m.engine, t);
    if (!out->status)
        out->status = mgw_engine_wait(m.engine, error);
    mgw_engine_close(m.engine);
    if (m.wrong)
        snprintf(error->message, sizeof error->message, "move took what makes no sense");
}

static void shards_that_cannot_move(void **unused)
{
    (void)unused;
    outcome *outcomes =
        mmap(NULL, 2 * sizeof *outcomes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    char name[64];
    pid_t children[2];
    snprintf(name, sizeof name, "mover-%ld", (long)getpid());
    for (unsigned r = 0; r < 2; r++)
        if ((children[r] = fork()) == 0) {
            adopt_and_step(name, r, &outcomes[r]);
            _exit(0);
        }
    for (unsigned r = 0; r < 2; r++)
        assert_int_equal(waitpid(children[r], NULL, 0), children[r]);
    assert_int_equal(outcomes[1].status, MGW_ERR_NO_MEMORY);
    assert_contains(outcomes[1].error.message, "rank 1: reshard: no room for moments");
    assert_int_equal(outcomes[0].status, MGW_ERR_PEER);
    assert_contains(outcomes[0].error.message, "rank 1");
    munmap(outcomes, 2 * sizeof *outcomes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(updates_must_be_said),
        cmocka_unit_test(parameters_that_are_not_kept),
        cmocka_unit_test(plans_that_cannot_be),
        cmocka_unit_test(pinned_plans_that_cannot_be),
        cmocka_unit_test(updates_that_fail),
        cmocka_unit_test(a_gradient_that_never_comes),
        cmocka_unit_test(shards_that_cannot_move),
        cmocka_unit_test(workers_that_die_or_stop_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
