/* Data-parallel training: Algorithm 2 of the paper, on the engine's public interface. */
#include "train/worker.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/status.h"
#include "train/update.h"

/* Numbers of synthetic images. */
enum { TRAIN_IMAGES = 1 << 20, TEST_IMAGES = 256 };

/* ---- Open ---- */

static mgw_status load_data(train_worker *w, mgw_error *error)
{
    const train_worker_options *o = &w->options;
    int size = o->size ? o->size : o->model->size;
    if (!strcmp(o->data, "synthetic")) {
        nn_data like = {.channels = o->model->channels, .size = size, .classes = o->model->classes};
        mgw_status status = nn_data_make_up(&like, 0, TRAIN_IMAGES, &w->train, error);
        return status ? status : nn_data_make_up(&like, TRAIN_IMAGES, TEST_IMAGES, &w->test, error);
    }
    mgw_status status = nn_data_read(o->data, false, &w->train, error);
    if (!status)
        status = nn_data_read(o->data, true, &w->test, error);
    if (!status && (w->test->size != w->train->size || w->test->classes > w->train->classes))
        status =
            mgw_fail(error, MGW_ERR_INPUT,
                     "%.200s: the test has images of %d pixels in %d classes, the training "
                     "set of %d in %d",
                     o->data, w->test->size, w->test->classes, w->train->size, w->train->classes);
    if (!status) { /* test images must be normalized like the training images */
        w->test->mean = w->train->mean;
        w->test->deviation = w->train->deviation;
    }
    return status;
}

static mgw_status build_net(train_worker *w, mgw_error *error)
{
    mgw_status status = nn_model_build(w->options.model, w->options.batch, w->train->channels,
                                       w->train->size, w->train->classes, &w->net, error);
    if (!status)
        nn_state_init(&w->state, w->net, w->options.optimizer, w->options.seed);
    return status;
}

static void take_place(train_worker *w)
{
    w->rank = mgw_engine_rank(w->engine);
    w->size = mgw_engine_size(w->engine);
    w->state.workers = w->size;
}

/* Takes the engine's memory for gradients and weights. */
static mgw_status take_memory(train_worker *w, mgw_error *error)
{
    for (unsigned t = 0; t < (unsigned)w->net->parameter_count; t++)
        w->gradients[t] = mgw_engine_gradient(w->engine, t);
    return train_update_init(w, error);
}

static mgw_status make_program(train_worker *w, mgw_error *error)
{
    mgw_status status = nn_program_create(w->processor, w->net, w->gradients, &w->program, error);
    if (!status)
        train_update_watch(w);
    return status;
}

static void list_tensors(train_worker *w)
{
    for (int i = 0; i < w->net->parameter_count; i++)
        w->by_tensor[w->net->parameters[i].tensor] = &w->net->parameters[i];
}

/* Registers the gradients in ready order; the program writes them to the engine's memory. */
static mgw_status start_engine(train_worker *w, mgw_error *error)
{
    unsigned count = (unsigned)w->net->parameter_count;
    w->by_tensor = calloc(count, sizeof *w->by_tensor);
    w->gradients = calloc(count, sizeof *w->gradients);
    mgw_status status =
        w->by_tensor && w->gradients ? MGW_OK : mgw_fail_memory(error, w->net->name);
    if (!status)
        list_tensors(w);
    for (unsigned t = 0; !status && t < count; t++) {
        unsigned id = 0;
        status = mgw_engine_add(w->engine, w->by_tensor[t]->name, w->by_tensor[t]->count, MGW_F32,
                                &id, error);
    }
    if (!status)
        status = train_update_join(w, error);
    if (!status)
        status = mgw_engine_start(w->engine, error);
    return status ? status : take_memory(w, error);
}

