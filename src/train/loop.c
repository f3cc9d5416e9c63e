/* The training loop: steps, progress reports, epochs, checkpoints. */
#include "train/loop.h"

#include <math.h>
#include <signal.h>

#include "base/clock.h"
#include "base/status.h"
#include "job/interrupt.h"
#include "job/steps.h"
#include "train/checkpoint.h"
#include "train/update.h"

typedef struct loop {
    train_worker *worker;
    const train_loop_options *options;
    train_saver *saver;  /* on rank 0, if there are checkpoints */
    double saved_s;      /* start of the last checkpoint */
    uint64_t saved_step; /* step of the last checkpoint; 0: none */
    bool due;            /* the next checkpoint is due */
    uint64_t next;       /* step of the next look */
    int stops;           /* the signal that interrupted a worker, or 0 */
    bool is_judged;      /* the share of reference code was checked */
} loop;

/* Sums over the steps since the last look; summed over workers as an array of numbers. */
typedef struct sums {
    double loss;
    double steps;
    double step_s;
    double interrupted; /* workers interrupted by SIGINT */
    double terminated;  /*   and by SIGTERM */
    double due;         /* rank 0: a checkpoint is due */
} sums;

/* The step of the next look: every log_steps steps; or the first, then about every two seconds. */
static uint64_t next_look(const loop *l, double mean_s)
{
    const train_loop_options *o = l->options;
    uint64_t done = l->worker->state.progress.steps;
    if (o->log_steps)
        return done - done % o->log_steps + o->log_steps;
    double every_s = o->checkpoint_s > 0 ? fmin(2, o->checkpoint_s) : 2;
    return done + (uint64_t)fmin(fmax(ceil(every_s / mean_s), 1), 1000);
}

static void note_own(loop *l, sums *own)
{
    double every_s = l->options->checkpoint_s;
    own->interrupted = job_interrupted() == SIGINT;
    own->terminated = job_interrupted() == SIGTERM;
    own->due = l->saver && every_s > 0 && mgw_now_s() - l->saved_s >= every_s;
}

/* All workers use the same sums, so that they stop together and look again together. */
static mgw_status look(loop *l, sums *own, mgw_error *error)
{
    train_worker *w = l->worker;
    const train_listener *listener = &l->options->listener;
    note_own(l, own);
    sums all = *own;
    mgw_status status = train_worker_sum(w, &all.loss, sizeof all / sizeof(double), error);
    if (status)
        return status;
    l->next = next_look(l, all.step_s / all.steps);
    l->stops = all.terminated > 0 ? SIGTERM : all.interrupted > 0 ? SIGINT : 0;
    l->due = all.due > 0;
    *own = (sums){0};
    mgw_engine_statistics s;
    mgw_engine_measure(w->engine, &s);
    train_window window = {.loss = all.loss / all.steps,
                           .images_per_s =
                               w->options.batch * (double)w->size * all.steps / all.step_s,
                           .exposed_share = s.iteration_s > 0 ? s.exposed_s / s.iteration_s : 0};
    return listener->window ? listener->window(listener->context, w, &window, error) : MGW_OK;
}

static mgw_status save(loop *l, train_moment moment, mgw_error *error)
{
    l->due = false;
    l->saved_s = mgw_now_s();
    if (!l->options->checkpoint)
        return MGW_OK;
    bool saved = false;
    mgw_status status = train_checkpoint_save(l->worker, l->saver, moment, &saved, error);
    l->saved_step = saved ? l->worker->state.progress.steps : l->saved_step;
    return status;
}

static mgw_status end_epoch(loop *l, mgw_error *error)
{
    const train_listener *listener = &l->options->listener;
    double loss = 0;
    double accuracy = 0;
    mgw_status status = train_worker_evaluate(l->worker, &loss, &accuracy, error);
    if (!status && !isfinite(loss))
        status = mgw_fail(error, MGW_ERR_UNSUPPORTED,
                          "the test loss is not finite: try a smaller --rate or a longer --warmup");
    if (!status && listener->epoch)
        status = listener->epoch(listener->context, l->worker, loss, accuracy, error);
    return status ? status : save(l, TRAIN_SOON, error);
}

/* Once, when at least `steps` steps were measured. */
static void judge_reference(loop *l, unsigned steps)
{
    train_worker *w = l->worker;
    if (!l->is_judged)
        l->is_judged = train_judge_reference(w->program, steps,
                                             w->rank == 0 ? l->options->listener.warn : NULL);
}

/* One step, and everything that is due after it. */
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
    else if (!status && (l->due || (every && p->steps % every == 0)))
        status = save(l, TRAIN_NOW_AND_THEN, error);
    return status;
}

static mgw_status summarise(train_worker *w, double wall_s, uint64_t steps, train_summary *out,
                            mgw_error *error)
{
    mgw_engine_statistics *s = &out->statistics;
    mgw_status status = train_update_drain(w, error); /* weights are about to be read */
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

/* After the last step: makes sure that its state is on disk. */
static mgw_status end_checkpoints(loop *l, mgw_error *error)
{
    if (!l->options->checkpoint)
        return MGW_OK;
    const nn_progress *p = &l->worker->state.progress;
    return p->samples && p->steps != l->saved_step
               ? save(l, TRAIN_AT_ONCE, error)
               : train_checkpoint_finish(l->worker, l->saver, error);
}

mgw_status train_run(train_worker *w, const train_loop_options *options, train_summary *out,
                     mgw_error *error)
{
    const nn_progress *p = &w->state.progress;
    uint64_t first = p->steps;
    uint64_t before = options->in_all ? 0 : first; /* steps that are not counted */
    double begun_s = mgw_now_s();
    loop l = {.worker = w, .options = options, .next = first + 1, .saved_s = begun_s};
    sums own = {0};
    mgw_status status = MGW_OK;
    if (options->checkpoint && w->rank == 0)
        status = train_saver_open(options->checkpoint, options->keep, &l.saver, error);
    while (!status && !l.stops && (double)p->epoch < w->options.epochs &&
           (!options->steps || p->steps - before < options->steps))
        status = run_step(&l, &own, error);
    judge_reference(&l, 1);
    if (!status)
        status = end_checkpoints(&l, error);
    train_saver_close(l.saver);
    out->stopped_by = l.stops;
    return status ? status : summarise(w, mgw_now_s() - begun_s, p->steps - first, out, error);
}

mgw_status train_write_step(train_worker *w, mgw_text *text, mgw_error *error)
{
    if (!mgw_engine_plan(w->engine))
        return mgw_fail(error, MGW_ERR_UNSUPPORTED,
                        "--chrome-trace: the first plan comes after step 5; use more --steps");
    job_step step = {.predicted = mgw_engine_plan(w->engine), .begin_s = w->begin_s};
    mgw_status status = mgw_engine_timeline(w->engine, &step.measured, error);
    if (!status)
        status = job_gather_steps(mgw_engine_trace(w->engine), &step, 1, text, error);
    mgw_timeline_destroy(step.measured);
    return status;
}
