/* Cluster files: the three forms, their errors, rescaling. */
#include "support.h"

#define HEAD "{\"format\": \"mgwfbp-cluster-1\", \"name\": \"c\", \"workers\": 16, "
#define LINK "\"link\": {\"alpha_s\": 1, \"beta_s_per_byte\": 2, \"gamma_s_per_byte\": 0}, "

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
        {HEAD "\"x\": 1}", "one of cost, link and samples"},
        {HEAD "\"cost\": {\"a_s\": 1, \"b_s_per_byte\": 1}, \"samples\": []}", "given besides"},
        {HEAD "\"cost\": 3}", "cost: must be an object"},
        {HEAD "\"cost\": {\"a_s\": 1}}", "cost.b_s_per_byte: missing"},
        {HEAD "\"cost\": {\"a_s\": -1, \"b_s_per_byte\": 1}}", "cost.a_s: must not be negative"},
        {HEAD "\"cost\": {\"push\": {\"a_s\": 1, \"b_s_per_byte\": 1}}}", "cost.pull: missing"},
        {HEAD "\"cost\": {\"push\": {\"a_s\": 1}, \"pull\": {}}}", "cost.push.b_s_per_byte"},
        {HEAD LINK "\"x\": 1}", "algorithm: missing"},
        {HEAD LINK "\"algorithm\": \"star\"}", "'star' is not an algorithm; known are binary-tree"},
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
        cmocka_unit_test(rescaling),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
