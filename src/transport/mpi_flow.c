/*
 * Progress of collectives over MPI: each is a sequence of one or more MPI requests. Post starts the
 * first; testing or waiting completes it and starts the next.
 */
#include <string.h>

#include "base/status.h"
#include "transport/blocks.h"
#include "transport/mpi.h"
#include "transport/reduce.h"

/*
 * MPI counts in int. When reducing in halves, the parts of all ranks are kept until they are added
 * up.
 */
enum { PIECE = 1 << 28, SUMMED = 1 << 23 };

static MPI_Datatype type_of(const mgw_transport_call *call)
{
    return call->element == sizeof(uint16_t)  ? MPI_UINT16_T
           : call->element == sizeof(uint8_t) ? MPI_UINT8_T
           : call->dtype == MGW_F32           ? MPI_FLOAT
                                              : MPI_DOUBLE;
}

static void divide(const mpi *m, void *data, size_t count, mgw_dtype dtype)
{
    float *floats = data;
    double *doubles = data;
    for (size_t i = 0; i < count; i++)
        if (dtype == MGW_F32)
            floats[i] /= (float)m->size;
        else
            doubles[i] /= m->size;
}

/* Advances to the next piece of a call. False: there is none. */
static bool next_piece(mpi_flow *f, size_t most)
{
    f->first += f->length;
    size_t left = f->call.count - f->first;
    f->length = left < most ? left : most;
    return f->length > 0;
}

static char *here(const mpi_flow *f)
{
    return f->lent + f->first * f->call.element;
}

/* ---- Sums: every `next` begins a request, or says that there is no more to do ---- */

static bool next_of_sum(mpi *m, mpi_flow *f, int *code)
{
    const mgw_transport_call *call = &f->call;
    if (f->length && call->op == MGW_AVERAGE)
        divide(m, here(f), f->length, call->dtype);
    if (!next_piece(f, PIECE))
        return false;
    *code = MPI_Iallreduce(MPI_IN_PLACE, here(f), (int)f->length, type_of(call),
                           call->op == MGW_MAX ? MPI_MAX : MPI_SUM, m->comm, &f->request);
    return true;
}

/* Computes the offset and length of every rank's block of this piece; returns our own. */
static size_t lay_out(const mpi *m, const mpi_flow *f, size_t *own)
{
    size_t mine = 0;
    size_t at = 0;
    size_t elements = 0;
    for (int r = 0; r < m->size; r++) {
        at += elements;
        if (f->packed)
            elements = mgw_blocks_length(&f->call, (unsigned)m->size, (unsigned)r);
        else
            mgw_block(f->length, (unsigned)m->size, (unsigned)r, &at, &elements);
        m->counts[0][r] = (int)elements;
        m->counts[1][r] = (int)at;
        mine = r == m->rank ? at : mine;
        *own = r == m->rank ? elements : *own;
    }
    return mine;
}

/*
 * Each rank receives all ranks' elements of its block, … MPI_Ireduce_scatter_block needs equal
 * blocks, does not support narrow types, adds up in an order of its own, and is not faster: Open
 * MPI's sends everything through one rank (2 ranks, 64 MiB: 63 ms instead of 23), MPICH's is
 * sometimes faster, sometimes slower.
 */
static int exchange(mpi *m, mpi_flow *f)
{
    size_t own = 0;
    lay_out(m, f, &own);
    char *parts = mpi_make_room(m, &m->parts, (own * (size_t)m->size + 1) * f->call.element);
    if (!parts)
        return MPI_ERR_NO_MEM;
    for (int r = 0; r < m->size; r++) {
        m->counts[2][r] = (int)own;
        m->counts[3][r] = (int)((size_t)r * own);
    }
    m->counts[0][m->rank] = m->counts[2][m->rank] = 0; /* our own elements stay in place */
    return MPI_Ialltoallv(here(f), m->counts[0], m->counts[1], type_of(&f->call), parts,
                          m->counts[2], m->counts[3], type_of(&f->call), m->comm, &f->request);
}

/*
 * Adds up a range of our own elements and the others' received ones, starting `begin` into these.
 */
static void add_stretch(const mpi *m, const mpi_flow *f, void *target, size_t own, size_t begin,
                        size_t length)
{
    for (int r = 0; r < m->size; r++)
        m->source[r] = m->parts.at + ((size_t)r * own + begin) * f->call.element;
    m->source[m->rank] = target;
    mgw_reduce(m->source, (size_t)m->size, &target, 1, length, f->call.dtype, f->call.op);
}

