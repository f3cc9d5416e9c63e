/* Making a network ready to run, and running it. */
#include "nn/program.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/status.h"
#include "nn/statistics.h"

enum { NONE = -1 };

/*
 * Memory of gradients, which is used again once nobody needs what is in it: `holders` is how many
 * layers' output gradients it holds. Two layers that are added have one gradient between them.
 */
typedef struct buffer {
    float *data;
    size_t count;
    int holders;
} buffer;

typedef struct step {
    nn_kernel *kernel;
    int layer; /* backward: whose parameters' gradients are done behind it, or NONE */
} step;

typedef struct steps {
    step *all;
    int count;
    int capacity;
} steps;

/* What the processor did in steps that train; seconds of this thread, since others may have the
 * processor in between. */
typedef struct effort {
    double all_s;
    double reference_s; /* in oneDNN's reference code */
    unsigned steps;
} effort;

struct nn_program {
    nn_processor *processor;
    nn_net *net;
    nn_image *values;  /* by layer */
    nn_normal *normal; /* by layer; those of batch normalisations are used */
    float *const *gradients;
    steps forward;
    steps backward;
    nn_image scores; /* logarithms of the classes' probabilities, and their gradient */
    nn_image d_scores;
    nn_needed *needed;
    void *needed_context;
    size_t bytes;
    effort effort;
    bool is_warm;    /* the first step was made, and is not counted any more */
    buffer *buffers; /* while it is made: gradients of activations */
    int buffer_count;
    int *gradient_of; /* by layer: a buffer, or NONE */
};

/* ---- Memory ---- */

static mgw_status allocate(nn_program *p, size_t count, float **out, mgw_error *error)
{
    *out = nn_allocate(count);
    p->bytes += count * sizeof(float);
    return *out ? MGW_OK : mgw_fail_memory(error, p->net->name);
}

/* A relu may work in place: nobody else takes what comes in, nor is it needed to go back. */
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

/* Takes over a kernel that was made, if it was. */
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
        s->all[s->count++] = (step){kernel, layer};
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

/* Whether a gradient of what comes out of the layer is of any use. */
static bool wants_gradient(const nn_program *p, nn_value value)
{
    nn_kind kind = p->net->layers[value].kind;
    return kind != NN_INPUT && kind != NN_ZEROS;
}

/*
 * A layer is about to write its part of the gradient of `value`. If it is the first, that is the
 * gradient; else it is written elsewhere, and added by `contributed`.
 */
static mgw_status contribute(nn_program *p, nn_value value, int *b, nn_image *where,
                             mgw_error *error)
{
    mgw_status status = acquire(p, nn_image_count(&p->values[value]), b, error);
    if (!status)
        *where = gradient_image(p, value, *b);
    return status;
}

/* Adds a part that is in buffer b to the gradient; gives b back unless it is now the gradient. */
static mgw_status contributed(nn_program *p, nn_value value, int b, mgw_error *error)
{
    int old = p->gradient_of[value];
    if (old == NONE) {
        p->gradient_of[value] = b;
        return MGW_OK;
    }
    /* In place where nobody else holds either of the two. */
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

/* Convolutions and linear layers: first the weights' gradients, which others wait for. */
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

/* Normalisations, relus and poolings: one input, of which the first two may reuse the memory. */
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
    if (!status && b == p->gradient_of[l]) { /* it is the input's now */
        p->buffers[b].holders--;
        p->gradient_of[l] = NONE;
    }
    return status ? status : contributed(p, in, b, error);
}

/* Both get the same gradient, and share its memory until one of them adds to it. */
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

static void name_reference(const steps *s, char what[NN_WHAT_MAX])
{
    for (int i = 0; i < s->count; i++) {
        const char *name = nn_kernel_reference(s->all[i].kernel);
        size_t used = strlen(what);
        if (name && !strstr(what, name))
            snprintf(what + used, NN_WHAT_MAX - used, "%s%s", used ? ", " : "", name);
    }
}

double nn_program_reference(const nn_program *program, char what[NN_WHAT_MAX], unsigned *counted)
{
    const effort *e = &program->effort;
    what[0] = '\0';
    name_reference(&program->forward, what);
    name_reference(&program->backward, what);
    if (counted)
        *counted = e->steps;
    return e->all_s > 0 ? e->reference_s / e->all_s : 0;
}

