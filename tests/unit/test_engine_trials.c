/* Trials of plans on real steps: sums stay exact across switches, workers agree at every step, dead
 * workers are named; and plans from files. */
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "support.h"

enum { TENSORS = 10, ELEMENTS = 60000, MOST_STEPS = 250, MOST_RANKS = 4 };

typedef struct outcome {
    mgw_status status;
    mgw_error error;
    char wrong[200];
    int steps;
    uint64_t plans;
    uint64_t trials;
    uint64_t trial_steps;
    double cost_s;
    uint64_t cuts[MOST_STEPS]; /* by step: where messages begin, as bits */
    mgw_tried tried[MGW_TRIED_MAX];
    size_t tried_count;
} outcome;

typedef struct run {
    char job[64];
    unsigned size;
    int steps;      /* at most: it ends some steps after the first trial */
    int die_at;     /* step of the first trial at which rank 1 is killed; 0: never */
    int trials;     /* the option */
    size_t tensors; /* 0: the usual */
    bool clear;     /* which plan is best: two tensors, and messages that take long */
    const char *plan[MOST_RANKS];
    const char *save; /* the plan in the end */
    outcome *of;      /* by rank, in shared memory */
} run;

typedef struct worker {
    const run *run;
    unsigned rank;
} worker;

static double value_of(unsigned rank, size_t tensor, size_t i, int step)
{
    return (double)((rank + 1) * (1 + (tensor * 7 + i * 3 + (size_t)step * 5) % 97));
}

/* DDP cuts behind the first one that is larger than a MiB. */
static size_t elements_of(const run *r, size_t tensor)
{
    return !r->clear ? ELEMENTS : tensor == 0 ? 10 * ELEMENTS : 1;
}

static void check_sums(const run *r, mgw_engine *engine, size_t tensors, int step, outcome *o)
{
    for (size_t t = 0; t < tensors; t++) {
        const float *gradient = mgw_engine_gradient(engine, (unsigned)t);
        for (size_t i = 0; i < elements_of(r, t); i += 997) {
            double expected = 0;
            for (unsigned rank = 0; rank < r->size; rank++)
                expected += value_of(rank, t, i, step);
            if (gradient[i] != expected && !o->wrong[0])
                snprintf(o->wrong, sizeof o->wrong, "step %d, tensor %zu, element %zu: %g, not %g",
                         step, t, i, gradient[i], expected);
        }
    }
}

static uint64_t cuts_of(const mgw_engine *engine)
{
    const mgw_plan *plan = mgw_engine_plan(engine);
    uint64_t cuts = 0;
    for (size_t m = 0; plan && m < plan->operation_count; m++)
        cuts |= (uint64_t)1 << plan->operations[m].first;
    return cuts;
}

static bool train(const run *r, unsigned rank, mgw_engine *engine, size_t tensors, outcome *o)
{
    int tried = 0; /* steps */
    int after = 0;
    for (int step = 0; step < r->steps && after < 10; step++) {
        mgw_engine_statistics s;
        mgw_engine_measure(engine, &s);
        if ((o->status = mgw_engine_begin(engine, &o->error)))
            return false;
        for (size_t t = 0; t < tensors; t++) {
            float *gradient = mgw_engine_gradient(engine, (unsigned)t);
            for (size_t i = 0; i < elements_of(r, t); i += 997)
                gradient[i] = (float)value_of(rank, t, i, step);
            nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
            if (r->die_at && rank == 1 && tried == r->die_at && t == tensors / 2)
                kill(getpid(), SIGKILL);
            mgw_engine_ready(engine, (unsigned)t);
        }
        if ((o->status = mgw_engine_wait(engine, &o->error)))
            return false;
        check_sums(r, engine, tensors, step, o);
        o->cuts[o->steps++] = cuts_of(engine);
        mgw_engine_measure(engine, &s);
        tried += s.trying > 0;
        after += s.trials > 0;
    }
    return true;
}

static void take_down(const run *r, unsigned rank, mgw_engine *engine, outcome *o)
{
    mgw_engine_statistics s;
    mgw_engine_measure(engine, &s);
    o->plans = s.plans;
    o->trials = s.trials;
    o->trial_steps = s.trial_steps;
    o->cost_s = s.trial_cost_s;
    const mgw_tried *tried = mgw_engine_tried(engine, &o->tried_count);
    memcpy(o->tried, tried, o->tried_count * sizeof *tried);
    if (!r->save || rank)
        return;
    mgw_text text;
    mgw_text_init(&text);
    mgw_plan_write(mgw_engine_plan(engine), &text);
    o->status = mgw_text_save(&text, r->save, &o->error);
    mgw_text_fini(&text);
}

