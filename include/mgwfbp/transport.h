/* Transports: how the workers of a job reach each other. The engine uses one; so may you. */
#ifndef MGWFBP_TRANSPORT_H
#define MGWFBP_TRANSPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <mgwfbp/cluster.h>
#include <mgwfbp/dtype.h>
#include <mgwfbp/status.h>
#include <mgwfbp/tune.h>

#pragma GCC visibility push(default)
MGW_BEGIN_DECLS

typedef struct mgw_transport mgw_transport;

/* MGW_MAX: the largest; where there are NaNs, one of the numbers. */
typedef enum mgw_op { MGW_AVERAGE, MGW_SUM, MGW_MAX } mgw_op;

/* ---- Names ---- */

/* X(constant, name). */
#define MGW_TRANSPORT_LIST(X)                                                                      \
    X(MGW_TRANSPORT_SELF, "self")                                                                  \
    X(MGW_TRANSPORT_SHM, "shm")                                                                    \
    X(MGW_TRANSPORT_MPI, "mpi")                                                                    \
    X(MGW_TRANSPORT_TCP, "tcp")                                                                    \
    X(MGW_TRANSPORT_NCCL, "nccl")                                                                  \
    X(MGW_TRANSPORT_EMULATED, "emulated")

typedef enum mgw_transport_kind {
    MGW_TRANSPORT_UNSAID, /* the environment says it */
#define X(constant, name) constant,
    MGW_TRANSPORT_LIST(X)
#undef X
} mgw_transport_kind;

/* "" where it is unsaid. Threads: any. */
const char *mgw_transport_kind_name(mgw_transport_kind kind);

/* Whether it works in the memory of hosts, and is what others can go over. */
static inline bool mgw_transport_is_host(mgw_transport_kind kind)
{
    return kind == MGW_TRANSPORT_SELF || kind == MGW_TRANSPORT_SHM || kind == MGW_TRANSPORT_MPI ||
           kind == MGW_TRANSPORT_TCP;
}

/* What a name says; see mgw_transport_options. */
typedef struct mgw_transport_spec {
    mgw_transport_kind kind;
    mgw_transport_kind
        over;   /* of nccl: what the workers agree through; of emulated: what is slow */
    double a_s; /* of emulated, without a cluster */
    double b_s_per_byte;
    char cluster[256]; /* of emulated: a file, or a built-in name; else empty */
} mgw_transport_spec;

/* Threads: any. */
MGW_CHECKED mgw_status mgw_transport_spec_parse(const char *name, mgw_transport_spec *out,
                                                mgw_error *error);

enum { MGW_TRANSPORT_SPEC_MAX = 320 };

/* A name that says the same. Threads: any. */
void mgw_transport_spec_print(const mgw_transport_spec *spec, char out[MGW_TRANSPORT_SPEC_MAX]);

/* ---- Opening ---- */

/* All zero: everything from the environment. */
typedef struct mgw_transport_options {
    /*
     * "self": one worker alone. "shm": processes (or threads) on one host, through shared memory.
     * "mpi": MPI_COMM_WORLD, initialised by the program or by us. "tcp": processes on any hosts,
     * through rank 0, for what they have to agree on: gradients do not go over it. "nccl": GPUs,
     * found at run time; what else has to be said goes over shm, tcp or mpi ("nccl:tcp").
     * "emulated:A,B" or
     * "emulated:A,B:NAME": as NAME, but every collective of M bytes lasts at least A + B*M
     * seconds, a reduce-scatter or all-gather half of that; "emulated:CLUSTER" or
     * "emulated:CLUSTER:NAME": as long as on that cluster, of a file or built in; a thread that is
     * not the main one may go before others (SCHED_RR) from the first one on, where the system
     * allows it. Null: MGWFBP_TRANSPORT; else shm if MGWFBP_JOB is set, as
     * our launcher does, and LOCAL_WORLD_SIZE is not below the number of workers; else mpi under
     * mpirun or srun; else tcp where MASTER_ADDR says where rank 0 is; else self.
     */
    const char *name;
    unsigned rank;    /* with `size`; else MGWFBP_RANK or RANK */
    unsigned size;    /* 0: MGWFBP_SIZE or WORLD_SIZE; else 1 */
    const char *job;  /* what the workers of one job have in common; null: MGWFBP_JOB */
    double timeout_s; /* how long to wait for another worker; 0: MGWFBP_TIMEOUT, else 1800, and 300
                         for others to join */
    bool on_device; /* the memory is a GPU's: nccl unless another is named, which then goes through
                       pinned memory of the host */
    /*
     * tcp: where rank 0 listens: "HOST:PORT" or "[HOST]:PORT", the same on all workers; or for rank
     * 0 "fd:N", a socket that listens already, which is the transport's from then on. Null:
     * MGWFBP_ADDRESS, else MASTER_ADDR and the port behind MASTER_PORT. Who has the job's secret
     * (MGWFBP_SECRET), if it has one, is let in.
     */
    const char *address;
} mgw_transport_options;

