/* Memory of GPUs over a transport of hosts: copied out piece by piece into pinned memory that the
 * transport inside shares, reduced there, and copied back. Three pieces are under way at a time:
 * one comes, one is reduced, one goes. The host waits for what comes, so that collectives are done
 * when they return but for the last copies; the stream is behind those. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/status.h"
#include "transport/on_device.h"

enum { BUFFERS = 3, PIECE = 2 << 20, PAGE = 4096 };

typedef struct staged {
    mgw_transport *inner;
    on_device device;        /* its stream: copies from the GPU, and what follows a collective */
    cuda_stream back;        /* copies to the GPU */
    char *buffers;           /* pinned memory of the inner transport's; null: not yet */
    cuda_event out[BUFFERS]; /* the piece is in the buffer */
    cuda_event in[BUFFERS];  /* its result is on the GPU, and the buffer is free */
} staged;

/* What is done with every piece. */
typedef enum staged_kind { ALL_REDUCE, REDUCE, BROADCAST } staged_kind;

typedef struct staged_call {
    staged_kind kind;
    mgw_dtype dtype;
    mgw_op op;
    unsigned root;
} staged_call;

/* ---- Waiting ---- */

/*
 * For an event, or else for the stream. It waits for what the program computes, which may take
 * long: no timeout, but a look at whether all are still there.
 */
static mgw_status wait_for(staged *s, cuda_event event, mgw_error *error)
{
    const cuda *c = s->device.cuda;
    double begun_s = mgw_now_s();
    double looked_s = begun_s;
    mgw_status status = MGW_OK;
    int code = 0;
    while (!status && (code = event ? c->event_query(event) : c->stream_query(s->device.stream)) ==
                          CUDA_NOT_READY) {
        on_device_pause(begun_s);
        if (mgw_now_s() - looked_s < on_device_between_s)
            continue;
        looked_s = mgw_now_s();
        status = mgw_transport_check(s->inner, error);
    }
    if (status)
        return status;
    return code ? mgw_cuda_fail(code, "a copy failed", error) : MGW_OK;
}

static mgw_status staged_settle(void *state, mgw_error *error)
{
    return wait_for(state, NULL, error);
}

static void *staged_stream(void *state)
{
    return ((staged *)state)->device.stream;
}

/* ---- Life ---- */

static mgw_status inner_options(const mgw_transport_options *options, mgw_transport_options *inner,
                                mgw_error *error)
{
    *inner = *options;
    inner->on_device = false;
    if (strncmp(inner->name, "emulated", 8) != 0)
        return MGW_OK;
    return mgw_fail(error, MGW_ERR_UNSUPPORTED,
                    "transport '%.60s': messages from a GPU cannot be made to last; name nccl, shm "
                    "or mpi",
                    options->name);
}

static mgw_status staged_prepare(const mgw_transport_options *options, bool *caller,
                                 mgw_error *error)
{
    mgw_transport_options inner;
    const cuda *driver = NULL;
    cuda_context context = NULL;
    mgw_status status = inner_options(options, &inner, error);
    if (!status)
        status = mgw_cuda_enter(&driver, &context, error);
    return status ? status : mgw_transport_prepare(&inner, caller, error);
}

