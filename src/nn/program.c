/* Prepares a network to run: its memory, and its kernels in order. */
#include <stdlib.h>

#include "base/status.h"
#include "nn/steps.h"

/* ---- Memory ---- */

static mgw_status allocate(nn_program *p, size_t count, float **out, mgw_error *error)
{
    *out = nn_allocate(count);
    p->bytes += count * sizeof(float);
    return *out ? MGW_OK : mgw_fail_memory(error, p->net->name);
}

/*
 * A relu may work in place if nothing else uses its input, and the backward pass does not need it.
 */
static bool works_in_place(const nn_net *net, const nn_layer *layer)
{
    return layer->kind == NN_RELU && net->layers[layer->in[0]].consumers == 1 &&
           net->layers[layer->in[0]].kind != NN_INPUT;
}

static mgw_status allocate_values(nn_program *p, mgw_error *error)
{
    mgw_status status = MGW_OK;
    for (int l = 0; !status && l < p->net->layer_count; l++) {
        const nn_layer *layer = &p->net->layers[l];
        nn_image *value = &p->values[l];
        *value = layer->shape;
        if (works_in_place(p->net, layer))
            value->data = p->values[layer->in[0]].data;
        else
            status = allocate(p, nn_image_count(value), &value->data, error);
        if (status || layer->kind != NN_NORMAL)
            continue;
        size_t channels = (size_t)value->channels;
        nn_normal *normal = &p->normal[l];
        status = allocate(p, 2 * channels, &normal->mean, error);
        normal->variance = normal->mean ? normal->mean + channels : NULL;
        normal->scale = p->net->parameters[layer->parameter].data;
        normal->shift = p->net->parameters[layer->parameter + 1].data;
        normal->epsilon = p->net->epsilon;
    }
    return status;
}

/* The smallest free buffer that is large enough, or a new one. */
static mgw_status acquire(nn_program *p, size_t count, int *out, mgw_error *error)
{
    int best = NONE;
    for (int b = 0; b < p->buffer_count; b++) {
        const buffer *candidate = &p->buffers[b];
        if (candidate->holders == 0 && candidate->count >= count &&
            (best == NONE || candidate->count < p->buffers[best].count))
            best = b;
    }
    mgw_status status = MGW_OK;
    if (best == NONE) {
        best = p->buffer_count;
        status = allocate(p, count, &p->buffers[best].data, error);
        p->buffers[best].count = count;
        p->buffer_count += !status;
    }
    p->buffers[best].holders = !status;
    *out = best;
    return status;
}

static nn_image gradient_image(const nn_program *p, int layer, int b)
{
    nn_image image = p->values[layer];
    image.data = p->buffers[b].data;
    return image;
}

/* ---- Making the forward steps ---- */

/* Takes ownership of a kernel, if it was created. */
static mgw_status add_step(steps *s, mgw_status status, nn_kernel *kernel, int layer,
                           mgw_error *error)
{
    if (!status && s->count == s->capacity) {
        int capacity = s->capacity ? 2 * s->capacity : 128;
        step *grown = realloc(s->all, (size_t)capacity * sizeof *grown);
        if (!grown) {
            nn_kernel_destroy(kernel);
            return mgw_fail_memory(error, "nn");
        }
        s->all = grown;
        s->capacity = capacity;
    }
    if (!status)
        s->all[s->count++] = (step){kernel, layer, layer};
    return status;
}

static float *parameter(const nn_program *p, const nn_layer *layer, int which)
{
    return which < layer->parameter_count ? p->net->parameters[layer->parameter + which].data
                                          : NULL;
}

