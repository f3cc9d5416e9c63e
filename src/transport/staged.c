/* Memory of GPUs over a transport of hosts: copied out piece by piece into pinned memory that the
 * transport inside shares, reduced there, and copied back. Several pieces are under way at a time:
 * some come, one is reduced, some go. The host waits for what comes, so that collectives are done
 * when they return but for the last copies; the stream is behind those.
 *
 * Where the workers see each other's buffers, each reduces its block of a piece only, and all copy
 * every block from the buffer where it was made. So a buffer is free when nobody copies from it any
 * more: before a worker meets the others for a piece, its copies of the piece LAG before are done;
 * after that, the buffer of that piece may be filled again. Pieces are counted over all
 * collectives.
 */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/status.h"
#include "transport/on_device.h"

enum {
    BUFFERS = 4,
    LAG = 2, /* buffers of pieces that go, or have just gone */
    PIECE = 2 << 20,
    GATHERED = 64 << 10, /* bytes of a piece from which on its blocks are copied one by one */
    PAGE = 4096,
};

typedef struct staged {
    mgw_transport *inner;
    on_device device;        /* its stream: copies from the GPU, and what follows a collective */
    cuda_stream back;        /* copies to the GPU */
    char *buffers;           /* pinned memory of the inner transport's; null: not yet */
    char **of_rank;          /* everybody's, pinned here, too; null: only our own can be seen */
    unsigned pinned;         /* how many of those are */
    size_t turn;             /* pieces so far: each has the next buffer */
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
    if (s->pinned && copies_end(s)) /* else it stays pinned, and is nobody else's */
        for (unsigned r = 0; r < s->pinned; r++)
            c->host_unregister(s->of_rank ? s->of_rank[r] : s->buffers);
    free(s->of_rank);
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

static int make_events(staged *s)
{
    const cuda *c = s->device.cuda;
    int code = c->stream_create(&s->back, CUDA_STREAM_NON_BLOCKING);
    for (int i = 0; !code && i < BUFFERS; i++) {
        code = c->event_create(&s->out[i], CUDA_EVENT_UNTIMED);
        if (!code)
            code = c->event_create(&s->in[i], CUDA_EVENT_UNTIMED);
    }
    return code;
}

/* Whole pages, which nobody else in this process may have pinned, too. */
static mgw_status make_buffers(staged *s, mgw_error *error)
{
    const size_t bytes = (size_t)BUFFERS * PIECE;
    unsigned size = mgw_transport_size(s->inner);
    void *memory = NULL;
    mgw_status status = mgw_transport_allocate(s->inner, bytes + PAGE, &memory, error);
    if (status)
        return status;
    s->buffers = (char *)memory + (PAGE - (uintptr_t)memory % PAGE) % PAGE;
    s->of_rank = calloc(size, sizeof *s->of_rank);
    if (!s->of_rank)
        return mgw_fail_memory(error, "staged");
    if (!mgw_transport_find_all(s->inner, s->buffers, bytes, s->of_rank)) {
        free(s->of_rank);
        s->of_rank = NULL;
        size = 1;
    }
    int code = make_events(s);
    for (unsigned r = 0; !code && r < size; r++) {
        char *pages = s->of_rank ? s->of_rank[r] : s->buffers;
        code = s->device.cuda->host_register(pages, bytes, 0);
        s->pinned += !code;
    }
    return code ? mgw_cuda_fail(code, "cannot pin memory", error) : MGW_OK;
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

/* A piece of a collective's memory, and the buffer that it goes through. */
typedef struct piece {
    char *data;
    size_t bytes;
    size_t buffer;
} piece;

static piece piece_of(const staged *s, char *data, size_t bytes, size_t k)
{
    size_t begin = k * PIECE;
    size_t rest = bytes - begin;
    return (piece){data + begin, rest < PIECE ? rest : PIECE, (s->turn + k) % BUFFERS};
}

/* Whether each worker makes a block of it, and copies the others' from where they are. */
static bool gathers(const staged *s, const staged_call *call, size_t bytes)
{
    return call->kind == ALL_REDUCE && s->of_rank && bytes >= GATHERED;
}

static mgw_status apply(const staged *s, const staged_call *call, void *data, size_t bytes,
                        mgw_error *error)
{
    size_t count = bytes / mgw_dtype_bytes(call->dtype);
    switch (call->kind) {
    case BROADCAST:
        return mgw_transport_broadcast(s->inner, data, bytes, call->root, error);
    case REDUCE:
        return mgw_transport_reduce(s->inner, data, count, call->dtype, call->op, call->root,
                                    error);
    default:
        return mgw_transport_all_reduce(s->inner, data, count, call->dtype, call->op, error);
    }
}

static mgw_status apply_piece(const staged *s, const staged_call *call, const piece *p,
                              mgw_error *error)
{
    char *buffer = s->buffers + p->buffer * PIECE;
    if (!gathers(s, call, p->bytes))
        return apply(s, call, buffer, p->bytes, error);
    return mgw_transport_reduce_scatter(s->inner, buffer, p->bytes / mgw_dtype_bytes(call->dtype),
                                        call->dtype, call->op, error);
}

/* Once the stream has come there, and our copies from the buffer are over. */
static int copy_out(staged *s, const piece *p)
{
    const cuda *c = s->device.cuda;
    int code = c->stream_wait(s->device.stream, s->in[p->buffer], 0);
    if (!code)
        code = c->copy_out(s->buffers + p->buffer * PIECE, p->data, p->bytes, s->device.stream);
    return code ? code : c->event_record(s->out[p->buffer], s->device.stream);
}

static int copy_blocks(staged *s, const piece *p, size_t element)
{
    unsigned size = mgw_transport_size(s->inner);
    int code = 0;
    for (unsigned r = 0; !code && r < size; r++) {
        size_t first = 0;
        size_t length = 0;
        mgw_transport_block(p->bytes / element, size, r, &first, &length);
        const char *block = s->of_rank[r] + p->buffer * PIECE + first * element;
        if (length)
            code = s->device.cuda->copy_in(p->data + first * element, block, length * element,
                                           s->back);
    }
    return code;
}

static int copy_back(staged *s, const staged_call *call, const piece *p)
{
    const cuda *c = s->device.cuda;
    int code = gathers(s, call, p->bytes)
                   ? copy_blocks(s, p, mgw_dtype_bytes(call->dtype))
                   : c->copy_in(p->data, s->buffers + p->buffer * PIECE, p->bytes, s->back);
    return code ? code : c->event_record(s->in[p->buffer], s->back);
}

/* A piece that has come: reduced with the others', and on its way back. */
static mgw_status turn_round(staged *s, const staged_call *call, const piece *p, mgw_error *error)
{
    size_t gone = (p->buffer + BUFFERS - LAG) % BUFFERS;
    mgw_status status = wait_for(s, s->out[p->buffer], error);
    if (!status)
        status = wait_for(s, s->in[gone], error);
    if (!status)
        status = apply_piece(s, call, p, error);
    int code = status ? 0 : copy_back(s, call, p);
    return code ? mgw_cuda_fail(code, "a copy failed", error) : status;
}

static mgw_status each_piece(staged *s, const staged_call *call, void *data, size_t bytes,
                             mgw_error *error)
{
    if (!bytes || !on_device_has(&s->device, data))
        return apply(s, call, data, bytes, error);
    const size_t ahead = BUFFERS - LAG;
    size_t count = (bytes + PIECE - 1) / PIECE;
    mgw_status status = MGW_OK;
    int code = 0;
    for (size_t k = 0; !code && !status && k < count + ahead; k++) {
        if (k >= ahead) {
            piece here = piece_of(s, data, bytes, k - ahead);
            status = turn_round(s, call, &here, error);
        }
        if (!status && k < count) {
            piece next = piece_of(s, data, bytes, k);
            code = copy_out(s, &next);
        }
    }
    s->turn += count;
    /* What is given to the stream from now on comes behind all results. */
    if (!code && !status)
        code = s->device.cuda->stream_wait(s->device.stream, s->in[(s->turn - 1) % BUFFERS], 0);
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
