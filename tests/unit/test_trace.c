/* Trace files: read strictly, written back, scaled. */
#include "support.h"

#define HEAD                                                                                       \
    "{\"format\": \"mgwfbp-trace-1\", \"model\": \"m\", \"device\": \"d\", \"batch\": 8, "         \
    "\"precision\": \"fp32\", \"gradient_dtype\": \"f32\", \"forward_s\": 0.5"
#define TENSORS(list) HEAD ", \"tensors\": [" list "]}"

static mgw_status parse(const char *text, mgw_trace **out, mgw_error *error)
{
    return mgw_trace_parse("file.json", text, strlen(text), out, error);
}

static void a_good_trace(void **unused)
{
    (void)unused;
    mgw_trace *trace = NULL;
    mgw_error error = {0};
    const char *text = "\n" TENSORS("{\"name\": \"b\", \"count\": 10, \"backward_s\": 0.25,"
                                    " \"forward_start_s\": 0.125},"
                                    "{\"name\": \"a\", \"count\": 0, \"backward_s\": 0}") " \n";
    if (parse(text, &trace, &error))
        fail_msg("%s", error.message);
    assert_string_equal(trace->model, "m");
    assert_int_equal(trace->batch, 8);
    assert_int_equal(trace->tensor_count, 2);
    assert_string_equal(mgw_trace_tensor_name(trace, 0), "b");
    assert_string_equal(mgw_trace_tensor_name(trace, 1), "a");
    assert_true(trace->tensors[0].forward_start_s == 0.125);
    assert_true(trace->tensors[1].forward_start_s == MGW_TIME_UNKNOWN);
    assert_int_equal(mgw_trace_bytes(trace), 40);
    assert_true(mgw_trace_compute_s(trace) == 0.75);
    assert_true(mgw_trace_backward_s(trace) == 0.25);
    mgw_trace_destroy(trace);
}

/* What is optional is not written where it says nothing new. */
static void needs_and_parameters(void **unused)
{
    (void)unused;
#define NEVER "{\"name\": \"a\", \"count\": 3, \"backward_s\": 1, \"forward_start_s\": null}"
    static const struct {
        const char *text;
        mgw_dtype parameters;
        double needed_s;
    } cases[] = {{TENSORS(NEVER), MGW_F32, MGW_NEVER_NEEDED},
                 {HEAD ", \"parameter_dtype\": \"bf16\", \"tensors\": [" NEVER "]}", MGW_BF16,
                  MGW_NEVER_NEEDED},
                 {HEAD ", \"parameter_dtype\": \"f32\", \"tensors\": [{\"name\": \"a\", "
                       "\"count\": 3, \"backward_s\": 1}]}",
                  MGW_F32, MGW_TIME_UNKNOWN}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        mgw_trace *trace = NULL;
        mgw_error error = {0};
        if (parse(cases[i].text, &trace, &error))
            fail_msg("%s", error.message);
        mgw_text text;
        mgw_text_init(&text);
        mgw_trace_write(trace, &text);
        mgw_trace_destroy(trace);
        bool differs = cases[i].parameters != MGW_F32;
        assert_int_equal(strstr(text.data, "parameter_dtype") != NULL, differs);
        if (parse(text.data, &trace, &error))
            fail_msg("%s", error.message);
        assert_int_equal(trace->parameter_dtype, cases[i].parameters);
        assert_true(trace->tensors[0].forward_start_s == cases[i].needed_s);
        assert_int_equal(mgw_trace_scale_compute(trace, 2, &error), MGW_OK);
        assert_true(trace->tensors[0].forward_start_s == cases[i].needed_s);
        mgw_text_fini(&text);
        mgw_trace_destroy(trace);
    }
}

