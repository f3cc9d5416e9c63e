/* The training loop: steps, what is told of them now and then, epochs, checkpoints. */
#include "train/loop.h"

#include <math.h>

#include "base/clock.h"
#include "base/status.h"
#include "job/steps.h"
#include "train/checkpoint.h"
#include "train/interrupt.h"
#include "train/update.h"

typedef struct loop {
    train_worker *worker;
    const train_loop_options *options;
    uint64_t next;  /* step after which to look: the first, then about every two seconds */
    bool stops;     /* somebody was interrupted */
    bool is_judged; /* whether reference code takes much of a step */
} loop;

/* Sums over the steps since the last look; added up over workers as numbers one by one. */
typedef struct sums {
    double loss;
    double steps;
    double step_s;
    double stop;
} sums;

/* All workers look at the sums of all, so that they stop together and look again together. */
static mgw_status look(loop *l, sums *own, mgw_error *error)
{
    train_worker *w = l->worker;
    const train_listener *listener = &l->options->listener;
    own->stop = train_is_interrupted();
    sums all = *own;
    mgw_status status = train_worker_sum(w, &all.loss, sizeof all / sizeof(double), error);
    if (status)
        return status;
    double mean_s = all.step_s / all.steps;
    l->next = w->state.progress.steps + (uint64_t)fmin(fmax(ceil(2 / mean_s), 1), 1000);
    l->stops = all.stop > 0;
    *own = (sums){0};
    mgw_engine_statistics s;
    mgw_engine_measure(w->engine, &s);
    train_window window = {.loss = all.loss / all.steps,
                           .images_per_s =
                               w->options.batch * (double)w->size * all.steps / all.step_s,
                           .exposed_share = s.iteration_s > 0 ? s.exposed_s / s.iteration_s : 0};
    return listener->window ? listener->window(listener->context, w, &window, error) : MGW_OK;
}

static mgw_status save(const loop *l, mgw_error *error)
{
    const char *path = l->options->checkpoint;
    return path ? train_checkpoint_save(l->worker, path, error) : MGW_OK;
}

static mgw_status end_epoch(const loop *l, mgw_error *error)
{
    const train_listener *listener = &l->options->listener;
    double loss = 0;
    double accuracy = 0;
    mgw_status status = train_worker_evaluate(l->worker, &loss, &accuracy, error);
    if (!status && !isfinite(loss))
        status =
            mgw_fail(error, MGW_ERR_UNSUPPORTED,
                     "the test loss is not finite: try a smaller --rate, or a longer --warmup");
    if (!status && listener->epoch)
        status = listener->epoch(listener->context, l->worker, loss, accuracy, error);
    return status ? status : save(l, error);
}

/* Once, when at least so many steps were measured. */
static void judge_reference(loop *l, unsigned steps)
{
    train_worker *w = l->worker;
    if (!l->is_judged)
        l->is_judged = train_judge_reference(w->program, steps,
                                             w->rank == 0 ? l->options->listener.warn : NULL);
}

/* One step, and what is due behind it. */
static mgw_status run_step(loop *l, sums *own, mgw_error *error)
{
    train_worker *w = l->worker;
    const nn_progress *p = &w->state.progress;
    unsigned every = l->options->checkpoint_steps;
    uint64_t epoch = p->epoch;
    double loss = 0;
    mgw_status status = train_worker_step(w, &loss, error);
    judge_reference(l, 5);
    own->loss += loss;
    own->steps++;
    own->step_s += w->step_s;
    bool ends = p->epoch > epoch;
    if (!status && (p->steps >= l->next || ends))
        status = look(l, own, error);
    if (!status && ends)
        status = end_epoch(l, error);
    else if (!status && every && p->steps % every == 0)
        status = save(l, error);
    return status;
}

static mgw_status summarise(train_worker *w, double wall_s, uint64_t steps, train_summary *out,
                            mgw_error *error)
{
    mgw_engine_statistics *s = &out->statistics;
    mgw_status status = train_update_drain(w, error); /* weights are read now */
    mgw_engine_measure(w->engine, s);
    double slowest[] = {s->iteration_s, s->compute_s};
    if (!status)
        status = train_worker_most(w, slowest, 2, error);
    s->iteration_s = slowest[0];
    s->compute_s = slowest[1];
    s->exposed_s = s->iteration_s - s->compute_s;
    out->plan = mgw_engine_plan(w->engine);
    out->images_per_s =
        wall_s > 0 ? (double)steps * w->options.batch * (double)w->size / wall_s : 0;
    return status;
}

mgw_status train_run(train_worker *w, const train_loop_options *options, train_summary *out,
                     mgw_error *error)
{
    const nn_progress *p = &w->state.progress;
    uint64_t first = p->steps;
    loop l = {.worker = w, .options = options, .next = first + 1};
    double begun_s = mgw_now_s();
    sums own = {0};
    mgw_status status = MGW_OK;
    while (!status && !l.stops && (double)p->epoch < w->options.epochs &&
           (!options->steps || p->steps - first < options->steps))
        status = run_step(&l, &own, error);
    judge_reference(&l, 1);
    if (!status && p->samples)
        status = save(&l, error);
    return status ? status : summarise(w, mgw_now_s() - begun_s, p->steps - first, out, error);
}

mgw_status train_write_step(train_worker *w, mgw_text *text, mgw_error *error)
{
    if (!mgw_engine_plan(w->engine))
        return mgw_fail(error, MGW_ERR_UNSUPPORTED,
                        "--chrome-trace: there is no plan to compare with before step 6");
    job_step step = {.predicted = mgw_engine_plan(w->engine), .begin_s = w->begin_s};
    mgw_status status = mgw_engine_timeline(w->engine, &step.measured, error);
    if (!status)
        status = job_gather_steps(mgw_engine_trace(w->engine), &step, 1, text, error);
    mgw_timeline_destroy(step.measured);
    return status;
}
