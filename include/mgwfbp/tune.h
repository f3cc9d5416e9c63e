/*
 * The tuner learns from steps and decides which plan comes next. It has no threads and no I/O: a
 * driver tells it about steps, and carries its messages between workers.
 *
 *     mgw_calibrate(&how, &exchange, &cluster, &error);    what messages cost, measured
 *     mgw_tuner_create(&options, n, names, bytes, cluster, &tuner, &error);
 *     for each step:
 *         if (mgw_tuner_due(tuner))                        the same on every worker
 *             mgw_tuner_look(tuner, &exchange, true, &changed, &error);
 *         else
 *             changed = mgw_tuner_turn(tuner);             likewise
 *         run the operations of mgw_tuner_operations(tuner, &count)
 *         mgw_tuner_count(tuner);
 *         mgw_tuner_observe(tuner, &record);
 *
 * Threads: one at a time for one tuner.
 */
#ifndef MGWFBP_TUNE_H
#define MGWFBP_TUNE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <mgwfbp/cluster.h>
#include <mgwfbp/dtype.h>
#include <mgwfbp/plan.h>
#include <mgwfbp/status.h>
#include <mgwfbp/trace.h>
#include <mgwfbp/trial.h>

#pragma GCC visibility push(default)
MGW_BEGIN_DECLS

/* How a driver reaches the other workers. Both calls are collective, and results are bit for bit
 * the same on all workers. */
typedef struct mgw_exchange {
    void *context;
    unsigned rank;
    unsigned size;
    /* In place: the first `sums` numbers become the sums over all workers, the `maxima` after them
     * the largest. So the amount of data does not grow with the number of workers. */
    mgw_status (*combine)(void *context, double *values, size_t sums, size_t maxima,
                          mgw_error *error);
    /* All workers get rank 0's bytes. */
    mgw_status (*tell)(void *context, void *data, size_t bytes, mgw_error *error);
} mgw_exchange;

/* ---- Calibration ---- */

/* Which sizes to measure, and how. */
typedef struct mgw_calibration {
    const char *name; /* of the cluster */
    uint64_t least_bytes;
    uint64_t most_bytes;
    unsigned factor;     /* from one size to the next, at first */
    unsigned more_sizes; /* at most this many more between those, where the curve bends */
    unsigned repeats; /* their median counts, on the slowest worker; large sizes are repeated less
                         if time is short */
    unsigned most_repeats; /* this many if they differ by more than 5% */
    double enough_s; /* time limit for all of it: larger or further sizes that would exceed it are
                        left out; 0: no limit */
    unsigned kinds;  /* bits 1 << mgw_collective; PUSH and PULL make a parameter server's cluster */
    bool keeps_samples; /* keep the measured curve; else a line, if one fits all samples within 5%
                           and their uncertainty */
    void *context; /* Times one collective of `bytes` once, among all workers, after a barrier: */
    mgw_status (*time)(void *context, mgw_collective kind, uint64_t bytes, double *seconds,
                       mgw_error *error);
    /* Null, or says whether this worker should stop: then all do, with the samples so far. */
    bool (*stops)(void *context);
} mgw_calibration;

/* Collective. Ownership: the caller destroys *out. */
MGW_CHECKED mgw_status mgw_calibrate(const mgw_calibration *how, const mgw_exchange *exchange,
                                     mgw_cluster **out, mgw_error *error);

/* ---- Lanes ---- */

/* Workers per core on the most crowded host. Collective. */
MGW_CHECKED mgw_status mgw_crowd(const mgw_exchange *exchange, double *out, mgw_error *error);

/* A message that is timed to find their number; and the least part that is worth a lane. */
enum { MGW_PROBE_BYTES = 8 << 20, MGW_LANE_BYTES = 512 << 10 };

/*
 * How many connections (lanes) should move the parts of a long message at the same time, if each is
 * served by a thread of its own: their number doubles as long as messages become clearly faster, if
 * there are cores for the threads. `time` measures an all-reduce of MGW_PROBE_BYTES over so many
 * lanes, never fewer than before, among all workers, after a barrier. Collective.
 */
MGW_CHECKED mgw_status mgw_choose_lanes(const mgw_exchange *exchange, void *context,
                                        mgw_status (*time)(void *context, unsigned lanes,
                                                           double *seconds, mgw_error *error),
                                        unsigned *out, mgw_error *error);

