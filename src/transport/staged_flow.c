/*
 * How a message from GPU memory flows through the host: it is copied piece by piece into pinned
 * memory that the inner transport has allocated, reduced there, and copied back. Several pieces are
 * in flight at a time: some are copied out, one is reduced, some are copied back. The host waits
 * for the copies out, so a collective is complete on return but for the last copies back; the
 * stream is ordered after those.
 *
 * Where workers see each other's buffers, each reduces only its block of a piece, and all copy
 * every block from the buffer in which it was reduced. They meet once for each piece. By coming to
 * the meeting for a piece, a worker states that
 * - its own elements of this piece are in its buffer: now all may reduce their blocks of it;
 * - its block of the previous piece is reduced: now all may copy that piece to their GPUs;
 * - its copies of the piece LAG before are done: now all may fill that buffer again.
 * Pieces are counted over all collectives.
 *
 * In a reduce-scatter or all-gather every rank has blocks of its own, so a piece holds a share of
 * each rank's blocks, rank by rank. A reduce-scatter copies all shares out and our own back; an
 * all-gather copies our own out and all others back.
 */
#include "base/clock.h"
#include "base/status.h"
#include "transport/staged.h"

enum {
    LAG = 3,                      /* buffers of pieces that are or were just copied back */
    AHEAD = STAGED_BUFFERS - LAG, /* buffers of pieces that are copied out */
    PIECES = 16,                  /* of a message; but a piece has */
    LEAST = 512 << 10,            /* at least this many bytes, and at most fills its buffer */
    SHARED = 64 << 10, /* bytes of an all-reduce from which each rank reduces its own blocks */
    RANKS_MAX = 64,    /* that see each other's buffers */
    ALIGNED = 4096,
    UNIT = 32, /* elements; a share is a multiple, so that it is a block of a piece */
};

/*
 * It waits for the program's computation, which may take long: no timeout, but a check that all
 * workers are still there.
 */
mgw_status staged_wait(staged *s, cuda_event event, mgw_error *error)
{
    const cuda *c = s->device.cuda;
    double begun_s = mgw_awake_s();
    double looked_s = begun_s;
    mgw_status status = MGW_OK;
    int code = 0;
    while (!status && (code = c->event_query(event)) == CUDA_NOT_READY) {
        on_device_pause(begun_s);
        if (mgw_awake_s() - looked_s < on_device_between_s)
            continue;
        looked_s = mgw_awake_s();
        status = mgw_transport_check(s->inner, error);
    }
    if (status)
        return status;
    return code ? mgw_cuda_fail(code, "a copy failed", error) : MGW_OK;
}

/* ---- Pieces ---- */

/* A message in progress. */
typedef struct flow {
    staged *s;
    const mgw_transport_call *call;
    size_t bytes;
    size_t piece; /* bytes of every piece but the last; for a half, see share */
    size_t count; /* number of pieces */
    size_t first; /* number of the first piece, over all collectives */
    bool shared;  /* each worker reduces its blocks */
    bool half;    /* a reduce-scatter or an all-gather */
    size_t share; /* of a half: elements of each rank in every piece but the last, */
    size_t most;  /* and in all pieces */
} flow;

/* A piece of a message, and its buffer. */
typedef struct piece {
    char *data;
    size_t bytes;
    size_t buffer;
} piece;

static piece piece_of(const flow *f, size_t k)
{
    size_t begin = k * f->piece;
    size_t rest = f->bytes - begin;
    return (piece){f->call->data + begin, rest < f->piece ? rest : f->piece,
                   (f->first + k) % STAGED_BUFFERS};
}

static char *own_buffer(const staged *s, const piece *p)
{
    return s->buffers + p->buffer * STAGED_PIECE;
}

static char *buffer_of(const staged *s, unsigned rank, const piece *p)
{
    return s->of_first + rank * s->stride + p->buffer * STAGED_PIECE;
}

/* Bytes of a rank's share in a piece of a half. The rank may have fewer. */
static size_t share_bytes(const flow *f, size_t k)
{
    size_t left = f->most - k * f->share;
    return (left < f->share ? (left + UNIT - 1) / UNIT * UNIT : f->share) * f->call->element;
}

/* Bytes of every worker's block; the last blocks may be smaller, or empty. */
static size_t block_bytes(const flow *f, const piece *p)
{
    unsigned size = mgw_transport_size(f->s->inner);
    size_t element = f->call->element;
    return (p->bytes / element + size - 1) / size * element;
}

