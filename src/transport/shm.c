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

/*
 * Small messages: everybody puts its elements into a slot, and adds up all slots. One meeting is
 * enough, because the slots of the message before are another set: who writes into a set again
 * has met everybody who read it, at the message between.
 */
static mgw_status reduce_small(shm *s, void *data, size_t count, mgw_dtype dtype, mgw_op op,
                               mgw_error *error)
{
    size_t bytes = count * mgw_dtype_bytes(dtype);
    char *set = s->slots + (size_t)(s->smalls++ % 2) * s->size * SHM_SMALL;
    char *slot[RANKS_MAX];
    char *target = data;
    find_staged(s, set, SHM_SMALL, slot);
    if (bytes)
        memcpy(slot[s->rank], data, bytes);
    mgw_status status =
        shm_meet(s, make_call(SHM_ALL_REDUCE, THROUGH_SLOTS, 0, dtype, op, count), error);
    if (!status)
        reduce_block(s, slot, &target, 1, 0, count, dtype, op);
    return status;
}

/* Shared memory: each rank makes its block, for itself or for all. */
static mgw_status reduce_shared(shm *s, char **of_rank, size_t count, mgw_dtype dtype, mgw_op op,
                                shm_way way, bool to_all, mgw_error *error)
{
    shm_kind kind = to_all ? SHM_ALL_REDUCE : SHM_REDUCE_SCATTER;
    shm_call call = make_call(kind, way, 0, dtype, op, count);
    size_t first = 0;
    size_t length = 0;
    mgw_transport_block(count, s->size, s->rank, &first, &length);
    mgw_status status = shm_meet(s, call, error);
    if (status)
        return status;
    reduce_block(s, of_rank, to_all ? of_rank : &of_rank[s->rank], to_all ? s->size : 1, first,
                 length, dtype, op);
    return shm_meet(s, call, error);
}

/* Memory from elsewhere: pieces that fit the stages are copied in, reduced there, copied out. */
static mgw_status reduce_staged(shm *s, char *data, size_t count, mgw_dtype dtype, mgw_op op,
                                mgw_error *error)
{
    size_t element = mgw_dtype_bytes(dtype);
    size_t piece = SHM_STAGE / element;
    char *stage[RANKS_MAX];
    find_staged(s, s->stages, SHM_STAGE, stage);
    mgw_status status = MGW_OK;
    for (size_t begin = 0; !status && begin < count; begin += piece) {
        size_t length = count - begin < piece ? count - begin : piece;
        memcpy(stage[s->rank], data + begin * element, length * element);
        status = reduce_shared(s, stage, length, dtype, op, THROUGH_STAGES, true, error);
        if (!status)
            memcpy(data + begin * element, stage[s->rank], length * element);
    }
    return status;
}

static mgw_status shm_all_reduce(void *state, void *data, size_t count, mgw_dtype dtype, mgw_op op,
                                 mgw_error *error)
{
    shm *s = state;
    size_t bytes = count * mgw_dtype_bytes(dtype);
    char *of_rank[RANKS_MAX] = {NULL};
    if (bytes <= SHM_SMALL)
        return reduce_small(s, data, count, dtype, op, error);
    if (find_shared(s, data, bytes, of_rank))
        return reduce_shared(s, of_rank, count, dtype, op, IN_SHARED_MEMORY, true, error);
    return reduce_staged(s, data, count, dtype, op, error);
}

static mgw_status shm_reduce_scatter(void *state, void *data, size_t count, mgw_dtype dtype,
                                     mgw_op op, mgw_error *error)
{
    shm *s = state;
    char *of_rank[RANKS_MAX] = {NULL};
    if (find_shared(s, data, count * mgw_dtype_bytes(dtype), of_rank))
        return reduce_shared(s, of_rank, count, dtype, op, IN_SHARED_MEMORY, false, error);
    return shm_all_reduce(s, data, count, dtype, op, error);
}

