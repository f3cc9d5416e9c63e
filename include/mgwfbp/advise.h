/*
 * Advice: what a model loses to its network under PyTorch's DDP, and what each change would gain.
 * The planner predicts all of it.
 *
 * Threads: any, on objects that no other thread is changing. Ownership: no references are kept.
 */
#ifndef MGWFBP_ADVISE_H
#define MGWFBP_ADVISE_H

#include <stddef.h>

#include <mgwfbp/cluster.h>
#include <mgwfbp/status.h>
#include <mgwfbp/trace.h>

#pragma GCC visibility push(default)
MGW_BEGIN_DECLS

/* X(constant, name): what can be changed. */
#define MGW_LEVER_LIST(X)                                                                          \
    X(MGW_LEVER_BUCKETS, "buckets")                                                                \
    X(MGW_LEVER_PLAN, "plan")                                                                      \
    X(MGW_LEVER_OVERLAP, "overlap")                                                                \
    X(MGW_LEVER_LEVELS, "levels")                                                                  \
    X(MGW_LEVER_LEVELS_OVERLAP, "levels-overlap")                                                  \
    X(MGW_LEVER_GRADIENTS, "gradients")                                                            \
    X(MGW_LEVER_BATCH, "batch")                                                                    \
    X(MGW_LEVER_NETWORK, "network")                                                                \
    X(MGW_LEVER_FEWER, "fewer-gpus")                                                               \
    X(MGW_LEVER_MORE, "more-gpus")

typedef enum mgw_lever_kind {
#define X(constant, name) constant,
    MGW_LEVER_LIST(X)
#undef X
} mgw_lever_kind;

#define MGW_LEVER_COUNT (MGW_LEVER_MORE + 1)

const char *mgw_lever_name(mgw_lever_kind kind);

/* One change alone, with DDP's default buckets unless it changes the messages. */
typedef struct mgw_lever {
    mgw_lever_kind kind;
    char change[96];    /* in words */
    double iteration_s; /* time of a step with this change */
    double samples;     /* per step, relative to today: 2 with twice the batch size */
    double gain;        /* samples per second, relative to today */
} mgw_lever;

/* What keeps the best plan from being faster. */
typedef enum mgw_limit {
    MGW_LIMIT_COMPUTE,   /* computation: (almost) nothing is exposed */
    MGW_LIMIT_BANDWIDTH, /* sending all bytes takes longer than the computation that could hide it
                          */
    MGW_LIMIT_LAST, /* gradients that are ready last and needed first have nothing to hide behind */
    MGW_LIMIT_LATENCY, /* as MGW_LIMIT_BANDWIDTH, but most of that time does not depend on size */
} mgw_limit;

typedef struct mgw_advice {
    double compute_s;
    double ddp_s;         /* a step with PyTorch's DDP, unchanged */
    double bucket_cap_mb; /* the best value for DDP; 0: its default is best */
    double buckets_s;     /* a step with that */
    double plan_s;        /* with the best plan of whole all-reduces */
    double overlap_s;     /* with the best plan that also overlaps the next forward pass */
    double bound_s;       /* no schedule is faster */
    mgw_limit limit;
    uint64_t sent_bytes; /* all gradients in one message, in the fastest wire format, and the */
    double sent_s;       /*   time that takes: explains the limit */
    double start_s;      /* the part of it that a message without bytes takes */
    size_t lever_count;
    mgw_lever
        levers[MGW_LEVER_COUNT]; /* the largest gain first; those that do not apply are left out */
} mgw_advice;

/* `wires`: formats in which messages of plan_s and overlap_s may be sent (see mgw_cost; 0:
 * unchanged). */
MGW_CHECKED mgw_status mgw_advise(const mgw_trace *trace, const mgw_cluster *cluster,
                                  unsigned wires, mgw_advice *out, mgw_error *error);

/*
 * The bucket_cap_mb of DDP, in MiB, to advise, and the time of a step with it: within 0.1% of the
 * best of all sizes from 0.25 MiB on (of models up to 8 MiB, from 1/32 MiB on). Of the sizes that
 * are that good, the one that is best on average if the network is up to a quarter slower or faster
 * than given, or its latency is twice as long; a whole number if one is as good. As in PyTorch 2.4
 * and later, the limit also holds for the first bucket.
 */
MGW_CHECKED mgw_status mgw_advise_buckets(const mgw_trace *trace, const mgw_cost *cost,
                                          double *cap_mb, double *iteration_s, mgw_error *error);

MGW_END_DECLS
#pragma GCC visibility pop

#endif
