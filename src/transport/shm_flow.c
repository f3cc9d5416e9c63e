/* Collectives through shared memory. Every rank maps the memory that we allocated: each rank
 * reduces its blocks of all ranks' elements in place and writes the result to its destination,
 * without other copies. Small messages go through slots, other memory through stages, piece by
 * piece. */
#include <string.h>

#include "transport/blocks.h"
#include "transport/reduce.h"
#include "transport/shm.h"

enum { RANKS_MAX = SHM_RANKS_MAX };

/* The corresponding address of every rank. */
static void find_staged(const shm *s, char *base, size_t stride, char **of_rank)
{
    for (unsigned r = 0; r < s->size; r++)
        of_rank[r] = base + r * stride;
}

static bool find_shared(shm *s, const void *data, size_t bytes, char **of_rank)
{
    char *first = NULL;
    size_t stride = 0;
    bool shared = shm_find_all(s, data, bytes, &first, &stride);
    if (shared)
        find_staged(s, first, stride, of_rank);
    return shared;
}

/* Accepts null pointers if there are no bytes. */
static void copy(char *to, const char *from, size_t bytes)
{
    if (bytes && to && from)
        memcpy(to, from, bytes);
}

/* Reduces the elements first .. first+length-1 of all ranks and writes them to `targets` places. */
static void reduce_block(const shm *s, char *const *source, char *const *target, unsigned targets,
                         size_t first, size_t length, mgw_dtype dtype, mgw_op op)
{
    const void *from[RANKS_MAX];
    void *to[RANKS_MAX];
    size_t offset = first * mgw_dtype_bytes(dtype);
    for (unsigned r = 0; r < s->size; r++)
        from[r] = source[r] + offset;
    for (unsigned t = 0; t < targets; t++)
        to[t] = target[t] + offset;
    mgw_reduce(from, s->size, to, targets, length, dtype, op);
}

/* ---- Blocks ---- */

/* Reduces all ranks' elements of our blocks and writes them to `targets` places. */
static void reduce_blocks(const shm *s, const mgw_transport_call *call, char *const *source,
                          char *const *target, unsigned targets)
{
    size_t first = 0;
    size_t length = 0;
    for (mgw_blocks own = mgw_blocks_of(call, s->size, s->rank);
         mgw_blocks_take(&own, SIZE_MAX, &first, &length);)
        reduce_block(s, source, target, targets, first, length, call->dtype, call->op);
}

/* Copies at most `most` elements of a rank's blocks to contiguous memory. */
static void pack(const mgw_transport_call *call, mgw_blocks *blocks, size_t most, char *to)
{
    size_t first = 0;
    size_t length = 0;
    for (; mgw_blocks_take(blocks, most, &first, &length); most -= length) {
        copy(to, call->data + first * call->element, length * call->element);
        to += length * call->element;
    }
}

/* The reverse. */
static void unpack(const mgw_transport_call *call, mgw_blocks *blocks, size_t most,
                   const char *from)
{
    size_t first = 0;
    size_t length = 0;
    for (; mgw_blocks_take(blocks, most, &first, &length); most -= length) {
        copy(call->data + first * call->element, from, length * call->element);
        from += length * call->element;
    }
}

static void find_blocks(const shm *s, const mgw_transport_call *call, mgw_blocks *of_rank)
{
    for (unsigned r = 0; r < s->size; r++)
        of_rank[r] = mgw_blocks_of(call, s->size, r);
}

/* ---- Small messages ---- */

/*
 * Every rank writes its elements to a slot, and reads what it needs from all slots. One meeting is
 * enough, because consecutive messages use different sets of slots: a rank that writes to a set
 * again has met every rank that read it, at the message in between.
 */
static char *next_slots(shm *s, char **of_rank)
{
    char *set = s->slots + (size_t)(s->smalls++ % 2) * s->size * SHM_SMALL;
    find_staged(s, set, SHM_SMALL, of_rank);
    return of_rank[s->rank];
}

static mgw_status gather_small(shm *s, const mgw_transport_call *call, mgw_error *error)
{
    char *slot[RANKS_MAX] = {NULL};
    char *own = next_slots(s, slot);
    mgw_blocks blocks = mgw_blocks_of(call, s->size, s->rank);
    pack(call, &blocks, SIZE_MAX, own);
    mgw_status status = shm_meet(s, mgw_word_of(call, THROUGH_SLOTS), error);
    for (unsigned r = 0; !status && r < s->size; r++) {
        blocks = mgw_blocks_of(call, s->size, r);
        if (r != s->rank)
            unpack(call, &blocks, SIZE_MAX, slot[r]);
    }
    return status;
}

