/* What comes of a meeting over TCP: a sum, or one rank's bytes for all. */
#include <stdio.h>

#include "transport/reduce.h"
#include "transport/tcp.h"

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

static bool compare_calls(const tcp_part *parts, unsigned size, char text[TCP_TEXT])
{
    for (unsigned r = 1; r < size; r++) {
        if (parts[r].call == parts[0].call)
            continue;
        tcp_call here = tcp_call_read(parts[0].call);
        tcp_call there = tcp_call_read(parts[r].call);
        if (here.kind != there.kind || here.count != there.count)
            snprintf(text, TCP_TEXT,
                     "workers disagree: rank 0 is in %s of %llu, rank %u in %s of %llu",
                     tcp_call_name(parts[0].call), (unsigned long long)here.count, r,
                     tcp_call_name(parts[r].call), (unsigned long long)there.count);
        else
            snprintf(
                text, TCP_TEXT,
                "workers disagree: %s with another root, dtype or op on rank %u than on rank 0",
                tcp_call_name(parts[0].call), r);
        return false;
    }
    return true;
}

/* Whether every rank has brought what the call wants of it. */
static bool compare_bytes(const tcp_part *parts, unsigned size, tcp_call call, size_t element,
                          char text[TCP_TEXT])
{
    bool sums =
        call.kind == MGW_ALL_REDUCE || call.kind == MGW_REDUCE_SCATTER || call.kind == MGW_PUSH;
    bool hands_out = call.kind == MGW_PULL || call.kind == MGW_ALL_GATHER;
    bool good = !hands_out || call.root < size;
    for (unsigned r = 0; good && r < size; r++)
        good = sums ? parts[r].bytes == parts[0].bytes && element && parts[r].bytes % element == 0
                    : parts[r].bytes == 0 || (hands_out && r == call.root);
    if (!good)
        snprintf(text, TCP_TEXT, "workers disagree: parts of %s that do not fit together",
                 tcp_call_name(parts[0].call));
    return good;
}

bool tcp_meet(const tcp_part *parts, unsigned size, unsigned char *room, const unsigned char **out,
              size_t *bytes, char text[TCP_TEXT])
{
    tcp_call call = tcp_call_read(parts[0].call);
    bool known = call.dtype <= MGW_F64 && call.op <= MGW_MAX;
    size_t element = known ? mgw_dtype_bytes((mgw_dtype)call.dtype) : 0;
    const void *sources[TCP_RANKS_MAX];
    *out = NULL;
    *bytes = 0;
    if (!compare_calls(parts, size, text) || !compare_bytes(parts, size, call, element, text))
        return false;
    if (call.kind == MGW_PULL || call.kind == MGW_ALL_GATHER) {
        *out = parts[call.root].data;
        *bytes = parts[call.root].bytes;
    } else if (parts[0].bytes && element) {
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