/*
 * ---- The tuner ----
 *
 * The cost model proposes plans, and real steps decide. After the measured steps and the early
 * looks, plans are tried on real steps, a few steps each in turn: PyTorch DDP's buckets, the
 * model's best plan, the current plan and those before it, and neighbours with fewer and with more
 * messages (mgw_trial decides), in about `trials` steps at most. The winner stays. Looks follow
 * every replan_steps. If the winner's own steps become slower or faster, all plans are tried again.
 * From time to time, and when the model predicts a sufficient gain for a plan that was not tried,
 * the winner is compared with DDP's buckets and one other plan. With parameters to gather, turns
 * are longer, since state moves between them. Without `trials`, with one worker, and with a policy
 * other than "optimal", "overlap" and "sharded", the model's plan is used. With "sharded", buckets
 * of halves take the place of DDP's, and no plan has an all-reduce.
 */

typedef struct mgw_tuner mgw_tuner;

typedef struct mgw_tuner_options {
    const char *policy;
    int profile_steps;  /* before the first plan */
    int replan_steps;   /* between two checks for drift */
    int replan_percent; /* gain that a new plan must promise */
    int early_looks;    /* looks after the first plan, as closely spaced as that was to the start,
                           which accept any gain */
    int sampled; /* above 0: times one in `sampled` tensors per step, as on GPUs; 0: times all */
    bool whole_steps;       /* operations are not timed: the cost of messages during computation is
                               inferred from whole steps */
    double crowd;           /* workers per core, on the most crowded host */
    unsigned size;          /* workers */
    double parameter_ratio; /* the driver gathers parameters, and says when they are needed: bytes
                               of parameters per byte of gradients sent, 0.5, 1 or 2. 0: it does
                               not, and policies that gather are refused */
    unsigned trials;        /* steps decide which plan is best. Above 1: a trial ends with the
                               round in which it has had so many, else 2,400. 0: the model decides */
    unsigned lanes;         /* of the driver (mgw_transport_lanes). Above 1, DDP's buckets are tried
                               on one lane, as PyTorch has it, and so is the model's best plan */
    bool one_dtype;  /* all tensors are sent as `dtype`, which traces have, too; otherwise an */
    mgw_dtype dtype; /*   element of a trace stands for two bytes */
} mgw_tuner_options;

/*
 * For tensors in ready order, with the bytes that each sends. Until there is a plan, operations are
 * the buckets of PyTorch's DDP, which are rarely bad, or those of a policy that gathers and depends
 * only on sizes ("zero:25MiB"): there may be no memory for the whole state of the optimizer.
 * Ownership: the caller destroys *out, which owns `cluster` from then on. The rest is copied.
 */
MGW_CHECKED mgw_status mgw_tuner_create(const mgw_tuner_options *options, size_t tensor_count,
                                        const char *const *names, const uint64_t *bytes,
                                        mgw_cluster *cluster, mgw_tuner **out, mgw_error *error);
void mgw_tuner_destroy(mgw_tuner *tuner);

/* The operations of the next step. Ownership: the tuner's, until the next look. */
const mgw_operation *mgw_tuner_operations(const mgw_tuner *tuner, size_t *count);

/* ---- Measured steps ---- */

/* A step, in seconds from its start. */
typedef struct mgw_step_record {
    double late_s;         /* time from the end of the previous step to its start; 0: not known */
    double compute_s;      /* until the last gradient was ready */
    double iteration_s;    /* until all were averaged */
    const double *ready_s; /* by tensor; 0: not timed in this step */
    const double *took_s;  /* by operation of this step; null: operations are not timed */
    const double *busy_s;  /* by operation: core time used meanwhile */
    const double *need_s;  /* by tensor: when the forward pass first used it; MGW_NEVER_NEEDED: not
                              in this step; null: that is not known */
    double stall_s;   /* how long the forward pass waited for parameters: included in iteration_s,
                         excluded from all other times */
    double period_s;  /* from the end of the previous step to its end: the whole step, by the clock
                         of the thread that waits for it; 0: not known */
    uint64_t step;    /* its number, counted from 1; 0: the one after the last */
    double forward_s; /* until the backward pass began; 0: not known */
} mgw_step_record;

/* A step was run, and counts for `due`. Its times may follow later. */
void mgw_tuner_count(mgw_tuner *tuner);
void mgw_tuner_observe(mgw_tuner *tuner, const mgw_step_record *record);

/* Whether it is time for a look. This only depends on counts, so it is the same on every worker. */
bool mgw_tuner_due(const mgw_tuner *tuner);

/* Call it before a step without a look: in a trial, it may be the next candidate's turn. Returns
 * whether mgw_tuner_operations have changed; the same on every worker. */
bool mgw_tuner_turn(mgw_tuner *tuner);

/* Whether the times of the next step will count at the next look. */
bool mgw_tuner_watches(const mgw_tuner *tuner);

/* ---- The next plan ---- */

