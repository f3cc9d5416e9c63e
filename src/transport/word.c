/* Compares and describes what ranks are in, in the same way for all transports. */
#include "transport/word.h"

#include <stdio.h>

#include "base/hash.h"
#include "base/status.h"

static mgw_word make(mgw_word_kind kind, mgw_way way, unsigned root, mgw_dtype dtype, mgw_op op,
                     size_t count)
{
    return (mgw_word){.call = (uint64_t)kind | (uint64_t)way << 4 | (uint64_t)root << 8 |
                              (uint64_t)dtype << 16 | (uint64_t)op << 20 | (uint64_t)count << 24};
}

mgw_word mgw_word_make(mgw_word_kind kind, mgw_way way, size_t bytes)
{
    return make(kind, way, 0, MGW_F32, MGW_AVERAGE, bytes);
}

/* Ranks with different segments must not match. */
mgw_word mgw_word_of(const mgw_transport_call *call, mgw_way way)
{
    static const mgw_word_kind kinds[] = {[MGW_ALL_REDUCE] = MGW_WORD_ALL_REDUCE,
                                          [MGW_REDUCE_SCATTER] = MGW_WORD_REDUCE_SCATTER,
                                          [MGW_ALL_GATHER] = MGW_WORD_ALL_GATHER,
                                          [MGW_PUSH] = MGW_WORD_REDUCE,
                                          [MGW_PULL] = MGW_WORD_BROADCAST};
    unsigned root = call->root;
    if (call->segments)
        root = mgw_hash(call->segments, call->segment_count * sizeof *call->segments) & 255;
    mgw_word word = make(kinds[call->kind], way, root, call->dtype, call->op, call->count);
    word.purpose = call->purpose;
    return word;
}

mgw_word mgw_word_in_buffer(const mgw_transport_call *call, unsigned buffer)
{
    mgw_word word = mgw_word_of(call, IN_BUFFERS);
    word.call ^= (uint64_t)buffer << 8;
    return word;
}

static mgw_word_kind kind_of(mgw_word word)
{
    return (mgw_word_kind)(word.call & 15);
}

const char *mgw_word_name(mgw_word word)
{
    static const char *const names[] = {
        [MGW_WORD_JOINING] = "joining the job", [MGW_WORD_ALLOCATING] = "allocating",
        [MGW_WORD_ALL_REDUCE] = "all-reduce",   [MGW_WORD_REDUCE_SCATTER] = "reduce-scatter",
        [MGW_WORD_REDUCE] = "reduce",           [MGW_WORD_BROADCAST] = "broadcast",
        [MGW_WORD_ALL_GATHER] = "all-gather",   [MGW_WORD_BARRIER] = "barrier",
    };
    unsigned kind = kind_of(word);
    return kind < sizeof names / sizeof *names ? names[kind] : "something unknown";
}

/* As seen by the rank's program, which asked for a step rather than a number of elements. */
static void describe(mgw_word word, char *text, size_t size)
{
    static const char *const purposes[] = {
        [MGW_FOR_START] = "mgw_engine_start",
        [MGW_FOR_LOOK] = "a look at the plan before a step",
        [MGW_FOR_PLAN] = "mgw_engine_set_plan",
        [MGW_FOR_MOVE] = "mgw_engine_move",
        [MGW_FOR_CHECK] = "the check of a step",
        [MGW_FOR_END] = "giving up",
    };
    size_t known = sizeof purposes / sizeof *purposes;
    mgw_word_kind kind = kind_of(word);
    if (word.purpose >= MGW_FOR_MESSAGE)
        snprintf(text, size, "message %llu of the step",
                 (unsigned long long)word.purpose - MGW_FOR_MESSAGE + 1);
    else if (word.purpose && word.purpose < known)
        snprintf(text, size, "%s", purposes[word.purpose]);
    else if (kind == MGW_WORD_BARRIER || kind == MGW_WORD_JOINING)
        snprintf(text, size, "%s", mgw_word_name(word));
    else
        snprintf(text, size, "%s of %llu", mgw_word_name(word),
                 (unsigned long long)(word.call >> 24));
}

mgw_status mgw_word_compare(mgw_word own, unsigned rank, mgw_word other, unsigned other_rank,
                            mgw_error *error)
{
    char here[64];
    char there[64];
    if (own.call == other.call && own.purpose == other.purpose)
        return MGW_OK;
    describe(own, here, sizeof here);
    describe(other, there, sizeof there);
    bool alike = kind_of(own) == kind_of(other) && own.call >> 24 == other.call >> 24;
    if (!alike || own.purpose != other.purpose)
        return mgw_fail(error, MGW_ERR_PEER, "workers disagree: rank %u is in %s, rank %u in %s",
                        rank, here, other_rank, there);
    return mgw_fail(error, MGW_ERR_PEER,
                    "workers disagree: %s with other segments, or another root, dtype, op or kind "
                    "of memory, now or before, on rank %u than on rank %u",
                    mgw_word_name(own), other_rank, rank);
}
