/* What a transport is made of: a table of functions and what they share. */
#ifndef MGW_TRANSPORT_TRANSPORT_H
#define MGW_TRANSPORT_TRANSPORT_H

#include <stdbool.h>
#include <sys/types.h>

#include <mgwfbp/transport.h>

/* What the caller and the environment say of a transport: complete, nothing unsaid. */
typedef struct mgw_transport_setup {
    mgw_transport_options options;
    mgw_transport_spec spec; /* what their name says */
    double join_s;           /* how long to wait for others to join */
    bool staged;             /* the memory is a GPU's, and goes through the host's */
} mgw_transport_setup;

/*
 * What collectives are for, in the errors of workers that meet in different ones; and the same on
 * all of them: the program's own, which it called itself; a part of the engine's; message m of a
 * step is MGW_FOR_MESSAGE + m.
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

/* A collective inside: as mgw_call, but a broadcast is of bytes. */
typedef struct mgw_transport_call {
    mgw_collective kind;
    char *data;
    size_t count;   /* of elements */
    size_t element; /* bytes of one */
    mgw_dtype dtype;
    mgw_op op;
    unsigned root;
    const size_t *segments; /* of reduce-scatter and all-gather, or null; see blocks.h */
    size_t segment_count;
    bool rounds_once; /* as mgw_call's */
    uint64_t purpose; /* what it is for */
    bool follows;     /* as in mgw_call */
} mgw_transport_call;

/* Who goes on after a failure, as one of them sees it. */
typedef struct mgw_survivors {
    unsigned rank; /* this one's among them */
    unsigned size;
    unsigned round;    /* the same to all of them, and never twice in a job */
    double join_s;     /* how long to wait for the others to join, who have just been there */
    char address[160]; /* where the first of them listens (its own: kept:N); empty: where it did */
} mgw_survivors;

/*
 * Arguments are checked before a slot is called: size > 1 only where the transport says so, count
 * and bytes may be 0. Blocking slots return within the timeout of the options, or with an error
 * that names the worker they waited for.
 */
typedef struct mgw_transport_table {
    unsigned capabilities; /* mgw_capability */

    /*
     * On the program's own thread, before open on any: begins what belongs to the process. Sets
     * *caller if the transport may only be used from that thread. Blocks as long as MPI_Init
     * does; may be null.
     */
    mgw_status (*prepare)(const mgw_transport_setup *setup, bool *caller, mgw_error *error);

    /* Joins; fills *state. May block. */
    mgw_status (*open)(const mgw_transport_setup *setup, void **state, mgw_error *error);

    /* The rank and size, where the transport knows them and not the options; null elsewhere. */
    void (*place)(void *state, unsigned *rank, unsigned *size);

    /* Leaves and frees everything, also after a failure. Must not block. */
    void (*close)(void *state);

    /* On GPUs: what collectives run on, in order; and lets that wait for an event, CUDA's code is
     * returned. Null elsewhere. */
    void *(*stream)(void *state);
    int (*follow)(void *state, void *event);

    /* Fails if it is known that another worker has died or failed. Never blocks; may be null. */
    mgw_status (*check)(void *state, mgw_error *error);

    /* What this worker is doing before its next collective, in words, for the errors of those who
     * wait for it. Never blocks; may be null. */
    void (*say)(void *state, const char *doing);

    /* As mgw_transport_survive. Blocks; may be null. */
    mgw_status (*survive)(void *state, unsigned round, mgw_survivors *out, mgw_error *error);

    /* Collective; the memory lives until close. May block. */
    mgw_status (*allocate)(void *state, size_t bytes, void **out, mgw_error *error);

    /*
     * For who adds up in shared memory by itself: rank 0's counterpart of `data`, in memory that
     * was allocated, with how far it is from there to each next rank's. Null: nobody sees another's
     * memory.
     */
    bool (*find_all)(void *state, const void *data, size_t bytes, char **first, size_t *stride);

    /* A meeting of all ranks, which are in the same call and the same buffer: nothing is moved.
     * Null: there are no others. */
    mgw_status (*meet)(void *state, const mgw_transport_call *call, unsigned buffer,
                       mgw_error *error);

    /*
     * Begins a collective, in place; it may block as mgw_transport_post says. *out is zero, and
     * stays so if the collective is over on return. Else test, which does not block unless it
     * fails, and wait are called for it.
     */
    mgw_status (*post)(void *state, const mgw_transport_call *call, mgw_request *out,
                       mgw_error *error);
    mgw_status (*test)(void *state, const mgw_request *request, bool *done, mgw_error *error);
    mgw_status (*wait)(void *state, const mgw_request *request, mgw_error *error);

    /* Behind all that was posted. Blocks. */
    mgw_status (*barrier)(void *state, mgw_error *error);
} mgw_transport_table;

