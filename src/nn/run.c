/* Runs a network: forward, backward, and the callbacks meanwhile. */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "nn/statistics.h"
#include "nn/steps.h"

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

/* The mean cross-entropy, the number of correct images, and the first gradient of the backward
 * pass. */
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

static mgw_status tell_needed(const nn_program *p, int l, mgw_error *error)
{
    const nn_layer *layer = &p->net->layers[l];
    mgw_status status = MGW_OK;
    for (int i = 0; !status && i < layer->parameter_count; i++)
        status =
            p->needed(p->needed_context, p->net->parameters[layer->parameter + i].tensor, error);
    return status;
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
        p->effort = (effort){0}; /* the first step took longer than later ones */
        p->is_warm = true;
    }
    effort before = p->effort;
    double begun_s = mgw_busy_s();
    mgw_status status = MGW_OK;
    for (int i = 0; !status && i < p->forward.count; i++) {
        int l = p->forward.all[i].layer;
        if (l != NONE && p->needed)
            status = tell_needed(p, l, error);
        if (!status && l != NONE && p->net->layers[l].kind == NN_NORMAL)
            take_statistics(p, l, training);
        if (!status)
            status = run_kernel(p, p->forward.all[i].kernel, error);
    }
    if (!status)
        score(p, labels, count, loss, correct);
    p->effort.all_s += mgw_busy_s() - begun_s;
    if (!training)
        p->effort = before;
    return status;
}

/* For several parameters of one layer, in ready order. */
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
        int told = p->changes_beside ? s->leaves : s->layer;
        status = run_kernel(p, s->kernel, error);
        if (!status && told != NONE && ready)
            tell_ready(&p->net->layers[told], p->net, ready, context);
    }
    p->effort.all_s += mgw_busy_s() - begun_s;
    p->effort.steps++;
    return status;
}

/* ---- Reports and settings ---- */

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

void nn_change_beside(nn_program *program)
{
    program->changes_beside = true;
}

void nn_watch_forward(nn_program *program, nn_needed *needed, void *context)
{
    program->needed = needed;
    program->needed_context = context;
}