/* Copies a rank's share of a piece to a buffer or from it. */
static int copy_share(const flow *f, unsigned rank, size_t bytes, char *buffer, bool out)
{
    const staged *s = f->s;
    const cuda *c = s->device.cuda;
    size_t element = f->call->element;
    mgw_blocks *blocks = out ? &s->out_of[rank] : &s->into[rank];
    size_t first = 0;
    size_t length = 0;
    int code = 0;
    for (size_t at = 0;
         !code && mgw_blocks_take(blocks, (bytes - at) / element, &first, &length);) {
        char *data = f->call->data + first * element;
        code = out ? c->copy_out(buffer + at, data, length * element, s->device.stream)
                   : c->copy_in(data, buffer + at, length * element, s->back);
        at += length * element;
    }
    return code;
}

/* Copies out: for a reduce-scatter every rank's share, for an all-gather our own. The remaining
 * shares are copied back, from the buffer of the rank that provided them, if it is visible. */
static int copy_shares(const flow *f, size_t k, bool out)
{
    const staged *s = f->s;
    piece p = piece_of(f, k);
    size_t bytes = share_bytes(f, k);
    bool scatters = f->call->kind == MGW_REDUCE_SCATTER;
    unsigned own = mgw_transport_rank(s->inner);
    int code = 0;
    for (unsigned r = 0; !code && r < mgw_transport_size(s->inner); r++) {
        char *buffer = !out && f->shared ? buffer_of(s, r, &p) : own_buffer(s, &p);
        if (r == own ? scatters || out : scatters == out)
            code = copy_share(f, r, bytes, buffer + r * bytes, out);
    }
    return code;
}

/* Runs once the stream reaches this point. Our copies from the buffer are done. */
static int copy_out(const flow *f, size_t k)
{
    staged *s = f->s;
    if (k >= f->count)
        return 0;
    piece p = piece_of(f, k);
    int code = f->half
                   ? copy_shares(f, k, true)
                   : s->device.cuda->copy_out(own_buffer(s, &p), p.data, p.bytes, s->device.stream);
    return code ? code : s->device.cuda->event_record(s->out[p.buffer], s->device.stream);
}

/* Copies every block from the rank that reduced it: from rank to rank the offset grows by a block,
 * and the buffer changes. The rest of an uneven piece is in the next rank's buffer. */
static int copy_blocks(const flow *f, const piece *p)
{
    const staged *s = f->s;
    const cuda *c = s->device.cuda;
    size_t block = block_bytes(f, p);
    size_t whole = p->bytes / block;
    size_t done = whole * block;
    cuda_copy_of_rows rows = {
        .from = {.memory = CUDA_MEMORY_OF_HOST,
                 .host = buffer_of(s, 0, p),
                 .pitch = s->stride + block},
        .to = {.memory = CUDA_MEMORY_OF_DEVICE, .device = p->data, .pitch = block},
        .bytes = block,
        .rows = whole,
    };
    int code = c->copy_rows(&rows, s->back);
    if (!code && done < p->bytes)
        code = c->copy_in(p->data + done, buffer_of(s, (unsigned)whole, p) + done, p->bytes - done,
                          s->back);
    return code;
}

static int copy_back(const flow *f, size_t k)
{
    staged *s = f->s;
    const cuda *c = s->device.cuda;
    piece p = piece_of(f, k);
    int code = f->half     ? copy_shares(f, k, false)
               : f->shared ? copy_blocks(f, &p)
                           : c->copy_in(p.data, own_buffer(s, &p), p.bytes, s->back);
    return code ? code : c->event_record(s->in[p.buffer], s->back);
}

/* Reduces our own block, or share. */
static void add_up(const flow *f, const piece *p, size_t k)
{
    staged *s = f->s;
    const void *from[RANKS_MAX];
    unsigned size = mgw_transport_size(s->inner);
    size_t block = f->half ? share_bytes(f, k) : block_bytes(f, p);
    size_t whole = f->half ? size * block : p->bytes;
    size_t begin = mgw_transport_rank(s->inner) * block;
    if (begin >= whole || f->call->kind == MGW_ALL_GATHER)
        return;
    size_t bytes = whole - begin < block ? whole - begin : block;
    for (unsigned r = 0; r < size; r++)
        from[r] = buffer_of(s, r, p) + begin;
    crew_reduce(s->crew, from, size, own_buffer(s, p) + begin, bytes / f->call->element,
                f->call->dtype, f->call->op);
}

/* ---- Turns ---- */

/* Applies the collective by the inner transport, in its memory. */
static mgw_status apply(const flow *f, const piece *p, size_t k, mgw_error *error)
{
    mgw_transport_call part = *f->call;
    size_t bytes = f->half ? mgw_transport_size(f->s->inner) * share_bytes(f, k) : p->bytes;
    part.data = own_buffer(f->s, p);
    part.count = bytes / part.element;
    part.segments = NULL; /* shares are its blocks, as long as they are multiples of a unit */
    part.segment_count = 0;
    return mgw_transport_run(f->s->inner, &part, error);
}

