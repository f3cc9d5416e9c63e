/* What the transport over NCCL does when a collective fails or does not end: it finds out which
 * worker is to blame, and frees the GPU. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/status.h"
#include "base/thread.h"
#include "transport/nccl.h"

typedef struct aborting {
    const nccl_library *library;
    nccl_comm comm;
    pthread_t thread;
    atomic_bool done;
} aborting;

static atomic_uint aborts_under_way; /* of this process */

static void *abort_in_background(void *argument)
{
    aborting *a = argument;
    a->library->abort(a->comm);
    atomic_fetch_sub(&aborts_under_way, 1);
    atomic_store(&a->done, true);
    return NULL;
}

/*
 * NCCL and CUDA shut down with the process, and must not while a thread is inside them. If such a
 * thread does not return, the system cleans up.
 */
static void end_without_them(int status, void *unused)
{
    (void)unused;
    double begun_s = mgw_awake_s();
    while (atomic_load(&aborts_under_way) && mgw_awake_s() - begun_s < nccl_leaving_s)
        on_device_pause(begun_s);
    if (!atomic_load(&aborts_under_way))
        return;
    fflush(NULL);
    _exit(status);
}

static void arrange_the_end(void)
{
    on_exit(end_without_them, NULL);
}

/* Starts to abort a communicator. Null: there is none, or it is done already. */
static aborting *begin_abort(const nccl *n, nccl_lane *lane)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    aborting *a = lane->comm ? malloc(sizeof *a) : NULL;
    if (!a) /* if there is no memory, the GPU stays as it is */
        return NULL;
    *a = (aborting){.library = n->library, .comm = lane->comm};
    lane->comm = NULL;
    pthread_once(&once, arrange_the_end);
    atomic_fetch_add(&aborts_under_way, 1);
    if (!mgw_thread_start(&a->thread, abort_in_background, a))
        return a;
    abort_in_background(a);
    free(a);
    return NULL;
}

/*
 * Releases the GPU from collectives that will never end, on all lanes at the same time. NCCL then
 * frees its memory, and CUDA may wait for that, perhaps for a worker that was stopped. After a
 * while the aborts are left to the background.
 */
void nccl_abort(nccl *n, unsigned first)
{
    aborting *under_way[MGW_LANES_MAX];
    for (unsigned l = first; l < n->lane_count; l++)
        under_way[l] = begin_abort(n, &n->lanes[l]);
    double begun_s = mgw_awake_s();
    for (unsigned l = first; l < n->lane_count; l++) {
        aborting *a = under_way[l];
        while (a && !atomic_load(&a->done) && mgw_awake_s() - begun_s < nccl_leaving_s)
            on_device_pause(begun_s);
        if (a && !atomic_load(&a->done)) {
            pthread_detach(a->thread); /* it keeps its data */
        } else if (a) {
            pthread_join(a->thread, NULL);
            free(a);
        }
    }
}

/*
 * Finds out which rank prevents a collective from completing: the control knows which ranks have
 * died, and a barrier on it shows which do not come. If the collective is only overdue, others
 * notice at about the same time and come to the barrier at once; NCCL is aborted afterwards, since
 * that may take long. After an NCCL error, others only notice when it is aborted, and come then.
 */
mgw_status nccl_give_up(nccl *n, const char *what, const char *reason, bool overdue,
                        mgw_error *error)
{
    mgw_error named = {0};
    mgw_error late = {0};
    char details[200];
    const char *last = n->library->last_error(n->lanes[0].comm); /* NCCL keeps one per process */
    snprintf(details, sizeof details, "%s", last && *last ? last : "no details");
    details[strcspn(details, "\n")] = 0;
    n->failed = true;
    if (!overdue)
        nccl_abort(n, 0);
    mgw_status status = mgw_transport_check(n->control, &named);
    mgw_status met =
        mgw_transport_meet(n->control, &(mgw_transport_call){.purpose = MGW_FOR_END}, 0, &late);
    nccl_abort(n, 0);
    if (status || met)
        n->why.status = mgw_fail(&n->why, status ? status : met, "nccl: %s: %s", what,
                                 status ? named.message : late.message);
    else
        n->why.status =
            mgw_fail(&n->why, MGW_ERR_PEER, "nccl: %s: %s, though all workers are alive (%s)", what,
                     reason, details);
    return mgw_fail(error, n->why.status, "%s", n->why.message);
}

mgw_status nccl_fail_again(const nccl *n, mgw_error *error)
{
    return mgw_fail(error, n->why.status, "%s", n->why.message);
}

/* Checks NCCL and the other workers; does not block unless something failed. */
mgw_status nccl_look(nccl *n, const char *what, int code, mgw_error *error)
{
    if (code != NCCL_SUCCESS && code != NCCL_IN_PROGRESS)
        return nccl_give_up(n, what, n->library->error_text(code), false, error);
    mgw_error named = {0};
    if (mgw_transport_check(n->control, &named))
        return nccl_give_up(n, what, named.message, false, error);
    return MGW_OK;
}

/* One iteration of a wait that began at `begun_s`. */
static mgw_status wait_more(nccl *n, const char *what, int code, double begun_s, double *looked_s,
                            mgw_error *error)
{
    double now_s = mgw_awake_s();
    on_device_pause(begun_s);
    if (now_s - *looked_s < on_device_between_s)
        return MGW_OK;
    *looked_s = now_s;
    mgw_status status = nccl_look(n, what, code, error);
    if (!status && now_s - begun_s > n->timeout_s)
        status = nccl_give_up(n, what, "it did not end in time", true, error);
    return status;
}

mgw_status nccl_finish_call(nccl *n, const nccl_lane *lane, int code, const char *what,
                            mgw_error *error)
{
    double begun_s = mgw_awake_s();
    double looked_s = begun_s;
    mgw_status status = MGW_OK;
    while (!status && code == NCCL_IN_PROGRESS) {
        int called = n->library->async_error(lane->comm, &code);
        code = called ? called : code;
        if (code == NCCL_IN_PROGRESS)
            status = wait_more(n, what, code, begun_s, &looked_s, error);
    }
    if (!status && code != NCCL_SUCCESS)
        status = nccl_give_up(n, what, n->library->error_text(code), false, error);
    return status;
}

mgw_status nccl_fail_cuda(nccl *n, int code, const char *what, mgw_error *error)
{
    n->failed = true;
    n->why.status = mgw_cuda_fail(code, what, &n->why);
    return nccl_fail_again(n, error);
}
