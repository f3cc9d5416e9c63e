/* GPU memory over a host transport, through pinned memory. */
#include "transport/staged.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/status.h"

enum {
    PAGE = 4096,
    THREADS = 2, /* threads that reduce, at most: two keep up with a GPU's link */
};

/* ---- Life ---- */

static mgw_status staged_prepare(const mgw_transport_setup *setup, bool *caller, mgw_error *error)
{
    const mgw_transport_setup inner = mgw_transport_inside(setup);
    const cuda *driver = NULL;
    cuda_context context = NULL;
    mgw_status status = mgw_cuda_enter(&driver, &context, error);
    return status ? status : mgw_transport_prepare_as(&inner, caller, error);
}

/* After a failure, copies to memory that is about to be freed may still be in flight. */
static bool copies_end(const staged *s)
{
    static const double most_s = 5;
    double begun_s = mgw_awake_s();
    bool under_way = true;
    while (under_way && mgw_awake_s() - begun_s < most_s) {
        under_way = s->device.cuda->stream_query(s->device.stream) == CUDA_NOT_READY ||
                    s->device.cuda->stream_query(s->back) == CUDA_NOT_READY;
        if (under_way)
            on_device_pause(begun_s);
    }
    return !under_way;
}

static void staged_close(void *state)
{
    staged *s = state;
    const cuda *c = s->device.cuda;
    if (s->pinned && copies_end(s)) /* otherwise its pages stay pinned and allocated */
        c->host_unregister(s->pinned);
    crew_close(s->crew);
    free(s->out_of);
    free(s->into);
    for (int i = 0; i < STAGED_BUFFERS; i++) {
        if (s->out[i])
            c->event_destroy(s->out[i]);
        if (s->in[i])
            c->event_destroy(s->in[i]);
    }
    if (s->back)
        c->stream_destroy(s->back);
    on_device_close(&s->device);
    mgw_transport_close(s->inner);
    free(s);
}

static int make_events(staged *s)
{
    const cuda *c = s->device.cuda;
    int code = c->stream_create(&s->back, CUDA_STREAM_NON_BLOCKING);
    for (int i = 0; !code && i < STAGED_BUFFERS; i++) {
        code = c->event_create(&s->out[i], CUDA_EVENT_UNTIMED);
        if (!code)
            code = c->event_create(&s->in[i], CUDA_EVENT_UNTIMED);
    }
    return code;
}

/* All workers' buffers, where these are visible. Whole pages, which nothing else in this process
 * may have pinned. */
static mgw_status make_buffers(staged *s, mgw_error *error)
{
    size_t bytes = (size_t)STAGED_BUFFERS * STAGED_PIECE;
    void *memory = NULL;
    mgw_status status = mgw_transport_allocate(s->inner, bytes + PAGE, &memory, error);
    if (status)
        return status;
    s->buffers = (char *)memory + (PAGE - (uintptr_t)memory % PAGE) % PAGE;
    char *pages = s->buffers;
    memset(s->buffers, 0, bytes); /* close to this worker's cores, whoever pins it first */
    if (mgw_transport_find_all(s->inner, s->buffers, bytes, &s->of_first, &s->stride)) {
        pages = s->of_first;
        bytes += (mgw_transport_size(s->inner) - 1) * s->stride;
        status = mgw_transport_barrier(s->inner, error);
        if (status)
            return status;
    }
    int code = s->device.cuda->host_register(pages, bytes, 0);
    s->pinned = code ? NULL : pages;
    if (!code)
        code = make_events(s);
    return code ? mgw_cuda_fail(code, "cannot pin memory", error) : MGW_OK;
}

/* Half of the worker's share of the cores: the rest is the program's. */
static mgw_status find_crew(staged *s, mgw_error *error)
{
    cpu_set_t cores;
    if (!s->of_first || sched_getaffinity(0, sizeof cores, &cores))
        return MGW_OK;
    unsigned share = (unsigned)CPU_COUNT(&cores) / mgw_transport_size(s->inner) / 2;
    unsigned threads = share < THREADS ? share : THREADS;
    return threads > 1 ? crew_open(threads, &s->crew, error) : MGW_OK;
}