/*
 * Joins the job. Blocks until all workers have joined, or the timeout is over.
 * Threads: any, one at a time for one transport. Ownership: the caller closes *out.
 */
MGW_CHECKED mgw_status mgw_transport_open(const mgw_transport_options *options, mgw_transport **out,
                                          mgw_error *error);

/*
 * Leaves the job and frees what was allocated; null is fine. Waits for nobody, but on GPUs for what
 * is under way there: up to 10 s, as after a failure.
 */
void mgw_transport_close(mgw_transport *transport);

const char *mgw_transport_name(const mgw_transport *transport);
unsigned mgw_transport_rank(const mgw_transport *transport);
unsigned mgw_transport_size(const mgw_transport *transport);

/*
 * ---- Collectives ----
 *
 * Every worker calls the same ones with the same arguments in the same order. They
 * block until done; a worker that died, left, failed or did not come within the timeout is an
 * error that names it, after which the transport can only be closed. Results are the same bits on
 * every worker. 16-bit numbers are added up in 32 bits and rounded once, in rank order, and so are
 * all others over shm and in mgw_transport_reduce; of all-reduce over MPI, and over NCCL, the order
 * is theirs (and NCCL rounds as it likes).
 */

/*
 * Memory whose collectives need no copies, zeroed, 64-byte aligned; shared with the other
 * workers where the transport can. All workers ask for the same size. Freed by closing.
 */
MGW_CHECKED mgw_status mgw_transport_allocate(mgw_transport *transport, size_t bytes, void **out,
                                              mgw_error *error);

/* In place: afterwards every worker has the sum, average or largest of all workers' elements. */
MGW_CHECKED mgw_status mgw_transport_all_reduce(mgw_transport *transport, void *data, size_t count,
                                                mgw_dtype dtype, mgw_op op, mgw_error *error);

/* The part of `count` elements that belongs to a rank: for the two halves of an all-reduce. */
void mgw_transport_block(size_t count, unsigned size, unsigned rank, size_t *first, size_t *length);

/* In place: afterwards every worker's own block holds the result; the rest is undefined. */
MGW_CHECKED mgw_status mgw_transport_reduce_scatter(mgw_transport *transport, void *data,
                                                    size_t count, mgw_dtype dtype, mgw_op op,
                                                    mgw_error *error);

/* In place: afterwards every worker has all workers' own blocks. */
MGW_CHECKED mgw_status mgw_transport_all_gather(mgw_transport *transport, void *data, size_t count,
                                                mgw_dtype dtype, mgw_error *error);

/* In place: afterwards root has the result, made in rank order; the others are as before. */
MGW_CHECKED mgw_status mgw_transport_reduce(mgw_transport *transport, void *data, size_t count,
                                            mgw_dtype dtype, mgw_op op, unsigned root,
                                            mgw_error *error);

