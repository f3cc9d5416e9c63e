/* Data, statistics, state and shapes of the networks; their gradients are tested against PyTorch.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include <zlib.h>

#include <mgwfbp/trace.h>

#include "nn/data.h"
#include "nn/models.h"
#include "nn/optimizer.h"
#include "nn/random.h"
#include "nn/state.h"
#include "nn/statistics.h"

/* ---- Networks: the tensors that the measured traces have ---- */

static int compare_counts(const void *left, const void *right)
{
    uint64_t a = *(const uint64_t *)left;
    uint64_t b = *(const uint64_t *)right;
    return (a > b) - (a < b);
}

static void test_networks_have_the_traces_tensors(void **state)
{
    (void)state;
    static const struct {
        const char *model;
        const char *trace;
    } pairs[] = {{"resnet50", "resnet50-b32-fp32-h200"},
                 {"resnet152", "resnet152-b128-fp32-h200"},
                 {"googlenet", "googlenet-b64-fp32-h200"},
                 {"densenet161", "densenet161-b64-fp32-h200"},
                 {"densenet201", "densenet201-b64-fp32-h200"},
                 {"inception_v4", "inception_v4-b128-fp32-h200"}};
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        const nn_model *model = nn_model_find(pairs[i].model);
        nn_net *net = NULL;
        mgw_trace *trace = NULL;
        assert_int_equal(nn_model_build(model, 1, 3, model->size, 1000, &net, NULL), MGW_OK);
        assert_int_equal(mgw_trace_load(pairs[i].trace, &trace, NULL), MGW_OK);
        size_t n = trace->tensor_count;
        assert_int_equal(net->parameter_count, n);
        uint64_t *ours = calloc(n, sizeof *ours);
        uint64_t *theirs = calloc(n, sizeof *theirs);
        size_t same_place = 0;
        for (size_t t = 0; t < n; t++) {
            ours[net->parameters[t].tensor] = net->parameters[t].count;
            theirs[t] = trace->tensors[t].count;
        }
        for (size_t t = 0; t < n; t++)
            same_place += ours[t] == theirs[t];
        assert_true(same_place >= n * 9 / 10); /* branches may take turns */
        qsort(ours, n, sizeof *ours, compare_counts);
        qsort(theirs, n, sizeof *theirs, compare_counts);
        assert_memory_equal(ours, theirs, n * sizeof *ours);
        free(ours);
        free(theirs);
        mgw_trace_destroy(trace);
        nn_net_destroy(net);
    }
}

static void test_images_that_are_too_small_are_refused(void **state)
{
    (void)state;
    nn_net *net = NULL;
    mgw_error error;
    assert_int_equal(nn_model_build(nn_model_find("inception_v4"), 1, 3, 40, 10, &net, &error),
                     MGW_ERR_ARGUMENT);
    assert_non_null(strstr(error.message, "40x40"));
}

/* ---- Statistics ---- */

static void test_mean_and_variance_are_exact(void **state)
{
    (void)state;
    enum { ROWS = 10007, CHANNELS = 67 };
    float *data = nn_allocate((size_t)ROWS * CHANNELS);
    float mean[CHANNELS];
    float variance[CHANNELS];
    nn_random random = nn_random_of(3, 3);
    for (size_t i = 0; i < (size_t)ROWS * CHANNELS; i++) /* a mean that dwarfs the deviation */
        data[i] = (float)(1000 + nn_random_normal(&random));
    nn_mean_variance(data, ROWS, CHANNELS, mean, variance);
    for (size_t c = 0; c < CHANNELS; c++) {
        long double sum = 0;
        long double squares = 0;
        for (size_t r = 0; r < ROWS; r++)
            sum += data[r * CHANNELS + c];
        for (size_t r = 0; r < ROWS; r++)
            squares += powl(data[r * CHANNELS + c] - sum / ROWS, 2);
        assert_true(fabsl(mean[c] - sum / ROWS) < 1e-4L);
        assert_true(fabsl(variance[c] - squares / ROWS) < 1e-6L);
    }
    free(data);
}

