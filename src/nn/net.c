/* Builds networks: shapes, parameters, and connections between layers. */
#include "nn/net.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "nn/random.h"

static void fail_memory(nn_net *net)
{
    net->status = mgw_fail_memory(&net->error, net->name);
}

/* ---- Layers and parameters ---- */

static nn_value add_layer(nn_net *net, nn_layer layer)
{
    if (net->status)
        return 0;
    if (net->layer_count == net->layer_capacity) {
        int capacity = net->layer_capacity ? 2 * net->layer_capacity : 64;
        nn_layer *grown = realloc(net->layers, (size_t)capacity * sizeof *grown);
        if (!grown) {
            fail_memory(net);
            return 0;
        }
        net->layers = grown;
        net->layer_capacity = capacity;
    }
    for (int i = 0; i < layer.in_count; i++)
        net->layers[layer.in[i]].consumers++;
    if (!layer.parameter_count)
        layer.parameter = -1;
    net->layers[net->layer_count] = layer;
    return net->layer_count++;
}

/* "layer1.0.conv1" and "weight". */
static void add_parameter(nn_net *net, const char *layer, const char *what, size_t count,
                          nn_start start, double start_value)
{
    if (net->status)
        return;
    if (net->parameter_count == net->parameter_capacity) {
        int capacity = net->parameter_capacity ? 2 * net->parameter_capacity : 64;
        nn_parameter *grown = realloc(net->parameters, (size_t)capacity * sizeof *grown);
        if (!grown) {
            fail_memory(net);
            return;
        }
        net->parameters = grown;
        net->parameter_capacity = capacity;
    }
    size_t size = strlen(layer) + strlen(what) + 2;
    char *name = malloc(size);
    if (!name) {
        fail_memory(net);
        return;
    }
    snprintf(name, size, "%s.%s", layer, what);
    net->parameters[net->parameter_count++] =
        (nn_parameter){.name = name, .count = count, .start = start, .start_value = start_value};
}

static nn_image shape_of(const nn_net *net, nn_value value)
{
    return net->status ? (nn_image){0} : net->layers[value].shape;
}

/* The number of windows that fit. */
static int steps_over(int size, int window, int before, int behind, int stride)
{
    int room = size + before + behind - window;
    return room < 0 ? 0 : room / stride + 1;
}

static void check_shape(nn_net *net, const char *what, const nn_image *shape)
{
    if (!net->status && (shape->height < 1 || shape->width < 1))
        net->status =
            mgw_fail(&net->error, MGW_ERR_ARGUMENT,
                     "%s: images of %dx%d are too small: nothing is left at %s", net->name,
                     net->layers[0].shape.height, net->layers[0].shape.width, what);
}

/* ---- The vocabulary ---- */

nn_net *nn_net_create(const char *name, int batch, int channels, int height, int width)
{
    nn_net *net = calloc(1, sizeof *net);
    if (!net)
        return NULL;
    snprintf(net->name, sizeof net->name, "%s", name);
    net->epsilon = 1e-5f;
    nn_image shape = {.batch = batch, .channels = channels, .height = height, .width = width};
    add_layer(net, (nn_layer){.kind = NN_INPUT, .shape = shape});
    return net;
}

nn_value nn_input(nn_net *net)
{
    (void)net;
    return 0;
}

nn_value nn_add_zeros(nn_net *net, nn_value like, int channels)
{
    nn_image shape = shape_of(net, like);
    shape.channels = channels;
    return add_layer(net, (nn_layer){.kind = NN_ZEROS, .shape = shape});
}