void nn_watch_forward(nn_program *program, nn_needed *needed, void *context)
{
    program->needed = needed;
    program->needed_context = context;
}

/* ---- Running ---- */

static void take_statistics(nn_program *p, int l, bool training)
{
    const nn_layer *layer = &p->net->layers[l];
    const nn_image *in = &p->values[layer->in[0]];
    nn_normal *normal = &p->normal[l];
    size_t channels = (size_t)in->channels;
    size_t rows = nn_image_count(in) / channels;
    if (training) {
        nn_mean_variance(in->data, rows, channels, normal->mean, normal->variance);
        nn_follow(layer->running, normal->mean, normal->variance, rows, channels);
    } else {
        memcpy(normal->mean, layer->running, 2 * channels * sizeof(float));
    }
}

/* The mean cross-entropy, how many are right, and where the backward pass begins. */
static void score(nn_program *p, const int *labels, int count, double *loss, int *correct)
{
    int classes = p->scores.channels;
    memset(p->d_scores.data, 0, nn_image_count(&p->d_scores) * sizeof(float));
    double sum = 0;
    int right = 0;
    for (int i = 0; i < count; i++) {
        const float *row = p->scores.data + (size_t)i * (size_t)classes;
        int best = 0;
        for (int c = 1; c < classes; c++)
            best = row[c] > row[best] ? c : best;
        right += best == labels[i];
        sum -= row[labels[i]];
        p->d_scores.data[i * classes + labels[i]] = -1.0f / (float)count;
    }
    if (loss)
        *loss = sum / count;
    if (correct)
        *correct = right;
}

static void tell_needed(const nn_program *p, int l)
{
    const nn_layer *layer = &p->net->layers[l];
    for (int i = 0; i < layer->parameter_count; i++)
        p->needed(p->needed_context, p->net->parameters[layer->parameter + i].tensor);
}

static mgw_status run_kernel(nn_program *p, nn_kernel *kernel, mgw_error *error)
{
    if (!nn_kernel_reference(kernel))
        return nn_kernel_run(kernel, error);
    double begun_s = mgw_busy_s();
    mgw_status status = nn_kernel_run(kernel, error);
    p->effort.reference_s += mgw_busy_s() - begun_s;
    return status;
}

mgw_status nn_forward(nn_program *p, const int *labels, int count, bool training, double *loss,
                      int *correct, mgw_error *error)
{
    if (training && p->effort.steps == 1 && !p->is_warm) {
        p->effort = (effort){0}; /* the first step took longer than others will */
        p->is_warm = true;
    }
    effort before = p->effort;
    double begun_s = mgw_busy_s();
    mgw_status status = MGW_OK;
    for (int i = 0; !status && i < p->forward.count; i++) {
        int l = p->forward.all[i].layer;
        if (l != NONE && p->needed)
            tell_needed(p, l);
        if (l != NONE && p->net->layers[l].kind == NN_NORMAL)
            take_statistics(p, l, training);
        status = run_kernel(p, p->forward.all[i].kernel, error);
    }
    if (!status)
        score(p, labels, count, loss, correct);
    p->effort.all_s += mgw_busy_s() - begun_s;
    if (!training)
        p->effort = before;
    return status;
}

/* Of several parameters of one layer, in ready order. */
static void tell_ready(const nn_layer *layer, const nn_net *net, nn_ready *ready, void *context)
{
    unsigned first = net->parameters[layer->parameter].tensor;
    for (int i = 1; i < layer->parameter_count; i++) {
        unsigned tensor = net->parameters[layer->parameter + i].tensor;
        first = tensor < first ? tensor : first;
    }
    for (int i = 0; i < layer->parameter_count; i++)
        ready(context, first + (unsigned)i);
}

mgw_status nn_backward(nn_program *p, nn_ready *ready, void *context, mgw_error *error)
{
    double begun_s = mgw_busy_s();
    mgw_status status = MGW_OK;
    for (int i = 0; !status && i < p->backward.count; i++) {
        const step *s = &p->backward.all[i];
        status = run_kernel(p, s->kernel, error);
        if (!status && s->layer != NONE && ready)
            tell_ready(&p->net->layers[s->layer], p->net, ready, context);
    }
    p->effort.all_s += mgw_busy_s() - begun_s;
    p->effort.steps++;
    return status;
}