/* … and adds them up, rounding once. */
static void add_up(const mpi *m, const mpi_flow *f)
{
    size_t own = 0;
    size_t first = lay_out(m, f, &own);
    size_t length = 0;
    if (!f->packed) {
        add_stretch(m, f, here(f) + first * f->call.element, own, 0, own);
        return;
    }
    mgw_blocks blocks = mgw_blocks_of(&f->call, (unsigned)m->size, (unsigned)m->rank);
    for (size_t begin = 0; mgw_blocks_take(&blocks, SIZE_MAX, &first, &length); begin += length)
        add_stretch(m, f, f->call.data + first * f->call.element, own, begin, length);
}

/* In place. */
static int gather(mpi *m, mpi_flow *f)
{
    size_t own = 0;
    lay_out(m, f, &own);
    MPI_Datatype type = type_of(&f->call);
    if (!f->packed && f->length % (32 * (size_t)m->size) == 0)
        return MPI_Iallgather(MPI_IN_PLACE, 0, type, here(f), (int)own, type, m->comm, &f->request);
    return MPI_Iallgatherv(MPI_IN_PLACE, 0, type, here(f), m->counts[0], m->counts[1], type,
                           m->comm, &f->request);
}

/* Our own reduce-scatter, then an all-gather, piece by piece. */
static bool next_of_halves(mpi *m, mpi_flow *f, int *code)
{
    if (f->steps % 2) {
        add_up(m, f);
        *code = gather(m, f);
        return true;
    }
    if (!next_piece(f, SUMMED))
        return false;
    *code = exchange(m, f);
    return true;
}

/* ---- Reduce-scatter and all-gather: their blocks are of the whole ---- */

static bool next_of_scatter(mpi *m, mpi_flow *f, int *code)
{
    if (f->steps)
        add_up(m, f);
    else if (next_piece(f, PIECE))
        *code = exchange(m, f);
    return f->steps == 0;
}

static bool next_of_gather(mpi *m, mpi_flow *f, int *code)
{
    if (f->steps == 0 && next_piece(f, PIECE))
        *code = gather(m, f);
    return f->steps == 0;
}

/* The rank whose block an element is in, and where that block ends. */
static unsigned owner_of(const mpi *m, const mgw_transport_call *call, size_t element, size_t *end)
{
    size_t first = 0;
    size_t length = 0;
    for (unsigned r = 0; r < (unsigned)m->size; r++)
        for (mgw_blocks b = mgw_blocks_of(call, (unsigned)m->size, r);
             mgw_blocks_take(&b, SIZE_MAX, &first, &length);) {
            *end = first + length;
            if (first <= element && element < *end)
                return r;
        }
    return 0; /* not reached: the blocks cover the call */
}

/* For more than MPI can count: broadcasts every block from its owner, piece by piece. */
static bool next_of_long_gather(mpi *m, mpi_flow *f, int *code)
{
    size_t end = 0;
    f->first += f->length;
    if (f->first == f->call.count)
        return false;
    unsigned owner = owner_of(m, &f->call, f->first, &end);
    f->length = end - f->first < PIECE ? end - f->first : PIECE;
    *code =
        MPI_Ibcast(here(f), (int)f->length, type_of(&f->call), (int)owner, m->comm, &f->request);
    return true;
}

/* ---- To one rank, and from one ---- */

static bool next_of_broadcast(mpi *m, mpi_flow *f, int *code)
{
    if (!next_piece(f, PIECE))
        return false;
    *code = MPI_Ibcast(here(f), (int)f->length, MPI_BYTE, (int)f->call.root, m->comm, &f->request);
    return true;
}

/*
 * The size of one rank's part when the root collects all parts to add them up in rank order: the
 * total does not grow with the number of ranks.
 */
static size_t collected(const mpi *m)
{
    enum { MOST = 256 * 1024, LEAST = 4096, TOGETHER = 64 << 20 };
    size_t each = (size_t)TOGETHER / (size_t)m->size / LEAST * LEAST;
    return each > MOST ? MOST : each < LEAST ? LEAST : each;
}

static bool next_of_send(mpi *m, mpi_flow *f, int *code)
{
    if (!next_piece(f, collected(m) / f->call.element))
        return false;
    *code = MPI_Isend(here(f), (int)(f->length * f->call.element), MPI_BYTE, (int)f->call.root,
                      MPI_TAG_REDUCE, m->comm, &f->request);
    return true;
}

