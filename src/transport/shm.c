/* Collectives through shared memory. Memory that we allocated is mapped by every rank: there each
 * rank adds up its block of all ranks' elements where they are and writes the result where it
 * belongs, and nothing is copied besides. Small messages go through slots, memory from elsewhere
 * through stages, a piece at a time. */
#include "transport/shm.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/status.h"
#include "transport/reduce.h"
#include "transport/transport.h"

enum { RANKS_MAX = 64 };

typedef enum shm_way { THROUGH_SLOTS, IN_SHARED_MEMORY, THROUGH_STAGES, IN_BUFFERS } shm_way;

static shm_call make_call(shm_kind kind, shm_way way, unsigned root, mgw_dtype dtype, mgw_op op,
                          size_t count)
{
    return (shm_call)kind | (shm_call)way << 4 | (shm_call)root << 8 | (shm_call)dtype << 16 |
           (shm_call)op << 20 | (shm_call)count << 24;
}

/* Of bytes, whatever they are. */
static shm_call make_plain_call(shm_kind kind, shm_way way, unsigned root, size_t bytes)
{
    return make_call(kind, way, root, MGW_F32, MGW_AVERAGE, bytes);
}

static mgw_status shm_open_transport(const mgw_transport_setup *setup, void **state,
                                     mgw_error *error)
{
    const mgw_transport_options *options = &setup->options;
    if (options->size > RANKS_MAX)
        return mgw_fail(error, MGW_ERR_ARGUMENT, "shm: at most %d workers, not %u", RANKS_MAX,
                        options->size);
    shm *s = malloc(sizeof *s);
    if (!s)
        return mgw_fail_memory(error, "shm");
    mgw_status status = shm_join(options, s, error);
    if (status) {
        shm_leave(s);
        free(s);
        return status;
    }
    *state = s;
    return MGW_OK;
}

static void shm_close_transport(void *state)
{
    shm_leave(state);
    free(state);
}

static mgw_status shm_allocate(void *state, size_t bytes, void **out, mgw_error *error)
{
    shm *s = state;
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t stride = (bytes / page + 1) * page;
    size_t mapped = stride * s->size;
    if (bytes > SIZE_MAX / 2 / s->size)
        return mgw_fail_memory(error, "shm");
    shm_region *region = calloc(1, sizeof *region);
    if (!region)
        return mgw_fail_memory(error, "shm");
    mgw_status status = MGW_OK;
    size_t offset = s->file_size;
    if (s->rank == 0 && ftruncate(s->fd, (off_t)(offset + mapped)))
        status = mgw_fail(error, MGW_ERR_NO_MEMORY, "shm: cannot allocate %zu bytes: %s", bytes,
                          strerror(errno));
    if (!status)
        status = shm_meet(s, make_plain_call(SHM_ALLOCATING, IN_SHARED_MEMORY, 0, bytes), error);
    void *base = MAP_FAILED;
    if (!status) {
        base = mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_SHARED, s->fd, (off_t)offset);
        if (base == MAP_FAILED)
            status = mgw_fail(error, MGW_ERR_NO_MEMORY, "shm: cannot map %zu bytes: %s", mapped,
                              strerror(errno));
    }
    if (status) {
        free(region);
        return status;
    }
    *region = (shm_region){s->regions, base, stride, mapped};
    s->regions = region;
    s->file_size = offset + mapped;
    *out = region->base + s->rank * stride;
    return MGW_OK;
}

/* Where rank 0 has what this one has at `data`, and how far it is from there to each next rank's.
 * False: it is not shared. */
static bool shm_find_all(void *state, const void *data, size_t bytes, char **first, size_t *stride)
{
    const shm *s = state;
    const char *at = data;
    for (shm_region *region = s->regions; region; region = region->next) {
        char *own = region->base + s->rank * region->stride;
        if (at < own || at + bytes > own + region->stride)
            continue;
        *first = region->base + (at - own);
        *stride = region->stride;
        return true;
    }
    return false;
}

/* The same place of every rank's. */
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

/* Of no bytes, from nowhere, too. */
static void copy(char *to, const char *from, size_t bytes)
{
    if (bytes && to && from)
        memcpy(to, from, bytes);
}

/* Adds up the elements first .. first+length-1 of all ranks and writes them to `targets` places. */
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

