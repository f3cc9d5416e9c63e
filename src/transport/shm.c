/* The transport over shared memory: joining, and memory that all ranks map. */
#include "transport/shm.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/status.h"
#include "transport/transport.h"

static mgw_status shm_open_transport(const mgw_transport_setup *setup, void **state,
                                     mgw_error *error)
{
    const mgw_transport_options *options = &setup->options;
    if (options->size > SHM_RANKS_MAX)
        return mgw_fail(error, MGW_ERR_ARGUMENT, "shm: at most %d workers, not %u", SHM_RANKS_MAX,
                        options->size);
    shm *s = malloc(sizeof *s);
    if (!s)
        return mgw_fail_memory(error, "shm");
    mgw_status status = shm_join(setup, s, error);
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
        status = shm_meet(s, mgw_word_make(MGW_WORD_ALLOCATING, IN_SHARED_MEMORY, bytes), error);
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

bool shm_find_all(void *state, const void *data, size_t bytes, char **first, size_t *stride)
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

static mgw_status shm_barrier(void *state, mgw_error *error)
{
    return shm_meet(state, mgw_word_make(MGW_WORD_BARRIER, THROUGH_SLOTS, 0), error);
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
    .say = shm_say,
    .survive = shm_survive,
    .allocate = shm_allocate,
    .find_all = shm_find_all,
    .meet = shm_meet_in_buffer,
    .post = shm_post,
    .barrier = shm_barrier,
};
