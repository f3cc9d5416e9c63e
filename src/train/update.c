/* What the optimizer remembers, where it is, and how it comes together. */
#include "train/update.h"

#include <stdlib.h>
#include <string.h>

#include "base/status.h"

mgw_status train_update_init(train_worker *w, mgw_error *error)
{
    for (int k = 0; k < w->state.optimizer->array_count; k++)
        if (!(w->arrays[k] = nn_allocate(w->state.parameter_total)))
            return mgw_fail_memory(error, "optimizer");
    return MGW_OK;
}

void train_update_fini(train_worker *w)
{
    for (int k = 0; k < NN_ARRAYS_MAX; k++)
        free(w->arrays[k]);
}

void train_update_all(train_worker *w)
{
    for (int i = 0; i < w->net->parameter_count; i++) {
        const nn_parameter *p = &w->net->parameters[i];
        float *arrays[NN_ARRAYS_MAX] = {NULL};
        for (int k = 0; k < w->state.optimizer->array_count; k++)
            arrays[k] = w->arrays[k] + p->offset;
        w->state.optimizer->update(&w->rule, p->data, w->gradients[p->tensor], arrays, p->count);
    }
}

/* ---- All numbers in a row ---- */

/* Where the running statistics begin. */
static size_t running_at(const train_worker *w)
{
    return nn_state_count(&w->state) - w->state.running_total;
}

mgw_status train_row_out(train_worker *w, float *row, mgw_error *error)
{
    (void)error;
    size_t total = w->state.parameter_total;
    if (!row)
        return MGW_OK;
    for (int i = 0; i < w->net->parameter_count; i++) {
        const nn_parameter *p = &w->net->parameters[i];
        memcpy(row + p->offset, p->data, p->count * sizeof *row);
    }
    for (int k = 0; k < w->state.optimizer->array_count; k++)
        memcpy(row + (1 + (size_t)k) * total, w->arrays[k], total * sizeof *row);
    nn_state_running_out(&w->state, row + running_at(w));
    return MGW_OK;
}

/* One parameter's numbers of a part of a row: of the weights, or of one of the arrays. */
static void take(train_worker *w, int part, const nn_parameter *p, const float *numbers)
{
    float *home = part == 0 ? p->data : w->arrays[part - 1] + p->offset;
    memcpy(home, numbers, p->count * sizeof *numbers);
}

void train_row_in(train_worker *w, const float *row)
{
    for (int part = 0; part <= w->state.optimizer->array_count; part++)
        for (int i = 0; i < w->net->parameter_count; i++) {
            const nn_parameter *p = &w->net->parameters[i];
            take(w, part, p, row + (size_t)part * w->state.parameter_total + p->offset);
        }
    nn_state_running_in(&w->state, row + running_at(w));
}

/* The numbers of the largest piece that travels by itself. */
static size_t largest_piece(const train_worker *w)
{
    size_t most = w->state.running_total;
    for (int i = 0; i < w->net->parameter_count; i++)
        most = w->net->parameters[i].count > most ? w->net->parameters[i].count : most;
    return most;
}

/* Rank 0's numbers, for all. */
static mgw_status share(train_worker *w, const float *own, float *piece, size_t count,
                        mgw_error *error)
{
    if (own)
        memcpy(piece, own, count * sizeof *piece);
    return mgw_engine_broadcast(w->engine, piece, count * sizeof *piece, error);
}

mgw_status train_row_share(train_worker *w, const float *row, mgw_error *error)
{
    float *piece = nn_allocate(largest_piece(w));
    mgw_status status = piece ? MGW_OK : mgw_fail_memory(error, "worker");
    for (int part = 0; part <= w->state.optimizer->array_count; part++)
        for (int i = 0; !status && i < w->net->parameter_count; i++) {
            const nn_parameter *p = &w->net->parameters[i];
            size_t at = (size_t)part * w->state.parameter_total + p->offset;
            status = share(w, row ? row + at : NULL, piece, p->count, error);
            if (!status)
                take(w, part, p, piece);
        }
    size_t running = w->state.running_total;
    if (!status && running) {
        status = share(w, row ? row + running_at(w) : NULL, piece, running, error);
        if (!status)
            nn_state_running_in(&w->state, piece);
    }
    free(piece);
    return status;
}
