/* Failures of the engine: misuse, workers that disagree, workers that die; and the error messages.
 */
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "support.h"

typedef struct worker_result {
    mgw_status status;
    mgw_error error;
} worker_result;

static void pause_us(long us)
{
    struct timespec pause = {.tv_nsec = us * 1000};
    nanosleep(&pause, NULL);
}

/* ---- Misuse ---- */

static mgw_engine *open_alone(mgw_engine_options options)
{
    mgw_engine *engine = NULL;
    mgw_error error = {0};
    unsigned id = 0;
    options.transport.name = "self";
    options.transport.size = 1;
    if (mgw_engine_open(&options, &engine, &error) ||
        mgw_engine_add(engine, "a", 10, MGW_F32, &id, &error) ||
        mgw_engine_add(engine, "b", 10, MGW_F32, &id, &error) || mgw_engine_start(engine, &error))
        fail_msg("%s", error.message);
    return engine;
}

static void ready_twice_is_an_error(void **unused)
{
    (void)unused;
    mgw_engine *engine = open_alone((mgw_engine_options){0});
    mgw_error error = {0};
    assert_int_equal(mgw_engine_begin(engine, &error), MGW_OK);
    mgw_engine_ready(engine, 0);
    mgw_engine_ready(engine, 0);
    mgw_engine_ready(engine, 1);
    assert_int_equal(mgw_engine_wait(engine, &error), MGW_ERR_ARGUMENT);
    assert_contains(error.message, "tensor 0 ('a') was ready twice");
    assert_int_equal(mgw_engine_begin(engine, &error), MGW_ERR_ARGUMENT);
    assert_contains(error.message, "failed before");
    mgw_engine_close(engine);
}

/* Before start there are no books to look into; later the step would wait for it in vain. */
static void ready_outside_of_a_step_is_an_error(void **unused)
{
    (void)unused;
    mgw_engine *engine = NULL;
    mgw_error error = {0};
    unsigned id = 0;
    mgw_engine_options options = {.transport = {.name = "self", .size = 1}};
    assert_int_equal(mgw_engine_open(&options, &engine, &error), MGW_OK);
    assert_int_equal(mgw_engine_add(engine, "a", 10, MGW_F32, &id, &error), MGW_OK);
    mgw_engine_ready(engine, id);
    assert_int_equal(mgw_engine_start(engine, &error), MGW_OK);
    assert_int_equal(mgw_engine_begin(engine, &error), MGW_ERR_ARGUMENT);
    assert_contains(error.message, "tensor 0 ('a') was ready outside of a step");
    mgw_engine_close(engine);
    for (int steps = 0; steps < 2; steps++) {
        engine = open_alone((mgw_engine_options){0});
        for (int step = 0; step < steps; step++) {
            assert_int_equal(mgw_engine_begin(engine, &error), MGW_OK);
            mgw_engine_ready(engine, 0);
            mgw_engine_ready(engine, 1);
            assert_int_equal(mgw_engine_wait(engine, &error), MGW_OK);
        }
        mgw_engine_ready(engine, 1);
        assert_int_equal(mgw_engine_begin(engine, &error), MGW_ERR_ARGUMENT);
        assert_contains(error.message, "tensor 1 ('b') was ready outside of a step");
        mgw_engine_close(engine);
    }
}

static void unknown_tensors_are_an_error(void **unused)
{
    (void)unused;
    mgw_engine *engine = open_alone((mgw_engine_options){0});
    mgw_error error = {0};
    assert_int_equal(mgw_engine_begin(engine, &error), MGW_OK);
    mgw_engine_ready(engine, 0);
    mgw_engine_ready(engine, 1);
    mgw_engine_ready(engine, 7);
    assert_int_equal(mgw_engine_wait(engine, &error), MGW_ERR_ARGUMENT);
    assert_contains(error.message, "there is no tensor 7");
    mgw_engine_close(engine);
}

