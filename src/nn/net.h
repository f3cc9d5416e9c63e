/*
 * Networks: a graph of layers, put together from a small vocabulary.
 *
 *     nn_net *net = nn_net_create(name, batch, channels, height, width);
 *     nn_value x = nn_input(net);
 *     x = nn_add_relu(net, nn_add_normal(net, nn_add_conv(net, x, "conv1", …), "bn1"));
 *     nn_finish(net, nn_add_linear(net, x, "fc", 10));
 *
 * A builder that fails (out of memory, an image that becomes empty) makes the net fail, which
 * nn_finish reports; so the lines that define a network need no checks.
 */
#ifndef MGW_NN_NET_H
#define MGW_NN_NET_H

#include <stdint.h>

#include "nn/kernel.h"

typedef struct nn_net nn_net;
typedef int nn_value; /* the output of a layer */

typedef enum nn_kind {
    NN_INPUT,
    NN_ZEROS,
    NN_CONVOLUTION,
    NN_NORMAL,
    NN_RELU,
    NN_POOL,
    NN_ADD,
    NN_CONCAT,
    NN_LINEAR
} nn_kind;

/* The initial value of a parameter: a constant, or random numbers of some spread. */
typedef enum nn_start { NN_START_CONSTANT, NN_START_NORMAL, NN_START_UNIFORM } nn_start;

/* A parameter: weights of a layer. Numbered in the order in which layers were added. */
typedef struct nn_parameter {
    char *name; /* as in PyTorch's state_dict */
    size_t count;
    size_t offset; /* total size of the parameters before it */
    nn_start start;
    double start_value; /* the constant, the standard deviation, or the bound */
    float *data;
    bool is_elsewhere; /* in memory that the net does not own */
    unsigned tensor;   /* its number in ready order: the engine's id */
} nn_parameter;

typedef struct nn_layer {
    nn_kind kind;
    nn_value in[NN_PARTS_MAX];
    int in_count;
    nn_image shape;     /* of the output; data is null until the program is created */
    nn_window window;   /* of convolutions and poolings */
    nn_pooling pooling; /* of poolings */
    int parameter;      /* its first parameter, or -1 */
    int parameter_count;
    int consumers;  /* number of layers that use the output */
    float *running; /* of batch normalisations: means, then variances, for evaluation */
} nn_layer;

struct nn_net {
    char name[32];
    nn_layer *layers;
    int layer_count;
    int layer_capacity;
    nn_parameter *parameters;
    int parameter_count;
    int parameter_capacity;
    float epsilon; /* of batch normalisations; 1e-5 unless the model sets another */
    nn_value out;  /* the scores of the classes */
    mgw_status status;
    mgw_error error;
};

/* Null: out of memory. Ownership: the caller destroys it. */
nn_net *nn_net_create(const char *name, int batch, int channels, int height, int width);
void nn_net_destroy(nn_net *net);

nn_value nn_input(nn_net *net);

/* A zero image, of the size of another but with the given channels. */
nn_value nn_add_zeros(nn_net *net, nn_value like, int channels);

typedef struct nn_conv {
    int channels;
    int height; /* of the kernel */
    int width;  /* 0: as the height */
    int stride; /* 0: 1 */
    int pad_h;
    int pad_w;
    bool bias;
} nn_conv;

nn_value nn_add_conv(nn_net *net, nn_value in, const char *name, nn_conv conv);

/* Batch normalisation. */
nn_value nn_add_normal(nn_net *net, nn_value in, const char *name);
nn_value nn_add_relu(nn_net *net, nn_value in);

typedef struct nn_pool_shape {
    nn_pooling pooling;
    int size; /* 0: the whole image */
    int stride;
    int pad;
    bool ceil; /* count windows that extend over the edge */
} nn_pool_shape;

nn_value nn_add_pool(nn_net *net, nn_value in, nn_pool_shape pool);
nn_value nn_add_sum(nn_net *net, nn_value a, nn_value b);
nn_value nn_add_concat(nn_net *net, const nn_value *in, int count);
nn_value nn_add_linear(nn_net *net, nn_value in, const char *name, int channels);

/* Completes the net: numbers its parameters in ready order, and allocates them. */
MGW_CHECKED mgw_status nn_finish(nn_net *net, nn_value out, mgw_error *error);

/* Random weights, the same for the same seed. */
void nn_initialise(nn_net *net, uint64_t seed);

size_t nn_parameter_total(const nn_net *net);

/* Moves the parameter to `home`, which the caller owns; its values are copied. Call before a
 * program is created. */
void nn_move(nn_parameter *parameter, float *home);

#endif
