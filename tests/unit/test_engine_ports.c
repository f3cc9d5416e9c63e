/* Features for porting programs to the engine: gradients that stay in the program's memory, ranges,
 * a separate forward pass, options from the environment, and output at close. */
#include <pthread.h>
#include <time.h>
#include <unistd.h>

#include "support.h"

enum { COUNT = 10 };

static void pause_ms(long ms)
{
    nanosleep(&(struct timespec){.tv_nsec = ms * 1000000}, NULL);
}

static mgw_engine *open_engine(mgw_engine_options options, mgw_dtype second)
{
    mgw_engine *engine = NULL;
    mgw_error error = {0};
    unsigned id = 0;
    if (!options.transport.name) {
        options.transport.name = "self";
        options.transport.size = 1;
    }
    if (mgw_engine_open(&options, &engine, &error) ||
        mgw_engine_add(engine, "a", COUNT, MGW_F32, &id, &error) ||
        mgw_engine_add(engine, "b", COUNT + 1, second, &id, &error))
        fail_msg("%s", error.message);
    return engine;
}

static void must(mgw_status status, const mgw_error *error)
{
    if (status)
        fail_msg("%s", error->message);
}

static void step(mgw_engine *engine, long forward_ms)
{
    mgw_error error = {0};
    must(mgw_engine_begin(engine, &error), &error);
    if (forward_ms) {
        pause_ms(forward_ms);
        mgw_engine_backward(engine);
    }
    mgw_engine_ready_range(engine, 0, 2);
    must(mgw_engine_wait(engine, &error), &error);
}

/* ---- Gradients that stay where they are ---- */

typedef struct binder {
    unsigned rank;
    float memory[2][COUNT + 1];
    uint64_t copied;
} binder;

static void *bind_and_start(void *argument)
{
    binder *b = argument;
    mgw_error error = {0};
    mgw_engine *engine = open_engine((mgw_engine_options){.transport = {.name = "shm",
                                                                        .rank = b->rank,
                                                                        .size = 2,
                                                                        .job = "bind",
                                                                        .timeout_s = 30}},
                                     MGW_F32);
    for (unsigned t = 0; t < 2; t++)
        must(mgw_engine_bind(engine, t, b->memory[t], &error), &error);
    must(mgw_engine_start(engine, &error), &error);
    for (int i = 0; i < COUNT; i++)
        b->memory[0][i] = (float)(b->rank * 2 + 1);
    step(engine, 0);
    mgw_engine_statistics s;
    mgw_engine_measure(engine, &s);
    b->copied = s.copied_bytes;
    mgw_engine_close(engine);
    return NULL;
}

static void bound_before_start(void **unused)
{
    (void)unused;
    pthread_t threads[2];
    static binder binders[2];
    for (unsigned r = 0; r < 2; r++) {
        binders[r].rank = r;
        assert_int_equal(pthread_create(&threads[r], NULL, bind_and_start, &binders[r]), 0);
    }
    for (unsigned r = 0; r < 2; r++)
        pthread_join(threads[r], NULL);
    for (unsigned r = 0; r < 2; r++) {
        for (int i = 0; i < COUNT; i++)
            assert_true(binders[r].memory[0][i] == 2);
        assert_int_equal(binders[r].copied, 2 * (2 * COUNT + 1) * sizeof(float));
    }
}

static void one_worker_copies_nothing(void **unused)
{
    (void)unused;
    static const char *const wires[] = {NULL, "bf16"};
    for (int w = 0; w < 2; w++) {
        mgw_error error = {0};
        float memory[COUNT];
        mgw_engine *engine = open_engine((mgw_engine_options){.wire = wires[w]}, MGW_F32);
        must(mgw_engine_bind(engine, 0, memory, &error), &error);
        must(mgw_engine_start(engine, &error), &error);
        float *other = mgw_engine_gradient(engine, 1);
        for (int i = 0; i < COUNT; i++)
            memory[i] = other[i] = 1.00001f * (float)i; /* more digits than bf16 has */
        step(engine, 0);
        for (int i = 0; i < COUNT; i++)
            assert_true(memory[i] == 1.00001f * (float)i && other[i] == memory[i]);
        mgw_engine_statistics s;
        mgw_engine_measure(engine, &s);
        assert_int_equal(s.copied_bytes, 0);
        must(mgw_engine_begin(engine, &error), &error);
        assert_int_equal(mgw_engine_bind(engine, 0, NULL, &error), MGW_ERR_ARGUMENT);
        assert_contains(error.message, "bind: tensor 0: only between steps");
        mgw_engine_close(engine);
    }
}