mgw_status train_worker_open(const train_worker_options *options, train_worker **out,
                             mgw_error *error)
{
    train_worker *w = calloc(1, sizeof *w);
    if (!w)
        return mgw_fail_memory(error, "worker");
    w->options = *options;
    const char *servers = getenv("MGWFBP_SERVERS"); /* servers only have gradients */
    w->options.engine.keeps_parameters =
        !options->engine.servers && (!servers || !strcmp(servers, "0"));
    mgw_status status = load_data(w, error);
    if (!status)
        status = build_net(w, error);
    if (!status)
        status = mgw_engine_open(&w->options.engine, &w->engine, error);
    if (!status) {
        take_place(w);
        if ((uint64_t)options->batch * w->size > (uint64_t)w->train->count)
            status = mgw_fail(error, MGW_ERR_ARGUMENT,
                              "%u workers with %d images each: there are only %d images", w->size,
                              options->batch, w->train->count);
    }
    if (!status)
        status = start_engine(w, error);
    if (!status)
        status = nn_processor_create(options->threads, &w->processor, error);
    if (!status)
        status = make_program(w, error);
    if (!status && !(w->labels = calloc((size_t)options->batch, sizeof *w->labels)))
        status = mgw_fail_memory(error, "worker");
    if (status)
        train_worker_close(w);
    else
        *out = w;
    return status;
}

void train_worker_close(train_worker *w)
{
    if (!w)
        return;
    nn_program_destroy(w->program); /* it uses the engine's memory */
    mgw_engine_close(w->engine);
    nn_processor_destroy(w->processor);
    train_update_fini(w);
    nn_net_destroy(w->net);
    nn_data_destroy(w->train);
    nn_data_destroy(w->test);
    free((void *)w->gradients);
    free((void *)w->by_tensor);
    free(w->labels);
    free(w->order);
    free(w);
}

/* The network and its program are created again, since they used the memory of the old engine. */
mgw_status train_worker_reform(train_worker *w, unsigned least, mgw_error *error)
{
    nn_program_destroy(w->program);
    w->program = NULL;
    mgw_status status = mgw_engine_reform(w->engine, &w->options.engine, &w->engine, error);
    if (!status && mgw_engine_size(w->engine) < least)
        status = mgw_fail(error, MGW_ERR_PEER, "only %u workers are left, and %u are needed",
                          mgw_engine_size(w->engine), least);
    if (status)
        return status;
    train_update_fini(w);
    nn_net_destroy(w->net);
    w->net = NULL;
    free(w->order);
    w->order = NULL;
    status = build_net(w, error);
    if (!status) {
        take_place(w);
        list_tensors(w);
        status = take_memory(w, error);
    }
    return status ? status : make_program(w, error);
}

/* ---- Steps ---- */

static uint64_t all_images(const train_worker *w)
{
    return (uint64_t)w->options.batch * w->size;
}

double train_worker_rate(const train_worker *w)
{
    const train_worker_options *o = &w->options;
    double at =
        (double)w->state.progress.epoch + (double)w->state.progress.samples / w->train->count;
    if (at < o->warmup) /* not from 0, so that the first step has an effect */
        return o->rule.rate * fmin((at + (double)all_images(w) / w->train->count) / o->warmup, 1);
    double fallen = (at - o->warmup) / fmax(o->epochs - o->warmup, 1e-9);
    return o->rule.rate * 0.5 * (1 + cos(3.141592653589793 * fmin(fallen, 1)));
}

/* Loads this worker's share of the next batch. */
static void load_batch(train_worker *w)
{
    uint64_t first = w->state.progress.samples + (uint64_t)w->rank * (uint64_t)w->options.batch;
    size_t pixels = (size_t)w->train->size * (size_t)w->train->size * (size_t)w->train->channels;
    uint64_t augment = w->state.progress.seed + 77 * w->state.progress.epoch;
    float *images = nn_program_images(w->program);
    for (int i = 0; i < w->options.batch; i++)
        nn_data_get(w->train, w->order[first + (uint64_t)i], w->options.augment ? &augment : NULL,
                    images + (size_t)i * pixels, &w->labels[i]);
}

static void tell_engine(void *engine, unsigned tensor)
{
    mgw_engine_ready(engine, tensor);
}

static mgw_status begin_epoch(train_worker *w, mgw_error *error)
{
    if (w->order)
        return MGW_OK;
    return nn_data_shuffle(w->train, w->state.progress.seed, w->state.progress.epoch, &w->order,
                           error);
}

/* An epoch ends when no whole batch is left. */
static void end_epoch_if_due(train_worker *w)
{
    uint64_t left = (uint64_t)w->train->count - w->state.progress.samples;
    if (all_images(w) <= left)
        return;
    w->state.progress.epoch++;
    w->state.progress.samples = 0;
    free(w->order);
    w->order = NULL;
}

