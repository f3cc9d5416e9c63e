/* Clusters of nodes with several workers: costs compared with a message traced through the levels,
 * reshaping, and networks by name. */
#include "support.h"

#include <math.h>

static const mgw_link fast = {.alpha_s = 2e-6, .beta_s_per_byte = 3e-12, .gamma_s_per_byte = 1e-12};
static const mgw_link slow = {.alpha_s = 3e-5, .beta_s_per_byte = 8e-10, .gamma_s_per_byte = 2e-12};

static mgw_cluster *two_levels(unsigned gpus, unsigned nodes, unsigned ports)
{
    const mgw_level levels[] = {
        {.name = "in", .workers = gpus, .ports = 1, .link = fast, .algorithm = MGW_RING},
        {.name = "out", .workers = nodes, .ports = ports, .link = slow, .algorithm = MGW_RING}};
    mgw_cluster *cluster = NULL;
    mgw_error error = {0};
    if (mgw_cluster_from_levels("c", levels, 2, &cluster, &error))
        fail_msg("%s", error.message);
    return cluster;
}

/* A ring's transfers one by one: n - 1 of an n-th, and sums of as much as a worker adds up. */
static double ring_half(const mgw_link *link, unsigned n, double bytes, double summed)
{
    double seconds = 0;
    for (unsigned i = 0; i + 1 < n; i++)
        seconds +=
            link->alpha_s + bytes / n * link->beta_s_per_byte + summed / n * link->gamma_s_per_byte;
    return seconds;
}

static double follow(unsigned gpus, unsigned nodes, unsigned ports, double bytes,
                     mgw_collective kind)
{
    double through_a_port = bytes / gpus * ((double)gpus / ports); /* the shards that share it */
    double first = ring_half(&fast, gpus, bytes, bytes) +
                   ring_half(&slow, nodes, through_a_port, bytes / gpus); /* a shard each */
    double second = ring_half(&fast, gpus, bytes, 0) + ring_half(&slow, nodes, through_a_port, 0);
    return kind == MGW_REDUCE_SCATTER ? first : kind == MGW_ALL_GATHER ? second : first + second;
}

static void costs_are_those_of_a_message_that_is_followed(void **unused)
{
    (void)unused;
    static const unsigned shapes[][3] = {{1, 2, 1},  {8, 1, 1},  {8, 2, 1},
                                         {8, 16, 1}, {8, 16, 8}, {4, 5, 2}};
    static const mgw_collective kinds[] = {MGW_ALL_REDUCE, MGW_REDUCE_SCATTER, MGW_ALL_GATHER};
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        const unsigned *shape = shapes[s];
        mgw_cluster *cluster = two_levels(shape[0], shape[1], shape[2]);
        mgw_cost cost;
        mgw_cluster_cost(cluster, &cost);
        assert_int_equal(cluster->workers, shape[0] * shape[1]);
        for (size_t k = 0; k < 3; k++)
            for (uint64_t bytes = 1 << 10; bytes <= 1 << 28; bytes <<= 6)
                assert_close(mgw_cost_seconds(&cost, kinds[k], bytes),
                             follow(shape[0], shape[1], shape[2], (double)bytes, kinds[k]));
        mgw_cluster_destroy(cluster);
    }
}

static void levels_are_written_and_read(void **unused)
{
    (void)unused;
    mgw_cluster *cluster = two_levels(8, 16, 4);
    mgw_cluster *read = NULL;
    mgw_text text;
    mgw_text again;
    mgw_error error = {0};
    mgw_text_init(&text);
    mgw_text_init(&again);
    mgw_cluster_write(cluster, &text);
    if (mgw_cluster_parse("c.json", text.data, text.size, &read, &error))
        fail_msg("%s", error.message);
    mgw_cluster_write(read, &again);
    assert_string_equal(text.data, again.data);
    assert_int_equal(mgw_cluster_rescale(read, 12, NULL, &error), MGW_ERR_ARGUMENT);
    assert_non_null(strstr(error.message, "12 is not a multiple of the 8"));
    assert_int_equal(mgw_cluster_rescale(read, 32, NULL, &error), MGW_OK);
    mgw_cluster *small = two_levels(8, 4, 4);
    assert_close(read->cost.a_s, small->cost.a_s);
    assert_close(read->of[MGW_ALL_GATHER].b_s_per_byte, small->of[MGW_ALL_GATHER].b_s_per_byte);
    mgw_cluster_destroy(small);
    mgw_cluster_destroy(read);
    mgw_cluster_destroy(cluster);
    mgw_text_fini(&text);
    mgw_text_fini(&again);
}

