/* Images to train on: read from IDX files, or synthetic. */
#ifndef MGW_NN_DATA_H
#define MGW_NN_DATA_H

#include <stdbool.h>
#include <stdint.h>

#include <mgwfbp/status.h>

typedef struct nn_data {
    char name[64];
    int count;
    int channels;
    int size; /* height and width */
    int classes;
    unsigned char *pixels; /* null: synthetic, generated on demand */
    unsigned char *labels;
    uint32_t first; /* number of the first synthetic image */
    float mean;     /* of all pixels, 0 to 1, and their standard deviation */
    float deviation;
} nn_data;

/* Where Debian's dataset-fashion-mnist installs it. */
#define NN_DATA_FOLDER "/usr/share/datasets/fashion-mnist"

/*
 * Reads FOLDER/train-images-idx3-ubyte and -labels-idx1-ubyte, or t10k-… for the test; .gz or not.
 * Ownership: the caller destroys *out.
 */
MGW_CHECKED mgw_status nn_data_read(const char *folder, bool test, nn_data **out, mgw_error *error);

/* Synthetic noise whose labels can be learned, the same for the same number: `count` images from
 * number `first` on, with the channels, size and classes of `like`. */
MGW_CHECKED mgw_status nn_data_make_up(const nn_data *like, uint32_t first, int count,
                                       nn_data **out, mgw_error *error);
void nn_data_destroy(nn_data *data);

/*
 * One image as numbers of mean 0 and standard deviation 1, nhwc, and its label. With `augment`,
 * which is random per image and not per worker, it is shifted by up to 2 pixels and perhaps
 * mirrored.
 */
void nn_data_get(const nn_data *data, uint32_t index, const uint64_t *augment, float *image,
                 int *label);

/*
 * The order of an epoch, the same on all workers. Ownership: the caller frees *out, of data->count
 * indices.
 */
MGW_CHECKED mgw_status nn_data_shuffle(const nn_data *data, uint64_t seed, uint64_t epoch,
                                       uint32_t **out, mgw_error *error);

#endif
