/* Reads IDX files, strictly; generates synthetic images; and shuffles. */
#include "nn/data.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <zlib.h>

#include "base/status.h"
#include "nn/random.h"

/* ---- IDX: a magic number with the number of dimensions, their sizes, bytes ---- */

enum { DIMENSIONS_MAX = 3, BYTES_MAX = 1 << 30 };

static uint32_t big_endian(const unsigned char *bytes)
{
    return (uint32_t)bytes[0] << 24 | (uint32_t)bytes[1] << 16 | (uint32_t)bytes[2] << 8 | bytes[3];
}

/* Reads exactly `size` bytes. */
static mgw_status read_bytes(gzFile file, const char *path, void *data, size_t size,
                             mgw_error *error)
{
    size_t done = 0;
    while (done < size) {
        size_t left = size - done;
        int got =
            gzread(file, (char *)data + done, left < INT_MAX ? (unsigned)left : (unsigned)INT_MAX);
        if (got <= 0) {
            int code = Z_OK;
            const char *why = gzerror(file, &code);
            return mgw_fail(error, MGW_ERR_INPUT, "%s: %s (after %zu of %zu bytes)", path,
                            code < 0 && code != Z_BUF_ERROR ? why : "the file is too short", done,
                            size);
        }
        done += (size_t)got;
    }
    return MGW_OK;
}

static mgw_status read_header(gzFile file, const char *path, int dimensions,
                              uint32_t sizes[DIMENSIONS_MAX], size_t *bytes, mgw_error *error)
{
    unsigned char header[4 + 4 * DIMENSIONS_MAX];
    mgw_status status = read_bytes(file, path, header, 4 + 4 * (size_t)dimensions, error);
    if (status)
        return status;
    uint32_t magic = big_endian(header);
    if (magic != 0x800u + (uint32_t)dimensions)
        return mgw_fail(
            error, MGW_ERR_INPUT,
            "%s: begins with %08x, but an IDX file of bytes in %d dimensions begins with %08x",
            path, magic, dimensions, 0x800u + (uint32_t)dimensions);
    uint64_t total = 1;
    for (int i = 0; i < dimensions; i++) {
        sizes[i] = big_endian(header + 4 + 4 * (size_t)i);
        total *= sizes[i];
        if (sizes[i] == 0 || total > BYTES_MAX)
            return mgw_fail(error, MGW_ERR_INPUT, "%s: dimension %d is %u: %s", path, i, sizes[i],
                            sizes[i] ? "more than 1 GiB in total" : "the file has no data");
    }
    *bytes = (size_t)total;
    return MGW_OK;
}

static mgw_status read_idx(const char *path, int dimensions, uint32_t sizes[DIMENSIONS_MAX],
                           unsigned char **out, mgw_error *error)
{
    gzFile file = gzopen(path, "rb");
    if (!file)
        return mgw_fail(error, errno == ENOENT ? MGW_ERR_NOT_FOUND : MGW_ERR_IO, "%s: %s", path,
                        strerror(errno));
    gzbuffer(file, 1 << 18);
    size_t bytes = 0;
    unsigned char *data = NULL;
    mgw_status status = read_header(file, path, dimensions, sizes, &bytes, error);
    if (!status && !(data = malloc(bytes)))
        status = mgw_fail_memory(error, path);
    if (!status)
        status = read_bytes(file, path, data, bytes, error);
    unsigned char more;
    if (!status && gzread(file, &more, 1) != 0)
        status = mgw_fail(error, MGW_ERR_INPUT, "%s: %s", path,
                          gzeof(file) ? "damaged at the end" : "longer than its header says");
    if (gzclose(file) != Z_OK && !status)
        status = mgw_fail(error, MGW_ERR_INPUT, "%s: damaged", path);
    if (status)
        free(data);
    else
        *out = data;
    return status;
}

/* ---- A folder of images and labels ---- */

/* The file of that name, or with .gz appended. */
static void find_file(const char *folder, const char *set, const char *what, char *path,
                      size_t size)
{
    struct stat about;
    snprintf(path, size, "%s/%s-%s", folder, set, what);
    if (stat(path, &about) != 0)
        snprintf(path, size, "%s/%s-%s.gz", folder, set, what);
}

static void measure_pixels(nn_data *data)
{
    size_t bytes = (size_t)data->count * (size_t)data->size * (size_t)data->size;
    double sum = 0;
    double squares = 0;
    for (size_t i = 0; i < bytes; i++) {
        double value = data->pixels[i] / 255.0;
        sum += value;
        squares += value * value;
    }
    double mean = sum / (double)bytes;
    double variance = squares / (double)bytes - mean * mean;
    data->mean = (float)mean;
    data->deviation = variance > 1e-12 ? (float)sqrt(variance) : 1;
}

static mgw_status count_classes(nn_data *data, const char *path, uint32_t labels, mgw_error *error)
{
    if (labels != (uint32_t)data->count)
        return mgw_fail(error, MGW_ERR_INPUT, "%s: %u labels for %d images", path, labels,
                        data->count);
    data->classes = 2;
    for (int i = 0; i < data->count; i++)
        data->classes = data->labels[i] < data->classes ? data->classes : data->labels[i] + 1;
    return MGW_OK;
}

