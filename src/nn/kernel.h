/*
 * Kernels: the arithmetic of networks, by oneDNN, which only kernel.c and operations.c use.
 *
 * A kernel is one operation on memory that is fixed when it is created, and can run any number of
 * times. Images are channels-last (nhwc); weights are in PyTorch's layout: [out, in, height, width]
 * for convolutions, [out, in * height * width] for linear layers.
 *
 * Threads: one at a time for a processor and all its kernels.
 */
#ifndef MGW_NN_KERNEL_H
#define MGW_NN_KERNEL_H

#include <stdbool.h>
#include <stddef.h>

#include <mgwfbp/status.h>

typedef struct nn_processor nn_processor;
typedef struct nn_kernel nn_kernel;

/* A batch of images; with height and width 1, a batch of vectors. */
typedef struct nn_image {
    float *data;
    int batch;
    int channels;
    int height;
    int width;
} nn_image;

size_t nn_image_count(const nn_image *image);

/* The window of a convolution or pooling. */
typedef struct nn_window {
    int height;
    int width;
    int stride;
    int pad_top;
    int pad_left;
    int pad_bottom;
    int pad_right;
} nn_window;

/* Zeroed memory for `count` numbers, 64-byte aligned; freed by free. */
float *nn_allocate(size_t count);

/* oneDNN with the given number of threads. Ownership: the caller destroys *out, after all its
 * kernels. */
MGW_CHECKED mgw_status nn_processor_create(int threads, nn_processor **out, mgw_error *error);
void nn_processor_destroy(nn_processor *processor);

MGW_CHECKED mgw_status nn_kernel_run(nn_kernel *kernel, mgw_error *error);
void nn_kernel_destroy(nn_kernel *kernel);

/*
 * The operation ("softmax") for which oneDNN only has reference code on this processor, which may
 * be a hundred times slower; null: it is optimized.
 */
const char *nn_kernel_reference(const nn_kernel *kernel);

/*
 * Each function below creates a kernel. Ownership: the caller destroys *made and keeps the memory.
 */

MGW_CHECKED mgw_status nn_convolution(nn_processor *processor, const nn_window *window,
                                      const nn_image *in, float *weights, float *bias,
                                      const nn_image *out, nn_kernel **made, mgw_error *error);
MGW_CHECKED mgw_status nn_convolution_back_data(nn_processor *processor, const nn_window *window,
                                                const nn_image *d_in, float *weights,
                                                const nn_image *d_out, nn_kernel **made,
                                                mgw_error *error);
MGW_CHECKED mgw_status nn_convolution_back_weights(nn_processor *processor, const nn_window *window,
                                                   const nn_image *in, float *d_weights,
                                                   float *d_bias, const nn_image *d_out,
                                                   nn_kernel **made, mgw_error *error);

MGW_CHECKED mgw_status nn_linear(nn_processor *processor, const nn_image *in, float *weights,
                                 float *bias, const nn_image *out, nn_kernel **made,
                                 mgw_error *error);
MGW_CHECKED mgw_status nn_linear_back_data(nn_processor *processor, const nn_image *d_in,
                                           float *weights, const nn_image *d_out, nn_kernel **made,
                                           mgw_error *error);
MGW_CHECKED mgw_status nn_linear_back_weights(nn_processor *processor, const nn_image *in,
                                              float *d_weights, float *d_bias,
                                              const nn_image *d_out, nn_kernel **made,
                                              mgw_error *error);

/*
 * Mean and variance of each channel are inputs; the backward pass treats them as the batch's own.
 */
typedef struct nn_normal {
    float *mean;
    float *variance;
    float *scale;
    float *shift;
    float epsilon;
} nn_normal;

MGW_CHECKED mgw_status nn_normalise(nn_processor *processor, const nn_normal *normal,
                                    const nn_image *in, const nn_image *out, nn_kernel **made,
                                    mgw_error *error);
MGW_CHECKED mgw_status nn_normalise_back(nn_processor *processor, const nn_normal *normal,
                                         const nn_image *in, const nn_image *d_out,
                                         const nn_image *d_in, float *d_scale, float *d_shift,
                                         nn_kernel **made, mgw_error *error);

MGW_CHECKED mgw_status nn_relu(nn_processor *processor, const nn_image *in, const nn_image *out,
                               nn_kernel **made, mgw_error *error);
MGW_CHECKED mgw_status nn_relu_back(nn_processor *processor, const nn_image *out,
                                    const nn_image *d_out, const nn_image *d_in, nn_kernel **made,
                                    mgw_error *error);

typedef enum nn_pooling { NN_MAX, NN_AVERAGE, NN_AVERAGE_INSIDE } nn_pooling;

/* Both passes at once: they share the positions of the maxima. Averages count the padding, or only
 * pixels inside. */
MGW_CHECKED mgw_status nn_pool(nn_processor *processor, nn_pooling pooling, const nn_window *window,
                               const nn_image *in, const nn_image *out, nn_kernel **made,
                               mgw_error *error);
MGW_CHECKED mgw_status nn_pool_back(nn_processor *processor, nn_pooling pooling,
                                    const nn_window *window, nn_kernel *forward,
                                    const nn_image *d_in, const nn_image *d_out, nn_kernel **made,
                                    mgw_error *error);

/* out = a + b; out may be a. */
MGW_CHECKED mgw_status nn_sum(nn_processor *processor, const nn_image *a, const nn_image *b,
                              const nn_image *out, nn_kernel **made, mgw_error *error);

/* Concatenates the channels of at most this many images; and extracts a part of them. */
enum { NN_PARTS_MAX = 8 };

MGW_CHECKED mgw_status nn_concat(nn_processor *processor, const nn_image *const *in, int count,
                                 const nn_image *out, nn_kernel **made, mgw_error *error);
MGW_CHECKED mgw_status nn_slice(nn_processor *processor, const nn_image *in, int first_channel,
                                const nn_image *out, nn_kernel **made, mgw_error *error);

MGW_CHECKED mgw_status nn_log_softmax(nn_processor *processor, const nn_image *in,
                                      const nn_image *out, nn_kernel **made, mgw_error *error);
MGW_CHECKED mgw_status nn_log_softmax_back(nn_processor *processor, const nn_image *out,
                                           const nn_image *d_out, const nn_image *d_in,
                                           nn_kernel **made, mgw_error *error);

#endif