static void a_tensor_that_is_never_ready(void **unused)
{
    (void)unused;
    mgw_engine *engine = open_alone((mgw_engine_options){.transport = {.timeout_s = 0.3}});
    mgw_error error = {0};
    assert_int_equal(mgw_engine_begin(engine, &error), MGW_OK);
    mgw_engine_ready(engine, 0);
    assert_int_equal(mgw_engine_wait(engine, &error), MGW_ERR_TIMEOUT);
    assert_contains(error.message, "'b' was not ready within 0.3 s");
    mgw_engine_close(engine);
}

static void *make_ready_later(void *engine)
{
    pause_us(250000);
    mgw_engine_ready(engine, 1);
    return NULL;
}

/* Another thread may bring a gradient while the first waits already, with no options set. */
static void ready_from_another_thread(void **unused)
{
    (void)unused;
    mgw_engine *engine = open_alone((mgw_engine_options){0});
    mgw_error error = {0};
    for (int step = 0; step < 3; step++) {
        pthread_t thread;
        assert_int_equal(mgw_engine_begin(engine, &error), MGW_OK);
        mgw_engine_ready(engine, 0);
        assert_int_equal(pthread_create(&thread, NULL, make_ready_later, engine), 0);
        if (mgw_engine_wait(engine, &error))
            fail_msg("%s", error.message);
        pthread_join(thread, NULL);
    }
    mgw_engine_close(engine);
}

static void wrong_order_of_calls(void **unused)
{
    (void)unused;
    mgw_engine *engine = open_alone((mgw_engine_options){0});
    mgw_error error = {0};
    unsigned id = 0;
    assert_int_equal(mgw_engine_wait(engine, &error), MGW_ERR_ARGUMENT);
    assert_contains(error.message, "no step has begun");
    assert_int_equal(mgw_engine_add(engine, "c", 1, MGW_F32, &id, &error), MGW_ERR_ARGUMENT);
    assert_contains(error.message, "cannot be added or resized");
    assert_int_equal(mgw_engine_start(engine, &error), MGW_ERR_ARGUMENT);
    assert_int_equal(mgw_engine_begin(engine, &error), MGW_OK);
    assert_int_equal(mgw_engine_begin(engine, &error), MGW_ERR_ARGUMENT);
    assert_contains(error.message, "was not waited for");
    double number = 1;
    assert_int_equal(mgw_engine_all_reduce(engine, &number, 1, MGW_F64, MGW_SUM, &error),
                     MGW_ERR_ARGUMENT);
    assert_contains(error.message, "all-reduce: only between steps");
    assert_int_equal(mgw_engine_broadcast(engine, &number, sizeof number, &error),
                     MGW_ERR_ARGUMENT);
    assert_null(mgw_engine_gradient(engine, 5));
    mgw_engine_close(engine); /* in the middle of a step */
}

static void bad_options(void **unused)
{
    (void)unused;
    mgw_engine *engine = NULL;
    mgw_error error = {0};
    mgw_engine_options options = {.policy = "best"};
    assert_int_equal(mgw_engine_open(&options, &engine, &error), MGW_ERR_ARGUMENT);
    options = (mgw_engine_options){.wire = "f8"};
    assert_int_equal(mgw_engine_open(&options, &engine, &error), MGW_ERR_ARGUMENT);
    assert_contains(error.message, "'f8'");
    setenv("MGWFBP_PROFILE_STEPS", "0", 1);
    assert_int_equal(mgw_engine_open(NULL, &engine, &error), MGW_ERR_ARGUMENT);
    assert_contains(error.message, "MGWFBP_PROFILE_STEPS");
    unsetenv("MGWFBP_PROFILE_STEPS");
    assert_int_equal(mgw_engine_open(NULL, &engine, &error), MGW_OK);
    assert_int_equal(mgw_engine_start(engine, &error), MGW_ERR_ARGUMENT);
    assert_contains(error.message, "no tensors");
    mgw_engine_close(engine);
}

static void expect_no_engine(mgw_status status, mgw_error *error, const char *call)
{
    char message[80];
    snprintf(message, sizeof message, "%s: the engine is null", call);
    assert_int_equal(status, MGW_ERR_ARGUMENT);
    assert_string_equal(error->message, message);
    *error = (mgw_error){0};
}