/* The ranks meet for this call, on its way. */
static shm_call as_call(const mgw_transport_call *call, shm_way way)
{
    static const shm_kind kinds[] = {[MGW_ALL_REDUCE] = SHM_ALL_REDUCE,
                                     [MGW_REDUCE_SCATTER] = SHM_REDUCE_SCATTER,
                                     [MGW_ALL_GATHER] = SHM_ALL_GATHER,
                                     [MGW_PUSH] = SHM_REDUCE,
                                     [MGW_PULL] = SHM_BROADCAST};
    return make_call(kinds[call->kind], way, call->root, call->dtype, call->op, call->count);
}

/* A rank's block of the call's elements, in bytes from its beginning. */
static size_t block_of(const shm *s, const mgw_transport_call *call, unsigned rank, size_t *bytes)
{
    size_t first = 0;
    size_t length = 0;
    mgw_transport_block(call->count, s->size, rank, &first, &length);
    *bytes = length * call->element;
    return first * call->element;
}

/* ---- Small messages ---- */

/*
 * Everybody puts its elements into a slot, and takes from all slots what it needs. One meeting is
 * enough, because the slots of the message before are another set: who writes into a set again
 * has met everybody who read it, at the message between.
 */
static char *next_slots(shm *s, char **of_rank)
{
    char *set = s->slots + (size_t)(s->smalls++ % 2) * s->size * SHM_SMALL;
    find_staged(s, set, SHM_SMALL, of_rank);
    return of_rank[s->rank];
}

static mgw_status run_small(shm *s, const mgw_transport_call *call, mgw_error *error)
{
    char *slot[RANKS_MAX] = {NULL};
    char *own = next_slots(s, slot);
    size_t bytes = 0;
    size_t at = block_of(s, call, s->rank, &bytes);
    bool gathers = call->kind == MGW_ALL_GATHER;
    bool all = call->kind == MGW_ALL_REDUCE;
    if (gathers)
        copy(own, call->data + at, bytes);
    else
        copy(own, call->data, call->count * call->element);
    mgw_status status = shm_meet(s, as_call(call, THROUGH_SLOTS), error);
    if (status)
        return status;
    if (!gathers)
        reduce_block(s, slot, &call->data, 1, all ? 0 : at / call->element,
                     all ? call->count : bytes / call->element, call->dtype, call->op);
    for (unsigned r = 0; gathers && r < s->size; r++)
        if (r != s->rank) {
            at = block_of(s, call, r, &bytes);
            copy(call->data + at, slot[r], bytes);
        }
    return MGW_OK;
}

/* ---- In shared memory: each rank makes its block, for itself or for all ---- */

static mgw_status reduce_shared(shm *s, const mgw_transport_call *call, char **of_rank, shm_way way,
                                mgw_error *error)
{
    bool all = call->kind == MGW_ALL_REDUCE;
    size_t first = 0;
    size_t length = 0;
    mgw_transport_block(call->count, s->size, s->rank, &first, &length);
    mgw_status status = shm_meet(s, as_call(call, way), error);
    if (status)
        return status;
    reduce_block(s, of_rank, all ? of_rank : &of_rank[s->rank], all ? s->size : 1, first, length,
                 call->dtype, call->op);
    return shm_meet(s, as_call(call, way), error);
}

/* Every rank writes its block where the others have it. */
static mgw_status gather_shared(shm *s, const mgw_transport_call *call, char **of_rank,
                                mgw_error *error)
{
    size_t bytes = 0;
    size_t at = block_of(s, call, s->rank, &bytes);
    mgw_status status = shm_meet(s, as_call(call, IN_SHARED_MEMORY), error);
    for (unsigned r = 0; !status && r < s->size; r++)
        if (r != s->rank)
            copy(of_rank[r] + at, call->data + at, bytes);
    return status ? status : shm_meet(s, as_call(call, IN_SHARED_MEMORY), error);
}

/* ---- Memory from elsewhere, through the stages ---- */

/* Pieces that fit the stages are copied in, reduced there, copied out. */
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

/* Bytes of the largest block that are left behind `begin`: as many turns as that takes have all. */
static size_t left_of_largest(const shm *s, const mgw_transport_call *call, size_t begin)
{
    size_t most = 0;
    for (unsigned r = 0; r < s->size; r++) {
        size_t bytes = 0;
        block_of(s, call, r, &bytes);
        most = bytes > most ? bytes : most;
    }
    return most > begin ? most - begin : 0;
}

/* The part of a block that is in the turn from `begin` on; null: nothing. */
static char *part_of(const shm *s, const mgw_transport_call *call, unsigned rank, size_t begin,
                     size_t most, size_t *bytes)
{
    size_t whole = 0;
    size_t at = block_of(s, call, rank, &whole);
    *bytes = whole <= begin ? 0 : whole - begin < most ? whole - begin : most;
    return call->data + at + (*bytes ? begin : 0);
}

