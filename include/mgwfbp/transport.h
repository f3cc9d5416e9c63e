/*
 * Transports: communication between the workers of a job. The engine uses one, and so can programs.
 */
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

/* MGW_MAX: the largest; with NaNs, any of the numbers. */
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
    MGW_TRANSPORT_UNSAID, /* taken from the environment */
#define X(constant, name) constant,
    MGW_TRANSPORT_LIST(X)
#undef X
} mgw_transport_kind;

/* "" for MGW_TRANSPORT_UNSAID. Threads: any. */
const char *mgw_transport_kind_name(mgw_transport_kind kind);

/* Whether it works in host memory, so that other transports can be built on it. */
static inline bool mgw_transport_is_host(mgw_transport_kind kind)
{
    return kind == MGW_TRANSPORT_SELF || kind == MGW_TRANSPORT_SHM || kind == MGW_TRANSPORT_MPI ||
           kind == MGW_TRANSPORT_TCP;
}

/* A parsed name; see mgw_transport_options. */
typedef struct mgw_transport_spec {
    mgw_transport_kind kind;
    mgw_transport_kind over; /* of nccl: the transport for coordination; of emulated: the transport
                                that is slowed down */
    double a_s;              /* of emulated, without a cluster */
    double b_s_per_byte;
    char cluster[256]; /* of emulated: a file, or a built-in name; else empty */
} mgw_transport_spec;

/* Threads: any. */
MGW_CHECKED mgw_status mgw_transport_spec_parse(const char *name, mgw_transport_spec *out,
                                                mgw_error *error);

enum { MGW_TRANSPORT_SPEC_MAX = 320 };

/* The name that parses to this specification. Threads: any. */
void mgw_transport_spec_print(const mgw_transport_spec *spec, char out[MGW_TRANSPORT_SPEC_MAX]);

/* ---- Opening ---- */

/* All zero: everything from the environment. */
typedef struct mgw_transport_options {
    /*
     * "self": one worker alone. "shm": processes (or threads) on one host, through shared memory.
     * "mpi": MPI_COMM_WORLD, initialised by the program or by us. "tcp": processes on any hosts,
     * through rank 0, for coordination only; it carries no gradients. "nccl": GPUs, with NCCL
     * loaded at run time; everything else goes over shm, tcp or mpi ("nccl:tcp"). "emulated:A,B" or
     * "emulated:A,B:NAME": as NAME, but every collective of M bytes lasts at least A + B*M seconds,
     * a reduce-scatter or all-gather half of that; "emulated:CLUSTER" or "emulated:CLUSTER:NAME":
     * as long as on that cluster, a file or a built-in name. From the first emulated collective on,
     * a thread other than the main one may run at real-time priority (SCHED_RR), where the system
     * allows it. Null: MGWFBP_TRANSPORT; else shm if MGWFBP_JOB is set, as our launcher does, and
     * LOCAL_WORLD_SIZE is not below the number of workers; else mpi under mpirun or srun; else tcp
     * if MASTER_ADDR is set; else self.
     */
    const char *name;
    unsigned rank;    /* with `size`; else MGWFBP_RANK or RANK */
    unsigned size;    /* 0: MGWFBP_SIZE or WORLD_SIZE; else 1 */
    const char *job;  /* name shared by the workers of one job; null: MGWFBP_JOB */
    double timeout_s; /* how long to wait for another worker; 0: MGWFBP_TIMEOUT, else 1800, and 300
                         for others to join */
    bool on_device;   /* for GPU memory: nccl, unless another transport is named, which then goes
                         through pinned host memory */
    /*
     * tcp: where rank 0 listens: "HOST:PORT" or "[HOST]:PORT", the same on all workers; or for rank
     * 0 "fd:N", a listening socket, which the transport owns from then on. Null: MGWFBP_ADDRESS,
     * else MASTER_ADDR and the port after MASTER_PORT. If the job has a secret (MGWFBP_SECRET),
     * only workers that have it are admitted.
     */
    const char *address;
    double join_s; /* how long to wait for others to join; 0: as timeout_s says */
    /*
     * nccl: how many connections (NCCL's communicators) move the parts of a long message at the
     * same time, at most 8; rank 0's number counts. Over sockets, each is served by a thread of its
     * own, and one thread is slower than fast networks. 0: MGWFBP_LANES, else as many as make
     * messages clearly faster, measured at the start; at most 4, and as many as there are cores
     * for.
     */
    unsigned lanes;
} mgw_transport_options;

/*
 * Joins the job. Blocks until all workers have joined, or until the timeout.
 * Threads: any, one at a time for one transport. Ownership: the caller closes *out.
 */
MGW_CHECKED mgw_status mgw_transport_open(const mgw_transport_options *options, mgw_transport **out,
                                          mgw_error *error);

/*
 * Leaves the job and frees allocated memory; null is fine. Does not wait for other workers. On GPUs
 * it waits up to 10 s for work in flight, for example after a failure.
 */
void mgw_transport_close(mgw_transport *transport);

const char *mgw_transport_name(const mgw_transport *transport);
unsigned mgw_transport_rank(const mgw_transport *transport);
unsigned mgw_transport_size(const mgw_transport *transport);

/*
 * ---- Collectives ----
 *
 * Every worker makes the same calls with the same arguments in the same order; otherwise all get an
 * error that says which worker is in which call, before any data is moved (except with `self`).
 * Calls block until done. If a worker dies, leaves, fails or times out, the error names it, and the
 * transport can only be closed. Results are bit for bit the same on every worker. 16-bit numbers
 * are summed in 32 bits in rank order and rounded once, and so are all others over shm and in
 * mgw_transport_reduce. In all-reduces over MPI, and over NCCL, the library chooses the order (and
 * NCCL rounds at every hop, unless rounds_once is set in mgw_call).
 */