/* A failed open whose error was ignored. */
static void no_engine_is_an_error(void **unused)
{
    (void)unused;
    mgw_error e = {0};
    unsigned id = 0;
    double number = 0;
    mgw_timeline *timeline = NULL;
    const mgw_operation one = {.count = 1};
    expect_no_engine(mgw_engine_add(NULL, "a", 1, MGW_F32, &id, &e), &e, "add");
    expect_no_engine(mgw_engine_start(NULL, &e), &e, "start");
    expect_no_engine(mgw_engine_bind(NULL, 0, &number, &e), &e, "bind");
    expect_no_engine(mgw_engine_begin(NULL, &e), &e, "begin");
    expect_no_engine(mgw_engine_wait(NULL, &e), &e, "wait");
    expect_no_engine(mgw_engine_synchronize(NULL, &e), &e, "synchronize");
    expect_no_engine(mgw_engine_barrier(NULL, &e), &e, "barrier");
    expect_no_engine(mgw_engine_all_reduce(NULL, &number, 1, MGW_F64, MGW_SUM, &e), &e,
                     "all-reduce");
    expect_no_engine(mgw_engine_broadcast(NULL, &number, sizeof number, &e), &e, "broadcast");
    expect_no_engine(mgw_engine_on_update(NULL, NULL, NULL, &e), &e, "on_update");
    expect_no_engine(mgw_engine_on_reshard(NULL, NULL, NULL, &e), &e, "on_reshard");
    expect_no_engine(mgw_engine_update(NULL, 0, &e), &e, "update");
    expect_no_engine(mgw_engine_need(NULL, 0, &e), &e, "need");
    expect_no_engine(mgw_engine_drain(NULL, &e), &e, "drain");
    expect_no_engine(mgw_engine_move(NULL, MGW_F32, &number, &number, 4, &e), &e, "move");
    expect_no_engine(mgw_engine_timeline(NULL, &timeline, &e), &e, "timeline");
    expect_no_engine(mgw_engine_set_policy(NULL, "wfbp", &e), &e, "set_policy");
    expect_no_engine(mgw_engine_set_plan(NULL, &one, 1, &e), &e, "set_plan");
    expect_no_engine(mgw_engine_reform(NULL, NULL, &(mgw_engine *){NULL}, &e), &e, "reform");
}

static void no_engine_has_nothing(void **unused)
{
    (void)unused;
    size_t count = 7;
    uint64_t plan = 7;
    unsigned id = 0;
    double at_s = 0;
    mgw_engine_statistics statistics = {.steps = 7};
    mgw_engine_ready(NULL, 0);
    mgw_engine_ready_on(NULL, 0, NULL);
    mgw_engine_ready_range(NULL, 0, 2);
    mgw_engine_ready_at(NULL, 0, &at_s, NULL);
    mgw_engine_ready_all(NULL, &id, 1, &at_s, NULL, NULL);
    mgw_engine_mark(NULL, 0, NULL);
    mgw_engine_set_stream(NULL, NULL);
    mgw_engine_close(NULL);
    assert_int_equal(mgw_engine_rank(NULL), 0);
    assert_int_equal(mgw_engine_size(NULL), 0);
    assert_int_equal(mgw_engine_samples(NULL, &id), 0);
    assert_null(mgw_engine_gradient(NULL, 0));
    assert_null(mgw_engine_parameter(NULL, 0));
    assert_null(mgw_engine_gradient_memory(NULL, MGW_F32));
    assert_null(mgw_engine_parameter_memory(NULL, MGW_F32));
    assert_int_equal(mgw_engine_parameter_dtype(NULL, MGW_F32), MGW_F32);
    assert_null(mgw_engine_operations(NULL, &count, &plan));
    assert_int_equal(count + plan, 0);
    count = 7;
    assert_null(mgw_engine_shards(NULL, &count));
    assert_int_equal(count, 0);
    assert_int_equal(mgw_engine_shard_length(NULL, MGW_F32), 0);
    mgw_engine_measure(NULL, &statistics);
    assert_int_equal(statistics.steps, 0);
    assert_null(mgw_engine_plan(NULL));
    count = 7;
    assert_null(mgw_engine_tried(NULL, &count));
    assert_int_equal(count, 0);
    assert_null(mgw_engine_cluster(NULL));
    assert_null(mgw_engine_trace(NULL));
}

