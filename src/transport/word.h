/* What a rank is in, as two numbers that must be the same on all ranks: two different collectives
 * would use each other's memory. */
#ifndef MGW_TRANSPORT_WORD_H
#define MGW_TRANSPORT_WORD_H

#include "transport/transport.h"

/* What ranks meet for. */
typedef enum mgw_word_kind {
    MGW_WORD_JOINING,
    MGW_WORD_ALLOCATING,
    MGW_WORD_ALL_REDUCE,
    MGW_WORD_REDUCE_SCATTER,
    MGW_WORD_REDUCE,
    MGW_WORD_BROADCAST,
    MGW_WORD_ALL_GATHER,
    MGW_WORD_BARRIER,
} mgw_word_kind;

/* The data path, where it matters; only shm has more than one. */
typedef enum mgw_way { THROUGH_SLOTS, IN_SHARED_MEMORY, THROUGH_STAGES, IN_BUFFERS } mgw_way;

typedef struct mgw_word {
    uint64_t call;    /* 4 bits for the kind, 4 for the way, 8 for root, buffer or segments, 8 for
                         dtype and op, the rest for the number of elements or bytes */
    uint64_t purpose; /* as in transport.h */
} mgw_word;

/* For a collective. */
mgw_word mgw_word_of(const mgw_transport_call *call, mgw_way way);

/* For everything else. */
mgw_word mgw_word_make(mgw_word_kind kind, mgw_way way, size_t bytes);

/* In a buffer of the caller. */
mgw_word mgw_word_in_buffer(const mgw_transport_call *call, unsigned buffer);

/* Its kind, such as "all-reduce". */
const char *mgw_word_name(mgw_word word);

/* Fails if they differ, and reports what each of the two ranks is in. */
MGW_CHECKED mgw_status mgw_word_compare(mgw_word own, unsigned rank, mgw_word other,
                                        unsigned other_rank, mgw_error *error);

#endif
