/* Cluster files: the three forms, their errors, rescaling. */
#include "support.h"

#define HEAD "{\"format\": \"mgwfbp-cluster-1\", \"name\": \"c\", \"workers\": 16, "
#define LINK "\"link\": {\"alpha_s\": 1, \"beta_s_per_byte\": 2, \"gamma_s_per_byte\": 0}, "

#define COST             "\"cost\": {\"a_s\": 3, \"b_s_per_byte\": 4}"
#define KIND(name, what) HEAD COST ", \"collectives\": {\"" name "\": " what "}}"

static mgw_cluster *parse_good(const char *text)
{
    mgw_cluster *cluster = NULL;
    mgw_error error = {0};
    if (mgw_cluster_parse("c.json", text, strlen(text), &cluster, &error))
        fail_msg("%s", error.message);
    return cluster;
}

static void good_clusters_read_back(void **unused)
{
    (void)unused;
    static const struct {
        const char *text;
        mgw_cluster_kind kind;
        double a_s, b_s_per_byte;
    } cases[] = {
        {HEAD "\"cost\": {\"a_s\": 0.001, \"b_s_per_byte\": 1e-9}}", MGW_CLUSTER_COST, 1e-3, 1e-9},
        {HEAD "\"cost\": {\"push\": {\"a_s\": 0.25, \"b_s_per_byte\": 2}, \"pull\": {\"a_s\": 0.5, "
              "\"b_s_per_byte\": 3}}}",
         MGW_CLUSTER_PUSH_PULL, 0.75, 5},
        {HEAD LINK "\"algorithm\": \"ring\"}", MGW_CLUSTER_LINK, 30, 3.75},
        {HEAD LINK "\"algorithm\": \"parameter-server\", \"servers\": 4}", MGW_CLUSTER_LINK, 2, 16},
        {HEAD "\"samples\": [{\"bytes\": 30, \"seconds\": 5}, {\"bytes\": 10, \"seconds\": 3}]}",
         MGW_CLUSTER_SAMPLES, 2, 0.1},
        {HEAD COST ", \"collectives\": {\"reduce-scatter\": {\"cost\": {\"a_s\": 1, "
                   "\"b_s_per_byte\": 2}}, \"all-gather\": {\"samples\": [{\"bytes\": 30, "
                   "\"seconds\": 5}, {\"bytes\": 10, \"seconds\": 3}]}}}",
         MGW_CLUSTER_COST, 3, 4},
        {HEAD LINK "\"algorithm\": \"ring\", \"collectives\": {\"push\": {\"cost\": {\"a_s\": "
                   "1, \"b_s_per_byte\": 2}}}}",
         MGW_CLUSTER_LINK, 30, 3.75},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        mgw_cluster *cluster = parse_good(cases[i].text);
        mgw_text text;
        mgw_text again;
        mgw_text_init(&text);
        mgw_text_init(&again);
        mgw_cluster_write(cluster, &text);
        assert_int_equal(cluster->kind, cases[i].kind);
        assert_close(cluster->cost.a_s, cases[i].a_s);
        assert_close(cluster->cost.b_s_per_byte, cases[i].b_s_per_byte);
        mgw_cluster_destroy(cluster);
        cluster = parse_good(text.data);
        mgw_cluster_write(cluster, &again);
        assert_string_equal(text.data, again.data);
        mgw_cluster_destroy(cluster);
        mgw_text_fini(&text);
        mgw_text_fini(&again);
    }
}

