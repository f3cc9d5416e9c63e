/*
 * A cluster: the cost of a collective, from a formula, from link constants or as measured.
 *
 * Threads: any, on objects that no other thread is changing; reading one from several is fine.
 * Ownership: the caller destroys what a function creates; nothing else is kept or freed.
 */
#ifndef MGWFBP_CLUSTER_H
#define MGWFBP_CLUSTER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <mgwfbp/dtype.h>
#include <mgwfbp/status.h>
#include <mgwfbp/text.h>

#pragma GCC visibility push(default)
MGW_BEGIN_DECLS

/* ---- The cost of one collective ---- */

/* X(constant, name). */
#define MGW_COLLECTIVE_LIST(X)                                                                     \
    X(MGW_ALL_REDUCE, "all-reduce")                                                                \
    X(MGW_REDUCE_SCATTER, "reduce-scatter")                                                        \
    X(MGW_ALL_GATHER, "all-gather")                                                                \
    X(MGW_PUSH, "push")                                                                            \
    X(MGW_PULL, "pull")

typedef enum mgw_collective {
#define X(constant, name) constant,
    MGW_COLLECTIVE_LIST(X)
#undef X
} mgw_collective;

#define MGW_COLLECTIVE_COUNT (MGW_PULL + 1)

const char *mgw_collective_name(mgw_collective kind);
MGW_CHECKED mgw_status mgw_collective_parse(const char *name, mgw_collective *out,
                                            mgw_error *error);

/* Whether it averages gradients, instead of distributing what has been averaged or updated. */
bool mgw_collective_averages(mgw_collective kind);

typedef struct mgw_sample {
    uint64_t bytes;
    double seconds;
} mgw_sample;

/*
 * T(M) of one kind of collective, the seconds that a message of M bytes takes: a + b*M, or a curve
 * through samples if there are any (sorted, distinct sizes, times that never fall); a and b are
 * then its fit. M counts the whole message, not a worker's part of it.
 */
typedef struct mgw_curve {
    double a_s;
    double b_s_per_byte;
    size_t sample_count;
    const mgw_sample *samples;
} mgw_curve;

/*
 * Time to cast f32 gradients to a narrower format before they are sent, and back to f32 afterwards:
 * a + c*M for M bytes of f32.
 */
typedef struct mgw_cast {
    double a_s;
    double c_s_per_byte;
} mgw_cast;

/*
 * How computation and messages slow each other down while both run: by how many times as long each
 * takes then. Below 1, also 0, counts as 1.
 */
typedef struct mgw_beside {
    double message;
    double compute;
} mgw_beside;

/*
 * The cost of every kind of collective. Ownership: samples and `cluster` are borrowed from the
 * cluster it was taken from.
 */
typedef struct mgw_cost {
    mgw_curve of[MGW_COLLECTIVE_COUNT];
    unsigned workers;
    const char *cluster; /* its name */
    double worth_s;      /* gain that the best plans require of one more message */
    unsigned wires; /* bits 1 << dtype: formats in which f32 gradients may be sent; 0: f32 only */
    mgw_cast casts[MGW_DTYPE_COUNT]; /* by wire */
    mgw_beside beside; /* all times above are of messages without computation beside them */
} mgw_cost;

/*
 * T(bytes) of that kind: never negative, never decreasing. Between samples it is interpolated
 * linearly; below the first it is constant; above the last it continues with the slope over the
 * last factor of four, or with b if that is flat. Threads: any.
 */
double mgw_cost_seconds(const mgw_cost *cost, mgw_collective kind, uint64_t bytes);

/*
 * Makes all collectives `factor` times as long, on lines and on curves. Ownership: *samples are
 * those of the changed cost, which borrows them, or null; the caller frees them. Threads: any.
 */
MGW_CHECKED mgw_status mgw_cost_scale(mgw_cost *cost, double factor, mgw_sample **samples,
                                      mgw_error *error);

/* ---- Wires: formats in which f32 gradients are sent ---- */

/* Number of elements of an 8-bit message that share a scale, which is sent with them as an f32. */
#define MGW_FP8_BLOCK 1024

/* Reads "auto" (f32, bf16 or fp8, whichever is fastest for a message), "f32", or several of
 * f32, f16, bf16, fp8 and fp8-e5m2, separated by commas: bits for mgw_cost. Threads: any. */
MGW_CHECKED mgw_status mgw_wires_parse(const char *text, unsigned *out, mgw_error *error);

/* Whether f32 gradients can be sent in this format. */
bool mgw_wire_is_known(mgw_dtype wire);

/* Bytes that a message of this many f32 gradients sends, including its scales. */
uint64_t mgw_wire_bytes(mgw_dtype wire, uint64_t elements);