static void nothing_in_place_of_a_name_or_numbers(void **unused)
{
    (void)unused;
    mgw_engine *engine = NULL;
    mgw_error error = {0};
    unsigned id = 0;
    size_t count = 7;
    uint64_t plan = 7;
    mgw_engine_options options = {.transport = {.name = "self", .size = 1}};
    assert_int_equal(mgw_engine_open(&options, &engine, &error), MGW_OK);
    assert_int_equal(mgw_engine_add(engine, "a", 10, MGW_F32, &id, &error), MGW_OK);
    assert_int_equal(mgw_engine_add(engine, NULL, 10, MGW_F32, &id, &error), MGW_ERR_ARGUMENT);
    assert_string_equal(error.message, "add: the name of tensor 1 is null");
    assert_null(mgw_engine_operations(engine, &count, &plan)); /* before start */
    assert_int_equal(count + plan, 0);
    assert_int_equal(mgw_engine_start(engine, &error), MGW_OK);
    assert_int_equal(mgw_engine_set_policy(engine, NULL, &error), MGW_ERR_ARGUMENT);
    assert_string_equal(error.message, "set_policy: the name is null");
    assert_int_equal(mgw_engine_set_plan(engine, NULL, 1, &error), MGW_ERR_ARGUMENT);
    assert_string_equal(error.message, "set_plan: the operations are null");
    assert_int_equal(mgw_engine_all_reduce(engine, NULL, 1, MGW_F32, MGW_SUM, &error),
                     MGW_ERR_ARGUMENT);
    assert_string_equal(error.message, "all-reduce: the numbers are null");
    assert_int_equal(mgw_engine_all_reduce(engine, NULL, 0, MGW_F32, MGW_SUM, &error), MGW_OK);
    mgw_engine_close(engine);
}

/* ---- Workers that disagree, and workers that die ---- */

typedef struct odd_one {
    unsigned rank;
    worker_result *result;
} odd_one;

static void *open_with_other_options(void *argument)
{
    const odd_one *o = argument;
    mgw_engine_options options = {
        .transport = {.name = "shm", .rank = o->rank, .size = 2, .job = "options", .timeout_s = 30},
        .profile_steps = o->rank ? 6 : 5};
    mgw_engine *engine = NULL;
    unsigned id = 0;
    o->result->status = mgw_engine_open(&options, &engine, &o->result->error);
    if (!o->result->status)
        o->result->status = mgw_engine_add(engine, "a", 10, MGW_F32, &id, &o->result->error);
    if (!o->result->status)
        o->result->status = mgw_engine_start(engine, &o->result->error);
    mgw_engine_close(engine);
    return NULL;
}

/* Different options would make different collectives meet, and gradients silently wrong. */
static void options_that_differ_are_refused(void **unused)
{
    (void)unused;
    pthread_t threads[2];
    worker_result results[2] = {0};
    odd_one ones[2];
    for (unsigned r = 0; r < 2; r++) {
        ones[r] = (odd_one){r, &results[r]};
        assert_int_equal(pthread_create(&threads[r], NULL, open_with_other_options, &ones[r]), 0);
    }
    for (unsigned r = 0; r < 2; r++)
        pthread_join(threads[r], NULL);
    for (unsigned r = 0; r < 2; r++) {
        assert_int_equal(results[r].status, MGW_ERR_ARGUMENT);
        assert_contains(results[r].error.message, "the options are");
        assert_contains(results[r].error.message, "profile 6");
    }
}

typedef struct fault {
    const char *job;
    unsigned rank;
    int die_at; /* step at which rank 1 is killed */
    worker_result *result;
} fault;