void train_worker_go_to(train_worker *w, const nn_progress *progress)
{
    w->state.progress = *progress;
    free(w->order);
    w->order = NULL;
    end_epoch_if_due(w); /* a different number of workers may have left less than a batch */
}

/* Loading images counts as part of the forward pass: gathers continue meanwhile. */
static mgw_status compute(train_worker *w, double *loss, mgw_error *error)
{
    load_batch(w);
    mgw_status status =
        nn_forward(w->program, w->labels, w->options.batch, true, loss, NULL, error);
    return status ? status : nn_backward(w->program, tell_engine, w->engine, error);
}

mgw_status train_worker_step(train_worker *w, double *loss, mgw_error *error)
{
    double begun_s = mgw_now_s();
    mgw_status status = begin_epoch(w, error);
    if (status)
        return status;
    w->rule = w->options.rule;
    w->rule.rate = train_worker_rate(w);
    w->rule.step = w->state.progress.steps + 1;
    status = mgw_engine_begin(w->engine, error);
    w->begin_s = mgw_now_s(); /* after planning, if there was any */
    if (!status)
        status = compute(w, loss, error);
    if (!status)
        status = mgw_engine_wait(w->engine, error);
    if (!status)
        status = train_update_rest(w, error);
    if (status)
        return status;
    w->state.progress.steps++;
    w->state.progress.samples += all_images(w);
    end_epoch_if_due(w);
    w->step_s = mgw_now_s() - begun_s;
    if (!isfinite(*loss))
        return mgw_fail(
            error, MGW_ERR_UNSUPPORTED,
            "rank %u, step %llu: the loss is not finite: try a smaller --rate or a longer --warmup",
            w->rank, (unsigned long long)w->state.progress.steps);
    return MGW_OK;
}

/* ---- Collectives ---- */

mgw_status train_worker_sum(train_worker *w, double *values, size_t count, mgw_error *error)
{
    return mgw_engine_all_reduce(w->engine, values, count, MGW_F64, MGW_SUM, error);
}

mgw_status train_worker_most(train_worker *w, double *values, size_t count, mgw_error *error)
{
    double *rows = calloc(count * w->size, sizeof *rows); /* zero except for our own */
    if (!rows)
        return mgw_fail_memory(error, "worker");
    memcpy(rows + count * w->rank, values, count * sizeof *values);
    mgw_status status = train_worker_sum(w, rows, count * w->size, error);
    for (size_t i = 0; !status && i < count * w->size; i++)
        values[i % count] = fmax(values[i % count], rows[i]);
    free(rows);
    return status;
}

mgw_status train_worker_average_running(train_worker *w, mgw_error *error)
{
    size_t count = w->state.running_total;
    if (!count)
        return MGW_OK;
    float *numbers = nn_allocate(count);
    if (!numbers)
        return mgw_fail_memory(error, "worker");
    nn_state_running_out(&w->state, numbers);
    mgw_status status =
        mgw_engine_all_reduce(w->engine, numbers, count, MGW_F32, MGW_AVERAGE, error);
    if (!status)
        nn_state_running_in(&w->state, numbers);
    free(numbers);
    return status;
}

mgw_status train_worker_evaluate(train_worker *w, double *loss, double *accuracy, mgw_error *error)
{
    mgw_status status = train_update_drain(w, error);
    if (!status)
        status = train_worker_average_running(w, error);
    size_t pixels = (size_t)w->test->size * (size_t)w->test->size * (size_t)w->test->channels;
    float *images = nn_program_images(w->program);
    double sums[2] = {0}; /* losses and correct answers */
    uint32_t stride = (uint32_t)all_images(w);
    for (uint32_t first = w->rank * (uint32_t)w->options.batch;
         !status && first < (uint32_t)w->test->count; first += stride) {
        int count = w->test->count - (int)first;
        count = count < w->options.batch ? count : w->options.batch;
        for (int i = 0; i < count; i++)
            nn_data_get(w->test, first + (uint32_t)i, NULL, images + (size_t)i * pixels,
                        &w->labels[i]);
        double mean = 0;
        int correct = 0;
        status = nn_forward(w->program, w->labels, count, false, &mean, &correct, error);
        sums[0] += mean * count;
        sums[1] += correct;
    }
    if (!status)
        status = train_worker_sum(w, sums, 2, error);
    *loss = sums[0] / w->test->count;
    *accuracy = sums[1] / w->test->count;
    return status;
}