/*
 * The time of a message of `bytes` bytes of f32 in this format: the casts before and after it, T of
 * the bytes sent, and for 8 bits T of an all-reduce of the largest magnitude of each block.
 */
double mgw_wire_seconds(const mgw_cost *cost, mgw_collective kind, mgw_dtype wire, uint64_t bytes);

/* The fastest of cost->wires for that message; the widest, if several are equally fast. */
mgw_dtype mgw_wire_choose(const mgw_cost *cost, mgw_collective kind, uint64_t bytes);

/*
 * T of that kind if every message has the fastest of cost->wires: a line, or a curve.
 * Ownership: the caller frees the samples of *out, if it has any.
 */
MGW_CHECKED mgw_status mgw_wire_curve(const mgw_cost *cost, mgw_collective kind, mgw_curve *out,
                                      mgw_error *error);

/* ---- Algorithms, from link constants ---- */

/* X(constant, name, needs a power of two). */
#define MGW_ALGORITHM_LIST(X)                                                                      \
    X(MGW_BINARY_TREE, "binary-tree", true)                                                        \
    X(MGW_RECURSIVE_DOUBLING, "recursive-doubling", true)                                          \
    X(MGW_RECURSIVE_HALVING_DOUBLING, "recursive-halving-doubling", true)                          \
    X(MGW_DOUBLE_BINARY_TREES, "double-binary-trees", true)                                        \
    X(MGW_RING, "ring", false)                                                                     \
    X(MGW_PARAMETER_SERVER, "parameter-server", false)

typedef enum mgw_algorithm {
#define X(constant, name, power_of_two) constant,
    MGW_ALGORITHM_LIST(X)
#undef X
} mgw_algorithm;

#define MGW_ALGORITHM_COUNT (MGW_PARAMETER_SERVER + 1)

const char *mgw_algorithm_name(mgw_algorithm algorithm);
MGW_CHECKED mgw_status mgw_algorithm_parse(const char *name, mgw_algorithm *out, mgw_error *error);

typedef struct mgw_link {
    double alpha_s;          /* to start one transfer between two workers */
    double beta_s_per_byte;  /* to move a byte */
    double gamma_s_per_byte; /* to add up a byte */
} mgw_link;

typedef struct mgw_line {
    double a_s;
    double b_s_per_byte;
} mgw_line;

/*
 * a and b of an all-reduce (or a push and a pull, with the message spread over `servers` parameter
 * servers) among `workers` workers. Fails for fewer than 2 workers, and for a number that is not a
 * power of two if the algorithm is built on halving.
 */
MGW_CHECKED mgw_status mgw_algorithm_line(mgw_algorithm algorithm, const mgw_link *link,
                                          unsigned workers, unsigned servers, mgw_line *out,
                                          mgw_error *error);

/* The inverse, with gamma = 0: the link under which the algorithm has this a and b. */
MGW_CHECKED mgw_status mgw_algorithm_link(mgw_algorithm algorithm, const mgw_line *line,
                                          unsigned workers, unsigned servers, mgw_link *out,
                                          mgw_error *error);

/* ---- Networks by name ---- */

/* Typical values of a link. Real networks differ; measure yours. */
typedef struct mgw_network {
    const char *name;
    double latency_s; /* of one transfer */
    double gbit_per_s;
    const char *about;
} mgw_network;

/* From slow to fast, family by family. Ownership: static. */
const mgw_network *mgw_network_list(size_t *count);
mgw_link mgw_network_link(const mgw_network *network);

/* The link of a network by its name ("100gbe"), or by latency and bandwidth ("30us,100Gbit/s"). */
MGW_CHECKED mgw_status mgw_network_parse(const char *name, mgw_link *out, mgw_error *error);

/* ---- Fitting ---- */

typedef struct mgw_fit {
    mgw_line line;             /* both >= 0 */
    double r2;                 /* of relative errors: 1 is perfect */
    double max_relative_error; /* the largest |fit - measured| / measured */
    uint64_t worst_bytes;      /* its message size */
} mgw_fit;

/*
 * The a, b >= 0 that minimise the sum of squared *relative* errors, so that a 1 KB message counts
 * as much as a 1 GB one. Needs two different sizes and positive times.
 */
MGW_CHECKED mgw_status mgw_fit_line(const mgw_sample *samples, size_t count, mgw_fit *out,
                                    mgw_error *error);

/* ---- Clusters ---- */

typedef enum mgw_cluster_kind {
    MGW_CLUSTER_COST,      /* a and b */
    MGW_CLUSTER_PUSH_PULL, /* of a parameter server: a and b of each direction */
    MGW_CLUSTER_LINK,      /* link constants and an algorithm */
    MGW_CLUSTER_SAMPLES,   /* measured */
    MGW_CLUSTER_LEVELS,    /* links inside a node, links between nodes */
} mgw_cluster_kind;