struct mgw_transport {
    const mgw_transport_table *table;
    void *state;
    unsigned rank;
    unsigned size;
    uint64_t purpose; /* of what is posted next; */
    bool follows;     /*   and whether it surely follows what was before */
    pid_t process;    /* that joined the job */
    char name[96];
};

extern const mgw_transport_table mgw_transport_self;
extern const mgw_transport_table mgw_transport_shm;
extern const mgw_transport_table mgw_transport_tcp;
extern const mgw_transport_table mgw_transport_emulated;
extern const mgw_transport_table mgw_transport_nccl;
extern const mgw_transport_table mgw_transport_staged; /* around others, by the options alone */
#ifdef MGW_HAVE_MPI
extern const mgw_transport_table mgw_transport_mpi;
#endif

/*
 * For who opens a transport on a thread of its own: to be called before, on the program's. Sets
 * *caller if the transport may only be used from there: MPI, if it came without support for
 * threads. `options` are complete.
 */
MGW_CHECKED mgw_status mgw_transport_prepare(const mgw_transport_options *options, bool *caller,
                                             mgw_error *error);

/* Posts it and waits for it. */
MGW_CHECKED mgw_status mgw_transport_run(mgw_transport *transport, const mgw_transport_call *call,
                                         mgw_error *error);

/*
 * From now on, collectives are for this. `follows`: all workers come from the same collective to
 * the same next one, whatever their programs do, so that transports that would have to ask do not.
 */
void mgw_transport_intend(mgw_transport *transport, uint64_t purpose, bool follows);

/* Fails if it is known that another worker has died or failed. Never blocks. */
MGW_CHECKED mgw_status mgw_transport_check(mgw_transport *transport, mgw_error *error);

/* For those who wait for this worker: what it is doing until its next collective. Never blocks. */
void mgw_transport_say(mgw_transport *transport, const char *doing);

/*
 * After a failure: waits until all workers that are alive have called it, or half a minute, and
 * says who goes on: all of these, or nobody. There are never two groups that do. Who finds that
 * another one of them has died since calls it again, with the next round. Threads: any.
 * Ownership: a socket that *out has is the caller's.
 */
MGW_CHECKED mgw_status mgw_transport_survive(mgw_transport *transport, unsigned round,
                                             mgw_survivors *out, mgw_error *error);

/* As in the table; find_all is false where there is no shared memory. */
bool mgw_transport_find_all(const mgw_transport *transport, const void *data, size_t bytes,
                            char **first, size_t *stride);
MGW_CHECKED mgw_status mgw_transport_meet(mgw_transport *transport, const mgw_transport_call *call,
                                          unsigned buffer, mgw_error *error);

/*
 * On GPUs: what is posted next waits for an event, as if the stream were told to. The event must
 * stay as it is until that is over: it may be what tells whether it had its turn. Null: it waits
 * for what the stream was told of elsewhere.
 */
int mgw_transport_follow(mgw_transport *transport, void *event);

/* How many workers srun has started, this one among them; 0 if it was not srun. */
unsigned long mgw_transport_srun_tasks(void);

/* ---- setup.c ---- */

/* Completes what the caller left open, from the environment. Ownership: *out borrows from there and
 * from *given. */
MGW_CHECKED mgw_status mgw_transport_resolve(const mgw_transport_options *given,
                                             mgw_transport_setup *out, mgw_error *error);

/* That of the transport that this one goes over. */
mgw_transport_setup mgw_transport_inside(const mgw_transport_setup *setup);

/* As mgw_transport_prepare and mgw_transport_open. */
MGW_CHECKED mgw_status mgw_transport_prepare_as(const mgw_transport_setup *setup, bool *caller,
                                                mgw_error *error);
MGW_CHECKED mgw_status mgw_transport_open_as(const mgw_transport_setup *setup, mgw_transport **out,
                                             mgw_error *error);

#endif