/* Receives all ranks' parts of a piece in turn, then adds them up. */
static bool next_of_collect(mpi *m, mpi_flow *f, int *code)
{
    size_t each = collected(m);
    size_t others = (size_t)m->size - 1;
    size_t turn = others ? f->steps % others : 0;
    if (turn == 0) {
        void *target = f->call.data + f->first * f->call.element;
        m->source[m->rank] = target;
        if (f->length)
            mgw_reduce(m->source, (size_t)m->size, &target, 1, f->length, f->call.dtype,
                       f->call.op);
        if (!others || !next_piece(f, each / f->call.element))
            return false;
    }
    int from = (int)turn + ((int)turn >= m->rank);
    char *part = m->parts.at + turn * each;
    m->source[from] = part;
    *code = MPI_Irecv(part, (int)(f->length * f->call.element), MPI_BYTE, from, MPI_TAG_REDUCE,
                      m->comm, &f->request);
    return true;
}

/* ---- A call ---- */

typedef bool next_step(mpi *m, mpi_flow *f, int *code);

/*
 * MPI does not support 16-bit or 8-bit floats, and sums of them would be rounded, and might
 * overflow, at every hop. Among few ranks, Open MPI's non-blocking all-reduce sends everything
 * through one rank, or goes around a ring: over TCP, both halves together take half its time once a
 * rank's block is this large. More ranks were not measured.
 */
static bool is_in_halves(const mpi *m, const mgw_transport_call *call)
{
    enum { FEW = 8, BLOCK = 8 << 10 };
    bool few = m->size > 1 && m->size <= FEW;
    return call->element <= sizeof(uint16_t) ||
           (few && call->count / (size_t)m->size >= BLOCK / call->element);
}

static next_step *step_of(const mpi *m, const mgw_transport_call *call)
{
    next_step *sum = is_in_halves(m, call) ? next_of_halves : next_of_sum;
    switch (call->kind) {
    case MGW_REDUCE_SCATTER:
        return call->count > PIECE ? sum : next_of_scatter;
    case MGW_ALL_GATHER:
        return call->count > PIECE ? next_of_long_gather : next_of_gather;
    case MGW_PUSH:
        return m->rank == (int)call->root ? next_of_collect : next_of_send;
    case MGW_PULL:
        return next_of_broadcast;
    default:
        return sum;
    }
}

static bool collects(const mpi *m, const mgw_transport_call *call)
{
    return call->kind == MGW_PUSH && m->rank == (int)call->root;
}

static bool is_packed(const mgw_transport_call *call)
{
    return call->segment_count > 1 && call->count <= PIECE;
}

/* Copies a rank's part of the data to the lent memory, or back. */
static void move(const mpi_flow *f, mgw_blocks *blocks, char *lent, bool lends)
{
    size_t first = 0;
    size_t length = 0;
    while (mgw_blocks_take(blocks, SIZE_MAX, &first, &length)) {
        char *data = f->call.data + first * f->call.element;
        char *place = f->packed ? lent : f->lent + first * f->call.element;
        memcpy(lends ? place : data, lends ? data : place, length * f->call.element);
        lent += length * f->call.element;
    }
}

static bool is_half(const mgw_transport_call *call)
{
    return call->kind == MGW_REDUCE_SCATTER || call->kind == MGW_ALL_GATHER;
}

/*
 * Whether a rank's blocks are copied to lent memory, or back. For packed data our own sums are
 * computed in place.
 */
static bool is_moved(const mpi *m, const mpi_flow *f, int rank, bool lends)
{
    bool own = rank == m->rank;
    if (f->call.kind == MGW_REDUCE_SCATTER)
        return f->packed ? lends && !own : lends || own;
    return f->call.kind != MGW_ALL_GATHER || lends == own;
}

static void move_blocks(const mpi *m, const mpi_flow *f, bool lends)
{
    unsigned size = is_half(&f->call) ? (unsigned)m->size : 1;
    char *lent = f->lent;
    for (unsigned r = 0; r < size; r++) {
        mgw_blocks blocks = mgw_blocks_of(&f->call, size, r);
        if (is_moved(m, f, (int)r, lends))
            move(f, &blocks, lent, lends);
        if (f->packed)
            lent += mgw_blocks_length(&f->call, size, r) * f->call.element;
    }
}