static mgw_status make_forward(nn_program *p, int l, nn_kernel **made, mgw_error *error)
{
    const nn_layer *layer = &p->net->layers[l];
    const nn_image *in = &p->values[layer->in[0]];
    const nn_image *out = &p->values[l];
    const nn_image *parts[NN_PARTS_MAX] = {NULL};
    for (int i = 0; i < layer->in_count; i++)
        parts[i] = &p->values[layer->in[i]];
    switch (layer->kind) {
    case NN_CONVOLUTION:
        return nn_convolution(p->processor, &layer->window, in, parameter(p, layer, 0),
                              parameter(p, layer, 1), out, made, error);
    case NN_NORMAL:
        return nn_normalise(p->processor, &p->normal[l], in, out, made, error);
    case NN_RELU:
        return nn_relu(p->processor, in, out, made, error);
    case NN_POOL:
        return nn_pool(p->processor, layer->pooling, &layer->window, in, out, made, error);
    case NN_ADD:
        return nn_sum(p->processor, in, parts[1], out, made, error);
    case NN_CONCAT:
        return nn_concat(p->processor, parts, layer->in_count, out, made, error);
    case NN_LINEAR:
        return nn_linear(p->processor, in, parameter(p, layer, 0), parameter(p, layer, 1), out,
                         made, error);
    default:
        *made = NULL; /* nothing to do */
        return MGW_OK;
    }
}

static mgw_status make_all_forward(nn_program *p, mgw_error *error)
{
    mgw_status status = MGW_OK;
    for (int l = 0; !status && l < p->net->layer_count; l++) {
        nn_kernel *kernel = NULL;
        status = make_forward(p, l, &kernel, error);
        if (status || kernel)
            status = add_step(&p->forward, status, kernel, l, error);
    }
    const nn_image *out = &p->values[p->net->out];
    p->scores = p->d_scores = *out;
    p->scores.data = p->d_scores.data = NULL; /* owned by them, not by the layer */
    if (!status)
        status = allocate(p, nn_image_count(out), &p->scores.data, error);
    if (!status)
        status = allocate(p, nn_image_count(out), &p->d_scores.data, error);
    nn_kernel *kernel = NULL;
    if (!status)
        status = nn_log_softmax(p->processor, out, &p->scores, &kernel, error);
    return add_step(&p->forward, status, kernel, NONE, error);
}

/* ---- Making the backward steps ---- */

/* Whether the gradient of the layer's output is needed. */
static bool wants_gradient(const nn_program *p, nn_value value)
{
    nn_kind kind = p->net->layers[value].kind;
    return kind != NN_INPUT && kind != NN_ZEROS;
}

/*
 * A layer is about to write its part of the gradient of `value`. The first part becomes the
 * gradient; others are written elsewhere, and added by `contributed`.
 */
static mgw_status contribute(nn_program *p, nn_value value, int *b, nn_image *where,
                             mgw_error *error)
{
    mgw_status status = acquire(p, nn_image_count(&p->values[value]), b, error);
    if (!status)
        *where = gradient_image(p, value, *b);
    return status;
}

/* Adds the part in buffer b to the gradient; releases b unless it is now the gradient. */
static mgw_status contributed(nn_program *p, nn_value value, int b, mgw_error *error)
{
    int old = p->gradient_of[value];
    if (old == NONE) {
        p->gradient_of[value] = b;
        return MGW_OK;
    }
    /* In place where nothing else holds one of the two. */
    int target = p->buffers[old].holders == 1 ? old : b;
    mgw_status status = MGW_OK;
    if (p->buffers[target].holders > 1)
        status = acquire(p, nn_image_count(&p->values[value]), &target, error);
    if (status)
        return status;
    nn_image first = gradient_image(p, value, target == b ? b : old);
    nn_image second = gradient_image(p, value, target == b ? old : b);
    nn_image sum = gradient_image(p, value, target);
    nn_kernel *kernel = NULL;
    status = nn_sum(p->processor, &first, &second, &sum, &kernel, error);
    if (old != target)
        p->buffers[old].holders--;
    if (b != target)
        p->buffers[b].holders--;
    p->gradient_of[value] = target;
    return add_step(&p->backward, status, kernel, NONE, error);
}

static float *gradient(const nn_program *p, const nn_layer *layer, int which)
{
    return which < layer->parameter_count
               ? p->gradients[p->net->parameters[layer->parameter + which].tensor]
               : NULL;
}

/* The last step uses the parameters whose gradients the previous one computed. */
static void leave_later(steps *s)
{
    step *last = &s->all[s->count - 1];
    last->leaves = last[-1].leaves;
    last[-1].leaves = NONE;
}

/* Convolutions and linear layers: the weights' gradients come first, because other workers wait for
 * them. */
