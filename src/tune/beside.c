/* Fits how computation and messages slow each other down to measured steps. */
#include "tune/beside.h"

#include <math.h>

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
    const mgw_messages *now;
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

static double misfit(const fitting *f, mgw_beside beside)
{
    double message = log(beside.message) / usual_message;
    double compute = log(beside.compute) / usual_compute;
    double sum = message * message + compute * compute;
    mgw_beside_undo(f->tensors, f->ready_s, f->now, beside, f->alone_s);
    for (size_t i = 0; i < f->count; i++) {
        const tune_note *note = &f->notes[i];
        mgw_step_times t =
            mgw_beside_run(f->tensors, f->alone_s, &note->messages, beside, f->scratch_s);
        double within = fmax(note->within, fmax(surest, f->coarse));
        sum += miss(t.iteration_s, note->iteration_s, within) +
               miss(t.compute_s, note->compute_s, within);
    }
    return sum;
}

/* Searches a grid, then finer grids around the best point: there may be several minima, but only
 * two unknowns. */
enum { GRID = 12, FINER = 9 };

mgw_beside tune_fit_beside(size_t tensors, const double *ready_s, const mgw_messages *now,
                           const tune_note *notes, size_t count, double *room)
{
    fitting f = {tensors, ready_s, now, notes, count, room, room + tensors, 0.05};
    double at[2] = {0, 0}; /* logarithms */
    double step[2] = {log(6) / GRID, log(2.5) / GRID};
    mgw_beside best = {1, 1};
    for (int round = 0; round <= FINER; round++) {
        double from[2] = {at[0], at[1]};
        double least = INFINITY;
        int low = round ? -2 : 0;
        int high = round ? 2 : GRID;
        for (int i = low; i <= high; i++)
            for (int k = low; k <= high; k++) {
                double message = fmax(from[0] + i * step[0], 0);
                double compute = fmax(from[1] + k * step[1], 0);
                mgw_beside beside = {exp(message), exp(compute)};
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
