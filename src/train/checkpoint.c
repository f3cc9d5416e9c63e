/* Checkpoints: the state of all workers brought together at rank 0, and taken apart again. */
#include "train/checkpoint.h"

#include <math.h>
#include <stdlib.h>

#include "base/status.h"
#include "train/update.h"

/* Whether rank 0 could; the others are told, so that nobody goes on alone. */
static mgw_status agree(train_worker *w, mgw_status own, mgw_error *error)
{
    double failed = own ? 1 : 0;
    mgw_status status = train_worker_sum(w, &failed, 1, error);
    if (own || status || failed == 0)
        return own ? own : status;
    return mgw_fail(error, MGW_ERR_PEER, "rank 0 has failed");
}

static bool are_finite(const float *numbers, size_t count)
{
    size_t i = 0;
    while (i < count && isfinite(numbers[i]))
        i++;
    return i == count;
}

/* What rank 0 does with all numbers. */
static mgw_status write(const train_worker *w, const float *row, const char *path, mgw_error *error)
{
    if (!are_finite(row, nn_state_count(&w->state)))
        return mgw_fail(error, MGW_ERR_UNSUPPORTED,
                        "the weights are not finite any more, so that %s is not written: try a "
                        "smaller --rate, or a longer --warmup",
                        path);
    return nn_checkpoint_save(&w->state, row, path, error);
}

mgw_status train_checkpoint_save(train_worker *w, const char *path, mgw_error *error)
{
    float *row = w->rank == 0 ? nn_allocate(nn_state_count(&w->state)) : NULL;
    mgw_error own;
    mgw_status status = w->rank > 0 || row ? MGW_OK : mgw_fail_memory(&own, path);
    mgw_status together = agree(w, status, error);
    if (!together)
        together = train_worker_average_running(w, error);
    if (!together)
        together = train_row_out(w, row, error);
    if (!together) {
        status = row ? write(w, row, path, &own) : MGW_OK;
        together = agree(w, status, error);
    }
    free(row);
    return status ? mgw_fail(error, status, "%s", own.message) : together;
}

/* What rank 0 reads; the others get null. */
static mgw_status read_row(train_worker *w, const char *path, float **row, mgw_error *error)
{
    if (w->rank > 0)
        return MGW_OK;
    mgw_status status = nn_checkpoint_load(&w->state, path, row, error);
    if (!status && w->state.progress.samples > (uint64_t)w->train->count)
        status = mgw_fail(error, MGW_ERR_INPUT, "%s: line 'samples': there are only %d images",
                          path, w->train->count);
    return status;
}

mgw_status train_checkpoint_load(train_worker *w, const char *path, mgw_error *error)
{
    float *row = NULL;
    mgw_error own;
    mgw_status status = read_row(w, path, &row, &own);
    mgw_status together = agree(w, status, error);
    nn_progress progress = w->state.progress;
    if (!together)
        together = mgw_engine_broadcast(w->engine, &progress, sizeof progress, error);
    if (!together)
        together = train_row_share(w, row, error);
    if (!together)
        train_worker_go_to(w, &progress);
    free(row);
    return status ? mgw_fail(error, status, "%s", own.message) : together;
}
