/*
 * Reductions of 16-bit and 8-bit numbers over NCCL that are rounded once: NCCL would round on every
 * hop. Every worker receives the elements it reduces, a kernel adds them up in f32, and the results
 * are gathered.
 */
#include <stdlib.h>

#include "base/status.h"
#include "transport/nccl.h"

enum {
    UNIT = 32,                /* elements; blocks start at multiples, as in base/block.h */
    MOST_RECEIVED = 64 << 20, /* bytes per round, of all lanes */
    MOST_CALLS = 1024,        /* NCCL calls in a group, as in nccl_begin.c */
    CHEAP = 128 << 10,        /* bytes that cost less than another message */
};

/*
 * A reduction in progress: of [0, shared) every rank reduces its blocks; of [shared, end),
 * everything.
 */
typedef struct once {
    const nccl_lane *lane;
    const mgw_transport_call *call;
    unsigned size;
    unsigned rank;
    size_t room; /* elements received from a rank in a round */
    size_t shared;
    size_t end;
} once;

static size_t round_up(size_t count, size_t unit)
{
    return (count + unit - 1) / unit * unit;
}

/* Bytes that a lane receives in a round. The same on all ranks. */
static size_t most_received(const nccl *n)
{
    return MOST_RECEIVED / n->lane_count;
}

bool nccl_is_once(const nccl *n, const mgw_transport_call *call)
{
    bool sums =
        call->kind == MGW_ALL_REDUCE || call->kind == MGW_REDUCE_SCATTER || call->kind == MGW_PUSH;
    bool narrow = call->element == 1 || (call->element == 2 && call->rounds_once);
    return narrow && sums && call->op != MGW_MAX && mgw_transport_size(n->control) > 1;
}

/* ---- Ownership of elements ---- */

/*
 * For an all-reduce: blocks of equal length, which one call can gather; the rest is sent to all
 * ranks. So is everything if that costs no more, which is always so with two workers.
 */
static once plan_once(const nccl *n, const nccl_lane *lane, const mgw_transport_call *call)
{
    once o = {.lane = lane,
              .call = call,
              .size = mgw_transport_size(n->control),
              .rank = mgw_transport_rank(n->control),
              .shared = call->count,
              .end = call->count};
    size_t segments = call->segments ? call->segment_count : 1;
    size_t largest = call->count;
    if (call->kind == MGW_ALL_REDUCE) {
        bool cheap = call->count * call->element * (o.size - 2) <= CHEAP;
        o.shared = cheap ? 0 : call->count / (UNIT * o.size) * (UNIT * o.size);
        largest = o.shared / o.size + call->count - o.shared;
    } else if (call->kind == MGW_REDUCE_SCATTER)
        largest = mgw_blocks_largest(call, o.size);
    size_t most = most_received(n) / call->element / o.size / UNIT * UNIT;
    size_t need = round_up(largest, UNIT) + segments * UNIT;
    o.room = need < most ? need : most;
    return o;
}

/* The same on all ranks. A push belongs to its root only. */
static void begin_owners(const once *o, mgw_transport_call *blocks)
{
    *blocks = *o->call;
    blocks->count = o->shared;
    for (unsigned r = 0; r < o->size; r++) {
        o->lane->owners[r] = mgw_blocks_of(blocks, o->size, r);
        if (o->call->kind == MGW_PUSH)
            o->lane->owners[r] =
                (mgw_blocks){.call = blocks, .size = 1, .next = r == o->call->root ? 0 : SIZE_MAX};
    }
}

mgw_status nccl_prepare_once(nccl *n, nccl_lane *lane, const mgw_transport_call *call,
                             mgw_error *error)
{
    const once o = plan_once(n, lane, call);
    int code = n->kernels.cuda ? 0 : cuda_kernels_open(n->device.cuda, &n->kernels);
    if (code)
        return nccl_fail_cuda(n, code, "cannot load kernels for narrow numbers", error);
    if (!lane->owners && !(lane->owners = calloc(o.size, sizeof *lane->owners)))
        return mgw_fail_memory(error, "nccl");
    size_t need = o.size * o.room * call->element;
    if (need <= lane->received_bytes)
        return MGW_OK;
    size_t bytes = (size_t)1 << 20;
    while (bytes < need)
        bytes *= 2;
    bytes = bytes < most_received(n) ? bytes : most_received(n);
    void *memory = NULL;
    mgw_status status = nccl_drain(n, error); /* CUDA may wait for it, without a bound */
    if (!status)
        status = on_device_allocate(&n->device, bytes, &memory, error);
    if (!status) {
        lane->received = memory; /* the previous memory is freed on close */
        lane->received_bytes = bytes;
    }
    return status;
}

/* ---- One round: a group of messages, and what was received is added up ---- */

static char *slot_of(const once *o, unsigned rank, size_t at)
{
    return o->lane->received + (rank * o->room + at) * o->call->element;
}