/*
 * A look at the measurements: rows are combined, rank 0 decides, the others follow, and all check
 * that they follow the same plan. `may_stay`: the current plan stays unless another promises
 * enough. Collective.
 */
MGW_CHECKED mgw_status mgw_tuner_look(mgw_tuner *tuner, const mgw_exchange *exchange, bool may_stay,
                                      bool *changed, mgw_error *error);

/*
 * The same in parts, for drivers that cannot wait in a call. Row: this worker's measurements, to be
 * combined as in mgw_exchange. Propose: the decision made from the combined row, as numbers; only
 * rank 0's count. Follow: rank 0's numbers become the current plan.
 */
void mgw_tuner_row_size(const mgw_tuner *tuner, size_t *sums, size_t *maxima);
void mgw_tuner_row(const mgw_tuner *tuner, double *row);
size_t mgw_tuner_word_size(const mgw_tuner *tuner); /* numbers */
MGW_CHECKED mgw_status mgw_tuner_propose(mgw_tuner *tuner, const double *combined, bool may_stay,
                                         uint64_t *word, mgw_error *error);
MGW_CHECKED mgw_status mgw_tuner_follow(mgw_tuner *tuner, const uint64_t *word, bool *changed,
                                        mgw_error *error);

/* Takes effect at the next look. */
MGW_CHECKED mgw_status mgw_tuner_set_policy(mgw_tuner *tuner, const char *policy, mgw_error *error);

/* A hash of a plan's operations, for workers to compare. */
uint64_t mgw_plan_hash(const mgw_operation *operations, size_t count);

/* Uses the given operations from now on, the same on all workers, until a policy is set. */
MGW_CHECKED mgw_status mgw_tuner_set_operations(mgw_tuner *tuner, const mgw_operation *operations,
                                                size_t count, mgw_error *error);

/*
 * The same with a plan from a file: one saved by a tuner, or any other for the same tensors. If it
 * does not fit, the error names file and field. `hash`: mgw_plan_hash of its operations.
 */
MGW_CHECKED mgw_status mgw_tuner_load_plan(mgw_tuner *tuner, const char *path, uint64_t *hash,
                                           mgw_error *error);

/* ---- Queries. Ownership: the tuner's, until the next look ---- */

const mgw_plan *mgw_tuner_plan(const mgw_tuner *tuner); /* the current one; null before the first */

/*
 * What was learned, to plan with: the cost of messages without computation beside them, with how
 * both slow each other down; and the median step that the current plan is based on, as it would be
 * without messages, or null.
 */
const mgw_cluster *mgw_tuner_cluster(const mgw_tuner *tuner);
const mgw_trace *mgw_tuner_trace(const mgw_tuner *tuner);

typedef struct mgw_tuner_statistics {
    uint64_t steps;
    uint64_t plans;     /* number of plans so far */
    double iteration_s; /* means since the last look, or before it if there was no step since */
    double compute_s;
    double slowdown;    /* how many times as long messages take during computation as alone */
    double worth_s;     /* what one more message takes from computation */
    double stretch;     /* how many times as long computation takes during messages as alone, and */
    double beside;      /*   messages during computation, if whole steps are timed; else 1 */
    double stall_s;     /* as iteration_s: how long forward passes waited for parameters */
    double predicted_s; /* a step with the current plan, by the model; 0: there is none, or the plan
                           does not use all lanes */
    uint64_t trials;    /* that are over */
    uint64_t trial_steps; /* of all trials */
    double trial_cost_s;  /* how much longer they took than with the winners, for trials that are
                             over */
    size_t trying;        /* candidates left in the current trial; 0: there is none now */
} mgw_tuner_statistics;

void mgw_tuner_measure(const mgw_tuner *tuner, mgw_tuner_statistics *out);

enum { MGW_TRIED_MAX = 10 }; /* plans in a trial, at most */

/* A plan in a trial. Times are of whole steps. */
typedef struct mgw_tried {
    char name[MGW_POLICY_NAME_MAX]; /* "ddp", the policy, "earlier", "fewer", "fewest", "more",
                                       "single", "optimal", "one lane" */
    size_t messages;
    size_t rounds;      /* in which it was timed */
    double measured_s;  /* what a step took: robust mean; 0: not timed yet */
    double ratio;       /* time relative to the best plan, */
    double width;       /*   plus or minus this; 0: not known yet, or it is the best */
    double predicted_s; /* what the model predicted; 0: it does not know lanes one by one */
    bool left;          /* not dropped */
    bool kept;          /* the winner */
} mgw_tried;

/* Of the current trial, or of the last one; none before the first. */
const mgw_tried *mgw_tuner_tried(const mgw_tuner *tuner, size_t *count);

MGW_END_DECLS
#pragma GCC visibility pop

#endif