static void bad_traces(void **unused)
{
    (void)unused;
#define GOOD "{\"name\": \"a\", \"count\": 1, \"backward_s\": 0}"
    static const struct {
        const char *text;
        const char *message; /* a part of it */
    } cases[] = {
        {"", "empty"},
        {"[]", "'{' expected"},
        {"{", "member name"},
        {"{}", "format: missing"},
        {"{\"format\": \"mgwfbp-trace-2\"}", "format: must be \"mgwfbp-trace-1\", not"},
        {"{\"format\": 1}", "format: must be a string, not a number"},
        {HEAD "}", "tensors: missing"},
        {HEAD ", \"tensors\": {}}", "tensors: must be an array"},
        {TENSORS(""), "tensors: must not be empty"},
        {TENSORS(GOOD) "x", "more text"},
        {HEAD ", \"tensors\": [" GOOD, "',' or ']' expected"},
        {HEAD ", \"tensors\": [" GOOD "\n,", "file.json:2: the file ends"},
        {HEAD ", \"tensors\": [" GOOD ",\n{\"name\"", "file.json:2:"},
        {HEAD ", \"tensors\": [" GOOD "]", "ends too early"},
        {TENSORS("1"), "tensors[0]: must be an object, not a number"},
        {TENSORS("{\"count\": 1, \"backward_s\": 0}"), "tensors[0].name: missing"},
        {TENSORS("{\"name\": 3, \"count\": 1, \"backward_s\": 0}"), "tensors[0].name: must be"},
        {TENSORS("{\"name\": \"a\", \"backward_s\": 0}"), "tensors[0].count: missing"},
        {TENSORS("{\"name\": \"a\", \"count\": 1.5, \"backward_s\": 0}"), "not a fraction"},
        {TENSORS("{\"name\": \"a\", \"count\": -1, \"backward_s\": 0}"), "must not be negative"},
        {TENSORS("{\"name\": \"a\", \"count\": \"1\", \"backward_s\": 0}"), "not a string"},
        {TENSORS("{\"name\": \"a\", \"count\": 1}"), "tensors[0].backward_s: missing"},
        {TENSORS("{\"name\": \"a\", \"count\": 1, \"backward_s\": -1e-9}"), "negative (-1e-09)"},
        {TENSORS("{\"name\": \"a\", \"count\": 1, \"backward_s\": NaN}"), "file.json:1:"},
        {TENSORS("{\"name\": \"a\", \"count\": 1, \"backward_s\": 1e999}"), "file.json:1:"},
        {TENSORS("{\"name\": \"a\", \"count\": 1, \"backward_s\": null}"), "not null"},
        {TENSORS("{\"name\": \"a\", \"count\": 99999999999999999999, \"backward_s\": 0}"),
         "too big"},
        {TENSORS("{\"name\": \"a\", \"count\": 1, \"count\": 1, \"backward_s\": 0}"), "duplicate"},
        {TENSORS("{\"name\": \"a\", \"count\": 1, \"backward_s\": 0, \"forward_start_s\": -2}"),
         "tensors[0].forward_start_s: must not be negative"},
        {HEAD ", \"parameter_dtype\": \"f8\", \"tensors\": [" GOOD "]}",
         "parameter_dtype: must be"},
        {HEAD ", \"parameter_dtype\": \"f64\", \"tensors\": [{\"name\": \"a\", \"count\": "
              "2000000000000000000, \"backward_s\": 0}]}",
         "tensors[0].count: the sum"},
        {TENSORS(GOOD ", " GOOD), "tensors[1].name: 'a' is also the name of tensors[0]"},
        {TENSORS("{\"name\": \"a\", \"count\": 9223372036854775807, \"backward_s\": 0}"),
         "tensors[0].count: the sum of all sizes exceeds 2^63"},
        {TENSORS("{\"name\": \"a\", \"count\": 2000000000000000000, \"backward_s\": 0},"
                 "{\"name\": \"b\", \"count\": 2000000000000000000, \"backward_s\": 0}"),
         "tensors[1].count: the sum"},
        {TENSORS("{\"name\": \"a\", \"count\": 1, \"backward_s\": 1e308},"
                 "{\"name\": \"b\", \"count\": 1, \"backward_s\": 1e308}"),
         "not finite"},
        {TENSORS(GOOD "], \"tensors\": [" GOOD), "tensors: given twice"},
        {HEAD ", \"batch\": 9, \"tensors\": [" GOOD "]}", "batch: given twice"},
        {"{\"format\": \"mgwfbp-trace-1\", \"tensors\": [" GOOD "]}", "model: missing"},
        {"{\"format\": \"mgwfbp-trace-1\", \"model\": \"m\", \"device\": \"d\", \"batch\": 0, "
         "\"precision\": \"p\", \"gradient_dtype\": \"f32\", \"forward_s\": 0, \"tensors\": [" GOOD
         "]}",
         "batch: must be between 1"},
        {"{\"format\": \"mgwfbp-trace-1\", \"model\": \"m\", \"device\": \"d\", \"batch\": 1, "
         "\"precision\": \"p\",\n\"gradient_dtype\": \"int8\", \"forward_s\": 0, \"tensors\": "
         "[" GOOD "]}",
         "file.json:2: gradient_dtype: must be \"f32\", \"f16\", \"bf16\" or \"f64\", not "
         "\"int8\""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        mgw_trace *trace = NULL;
        mgw_error error = {0};
        assert_int_equal(parse(cases[i].text, &trace, &error), MGW_ERR_INPUT);
        assert_null(trace);
        assert_contains(error.message, "file.json");
        assert_contains(error.message, cases[i].message);
        assert_null(strchr(error.message, '\n'));
    }
}

/* Every prefix of a good file is an error, never a crash or a half-read trace. */
static void truncated_traces(void **unused)
{
    (void)unused;
    const char *text = TENSORS("{\"name\": \"b\", \"count\": 10, \"backward_s\": 0.25}," GOOD);
    for (size_t size = 0; size < strlen(text); size++) {
        mgw_trace *trace = NULL;
        char *copy = malloc(size ? size : 1); /* exact, for the address sanitizer */
        memcpy(copy, text, size);
        assert_int_equal(mgw_trace_parse("cut", copy, size, &trace, NULL), MGW_ERR_INPUT);
        free(copy);
    }
}

static void written_traces_read_back(void **unused)
{
    (void)unused;
    const char *text = HEAD ", \"method\": {\"by\": [1, 2.5]}, \"tensors\": ["
                            "{\"name\": \"\\\"\\u0001\\u00e9\", \"count\": 3, \"backward_s\": "
                            "0.1, \"note\": \"kept\"}," GOOD "]}";
    mgw_trace *trace = NULL;
    mgw_error error = {0};
    mgw_text once;
    mgw_text twice;
    mgw_text_init(&once);
    mgw_text_init(&twice);
    assert_int_equal(parse(text, &trace, &error), MGW_OK);
    mgw_trace_write(trace, &once);
    mgw_trace_destroy(trace);
    assert_contains(once.data, "\"method\": {\"by\": [1, 2.5]}");
    assert_contains(once.data, "\"note\": \"kept\"");
    if (parse(once.data, &trace, &error))
        fail_msg("%s", error.message);
    assert_string_equal(mgw_trace_tensor_name(trace, 0), "\"\x01\xc3\xa9");
    mgw_trace_write(trace, &twice);
    assert_string_equal(once.data, twice.data);
    mgw_trace_destroy(trace);
    mgw_text_fini(&once);
    mgw_text_fini(&twice);
}

static void shipped_traces_read_back_exactly(void **unused)
{
    (void)unused;
    size_t count = 0;
    const mgw_builtin *list = mgw_builtin_list(&count);
    for (size_t i = 0; i < count && list[i].kind == MGW_DATA_TRACE; i++) {
        mgw_trace *trace = NULL;
        mgw_trace *again = NULL;
        mgw_text text;
        mgw_text_init(&text);
        assert_int_equal(mgw_trace_load(list[i].name, &trace, NULL), MGW_OK);
        mgw_trace_write(trace, &text);
        assert_int_equal(parse(text.data, &again, NULL), MGW_OK);
        assert_int_equal(again->tensor_count, trace->tensor_count);
        assert_memory_equal(again->tensors, trace->tensors,
                            trace->tensor_count * sizeof *trace->tensors);
        assert_true(again->forward_s == trace->forward_s);
        mgw_trace_destroy(trace);
        mgw_trace_destroy(again);
        mgw_text_fini(&text);
    }
}

static void made_traces_are_checked(void **unused)
{
    (void)unused;
    const char *same[] = {"x", "x"};
    mgw_tensor good[] = {{1, 0, MGW_TIME_UNKNOWN}, {1, 0, MGW_TIME_UNKNOWN}};
    mgw_tensor negative[] = {{1, -1, MGW_TIME_UNKNOWN}};
    mgw_trace *trace = NULL;
    mgw_error error = {0};
    assert_int_equal(mgw_trace_create("m", MGW_F16, 0, 2, same, good, &trace, &error),
                     MGW_ERR_INPUT);
    assert_contains(error.message, "'x'");
    assert_int_equal(mgw_trace_create("m", MGW_F16, 0, 1, same, negative, &trace, &error),
                     MGW_ERR_ARGUMENT);
    assert_int_equal(mgw_trace_create("m", MGW_F16, -1, 1, same, good, &trace, &error),
                     MGW_ERR_ARGUMENT);
    assert_int_equal(mgw_trace_create("m", MGW_F16, 0, 0, same, good, &trace, &error),
                     MGW_ERR_INPUT);
    assert_int_equal(mgw_trace_create("m", MGW_F16, 0, 1, same, good, &trace, &error), MGW_OK);
    assert_int_equal(mgw_trace_bytes(trace), 2);
    mgw_trace_destroy(trace);
}

static void scaling_compute(void **unused)
{
    (void)unused;
    mgw_tensor tensors[] = {{1, 0.25, 0.5}, {1, 0.5, MGW_TIME_UNKNOWN}};
    mgw_trace *trace = make_trace(1, 2, tensors);
    assert_int_equal(mgw_trace_scale_compute(trace, 4, NULL), MGW_OK);
    assert_true(mgw_trace_compute_s(trace) == 7);
    assert_true(trace->tensors[0].forward_start_s == 2);
    assert_true(trace->tensors[1].forward_start_s == MGW_TIME_UNKNOWN);
    assert_int_equal(mgw_trace_scale_compute(trace, -1, NULL), MGW_ERR_ARGUMENT);
    assert_int_equal(mgw_trace_scale_compute(trace, 1e308, NULL), MGW_ERR_ARGUMENT);
    assert_true(mgw_trace_compute_s(trace) == 7);
    mgw_trace_destroy(trace);
}

static void missing_files(void **unused)
{
    (void)unused;
    mgw_trace *trace = NULL;
    mgw_error error = {0};
    assert_int_equal(mgw_trace_load("/no/such/file", &trace, &error), MGW_ERR_NOT_FOUND);
    assert_contains(error.message, "/no/such/file");
    assert_contains(error.message, "mgwfbp list");
    assert_int_equal(mgw_trace_load("/", &trace, &error), MGW_ERR_IO);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_good_trace),
        cmocka_unit_test(needs_and_parameters),
        cmocka_unit_test(bad_traces),
        cmocka_unit_test(truncated_traces),
        cmocka_unit_test(written_traces_read_back),
        cmocka_unit_test(shipped_traces_read_back_exactly),
        cmocka_unit_test(made_traces_are_checked),
        cmocka_unit_test(scaling_compute),
        cmocka_unit_test(missing_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