/* Sends elements to a rank, or receives them from it into its slot. */
static int exchange(nccl *n, const once *o, unsigned rank, size_t first, size_t length, size_t at,
                    bool sends, bool receives)
{
    int type = nccl_type(o->call->dtype);
    int code = NCCL_SUCCESS;
    if (sends)
        code = n->library->send(o->call->data + first * o->call->element, length, type, (int)rank,
                                o->lane->comm, o->lane->stream);
    if (receives && (code == NCCL_SUCCESS || code == NCCL_IN_PROGRESS))
        code = n->library->receive(slot_of(o, rank, at), length, type, (int)rank, o->lane->comm,
                                   o->lane->stream);
    return code == NCCL_IN_PROGRESS ? NCCL_SUCCESS : code;
}

static int add_up(const nccl *n, const once *o, size_t first, size_t length, const char *others,
                  size_t stride)
{
    const cuda_sum sum = {.own = o->call->data + first * o->call->element,
                          .others = others,
                          .stride = stride * o->call->element,
                          .count = length,
                          .size = o->size,
                          .rank = o->rank,
                          .average = o->call->op == MGW_AVERAGE};
    return cuda_add_up(&n->kernels, &sum, o->call->dtype, o->lane->stream);
}

/* The next range of a rank's elements that fits into this round, and its place there. */
typedef struct stretch {
    unsigned number; /* in the round */
    size_t first;
    size_t length;
    size_t at;
    size_t used; /* end of the range */
} stretch;

static bool next_stretch(const once *o, mgw_blocks *blocks, stretch *s)
{
    s->at = s->used;
    if (s->number >= MOST_CALLS / o->size + 1 ||
        !mgw_blocks_take(blocks, o->room - s->at, &s->first, &s->length))
        return false;
    s->number++;
    s->used = round_up(s->at + s->length, UNIT);
    return true;
}

/* Messages for one rank's elements: the rank receives from all, and all send to it. */
static int begin_owner(nccl *n, const once *o, unsigned owner, size_t *used)
{
    stretch s = {0};
    int code = NCCL_SUCCESS;
    while (!code && next_stretch(o, &o->lane->owners[owner], &s))
        for (unsigned r = 0; !code && r < o->size; r++)
            if (r != owner && (owner == o->rank || r == o->rank))
                code = exchange(n, o, owner == o->rank ? r : owner, s.first, s.length, s.at,
                                owner != o->rank, owner == o->rank);
    *used = s.used > *used ? s.used : *used;
    return code;
}

static mgw_status run_round(nccl *n, once *o, mgw_error *error)
{
    mgw_blocks own = o->lane->owners[o->rank];
    size_t used = 0;
    int code = n->library->group_start();
    for (unsigned r = 0; !code && r < o->size; r++)
        code = begin_owner(n, o, r, &used);
    size_t rest = o->end - o->shared;
    size_t length = rest < o->room - used ? rest : o->room - used;
    for (unsigned r = 0; !code && length && r < o->size; r++)
        if (r != o->rank)
            code = exchange(n, o, r, o->shared, length, used, true, true);
    int ended = n->library->group_end();
    mgw_status status = nccl_finish_call(n, o->lane, code ? code : ended,
                                         mgw_collective_name(o->call->kind), error);
    if (status)
        return status;
    for (stretch s = {0}; !code && next_stretch(o, &own, &s);)
        code = add_up(n, o, s.first, s.length, slot_of(o, 0, s.at), o->room);
    if (!code && length)
        code = add_up(n, o, o->shared, length, slot_of(o, 0, used), o->room);
    o->shared += length;
    return code ? nccl_fail_cuda(n, code, "cannot add up", error) : MGW_OK;
}

/* A round in which all ranks receive everything: an NCCL collective is faster than messages. */
static mgw_status gather_round(nccl *n, once *o, mgw_error *error)
{
    size_t rest = o->end - o->shared;
    size_t length = rest < o->room ? rest : o->room;
    int code =
        n->library->all_gather(o->call->data + o->shared * o->call->element, o->lane->received,
                               length, nccl_type(o->call->dtype), o->lane->comm, o->lane->stream);
    mgw_status status =
        nccl_finish_call(n, o->lane, code, mgw_collective_name(o->call->kind), error);
    if (status)
        return status;
    code = add_up(n, o, o->shared, length, o->lane->received, length);
    o->shared += length;
    return code ? nccl_fail_cuda(n, code, "cannot add up", error) : MGW_OK;
}

/* ---- The call ---- */

static bool is_left(const once *o)
{
    bool left = o->shared < o->end;
    for (unsigned r = 0; !left && r < o->size; r++)
        left = mgw_blocks_more(&o->lane->owners[r]);
    return left;
}

mgw_status nccl_sum_once(nccl *n, const nccl_lane *lane, const mgw_transport_call *call,
                         mgw_error *error)
{
    once o = plan_once(n, lane, call);
    mgw_transport_call blocks;
    begin_owners(&o, &blocks);
    size_t block = call->kind == MGW_ALL_REDUCE ? o.shared / o.size : 0;
    bool gathers = o.shared == 0;
    mgw_status status = MGW_OK;
    while (!status && is_left(&o))
        status = gathers ? gather_round(n, &o, error) : run_round(n, &o, error);
    if (status || !block)
        return status;
    int code = n->library->all_gather(call->data + o.rank * block * call->element, call->data,
                                      block, nccl_type(call->dtype), lane->comm, lane->stream);
    return nccl_finish_call(n, lane, code, mgw_collective_name(call->kind), error);
}
