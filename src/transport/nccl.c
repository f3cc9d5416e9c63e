/*
 * The transport over NCCL, for GPU memory. Host memory, and all communication before and around
 * NCCL, goes over another transport: the control.
 */
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

/* ---- Failure ---- */

static const double leaving_s = 5;

typedef struct aborting {
    const nccl_library *library;
    nccl_comm comm;
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
    while (atomic_load(&aborts_under_way) && mgw_awake_s() - begun_s < leaving_s)
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

/*
 * Releases the GPU from a collective that will never end. NCCL then frees its memory, and CUDA may
 * wait for that, perhaps for a worker that was stopped. After a while the abort is left to the
 * background.
 */
static void abort_comm(nccl *n)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    aborting *a = n->comm ? malloc(sizeof *a) : NULL;
    pthread_t thread;
    if (!a) /* if there is no memory, the GPU stays as it is */
        return;
    *a = (aborting){.library = n->library, .comm = n->comm};
    n->comm = NULL;
    pthread_once(&once, arrange_the_end);
    atomic_fetch_add(&aborts_under_way, 1);
    if (mgw_thread_start(&thread, abort_in_background, a)) {
        abort_in_background(a);
        free(a);
        return;
    }
    double begun_s = mgw_awake_s();
    while (!atomic_load(&a->done) && mgw_awake_s() - begun_s < leaving_s)
        on_device_pause(begun_s);
    if (!atomic_load(&a->done)) {
        pthread_detach(thread); /* it keeps its data */
        return;
    }
    pthread_join(thread, NULL);
    free(a);
}

/*
 * Finds out which rank prevents a collective from completing: the control knows which ranks have
 * died, and a barrier on it shows which do not come. If the collective is only overdue, others
 * notice at about the same time and come to the barrier at once; NCCL is aborted afterwards, since
 * that may take long. After an NCCL error, others only notice when it is aborted, and come then.
 */
static mgw_status give_up(nccl *n, const char *what, const char *reason, bool overdue,
                          mgw_error *error)
{
    mgw_error named = {0};
    mgw_error late = {0};
    char details[200];
    const char *last = n->library->last_error(n->comm);
    snprintf(details, sizeof details, "%s", last && *last ? last : "no details");
    details[strcspn(details, "\n")] = 0;
    n->failed = true;
    if (!overdue)
        abort_comm(n);
    mgw_status status = mgw_transport_check(n->control, &named);
    mgw_status met =
        mgw_transport_meet(n->control, &(mgw_transport_call){.purpose = MGW_FOR_END}, 0, &late);
    abort_comm(n);
    if (status || met)
        n->why.status = mgw_fail(&n->why, status ? status : met, "nccl: %s: %s", what,
                                 status ? named.message : late.message);
    else
        n->why.status =
            mgw_fail(&n->why, MGW_ERR_PEER, "nccl: %s: %s, though all workers are alive (%s)", what,
                     reason, details);
    return mgw_fail(error, n->why.status, "%s", n->why.message);
}

static mgw_status fail_again(const nccl *n, mgw_error *error)
{
    return mgw_fail(error, n->why.status, "%s", n->why.message);
}

/* Checks NCCL and the other workers; does not block unless something failed. */
static mgw_status look(nccl *n, const char *what, int code, mgw_error *error)
{
    if (code != NCCL_SUCCESS && code != NCCL_IN_PROGRESS)
        return give_up(n, what, n->library->error_text(code), false, error);
    mgw_error named = {0};
    if (mgw_transport_check(n->control, &named))
        return give_up(n, what, named.message, false, error);
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
    mgw_status status = look(n, what, code, error);
    if (!status && now_s - begun_s > n->timeout_s)
        status = give_up(n, what, "it did not end in time", true, error);
    return status;
}

mgw_status nccl_finish_call(nccl *n, int code, const char *what, mgw_error *error)
{
    double begun_s = mgw_awake_s();
    double looked_s = begun_s;
    mgw_status status = MGW_OK;
    while (!status && code == NCCL_IN_PROGRESS) {
        int called = n->library->async_error(n->comm, &code);
        code = called ? called : code;
        if (code == NCCL_IN_PROGRESS)
            status = wait_more(n, what, code, begun_s, &looked_s, error);
    }
    if (!status && code != NCCL_SUCCESS)
        status = give_up(n, what, n->library->error_text(code), false, error);
    return status;
}