/* ---- Reports ---- */

static void forward_and_backward_are_told_apart(void **unused)
{
    (void)unused;
    mgw_error error = {0};
    mgw_timeline *timeline = NULL;
    mgw_engine *engine = open_engine((mgw_engine_options){.profile_steps = 3}, MGW_F32);
    must(mgw_engine_start(engine, &error), &error);
    for (int i = 0; i < 5; i++)
        step(engine, 8);
    must(mgw_engine_timeline(engine, &timeline, &error), &error);
    assert_int_equal(timeline->spans[0].kind, MGW_SPAN_FORWARD);
    assert_true(timeline->spans[0].start_s == 0 && timeline->spans[0].end_s >= 8e-3);
    assert_int_equal(timeline->spans[1].kind, MGW_SPAN_BACKWARD);
    assert_true(timeline->spans[1].start_s == timeline->spans[0].end_s);
    mgw_timeline_destroy(timeline);
    const mgw_trace *trace = mgw_engine_trace(engine);
    assert_non_null(trace);
    assert_true(trace->forward_s >= 7e-3);
    assert_true(mgw_trace_compute_s(trace) >= 8e-3);
    assert_true(trace->tensors[0].backward_s < mgw_trace_compute_s(trace) - 7e-3);
    assert_int_equal(mgw_engine_plan(engine)->workers, 1);
    assert_true(mgw_engine_plan(engine)->forward_s == trace->forward_s);
    step(engine, 0); /* the start of the backward pass is not reported: no forward pass */
    must(mgw_engine_timeline(engine, &timeline, &error), &error);
    assert_int_equal(timeline->spans[0].kind, MGW_SPAN_BACKWARD);
    mgw_timeline_destroy(timeline);
    mgw_engine_close(engine);
}

static void traces_have_the_tensors(void **unused)
{
    (void)unused;
    static const struct {
        const char *wire;
        mgw_dtype second;
        mgw_dtype told;
        uint64_t counts[2];
    } cases[] = {{NULL, MGW_F32, MGW_F32, {COUNT, COUNT + 1}},
                 {"bf16", MGW_F32, MGW_BF16, {COUNT, COUNT + 1}},
                 {NULL, MGW_F64, MGW_F16, {2 * COUNT, 4 * (COUNT + 1)}}};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        mgw_error error = {0};
        mgw_engine *engine = open_engine(
            (mgw_engine_options){.wire = cases[c].wire, .profile_steps = 1}, cases[c].second);
        must(mgw_engine_start(engine, &error), &error);
        step(engine, 0);
        step(engine, 0);
        const mgw_trace *trace = mgw_engine_trace(engine);
        assert_int_equal(trace->gradient_dtype, cases[c].told);
        for (int t = 0; t < 2; t++)
            assert_int_equal(trace->tensors[t].count, cases[c].counts[t]);
        mgw_engine_close(engine);
    }
}

/* A plan of one worker can be saved, and be another run's. */
static void plans_of_one_worker_go_on(void **unused)
{
    (void)unused;
    char path[] = "/tmp/mgwfbp-plan-XXXXXX";
    mgw_error error = {0};
    mgw_text text;
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    mgw_text_init(&text);
    mgw_engine *engine = open_engine((mgw_engine_options){.profile_steps = 1}, MGW_F32);
    must(mgw_engine_start(engine, &error), &error);
    step(engine, 0);
    step(engine, 0);
    mgw_plan_write(mgw_engine_plan(engine), &text);
    must(mgw_text_save(&text, path, &error), &error);
    mgw_text_fini(&text);
    mgw_engine_close(engine);
    engine = open_engine((mgw_engine_options){.plan = path}, MGW_F32);
    must(mgw_engine_start(engine, &error), &error);
    assert_int_equal(mgw_engine_plan(engine)->workers, 1);
    mgw_engine_close(engine);
    unlink(path);
}