static void *disagree(void *argument)
{
    const fault *f = argument;
    mgw_engine_options options = {
        .transport = {.name = "shm", .rank = f->rank, .size = 3, .job = f->job, .timeout_s = 30}};
    mgw_engine *engine = NULL;
    unsigned id = 0;
    f->result->status = mgw_engine_open(&options, &engine, &f->result->error);
    if (!f->result->status)
        f->result->status = mgw_engine_add(engine, "first", 10, MGW_F32, &id, &f->result->error);
    if (!f->result->status)
        f->result->status = mgw_engine_add(engine, "second", f->rank == 2 ? 11 : 10, MGW_F32, &id,
                                           &f->result->error);
    if (!f->result->status)
        f->result->status = mgw_engine_start(engine, &f->result->error);
    mgw_engine_close(engine);
    return NULL;
}

static void workers_that_disagree_learn_where(void **unused)
{
    (void)unused;
    pthread_t threads[3];
    fault faults[3];
    worker_result results[3] = {0};
    for (unsigned r = 0; r < 3; r++) {
        faults[r] = (fault){"disagree", r, 0, &results[r]};
        assert_int_equal(pthread_create(&threads[r], NULL, disagree, &faults[r]), 0);
    }
    for (unsigned r = 0; r < 3; r++)
        pthread_join(threads[r], NULL);
    for (unsigned r = 0; r < 3; r++) {
        assert_int_equal(results[r].status, MGW_ERR_ARGUMENT);
        assert_contains(results[r].error.message,
                        "tensor 1 is 'second f32[10]' on rank 0 and 'second f32[11]' on rank 2");
    }
}

static void train_until_death(const fault *f)
{
    mgw_engine_options options = {
        .transport = {.name = "shm", .rank = f->rank, .size = 3, .job = f->job, .timeout_s = 30},
        .profile_steps = 2,
        .replan_steps = 4};
    mgw_engine *engine = NULL;
    unsigned id = 0;
    mgw_error *error = &f->result->error;
    f->result->status = mgw_engine_open(&options, &engine, error);
    for (int t = 0; !f->result->status && t < 5; t++) {
        char name[8];
        snprintf(name, sizeof name, "t%d", t);
        f->result->status = mgw_engine_add(engine, name, 4000, MGW_F32, &id, error);
    }
    if (!f->result->status)
        f->result->status = mgw_engine_start(engine, error);
    for (int step = 0; !f->result->status; step++) {
        f->result->status = mgw_engine_begin(engine, error);
        for (unsigned t = 0; !f->result->status && t < 5; t++) {
            if (f->rank == 1 && step == f->die_at && t == 3)
                kill(getpid(), SIGKILL);
            mgw_engine_ready(engine, t);
        }
        if (!f->result->status)
            f->result->status = mgw_engine_wait(engine, error);
    }
    mgw_engine_close(engine);
}