mgw_status nn_data_read(const char *folder, bool test, nn_data **out, mgw_error *error)
{
    char images[PATH_MAX];
    char labels[PATH_MAX];
    const char *set = test ? "t10k" : "train";
    uint32_t sizes[DIMENSIONS_MAX] = {0};
    uint32_t label_sizes[DIMENSIONS_MAX] = {0};
    find_file(folder, set, "images-idx3-ubyte", images, sizeof images);
    find_file(folder, set, "labels-idx1-ubyte", labels, sizeof labels);
    nn_data *data = calloc(1, sizeof *data);
    if (!data)
        return mgw_fail_memory(error, "data");
    mgw_status status = read_idx(images, 3, sizes, &data->pixels, error);
    if (!status && sizes[1] != sizes[2])
        status = mgw_fail(error, MGW_ERR_INPUT, "%s: images of %ux%u: they must be square", images,
                          sizes[1], sizes[2]);
    if (!status)
        status = read_idx(labels, 1, label_sizes, &data->labels, error);
    data->count = (int)sizes[0];
    data->channels = 1;
    data->size = (int)sizes[1];
    if (!status)
        status = count_classes(data, labels, label_sizes[0], error);
    if (status == MGW_ERR_NOT_FOUND && !strcmp(folder, NN_DATA_FOLDER))
        status = mgw_fail(error, MGW_ERR_NOT_FOUND,
                          "%s does not exist: install Debian's dataset-fashion-mnist, name another "
                          "folder with --data, or use --data synthetic",
                          sizes[0] ? labels : images);
    if (status) {
        nn_data_destroy(data);
        return status;
    }
    const char *last = strrchr(folder, '/');
    snprintf(data->name, sizeof data->name, "%s", last && last[1] ? last + 1 : folder);
    measure_pixels(data);
    *out = data;
    return MGW_OK;
}

mgw_status nn_data_make_up(const nn_data *like, uint32_t first, int count, nn_data **out,
                           mgw_error *error)
{
    nn_data *data = calloc(1, sizeof *data);
    if (!data)
        return mgw_fail_memory(error, "data");
    *data = (nn_data){.name = "synthetic",
                      .count = count,
                      .channels = like->channels,
                      .size = like->size,
                      .classes = like->classes,
                      .first = first};
    *out = data;
    return MGW_OK;
}

void nn_data_destroy(nn_data *data)
{
    if (!data)
        return;
    free(data->pixels);
    free(data->labels);
    free(data);
}

/* ---- One image ---- */

/* Noise, 16 random bits per pixel, brighter in the rows of its class. */
static void make_up(const nn_data *data, uint32_t number, float *image, int *label)
{
    nn_random random = nn_random_of(number, 7);
    size_t row = (size_t)data->size * (size_t)data->channels;
    *label = (int)nn_random_below(&random, (uint32_t)data->classes);
    uint64_t bits = 0;
    for (size_t i = 0; i < row * (size_t)data->size; i++) {
        bits = i % 4 ? bits >> 16 : nn_random_next(&random);
        bool lit = (int)(i / row * 7 % (size_t)data->classes) == *label;
        image[i] = ((float)(bits & 0xffff) / 65536 - 0.5f) * 3.4641f + (lit ? 2 : 0);
    }
}

void nn_data_get(const nn_data *data, uint32_t index, const uint64_t *augment, float *image,
                 int *label)
{
    if (!data->pixels) {
        make_up(data, data->first + index, image, label);
        return;
    }
    int size = data->size;
    int down = 0;
    int right = 0;
    bool mirror = false;
    if (augment) {
        nn_random random = nn_random_of(*augment, index);
        down = (int)nn_random_below(&random, 5) - 2;
        right = (int)nn_random_below(&random, 5) - 2;
        mirror = nn_random_below(&random, 2);
    }
    const unsigned char *pixels = data->pixels + (size_t)index * (size_t)(size * size);
    for (int y = 0; y < size; y++)
        for (int x = 0; x < size; x++) {
            int from_y = y - down;
            int from_x = (mirror ? size - 1 - x : x) - right;
            bool inside = from_y >= 0 && from_y < size && from_x >= 0 && from_x < size;
            float value = inside ? (float)pixels[from_y * size + from_x] / 255 : 0;
            image[y * size + x] = (value - data->mean) / data->deviation;
        }
    *label = data->labels[index];
}

mgw_status nn_data_shuffle(const nn_data *data, uint64_t seed, uint64_t epoch, uint32_t **out,
                           mgw_error *error)
{
    uint32_t *order = malloc((size_t)data->count * sizeof *order);
    if (!order)
        return mgw_fail_memory(error, "data");
    nn_random random = nn_random_of(seed, epoch + 1000000);
    nn_random_order(&random, order, (uint32_t)data->count);
    *out = order;
    return MGW_OK;
}