static void the_report_says_it_all(void **unused)
{
    (void)unused;
    mgw_error error = {0};
    mgw_text text;
    mgw_text_init(&text);
    assert_int_equal(mgw_engine_report(NULL, &text, &error), MGW_ERR_ARGUMENT);
    mgw_engine *engine =
        open_engine((mgw_engine_options){.policy = "ddp", .profile_steps = 2}, MGW_F32);
    assert_int_equal(mgw_engine_report(engine, &text, &error), MGW_ERR_ARGUMENT);
    assert_contains(error.message, "report: only between steps, after start");
    must(mgw_engine_start(engine, &error), &error);
    must(mgw_engine_report(engine, &text, &error), &error);
    assert_contains(text.data, "workers    1, transport self, policy ddp\n"
                               "steps      0, 0 plans; 2 gradients in 1 messages, 128 B\n"
                               "not measured yet");
    for (int i = 0; i < 3; i++)
        step(engine, 2);
    text.size = 0;
    must(mgw_engine_report(engine, &text, &error), &error);
    assert_contains(text.data, "steps      3, 1 plans; 2 gradients in 1 messages");
    assert_contains(text.data, "\nwfbp                        2 ");
    assert_contains(text.data, "\nddp *                       1 ");
    assert_contains(text.data, "\nlower bound ");
    must(mgw_engine_set_policy(engine, "threshold:1KiB", &error), &error);
    text.size = 0;
    must(mgw_engine_report(engine, &text, &error), &error);
    assert_contains(text.data, "policy threshold:1024\n");
    assert_contains(text.data, "\nthreshold:1024 *            1 ");
    mgw_text_fini(&text);
    mgw_engine_close(engine);
}

/* ---- Options from the environment ---- */

static void errors_name_the_variable(void **unused)
{
    (void)unused;
    static const struct {
        const char *variable;
        const char *value;
        const char *message;
    } cases[] = {
        {"MGWFBP_WIRE", "f8", "MGWFBP_WIRE: 'f8' is not f32, f16, bf16"},
        {"MGWFBP_DEVICE", "gpu", "MGWFBP_DEVICE: 'gpu' is not host or cuda"},
        {"MGWFBP_POLICY", "best", "MGWFBP_POLICY: "},
        {"MGWFBP_TRANSPORT", "smh", "MGWFBP_TRANSPORT: unknown transport 'smh'"},
        {"MGWFBP_RANK", "3", "MGWFBP_RANK: rank 3 is out of range for a job of 1 workers"},
        {"MGWFBP_SERVERS", "2", "MGWFBP_SERVERS: 2 servers, but there is only 1 worker"},
        {"MGWFBP_DEBUG", "yes", "MGWFBP_DEBUG: 'yes' is not an integer of at least 0"},
        {"MGWFBP_PLAN", "/nowhere", "MGWFBP_PLAN: /nowhere"},
        {"MGWFBP_CLUSTER", "nowhere", "MGWFBP_CLUSTER: "},
    };
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        mgw_engine *engine = NULL;
        mgw_error error = {0};
        unsigned id = 0;
        setenv(cases[c].variable, cases[c].value, 1);
        mgw_status status = mgw_engine_open(NULL, &engine, &error);
        if (!status) {
            must(mgw_engine_add(engine, "a", 1, MGW_F32, &id, &error), &error);
            status = mgw_engine_start(engine, &error);
            mgw_engine_close(engine);
        }
        unsetenv(cases[c].variable);
        assert_int_not_equal(status, MGW_OK);
        assert_contains(error.message, cases[c].message);
    }
    mgw_engine *engine = NULL;
    mgw_error error = {0};
    mgw_engine_options options = {.transport = {.name = "self", .size = 1}, .servers = 3};
    assert_int_equal(mgw_engine_open(&options, &engine, &error), MGW_ERR_ARGUMENT);
    assert_contains(error.message, "servers: 3 servers, but there is only 1 worker");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bound_before_start),
        cmocka_unit_test(one_worker_copies_nothing),
        cmocka_unit_test(forward_and_backward_are_told_apart),
        cmocka_unit_test(traces_have_the_tensors),
        cmocka_unit_test(plans_of_one_worker_go_on),
        cmocka_unit_test(the_report_says_it_all),
        cmocka_unit_test(errors_name_the_variable),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
