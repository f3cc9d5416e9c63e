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
    SHM_LINE = 128,         /* what two workers must not share, with the prefetcher's neighbour */
    SHM_ROUNDS = 8,         /* in which those that are left may try to go on */
    SHM_WORDS = 16,         /* of 8 bytes: what a rank says of itself */
    SHM_SMALL = 4096,       /* bytes of a message that goes through the slots */
    SHM_STAGE = 512 * 1024, /* bytes of a piece of memory that is not shared */
};

typedef enum shm_presence { SHM_ABSENT, SHM_JOINED, SHM_LEFT, SHM_FAILED, SHM_DIED } shm_presence;

/* Written by its own rank, read by all; who finds it dead writes that down. */
typedef struct shm_rank {
    /* Held as long as the rank lives. The kernel marks it when the holder dies, however. */
    pthread_mutex_t alive;
    _Atomic uint32_t presence; /* shm_presence */
    _Atomic uint32_t blamed;   /* SHM_FAILED: the rank that it failed for, as it saw it */
    _Atomic uint32_t wants;    /* rounds of going on with others that it has come to */
    /* How many meetings this rank has come to: a futex that those who wait for it sleep on. */
    _Alignas(SHM_LINE) _Atomic uint32_t arrived;
    _Atomic uint32_t sleepers;
    /* What it is doing until the next, in words; ended. */
    _Atomic uint64_t doing[SHM_WORDS];
    /* What for: of this meeting and the one before, which others may still be reading about. */
    mgw_word calls[2];
} shm_rank;

/* The segment: this, then the slots of small messages, then the stages, then what is allocated. */
typedef struct shm_segment {
    uint32_t size;
    _Atomic uint64_t members[SHM_ROUNDS]; /* who goes on, by round: a bit for each rank; 0: open */
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

/* ---- shm_greet.c ---- */

/* For what the system did not do: "shm: cannot make a socket: ...", by errno. */
mgw_status shm_fail(const char *what, mgw_error *error);

/* A name in the abstract namespace, of this user and job; fails if it does not fit. */
MGW_CHECKED mgw_status shm_address_make(const char *job, struct sockaddr_un *address,
                                        socklen_t *length, mgw_error *error);

shm_greeting shm_greeting_make(const shm *s);

/* Whether the other worker has the same library; `bytes` have come. */
MGW_CHECKED mgw_status shm_greeting_compare(const shm *s, const shm_greeting *other, size_t bytes,
                                            mgw_error *error);

/* Our greeting, and the segment with it; -1: without. */
bool shm_greeting_send(int to, const shm_greeting *greeting, int fd);

/* How many bytes of the greeting came; and the segment, or -1. */
size_t shm_greeting_receive(int from, shm_greeting *greeting, int *fd);

/* Whether the other end belongs to our user: the name of a job is no secret. */
bool shm_is_ours(int peer);

/* ---- shm_host.c ---- */

/* Rank 0, which has made the segment, hands it to all others. */
MGW_CHECKED mgw_status shm_host(shm *s, const char *job, double deadline_s, mgw_error *error);

/* ---- shm_presence.c ---- */

/* From here on the others see us: that we live, leave or die. */
MGW_CHECKED mgw_status shm_appear(shm *s, mgw_error *error);

/* We leave; also if we never appeared. */
void shm_disappear(shm *s);

/* ---- shm_survive.c ---- */

/* After a failure: contract in transport.h. */
MGW_CHECKED mgw_status shm_survive(void *state, unsigned round, mgw_survivors *out,
                                   mgw_error *error);

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

/* Comes to the next meeting and waits until all others have, for the same. */
MGW_CHECKED mgw_status shm_meet(shm *s, mgw_word word, mgw_error *error);

/* What this rank is doing until its next meeting. */
void shm_say(void *state, const char *doing);

/* Fails if another rank has died or failed. Does not wait. */
MGW_CHECKED mgw_status shm_check(shm *s, mgw_error *error);

/* This rank has failed, for another: nobody shall wait for it, and all shall hear for whom. */
void shm_give_up(shm *s, unsigned culprit);

#endif