static mgw_status weighted_back(nn_program *p, int l, const nn_image *d_out, mgw_error *error)
{
    const nn_layer *layer = &p->net->layers[l];
    const nn_image *in = &p->values[layer->in[0]];
    bool linear = layer->kind == NN_LINEAR;
    nn_kernel *kernel = NULL;
    mgw_status status =
        linear
            ? nn_linear_back_weights(p->processor, in, gradient(p, layer, 0), gradient(p, layer, 1),
                                     d_out, &kernel, error)
            : nn_convolution_back_weights(p->processor, &layer->window, in, gradient(p, layer, 0),
                                          gradient(p, layer, 1), d_out, &kernel, error);
    status = add_step(&p->backward, status, kernel, l, error);
    if (status || !wants_gradient(p, layer->in[0]))
        return status;
    int b = NONE;
    nn_image d_in;
    status = contribute(p, layer->in[0], &b, &d_in, error);
    if (!status)
        status = linear ? nn_linear_back_data(p->processor, &d_in, parameter(p, layer, 0), d_out,
                                              &kernel, error)
                        : nn_convolution_back_data(p->processor, &layer->window, &d_in,
                                                   parameter(p, layer, 0), d_out, &kernel, error);
    status = add_step(&p->backward, status, kernel, NONE, error);
    if (!status)
        leave_later(&p->backward);
    return status ? status : contributed(p, layer->in[0], b, error);
}

static mgw_status make_plain_back(nn_program *p, int l, const nn_image *d_in, const nn_image *d_out,
                                  nn_kernel **made, mgw_error *error)
{
    const nn_layer *layer = &p->net->layers[l];
    const nn_image *in = &p->values[layer->in[0]];
    if (layer->kind == NN_NORMAL)
        return nn_normalise_back(p->processor, &p->normal[l], in, d_out, d_in,
                                 gradient(p, layer, 0), gradient(p, layer, 1), made, error);
    if (layer->kind == NN_RELU)
        return nn_relu_back(p->processor, &p->values[l], d_out, d_in, made, error);
    int f = 0; /* a pooling: its forward kernel knows where the maxima were */
    while (p->forward.all[f].layer != l)
        f++;
    return nn_pool_back(p->processor, layer->pooling, &layer->window, p->forward.all[f].kernel,
                        d_in, d_out, made, error);
}

/* Normalisations, relus and poolings: one input; the first two may reuse the memory. */
static mgw_status plain_back(nn_program *p, int l, const nn_image *d_out, mgw_error *error)
{
    const nn_layer *layer = &p->net->layers[l];
    nn_value in = layer->in[0];
    if (!wants_gradient(p, in) && layer->kind != NN_NORMAL)
        return MGW_OK;
    int b = p->gradient_of[l];
    nn_image d_in = gradient_image(p, in, b);
    mgw_status status = MGW_OK;
    if (layer->kind != NN_POOL && p->buffers[b].holders == 1)
        p->buffers[b].holders++;
    else
        status = contribute(p, in, &b, &d_in, error);
    nn_kernel *kernel = NULL;
    if (!status)
        status = make_plain_back(p, l, &d_in, d_out, &kernel, error);
    status = add_step(&p->backward, status, kernel, layer->kind == NN_NORMAL ? l : NONE, error);
    if (!status && b == p->gradient_of[l]) { /* now the input's */
        p->buffers[b].holders--;
        p->gradient_of[l] = NONE;
    }
    return status ? status : contributed(p, in, b, error);
}

/* Both inputs get the same gradient, and share its memory until one of them adds to it. */
static mgw_status sum_back(nn_program *p, int l, mgw_error *error)
{
    const nn_layer *layer = &p->net->layers[l];
    mgw_status status = MGW_OK;
    for (int i = 0; !status && i < layer->in_count; i++) {
        if (!wants_gradient(p, layer->in[i]))
            continue;
        int b = p->gradient_of[l];
        p->buffers[b].holders++;
        status = contributed(p, layer->in[i], b, error);
    }
    return status;
}