nn_value nn_add_conv(nn_net *net, nn_value in, const char *name, nn_conv conv)
{
    int width = conv.width ? conv.width : conv.height;
    int stride = conv.stride ? conv.stride : 1;
    nn_image shape = shape_of(net, in);
    int in_channels = shape.channels;
    nn_window window = {.height = conv.height,
                        .width = width,
                        .stride = stride,
                        .pad_top = conv.pad_h,
                        .pad_left = conv.pad_w,
                        .pad_bottom = conv.pad_h,
                        .pad_right = conv.pad_w};
    shape.channels = conv.channels;
    shape.height = steps_over(shape.height, conv.height, conv.pad_h, conv.pad_h, stride);
    shape.width = steps_over(shape.width, width, conv.pad_w, conv.pad_w, stride);
    check_shape(net, name, &shape);
    int area = conv.height * width;
    int first = net->parameter_count;
    add_parameter(net, name, "weight", (size_t)conv.channels * (size_t)in_channels * (size_t)area,
                  NN_START_NORMAL, sqrt(2.0 / (conv.channels * area)));
    if (conv.bias)
        add_parameter(net, name, "bias", (size_t)conv.channels, NN_START_UNIFORM,
                      1 / sqrt(in_channels * area));
    return add_layer(net, (nn_layer){.kind = NN_CONVOLUTION,
                                     .in = {in},
                                     .in_count = 1,
                                     .shape = shape,
                                     .window = window,
                                     .parameter = first,
                                     .parameter_count = conv.bias ? 2 : 1});
}

nn_value nn_add_normal(nn_net *net, nn_value in, const char *name)
{
    nn_image shape = shape_of(net, in);
    int first = net->parameter_count;
    add_parameter(net, name, "weight", (size_t)shape.channels, NN_START_CONSTANT, 1);
    add_parameter(net, name, "bias", (size_t)shape.channels, NN_START_CONSTANT, 0);
    return add_layer(net, (nn_layer){.kind = NN_NORMAL,
                                     .in = {in},
                                     .in_count = 1,
                                     .shape = shape,
                                     .parameter = first,
                                     .parameter_count = 2});
}

nn_value nn_add_relu(nn_net *net, nn_value in)
{
    return add_layer(
        net, (nn_layer){.kind = NN_RELU, .in = {in}, .in_count = 1, .shape = shape_of(net, in)});
}

/* Padding at the far edge so that windows may extend beyond it; none begins there. */
static int reach_over(int size, int window, int pad, int stride)
{
    int room = size + 2 * pad - window;
    if (room < 0)
        return 0;
    int extra = (stride - room % stride) % stride;
    bool begins_outside = (room + extra) / stride * stride >= size + pad;
    return begins_outside ? 0 : extra;
}

nn_value nn_add_pool(nn_net *net, nn_value in, nn_pool_shape pool)
{
    nn_image shape = shape_of(net, in);
    int height = pool.size ? pool.size : shape.height;
    int width = pool.size ? pool.size : shape.width;
    int stride = pool.stride ? pool.stride : 1;
    nn_window window = {.height = height,
                        .width = width,
                        .stride = stride,
                        .pad_top = pool.pad,
                        .pad_left = pool.pad,
                        .pad_bottom = pool.pad,
                        .pad_right = pool.pad};
    if (pool.ceil) {
        window.pad_bottom += reach_over(shape.height, height, pool.pad, stride);
        window.pad_right += reach_over(shape.width, width, pool.pad, stride);
    }
    shape.height = steps_over(shape.height, height, pool.pad, window.pad_bottom, stride);
    shape.width = steps_over(shape.width, width, pool.pad, window.pad_right, stride);
    check_shape(net, "a pooling", &shape);
    return add_layer(net, (nn_layer){.kind = NN_POOL,
                                     .in = {in},
                                     .in_count = 1,
                                     .shape = shape,
                                     .window = window,
                                     .pooling = pool.pooling});
}

nn_value nn_add_sum(nn_net *net, nn_value a, nn_value b)
{
    return add_layer(
        net, (nn_layer){.kind = NN_ADD, .in = {a, b}, .in_count = 2, .shape = shape_of(net, a)});
}

nn_value nn_add_concat(nn_net *net, const nn_value *in, int count)
{
    nn_layer layer = {.kind = NN_CONCAT, .in_count = count, .shape = shape_of(net, in[0])};
    layer.shape.channels = 0;
    for (int i = 0; i < count; i++) {
        layer.in[i] = in[i];
        layer.shape.channels += shape_of(net, in[i]).channels;
    }
    return add_layer(net, layer);
}