/*
 * One level of a cluster: how groups of the level below (in the first: workers) are linked. A
 * collective goes up the levels and down again: a reduce-scatter inside each group, an
 * all-reduce of the shards between them, an all-gather inside.
 */
typedef struct mgw_level {
    char *name;
    unsigned workers; /* groups that it links, or workers: at least 1 */
    unsigned ports; /* links of a group at this level, which its shards are spread over: at least 1,
                       at most its workers */
    mgw_link link;
    mgw_algorithm algorithm;
} mgw_level;

/* The given cost of one kind of collective: a line, or measured samples, sorted by size. */
typedef struct mgw_measured {
    bool given;
    mgw_line line; /* the fit, if there are samples */
    size_t sample_count;
    mgw_sample *samples;
    double *within; /* as in mgw_cluster */
} mgw_measured;

typedef struct mgw_cluster {
    char *name;
    unsigned workers;     /* at least 2 */
    bool assumes_workers; /* where it comes from does not say how many; 2 are assumed */
    mgw_cluster_kind kind;
    mgw_line cost; /* of an all-reduce; the sum of the two for PUSH_PULL; the fit for SAMPLES */
    mgw_line push; /* PUSH_PULL */
    mgw_line pull; /* PUSH_PULL */
    mgw_link link; /* LINK */
    mgw_algorithm algorithm;
    unsigned servers;    /* LINK with MGW_PARAMETER_SERVER; else 1 */
    size_t sample_count; /* SAMPLES: as measured, sorted by size */
    mgw_sample *samples;
    size_t level_count; /* LEVELS: from the inside out */
    mgw_level *levels;
    double *within; /* by sample: its relative uncertainty; null: unknown */
    mgw_measured given[MGW_COLLECTIVE_COUNT]; /* of kinds other than the all-reduce */
    mgw_cast casts[MGW_DTYPE_COUNT];          /* by wire: measured, or typical of a GPU; */
    unsigned casts_given;                     /* bits 1 << dtype: those that were measured */
    mgw_beside beside;                        /* as in mgw_cost; 1 if unknown */
    mgw_curve of[MGW_COLLECTIVE_COUNT];       /* all kinds; one point per size, never falling */
} mgw_cluster;

/*
 * Reads a cluster file, or measurements (the output of nccl-tests or the OSU benchmarks, CSV). If
 * there is no such file: the built-in cluster of that name, or a network (mgw_network_parse) as a
 * ring of 2 workers that can be rescaled. Threads: any. Ownership: the caller destroys *out.
 */
MGW_CHECKED mgw_status mgw_cluster_load(const char *path_or_name, mgw_cluster **out,
                                        mgw_error *error);
MGW_CHECKED mgw_status mgw_cluster_parse(const char *origin, const char *text, size_t size,
                                         mgw_cluster **out, mgw_error *error);
void mgw_cluster_destroy(mgw_cluster *cluster);

/* Appends the cluster as JSON. */
void mgw_cluster_write(const mgw_cluster *cluster, mgw_text *text);

/* Makes a cluster from measured samples (copied) or from a and b. */
MGW_CHECKED mgw_status mgw_cluster_from_samples(const char *name, unsigned workers,
                                                const mgw_sample *samples, size_t count,
                                                mgw_cluster **out, mgw_error *error);
MGW_CHECKED mgw_status mgw_cluster_from_line(const char *name, unsigned workers,
                                             const mgw_line *line, mgw_cluster **out,
                                             mgw_error *error);
MGW_CHECKED mgw_status mgw_cluster_from_push_pull(const char *name, unsigned workers,
                                                  const mgw_line *push, const mgw_line *pull,
                                                  mgw_cluster **out, mgw_error *error);
MGW_CHECKED mgw_status mgw_cluster_from_link(const char *name, unsigned workers,
                                             const mgw_link *link, mgw_algorithm algorithm,
                                             unsigned servers, mgw_cluster **out, mgw_error *error);

/* Levels from the inside out (copied, with their names). The number of workers is the product over
 * the levels. */
MGW_CHECKED mgw_status mgw_cluster_from_levels(const char *name, const mgw_level *levels,
                                               size_t count, mgw_cluster **out, mgw_error *error);

/*
 * Sets the cost of one kind of collective, by a and b or by measured samples (copied). A kind that
 * is never set is derived: from the algorithm if that consists of a reduce-scatter and an
 * all-gather (ring, recursive halving and doubling) or of a push and a pull, otherwise as half of
 * an all-reduce. The all-reduce itself, and push and pull where the cluster was made from them,
 * cannot be set.
 */
MGW_CHECKED mgw_status mgw_cluster_set_line(mgw_cluster *cluster, mgw_collective kind,
                                            const mgw_line *line, mgw_error *error);
