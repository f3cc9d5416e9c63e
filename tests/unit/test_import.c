/* Measurements of other programs: each format is detected and read. */
#include "support.h"

static mgw_cluster *import_file(const char *path, unsigned workers, mgw_import *about)
{
    mgw_cluster *cluster = NULL;
    mgw_error error = {0};
    if (mgw_cluster_import_file(path, workers, about, &cluster, &error))
        fail_msg("%s", error.message);
    return cluster;
}

static void every_format_is_found_out(void **unused)
{
    (void)unused;
    static const struct {
        const char *path;
        mgw_import_format format;
        unsigned said; /* workers, by the file */
        size_t samples;
        uint64_t bytes; /* of the last sample … */
        double seconds; /* … and its time: the in-place one, in seconds */
        const char *name;
    } cases[] = {
        {"/samples.csv", MGW_IMPORT_CSV, 0, 5, 268435456, 0.2, "samples"},
        {"/cluster_samples.json", MGW_IMPORT_CLUSTER, 12, 4, 16777216, 1.4e-2, "two-racks"},
        {"/osu_allreduce.txt", MGW_IMPORT_OSU, 0, 13, 67108864, 0, "osu_allreduce"},
        {"/osu_allreduce_full.txt", MGW_IMPORT_OSU, 0, 27, 268435456, 0.149367,
         "osu_allreduce_full"},
        {"/nccl_tests.txt", MGW_IMPORT_NCCL_TEXT, 8, 28, 1073741824, 0, "nccl_tests"},
        {"/nccl_tests_unchecked.txt", MGW_IMPORT_NCCL_TEXT, 16, 28, 1073741824, 0,
         "nccl_tests_unchecked"},
        {"/nccl_tests.json", MGW_IMPORT_NCCL_JSON, 8, 28, 1073741824, 0, "nccl_tests"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char path[400];
        snprintf(path, sizeof path, "%s%s", FIXTURES, cases[i].path);
        mgw_import about;
        mgw_cluster *cluster = import_file(path, 0, &about);
        assert_int_equal(about.format, cases[i].format);
        assert_int_equal(about.workers, cases[i].said);
        assert_int_equal(cluster->workers, cases[i].said ? cases[i].said : 2);
        assert_int_equal(cluster->sample_count, cases[i].samples);
        const mgw_sample *last = &cluster->samples[cluster->sample_count - 1];
        assert_int_equal(last->bytes, cases[i].bytes);
        if (cases[i].seconds > 0)
            assert_close(last->seconds, cases[i].seconds);
        assert_string_equal(cluster->name, cases[i].name);
        mgw_cluster_destroy(cluster);
        cluster = import_file(path, 64, &about);
        assert_int_equal(cluster->workers, 64);
        mgw_cluster_destroy(cluster);
    }
}

/* The same run, as a table and as JSON: the in-place column, to the table's digits. */
static void table_and_json_agree(void **unused)
{
    (void)unused;
    mgw_import about;
    mgw_cluster *table = import_file(FIXTURES "/nccl_tests.txt", 0, &about);
    mgw_cluster *json = import_file(FIXTURES "/nccl_tests.json", 0, &about);
    assert_int_equal(table->sample_count, json->sample_count);
    for (size_t i = 0; i < table->sample_count; i++) {
        assert_int_equal(table->samples[i].bytes, json->samples[i].bytes);
        double ratio = table->samples[i].seconds / json->samples[i].seconds;
        assert_true(ratio > 0.9995 && ratio < 1.0005);
    }
    mgw_cluster_destroy(table);
    mgw_cluster_destroy(json);
}

/* Old tables have no root, and two kinds of columns less. */
static void columns_follow_the_header(void **unused)
{
    (void)unused;
    const char *text = "#                                  out-of-place       in-place\n"
                       "#  size  count  type  redop  time  algbw  busbw  error  time  algbw  "
                       "busbw  error\n"
                       "   1024  256  float  sum  10.0  0.1  0.1  0e+00  20.0  0.1  0.1  N/A\n"
                       "   2048  512  float  sum  11.0  0.1  0.1  0e+00  30.5  0.1  0.1  N/A\n";
    mgw_import about;
    mgw_cluster *cluster = NULL;
    assert_int_equal(mgw_cluster_import("old.log", text, strlen(text), 4, &about, &cluster, NULL),
                     MGW_OK);
    assert_close(cluster->samples[0].seconds, 20e-6);
    assert_close(cluster->samples[1].seconds, 30.5e-6);
    mgw_cluster_destroy(cluster);
}

/* Benchmarks of memory on GPUs name the device and the library. */
static void osu_titles_name_what_they_measure(void **unused)
{
    (void)unused;
    static const char *const libraries[] = {"MPI", "MPI-CUDA", "MPI-ROCM", "NCCL-CUDA"};
    for (size_t i = 0; i < sizeof libraries / sizeof *libraries; i++) {
        char text[160];
        snprintf(text, sizeof text,
                 "# OSU %s Allreduce Latency Test v7.5\n# Size  Avg Latency(us)\n4 1.5\n8 2.5\n",
                 libraries[i]);
        mgw_import about;
        mgw_cluster *cluster = NULL;
        mgw_error error = {0};
        if (mgw_cluster_import("gpu.txt", text, strlen(text), 4, &about, &cluster, &error))
            fail_msg("%s", error.message);
        assert_int_equal(cluster->sample_count, 2);
        assert_close(cluster->samples[1].seconds, 2.5e-6);
        mgw_cluster_destroy(cluster);
    }
}

#define TITLE(benchmark) "# Collective test starting: " benchmark "\n"
#define RANKS            "#  Rank  0 Pid 1 on n device  0 x\n#  Rank  1 Pid 2 on n device  1 x\n"
#define HEADER           "#  size  count  type  redop  root  time  algbw  busbw  #wrong\n"

/* The outputs of several benchmarks in one file. */
static void each_table_is_of_its_kind(void **unused)
{
    (void)unused;
    const char *text = TITLE("all_reduce_perf") RANKS HEADER
        "1024 256 float sum -1 20.0 0 0 0\n2048 512 float sum -1 40.0 0 0 0\n" TITLE(
            "all_gather_perf") RANKS HEADER
        "1024 256 float none -1 7.0 0 0 N/A\n2048 512 float none -1 9.0 0 0 N/A\n" TITLE(
            "reduce_scatter_perf") RANKS HEADER
        "1024 256 float sum -1 11.0 0 0 0\n2048 512 float sum -1 13.0 0 0 0\n";
    mgw_import about;
    mgw_cluster *cluster = NULL;
    mgw_error error = {0};
    if (mgw_cluster_import("all.log", text, strlen(text), 0, &about, &cluster, &error))
        fail_msg("%s", error.message);
    assert_int_equal(cluster->workers, 2);
    assert_int_equal(cluster->sample_count, 2);
    mgw_cost cost;
    mgw_cluster_cost(cluster, &cost);
    assert_close(mgw_cost_seconds(&cost, MGW_ALL_REDUCE, 2048), 40e-6);
    assert_close(mgw_cost_seconds(&cost, MGW_ALL_GATHER, 2048), 9e-6);
    assert_close(mgw_cost_seconds(&cost, MGW_REDUCE_SCATTER, 1024), 11e-6);
    mgw_cluster_destroy(cluster);
}

/* Of versions that do not name the benchmark, with other columns in the second. */
static void runs_without_titles_are_told_apart(void **unused)
{
    (void)unused;
    const char *text = RANKS HEADER "1024 256 float sum -1 20.0 0 0 0\n" RANKS
                                    "#  size  count  type  redop  time  algbw  busbw  error\n"
                                    "2048 512 float sum 40.0 0 0 0e+00\n";
    mgw_import about;
    mgw_cluster *cluster = NULL;
    mgw_error error = {0};
    if (mgw_cluster_import("two.log", text, strlen(text), 0, &about, &cluster, &error))
        fail_msg("%s", error.message);
    assert_int_equal(cluster->workers, 2);
    assert_int_equal(cluster->sample_count, 2);
    assert_close(cluster->samples[1].seconds, 40e-6);
    mgw_cluster_destroy(cluster);
}

static void bad_measurements(void **unused)
{
    (void)unused;
    static const struct {
        const char *text;
        const char *message;
    } cases[] = {
        {"", "no measurement"},
        {"hello\n", "m.txt:1: 'bytes,seconds' expected"},
        {"bytes,seconds\n", "no measurement"},
        {"bytes,seconds\n1024,0.1\nbytes,seconds\n", "m.txt:3: bytes:"},
        {"1024,0.1\n2048,x\n", "m.txt:2: seconds: 'x'"},
        {"1024,0.1\n-5,0.1\n", "m.txt:2: bytes: '-5'"},
        {"1024,0.1\n2048,-1\n", "m.txt:2: the time for 2048 bytes must be above 0"},
        {"1024,0.1\n2048,nan\n", "m.txt:2: seconds: 'nan'"},
        {"1024,0.1\n2048,1e999\n", "m.txt:2: seconds: '1e999'"},
        {"1024,0.1\n1024,0.2\n", "two different sizes"},
        {"# OSU MPI Bandwidth Test v7.3\n1 2.0\n", "is not the table of osu_allreduce"},
        {"# OSU MPI Non-blocking Allreduce Latency Test v7.3\n1 2.0\n", "is not the table"},
        {"1024,0.1\n2048,1e-200\n", "between 1e-15"},
        {"# OSU MPI Allreduce Latency Test v7.3\n# Size Avg Latency(us)\n4\n", "m.txt:3:"},
        {"# OSU MPI Allreduce Latency Test v7.3\n4 x\n", "m.txt:2:"},
        {"# OSU MPI Allreduce Latency Test v7.3\n", "no measurement"},
        {"# size count time algbw busbw\n8 2 0.0 0 0\n", "m.txt:2: the time"},
        {"# size count time algbw busbw\n8 2\n", "m.txt:2: time:"},
        {TITLE("reduce_scatter_perf") HEADER
         "8 2 float sum -1 5.0 0 0 0\n16 4 float sum -1 6.0 0 0 0\n",
         "only times of reduce-scatter"},
        {TITLE("sendrecv_perf") HEADER "8 2 float none -1 5.0 0 0 0\n",
         "m.txt:1: 'sendrecv_perf' is not"},
        {HEADER "8 2 float sum -1 5.0 0.99 0.5 0\n1024 256 float sum -1 1.0 1.02 0.51 0\n",
         "m.txt:3: busbw: 0.51 is below algbw"},
        {HEADER "8 2 float none -1 5.0 0 0 0\n",
         "m.txt:2: redop: 'none', so this is not a table of all_reduce_perf"},
        {TITLE("all_reduce_perf") RANKS HEADER
         "8 2 float sum -1 5.0 0 0 0\n16 4 float sum -1 6.0 0 0 0\n" TITLE("all_gather_perf")
             RANKS RANKS HEADER "8 2 float none -1 5.0 0 0 0\n",
         "tables of 2 and of 4 workers"},
        {RANKS HEADER "8 2 float sum -1 5.0 0 0 0\n" RANKS RANKS HEADER
                      "16 4 float sum -1 6.0 0 0 0\n",
         "tables of 2 and of 4 workers"},
        {"{\"results\": [{\"size\": 8, \"in_place\": {\"time\": 1}, \"experiment_name\": "
         "\"all_gather_perf\"}]}",
         "only times of all-gather"},
        {"{\"results\": [{\"size\": 8, \"in_place\": {\"time\": 1}, \"experiment_name\": \"x\"}]}",
         "'x' is not all_reduce_perf"},
        {HEADER "8 2 float sum -1 5.0 0 0 3\n", "m.txt:2: #wrong: 3 results were wrong"},
        {"{\"results\": [{\"size\": 8, \"in_place\": {\"time\": 1, \"nwrong\": 3}}]}",
         "results[0].in_place.nwrong: 3 results were wrong"},
        {"{\"results\": [{\"size\": 8}]}", "results[0].in_place: missing"},
        {"{\"results\": [{\"size\": 8, \"in_place\": {\"time\": \"nan\"}}]}",
         "results[0].in_place.time: must be a number, not a string"},
        {"{\"results\": [{\"size\": -8, \"in_place\": {\"time\": 1}}]}", "results[0].size:"},
        {"{\"results\": []}", "no measurement"},
        {"{\"other\": 1}", "results: missing"},
        {"{\"format\": \"mgwfbp-trace-1\"}", "must be \"mgwfbp-cluster-1\""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        mgw_import about;
        mgw_cluster *cluster = NULL;
        mgw_error error = {0};
        mgw_status status = mgw_cluster_import("m.txt", cases[i].text, strlen(cases[i].text), 2,
                                               &about, &cluster, &error);
        assert_int_equal(status, MGW_ERR_INPUT);
        assert_contains(error.message, "m.txt");
        assert_contains(error.message, cases[i].message);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_format_is_found_out),
        cmocka_unit_test(table_and_json_agree),
        cmocka_unit_test(columns_follow_the_header),
        cmocka_unit_test(each_table_is_of_its_kind),
        cmocka_unit_test(osu_titles_name_what_they_measure),
        cmocka_unit_test(runs_without_titles_are_told_apart),
        cmocka_unit_test(bad_measurements),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