static mgw_status concat_back(nn_program *p, int l, const nn_image *d_out, mgw_error *error)
{
    const nn_layer *layer = &p->net->layers[l];
    mgw_status status = MGW_OK;
    int first = 0;
    for (int i = 0; !status && i < layer->in_count; i++) {
        nn_value in = layer->in[i];
        if (wants_gradient(p, in)) {
            int b = NONE;
            nn_image part;
            nn_kernel *kernel = NULL;
            status = contribute(p, in, &b, &part, error);
            if (!status)
                status = nn_slice(p->processor, d_out, first, &part, &kernel, error);
            status = add_step(&p->backward, status, kernel, NONE, error);
            if (!status)
                status = contributed(p, in, b, error);
        }
        first += p->values[in].channels;
    }
    return status;
}

static mgw_status make_backward(nn_program *p, int l, mgw_error *error)
{
    int b = p->gradient_of[l];
    if (b == NONE)
        return MGW_OK;
    nn_image d_out = gradient_image(p, l, b);
    switch (p->net->layers[l].kind) {
    case NN_CONVOLUTION:
    case NN_LINEAR:
        return weighted_back(p, l, &d_out, error);
    case NN_NORMAL:
    case NN_RELU:
    case NN_POOL:
        return plain_back(p, l, &d_out, error);
    case NN_ADD:
        return sum_back(p, l, error);
    case NN_CONCAT:
        return concat_back(p, l, &d_out, error);
    default:
        return MGW_OK;
    }
}

static mgw_status make_all_backward(nn_program *p, mgw_error *error)
{
    int b = NONE;
    nn_image d_out;
    nn_kernel *kernel = NULL;
    mgw_status status = contribute(p, p->net->out, &b, &d_out, error);
    if (!status)
        status =
            nn_log_softmax_back(p->processor, &p->scores, &p->d_scores, &d_out, &kernel, error);
    status = add_step(&p->backward, status, kernel, NONE, error);
    if (!status)
        status = contributed(p, p->net->out, b, error);
    for (int l = p->net->layer_count - 1; !status && l >= 0; l--) {
        status = make_backward(p, l, error);
        if (p->gradient_of[l] != NONE)
            p->buffers[p->gradient_of[l]].holders--;
    }
    return status;
}

mgw_status nn_program_create(nn_processor *processor, nn_net *net, float *const *gradients,
                             nn_program **out, mgw_error *error)
{
    nn_program *p = calloc(1, sizeof *p);
    if (!p)
        return mgw_fail_memory(error, net->name);
    size_t layers = (size_t)net->layer_count;
    p->processor = processor;
    p->net = net;
    p->gradients = gradients;
    p->values = calloc(layers, sizeof *p->values);
    p->normal = calloc(layers, sizeof *p->normal);
    p->gradient_of = malloc(layers * sizeof *p->gradient_of);
    p->buffers = calloc(2 * layers + 8, sizeof *p->buffers);
    mgw_status status = p->values && p->normal && p->gradient_of && p->buffers
                            ? MGW_OK
                            : mgw_fail_memory(error, net->name);
    for (size_t l = 0; !status && l < layers; l++)
        p->gradient_of[l] = NONE;
    if (!status)
        status = allocate_values(p, error);
    if (!status)
        status = make_all_forward(p, error);
    if (!status && gradients)
        status = make_all_backward(p, error);
    if (status)
        nn_program_destroy(p);
    else
        *out = p;
    return status;
}

static void destroy_steps(steps *s)
{
    for (int i = 0; i < s->count; i++)
        nn_kernel_destroy(s->all[i].kernel);
    free(s->all);
}

void nn_program_destroy(nn_program *p)
{
    if (!p)
        return;
    destroy_steps(&p->backward);
    destroy_steps(&p->forward);
    for (int l = 0; p->values && p->normal && l < p->net->layer_count; l++) {
        if (!works_in_place(p->net, &p->net->layers[l]))
            free(p->values[l].data);
        free(p->normal[l].mean);
    }
    for (int b = 0; b < p->buffer_count; b++)
        free(p->buffers[b].data);
    free(p->scores.data);
    free(p->d_scores.data);
    free(p->values);
    free(p->normal);
    free(p->gradient_of);
    free(p->buffers);
    free(p);
}

float *nn_program_images(nn_program *program)
{
    return program->values[0].data;
}

size_t nn_program_bytes(const nn_program *program)
{
    return program->bytes;
}
