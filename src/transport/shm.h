/* The shared segment of a job on one host, and how its workers wait for each other. */
#ifndef MGW_TRANSPORT_SHM_H
#define MGW_TRANSPORT_SHM_H

#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "transport/transport.h"

enum {
    SHM_RANKS_MAX = 64,
    SHM_LINE = 128,         /* what two workers must not share, with the prefetcher's neighbour */
    SHM_WORDS = 16,         /* of 8 bytes: what a rank says of itself */
    SHM_SMALL = 4096,       /* bytes of a message that goes through the slots */
    SHM_STAGE = 512 * 1024, /* bytes of a piece of memory that is not shared */
};

/* What ranks meet for. */
typedef enum shm_kind {
    SHM_JOINING,
    SHM_ALLOCATING,
    SHM_ALL_REDUCE,
    SHM_REDUCE_SCATTER,
    SHM_REDUCE,
    SHM_BROADCAST,
    SHM_ALL_GATHER,
    SHM_BARRIER,
} shm_kind;

/*
 * A call in one number, which must be the same on all ranks: 4 bits for the kind, 4 for the way
 * (through slots, in shared memory, through stages, in buffers of the caller's), 8 for root,
 * buffer or segments, 8 for dtype and op, the rest for the number of elements or bytes.
 */
typedef uint64_t shm_call;

typedef enum shm_way { THROUGH_SLOTS, IN_SHARED_MEMORY, THROUGH_STAGES, IN_BUFFERS } shm_way;

static inline shm_call make_call(shm_kind kind, shm_way way, unsigned root, mgw_dtype dtype,
                                 mgw_op op, size_t count)
{
    return (shm_call)kind | (shm_call)way << 4 | (shm_call)root << 8 | (shm_call)dtype << 16 |
           (shm_call)op << 20 | (shm_call)count << 24;
}

/* Of bytes, whatever they are. */
static inline shm_call make_plain_call(shm_kind kind, shm_way way, unsigned root, size_t bytes)
{
    return make_call(kind, way, root, MGW_F32, MGW_AVERAGE, bytes);
}

typedef enum shm_presence { SHM_ABSENT, SHM_JOINED, SHM_LEFT, SHM_FAILED, SHM_DIED } shm_presence;

/* Written by its own rank, read by all; who finds it dead writes that down. */
typedef struct shm_rank {
    /* Held as long as the rank lives. The kernel marks it when the holder dies, however. */
    pthread_mutex_t alive;
    _Atomic uint32_t presence; /* shm_presence */
    _Atomic uint32_t blamed;   /* SHM_FAILED: the rank that it failed for, as it saw it */
    /* How many meetings this rank has come to: a futex that those who wait for it sleep on. */
    _Alignas(SHM_LINE) _Atomic uint32_t arrived;
    _Atomic uint32_t sleepers;
    /* What it is doing until the next, in words; ended. */
    _Atomic uint64_t doing[SHM_WORDS];
    /* What for: of this meeting and the one before, which others may still be reading about. */
    shm_call calls[2];
} shm_rank;

/* The segment: this, then the slots of small messages, then the stages, then what is allocated. */
typedef struct shm_segment {
    uint32_t size;
    _Alignas(SHM_LINE) shm_rank ranks[];
} shm_segment;

/* One mapping of memory that is allocated: all ranks' parts, one behind the other. */
typedef struct shm_region {
    struct shm_region *next;
    char *base;
    size_t stride; /* from one rank's part to the next */
    size_t mapped;
} shm_region;

/* A thread that holds the mutex of this rank. */
typedef struct shm_keeper {
    pthread_t thread;
    pthread_mutex_t *alive;
    sem_t holds;  /* now it does */
    sem_t leaves; /* it shall end */
    bool runs;
} shm_keeper;

/* What ranks say to each other when they meet first. The magic and the version stay where they are,
 * so that other versions are told apart. */
typedef struct shm_greeting {
    char magic[8];
    char version[24]; /* of the library */
    uint64_t layout;  /* of the segment */
    uint32_t rank;
    uint32_t size;
} shm_greeting;

typedef struct shm {
    unsigned rank;
    unsigned size;
    double timeout_s;
    int fd;            /* of the segment, which has no name */
    size_t file_size;  /* so far */
    bool spin;         /* there is a core for each rank, so that waiting may be awake */
    bool failed;       /* a collective failed: only closing is left */
    uint32_t meetings; /* that this rank has come to */
    uint32_t smalls;   /* messages that went through the slots: two sets take turns */
    shm_segment *segment;
    size_t segment_size;
    char *slots;
    char *stages;
    shm_region *regions;
    shm_keeper keeper;
} shm;

/* ---- shm_join.c ---- */

/* Makes or receives the segment and waits until all ranks have it. Fills all of *s. */
MGW_CHECKED mgw_status shm_join(const mgw_transport_setup *setup, shm *s, mgw_error *error);
void shm_leave(shm *s);

/* ---- shm_presence.c ---- */

/* From here on the others see us: that we live, leave or die. */
MGW_CHECKED mgw_status shm_appear(shm *s, mgw_error *error);

/* We leave; also if we never appeared. */
void shm_disappear(shm *s);

/* ---- shm.c ---- */

/* Where rank 0 has what this one has at `data`, and how far it is from there to each next rank's.
 * False: it is not shared. */
bool shm_find_all(void *state, const void *data, size_t bytes, char **first, size_t *stride);

/* ---- shm_flow.c ---- */

/* All of the work is done here. */
MGW_CHECKED mgw_status shm_post(void *state, const mgw_transport_call *call, mgw_request *out,
                                mgw_error *error);
MGW_CHECKED mgw_status shm_meet_in_buffer(void *state, const mgw_transport_call *call,
                                          unsigned buffer, mgw_error *error);

/* ---- shm_wait.c ---- */

/* Comes to the next meeting and waits until all others have, to the same call. */
MGW_CHECKED mgw_status shm_meet(shm *s, shm_call call, mgw_error *error);

/* What this rank is doing until its next meeting. */
void shm_say(void *state, const char *doing);

/* Fails if another rank has died or failed. Does not wait. */
MGW_CHECKED mgw_status shm_check(shm *s, mgw_error *error);

/* This rank has failed, for another: nobody shall wait for it, and all shall hear for whom. */
void shm_give_up(shm *s, unsigned culprit);

#endif
