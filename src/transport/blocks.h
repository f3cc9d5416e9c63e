/* A rank's share of a reduce-scatter or all-gather: its block of every segment, in order; or a
 * lane's part of each. */
#ifndef MGW_TRANSPORT_BLOCKS_H
#define MGW_TRANSPORT_BLOCKS_H

#include "base/block.h"
#include "transport/transport.h"

/* The part of a block that the call is about. */
static inline void mgw_block_of_lane(const mgw_transport_call *call, size_t *first, size_t *length)
{
    size_t inside = 0;
    if (call->lanes)
        mgw_block(*length, call->lanes, call->lane, &inside, length);
    *first += inside;
}

/* Iterates over a rank's blocks. */
typedef struct mgw_blocks {
    const mgw_transport_call *call;
    unsigned size;
    unsigned rank;
    size_t next;  /* segment */
    size_t begin; /* its first element */
    size_t first; /* remaining elements of the previous segment's block */
    size_t length;
} mgw_blocks;

static inline mgw_blocks mgw_blocks_of(const mgw_transport_call *call, unsigned size, unsigned rank)
{
    return (mgw_blocks){.call = call, .size = size, .rank = rank};
}

/* Moves on to the next non-empty block if this one is used up. False: there is none. */
static inline bool mgw_blocks_more(mgw_blocks *b)
{
    const mgw_transport_call *call = b->call;
    size_t count = call->segments ? call->segment_count : 1;
    while (!b->length && b->next < count) {
        size_t segment = call->segments ? call->segments[b->next] : call->count;
        mgw_block(segment, b->size, b->rank, &b->first, &b->length);
        mgw_block_of_lane(call, &b->first, &b->length);
        b->first += b->begin;
        b->begin += segment;
        b->next++;
    }
    return b->length;
}

/*
 * Takes the rank's next elements in the call, at most `most`, as one contiguous range. False: there
 * are no more.
 */
static inline bool mgw_blocks_take(mgw_blocks *b, size_t most, size_t *first, size_t *length)
{
    if (!most || !mgw_blocks_more(b))
        return false;
    *first = b->first;
    *length = b->length < most ? b->length : most;
    b->first += *length;
    b->length -= *length;
    return true;
}

/* The number of elements in all of a rank's blocks. */
static inline size_t mgw_blocks_length(const mgw_transport_call *call, unsigned size, unsigned rank)
{
    size_t first = 0;
    size_t length = 0;
    size_t sum = 0;
    for (mgw_blocks b = mgw_blocks_of(call, size, rank);
         mgw_blocks_take(&b, SIZE_MAX, &first, &length);)
        sum += length;
    return sum;
}

/* The same for the rank that has most. */
static inline size_t mgw_blocks_largest(const mgw_transport_call *call, unsigned size)
{
    size_t most = 0;
    for (unsigned r = 0; r < size; r++) {
        size_t length = mgw_blocks_length(call, size, r);
        most = length > most ? length : most;
    }
    return most;
}

#endif