/* Afterwards every worker has root's bytes. */
MGW_CHECKED mgw_status mgw_transport_broadcast(mgw_transport *transport, void *data, size_t bytes,
                                               unsigned root, mgw_error *error);

/* Returns when all workers have called it. */
MGW_CHECKED mgw_status mgw_transport_barrier(mgw_transport *transport, mgw_error *error);

/* ---- What a transport does ---- */

typedef enum mgw_capability {
    MGW_MOVES_HALVES = 1 << 0,  /* reduce-scatter and all-gather each move half of an all-reduce */
    MGW_ON_DEVICE = 1 << 1,     /* for the memory of GPUs */
    MGW_NAMES_LATE = 1 << 2,    /* an error says which worker did not come */
    MGW_WAITS_ASLEEP = 1 << 3,  /* who waits soon sleeps, and leaves the core to others */
    MGW_SHARES_MEMORY = 1 << 4, /* what it allocates is seen by all workers */
    MGW_GOES_ON = 1 << 5,       /* what was posted goes on without calls, and post does not wait */
} mgw_capability;

/* Those it has, in one number. Threads: any. */
unsigned mgw_transport_capabilities(const mgw_transport *transport);

/* ---- Collectives that are begun now, and over later ---- */

/* One of them: MGW_PUSH is mgw_transport_reduce, MGW_PULL mgw_transport_broadcast. */
typedef struct mgw_call {
    mgw_collective kind;
    void *data;
    size_t count; /* of elements; of a pull, of bytes */
    mgw_dtype dtype;
    mgw_op op;     /* of all-reduce, reduce-scatter and push */
    unsigned root; /* of push and pull */
    /* Of reduce-scatter and all-gather: lengths, in elements, that add up to `count`; each segment
     * is divided into blocks on its own. Null: all is one. Borrowed as long as the data. */
    const size_t *segments;
    size_t segment_count;
} mgw_call;

/* What was posted. The fields are the transport's. */
typedef struct mgw_request {
    uint64_t number;
    double end_s;
} mgw_request;

/*
 * Begins a collective; its data belongs to the transport until the request is over. Any number may
 * be open. They run, and are over, in the order in which they were posted; so a request that was
 * not asked after is over when a later one is.
 *
 * With MGW_GOES_ON it returns once the collective is on the transport's stream. Else it may last as
 * long as the collective: shm and self do all work here, and mpi first ends what was posted before;
 * mpi then goes on in test and wait only. In the memory of GPUs through the host's, the last copies
 * are all that is left when it returns; emulated, the rest of the time.
 */
MGW_CHECKED mgw_status mgw_transport_post(mgw_transport *transport, const mgw_call *call,
                                          mgw_request *out, mgw_error *error);

/*
 * Whether it is over. Does not wait, but for finding out because of whom when it fails: a worker
 * has died, left or failed, or did not come within the timeout. That counts from when the
 * collective had its turn: on a GPU, what the program computes before may take long; over mpi, only
 * while somebody asks.
 */
MGW_CHECKED mgw_status mgw_request_test(mgw_transport *transport, const mgw_request *request,
                                        bool *done, mgw_error *error);

/* Returns when it is over. Fails as mgw_request_test does. */
MGW_CHECKED mgw_status mgw_request_wait(mgw_transport *transport, const mgw_request *request,
                                        mgw_error *error);

/*
 * On GPUs ("nccl", or any with the option on_device): memory from mgw_transport_allocate is the
 * device's, and so are results of its collectives; they run on a stream of the transport's, which
 * the caller lets wait for the data. Numbers in the host's memory may be reduced or broadcast, too.
 * Elsewhere there is no stream (null).
 */
bool mgw_transport_on_device(const mgw_transport *transport);
void *mgw_transport_stream(const mgw_transport *transport);

/* For a tuner: workers tell each other over this transport, in the host's memory. Ownership: it is
 * borrowed, and must be open as long. */
mgw_exchange mgw_transport_exchange(mgw_transport *transport);

MGW_END_DECLS
#pragma GCC visibility pop

#endif
