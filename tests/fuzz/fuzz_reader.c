/* A reader under libFuzzer: it must accept or reject any bytes. Accepted input is written, read
 * again and used. FUZZ_READER is trace, cluster, plan, import, timelines, page or profile. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <mgwfbp/mgwfbp.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* What was accepted must be accepted again, and make the same text. */
#define CHECK_AGAIN(kind, object)                                                                  \
    do {                                                                                           \
        mgw_text once, twice;                                                                      \
        mgw_text_init(&once);                                                                      \
        mgw_text_init(&twice);                                                                     \
        mgw_##kind##_write(object, &once);                                                         \
        mgw_##kind *again = NULL;                                                                  \
        if (mgw_##kind##_parse("again", once.data, once.size, &again, NULL))                       \
            abort();                                                                               \
        mgw_##kind##_write(again, &twice);                                                         \
        if (strcmp(once.data, twice.data) != 0)                                                    \
            abort();                                                                               \
        mgw_##kind##_destroy(again);                                                               \
        mgw_text_fini(&once);                                                                      \
        mgw_text_fini(&twice);                                                                     \
    } while (0)

static void use_trace(const char *text, size_t size)
{
    mgw_trace *trace = NULL;
    mgw_error error;
    if (mgw_trace_parse("input", text, size, &trace, &error)) {
        if (strchr(error.message, '\n'))
            abort();
        return;
    }
    CHECK_AGAIN(trace, trace);
    mgw_cost cost = {.of = {[MGW_ALL_REDUCE] = {.a_s = 1e-3, .b_s_per_byte = 1e-9},
                            [MGW_REDUCE_SCATTER] = {.a_s = 6e-4, .b_s_per_byte = 5e-10},
                            [MGW_ALL_GATHER] = {.a_s = 4e-4, .b_s_per_byte = 5e-10}},
                     .workers = 2,
                     .cluster = "c"};
    size_t count = 0;
    const mgw_policy *policies = mgw_policy_all(&count);
    for (size_t i = 0; i < count; i++) {
        mgw_plan *plan = NULL;
        mgw_timeline *timeline = NULL;
        if (mgw_plan_make(trace, &cost, &policies[i], &plan, NULL) ||
            mgw_simulate(plan, trace, &timeline, NULL))
            abort();
        mgw_timeline_stats stats = mgw_timeline_measure(timeline);
        if (stats.iteration_s != plan->iteration_s || stats.compute_s != plan->compute_s)
            abort();
        mgw_timeline_destroy(timeline);
        mgw_plan_destroy(plan);
    }
    mgw_text text_out;
    mgw_text_init(&text_out);
    mgw_draw_sizes_text(trace, &text_out);
    mgw_draw_sizes_svg(trace, &text_out);
    mgw_text_fini(&text_out);
    mgw_trace_destroy(trace);
}

static void use_cost(const mgw_cluster *cluster)
{
    mgw_cost cost;
    mgw_cluster_cost(cluster, &cost);
    for (int kind = 0; kind < MGW_COLLECTIVE_COUNT; kind++) {
        double before = 0;
        for (int shift = 0; shift < 63; shift++) {
            double now = mgw_cost_seconds(&cost, (mgw_collective)kind, (uint64_t)1 << shift);
            if (!(now >= before))
                abort();
            before = now;
        }
    }
    mgw_tensor tensors[] = {{1000, 1e-3, MGW_TIME_UNKNOWN}, {50, 1e-4, MGW_TIME_UNKNOWN}};
    const char *names[] = {"b", "a"};
    mgw_trace *trace = NULL;
    if (mgw_trace_create("m", MGW_F32, 0, 2, names, tensors, &trace, NULL))
        abort();
    mgw_policy policy = {.kind = MGW_OPTIMAL};
    mgw_plan *plan = NULL;
    if (!mgw_plan_make(trace, &cost, &policy, &plan, NULL) &&
        !(plan->operation_count > 0 && plan->exposed_s >= 0 && isfinite(plan->iteration_s)))
        abort();
    mgw_plan_destroy(plan);
    mgw_trace_destroy(trace);
    mgw_text text;
    mgw_text_init(&text);
    mgw_draw_cost_text(cluster, &text);
    mgw_draw_cost_svg(cluster, &text);
    mgw_text_fini(&text);
}

static void use_cluster(const char *text, size_t size)
{
    mgw_cluster *cluster = NULL;
    if (mgw_cluster_parse("input", text, size, &cluster, NULL))
        return;
    CHECK_AGAIN(cluster, cluster);
    use_cost(cluster);
    mgw_cluster_destroy(cluster);
}

static void use_import(const char *text, size_t size)
{
    mgw_import about;
    mgw_cluster *cluster = NULL;
    if (mgw_cluster_import("input", text, size, 0, &about, &cluster, NULL))
        return;
    use_cost(cluster);
    mgw_cluster_destroy(cluster);
}

static void use_plan(const char *text, size_t size)
{
    mgw_plan *plan = NULL;
    if (mgw_plan_parse("input", text, size, &plan, NULL))
        return;
    mgw_timeline *timeline = NULL;
    if (mgw_simulate(plan, NULL, &timeline, NULL))
        abort();
    mgw_text out;
    mgw_text_init(&out);
    mgw_plan_write(plan, &out);
    mgw_draw_timeline_text(timeline, &out);
    mgw_draw_timeline_svg(timeline, &out);
    mgw_timeline_write_chrome(timeline, &out);
    mgw_text_fini(&out);
    mgw_timeline_destroy(timeline);
    mgw_plan_destroy(plan);
}

static void use_timelines(const char *text, size_t size)
{
    mgw_timeline **timelines = NULL;
    size_t count = 0;
    if (mgw_timelines_parse("input", text, size, &timelines, &count, NULL))
        return;
    mgw_text out;
    mgw_text_init(&out);
    for (size_t i = 0; i < count; i++) {
        mgw_draw_timeline_text(timelines[i], &out);
        mgw_draw_timeline_svg(timelines[i], &out);
        mgw_text_fini(&out);
    }
    mgw_timelines_write((const mgw_timeline *const *)timelines, count, &out);
    mgw_timeline **again = NULL;
    size_t again_count = 0;
    if (mgw_timelines_parse("again", out.data, out.size, &again, &again_count, NULL) ||
        again_count != count)
        abort();
    mgw_timelines_destroy(again, count);
    mgw_timelines_destroy(timelines, count);
    mgw_text_fini(&out);
}

/* Beside a trace and a cluster, so that whatever comes is planned, too. */
static void use_page(const char *text, size_t size)
{
    static const char trace[] =
        "{\"format\": \"mgwfbp-trace-1\", \"model\": \"m\", \"device\": \"d\", \"batch\": 1, "
        "\"precision\": \"p\", \"gradient_dtype\": \"f32\", \"forward_s\": 1, \"tensors\": ["
        "{\"name\": \"b\", \"count\": 9, \"backward_s\": 1}, "
        "{\"name\": \"a\", \"count\": 1, \"backward_s\": 1}]}";
    mgw_page *page = NULL;
    if (mgw_page_create(&page, NULL) || mgw_page_add(page, "t", trace, strlen(trace), NULL) ||
        mgw_page_add_file(page, "paper-2-10gbe", NULL))
        abort();
    mgw_text before;
    mgw_text after;
    mgw_text_init(&before);
    mgw_text_init(&after);
    mgw_page_write_data(page, &before);
    mgw_error error;
    bool refused = mgw_page_add(page, "input", text, size, &error) != MGW_OK;
    mgw_page_write_data(page, &after);
    if (after.failed || refused != !strcmp(before.data, after.data))
        abort();
    mgw_text_fini(&before);
    mgw_text_fini(&after);
    mgw_page_destroy(page);
}

/* With a list of parameters and without. */
static void use_profile(const char *text, size_t size)
{
    static const char list[] = "{\"a.weight\": [6, 4], \"a.bias\": 5, \"n.weight\": 30, "
                               "\"n.bias\": 30, \"b\": 24}";
    for (int listed = 0; listed < 2; listed++) {
        mgw_profile_options options = {.model = "m"};
        mgw_profile profile;
        mgw_error error;
        if (listed) {
            options.tensors = list;
            options.tensors_size = strlen(list);
        }
        if (mgw_profile_parse("input", text, size, &options, &profile, &error)) {
            if (strchr(error.message, '\n'))
                abort();
        } else {
            CHECK_AGAIN(trace, profile.trace);
            for (size_t i = 0; i < profile.message_count; i++)
                if (!(profile.messages[i].bytes > 0 && profile.messages[i].seconds > 0))
                    abort();
        }
        mgw_profile_fini(&profile);
    }
}

#define NAME_(reader) use_##reader
#define NAME(reader)  NAME_(reader)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    /* All are here so that none rots; one is used. */
    void (*const readers[])(const char *, size_t) = {
        use_trace, use_cluster, use_import, use_plan, use_timelines, use_page, use_profile};
    (void)readers;
    char *copy = malloc(size ? size : 1); /* exact, so that reading past the end is seen */
    if (!copy)
        return 0;
    memcpy(copy, data, size);
    NAME(FUZZ_READER)(copy, size);
    free(copy);
    return 0;
}
