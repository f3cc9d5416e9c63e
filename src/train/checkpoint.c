/* Checkpoints: collects the state of all workers at rank 0, and distributes it again. */
#include "train/checkpoint.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/status.h"
#include "train/update.h"

/* Fails on all workers if rank 0 has failed, so that none continues alone. */
static mgw_status agree(train_worker *w, mgw_status own, mgw_error *error)
{
    double failed = own ? 1 : 0;
    mgw_status status = train_worker_sum(w, &failed, 1, error);
    if (own || status || failed == 0)
        return own ? own : status;
    return mgw_fail(error, MGW_ERR_PEER, "rank 0 has failed");
}

/* ---- Saving ---- */

/* On rank 0, before anything is sent: waits for the last checkpoint, and allocates memory. */
static mgw_status prepare(const train_worker *w, train_saver *saver, bool *busy, float **row,
                          mgw_error *error)
{
    if (*busy)
        return MGW_OK;
    mgw_status status = train_saver_wait(saver, error);
    if (!status && !(*row = nn_allocate(nn_state_count(&w->state))))
        status = mgw_fail_memory(error, "checkpoint");
    return status;
}

/* All workers learn from rank 0 whether it has failed, and whether this checkpoint is skipped. */
static mgw_status hear(train_worker *w, mgw_status own, bool *busy, mgw_error *error)
{
    double said[] = {own ? 1 : 0, *busy ? 1 : 0};
    mgw_status status = train_worker_sum(w, said, 2, error);
    *busy = said[1] > 0;
    if (own || status || said[0] == 0)
        return own ? own : status;
    return mgw_fail(error, MGW_ERR_PEER, "rank 0 has failed");
}

mgw_status train_checkpoint_finish(train_worker *w, train_saver *saver, mgw_error *error)
{
    mgw_error own;
    mgw_status status = saver ? train_saver_wait(saver, &own) : MGW_OK;
    mgw_status together = agree(w, status, error);
    return status ? mgw_fail(error, status, "%s", own.message) : together;
}

mgw_status train_checkpoint_save(train_worker *w, train_saver *saver, train_moment moment,
                                 bool *saved, mgw_error *error)
{
    float *row = NULL;
    mgw_error own;
    bool busy = saver && moment == TRAIN_NOW_AND_THEN && train_saver_is_busy(saver);
    mgw_status status = saver ? prepare(w, saver, &busy, &row, &own) : MGW_OK;
    mgw_status together = hear(w, status, &busy, error);
    *saved = !busy;
    if (!together && !busy)
        together = train_row_out(w, row, error);
    if (!together && saver && !busy) {
        status = train_saver_begin(saver, &w->state, row, &own);
        row = NULL;
    }
    if (!together && moment == TRAIN_AT_ONCE && !status)
        return train_checkpoint_finish(w, saver, error);
    if (!together && !busy)
        together = agree(w, status, error);
    free(row);
    return status ? mgw_fail(error, status, "%s", own.message) : together;
}

/* ---- Loading ---- */

static mgw_status read_row(train_worker *w, const char *path, float **row, mgw_error *error)
{
    nn_progress before = w->state.progress;
    mgw_status status = nn_checkpoint_load(&w->state, path, row, error);
    if (!status && w->state.progress.samples > (uint64_t)w->train->count) {
        status = mgw_fail(error, MGW_ERR_INPUT, "%s: line 'samples': the data has only %d images",
                          path, w->train->count);
        w->state.progress = before;
        free(*row);
        *row = NULL;
    }
    return status;
}

/*
 * Reads the newest complete checkpoint. A complete one that does not fit is an error, since an
 * older one would not fit either. If several are damaged, reports the newest.
 */
static mgw_status find_row(train_worker *w, const char *path, train_tell *warn, float **row,
                           mgw_error *error)
{
    mgw_status status = MGW_OK;
    for (unsigned k = 0; k < TRAIN_KEEP_MAX && !*row; k++) {
        char *name = train_saver_name(path, k);
        if (!name)
            return mgw_fail_memory(error, path);
        mgw_error why;
        bool missing = k > 0 && access(name, F_OK);
        mgw_status here = missing ? MGW_OK : read_row(w, name, row, &why);
        bool unread = here == MGW_ERR_IO || here == MGW_ERR_NO_MEMORY; /* it may be complete */
        bool fits =
            !here || here == MGW_ERR_UNSUPPORTED || (!unread && !nn_checkpoint_is_whole(name));
        free(name);
        if (!here && !missing && status && warn)
            warn(error->message);
        if (here && (!status || status == MGW_ERR_NOT_FOUND || !fits))
            status = mgw_fail(error, here, "%s", why.message);
        if (!fits || (missing && k > 1))
            break;
    }
    return *row ? MGW_OK : status;
}

mgw_status train_checkpoint_load(train_worker *w, const char *path, train_tell *warn, bool *found,
                                 mgw_error *error)
{
    float *row = NULL;
    mgw_error own = {.status = MGW_OK};
    mgw_status status = w->rank ? MGW_OK : find_row(w, path, warn, &row, &own);
    bool none = status == MGW_ERR_NOT_FOUND && found;
    if (none)
        status = MGW_OK;
    mgw_status together = hear(w, status, &none, error);
    if (found)
        *found = !none;
    nn_progress progress = w->state.progress;
    if (!together && !none)
        together = mgw_engine_broadcast(w->engine, &progress, sizeof progress, error);
    if (!together && !none)
        together = train_row_share(w, row, error);
    if (!together && !none)
        train_worker_go_to(w, &progress);
    free(row);
    return status ? mgw_fail(error, status, "%s", own.message) : together;
}