/* MPI only sees memory of ours: data elsewhere is copied there. */
static bool lend(mpi *m, mpi_flow *f)
{
    const mgw_transport_call *call = &f->call;
    size_t whole = call->count * call->element;
    f->lent = call->data;
    f->packed = is_packed(call);
    if (collects(m, call)) /* MPI only sees the others' parts */
        return mpi_make_room(m, &m->parts, (size_t)m->size * collected(m));
    if (!whole || (!f->packed && mpi_owns(m, call->data, whole)))
        return true;
    f->lent = mpi_make_room(m, &m->stage, whole);
    if (f->lent)
        move_blocks(m, f, true);
    return f->lent;
}

static void give_back(const mpi *m, const mpi_flow *f)
{
    if (f->lent != f->call.data && f->call.kind != MGW_PUSH)
        move_blocks(m, f, false);
}

/* Starts the next request. */
static mgw_status go_on(mpi *m, mgw_error *error)
{
    mpi_flow *f = &m->flow;
    int code = MPI_SUCCESS;
    bool asks = f->check == MPI_CHECK_DUE;
    mgw_status status = f->check == MPI_CHECK_ASKED ? mpi_answer(m, error) : MGW_OK;
    if (status)
        return status;
    f->check = asks ? MPI_CHECK_ASKED : MPI_CHECK_DONE;
    if (asks)
        code = mpi_ask(m, mgw_word_of(&f->call, IN_BUFFERS), &f->request);
    bool more = asks || (f->call.count && step_of(m, &f->call)(m, f, &code));
    if (code != MPI_SUCCESS)
        return mpi_fail(m, code, mgw_collective_name(f->call.kind), error);
    f->steps += !asks;
    f->patience = (mpi_patience){0};
    if (!more) {
        give_back(m, f);
        m->over = m->posted;
    }
    return MGW_OK;
}

/* Starts the next request if this one is done. */
static mgw_status step(mpi *m, bool *done, mgw_error *error)
{
    mpi_flow *f = &m->flow;
    int over = 0;
    int code = MPI_Test(&f->request, &over, MPI_STATUS_IGNORE);
    *done = over;
    if (code != MPI_SUCCESS)
        return mpi_fail(m, code, mgw_collective_name(f->call.kind), error);
    return over ? go_on(m, error) : MGW_OK;
}

static mgw_status fail_again(const char *what, mgw_error *error)
{
    return mgw_fail(error, MGW_ERR_PEER, "mpi: %s: the transport failed before; close it", what);
}

mgw_status mpi_test(void *state, const mgw_request *request, bool *done, mgw_error *error)
{
    mpi *m = state;
    const char *what = mgw_collective_name(m->flow.call.kind);
    mgw_status status = MGW_OK;
    bool stepped = true;
    *done = request->number <= m->over;
    if (!*done && m->failed)
        return fail_again(what, error);
    while (!status && !*done && stepped) {
        status = step(m, &stepped, error);
        *done = request->number <= m->over;
    }
    if (status || *done)
        return status;
    return mpi_ask_more(m, &m->flow.patience, what, error);
}

mgw_status mpi_await(void *state, const mgw_request *request, mgw_error *error)
{
    mpi *m = state;
    const char *what = mgw_collective_name(m->flow.call.kind);
    mgw_status status = MGW_OK;
    if (m->failed && request->number > m->over)
        return fail_again(what, error);
    while (!status && request->number > m->over) {
        bool stepped = false;
        status = step(m, &stepped, error);
        if (!status && !stepped)
            status = mpi_wait_more(m, &m->flow.patience, what, error);
    }
    return status;
}

mgw_status mpi_begin(mpi *m, const char *what, mgw_error *error)
{
    const mgw_request last = {.number = m->posted};
    mgw_status status = m->failed ? fail_again(what, error) : mpi_await(m, &last, error);
    m->collective += !status;
    return status;
}

mgw_status mpi_post(void *state, const mgw_transport_call *call, mgw_request *out, mgw_error *error)
{
    mpi *m = state;
    mgw_status status = mpi_begin(m, mgw_collective_name(call->kind), error);
    if (status)
        return status;
    bool known = call->follows || m->size == 1;
    m->flow = (mpi_flow){.call = *call,
                         .check = known ? MPI_CHECK_DONE : MPI_CHECK_DUE,
                         .request = MPI_REQUEST_NULL};
    if (!lend(m, &m->flow))
        return mgw_fail_memory(error, "mpi");
    out->number = ++m->posted;
    return go_on(m, error);
}