nn_value nn_add_linear(nn_net *net, nn_value in, const char *name, int channels)
{
    nn_image shape = shape_of(net, in);
    int inputs = shape.channels * shape.height * shape.width;
    int first = net->parameter_count;
    add_parameter(net, name, "weight", (size_t)channels * (size_t)inputs, NN_START_UNIFORM,
                  1 / sqrt(inputs));
    add_parameter(net, name, "bias", (size_t)channels, NN_START_UNIFORM, 1 / sqrt(inputs));
    shape.channels = channels;
    shape.height = shape.width = 1;
    return add_layer(net, (nn_layer){.kind = NN_LINEAR,
                                     .in = {in},
                                     .in_count = 1,
                                     .shape = shape,
                                     .parameter = first,
                                     .parameter_count = 2});
}

/* ---- The whole ---- */

/*
 * The last layer's gradients are ready first; those that are ready together are in PyTorch's order.
 */
static void number_in_ready_order(nn_net *net)
{
    unsigned next = 0;
    for (int l = net->layer_count - 1; l >= 0; l--) {
        const nn_layer *layer = &net->layers[l];
        for (int i = 0; i < layer->parameter_count; i++) {
            int k = layer->kind == NN_NORMAL ? i : layer->parameter_count - 1 - i;
            net->parameters[layer->parameter + k].tensor = next++;
        }
    }
}

static mgw_status allocate(nn_net *net, mgw_error *error)
{
    size_t offset = 0;
    for (int i = 0; i < net->parameter_count; i++) {
        nn_parameter *p = &net->parameters[i];
        p->offset = offset;
        offset += p->count;
        if (!(p->data = nn_allocate(p->count)))
            return mgw_fail_memory(error, net->name);
    }
    for (int l = 0; l < net->layer_count; l++) {
        nn_layer *layer = &net->layers[l];
        size_t channels = (size_t)layer->shape.channels;
        if (layer->kind == NN_NORMAL && !(layer->running = nn_allocate(2 * channels)))
            return mgw_fail_memory(error, net->name);
        for (size_t c = 0; layer->running && c < channels; c++)
            layer->running[channels + c] = 1;
    }
    return MGW_OK;
}

mgw_status nn_finish(nn_net *net, nn_value out, mgw_error *error)
{
    if (net->status)
        return mgw_fail(error, net->status, "%s", net->error.message);
    net->out = out;
    net->layers[out].consumers++;
    number_in_ready_order(net);
    return allocate(net, error);
}

void nn_net_destroy(nn_net *net)
{
    if (!net)
        return;
    for (int i = 0; i < net->parameter_count; i++) {
        free(net->parameters[i].name);
        if (!net->parameters[i].is_elsewhere)
            free(net->parameters[i].data);
    }
    for (int l = 0; l < net->layer_count; l++)
        free(net->layers[l].running);
    free(net->parameters);
    free(net->layers);
    free(net);
}

size_t nn_parameter_total(const nn_net *net)
{
    size_t total = 0;
    for (int i = 0; i < net->parameter_count; i++)
        total += net->parameters[i].count;
    return total;
}

void nn_move(nn_parameter *parameter, float *home)
{
    memcpy(home, parameter->data, parameter->count * sizeof *home);
    if (!parameter->is_elsewhere)
        free(parameter->data);
    parameter->data = home;
    parameter->is_elsewhere = true;
}

static double draw(const nn_parameter *p, nn_random *random)
{
    switch (p->start) {
    case NN_START_NORMAL:
        return p->start_value * nn_random_normal(random);
    case NN_START_UNIFORM:
        return p->start_value * (2 * nn_random_uniform(random) - 1);
    default:
        return p->start_value;
    }
}

void nn_initialise(nn_net *net, uint64_t seed)
{
    for (int i = 0; i < net->parameter_count; i++) {
        nn_parameter *p = &net->parameters[i];
        nn_random random = nn_random_of(seed, (uint64_t)i);
        for (size_t k = 0; k < p->count; k++)
            p->data[k] = (float)draw(p, &random);
    }
}