/* Meets for piece k; also once after the last piece. */
static mgw_status meet(const flow *f, size_t k, mgw_error *error)
{
    return mgw_transport_meet(f->s->inner, f->call, (f->first + k) % STAGED_BUFFERS, error);
}

static mgw_status await_copies(const flow *f, const piece *p, mgw_error *error)
{
    staged *s = f->s;
    mgw_status status = staged_wait(s, s->out[p->buffer], error);
    size_t gone = (p->buffer + STAGED_BUFFERS - LAG) % STAGED_BUFFERS;
    return status ? status : staged_wait(s, s->in[gone], error);
}

/* The inner transport reduces a piece, which is then copied back; another piece is copied out. */
static mgw_status take_turn(const flow *f, size_t k, mgw_error *error)
{
    piece here = piece_of(f, k);
    mgw_status status = await_copies(f, &here, error);
    if (!status)
        status = apply(f, &here, k, error);
    if (status)
        return status;
    int code = copy_back(f, k);
    if (!code)
        code = copy_out(f, k + AHEAD);
    return code ? mgw_cuda_fail(code, "a copy failed", error) : MGW_OK;
}

/* The previous piece is copied back, another one is copied out, and meanwhile our block of this one
 * is reduced. After the last piece there is one more turn without a piece. */
static mgw_status take_shared_turn(const flow *f, size_t k, mgw_error *error)
{
    piece here = piece_of(f, k < f->count ? k : 0);
    mgw_status status = k < f->count ? await_copies(f, &here, error) : MGW_OK;
    if (!status)
        status = meet(f, k, error);
    if (status)
        return status;
    int code = k ? copy_back(f, k - 1) : 0;
    if (!code)
        code = copy_out(f, k + AHEAD);
    if (code)
        return mgw_cuda_fail(code, "a copy failed", error);
    if (k < f->count)
        add_up(f, &here, k);
    return MGW_OK;
}

static mgw_status pass(const flow *f, mgw_error *error)
{
    staged *s = f->s;
    mgw_status status = MGW_OK;
    int code = 0;
    for (size_t k = 0; !code && k < AHEAD; k++)
        code = copy_out(f, k);
    size_t turns = f->count + f->shared;
    for (size_t k = 0; !code && !status && k < turns; k++)
        status = f->shared ? take_shared_turn(f, k, error) : take_turn(f, k, error);
    /* Work that is enqueued on the stream from now on runs after all results. */
    piece last = piece_of(f, f->count - 1);
    if (!code && !status)
        code = s->device.cuda->stream_wait(s->device.stream, s->in[last.buffer], 0);
    return code ? mgw_cuda_fail(code, "a copy failed", error) : status;
}

/* Small enough that copying the first and the last piece, which overlaps with nothing, takes a
 * small part of the time; large enough that starting a copy does, too. */
static size_t piece_bytes(size_t bytes)
{
    size_t share = bytes / PIECES / ALIGNED * ALIGNED;
    return share < LEAST ? LEAST : share > STAGED_PIECE ? STAGED_PIECE : share;
}

/* A share of every rank's blocks fits a piece. */
static mgw_status divide_half(flow *f, mgw_error *error)
{
    staged *s = f->s;
    unsigned size = mgw_transport_size(s->inner);
    size_t element = f->call->element;
    f->most = mgw_blocks_largest(f->call, size);
    f->share = piece_bytes(size * f->most * element) / size / element / UNIT * UNIT;
    f->share = f->share ? f->share : UNIT;
    f->count = (f->most + f->share - 1) / f->share;
    if (size * f->share * element > STAGED_PIECE)
        return mgw_fail(error, MGW_ERR_UNSUPPORTED, "staged: %s of %u workers",
                        mgw_collective_name(f->call->kind), size);
    for (unsigned r = 0; r < size; r++)
        s->out_of[r] = s->into[r] = mgw_blocks_of(f->call, size, r);
    return MGW_OK;
}

mgw_status staged_run(staged *s, const mgw_transport_call *call, mgw_error *error)
{
    size_t bytes = call->count * call->element;
    size_t each = piece_bytes(bytes);
    bool half = call->kind == MGW_REDUCE_SCATTER || call->kind == MGW_ALL_GATHER;
    bool blocks = half || call->kind == MGW_ALL_REDUCE;
    flow f = {.s = s,
              .call = call,
              .bytes = bytes,
              .piece = half ? 0 : each,
              .count = (bytes + each - 1) / each,
              .first = s->turn,
              .shared = blocks && s->of_first && bytes >= SHARED,
              .half = half};
    mgw_status status = half ? divide_half(&f, error) : MGW_OK;
    s->turn += f.count;
    return status ? status : pass(&f, error);
}