/*
 * Memory whose collectives need no copies, zeroed, 64-byte aligned; shared with the other workers
 * if the transport can. All workers ask for the same size. Freed when the transport is closed.
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

/* In place: afterwards root has the result, summed in rank order; the others' data is unchanged. */
MGW_CHECKED mgw_status mgw_transport_reduce(mgw_transport *transport, void *data, size_t count,
                                            mgw_dtype dtype, mgw_op op, unsigned root,
                                            mgw_error *error);

/* Afterwards every worker has root's bytes. */
MGW_CHECKED mgw_status mgw_transport_broadcast(mgw_transport *transport, void *data, size_t bytes,
                                               unsigned root, mgw_error *error);

/* Returns when all workers have called it. */
MGW_CHECKED mgw_status mgw_transport_barrier(mgw_transport *transport, mgw_error *error);

/* ---- Capabilities ---- */

typedef enum mgw_capability {
    MGW_MOVES_HALVES = 1 << 0,  /* reduce-scatter and all-gather each move half of an all-reduce */
    MGW_ON_DEVICE = 1 << 1,     /* for the memory of GPUs */
    MGW_NAMES_LATE = 1 << 2,    /* errors name the worker that timed out */
    MGW_WAITS_ASLEEP = 1 << 3,  /* a waiting worker soon sleeps, and leaves the core to others */
    MGW_SHARES_MEMORY = 1 << 4, /* all workers see what it allocates */
    MGW_GOES_ON = 1 << 5, /* posted collectives proceed without calls, and post does not wait */
} mgw_capability;

/* Its capabilities, as a bit set. Threads: any. */
unsigned mgw_transport_capabilities(const mgw_transport *transport);

/* How many lanes move the parts of a long message. Threads: any. */
unsigned mgw_transport_lanes(const mgw_transport *transport);

/* ---- Collectives that run in the background ---- */

/* One of them: MGW_PUSH is mgw_transport_reduce, MGW_PULL mgw_transport_broadcast. */
typedef struct mgw_call {
    mgw_collective kind;
    void *data;
    size_t count; /* of elements; of a pull, of bytes */
    mgw_dtype dtype;
    mgw_op op;     /* of all-reduce, reduce-scatter and push */
    unsigned root; /* of push and pull */
    /* Of reduce-scatter and all-gather: lengths, in elements, that add up to `count`; each segment
     * is divided into blocks on its own. Null: one segment. Borrowed as long as the data. */
    const size_t *segments;
    size_t segment_count;
    /* Of sums and averages of 16-bit numbers over NCCL: summed in 32 bits in rank order and rounded
     * once, as all other transports do, instead of rounded by NCCL at every hop. 8-bit ones always
     * are. */
    bool rounds_once;
    /* All workers are known to make this call after the previous one. Then mpi and nccl do not
     * compare calls; shm and tcp always do. */
    bool follows;
} mgw_call;

/* A posted collective. The fields are private to the transport. */
typedef struct mgw_request {
    uint64_t number;
    double end_s;
} mgw_request;

/*
 * Begins a collective; the transport owns its data until the request is over. Any number may be
 * open. They run and end in the order in which they were posted, so when a request is over, all
 * earlier ones are.
 *
 * With MGW_GOES_ON it returns once the collective is on the transport's stream. Otherwise it may
 * take as long as the collective: shm and self do all work here, and mpi first finishes what was
 * posted before, and then only proceeds in test and wait. For GPU memory through the host, only the
 * last copies are left when it returns; for emulated, only the rest of the time.
 */
MGW_CHECKED mgw_status mgw_transport_post(mgw_transport *transport, const mgw_call *call,
                                          mgw_request *out, mgw_error *error);

/*
 * Whether it is over. Does not wait, except to find out which worker is to blame when it fails: one
 * that has died, left or failed, or did not come within the timeout. The timeout starts when it is
 * the collective's turn (on a GPU, the computation before it may take long); over mpi, it only runs
 * while the program calls test or wait.
 */
MGW_CHECKED mgw_status mgw_request_test(mgw_transport *transport, const mgw_request *request,
                                        bool *done, mgw_error *error);

/* Returns when it is over. Fails as mgw_request_test does. */
MGW_CHECKED mgw_status mgw_request_wait(mgw_transport *transport, const mgw_request *request,
                                        mgw_error *error);

/*
 * On GPUs ("nccl", or any with the option on_device): memory from mgw_transport_allocate is on the
 * device, and so are the results of its collectives. They run on the transport's stream, which the
 * caller must make wait for the data. Numbers in host memory can also be reduced or broadcast.
 * Without a device there is no stream (null).
 */
bool mgw_transport_on_device(const mgw_transport *transport);
void *mgw_transport_stream(const mgw_transport *transport);

/*
 * Measures the time to cast f32 to every wire format and back, in the memory of the transport (the
 * host or a GPU), on the slowest worker, and stores it in the cluster. Collective.
 */
MGW_CHECKED mgw_status mgw_measure_casts(mgw_transport *transport, mgw_cluster *cluster,
                                         mgw_error *error);

/* For a tuner: an exchange over this transport, in host memory. Ownership: the transport is
 * borrowed and must stay open as long. */
mgw_exchange mgw_transport_exchange(mgw_transport *transport);

MGW_END_DECLS
#pragma GCC visibility pop

#endif