/* A turn: everybody brings a part of every other's block, and adds up the parts of its own. */
static mgw_status scatter_staged(shm *s, const mgw_transport_call *call, mgw_error *error)
{
    size_t share = SHM_STAGE / s->size / SHM_LINE * SHM_LINE;
    char *stage[RANKS_MAX] = {NULL};
    mgw_status status = MGW_OK;
    find_staged(s, s->stages, SHM_STAGE, stage);
    for (size_t begin = 0; !status && left_of_largest(s, call, begin); begin += share) {
        const void *from[RANKS_MAX];
        size_t bytes = 0;
        for (unsigned r = 0; r < s->size; r++) {
            char *part = part_of(s, call, r, begin, share, &bytes);
            if (r != s->rank)
                copy(stage[s->rank] + r * share, part, bytes);
        }
        void *own = part_of(s, call, s->rank, begin, share, &bytes);
        for (unsigned r = 0; r < s->size; r++)
            from[r] = r == s->rank ? own : stage[r] + s->rank * share;
        status = shm_meet(s, as_call(call, THROUGH_STAGES), error);
        if (!status)
            mgw_reduce(from, s->size, &own, 1, bytes / call->element, call->dtype, call->op);
        if (!status)
            status = shm_meet(s, as_call(call, THROUGH_STAGES), error);
    }
    return status;
}

/* A turn: everybody brings a part of its block, and takes the parts of all others'. */
static mgw_status gather_staged(shm *s, const mgw_transport_call *call, mgw_error *error)
{
    char *stage[RANKS_MAX] = {NULL};
    mgw_status status = MGW_OK;
    find_staged(s, s->stages, SHM_STAGE, stage);
    for (size_t begin = 0; !status && left_of_largest(s, call, begin); begin += SHM_STAGE) {
        size_t bytes = 0;
        char *part = part_of(s, call, s->rank, begin, SHM_STAGE, &bytes);
        copy(stage[s->rank], part, bytes);
        status = shm_meet(s, as_call(call, THROUGH_STAGES), error);
        for (unsigned r = 0; !status && r < s->size; r++)
            if (r != s->rank) {
                part = part_of(s, call, r, begin, SHM_STAGE, &bytes);
                copy(part, stage[r], bytes);
            }
        if (!status)
            status = shm_meet(s, as_call(call, THROUGH_STAGES), error);
    }
    return status;
}

/* ---- To and from one rank, in shared memory or a piece at a time in the stages ---- */

static mgw_status shm_reduce(shm *s, const mgw_transport_call *call, char **of_rank, bool shared,
                             mgw_error *error)
{
    size_t piece = shared ? call->count : SHM_STAGE / call->element;
    shm_call meeting = as_call(call, shared ? IN_SHARED_MEMORY : THROUGH_STAGES);
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
    shm_call meeting = as_call(call, shared ? IN_SHARED_MEMORY : THROUGH_STAGES);
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

/* All of the work is done here. */
static mgw_status shm_post(void *state, const mgw_transport_call *call, mgw_request *out,
                           mgw_error *error)
{
    shm *s = state;
    (void)out;
    size_t bytes = call->count * call->element;
    bool rooted = call->kind == MGW_PUSH || call->kind == MGW_PULL;
    if (!rooted && bytes <= SHM_SMALL)
        return run_small(s, call, error);
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

static mgw_status shm_barrier(void *state, mgw_error *error)
{
    return shm_meet(state, make_plain_call(SHM_BARRIER, THROUGH_SLOTS, 0, 0), error);
}

static mgw_status shm_meet_all(void *state, size_t count, mgw_dtype dtype, mgw_op op,
                               unsigned buffer, mgw_error *error)
{
    return shm_meet(state, make_call(SHM_ALL_REDUCE, IN_BUFFERS, buffer, dtype, op, count), error);
}

static mgw_status shm_check_transport(void *state, mgw_error *error)
{
    return shm_check(state, error);
}

const mgw_transport_table mgw_transport_shm = {
    .capabilities = MGW_MOVES_HALVES | MGW_NAMES_LATE | MGW_WAITS_ASLEEP | MGW_SHARES_MEMORY,
    .open = shm_open_transport,
    .close = shm_close_transport,
    .check = shm_check_transport,
    .allocate = shm_allocate,
    .find_all = shm_find_all,
    .meet = shm_meet_all,
    .post = shm_post,
    .barrier = shm_barrier,
};
