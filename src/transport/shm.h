/* The shared segment of a job on one host, and how its workers wait for each other. */
#ifndef MGW_TRANSPORT_SHM_H
#define MGW_TRANSPORT_SHM_H

#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "transport/word.h"

enum {
    SHM_RANKS_MAX = 64,
    SHM_LINE = 128,         /* two workers must not share it; includes the prefetched neighbour */
    SHM_ROUNDS = 8,         /* attempts of the surviving ranks to continue */
    SHM_WORDS = 16,         /* of 8 bytes: a rank's status text */
    SHM_SMALL = 4096,       /* largest message that goes through the slots, in bytes */
    SHM_STAGE = 512 * 1024, /* bytes of a piece of memory that is not shared */
};

typedef enum shm_presence { SHM_ABSENT, SHM_JOINED, SHM_LEFT, SHM_FAILED, SHM_DIED } shm_presence;

/* Written by its own rank, read by all; a rank that finds it dead records that here. */
typedef struct shm_rank {
    /*
     * Held as long as the rank lives. The kernel marks it when the holder dies, whatever the cause.
     */
    pthread_mutex_t alive;
    _Atomic uint32_t presence; /* shm_presence */
    _Atomic uint32_t blamed;   /* if SHM_FAILED: the rank that this rank blames */
    _Atomic uint32_t wants;    /* rounds of re-forming the job that it has come to */
    /* How many meetings this rank has come to: a futex that waiting ranks sleep on. */
    _Alignas(SHM_LINE) _Atomic uint32_t arrived;
    _Atomic uint32_t sleepers;
    /* What it is doing until the next meeting, as null-terminated text. */
    _Atomic uint64_t doing[SHM_WORDS];
    /* The calls of this meeting and the previous one, which others may still be reading. */
    mgw_word calls[2];
} shm_rank;

/* The segment: this header, then the slots of small messages, the stages, and the allocations. */
typedef struct shm_segment {
    uint32_t size;
    _Atomic uint64_t members[SHM_ROUNDS]; /* who continues, by round: one bit per rank; 0: open */
    _Alignas(SHM_LINE) shm_rank ranks[];
} shm_segment;

/* One mapping of allocated memory: all ranks' parts, one after the other. */
typedef struct shm_region {
    struct shm_region *next;
    char *base;
    size_t stride; /* from one rank's part to the next */
    size_t mapped;
} shm_region;

/* A thread that holds this rank's mutex. */
typedef struct shm_keeper {
    pthread_t thread;
    pthread_mutex_t *alive;
    sem_t holds;  /* posted once it does */
    sem_t leaves; /* asks it to end */
    bool runs;
} shm_keeper;

/* The first message between ranks. The magic and the version stay in place, so that other versions
 * are recognized. */
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
    bool spin;         /* each rank has a core, so ranks may spin */
    bool failed;       /* a collective failed: it can only be closed */
    uint32_t meetings; /* that this rank has come to */
    uint32_t smalls;   /* messages that went through the slots: two sets alternate */
    shm_segment *segment;
    size_t segment_size;
    char *slots;
    char *stages;
    shm_region *regions;
    shm_keeper keeper;
} shm;

/* ---- shm_join.c ---- */

/* Creates or receives the segment and waits until all ranks have it. Fills all of *s. */
MGW_CHECKED mgw_status shm_join(const mgw_transport_setup *setup, shm *s, mgw_error *error);
void shm_leave(shm *s);

/* ---- shm_greet.c ---- */

/* Reports a failed system call by errno: "shm: cannot make a socket: ...". */
mgw_status shm_fail(const char *what, mgw_error *error);

/* A name in the abstract namespace, for this user and job; fails if it does not fit. */
MGW_CHECKED mgw_status shm_address_make(const char *job, struct sockaddr_un *address,
                                        socklen_t *length, mgw_error *error);

shm_greeting shm_greeting_make(const shm *s);

/* Checks that the other worker has the same library; `bytes` have been received. */
MGW_CHECKED mgw_status shm_greeting_compare(const shm *s, const shm_greeting *other, size_t bytes,
                                            mgw_error *error);

/* Sends our greeting, with the segment's descriptor; -1: without. */
bool shm_greeting_send(int to, const shm_greeting *greeting, int fd);

/* Returns the number of bytes received; *fd is the segment, or -1. */
size_t shm_greeting_receive(int from, shm_greeting *greeting, int *fd);

/* Whether the peer is a process of our user: a job's name is no secret. */
bool shm_is_ours(int peer);

/* ---- shm_host.c ---- */

/* Rank 0, which has created the segment, passes it to all others. */
MGW_CHECKED mgw_status shm_host(shm *s, const char *job, double deadline_s, mgw_error *error);

/* ---- shm_presence.c ---- */

/* From here on the others see whether this rank lives, leaves or dies. */
MGW_CHECKED mgw_status shm_appear(shm *s, mgw_error *error);

/* Marks this rank as leaving; also valid if it never appeared. */
void shm_disappear(shm *s);

/* ---- shm_survive.c ---- */

/* After a failure: contract in transport.h. */
MGW_CHECKED mgw_status shm_survive(void *state, unsigned round, mgw_survivors *out,
                                   mgw_error *error);

/* ---- shm.c ---- */

/* Finds rank 0's counterpart of this rank's `data`, and the stride between ranks. False: it is not
 * shared. */
bool shm_find_all(void *state, const void *data, size_t bytes, char **first, size_t *stride);

/* ---- shm_flow.c ---- */

/* The collective is complete on return. */
MGW_CHECKED mgw_status shm_post(void *state, const mgw_transport_call *call, mgw_request *out,
                                mgw_error *error);
MGW_CHECKED mgw_status shm_meet_in_buffer(void *state, const mgw_transport_call *call,
                                          unsigned buffer, mgw_error *error);

/* ---- shm_wait.c ---- */

/* Joins the next meeting and waits until all others have, for the same call. */
MGW_CHECKED mgw_status shm_meet(shm *s, mgw_word word, mgw_error *error);

/* Sets what this rank is doing until its next meeting. */
void shm_say(void *state, const char *doing);

/* Fails if another rank has died or failed. Never waits. */
MGW_CHECKED mgw_status shm_check(shm *s, mgw_error *error);

/* Wakes ranks that sleep until this one comes, so that they look around. */
void shm_wake_sleepers(shm_rank *rank);

/* This rank has failed because of another: no rank waits for it any more, and all learn which one
 * is to blame. */
void shm_give_up(shm *s, unsigned culprit);

#endif