/* After a failure copies may still be under way to memory that is about to go. */
static bool copies_end(const staged *s)
{
    static const double most_s = 5;
    double begun_s = mgw_now_s();
    bool under_way = true;
    while (under_way && mgw_now_s() - begun_s < most_s) {
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
    if (s->buffers && copies_end(s)) /* else it stays pinned, and is nobody else's */
        c->host_unregister(s->buffers);
    for (int i = 0; i < BUFFERS; i++) {
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

/* Whole pages, which nobody else may have pinned, too. */
static mgw_status make_buffers(staged *s, mgw_error *error)
{
    const cuda *c = s->device.cuda;
    void *memory = NULL;
    mgw_status status =
        mgw_transport_allocate(s->inner, (size_t)BUFFERS * PIECE + PAGE, &memory, error);
    if (status)
        return status;
    char *page = (char *)memory + (PAGE - (uintptr_t)memory % PAGE) % PAGE;
    int code = c->stream_create(&s->back, CUDA_STREAM_NON_BLOCKING);
    for (int i = 0; !code && i < BUFFERS; i++) {
        code = c->event_create(&s->out[i], CUDA_EVENT_UNTIMED);
        if (!code)
            code = c->event_create(&s->in[i], CUDA_EVENT_UNTIMED);
    }
    if (!code)
        code = c->host_register(page, (size_t)BUFFERS * PIECE, 0);
    if (code)
        return mgw_cuda_fail(code, "cannot pin memory", error);
    s->buffers = page;
    return MGW_OK;
}

static mgw_status staged_open(const mgw_transport_options *options, void **state, mgw_error *error)
{
    staged *s = calloc(1, sizeof *s);
    if (!s)
        return mgw_fail_memory(error, "staged");
    mgw_transport_options inner;
    mgw_status status = inner_options(options, &inner, error);
    if (!status)
        status = on_device_open(&s->device, error);
    if (!status)
        status = mgw_transport_open(&inner, &s->inner, error);
    if (!status)
        status = make_buffers(s, error);
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

static mgw_status staged_allocate(void *state, size_t bytes, void **out, mgw_error *error)
{
    staged *s = state;
    mgw_status status = on_device_allocate(&s->device, bytes, out, error);
    return status ? status : staged_settle(s, error);
}

/* ---- Collectives ---- */

static mgw_status apply(mgw_transport *inner, const staged_call *call, void *data, size_t bytes,
                        mgw_error *error)
{
    size_t count = bytes / mgw_dtype_bytes(call->dtype);
    switch (call->kind) {
    case BROADCAST:
        return mgw_transport_broadcast(inner, data, bytes, call->root, error);
    case REDUCE:
        return mgw_transport_reduce(inner, data, count, call->dtype, call->op, call->root, error);
    default:
        return mgw_transport_all_reduce(inner, data, count, call->dtype, call->op, error);
    }
}

/* A collective's memory, in pieces. */
typedef struct pieces {
    char *data;
    size_t bytes;
    size_t count;
} pieces;

static size_t bytes_of(const pieces *p, size_t k)
{
    return k + 1 < p->count ? PIECE : p->bytes - k * PIECE;
}

/* Once the stream has come there, and the piece that had the buffer before is back. */
static int copy_out(staged *s, const pieces *p, size_t k)
{
    const cuda *c = s->device.cuda;
    size_t b = k % BUFFERS;
    int code = k < BUFFERS ? 0 : c->stream_wait(s->device.stream, s->in[b], 0);
    if (!code)
        code = c->copy_out(s->buffers + b * PIECE, p->data + k * PIECE, bytes_of(p, k),
                           s->device.stream);
    return code ? code : c->event_record(s->out[b], s->device.stream);
}

/* What is given to the stream from the last piece on comes behind all results. */
static int copy_back(staged *s, const pieces *p, size_t k)
{
    const cuda *c = s->device.cuda;
    size_t b = k % BUFFERS;
    int code = c->copy_in(p->data + k * PIECE, s->buffers + b * PIECE, bytes_of(p, k), s->back);
    if (!code)
        code = c->event_record(s->in[b], s->back);
    return code || k + 1 < p->count ? code : c->stream_wait(s->device.stream, s->in[b], 0);
}

static mgw_status each_piece(staged *s, const staged_call *call, void *data, size_t bytes,
                             mgw_error *error)
{
    if (!bytes || !on_device_has(&s->device, data))
        return apply(s->inner, call, data, bytes, error);
    pieces p = {data, bytes, (bytes + PIECE - 1) / PIECE};
    mgw_status status = MGW_OK;
    int code = 0;
    for (size_t k = 0; !code && k < BUFFERS && k < p.count; k++)
        code = copy_out(s, &p, k);
    for (size_t k = 0; !code && !status && k < p.count; k++) {
        char *buffer = s->buffers + k % BUFFERS * PIECE;
        status = wait_for(s, s->out[k % BUFFERS], error);
        if (!status)
            status = apply(s->inner, call, buffer, bytes_of(&p, k), error);
        if (!status)
            code = copy_back(s, &p, k);
        if (!status && !code && k + BUFFERS < p.count)
            code = copy_out(s, &p, k + BUFFERS);
    }
    return code ? mgw_cuda_fail(code, "a copy failed", error) : status;
}

static mgw_status staged_all_reduce(void *state, void *data, size_t count, mgw_dtype dtype,
                                    mgw_op op, mgw_error *error)
{
    staged_call call = {ALL_REDUCE, dtype, op, 0};
    return each_piece(state, &call, data, count * mgw_dtype_bytes(dtype), error);
}

static mgw_status staged_reduce(void *state, void *data, size_t count, mgw_dtype dtype, mgw_op op,
                                unsigned root, mgw_error *error)
{
    staged_call call = {REDUCE, dtype, op, root};
    return each_piece(state, &call, data, count * mgw_dtype_bytes(dtype), error);
}

static mgw_status staged_broadcast(void *state, void *data, size_t bytes, unsigned root,
                                   mgw_error *error)
{
    staged_call call = {.kind = BROADCAST, .root = root};
    return each_piece(state, &call, data, bytes, error);
}

/* Every rank's block from its owner. */
static mgw_status staged_all_gather(void *state, void *data, size_t count, mgw_dtype dtype,
                                    mgw_error *error)
{
    staged *s = state;
    unsigned size = mgw_transport_size(s->inner);
    size_t element = mgw_dtype_bytes(dtype);
    mgw_status status = MGW_OK;
    for (unsigned r = 0; !status && r < size; r++) {
        size_t first = 0;
        size_t length = 0;
        mgw_transport_block(count, size, r, &first, &length);
        status = staged_broadcast(s, (char *)data + first * element, length * element, r, error);
    }
    return status;
}

static mgw_status staged_barrier(void *state, mgw_error *error)
{
    mgw_status status = staged_settle(state, error);
    return status ? status : mgw_transport_barrier(((staged *)state)->inner, error);
}

const mgw_transport_table mgw_transport_staged = {
    .name = "staged",
    .prepare = staged_prepare,
    .open = staged_open,
    .place = staged_place,
    .close = staged_close,
    .stream = staged_stream,
    .settle = staged_settle,
    .allocate = staged_allocate,
    .all_reduce = staged_all_reduce,
    .reduce_scatter = staged_all_reduce,
    .all_gather = staged_all_gather,
    .reduce = staged_reduce,
    .broadcast = staged_broadcast,
    .barrier = staged_barrier,
};