static void test_descent_by_hand(void **state)
{
    (void)state;
    float weights[] = {1, -2};
    float velocity[] = {0.5f, 0};
    const float gradient[] = {2, 4};
    float *const arrays[] = {velocity};
    const nn_rule rule = {.rate = 0.5, .momentum = 0.5, .decay = 0.25};
    nn_optimizer_find("sgd")->update(&rule, weights, gradient, arrays, 2);
    assert_true(velocity[0] == 2.5f && velocity[1] == 3.5f);
    assert_true(weights[0] == -0.25f && weights[1] == -3.75f);
}

/* ---- Data ---- */

static char folder[] = "/tmp/mgwfbp-data-XXXXXX";

static void put(const char *name, const void *data, size_t size)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    gzFile file = gzopen(path, strstr(name, ".gz") ? "wb" : "wbT");
    assert_non_null(file);
    assert_int_equal(gzwrite(file, data, (unsigned)size), size);
    gzclose(file);
}

static int make_folder(void **state)
{
    (void)state;
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state)
{
    (void)state;
    char command[300];
    snprintf(command, sizeof command, "rm -r %s", folder);
    return system(command);
}

static const unsigned char two_images[] = {0, 0, 8, 3, 0, 0,   0, 2,   0, 0, 0, 2,
                                           0, 0, 0, 2, 0, 255, 0, 255, 9, 8, 7, 6};
static const unsigned char two_labels[] = {0, 0, 8, 1, 0, 0, 0, 2, 1, 3};

static void test_idx_files_are_read(void **state)
{
    (void)state;
    put("train-images-idx3-ubyte.gz", two_images, sizeof two_images);
    put("train-labels-idx1-ubyte", two_labels, sizeof two_labels);
    nn_data *data = NULL;
    mgw_error error;
    assert_int_equal(nn_data_read(folder, false, &data, &error), MGW_OK);
    assert_int_equal(data->count, 2);
    assert_int_equal(data->size, 2);
    assert_int_equal(data->classes, 4);
    float image[4];
    int label = 0;
    nn_data_get(data, 0, NULL, image, &label);
    assert_int_equal(label, 1);
    assert_true(image[0] == image[2] && image[1] == image[3] && image[1] > image[0]);
    nn_data_destroy(data);
}

static void expect_refusal(const char *words)
{
    nn_data *data = NULL;
    mgw_error error;
    mgw_status status = nn_data_read(folder, false, &data, &error);
    assert_true(status == MGW_ERR_INPUT || status == MGW_ERR_NOT_FOUND);
    if (!strstr(error.message, words))
        fail_msg("'%s' has no '%s'", error.message, words);
}

static void test_bad_idx_files_are_refused(void **state)
{
    (void)state;
    unsigned char bad[sizeof two_images + 1];
    put("train-labels-idx1-ubyte", two_labels, sizeof two_labels);

    put("train-images-idx3-ubyte.gz", two_images, sizeof two_images - 1);
    expect_refusal("too short");
    put("train-images-idx3-ubyte.gz", two_images, 10);
    expect_refusal("too short");
    memcpy(bad, two_images, sizeof two_images);
    bad[sizeof two_images] = 0;
    put("train-images-idx3-ubyte.gz", bad, sizeof bad);
    expect_refusal("longer than its header says");
    bad[3] = 1;
    put("train-images-idx3-ubyte.gz", bad, sizeof two_images);
    expect_refusal("00000801");
    memcpy(bad, two_images, sizeof two_images);
    bad[8] = 255;
    put("train-images-idx3-ubyte.gz", bad, sizeof two_images);
    expect_refusal("more than 1 GiB");
    memcpy(bad, two_images, sizeof two_images);
    bad[7] = 0;
    put("train-images-idx3-ubyte.gz", bad, sizeof two_images);
    expect_refusal("the file has no data");
    memcpy(bad, two_images, sizeof two_images);
    bad[7] = 1;
    bad[11] = 4;
    put("train-images-idx3-ubyte.gz", bad, sizeof two_images);
    expect_refusal("square");

    put("train-images-idx3-ubyte.gz", two_images, sizeof two_images);
    unsigned char labels[] = {0, 0, 8, 1, 0, 0, 0, 1, 1};
    put("train-labels-idx1-ubyte", labels, sizeof labels);
    expect_refusal("1 labels for 2 images");

    char path[256]; /* a compressed file that is cut off */
    snprintf(path, sizeof path, "%s/train-images-idx3-ubyte.gz", folder);
    assert_int_equal(truncate(path, 20), 0);
    put("train-labels-idx1-ubyte", two_labels, sizeof two_labels);
    expect_refusal("train-images");
    assert_int_equal(unlink(path), 0);
    expect_refusal("No such file");
}

