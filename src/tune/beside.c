/* Concurrent computation and messages: each takes longer while the other runs. */
#include "tune/beside.h"

#include <math.h>
#include <stdbool.h>

/* ---- A step, event by event ---- */

/*
 * The state of a simulated step. work_s is the computation done, in seconds that it takes alone;
 * left_s is what remains of the current message.
 */
typedef struct walk {
    const tune_messages *messages;
    tune_beside beside;
    double now_s;
    double work_s;
    size_t next;   /* message */
    bool sends;    /* one is in flight: */
    double left_s; /*   its remaining time, alone */
} walk;

/* The last gradient that a message waits for. */
static size_t last_of(const tune_messages *messages, size_t m, size_t tensors)
{
    const mgw_operation *o = &messages->operations[m];
    return o->release == MGW_WHEN_READY ? o->first + o->count - 1 : tensors - 1;
}

/* Starts the next message if it is due. `done`: number of ready gradients. */
static void start_next(walk *w, size_t tensors, size_t done)
{
    if (w->sends || w->next == w->messages->count || last_of(w->messages, w->next, tensors) >= done)
        return;
    w->messages->operations[w->next].start_s = w->now_s;
    w->left_s = w->messages->alone_s[w->next++];
    w->sends = true;
}

static void end_message(walk *w)
{
    w->messages->operations[w->next - 1].end_s = w->now_s;
    w->sends = false;
}

/* Lets time pass during computation, at most until the current message ends. */
static void pass(walk *w, double seconds)
{
    w->now_s += seconds;
    w->work_s += seconds / (w->sends ? w->beside.compute : 1);
    if (w->sends)
        w->left_s = fmax(w->left_s - seconds / w->beside.message, 0);
}

/* Time until the message ends, during computation. */
static double until_end_s(const walk *w)
{
    return w->sends ? w->left_s * w->beside.message : INFINITY;
}

/* Advances to the moment when a gradient is ready: given as work to be done, or as a time. */
static void walk_until(walk *w, size_t tensors, size_t done, double target_s, bool of_work)
{
    for (;;) {
        start_next(w, tensors, done);
        double to_go_s = target_s - (of_work ? w->work_s : w->now_s);
        double needs_s = of_work && w->sends ? to_go_s * w->beside.compute : to_go_s;
        double end_s = until_end_s(w);
        if (needs_s <= end_s) {
            pass(w, fmax(needs_s, 0));
            return;
        }
        pass(w, end_s);
        end_message(w);
    }
}

/* After the last gradient, messages run alone. */
static double finish(walk *w, size_t tensors)
{
    for (;; start_next(w, tensors, tensors)) {
        w->now_s += w->sends ? w->left_s : 0;
        if (w->sends)
            end_message(w);
        if (w->next == w->messages->count)
            return w->now_s;
    }
}

tune_step_times tune_run_step(size_t tensors, const double *alone_s, const tune_messages *messages,
                              tune_beside beside, double *ready_s)
{
    walk w = {.messages = messages, .beside = beside};
    for (size_t i = 0; i < tensors; i++) {
        walk_until(&w, tensors, i, alone_s[i], true);
        ready_s[i] = w.now_s;
    }
    double compute_s = w.now_s;
    return (tune_step_times){compute_s, finish(&w, tensors)};
}

void tune_undo_step(size_t tensors, const double *ready_s, const tune_messages *messages,
                    tune_beside beside, double *alone_s)
{
    walk w = {.messages = messages, .beside = beside};
    for (size_t i = 0; i < tensors; i++) {
        walk_until(&w, tensors, i, ready_s[i], false);
        alone_s[i] = w.work_s;
    }
}

/* ---- Fitting to measured steps ---- */

/* The prior: standard deviations of the logarithms. */
static const double usual_message = 0.5;
static const double usual_compute = 0.2;
/* Measured times are at best this accurate (relative error). The error of a note counts for at most
 * `furthest` times its uncertainty. */
static const double surest = 0.002;
static const double furthest = 5;

typedef struct fitting {
    size_t tensors;
    const double *ready_s;
    const tune_messages *now;
    const tune_note *notes;
    size_t count;
    double *alone_s;
    double *scratch_s;
    double coarse; /* relative error due to the step of the grid */
} fitting;

static double miss(double predicted_s, double measured_s, double within)
{
    double off = (predicted_s / measured_s - 1) / within;
    return measured_s > 0 ? fmin(off * off, furthest * furthest) : 0;
}

static double misfit(const fitting *f, tune_beside beside)
{
    double message = log(beside.message) / usual_message;
    double compute = log(beside.compute) / usual_compute;
    double sum = message * message + compute * compute;
    tune_undo_step(f->tensors, f->ready_s, f->now, beside, f->alone_s);
    for (size_t i = 0; i < f->count; i++) {
        const tune_note *note = &f->notes[i];
        tune_step_times t =
            tune_run_step(f->tensors, f->alone_s, &note->messages, beside, f->scratch_s);
        double within = fmax(note->within, fmax(surest, f->coarse));
        sum += miss(t.iteration_s, note->iteration_s, within) +
               miss(t.compute_s, note->compute_s, within);
    }
    return sum;
}

/* Searches a grid, then finer grids around the best point: there may be several minima, but only
 * two unknowns. */
enum { GRID = 12, FINER = 9 };

tune_beside tune_fit_beside(size_t tensors, const double *ready_s, const tune_messages *now,
                            const tune_note *notes, size_t count, double *room)
{
    fitting f = {tensors, ready_s, now, notes, count, room, room + tensors, 0.05};
    double at[2] = {0, 0}; /* logarithms */
    double step[2] = {log(6) / GRID, log(2.5) / GRID};
    tune_beside best = {1, 1};
    for (int round = 0; round <= FINER; round++) {
        double from[2] = {at[0], at[1]};
        double least = INFINITY;
        int low = round ? -2 : 0;
        int high = round ? 2 : GRID;
        for (int i = low; i <= high; i++)
            for (int k = low; k <= high; k++) {
                double message = fmax(from[0] + i * step[0], 0);
                double compute = fmax(from[1] + k * step[1], 0);
                tune_beside beside = {exp(message), exp(compute)};
                double sum = misfit(&f, beside);
                if (sum < least) {
                    least = sum;
                    best = beside;
                    at[0] = message;
                    at[1] = compute;
                }
            }
        step[0] /= 2;
        step[1] /= 2;
        f.coarse /= 2;
    }
    return best;
}