mgw_status nccl_fail_cuda(nccl *n, int code, const char *what, mgw_error *error)
{
    n->failed = true;
    n->why.status = mgw_cuda_fail(code, what, &n->why);
    return fail_again(n, error);
}

/* ---- Life ---- */

static mgw_status nccl_prepare(const mgw_transport_setup *setup, bool *caller, mgw_error *error)
{
    const mgw_transport_setup control = mgw_transport_inside(setup);
    const cuda *driver = NULL;
    const nccl_library *library = NULL;
    cuda_context context = NULL;
    mgw_status status = mgw_cuda_enter(&driver, &context, error);
    if (!status)
        status = mgw_nccl_load(&library, error);
    return status ? status : mgw_transport_prepare_as(&control, caller, error);
}

/* All workers have joined the control; now their GPUs do. */
static mgw_status join(nccl *n, mgw_error *error)
{
    nccl_id id = {{0}};
    nccl_config config = {sizeof config, NCCL_CONFIG_MAGIC, NCCL_CONFIG_VERSION, 0};
    unsigned rank = mgw_transport_rank(n->control);
    int code = 0;
    if (rank == 0 && (code = n->library->get_id(&id)))
        return mgw_fail(error, MGW_ERR_IO, "nccl: no unique id: %s", n->library->error_text(code));
    mgw_status status = mgw_transport_broadcast(n->control, &id, sizeof id, 0, error);
    if (status)
        return status;
    code = n->library->init(&n->comm, (int)mgw_transport_size(n->control), id, (int)rank, &config);
    if (!n->comm)
        return mgw_fail(error, MGW_ERR_IO, "nccl: joining: %s", n->library->error_text(code));
    return nccl_finish_call(n, code, "joining", error);
}

static void nccl_close(void *state);

static mgw_status nccl_open(const mgw_transport_setup *setup, void **state, mgw_error *error)
{
    nccl *n = calloc(1, sizeof *n);
    if (!n)
        return mgw_fail_memory(error, "nccl");
    n->timeout_s = setup->options.timeout_s;
    const mgw_transport_setup control = mgw_transport_inside(setup);
    mgw_status status = on_device_open(&n->device, error);
    if (!status)
        status = mgw_nccl_load(&n->library, error);
    if (!status)
        status = mgw_transport_open_as(&control, &n->control, error);
    if (!status)
        status = join(n, error);
    if (status)
        nccl_close(n);
    else
        *state = n;
    return status;
}

static void nccl_place(void *state, unsigned *rank, unsigned *size)
{
    const nccl *n = state;
    *rank = mgw_transport_rank(n->control);
    *size = mgw_transport_size(n->control);
}

/* Sends what others still wait for, but does not wait for them long. */
static bool leave(nccl *n)
{
    double begun_s = mgw_awake_s();
    int code = n->library->finalize(n->comm);
    while (code == NCCL_IN_PROGRESS && mgw_awake_s() - begun_s < leaving_s &&
           !mgw_transport_check(n->control, NULL)) {
        int called = n->library->async_error(n->comm, &code);
        code = called ? called : code;
        on_device_pause(begun_s);
    }
    return code == NCCL_SUCCESS;
}

static void nccl_close(void *state)
{
    nccl *n = state;
    if (n->comm && !n->failed && leave(n))
        n->library->destroy(n->comm);
    else
        abort_comm(n);
    nccl_close_once(n);
    on_device_close(&n->device);
    mgw_transport_close(n->control);
    free(n);
}

/* ---- Waiting ---- */

static void *nccl_stream(void *state)
{
    return ((nccl *)state)->device.stream;
}

/* Work of the old job on the GPU must end: freeing memory in the new one waits for it. */
static mgw_status nccl_survive(void *state, unsigned round, mgw_survivors *out, mgw_error *error)
{
    nccl *n = state;
    if (!n->failed)
        n->why.status = mgw_fail(&n->why, MGW_ERR_PEER, "nccl: those that are left have met again");
    n->failed = true;
    abort_comm(n);
    return mgw_transport_survive(n->control, round, out, error);
}

static void nccl_say(void *state, const char *doing)
{
    mgw_transport_say(((nccl *)state)->control, doing);
}

static int nccl_follow(void *state, void *event)
{
    return on_device_follow(&((nccl *)state)->device, event);
}