static void test_orders_are_permutations_of_their_epoch(void **state)
{
    (void)state;
    const nn_data like = {.channels = 1, .size = 4, .classes = 10};
    nn_data *data = NULL;
    assert_int_equal(nn_data_make_up(&like, 0, 1000, &data, NULL), MGW_OK);
    uint32_t *orders[3];
    for (uint64_t e = 0; e < 3; e++) {
        assert_int_equal(nn_data_shuffle(data, 5, e % 2, &orders[e], NULL), MGW_OK);
        bool seen[1000] = {false};
        for (int i = 0; i < 1000; i++)
            seen[orders[e][i]] = true;
        for (int i = 0; i < 1000; i++)
            assert_true(seen[i]);
    }
    assert_memory_equal(orders[0], orders[2], 1000 * sizeof **orders);
    assert_memory_not_equal(orders[0], orders[1], 1000 * sizeof **orders);
    for (int e = 0; e < 3; e++)
        free(orders[e]);
    nn_data_destroy(data);
}

/* As `train --compare` draws the order of its policies. */
static void test_orders_of_rounds_favour_nobody(void **state)
{
    (void)state;
    int places[4][4] = {{0}}; /* how often i came at k */
    for (uint64_t round = 0; round < 4000; round++) {
        nn_random random = nn_random_of(1, round);
        uint32_t order[4];
        nn_random_order(&random, order, 4);
        for (uint32_t k = 0; k < 4; k++)
            places[order[k]][k]++;
    }
    for (int i = 0; i < 4; i++)
        for (int k = 0; k < 4; k++)
            assert_in_range(places[i][k], 900, 1100);
}

/* ---- Checkpoints ---- */

static void build(nn_state *s, const char *optimizer, uint64_t seed)
{
    nn_net *net = NULL;
    assert_int_equal(nn_model_build(nn_model_find("resnet20"), 1, 1, 28, 10, &net, NULL), MGW_OK);
    nn_state_init(s, net, nn_optimizer_find(optimizer), seed);
}

static float *make_row(const nn_state *s)
{
    size_t count = nn_state_count(s);
    float *row = nn_allocate(count);
    for (size_t i = 0; i < count; i++)
        row[i] = 0.25f * (float)(i % 1000);
    return row;
}

static void test_checkpoints_come_back(void **state)
{
    (void)state;
    char path[256];
    snprintf(path, sizeof path, "%s/checkpoint", folder);
    for (size_t i = 0; i < nn_optimizer_count; i++) {
        nn_state saved;
        nn_state loaded;
        build(&saved, nn_optimizers[i].name, 1);
        build(&loaded, nn_optimizers[i].name, 2);
        assert_int_equal(nn_state_count(&saved),
                         (2 + i) * saved.parameter_total + saved.running_total);
        saved.progress = (nn_progress){7, 3, 1280, 99};
        float *row = make_row(&saved);
        float *back = NULL;
        assert_int_equal(nn_checkpoint_save(&saved, row, path, NULL), MGW_OK);
        mgw_error error;
        assert_int_equal(nn_checkpoint_load(&loaded, path, &back, &error), MGW_OK);
        assert_memory_equal(&saved.progress, &loaded.progress, sizeof saved.progress);
        assert_memory_equal(row, back, nn_state_count(&saved) * sizeof *row);
        free(row);
        free(back);
        nn_net_destroy(saved.net);
        nn_net_destroy(loaded.net);
    }
}

static size_t slurp(const char *path, char *bytes, size_t room)
{
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    size_t size = fread(bytes, 1, room, file);
    fclose(file);
    return size;
}