static mgw_status reduce_small(shm *s, const mgw_transport_call *call, mgw_error *error)
{
    char *slot[RANKS_MAX] = {NULL};
    char *own = next_slots(s, slot);
    copy(own, call->data, call->count * call->element);
    mgw_status status = shm_meet(s, mgw_word_of(call, THROUGH_SLOTS), error);
    if (!status && call->kind == MGW_ALL_REDUCE)
        reduce_block(s, slot, &call->data, 1, 0, call->count, call->dtype, call->op);
    else if (!status)
        reduce_blocks(s, call, slot, &call->data, 1);
    return status;
}

/* ---- In shared memory: each rank makes its blocks, for itself or for all ---- */

static mgw_status reduce_shared(shm *s, const mgw_transport_call *call, char **of_rank, mgw_way way,
                                mgw_error *error)
{
    bool all = call->kind == MGW_ALL_REDUCE;
    mgw_status status = shm_meet(s, mgw_word_of(call, way), error);
    if (status)
        return status;
    reduce_blocks(s, call, of_rank, all ? of_rank : &of_rank[s->rank], all ? s->size : 1);
    return shm_meet(s, mgw_word_of(call, way), error);
}

/* Every rank writes its blocks to all other ranks' memory. */
static mgw_status gather_shared(shm *s, const mgw_transport_call *call, char **of_rank,
                                mgw_error *error)
{
    size_t first = 0;
    size_t length = 0;
    mgw_blocks own = mgw_blocks_of(call, s->size, s->rank);
    mgw_status status = shm_meet(s, mgw_word_of(call, IN_SHARED_MEMORY), error);
    while (!status && mgw_blocks_take(&own, SIZE_MAX, &first, &length))
        for (unsigned r = 0; r < s->size; r++)
            if (r != s->rank)
                copy(of_rank[r] + first * call->element, call->data + first * call->element,
                     length * call->element);
    return status ? status : shm_meet(s, mgw_word_of(call, IN_SHARED_MEMORY), error);
}

/* ---- Memory from elsewhere, through the stages ---- */

/* Pieces that fit the stages are copied in, reduced there, and copied out. */
static mgw_status reduce_staged(shm *s, const mgw_transport_call *call, mgw_error *error)
{
    size_t piece = SHM_STAGE / call->element;
    char *stage[RANKS_MAX] = {NULL};
    find_staged(s, s->stages, SHM_STAGE, stage);
    mgw_status status = MGW_OK;
    for (size_t begin = 0; !status && begin < call->count; begin += piece) {
        mgw_transport_call part = *call;
        part.data += begin * call->element;
        part.count = call->count - begin < piece ? call->count - begin : piece;
        copy(stage[s->rank], part.data, part.count * part.element);
        status = reduce_shared(s, &part, stage, THROUGH_STAGES, error);
        if (!status)
            copy(part.data, stage[s->rank], part.count * part.element);
    }
    return status;
}

/* Reduces the next elements of our blocks: those of the others are contiguous in their stages. */
static void reduce_brought(const shm *s, const mgw_transport_call *call, mgw_blocks *own,
                           size_t most, char *const *brought)
{
    const void *from[RANKS_MAX];
    size_t first = 0;
    size_t length = 0;
    for (size_t at = 0; mgw_blocks_take(own, most - at, &first, &length); at += length) {
        void *here = call->data + first * call->element;
        for (unsigned r = 0; r < s->size; r++)
            from[r] = r == s->rank ? here : brought[r] + at * call->element;
        mgw_reduce(from, s->size, &here, 1, length, call->dtype, call->op);
    }
}

/* In each round every rank provides a share of every other rank's blocks, and reduces its own. */
static mgw_status scatter_staged(shm *s, const mgw_transport_call *call, mgw_error *error)
{
    size_t stride = SHM_STAGE / s->size / SHM_LINE * SHM_LINE;
    size_t share = stride / call->element;
    size_t largest = mgw_blocks_largest(call, s->size);
    char *stage[RANKS_MAX] = {NULL};
    char *for_us[RANKS_MAX] = {NULL};
    mgw_blocks blocks[RANKS_MAX];
    mgw_status status = MGW_OK;
    find_staged(s, s->stages, SHM_STAGE, stage);
    find_staged(s, s->stages + s->rank * stride, SHM_STAGE, for_us);
    find_blocks(s, call, blocks);
    for (size_t begin = 0; !status && begin < largest; begin += share) {
        for (unsigned r = 0; r < s->size; r++)
            if (r != s->rank)
                pack(call, &blocks[r], share, stage[s->rank] + r * stride);
        status = shm_meet(s, mgw_word_of(call, THROUGH_STAGES), error);
        if (!status)
            reduce_brought(s, call, &blocks[s->rank], share, for_us);
        if (!status)
            status = shm_meet(s, mgw_word_of(call, THROUGH_STAGES), error);
    }
    return status;
}

