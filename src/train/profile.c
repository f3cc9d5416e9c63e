/* Measures the step of a network as a trace: when its gradients are ready, and when its parameters
 * are needed. */
#include "train/profile.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/median.h"
#include "base/status.h"
#include "job/interrupt.h"
#include "nn/data.h"
#include "nn/program.h"

enum { WARM_UP = 2 };

typedef struct profile {
    const nn_model *model;
    nn_net *net;
    nn_processor *processor;
    nn_program *program;
    float **gradients;
    int *labels;
    int batch;
    int size;
    unsigned count; /* tensors */
    unsigned steps;
    unsigned step;
    unsigned done; /* measured steps */
    double begun_s;
    double *forward_s; /* by step */
    double *ready_s;   /* by tensor and step, from the start of the backward pass */
    double *needed_s;  /* by tensor and step, from the start of the step */
} profile;

static void take_ready(void *context, unsigned tensor)
{
    profile *t = context;
    t->ready_s[tensor * t->steps + t->step] = mgw_now_s() - t->begun_s;
}

static mgw_status take_needed(void *context, unsigned tensor, mgw_error *error)
{
    (void)error;
    profile *t = context;
    t->needed_s[tensor * t->steps + t->step] = mgw_now_s() - t->begun_s;
    return MGW_OK;
}

static mgw_status run_step(profile *t, mgw_error *error)
{
    double loss = 0;
    t->begun_s = mgw_now_s();
    mgw_status status = nn_forward(t->program, t->labels, t->batch, true, &loss, NULL, error);
    double end_s = mgw_now_s();
    t->forward_s[t->step] = end_s - t->begun_s;
    t->begun_s = end_s;
    return status ? status : nn_backward(t->program, take_ready, t, error);
}

/* The computation time of each step; call it before medians sort the times. Ownership: the caller
 * frees it. */
static double *add_up(const profile *t)
{
    double *steps_s = calloc(t->steps, sizeof *steps_s);
    for (unsigned s = 0; steps_s && s < t->steps; s++) {
        double last_s = 0;
        for (unsigned i = 0; i < t->count; i++)
            last_s = fmax(last_s, t->ready_s[i * t->steps + s]);
        steps_s[s] = t->forward_s[s] + last_s;
    }
    return steps_s;
}

/* Uses the median of each time; ready times must not decrease. */
static mgw_status make_trace(profile *t, mgw_trace **out, mgw_error *error)
{
    mgw_tensor *tensors = calloc(t->count, sizeof *tensors);
    const char **names = calloc(t->count, sizeof *names);
    double *steps_s = add_up(t);
    if (!tensors || !names || !steps_s) {
        free(steps_s);
        free(tensors);
        free((void *)names);
        return mgw_fail_memory(error, "trace");
    }
    for (unsigned i = 0; i < t->count; i++) {
        const nn_parameter *p = &t->net->parameters[i];
        tensors[p->tensor].count = p->count;
        names[p->tensor] = p->name;
    }
    double before_s = 0;
    for (unsigned i = 0; i < t->count; i++) {
        double ready_s = mgw_median(&t->ready_s[i * t->steps], t->done);
        tensors[i].backward_s = ready_s > before_s ? ready_s - before_s : 0;
        tensors[i].forward_start_s = mgw_median(&t->needed_s[i * t->steps], t->done);
        before_s = ready_s > before_s ? ready_s : before_s;
    }
    mgw_status status = mgw_trace_create(t->net->name, MGW_F32, mgw_median(t->forward_s, t->done),
                                         t->count, names, tensors, out, error);
    if (!status)
        status = mgw_trace_set_steps(*out, steps_s, t->steps, error);
    free(steps_s);
    free(tensors);
    free((void *)names);
    return status;
}

static void read_processor(char name[128])
{
    snprintf(name, 128, "CPU");
    FILE *file = fopen("/proc/cpuinfo", "r");
    char line[256];
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "model name : %100[^\n]", name) == 1)
            break;
    if (file)
        fclose(file);
}