static void spill(const char *path, const char *bytes, size_t size)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, size, file), size);
    fclose(file);
}

/* What optimizers remember differs, in number and in meaning. */
static void test_checkpoints_of_another_optimizer_are_refused(void **state)
{
    (void)state;
    char path[256];
    snprintf(path, sizeof path, "%s/checkpoint", folder);
    nn_state s;
    nn_state other;
    build(&s, "adamw", 1);
    build(&other, "sgd", 1);
    float *row = make_row(&s);
    float *back = NULL;
    mgw_error error;
    assert_int_equal(nn_checkpoint_save(&s, row, path, NULL), MGW_OK);
    assert_int_equal(nn_checkpoint_load(&other, path, &back, &error), MGW_ERR_INPUT);
    assert_non_null(strstr(error.message, "--optimizer adamw; it cannot be resumed with sgd"));
    assert_null(back);
    free(row);
    nn_net_destroy(s.net);
    nn_net_destroy(other.net);
}

/* Takes a line out of a checkpoint. */
static size_t without(const char *line, char *bytes, size_t size)
{
    size_t length = strlen(line);
    char *at = memmem(bytes, size, line, length);
    assert_non_null(at);
    memmove(at, at + length, size - (size_t)(at - bytes) - length);
    return size - length;
}

static void seal(char *bytes, size_t size)
{
    uint32_t sum = (uint32_t)crc32_z(0, (const Bytef *)bytes, size - sizeof sum);
    memcpy(bytes + size - sizeof sum, &sum, sizeof sum);
}

/* The first format is that of sgd, without a line that says so; the second has the statistics of
 * one worker. */
static void test_older_formats_are_read(void **state)
{
    (void)state;
    char path[256];
    snprintf(path, sizeof path, "%s/checkpoint", folder);
    nn_state s;
    build(&s, "sgd", 1);
    s.progress.steps = 5;
    float *row = make_row(&s);
    assert_int_equal(nn_checkpoint_save(&s, row, path, NULL), MGW_OK);
    static char bytes[8 << 20];
    float *back = NULL;
    mgw_error error = {0};
    size_t size = without("workers 1\n", bytes, slurp(path, bytes, sizeof bytes));
    *strchr(bytes, '3') = '2'; /* mgwfbp-checkpoint-3 */
    seal(bytes, size);
    spill(path, bytes, size);
    assert_int_equal(nn_checkpoint_load(&s, path, &back, &error), MGW_OK);
    assert_memory_equal(row, back, nn_state_count(&s) * sizeof *row);
    free(back);
    size = without("optimizer sgd\n", bytes, size);
    *strchr(bytes, '2') = '1';
    seal(bytes, size);
    spill(path, bytes, size);
    back = NULL;
    s.progress.steps = 0;
    assert_int_equal(nn_checkpoint_load(&s, path, &back, &error), MGW_OK);
    assert_int_equal(s.progress.steps, 5);
    assert_memory_equal(row, back, nn_state_count(&s) * sizeof *row);
    free(back);
    s.optimizer = nn_optimizer_find("adamw");
    assert_int_equal(nn_checkpoint_load(&s, path, &back, &error), MGW_ERR_INPUT);
    assert_non_null(strstr(error.message, "--optimizer sgd; it cannot be resumed with adamw"));
    free(row);
    nn_net_destroy(s.net);
}

/* Another number of workers has the mean of the statistics; the same number has its own. */
static void test_statistics_of_all_workers(void **state)
{
    (void)state;
    char path[256];
    snprintf(path, sizeof path, "%s/checkpoint", folder);
    nn_state s;
    build(&s, "sgd", 1);
    s.workers = 3;
    size_t count = nn_state_count(&s);
    size_t each = s.running_total;
    float *row = make_row(&s);
    for (unsigned w = 0; w < 3; w++)
        for (size_t i = 0; i < each; i++)
            row[count - (3 - w) * each + i] = (float)(w * w) + (float)i;
    assert_int_equal(nn_checkpoint_save(&s, row, path, NULL), MGW_OK);
    for (unsigned workers = 1; workers <= 4; workers++) {
        float *back = NULL;
        s.workers = workers;
        assert_int_equal(nn_checkpoint_load(&s, path, &back, NULL), MGW_OK);
        assert_int_equal(s.workers, workers);
        assert_memory_equal(row, back, (count - 3 * each) * sizeof *row);
        for (unsigned w = 0; w < workers; w++)
            for (size_t i = 0; i < each; i++) {
                float mean = (float)(((double)i + (1.0 + (double)i) + (4.0 + (double)i)) / 3);
                float wanted = workers == 3 ? (float)(w * w) + (float)i : mean;
                assert_true(back[count - (3 - w) * each + i] == wanted);
            }
        free(back);
    }
    free(row);
    nn_net_destroy(s.net);
}

