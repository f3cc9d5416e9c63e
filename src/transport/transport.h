/* The interface of a transport: a table of functions and its shared state. */
#ifndef MGW_TRANSPORT_TRANSPORT_H
#define MGW_TRANSPORT_TRANSPORT_H

#include <stdbool.h>
#include <sys/types.h>

#include <mgwfbp/transport.h>

/* The settings of a transport from the caller and the environment, complete. */
typedef struct mgw_transport_setup {
    mgw_transport_options options;
    mgw_transport_spec spec; /* parsed from their name */
    double join_s;           /* how long to wait for others to join */
    bool staged;             /* the memory is a GPU's, and goes through host memory */
} mgw_transport_setup;

/*
 * The purpose of collectives, for errors when workers meet in different ones. It is the same on all
 * workers: MGW_FOR_PROGRAM for the program's own collectives; others for parts of the engine;
 * MGW_FOR_MESSAGE + m for message m of a step.
 */
enum {
    MGW_FOR_PROGRAM,
    MGW_FOR_START,
    MGW_FOR_LOOK,
    MGW_FOR_PLAN,
    MGW_FOR_MOVE,
    MGW_FOR_CHECK,
    MGW_FOR_END,
    MGW_FOR_MESSAGE = 16,
};

/* A collective, internally: like mgw_call, but a broadcast is in bytes. */
typedef struct mgw_transport_call {
    mgw_collective kind;
    char *data;
    size_t count;   /* of elements */
    size_t element; /* bytes of one */
    mgw_dtype dtype;
    mgw_op op;
    unsigned root;
    const size_t *segments; /* for reduce-scatter and all-gather, or null; see blocks.h */
    size_t segment_count;
    unsigned lane;  /* of reduce-scatter and all-gather: only this lane's part of each block, */
    unsigned lanes; /*   of so many; 0: all of it. See blocks.h */
    unsigned most_lanes; /* that move it; 0: all */
    bool rounds_once;    /* as in mgw_call */
    uint64_t purpose;    /* what it is for */
    bool follows;        /* as in mgw_call */
} mgw_transport_call;

/* The group that continues after a failure, as seen by one member. */
typedef struct mgw_survivors {
    unsigned rank; /* this worker's new rank */
    unsigned size;
    unsigned round;    /* the same for all members, and unique in a job */
    double join_s;     /* how long to wait for the other members, which have just been there */
    char address[160]; /* where the first member listens (its own: kept:N); empty: as before */
} mgw_survivors;

/*
 * Arguments are checked before a slot is called: size > 1 only where the transport supports it;
 * count and bytes may be 0. Blocking slots return within the timeout of the options, or with an
 * error that names the worker they waited for.
 */
typedef struct mgw_transport_table {
    unsigned capabilities; /* mgw_capability */

    /*
     * On the program's own thread, before open on any thread: initialises per-process state. Sets
     * *caller if the transport may only be used from that thread. Blocks as long as MPI_Init does;
     * may be null.
     */
    mgw_status (*prepare)(const mgw_transport_setup *setup, bool *caller, mgw_error *error);

    /* Joins; fills *state. May block. */
    mgw_status (*open)(const mgw_transport_setup *setup, void **state, mgw_error *error);

    /* The rank and size, where the transport and not the options determine them; null elsewhere. */
    void (*place)(void *state, unsigned *rank, unsigned *size);

    /* Leaves and frees everything, also after a failure. Must not block. */
    void (*close)(void *state);

    /* On GPUs: the stream that collectives run on, in order; and makes it wait for an event,
     * returning CUDA's code. Null elsewhere. */
    void *(*stream)(void *state);
    int (*follow)(void *state, void *event);

    /* How many lanes move the parts of a long message. Null: one. */
    unsigned (*lanes)(void *state);

    /* Fails if another worker is known to have died or failed. Never blocks; may be null. */
    mgw_status (*check)(void *state, mgw_error *error);

    /* Sets what this worker is doing before its next collective, as text for the errors of workers
     * that wait for it. Never blocks; may be null. */
    void (*say)(void *state, const char *doing);

    /* Like mgw_transport_survive. Blocks; may be null. */
    mgw_status (*survive)(void *state, unsigned round, mgw_survivors *out, mgw_error *error);

    /* Collective; the memory lives until close. May block. */
    mgw_status (*allocate)(void *state, size_t bytes, void **out, mgw_error *error);

    /*
     * For callers that reduce in shared memory themselves: finds rank 0's counterpart of `data`, in
     * allocated memory, and the stride between ranks. Null: memory is not shared.
     */
    bool (*find_all)(void *state, const void *data, size_t bytes, char **first, size_t *stride);

    /* A meeting of all ranks, for the same call and the same buffer: no data moves. Null: there are
     * no other ranks. */
    mgw_status (*meet)(void *state, const mgw_transport_call *call, unsigned buffer,
                       mgw_error *error);

    /*
     * Starts a collective, in place; it may block as mgw_transport_post says. *out is zero, and
     * stays so if the collective is over on return. Otherwise test, which does not block unless it
     * fails, and wait are called for it.
     */
    mgw_status (*post)(void *state, const mgw_transport_call *call, mgw_request *out,
                       mgw_error *error);
    mgw_status (*test)(void *state, const mgw_request *request, bool *done, mgw_error *error);
    mgw_status (*wait)(void *state, const mgw_request *request, mgw_error *error);

    /* After everything that was posted. Blocks. */
    mgw_status (*barrier)(void *state, mgw_error *error);
} mgw_transport_table;