static void *work(void *argument)
{
    const worker *w = argument;
    const run *r = w->run;
    outcome *o = &r->of[w->rank];
    size_t tensors = r->tensors ? r->tensors : r->clear ? 2 : TENSORS;
    mgw_engine_options options = {
        .transport = {.name = r->clear ? "emulated:25e-3,0:shm" : "emulated:1e-3,2e-10:shm",
                      .rank = w->rank,
                      .size = r->size,
                      .job = r->job,
                      .timeout_s = 30},
        .op = MGW_SUM,
        .profile_steps = 3,
        .trials = r->trials,
        .plan = r->plan[w->rank]};
    mgw_engine *engine = NULL;
    o->status = mgw_engine_open(&options, &engine, &o->error);
    for (size_t t = 0; !o->status && t < tensors; t++) {
        char name[16];
        unsigned id = 0;
        snprintf(name, sizeof name, "t%zu", t);
        o->status = mgw_engine_add(engine, name, elements_of(r, t), MGW_F32, &id, &o->error);
    }
    if (!o->status)
        o->status = mgw_engine_start(engine, &o->error);
    if (!o->status && train(r, w->rank, engine, tensors, o))
        take_down(r, w->rank, engine, o);
    mgw_engine_close(engine);
    return NULL;
}

static void start(run *r)
{
    static int number;
    snprintf(r->job, sizeof r->job, "trials-%ld-%d", (long)getpid(), number++);
    if (!r->of)
        r->of = mmap(NULL, MOST_RANKS * sizeof *r->of, PROT_READ | PROT_WRITE,
                     MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(r->of != MAP_FAILED);
    memset(r->of, 0, MOST_RANKS * sizeof *r->of);
}

static void run_threads(run *r)
{
    pthread_t threads[MOST_RANKS];
    worker workers[MOST_RANKS];
    start(r);
    for (unsigned k = 0; k < r->size; k++) {
        workers[k] = (worker){r, k};
        assert_int_equal(pthread_create(&threads[k], NULL, work, &workers[k]), 0);
    }
    for (unsigned k = 0; k < r->size; k++)
        pthread_join(threads[k], NULL);
}

static void expect_good(const run *r)
{
    for (unsigned k = 0; k < r->size; k++) {
        const outcome *o = &r->of[k];
        if (o->status || o->wrong[0])
            fail_msg("%u workers, rank %u: %s%s", r->size, k, o->error.message, o->wrong);
        assert_int_equal(o->steps, r->of[0].steps);
        for (int step = 0; step < o->steps; step++)
            if (o->cuts[step] != r->of[0].cuts[step])
                fail_msg("rank %u has another plan in step %d", k, step);
        assert_int_equal(o->tried_count, r->of[0].tried_count);
        assert_memory_equal(o->tried, r->of[0].tried, o->tried_count * sizeof *o->tried);
    }
}

static void end(run *r)
{
    munmap(r->of, MOST_RANKS * sizeof *r->of);
}

/* ---- Trials ---- */

static void test_exact_across_switches(void **state)
{
    (void)state;
    for (unsigned size = 2; size <= 4; size++) {
        run r = {.size = size, .steps = 120};
        run_threads(&r);
        expect_good(&r);
        const outcome *o = &r.of[0];
        unsigned switches = 0;
        for (int step = 1; step < o->steps; step++)
            switches += o->cuts[step] != o->cuts[step - 1];
        assert_in_range(o->tried_count, 2, 8);
        /* Two turns each at least. How many more it takes depends on how busy the machine is. */
        assert_true(switches + 1 >= 2 * o->tried_count);
        assert_string_equal(o->tried[0].name, "ddp");
        assert_int_equal(o->tried[0].messages, 2);
        for (size_t i = 0; i < o->tried_count; i++) {
            assert_true(o->tried[i].rounds >= 2 && o->tried[i].measured_s > 2e-3);
            assert_true(o->tried[i].predicted_s > 1e-3 && o->tried[i].ratio >= 1);
        }
        end(&r);
    }
}

/* Two messages of 25 ms, or one: that is clear after a few rounds, and told. */
static void test_the_better_one_stays(void **state)
{
    (void)state;
    run r = {.size = 2, .steps = MOST_STEPS, .clear = true};
    run_threads(&r);
    expect_good(&r);
    const outcome *o = &r.of[0];
    assert_int_equal(o->trials, 1);
    assert_in_range(o->trial_steps, 2 * 2 * 5, MOST_STEPS); /* the first look */
    assert_int_equal(o->tried_count, 2);
    assert_string_equal(o->tried[0].name, "ddp");
    assert_string_equal(o->tried[1].name, "optimal");
    assert_true(o->tried[0].messages == 2 && o->tried[1].messages == 1);
    assert_true(o->tried[1].kept && !o->tried[0].kept);
    assert_true(o->tried[0].ratio > 1.3 && o->tried[1].ratio == 1);
    assert_true(o->cuts[o->steps - 1] == 1);
    assert_true(o->cost_s > 5 * 2 * 10e-3);
    end(&r);
}

static void test_off(void **state)
{
    (void)state;
    run r = {.size = 2, .steps = 40, .trials = -1};
    run_threads(&r);
    expect_good(&r);
    assert_true(r.of[0].trials == 0 && r.of[0].tried_count == 0 && r.of[0].plans == 1);
    for (int step = 4; step < 40; step++)
        assert_true(r.of[0].cuts[step] == r.of[0].cuts[3]);
    end(&r);
}

/* In the first turn, at the end of one, behind a round: the others say who it was. */
static void test_deaths(void **state)
{
    (void)state;
    static const int at[] = {1, 5, 24};
    for (size_t i = 0; i < sizeof at / sizeof *at; i++) {
        run r = {.size = 3, .steps = MOST_STEPS, .die_at = at[i]};
        pid_t children[3];
        start(&r);
        for (unsigned k = 0; k < 3; k++)
            if ((children[k] = fork()) == 0) {
                worker w = {&r, k};
                work(&w);
                _exit(0);
            }
        for (unsigned k = 0; k < 3; k++) {
            int ended = 0;
            assert_int_equal(waitpid(children[k], &ended, 0), children[k]);
            if (k == 1) {
                assert_true(WIFSIGNALED(ended));
                continue;
            }
            assert_int_equal(ended, 0);
            assert_int_equal(r.of[k].status, MGW_ERR_PEER);
            assert_contains(r.of[k].error.message, "rank 1");
        }
        end(&r);
    }
}

/* ---- Plans from a file ---- */

static void write_file(const char *path, const char *text, const char *from, const char *to)
{
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    const char *at = strstr(text, from);
    assert_non_null(at);
    fprintf(file, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    fclose(file);
}

static char *read_file(const char *path)
{
    char *text = calloc(1, 1 << 20);
    FILE *file = fopen(path, "r");
    assert_true(text && file);
    assert_true(fread(text, 1, (1 << 20) - 1, file) > 0);
    fclose(file);
    return text;
}

static void expect_refused(const char *path, size_t tensors, const char *message)
{
    run r = {.size = 2, .steps = 3, .tensors = tensors, .plan = {path, path}};
    run_threads(&r);
    for (unsigned k = 0; k < 2; k++) {
        assert_true(r.of[k].status != MGW_OK);
        assert_contains(r.of[k].error.message, path);
        assert_contains(r.of[k].error.message, message);
    }
    end(&r);
}

static void test_pinned(void **state)
{
    (void)state;
    char path[64];
    char other[64];
    snprintf(path, sizeof path, "/tmp/mgwfbp-pinned-%ld.json", (long)getpid());
    snprintf(other, sizeof other, "/tmp/mgwfbp-other-%ld.json", (long)getpid());
    run r = {.size = 2, .steps = 120, .save = path};
    run_threads(&r);
    expect_good(&r);
    uint64_t settled = r.of[0].cuts[r.of[0].steps - 1];
    r = (run){.size = 2, .steps = 130, .plan = {path, path}, .of = r.of};
    run_threads(&r); /* from the first step on, and whatever looks find */
    expect_good(&r);
    assert_true(r.of[0].trials == 0 && r.of[0].tried_count == 0 && r.of[0].plans == 1);
    for (int step = 0; step < r.of[0].steps; step++)
        assert_true(r.of[0].cuts[step] == settled);

    expect_refused("/tmp/mgwfbp-no-such-plan.json", 0, "");
    expect_refused(path, TENSORS + 1, "operations: have 10 tensors, but the program has 11");
    char *text = read_file(path);
    write_file(other, text, "\"t3\"", "\"x3\"");
    expect_refused(other, 0, ".tensors: 'x3', but tensor 3 of the program is 't3'");
    write_file(other, text, "\"bytes\": ", "\"bytes\": 1");
    expect_refused(other, 0, "operations[0].bytes: 1");
    write_file(other, text, "\"kind\": \"all-reduce\"", "\"kind\": \"reduce-scatter\"");
    expect_refused(other, 0,
                   "operations[0].kind: reduce-scatter, but the engine does not keep parameters");

    run first = {.size = 2, .steps = 5, .trials = -1, .save = other}; /* another policy's */
    setenv("MGWFBP_POLICY", "wfbp", 1);
    run_threads(&first);
    unsetenv("MGWFBP_POLICY");
    expect_good(&first);
    r = (run){.size = 2, .steps = 3, .plan = {path, other}, .of = r.of};
    run_threads(&r);
    for (unsigned k = 0; k < 2; k++)
        assert_contains(r.of[k].error.message, "rank 1 has a different plan than rank 0");
    r = (run){.size = 2, .steps = 3, .plan = {path, "/tmp/mgwfbp-no-such-plan.json"}, .of = r.of};
    run_threads(&r);
    assert_contains(r.of[0].error.message, "rank 1 cannot use its plan file");
    assert_contains(r.of[1].error.message, "no-such-plan");
    free(text);
    unlink(path);
    unlink(other);
    end(&first);
    end(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exact_across_switches),
        cmocka_unit_test(test_the_better_one_stays),
        cmocka_unit_test(test_off),
        cmocka_unit_test(test_deaths),
        cmocka_unit_test(test_pinned),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
