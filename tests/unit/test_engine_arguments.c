/* Invalid arguments and environment variables of the engine, and their error messages. One worker
 * is enough. */
#include "support.h"

static mgw_engine *open_engine(void)
{
    mgw_engine *engine = NULL;
    mgw_error error = {0};
    mgw_engine_options options = {.transport = {.name = "self", .size = 1}};
    if (mgw_engine_open(&options, &engine, &error))
        fail_msg("%s", error.message);
    return engine;
}

static void add(mgw_engine *engine, const char *name)
{
    unsigned id = 0;
    mgw_error error = {0};
    assert_int_equal(mgw_engine_add(engine, name, 10, MGW_F32, &id, &error), MGW_OK);
}

static void expect(mgw_status status, const mgw_error *error, const char *words)
{
    assert_int_equal(status, MGW_ERR_ARGUMENT);
    assert_contains(error->message, words);
}

static void options_that_are_wrong(void **unused)
{
    (void)unused;
    static const struct {
        mgw_engine_options options;
        const char *words;
    } cases[] = {
        {{.device = "abacus"}, "device: 'abacus' is not host or cuda"},
        {{.wire = "f7"}, "wire: 'f7'"},
        {{.parameters = "f64", .keeps_parameters = true}, "'f64'"},
        {{.policy = "wishful"}, "'wishful'"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        mgw_engine *engine = NULL;
        mgw_error error = {0};
        mgw_engine_options options = cases[i].options;
        options.transport = (mgw_transport_options){.name = "self", .size = 1};
        expect(mgw_engine_open(&options, &engine, &error), &error, cases[i].words);
        assert_null(engine);
    }
}

static void variables_that_are_wrong(void **unused)
{
    (void)unused;
    static const char *const cases[][2] = {
        {"MGWFBP_PROFILE_STEPS", "few"}, {"MGWFBP_REPLAN_STEPS", "0x10"}, {"MGWFBP_TRIALS", "-3"},
        {"MGWFBP_TIMEOUT", "soon"},      {"MGWFBP_TIMEOUT", "-1"},        {"MGWFBP_RANK", "first"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        mgw_engine *engine = NULL;
        mgw_error error = {0};
        setenv(cases[i][0], cases[i][1], 1);
        expect(mgw_engine_open(NULL, &engine, &error), &error, cases[i][0]);
        assert_contains(error.message, cases[i][1]);
        unsetenv(cases[i][0]);
        assert_null(engine);
    }
    setenv("MGWFBP_PROFILE_STEPS", "7", 1);
    mgw_engine_close(open_engine());
    unsetenv("MGWFBP_PROFILE_STEPS");
}

static void tensors_that_are_wrong(void **unused)
{
    (void)unused;
    mgw_engine *engine = open_engine();
    mgw_error error = {0};
    unsigned id = 0;
    expect(mgw_engine_start(engine, &error), &error, "no tensors");
    expect(mgw_engine_add(engine, "huge", SIZE_MAX / 2, MGW_F32, &id, &error), &error, "'huge'");
    expect(mgw_engine_add(engine, "odd", 1, (mgw_dtype)77, &id, &error), &error, "'odd'");
    add(engine, "twin");
    add(engine, "other");
    add(engine, "twin");
    expect(mgw_engine_start(engine, &error), &error, "tensors 0 and 2 have the same name 'twin'");
    mgw_engine_close(engine);
}

static void calls_at_the_wrong_time(void **unused)
{
    (void)unused;
    mgw_engine *engine = open_engine();
    mgw_error error = {0};
    mgw_timeline *timeline = NULL;
    unsigned id = 0;
    float elsewhere[10];
    add(engine, "t");
    expect(mgw_engine_set_policy(engine, "single", &error), &error, "only between steps");
    assert_int_equal(mgw_engine_start(engine, &error), MGW_OK);
    expect(mgw_engine_start(engine, &error), &error, "started before");
    expect(mgw_engine_add(engine, "late", 1, MGW_F32, &id, &error), &error, "has started");
    expect(mgw_engine_bind(engine, 5, elsewhere, &error), &error, "tensor 5");
    expect(mgw_engine_timeline(engine, &timeline, &error), &error, "after the first");
    assert_int_equal(mgw_engine_begin(engine, &error), MGW_OK);
    expect(mgw_engine_set_policy(engine, "single", &error), &error, "only between steps");
    expect(mgw_engine_bind(engine, 0, elsewhere, &error), &error, "tensor 0");
    mgw_engine_ready(engine, 0);
    assert_int_equal(mgw_engine_wait(engine, &error), MGW_OK);
    assert_int_equal(mgw_engine_timeline(engine, &timeline, &error), MGW_OK);
    mgw_timeline_destroy(timeline);
    mgw_engine_close(engine);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(options_that_are_wrong),
        cmocka_unit_test(variables_that_are_wrong),
        cmocka_unit_test(tensors_that_are_wrong),
        cmocka_unit_test(calls_at_the_wrong_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