/* In each round every rank provides a part of its blocks, and copies the parts of all others. */
static mgw_status gather_staged(shm *s, const mgw_transport_call *call, mgw_error *error)
{
    size_t share = SHM_STAGE / call->element;
    size_t largest = mgw_blocks_largest(call, s->size);
    char *stage[RANKS_MAX] = {NULL};
    mgw_blocks blocks[RANKS_MAX];
    mgw_status status = MGW_OK;
    find_staged(s, s->stages, SHM_STAGE, stage);
    find_blocks(s, call, blocks);
    for (size_t begin = 0; !status && begin < largest; begin += share) {
        pack(call, &blocks[s->rank], share, stage[s->rank]);
        status = shm_meet(s, mgw_word_of(call, THROUGH_STAGES), error);
        for (unsigned r = 0; !status && r < s->size; r++)
            if (r != s->rank)
                unpack(call, &blocks[r], share, stage[r]);
        if (!status)
            status = shm_meet(s, mgw_word_of(call, THROUGH_STAGES), error);
    }
    return status;
}

/* ---- To and from one rank, in shared memory or a piece at a time in the stages ---- */

static mgw_status shm_reduce(shm *s, const mgw_transport_call *call, char **of_rank, bool shared,
                             mgw_error *error)
{
    size_t piece = shared ? call->count : SHM_STAGE / call->element;
    mgw_word meeting = mgw_word_of(call, shared ? IN_SHARED_MEMORY : THROUGH_STAGES);
    mgw_status status = MGW_OK;
    if (!shared)
        find_staged(s, s->stages, SHM_STAGE, of_rank);
    for (size_t begin = 0; !status && begin < call->count; begin += piece) {
        size_t length = call->count - begin < piece ? call->count - begin : piece;
        char *here = call->data + begin * call->element;
        if (!shared)
            copy(of_rank[s->rank], here, length * call->element);
        status = shm_meet(s, meeting, error);
        if (!status && s->rank == call->root)
            reduce_block(s, of_rank, &here, 1, 0, length, call->dtype, call->op);
        if (!status)
            status = shm_meet(s, meeting, error);
    }
    return status;
}

static mgw_status shm_broadcast(shm *s, const mgw_transport_call *call, char **of_rank, bool shared,
                                mgw_error *error)
{
    char *from = shared ? of_rank[call->root] : s->stages + (size_t)call->root * SHM_STAGE;
    size_t piece = shared ? call->count : SHM_STAGE;
    mgw_word meeting = mgw_word_of(call, shared ? IN_SHARED_MEMORY : THROUGH_STAGES);
    mgw_status status = MGW_OK;
    for (size_t begin = 0; !status && begin < call->count; begin += piece) {
        size_t length = call->count - begin < piece ? call->count - begin : piece;
        if (s->rank == call->root && !shared)
            copy(from, call->data + begin, length);
        status = shm_meet(s, meeting, error);
        if (!status && s->rank != call->root)
            copy(call->data + begin, from, length);
        if (!status)
            status = shm_meet(s, meeting, error);
    }
    return status;
}

mgw_status shm_post(void *state, const mgw_transport_call *call, mgw_request *out, mgw_error *error)
{
    shm *s = state;
    (void)out;
    size_t bytes = call->count * call->element;
    bool rooted = call->kind == MGW_PUSH || call->kind == MGW_PULL;
    if (!rooted && bytes <= SHM_SMALL)
        return call->kind == MGW_ALL_GATHER ? gather_small(s, call, error)
                                            : reduce_small(s, call, error);
    char *of_rank[RANKS_MAX] = {NULL};
    bool shared = find_shared(s, call->data, bytes, of_rank);
    switch (call->kind) {
    case MGW_PUSH:
        return shm_reduce(s, call, of_rank, shared, error);
    case MGW_PULL:
        return shm_broadcast(s, call, of_rank, shared, error);
    case MGW_ALL_GATHER:
        return shared ? gather_shared(s, call, of_rank, error) : gather_staged(s, call, error);
    case MGW_REDUCE_SCATTER:
        if (!shared)
            return scatter_staged(s, call, error);
        break;
    case MGW_ALL_REDUCE:
        if (!shared)
            return reduce_staged(s, call, error);
    }
    return reduce_shared(s, call, of_rank, IN_SHARED_MEMORY, error);
}

mgw_status shm_meet_in_buffer(void *state, const mgw_transport_call *call, unsigned buffer,
                              mgw_error *error)
{
    return shm_meet(state, mgw_word_in_buffer(call, buffer), error);
}