/* Between two checks of NCCL and the other workers it only queries the GPU. */
static mgw_status nccl_test(void *state, const mgw_request *request, bool *done, mgw_error *error)
{
    nccl *n = state;
    int code = 0;
    if (n->failed)
        return fail_again(n, error);
    *done = on_device_is_over(&n->device, request->number, &code);
    double begun_s = *done || code ? 0 : on_device_oldest_s(&n->device, &code);
    if (code)
        return nccl_fail_cuda(n, code, "a collective failed on the GPU", error);
    double now_s = mgw_awake_s();
    if (*done || now_s - n->looked_s < on_device_between_s)
        return MGW_OK;
    int async = NCCL_SUCCESS;
    n->looked_s = now_s;
    n->library->async_error(n->comm, &async);
    mgw_status status = look(n, "a message", async, error);
    if (!status && begun_s > 0 && now_s - begun_s > n->timeout_s)
        status = give_up(n, "a message", "it did not end in time", true, error);
    return status;
}

static mgw_status nccl_wait(void *state, const mgw_request *request, mgw_error *error)
{
    double begun_s = mgw_awake_s();
    bool done = false;
    mgw_status status = nccl_test(state, request, &done, error);
    while (!status && !done) {
        on_device_pause(begun_s);
        status = nccl_test(state, request, &done, error);
    }
    return status;
}

mgw_status nccl_drain(nccl *n, mgw_error *error)
{
    const mgw_request last = {.number = n->device.posted};
    return nccl_wait(n, &last, error);
}

static mgw_status nccl_allocate(void *state, size_t bytes, void **out, mgw_error *error)
{
    nccl *n = state;
    int code = on_device_mark_begun(&n->device, true);
    mgw_status status = code ? MGW_OK : on_device_allocate(&n->device, bytes, out, error);
    if (!code && !status)
        code = on_device_mark_ended(&n->device);
    if (code)
        return nccl_fail_cuda(n, code, "cannot clear memory", error);
    return status ? status : nccl_drain(n, error);
}

/* ---- Collectives: begun on the stream ---- */

/* NCCL moves 8-bit numbers as plain bytes. */
static const int types[MGW_DTYPE_COUNT] = {
    [MGW_F32] = NCCL_F32, [MGW_F16] = NCCL_F16, [MGW_BF16] = NCCL_BF16,
    [MGW_F64] = NCCL_F64, [MGW_FP8] = NCCL_U8,  [MGW_FP8_E5M2] = NCCL_U8};

int nccl_type(mgw_dtype dtype)
{
    return types[dtype];
}

static const int ops[] = {[MGW_AVERAGE] = NCCL_AVERAGE, [MGW_SUM] = NCCL_SUM, [MGW_MAX] = NCCL_MAX};

/* Progress through the segments of a call. */
typedef struct progress {
    size_t segment; /* the next one */
    char *at;       /* where it begins */
} progress;

/* Starts a collective for one rank's block. */
static int begin_block(nccl *n, const mgw_transport_call *call, void *block, size_t length,
                       unsigned rank)
{
    int type = types[call->dtype];
    int code = call->kind == MGW_REDUCE_SCATTER
                   ? n->library->reduce(block, block, length, type, ops[call->op], (int)rank,
                                        n->comm, n->device.stream)
                   : n->library->broadcast(block, block, length, type, (int)rank, n->comm,
                                           n->device.stream);
    return code == NCCL_IN_PROGRESS ? NCCL_SUCCESS : code;
}

/* Starts a collective for blocks of equal length. */
static int begin_even(nccl *n, const mgw_transport_call *call, char *data, size_t block)
{
    int type = types[call->dtype];
    char *own = data + mgw_transport_rank(n->control) * block * call->element;
    int code = call->kind == MGW_REDUCE_SCATTER
                   ? n->library->reduce_scatter(data, own, block, type, ops[call->op], n->comm,
                                                n->device.stream)
                   : n->library->all_gather(own, data, block, type, n->comm, n->device.stream);
    return code == NCCL_IN_PROGRESS ? NCCL_SUCCESS : code;
}

/*
 * Our blocks may differ in length, NCCL's may not. Equal blocks need one call in place; others need
 * one call per rank.
 */
static int begin_segment(nccl *n, const mgw_transport_call *call, char *data, size_t count)
{
    unsigned size = mgw_transport_size(n->control);
    int code = 0;
    if (count % (32 * (size_t)size) == 0)
        return count ? begin_even(n, call, data, count / size) : 0;
    for (unsigned r = 0; !code && r < size; r++) {
        size_t first = 0;
        size_t length = 0;
        mgw_block(count, size, r, &first, &length);
        if (length)
            code = begin_block(n, call, data + first * call->element, length, r);
    }
    return code;
}

