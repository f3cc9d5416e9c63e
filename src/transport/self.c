/* The transport of a single worker: every collective completes at once. */
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "transport/transport.h"

/* An allocation, freed on close. */
typedef struct block {
    struct block *next;
} block;

/* The memory begins this many bytes after its block, so that it is aligned. */
enum { ALIGNMENT = 64 };

static mgw_status self_open(const mgw_transport_setup *setup, void **state, mgw_error *error)
{
    if (setup->options.size != 1)
        return mgw_fail(error, MGW_ERR_ARGUMENT,
                        "transport self is for one worker, but there are %u; use another (shm on "
                        "one host, mpi between several)",
                        setup->options.size);
    block **first = calloc(1, sizeof *first);
    if (!first)
        return mgw_fail_memory(error, "self");
    *state = first;
    return MGW_OK;
}

static void self_close(void *state)
{
    for (block *b = *(block **)state, *next = NULL; b; b = next) {
        next = b->next;
        free(b);
    }
    free(state);
}

static mgw_status self_allocate(void *state, size_t bytes, void **out, mgw_error *error)
{
    if (bytes > SIZE_MAX - 2 * ALIGNMENT)
        return mgw_fail_memory(error, "self");
    size_t size = ALIGNMENT + (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    block *made = aligned_alloc(ALIGNMENT, size);
    if (!made)
        return mgw_fail_memory(error, "self");
    memset(made, 0, size);
    block **first = state;
    made->next = *first;
    *first = made;
    *out = (char *)made + ALIGNMENT;
    return MGW_OK;
}

static mgw_status self_post(void *state, const mgw_transport_call *call, mgw_request *out,
                            mgw_error *error)
{
    (void)state, (void)call, (void)out, (void)error;
    return MGW_OK;
}

static mgw_status self_barrier(void *state, mgw_error *error)
{
    (void)state, (void)error;
    return MGW_OK;
}

const mgw_transport_table mgw_transport_self = {
    .capabilities = MGW_MOVES_HALVES | MGW_NAMES_LATE | MGW_WAITS_ASLEEP,
    .open = self_open,
    .close = self_close,
    .allocate = self_allocate,
    .post = self_post,
    .barrier = self_barrier,
};