/* Whatever is no number among them, with a checksum that is right. */
static void test_numbers_that_are_none_are_refused(void **state)
{
    (void)state;
    char path[256];
    snprintf(path, sizeof path, "%s/checkpoint", folder);
    nn_state s;
    build(&s, "sgd", 1);
    size_t count = nn_state_count(&s);
    float *row = make_row(&s);
    const float none[] = {NAN, INFINITY, -INFINITY};
    const size_t places[] = {0, count / 2, count - 1};
    for (int i = 0; i < 3; i++) {
        float before = row[places[i]];
        row[places[i]] = none[i];
        float *back = NULL;
        mgw_error error;
        assert_int_equal(nn_checkpoint_save(&s, row, path, NULL), MGW_OK);
        assert_true(nn_checkpoint_is_whole(path));
        assert_int_equal(nn_checkpoint_load(&s, path, &back, &error), MGW_ERR_UNSUPPORTED);
        assert_non_null(strstr(error.message, "not finite"));
        assert_null(back);
        row[places[i]] = before;
    }
    free(row);
    nn_net_destroy(s.net);
}

/* Every byte matters: whichever is changed, and wherever the file ends, it is refused. */
static void test_damaged_checkpoints_are_refused(void **state)
{
    (void)state;
    char path[256];
    snprintf(path, sizeof path, "%s/checkpoint", folder);
    nn_state s;
    build(&s, "sgd", 1);
    float *row = make_row(&s);
    assert_int_equal(nn_checkpoint_save(&s, row, path, NULL), MGW_OK);
    static char bytes[8 << 20];
    size_t size = slurp(path, bytes, sizeof bytes);
    nn_random random = nn_random_of(1, 1);
    for (int i = 0; i < 120; i++) {
        bool cut = i % 3 == 0;
        size_t at =
            i < 60 ? nn_random_below(&random, 1500) : nn_random_below(&random, (uint32_t)size);
        bytes[at] = (char)(bytes[at] ^ 0x21);
        spill(path, bytes, cut ? at : size);
        bytes[at] = (char)(bytes[at] ^ 0x21);
        mgw_error error = {0};
        float *back = NULL;
        assert_int_equal(nn_checkpoint_load(&s, path, &back, &error), MGW_ERR_INPUT);
        assert_non_null(strstr(error.message, path));
        assert_true(!back && s.progress.seed == 1 && s.progress.steps == 0);
        assert_false(nn_checkpoint_is_whole(path));
    }
    free(row);
    nn_net_destroy(s.net);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_networks_have_the_traces_tensors),
        cmocka_unit_test(test_images_that_are_too_small_are_refused),
        cmocka_unit_test(test_mean_and_variance_are_exact),
        cmocka_unit_test(test_descent_by_hand),
        cmocka_unit_test(test_idx_files_are_read),
        cmocka_unit_test(test_bad_idx_files_are_refused),
        cmocka_unit_test(test_orders_are_permutations_of_their_epoch),
        cmocka_unit_test(test_orders_of_rounds_favour_nobody),
        cmocka_unit_test(test_checkpoints_come_back),
        cmocka_unit_test(test_checkpoints_of_another_optimizer_are_refused),
        cmocka_unit_test(test_older_formats_are_read),
        cmocka_unit_test(test_statistics_of_all_workers),
        cmocka_unit_test(test_numbers_that_are_none_are_refused),
        cmocka_unit_test(test_damaged_checkpoints_are_refused),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