/*
 * Starts all segments in one group, which NCCL runs concurrently; or in several, within its limit.
 */
static int halves(nccl *n, const mgw_transport_call *call, progress *p)
{
    enum { MOST = 1024 }; /* half the documented limit of older versions */
    unsigned size = mgw_transport_size(n->control);
    size_t count = call->segments ? call->segment_count : 1;
    int code = n->library->group_start();
    for (size_t begun = 0; !code && p->segment < count && (!begun || begun + size <= MOST);
         begun += size) {
        size_t length = call->segments ? call->segments[p->segment] : call->count;
        code = begin_segment(n, call, p->at, length);
        p->at += length * call->element;
        p->segment++;
    }
    int ended = n->library->group_end();
    return code ? code : ended;
}

static int begin(nccl *n, const mgw_transport_call *call, progress *p)
{
    void *data = call->data;
    int root = (int)call->root;
    switch (call->kind) {
    case MGW_ALL_REDUCE:
        return n->library->all_reduce(data, data, call->count, types[call->dtype], ops[call->op],
                                      n->comm, n->device.stream);
    case MGW_PUSH:
        return n->library->reduce(data, data, call->count, types[call->dtype], ops[call->op], root,
                                  n->comm, n->device.stream);
    case MGW_PULL:
        return n->library->broadcast(data, data, call->count, NCCL_U8, root, n->comm,
                                     n->device.stream);
    default:
        return halves(n, call, p);
    }
}

static mgw_status begin_all(nccl *n, const mgw_transport_call *call, mgw_error *error)
{
    progress p = {0, call->data};
    mgw_status status = MGW_OK;
    do
        status = nccl_finish_call(n, begin(n, call, &p), mgw_collective_name(call->kind), error);
    while (!status && p.segment < call->segment_count);
    return status;
}

/*
 * NCCL would hang, or mix up data, if workers are in different collectives, and data in host memory
 * goes another way. So workers whose collectives may differ meet first. Only the hosts wait for
 * each other, not for their GPUs.
 */
static mgw_status meet(nccl *n, const mgw_transport_call *call, mgw_error *error)
{
    mgw_status status = call->follows ? MGW_OK : mgw_transport_meet(n->control, call, 0, &n->why);
    n->failed = status != MGW_OK;
    return status ? fail_again(n, error) : MGW_OK;
}

static mgw_status nccl_post(void *state, const mgw_transport_call *call, mgw_request *out,
                            mgw_error *error)
{
    nccl *n = state;
    if (n->failed)
        return fail_again(n, error);
    if (!call->count || !on_device_has(&n->device, call->data))
        return mgw_transport_run(n->control, call, error);
    if (call->element == 1 && call->op == MGW_MAX && mgw_collective_averages(call->kind))
        return mgw_fail(error, MGW_ERR_UNSUPPORTED,
                        "nccl: %s of %s: GPUs find the largest of 16 bits or more",
                        mgw_collective_name(call->kind), mgw_dtype_name(call->dtype));
    bool once = nccl_is_once(n, call);
    mgw_status status = meet(n, call, error);
    if (!status && once)
        status = nccl_prepare_once(n, call, error);
    if (status)
        return status;
    int code = on_device_mark_begun(&n->device, true);
    if (!code)
        status = once ? nccl_sum_once(n, call, error) : begin_all(n, call, error);
    if (!code && !status)
        code = on_device_mark_ended(&n->device);
    if (code)
        return nccl_fail_cuda(n, code, "cannot begin a collective", error);
    out->number = n->device.posted;
    return status;
}

static mgw_status nccl_barrier(void *state, mgw_error *error)
{
    nccl *n = state;
    mgw_status status = nccl_drain(n, error);
    return status ? status : mgw_transport_barrier(n->control, error);
}

const mgw_transport_table mgw_transport_nccl = {
    .capabilities = MGW_MOVES_HALVES | MGW_ON_DEVICE | MGW_NAMES_LATE | MGW_GOES_ON,
    .prepare = nccl_prepare,
    .open = nccl_open,
    .place = nccl_place,
    .close = nccl_close,
    .stream = nccl_stream,
    .follow = nccl_follow,
    .say = nccl_say,
    .survive = nccl_survive,
    .allocate = nccl_allocate,
    .post = nccl_post,
    .test = nccl_test,
    .wait = nccl_wait,
    .barrier = nccl_barrier,
};