MGW_CHECKED mgw_status mgw_cluster_set_samples(mgw_cluster *cluster, mgw_collective kind,
                                               const mgw_sample *samples, size_t count,
                                               mgw_error *error);

/* Sets the uncertainty of the samples of a kind: a share for each, in the order of sizes. */
MGW_CHECKED mgw_status mgw_cluster_set_within(mgw_cluster *cluster, mgw_collective kind,
                                              const double *within, mgw_error *error);

/* Sets the time to cast f32 gradients to a wire format and back. Rescaling keeps it. */
MGW_CHECKED mgw_status mgw_cluster_set_cast(mgw_cluster *cluster, mgw_dtype wire,
                                            const mgw_cast *cast, mgw_error *error);

/* Sets how computation and messages slow each other down. Rescaling keeps it. */
MGW_CHECKED mgw_status mgw_cluster_set_beside(mgw_cluster *cluster, const mgw_beside *beside,
                                              mgw_error *error);

/* Copies what belongs to the workers themselves (casts, beside) to a cluster of the same workers
 * with other links. */
void mgw_cluster_copy_workers(const mgw_cluster *from, mgw_cluster *to);

/*
 * The cost of collectives on the cluster. Ownership: *out borrows from the cluster, which must
 * outlive it.
 */
void mgw_cluster_cost(const mgw_cluster *cluster, mgw_cost *out);

/*
 * The share of one level of a cluster with levels (0 is the innermost): a, b of each kind by its
 * links alone. The shares of all levels add up to mgw_cluster_cost; those of levels that link
 * nobody are 0. Casts belong to the innermost; `beside` is left out.
 * Ownership: *out borrows from the cluster, which must outlive it.
 */
void mgw_cluster_level_cost(const mgw_cluster *cluster, size_t level, mgw_cost *out);

/*
 * Changes the number of workers, and the algorithm if one is given (null: unchanged). Only link
 * constants can be scaled. Measurements hold only for the workers they were made with, so kinds
 * that were set are derived again. With levels, the outermost is scaled: nodes stay as they are.
 */
MGW_CHECKED mgw_status mgw_cluster_rescale(mgw_cluster *cluster, unsigned workers,
                                           const mgw_algorithm *algorithm, mgw_error *error);

/* Nodes with several workers each. */
typedef struct mgw_shape {
    unsigned nodes;
    unsigned gpus;  /* workers of a node */
    unsigned ports; /* links of a node to the others: at most `gpus` */
} mgw_shape;

/*
 * The cluster for that many nodes and workers, linked by `inside` within a node; the links of
 * `cluster` now link nodes. Levels are reshaped, links become the outer level. A measured cluster
 * must have been measured on `measured`, which has several nodes: the time of the links inside is
 * subtracted from the fitted line, and the rest is scaled as a ring of nodes.
 * Ownership: the caller destroys *out, and keeps `cluster`.
 */
MGW_CHECKED mgw_status mgw_cluster_reshape(const mgw_cluster *cluster, const mgw_shape *shape,
                                           const char *inside_name, const mgw_link *inside,
                                           const mgw_shape *measured, mgw_cluster **out,
                                           mgw_error *error);

/* ---- Importing measurements ---- */

typedef enum mgw_import_format {
    MGW_IMPORT_CLUSTER,   /* our own JSON, with samples */
    MGW_IMPORT_CSV,       /* bytes,seconds */
    MGW_IMPORT_OSU,       /* osu_allreduce */
    MGW_IMPORT_NCCL_TEXT, /* nccl-tests' table */
    MGW_IMPORT_NCCL_JSON, /* nccl-tests -J */
} mgw_import_format;

const char *mgw_import_format_name(mgw_import_format format);

typedef struct mgw_import {
    mgw_import_format format;
    unsigned workers; /* in the measurement, or 0 if the text does not say */
} mgw_import;

/*
 * Reads measurements in any of these formats, which it detects, into a cluster of samples, named
 * after `origin`. Our own JSON may hold a cluster of any kind. If there are two columns, the
 * in-place times are used. `workers` sets the number of workers; 0: as in the text, or 2 if it says
 * nothing. Ownership: the caller destroys *out.
 */
MGW_CHECKED mgw_status mgw_cluster_import(const char *origin, const char *text, size_t size,
                                          unsigned workers, mgw_import *about, mgw_cluster **out,
                                          mgw_error *error);

/* The same from a file or the name of a built-in cluster. */
MGW_CHECKED mgw_status mgw_cluster_import_file(const char *path_or_name, unsigned workers,
                                               mgw_import *about, mgw_cluster **out,
                                               mgw_error *error);

MGW_END_DECLS
#pragma GCC visibility pop

#endif