static mgw_status describe(const profile *t, mgw_trace *trace, mgw_error *error)
{
    char name[128];
    read_processor(name);
    char *device = strdup(name);
    char *precision = strdup("fp32");
    if (!device || !precision) {
        free(device);
        free(precision);
        return mgw_fail_memory(error, "trace");
    }
    free(trace->device);
    free(trace->precision);
    trace->device = device;
    trace->precision = precision;
    trace->batch = (uint64_t)t->batch;
    return MGW_OK;
}

static mgw_status prepare(profile *t, int threads, mgw_error *error)
{
    mgw_status status = nn_model_build(t->model, t->batch, t->model->channels, t->size,
                                       t->model->classes, &t->net, error);
    if (status)
        return status;
    nn_initialise(t->net, 1);
    t->count = (unsigned)t->net->parameter_count;
    t->gradients = calloc(t->count, sizeof *t->gradients);
    t->labels = calloc((size_t)t->batch, sizeof *t->labels);
    t->forward_s = calloc(t->steps, sizeof *t->forward_s);
    t->ready_s = calloc((size_t)t->count * t->steps, sizeof *t->ready_s);
    t->needed_s = calloc((size_t)t->count * t->steps, sizeof *t->needed_s);
    bool there = t->gradients && t->labels && t->forward_s && t->ready_s && t->needed_s;
    for (unsigned i = 0; there && i < t->count; i++) {
        const nn_parameter *p = &t->net->parameters[i];
        there = (t->gradients[p->tensor] = nn_allocate(p->count));
    }
    if (!there)
        return mgw_fail_memory(error, "trace");
    status = nn_processor_create(threads, &t->processor, error);
    return status ? status
                  : nn_program_create(t->processor, t->net, t->gradients, &t->program, error);
}

static mgw_status fill_images(profile *t, mgw_error *error)
{
    nn_data *data = NULL;
    const nn_data like = {
        .channels = t->model->channels, .size = t->size, .classes = t->model->classes};
    mgw_status status = nn_data_make_up(&like, 0, t->batch, &data, error);
    size_t pixels = (size_t)t->size * (size_t)t->size * (size_t)t->model->channels;
    for (int i = 0; !status && i < t->batch; i++)
        nn_data_get(data, (uint32_t)i, NULL, nn_program_images(t->program) + (size_t)i * pixels,
                    &t->labels[i]);
    nn_data_destroy(data);
    return status;
}

static mgw_status run(profile *t, const train_profile_options *o, mgw_trace **out, mgw_error *error)
{
    mgw_status status = fill_images(t, error);
    nn_watch_forward(t->program, take_needed, t);
    for (unsigned i = 0; !status && !job_interrupted() && i < WARM_UP + t->steps; i++) {
        t->step = i < WARM_UP ? 0 : i - WARM_UP;
        status = run_step(t, error);
        t->done += !status && i >= WARM_UP;
        if (t->done)
            job_end_in_order(); /* there are results to keep */
        if (o->progress)
            o->progress(o->context, i + 1, WARM_UP + t->steps);
    }
    if (status)
        return status;
    (void)train_judge_reference(t->program, 1, o->warn);
    mgw_trace *trace = NULL;
    status = make_trace(t, &trace, error);
    if (!status)
        status = describe(t, trace, error);
    if (status)
        mgw_trace_destroy(trace);
    else
        *out = trace;
    return status;
}

mgw_status train_profile(const train_profile_options *options, mgw_trace **out, unsigned *done,
                         mgw_error *error)
{
    profile t = {.model = options->model,
                 .batch = options->batch,
                 .size = options->size,
                 .steps = options->steps};
    mgw_status status = prepare(&t, options->threads, error);
    if (!status)
        status = run(&t, options, out, error);
    *done = t.done;
    nn_program_destroy(t.program);
    nn_processor_destroy(t.processor);
    for (unsigned i = 0; t.gradients && i < t.count; i++)
        free(t.gradients[i]);
    free((void *)t.gradients);
    free(t.labels);
    free(t.forward_s);
    free(t.ready_s);
    free(t.needed_s);
    nn_net_destroy(t.net);
    return status;
}