static mgw_status staged_open(const mgw_transport_setup *setup, void **state, mgw_error *error)
{
    staged *s = calloc(1, sizeof *s);
    if (!s)
        return mgw_fail_memory(error, "staged");
    const mgw_transport_setup inner = mgw_transport_inside(setup);
    mgw_status status = on_device_open(&s->device, error);
    if (!status)
        status = mgw_transport_open_as(&inner, &s->inner, error);
    if (!status) {
        s->out_of = calloc(mgw_transport_size(s->inner), sizeof *s->out_of);
        s->into = calloc(mgw_transport_size(s->inner), sizeof *s->into);
        status = s->out_of && s->into ? make_buffers(s, error) : mgw_fail_memory(error, "staged");
    }
    if (!status)
        status = find_crew(s, error);
    if (status)
        staged_close(s);
    else
        *state = s;
    return status;
}

static void staged_place(void *state, unsigned *rank, unsigned *size)
{
    const staged *s = state;
    *rank = mgw_transport_rank(s->inner);
    *size = mgw_transport_size(s->inner);
}

/* ---- Collectives ---- */

static void *staged_stream(void *state)
{
    return ((staged *)state)->device.stream;
}

static int staged_follow(void *state, void *event)
{
    return on_device_follow(&((staged *)state)->device, event);
}

/* Copies complete unless the program's work before them does not: no timeout, but the other workers
 * are checked now and then. */
static mgw_status staged_test(void *state, const mgw_request *request, bool *done, mgw_error *error)
{
    staged *s = state;
    int code = 0;
    *done = on_device_is_over(&s->device, request->number, &code);
    if (code)
        return mgw_cuda_fail(code, "a copy failed", error);
    double now_s = mgw_awake_s();
    if (*done || now_s - s->looked_s < on_device_between_s)
        return MGW_OK;
    s->looked_s = now_s;
    return mgw_transport_check(s->inner, error);
}

static mgw_status staged_await(void *state, const mgw_request *request, mgw_error *error)
{
    double begun_s = mgw_awake_s();
    bool done = false;
    mgw_status status = staged_test(state, request, &done, error);
    while (!status && !done) {
        on_device_pause(begun_s);
        status = staged_test(state, request, &done, error);
    }
    return status;
}

/* Waits for everything that was posted. */
static mgw_status drain(staged *s, mgw_error *error)
{
    const mgw_request last = {.number = s->device.posted};
    return staged_await(s, &last, error);
}

static mgw_status staged_allocate(void *state, size_t bytes, void **out, mgw_error *error)
{
    staged *s = state;
    int code = on_device_mark_begun(&s->device, false);
    mgw_status status = code ? MGW_OK : on_device_allocate(&s->device, bytes, out, error);
    if (!code && !status)
        code = on_device_mark_ended(&s->device);
    if (code)
        return mgw_cuda_fail(code, "cannot clear memory", error);
    return status ? status : drain(s, error);
}

/* Data in host memory goes to the inner transport. */
static mgw_status staged_post(void *state, const mgw_transport_call *call, mgw_request *out,
                              mgw_error *error)
{
    staged *s = state;
    if (s->failed)
        return mgw_fail(error, MGW_ERR_PEER, "staged: the transport failed before; close it");
    if (!call->count || !on_device_has(&s->device, call->data))
        return mgw_transport_run(s->inner, call, error);
    int code = on_device_mark_begun(&s->device, false);
    mgw_status status = code ? MGW_OK : staged_run(s, call, error);
    if (!code && !status)
        code = on_device_mark_ended(&s->device);
    if (code)
        status = mgw_cuda_fail(code, "a copy failed", error);
    s->failed = status != MGW_OK;
    out->number = s->device.posted;
    return status;
}

static mgw_status staged_barrier(void *state, mgw_error *error)
{
    mgw_status status = drain(state, error);
    return status ? status : mgw_transport_barrier(((staged *)state)->inner, error);
}

static mgw_status staged_survive(void *state, unsigned round, mgw_survivors *out, mgw_error *error)
{
    return mgw_transport_survive(((staged *)state)->inner, round, out, error);
}

static void staged_say(void *state, const char *doing)
{
    mgw_transport_say(((staged *)state)->inner, doing);
}

const mgw_transport_table mgw_transport_staged = {
    .capabilities = MGW_MOVES_HALVES | MGW_ON_DEVICE | MGW_NAMES_LATE,
    .prepare = staged_prepare,
    .open = staged_open,
    .place = staged_place,
    .close = staged_close,
    .stream = staged_stream,
    .follow = staged_follow,
    .say = staged_say,
    .survive = staged_survive,
    .allocate = staged_allocate,
    .post = staged_post,
    .test = staged_test,
    .wait = staged_await,
    .barrier = staged_barrier,
};