static void deaths_end_in_errors(void **unused)
{
    (void)unused;
    worker_result *results =
        mmap(NULL, 3 * sizeof *results, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    for (int die_at = 0; die_at < 12; die_at++) {
        char job[64];
        snprintf(job, sizeof job, "death-%ld-%d", (long)getpid(), die_at);
        memset(results, 0, 3 * sizeof *results);
        pid_t children[3];
        for (unsigned r = 0; r < 3; r++)
            if ((children[r] = fork()) == 0) {
                fault f = {job, r, die_at, &results[r]};
                train_until_death(&f);
                _exit(0);
            }
        for (unsigned r = 0; r < 3; r++) {
            int ended = 0;
            assert_int_equal(waitpid(children[r], &ended, 0), children[r]);
            if (r != 1 && ended)
                fail_msg("death at step %d: rank %u ended with status %x", die_at, r, ended);
        }
        for (unsigned r = 0; r < 3; r += 2) {
            if (results[r].status != MGW_ERR_PEER)
                fail_msg("death at step %d, rank %u: %d %s", die_at, r, results[r].status,
                         results[r].error.message);
            assert_contains(results[r].error.message, "rank 1");
        }
    }
    munmap(results, 3 * sizeof *results);
}

/* ---- What it tells ---- */

static void the_timeline_is_the_step(void **unused)
{
    (void)unused;
    mgw_engine *engine = open_alone((mgw_engine_options){.profile_steps = 2});
    mgw_error error = {0};
    for (int step = 0; step < 6; step++) {
        assert_int_equal(mgw_engine_begin(engine, &error), MGW_OK);
        mgw_engine_ready(engine, 0);
        pause_us(2000);
        mgw_engine_ready(engine, 1);
        assert_int_equal(mgw_engine_wait(engine, &error), MGW_OK);
    }
    mgw_engine_statistics statistics;
    mgw_engine_measure(engine, &statistics);
    assert_int_equal(statistics.steps, 6);
    assert_int_equal(statistics.plans, 1);
    assert_int_equal(statistics.tensors, 2);
    assert_int_equal(statistics.arena_bytes, 128);
    assert_int_equal(statistics.extra_bytes, 0);
    assert_int_equal(statistics.copied_bytes, 0);
    assert_true(statistics.compute_s >= 0.002);
    assert_true(statistics.exposed_s >= 0);
    assert_true(statistics.predicted_s >= 0.002);
    const mgw_trace *trace = mgw_engine_trace(engine);
    assert_true(trace->tensors[1].backward_s >= 0.002);
    mgw_timeline *timeline = NULL;
    assert_int_equal(mgw_engine_timeline(engine, &timeline, &error), MGW_OK);
    mgw_timeline_stats stats = mgw_timeline_measure(timeline);
    assert_int_equal(stats.messages, statistics.messages);
    assert_true(stats.compute_s >= 0.002);
    assert_string_equal(mgw_timeline_tensor_name(timeline, 1), "b");
    mgw_timeline_destroy(timeline);
    assert_int_equal(mgw_engine_set_policy(engine, "single", &error), MGW_OK);
    assert_string_equal(mgw_engine_plan(engine)->policy, "single");
    mgw_engine_close(engine);
}

/* A new plan between the step and the question changes nothing about the step. */
static void the_timeline_outlives_its_plan(void **unused)
{
    (void)unused;
    static const char *const policies[] = {"single", "wfbp", "single"};
    mgw_engine *engine = open_alone((mgw_engine_options){.policy = "wfbp", .profile_steps = 1});
    mgw_error error = {0};
    for (int step = 0; step < 2; step++) { /* the first one leads to a plan of two messages */
        assert_int_equal(mgw_engine_begin(engine, &error), MGW_OK);
        mgw_engine_ready(engine, 0);
        pause_us(2000);
        mgw_engine_ready(engine, 1);
        assert_int_equal(mgw_engine_wait(engine, &error), MGW_OK);
    }
    for (size_t i = 0; i < sizeof policies / sizeof *policies; i++) {
        mgw_timeline *timeline = NULL;
        assert_int_equal(mgw_engine_set_policy(engine, policies[i], &error), MGW_OK);
        assert_int_equal(mgw_engine_timeline(engine, &timeline, &error), MGW_OK);
        assert_int_equal(timeline->span_count, 3);
        for (size_t m = 1; m < 3; m++) {
            assert_int_equal(timeline->spans[m].count, 1);
            assert_true(timeline->spans[m].end_s > 0);
        }
        assert_true(timeline->spans[2].start_s >= 0.002);
        mgw_timeline_destroy(timeline);
    }
    mgw_engine_close(engine);
}

static void bytes_are_those_that_travel(void **unused)
{
    (void)unused;
    static const char *const wires[] = {"f32", "bf16"};
    for (unsigned w = 0; w < 2; w++) {
        mgw_engine *engine = open_alone((mgw_engine_options){.wire = wires[w]});
        mgw_error error = {0};
        mgw_timeline *timeline = NULL;
        assert_int_equal(mgw_engine_begin(engine, &error), MGW_OK);
        mgw_engine_ready(engine, 0);
        mgw_engine_ready(engine, 1);
        assert_int_equal(mgw_engine_wait(engine, &error), MGW_OK);
        assert_int_equal(mgw_engine_timeline(engine, &timeline, &error), MGW_OK);
        assert_int_equal(timeline->span_count, 2);
        assert_int_equal(timeline->spans[1].bytes, w ? 64 : 128);
        mgw_engine_statistics statistics;
        mgw_engine_measure(engine, &statistics);
        assert_int_equal(statistics.extra_bytes, w ? 64 : 0);
        mgw_timeline_destroy(timeline);
        mgw_engine_close(engine);
    }
}

/* ---- Files that differ ---- */

/* In a folder of its own, where the file is one of ours, or is not. */
static void start_with_cluster(const char *name, unsigned rank, const char *cluster,
                               worker_result *result)
{
    char folder[] = "/tmp/mgwfbp-cluster-XXXXXX";
    char path[1000];
    snprintf(path, sizeof path, FIXTURES "/../../data/clusters/%s.json", cluster);
    if (!mkdtemp(folder) || chdir(folder) || symlink(path, "cluster.json"))
        _exit(1);
    mgw_engine_options options = {
        .transport = {.name = "shm", .rank = rank, .size = 3, .job = name, .timeout_s = 20},
        .cluster = "cluster.json"};
    mgw_engine *engine = NULL;
    unsigned id = 0;
    result->status = mgw_engine_open(&options, &engine, &result->error);
    if (!result->status)
        result->status = mgw_engine_add(engine, "a", 10, MGW_F32, &id, &result->error);
    if (!result->status)
        result->status = mgw_engine_start(engine, &result->error);
    mgw_engine_close(engine);
    unlink("cluster.json");
    rmdir(folder);
}

/* Rank 1 has another cluster than the others, or none. */
static void clusters_must_be_the_same(void **unused)
{
    (void)unused;
    static const struct {
        const char *cluster, *own, *others;
    } cases[] = {
        {"paper-1-10gbe", NULL, NULL},
        {"no such cluster", "rank 1: ", "rank 1 cannot read the cluster 'cluster.json'"},
        {"paper-2-10gbe", "rank 1 has a different cluster than rank 0",
         "rank 1 has a different cluster than rank 0 in 'cluster.json'"},
    };
    worker_result *results =
        mmap(NULL, 3 * sizeof *results, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    for (size_t i = 0; i < 3; i++) {
        char name[64];
        pid_t children[3];
        snprintf(name, sizeof name, "cluster-%ld-%zu", (long)getpid(), i);
        memset(results, 0, 3 * sizeof *results);
        for (unsigned r = 0; r < 3; r++)
            if ((children[r] = fork()) == 0) {
                start_with_cluster(name, r, r == 1 ? cases[i].cluster : "paper-1-10gbe",
                                   &results[r]);
                _exit(0);
            }
        for (unsigned r = 0; r < 3; r++) {
            assert_int_equal(waitpid(children[r], NULL, 0), children[r]);
            const char *words = r == 1 ? cases[i].own : cases[i].others;
            assert_int_equal(!words, results[r].status == MGW_OK);
            if (words)
                assert_contains(results[r].error.message, words);
        }
    }
    munmap(results, 3 * sizeof *results);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ready_twice_is_an_error),
        cmocka_unit_test(ready_outside_of_a_step_is_an_error),
        cmocka_unit_test(unknown_tensors_are_an_error),
        cmocka_unit_test(a_tensor_that_is_never_ready),
        cmocka_unit_test(ready_from_another_thread),
        cmocka_unit_test(wrong_order_of_calls),
        cmocka_unit_test(bad_options),
        cmocka_unit_test(no_engine_is_an_error),
        cmocka_unit_test(no_engine_has_nothing),
        cmocka_unit_test(nothing_in_place_of_a_name_or_numbers),
        cmocka_unit_test(workers_that_disagree_learn_where),
        cmocka_unit_test(options_that_differ_are_refused),
        cmocka_unit_test(deaths_end_in_errors),
        cmocka_unit_test(the_timeline_is_the_step),
        cmocka_unit_test(the_timeline_outlives_its_plan),
        cmocka_unit_test(bytes_are_those_that_travel),
        cmocka_unit_test(clusters_must_be_the_same),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
