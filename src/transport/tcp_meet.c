/* Computes the result of a meeting over TCP: a reduction, or one rank's bytes for all. */
#include <stdio.h>

#include "transport/reduce.h"
#include "transport/tcp.h"
#include "transport/word.h"

const char *tcp_call_name(uint64_t call)
{
    unsigned kind = tcp_call_read(call).kind;
    return kind == TCP_BARRIER           ? "barrier"
           : kind == TCP_JOINING         ? "joining the job"
           : kind == MGW_PUSH            ? "reduce"
           : kind == MGW_PULL            ? "broadcast"
           : kind < MGW_COLLECTIVE_COUNT ? mgw_collective_name((mgw_collective)kind)
                                         : "something unknown";
}

bool tcp_takes(uint64_t call, unsigned rank)
{
    tcp_call c = tcp_call_read(call);
    switch (c.kind) {
    case MGW_ALL_REDUCE:
    case MGW_REDUCE_SCATTER:
        return true;
    case MGW_PUSH:
        return rank == c.root;
    case MGW_PULL:
    case MGW_ALL_GATHER:
        return rank != c.root;
    default:
        return false;
    }
}

static bool is_alike(const tcp_part *x, const tcp_part *y)
{
    return x->call == y->call && x->purpose == y->purpose && x->segments == y->segments;
}

static bool compare_calls(const tcp_part *parts, unsigned size)
{
    for (unsigned r = 1; r < size; r++)
        if (!is_alike(&parts[r], &parts[0]))
            return false;
    return true;
}

/* Whether every rank's part has the size that the call requires. */
static bool compare_bytes(const tcp_part *parts, unsigned size, tcp_call call, size_t element)
{
    bool sums =
        call.kind == MGW_ALL_REDUCE || call.kind == MGW_REDUCE_SCATTER || call.kind == MGW_PUSH;
    bool hands_out = call.kind == MGW_PULL || call.kind == MGW_ALL_GATHER;
    bool good = !hands_out || call.root < size;
    for (unsigned r = 0; good && r < size; r++)
        good = sums ? parts[r].bytes == parts[0].bytes && element && parts[r].bytes % element == 0
               : call.kind == TCP_JOINING ? parts[r].bytes == TCP_PORT
                                          : parts[r].bytes == 0 || (hands_out && r == call.root);
    return good;
}

bool tcp_meet(const tcp_part *parts, unsigned size, unsigned char *room, const unsigned char **out,
              size_t *bytes)
{
    tcp_call call = tcp_call_read(parts[0].call);
    bool known = call.dtype < MGW_DTYPE_COUNT && call.op <= MGW_MAX;
    size_t element = known ? mgw_dtype_bytes((mgw_dtype)call.dtype) : 0;
    const void *sources[TCP_RANKS_MAX];
    *out = NULL;
    *bytes = 0;
    if (!compare_calls(parts, size) || !compare_bytes(parts, size, call, element))
        return false;
    if (call.kind == MGW_PULL || call.kind == MGW_ALL_GATHER) {
        *out = parts[call.root].data;
        *bytes = parts[call.root].bytes;
    } else if (parts[0].bytes && element && call.kind != TCP_JOINING) {
        void *target = room;
        for (unsigned r = 0; r < size; r++)
            sources[r] = parts[r].data;
        mgw_reduce(sources, size, &target, 1, parts[0].bytes / element, (mgw_dtype)call.dtype,
                   (mgw_op)call.op);
        *out = room;
        *bytes = parts[0].bytes;
    }
    return true;
}

/* In the terms of the other transports. */
static mgw_word word_of(const tcp_part *part)
{
    tcp_call call = tcp_call_read(part->call);
    if (call.kind == TCP_BARRIER || call.kind == TCP_JOINING)
        return mgw_word_make(call.kind == TCP_BARRIER ? MGW_WORD_BARRIER : MGW_WORD_JOINING,
                             THROUGH_SLOTS, 0);
    const mgw_transport_call as = {.kind = (mgw_collective)(call.kind % MGW_COLLECTIVE_COUNT),
                                   .dtype = (mgw_dtype)call.dtype,
                                   .op = (mgw_op)call.op,
                                   .root = (call.root ^ (unsigned)part->segments) & 255,
                                   .count = (size_t)call.count,
                                   .purpose = part->purpose};
    return mgw_word_of(&as, THROUGH_SLOTS);
}

void tcp_meet_explain(const tcp_part *parts, unsigned size, unsigned rank, char text[TCP_TEXT])
{
    mgw_error error;
    mgw_word own = word_of(&parts[rank]);
    for (unsigned r = 0; r < size; r++) {
        mgw_word other = word_of(&parts[r]);
        if (is_alike(&parts[r], &parts[rank]))
            continue;
        if (own.call == other.call && own.purpose == other.purpose)
            other.call ^= 1 << 8; /* the difference does not fit into the word */
        if (mgw_word_compare(own, rank, other, r, &error))
            snprintf(text, TCP_TEXT, "%.300s", error.message);
        return;
    }
    snprintf(text, TCP_TEXT, "workers disagree: parts of %s that do not fit together",
             tcp_call_name(parts[rank].call));
}