/* Root adds up what all ranks have, in shared memory or a piece at a time in the stages. */
static mgw_status shm_reduce(void *state, void *data, size_t count, mgw_dtype dtype, mgw_op op,
                             unsigned root, mgw_error *error)
{
    shm *s = state;
    size_t element = mgw_dtype_bytes(dtype);
    char *of_rank[RANKS_MAX] = {NULL};
    char *target = data;
    bool shared = find_shared(s, data, count * element, of_rank);
    size_t piece = shared ? count + 1 : SHM_STAGE / element;
    shm_call call =
        make_call(SHM_REDUCE, shared ? IN_SHARED_MEMORY : THROUGH_STAGES, root, dtype, op, count);
    mgw_status status = MGW_OK;
    if (!shared)
        find_staged(s, s->stages, SHM_STAGE, of_rank);
    for (size_t begin = 0; !status && begin < count; begin += piece) {
        size_t length = count - begin < piece ? count - begin : piece;
        if (!shared)
            memcpy(of_rank[s->rank], target + begin * element, length * element);
        status = shm_meet(s, call, error);
        if (!status && s->rank == root) {
            char *to = target + begin * element;
            reduce_block(s, of_rank, &to, 1, 0, length, dtype, op);
        }
        if (!status)
            status = shm_meet(s, call, error);
    }
    return status;
}

/* Every rank writes its block where the others have it. */
static mgw_status gather_shared(shm *s, char **of_rank, size_t count, size_t element,
                                mgw_error *error)
{
    size_t first = 0;
    size_t length = 0;
    shm_call call = make_plain_call(SHM_ALL_GATHER, IN_SHARED_MEMORY, 0, count * element);
    mgw_transport_block(count, s->size, s->rank, &first, &length);
    mgw_status status = shm_meet(s, call, error);
    for (unsigned r = 0; !status && r < s->size; r++)
        if (r != s->rank && length && of_rank[r])
            memcpy(of_rank[r] + first * element, of_rank[s->rank] + first * element,
                   length * element);
    return status ? status : shm_meet(s, call, error);
}

/* Root's bytes, a piece at a time through its stage. */
static mgw_status shm_broadcast(void *state, void *data, size_t bytes, unsigned root,
                                mgw_error *error)
{
    shm *s = state;
    char *stage = s->stages + (size_t)root * SHM_STAGE;
    char *of_rank[RANKS_MAX] = {NULL};
    bool shared = find_shared(s, data, bytes, of_rank);
    shm_call call =
        make_plain_call(SHM_BROADCAST, shared ? IN_SHARED_MEMORY : THROUGH_STAGES, root, bytes);
    mgw_status status = MGW_OK;
    if (shared) { /* straight from where root has it */
        status = shm_meet(s, call, error);
        if (!status && s->rank != root && bytes)
            memcpy(data, of_rank[root], bytes);
        return status ? status : shm_meet(s, call, error);
    }
    for (size_t begin = 0; !status && begin < bytes; begin += SHM_STAGE) {
        size_t length = bytes - begin < SHM_STAGE ? bytes - begin : SHM_STAGE;
        if (s->rank == root)
            memcpy(stage, (char *)data + begin, length);
        status = shm_meet(s, call, error);
        if (!status && s->rank != root)
            memcpy((char *)data + begin, stage, length);
        if (!status)
            status = shm_meet(s, call, error);
    }
    return status;
}

static mgw_status shm_all_gather(void *state, void *data, size_t count, mgw_dtype dtype,
                                 mgw_error *error)
{
    shm *s = state;
    size_t element = mgw_dtype_bytes(dtype);
    char *of_rank[RANKS_MAX] = {NULL};
    if (find_shared(s, data, count * element, of_rank))
        return gather_shared(s, of_rank, count, element, error);
    mgw_status status = MGW_OK;
    for (unsigned r = 0; !status && r < s->size; r++) {
        size_t first = 0;
        size_t length = 0;
        mgw_transport_block(count, s->size, r, &first, &length);
        status = shm_broadcast(s, (char *)data + first * element, length * element, r, error);
    }
    return status;
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
    .waits_asleep = true,
    .open = shm_open_transport,
    .close = shm_close_transport,
    .check = shm_check_transport,
    .allocate = shm_allocate,
    .find_all = shm_find_all,
    .meet = shm_meet_all,
    .all_reduce = shm_all_reduce,
    .reduce_scatter = shm_reduce_scatter,
    .all_gather = shm_all_gather,
    .reduce = shm_reduce,
    .broadcast = shm_broadcast,
    .barrier = shm_barrier,
};