struct mgw_transport {
    const mgw_transport_table *table;
    void *state;
    unsigned rank;
    unsigned size;
    uint64_t purpose;    /* of the collectives posted next; */
    bool follows;        /* and whether these are certain to follow the previous one, */
    unsigned most_lanes; /*   and how many lanes they may use; 0: all */
    pid_t process;       /* that joined the job */
    char name[96];
};

extern const mgw_transport_table mgw_transport_self;
extern const mgw_transport_table mgw_transport_shm;
extern const mgw_transport_table mgw_transport_tcp;
extern const mgw_transport_table mgw_transport_emulated;
extern const mgw_transport_table mgw_transport_nccl;
extern const mgw_transport_table mgw_transport_staged; /* wraps others, by the options alone */
#ifdef MGW_HAVE_MPI
extern const mgw_transport_table mgw_transport_mpi;
#endif

/*
 * For callers that open a transport on a thread of their own: call this before, on the program's
 * thread. Sets *caller if the transport may only be used from there: MPI, if it was initialised
 * without thread support. `options` are complete.
 */
MGW_CHECKED mgw_status mgw_transport_prepare(const mgw_transport_options *options, bool *caller,
                                             mgw_error *error);

/* Posts it and waits for it. */
MGW_CHECKED mgw_status mgw_transport_run(mgw_transport *transport, const mgw_transport_call *call,
                                         mgw_error *error);

/*
 * Sets the purpose of the following collectives. `follows`: all workers go from the same collective
 * to the same next one, whatever their programs do, so transports can skip their check. They use
 * all lanes, until a limit is set.
 */
void mgw_transport_intend(mgw_transport *transport, uint64_t purpose, bool follows);
void mgw_transport_limit_lanes(mgw_transport *transport, unsigned most);

/* Fails if another worker is known to have died or failed. Never blocks. */
MGW_CHECKED mgw_status mgw_transport_check(mgw_transport *transport, mgw_error *error);

/* Tells waiting workers what this worker is doing until its next collective. Never blocks. */
void mgw_transport_say(mgw_transport *transport, const char *doing);

/*
 * After a failure: waits until all workers that are alive have called it, or half a minute, and
 * decides who continues: all of these, or nobody. There are never two groups that continue. If
 * another member has died since, call it again with the next round. Threads: any. Ownership: the
 * caller owns a socket in *out.
 */
MGW_CHECKED mgw_status mgw_transport_survive(mgw_transport *transport, unsigned round,
                                             mgw_survivors *out, mgw_error *error);

/* As in the table; find_all returns false where there is no shared memory. */
bool mgw_transport_find_all(const mgw_transport *transport, const void *data, size_t bytes,
                            char **first, size_t *stride);
MGW_CHECKED mgw_status mgw_transport_meet(mgw_transport *transport, const mgw_transport_call *call,
                                          unsigned buffer, mgw_error *error);

/*
 * On GPUs: the next collectives wait for an event, as if the stream did. The event must not be
 * recorded again until they are over: it may serve to tell whether they have started. Null: they
 * wait for events that the stream was given elsewhere.
 */
int mgw_transport_follow(mgw_transport *transport, void *event);

/* The number of workers that srun has started, including this one; 0 if it was not srun. */
unsigned long mgw_transport_srun_tasks(void);

/* ---- setup.c ---- */

/* Completes missing options from the environment. Ownership: *out borrows from there and from
 * *given. */
MGW_CHECKED mgw_status mgw_transport_resolve(const mgw_transport_options *given,
                                             mgw_transport_setup *out, mgw_error *error);

/* The setup of the inner transport. */
mgw_transport_setup mgw_transport_inside(const mgw_transport_setup *setup);

/* Like mgw_transport_prepare and mgw_transport_open. */
MGW_CHECKED mgw_status mgw_transport_prepare_as(const mgw_transport_setup *setup, bool *caller,
                                                mgw_error *error);
MGW_CHECKED mgw_status mgw_transport_open_as(const mgw_transport_setup *setup, mgw_transport **out,
                                             mgw_error *error);

#endif