static void bad_levels_are_named(void **unused)
{
    (void)unused;
#define LEVEL(workers, ports, alpha)                                                               \
    "{\"name\": \"l\", \"workers\": " workers ", \"ports\": " ports                                \
    ", \"link\": {\"alpha_s\": " alpha                                                             \
    ", \"beta_s_per_byte\": 1, \"gamma_s_per_byte\": 0}, \"algorithm\": \"ring\"}"
    static const struct {
        const char *workers, *levels, *says;
    } cases[] = {{"8", "[]", "levels: at least 1 is needed"},
                 {"8", "7", "levels"},
                 {"9", "[" LEVEL("8", "1", "1") "]", "workers: 9, but the levels have 8"},
                 {"8", "[" LEVEL("8", "2", "1") "]", "level 'l': ports: 2"},
                 {"8", "[" LEVEL("8", "0", "1") "]", "level 'l': ports: 0"},
                 {"8", "[" LEVEL("0", "1", "1") "]", "level 'l': workers"},
                 {"2", "[" LEVEL("1", "1", "1") "]", "at least 2 workers are needed"},
                 {"8", "[" LEVEL("8", "1", "-1") "]", "levels[0].link.alpha_s"},
                 {"8", "[" LEVEL("99999999999", "1", "1") "]", "levels[0].workers: too many"},
                 {"8", "[{}]", "levels[0].name"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[1024];
        mgw_error error = {0};
        mgw_cluster *cluster = NULL;
        snprintf(
            text, sizeof text,
            "{\"format\": \"mgwfbp-cluster-1\", \"name\": \"c\", \"workers\": %s, \"levels\": %s}",
            cases[i].workers, cases[i].levels);
        assert_int_equal(mgw_cluster_parse("c.json", text, strlen(text), &cluster, &error),
                         MGW_ERR_INPUT);
        if (!strstr(error.message, cases[i].says))
            fail_msg("case %zu: '%s' instead of '%s'", i, error.message, cases[i].says);
    }
}

/* A line that was measured on 16 nodes of 8 gives the links back that it was made of. */
static void measured_shapes_scale(void **unused)
{
    (void)unused;
    const mgw_shape measured = {16, 8, 2};
    const mgw_shape wanted = {64, 8, 2};
    mgw_cluster *real = two_levels(8, 16, 2);
    mgw_cluster *expected = two_levels(8, 64, 2);
    mgw_cluster *line = NULL;
    mgw_cluster *scaled = NULL;
    mgw_error error = {0};
    assert_int_equal(mgw_cluster_from_line("m", 128, &real->cost, &line, &error), MGW_OK);
    assert_int_equal(mgw_cluster_reshape(line, &wanted, "in", &fast, NULL, &scaled, &error),
                     MGW_ERR_UNSUPPORTED);
    if (mgw_cluster_reshape(line, &wanted, "in", &fast, &measured, &scaled, &error))
        fail_msg("%s", error.message);
    assert_close(scaled->cost.a_s, expected->cost.a_s);
    assert_int_equal(scaled->workers, 512);
    double off = scaled->cost.b_s_per_byte / expected->cost.b_s_per_byte - 1;
    assert_true(fabs(off) < 0.01); /* sums are taken for transfers */
    mgw_cluster_destroy(scaled);
    const mgw_shape wrong = {16, 4, 1};
    assert_int_equal(mgw_cluster_reshape(line, &wanted, "in", &fast, &wrong, &scaled, &error),
                     MGW_ERR_ARGUMENT);
    assert_non_null(strstr(error.message, "not with 16 nodes of 4"));
    const mgw_shape vast = {3050403, 1408, 1}; /* 2^32 + 128 workers */
    assert_int_equal(mgw_cluster_reshape(line, &wanted, "in", &slow, &vast, &scaled, &error),
                     MGW_ERR_ARGUMENT);
    assert_non_null(strstr(error.message, "not with 3050403 nodes of 1408"));
    assert_int_equal(mgw_cluster_reshape(line, &wanted, "in", &slow, &measured, &scaled, &error),
                     MGW_ERR_ARGUMENT);
    assert_non_null(strstr(error.message, "give a faster link with --inside"));
    mgw_cluster_destroy(line);
    mgw_cluster_destroy(expected);
    mgw_cluster_destroy(real);
}

static void networks_are_read(void **unused)
{
    (void)unused;
    static const struct {
        const char *name;
        double alpha_s, beta_s_per_byte;
    } good[] = {{"100gbe", 14e-6, 8e-9 / 94},
                {"30us,10Gbit/s", 30e-6, 0.8e-9},
                {"1.5ms,2GB/s", 1.5e-3, 0.5e-9},
                {"0us,100Mbps", 0, 8e-8}};
    static const char *const bad[] = {"",
                                      "100",
                                      "30us",
                                      "30us,",
                                      "30us,10",
                                      "30,10Gbit/s",
                                      "30us,0Gbit/s",
                                      "-1us,1GB/s",
                                      "nanus,1GB/s",
                                      "30us,1GB/sx",
                                      "30us,infGB/s"};
    mgw_link link;
    mgw_error error = {0};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        assert_int_equal(mgw_network_parse(good[i].name, &link, &error), MGW_OK);
        assert_close(link.alpha_s, good[i].alpha_s);
        assert_close(link.beta_s_per_byte, good[i].beta_s_per_byte);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(mgw_network_parse(bad[i], &link, &error), MGW_ERR_NOT_FOUND);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(costs_are_those_of_a_message_that_is_followed),
        cmocka_unit_test(levels_are_written_and_read),
        cmocka_unit_test(bad_levels_are_named),
        cmocka_unit_test(measured_shapes_scale),
        cmocka_unit_test(networks_are_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