static void bad_clusters(void **unused)
{
    (void)unused;
    static const struct {
        const char *text;
        const char *message;
    } cases[] = {
        {"", "empty"},
        {HEAD "\"x\": 1}", "one of cost, link, samples and levels"},
        {HEAD "\"cost\": {\"a_s\": 1, \"b_s_per_byte\": 1}, \"samples\": []}",
         "only one of it and"},
        {HEAD "\"cost\": 3}", "cost: must be an object"},
        {HEAD "\"cost\": {\"a_s\": 1}}", "cost.b_s_per_byte: missing"},
        {HEAD COST ", \"collectives\": 3}", "collectives: must be an object"},
        {KIND("broadcast", "{}"), "collectives: unknown collective 'broadcast'; choose one of"},
        {KIND("all-reduce", "{" COST "}"),
         "collectives.all-reduce: all-reduce: the cluster already"},
        {KIND("push", "3"), "collectives.push: must be an object"},
        {KIND("push", "{}"), "collectives.push: exactly one of cost and samples"},
        {KIND("push", "{" COST ", \"samples\": []}"),
         "collectives.push: exactly one of cost and samples"},
        {KIND("push", "{\"cost\": 3}"), "collectives.push.cost: must be an object"},
        {KIND("push", "{\"cost\": {\"a_s\": 1}}"), "collectives.push.cost.b_s_per_byte: missing"},
        {KIND("push", "{\"samples\": [{\"bytes\": 1, \"seconds\": 0}]}"),
         "collectives.push.samples[0].seconds: must be above 0"},
        {KIND("push", "{\"samples\": [{\"bytes\": 1, \"seconds\": 1}]}"), "collectives.push: "},
        {KIND("push", "{" COST "}, \"push\": {" COST "}"), "duplicate"},
        {HEAD "\"cost\": {\"a_s\": -1, \"b_s_per_byte\": 1}}", "cost.a_s: must not be negative"},
        {HEAD "\"cost\": {\"push\": {\"a_s\": 1, \"b_s_per_byte\": 1}}}", "cost.pull: missing"},
        {HEAD "\"cost\": {\"push\": {\"a_s\": 1}, \"pull\": {}}}", "cost.push.b_s_per_byte"},
        {HEAD LINK "\"x\": 1}", "algorithm: missing"},
        {HEAD LINK "\"algorithm\": \"star\"}",
         "unknown algorithm 'star'; choose one of binary-tree"},
        {HEAD LINK "\"algorithm\": \"parameter-server\", \"servers\": 0}", "servers: must be"},
        {HEAD "\"link\": {\"alpha_s\": 1, \"beta_s_per_byte\": 2}, \"algorithm\": \"ring\"}",
         "link.gamma_s_per_byte: missing"},
        {HEAD "\"samples\": []}", "two different sizes"},
        {HEAD "\"samples\": [{\"bytes\": 1, \"seconds\": 0}]}",
         "samples[0].seconds: must be above"},
        {HEAD "\"samples\": [{\"bytes\": 1, \"seconds\": 1}, 7]}", "samples[1]: must be an object"},
        {HEAD "\"samples\": {\"bytes\": 1}}", "samples: must be an array"},
        {"{\"format\": \"mgwfbp-cluster-1\", \"name\": \"c\", \"workers\": 1, \"cost\": {\"a_s\": "
         "1, \"b_s_per_byte\": 1}}",
         "workers: must be between 2"},
        {"{\"format\": \"mgwfbp-cluster-1\", \"name\": \"c\", \"workers\": 0, \"cost\": {}}",
         "workers: must be between 2"},
        {"{\"format\": \"mgwfbp-cluster-1\", \"name\": \"c\", \"workers\": 12,\n" LINK
         "\"algorithm\": \"recursive-doubling\"}",
         "recursive-doubling needs a power of two, not 12"},
        {"{\"format\": \"mgwfbp-cluster-1\", \"workers\": 12}", "name: missing"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        mgw_cluster *cluster = NULL;
        mgw_error error = {0};
        mgw_status status =
            mgw_cluster_parse("c.json", cases[i].text, strlen(cases[i].text), &cluster, &error);
        assert_int_equal(status, MGW_ERR_INPUT);
        assert_contains(error.message, "c.json");
        assert_contains(error.message, cases[i].message);
    }
}

static double seconds_of(const mgw_cluster *cluster, mgw_collective kind, uint64_t bytes)
{
    mgw_cost cost;
    mgw_cluster_cost(cluster, &cost);
    return mgw_cost_seconds(&cost, kind, bytes);
}

/* 16 workers; a message of 80 bytes. */
static void kinds_by_hand(void **unused)
{
    (void)unused;
#define SUMS "\"link\": {\"alpha_s\": 1, \"beta_s_per_byte\": 2, \"gamma_s_per_byte\": 0.5}, "
    static const struct {
        const char *text;
        double
            seconds[MGW_COLLECTIVE_COUNT]; /* all-reduce, reduce-scatter, all-gather, push, pull */
    } cases[] = {
        /* T = 3 + 4 * 80; nothing tells the halves apart */
        {HEAD COST "}", {323, 161.5, 161.5, 161.5, 161.5}},
        /* what is given counts, the rest is derived */
        {KIND("reduce-scatter", "{\"cost\": {\"a_s\": 1, \"b_s_per_byte\": 0.5}}"),
         {323, 41, 161.5, 161.5, 161.5}},
        /* half way from 2 at 40 bytes to 6 at 120 */
        {KIND("all-gather", "{\"samples\": [{\"bytes\": 120, \"seconds\": 6}, {\"bytes\": 40, "
                            "\"seconds\": 2}]}"),
         {323, 161.5, 4, 161.5, 161.5}},
        {HEAD "\"cost\": {\"push\": {\"a_s\": 1, \"b_s_per_byte\": 2}, \"pull\": {\"a_s\": 3, "
              "\"b_s_per_byte\": 4}}}",
         {484, 161, 323, 161, 323}},
        /* 15 starts each; 15/16 of the bytes moved at 2 each, and in the first half summed at 0.5
         */
        {HEAD SUMS "\"algorithm\": \"ring\"}", {367.5, 202.5, 165, 202.5, 165}},
        /* the same bytes in log 16 starts each */
        {HEAD SUMS "\"algorithm\": \"recursive-halving-doubling\"}",
         {345.5, 191.5, 154, 191.5, 154}},
        /* a reduction and a broadcast: 4 starts each, all bytes each time; no halves */
        {HEAD SUMS "\"algorithm\": \"binary-tree\"}", {1448, 724, 724, 724, 724}},
        /* 4 servers: one start, 4 times the bytes, and 15/4 of them summed */
        {HEAD SUMS "\"algorithm\": \"parameter-server\", \"servers\": 4}",
         {1432, 791, 641, 791, 641}},
        {HEAD "\"samples\": [{\"bytes\": 60, \"seconds\": 3}, {\"bytes\": 100, \"seconds\": 5}]}",
         {4, 2, 2, 2, 2}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        mgw_cluster *cluster = parse_good(cases[i].text);
        for (size_t k = 0; k < MGW_COLLECTIVE_COUNT; k++)
            assert_close(seconds_of(cluster, (mgw_collective)k, 80), cases[i].seconds[k]);
        mgw_cluster_destroy(cluster);
    }
}

/* On whatever cluster that knows of all-reduces only, two halves take as long as the whole. */
static void halves_sum_to_the_whole(void **unused)
{
    (void)unused;
    uint64_t state = 7;
    for (int i = 0; i < 2000; i++) {
        mgw_cluster *cluster = NULL;
        mgw_sample samples[8];
        mgw_line line = {random_unit(&state), random_unit(&state) * 1e-6};
        mgw_link link = {random_unit(&state), random_unit(&state), random_unit(&state)};
        for (size_t k = 0; k < 8; k++) /* noisy, some of one size */
            samples[k] = (mgw_sample){random_below(&state, 5) + 10 * k, 0.1 + random_unit(&state)};
        mgw_status status =
            i % 3 == 0 ? mgw_cluster_from_line("c", 16, &line, &cluster, NULL)
            : i % 3 == 1
                ? mgw_cluster_from_samples("c", 16, samples, 8, &cluster, NULL)
                : mgw_cluster_from_link("c", 16, &link, random_below(&state, MGW_ALGORITHM_COUNT),
                                        1 + (unsigned)random_below(&state, 4), &cluster, NULL);
        assert_int_equal(status, MGW_OK);
        for (int at = 0; at < 20; at++) {
            uint64_t bytes = random_below(&state, at % 2 ? 100 : 1u << 30);
            double whole_s = seconds_of(cluster, MGW_ALL_REDUCE, bytes);
            assert_close(seconds_of(cluster, MGW_REDUCE_SCATTER, bytes) +
                             seconds_of(cluster, MGW_ALL_GATHER, bytes),
                         whole_s);
            assert_close(seconds_of(cluster, MGW_PUSH, bytes) +
                             seconds_of(cluster, MGW_PULL, bytes),
                         whole_s);
        }
        mgw_cluster_destroy(cluster);
    }
}

static void setting_kinds(void **unused)
{
    (void)unused;
    mgw_line line = {3, 4};
    mgw_line scatter = {1, 0};
    mgw_line bad = {-1, 0};
    mgw_sample samples[] = {{20, 4}, {10, 2}};
    mgw_cluster *cluster = NULL;
    mgw_error error = {0};
    assert_int_equal(mgw_cluster_from_line("c", 4, &line, &cluster, &error), MGW_OK);
    assert_int_equal(mgw_cluster_set_samples(cluster, MGW_REDUCE_SCATTER, samples, 2, &error),
                     MGW_OK);
    assert_close(seconds_of(cluster, MGW_REDUCE_SCATTER, 15), 3);
    assert_int_equal(mgw_cluster_set_line(cluster, MGW_REDUCE_SCATTER, &scatter, &error), MGW_OK);
    assert_close(seconds_of(cluster, MGW_REDUCE_SCATTER, 15), 1);
    assert_close(seconds_of(cluster, MGW_ALL_REDUCE, 15), 63);
    assert_int_equal(mgw_cluster_set_line(cluster, MGW_ALL_REDUCE, &line, &error),
                     MGW_ERR_ARGUMENT);
    assert_contains(error.message, "all-reduce: the cluster already has a cost for it");
    assert_int_equal(mgw_cluster_set_line(cluster, MGW_PULL, &bad, &error), MGW_ERR_ARGUMENT);
    assert_true(mgw_cluster_set_samples(cluster, MGW_PULL, samples, 1, &error) != MGW_OK);
    assert_close(seconds_of(cluster, MGW_PULL, 15), 31.5);
    mgw_cluster_destroy(cluster);
    assert_int_equal(mgw_cluster_from_push_pull("c", 4, &line, &scatter, &cluster, &error), MGW_OK);
    assert_int_equal(mgw_cluster_set_line(cluster, MGW_PUSH, &line, &error), MGW_ERR_ARGUMENT);
    mgw_cluster_destroy(cluster);
}

/* What was measured among 16 says nothing of 64: it is derived there. */
static void rescaling_forgets_kinds(void **unused)
{
    (void)unused;
    mgw_link link = {1, 2, 0};
    mgw_line line = {5, 0};
    mgw_cluster *cluster = NULL;
    assert_int_equal(mgw_cluster_from_link("c", 16, &link, MGW_RING, 1, &cluster, NULL), MGW_OK);
    assert_int_equal(mgw_cluster_set_line(cluster, MGW_ALL_GATHER, &line, NULL), MGW_OK);
    assert_close(seconds_of(cluster, MGW_ALL_GATHER, 64), 5);
    assert_int_equal(mgw_cluster_rescale(cluster, 64, NULL, NULL), MGW_OK);
    assert_close(seconds_of(cluster, MGW_ALL_GATHER, 64), 63 + 2 * 63);
    mgw_cluster_destroy(cluster);
}

/* Lines, curves and what lies between their samples. */
static void scaled_costs(void **unused)
{
    (void)unused;
    static const char *const texts[] = {
        KIND("all-gather", "{\"cost\": {\"a_s\": 1, \"b_s_per_byte\": 2}}"),
        KIND("reduce-scatter", "{\"samples\": [{\"bytes\": 8, \"seconds\": 3}, "
                               "{\"bytes\": 64, \"seconds\": 30}]}"),
        HEAD "\"samples\": [{\"bytes\": 8, \"seconds\": 3}, {\"bytes\": 64, \"seconds\": 9}, "
             "{\"bytes\": 512, \"seconds\": 100}]}"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        mgw_cluster *cluster = parse_good(texts[i]);
        mgw_cost before;
        mgw_cluster_cost(cluster, &before);
        mgw_cost cost = before;
        mgw_sample *samples = NULL;
        assert_int_equal(mgw_cost_scale(&cost, 1.5, &samples, NULL), MGW_OK);
        for (int kind = 0; kind < MGW_COLLECTIVE_COUNT; kind++)
            for (uint64_t bytes = 1; bytes < 3000; bytes = 2 * bytes + 3)
                assert_close(mgw_cost_seconds(&cost, kind, bytes),
                             1.5 * mgw_cost_seconds(&before, kind, bytes));
        free(samples);
        mgw_cluster_destroy(cluster);
    }
}

static void rescaling(void **unused)
{
    (void)unused;
    mgw_cluster *cluster = NULL;
    mgw_error error = {0};
    mgw_algorithm trees = MGW_DOUBLE_BINARY_TREES;
    assert_int_equal(mgw_cluster_load("paper-1-10gbe-link", &cluster, &error), MGW_OK);
    assert_close(cluster->cost.a_s, 9.72e-4);
    assert_close(cluster->cost.b_s_per_byte, 1.97e-9);
    assert_int_equal(mgw_cluster_rescale(cluster, 64, NULL, &error), MGW_OK);
    assert_close(cluster->cost.a_s, 9.72e-4 / 15 * 63);
    assert_int_equal(mgw_cluster_rescale(cluster, 64, &trees, &error), MGW_OK);
    assert_close(cluster->cost.a_s, 12 * 9.72e-4 / 30);
    assert_int_equal(mgw_cluster_rescale(cluster, 12, NULL, &error), MGW_ERR_ARGUMENT);
    assert_int_equal(cluster->workers, 64);
    mgw_cluster_destroy(cluster);
    assert_int_equal(mgw_cluster_load("paper-2-10gbe", &cluster, &error), MGW_OK);
    assert_int_equal(mgw_cluster_rescale(cluster, 16, NULL, &error), MGW_OK);
    assert_int_equal(mgw_cluster_rescale(cluster, 32, NULL, &error), MGW_ERR_UNSUPPORTED);
    assert_contains(error.message, "16 workers");
    mgw_cluster_destroy(cluster);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(good_clusters_read_back),
        cmocka_unit_test(bad_clusters),
        cmocka_unit_test(kinds_by_hand),
        cmocka_unit_test(halves_sum_to_the_whole),
        cmocka_unit_test(setting_kinds),
        cmocka_unit_test(rescaling_forgets_kinds),
        cmocka_unit_test(rescaling),
        cmocka_unit_test(scaled_costs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
