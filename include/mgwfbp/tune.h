/*
 * The tuner: what steps have shown, and which plan comes next. No threads, no I/O: a driver tells
 * it about steps, and carries what workers have to tell each other.
 *
 *     mgw_calibrate(&how, &exchange, &cluster, &error);    what messages cost, measured
 *     mgw_tuner_create(&options, n, names, bytes, cluster, &tuner, &error);
 *     for each step:
 *         if (mgw_tuner_due(tuner))                        the same on every worker
 *             mgw_tuner_look(tuner, &exchange, true, &changed, &error);
 *         else
 *             changed = mgw_tuner_turn(tuner);             the same, too
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
#include <mgwfbp/plan.h>
#include <mgwfbp/status.h>
#include <mgwfbp/trace.h>
#include <mgwfbp/trial.h>

#pragma GCC visibility push(default)
MGW_BEGIN_DECLS

/* How a driver reaches the other workers. Both calls are collective, and results are the same bits
 * everywhere. */
typedef struct mgw_exchange {
    void *context;
    unsigned rank;
    unsigned size;
    /* In place: the first `sums` numbers become the sums over all workers, the `maxima` behind them
     * the largest. So what travels does not grow with the number of workers. */
    mgw_status (*combine)(void *context, double *values, size_t sums, size_t maxima,
                          mgw_error *error);
    /* Everybody gets rank 0's bytes. */
    mgw_status (*tell)(void *context, void *data, size_t bytes, mgw_error *error);
} mgw_exchange;

/* ---- Calibration ---- */

/* Which sizes are measured, and how. */
typedef struct mgw_calibration {
    const char *name; /* of the cluster */
    uint64_t least_bytes;
    uint64_t most_bytes;
    unsigned factor;       /* from one size to the next, at first */
    unsigned more_sizes;   /* between those, where the curve bends: at most so many */
    unsigned repeats;      /* of which the median counts, and of workers the slowest; large sizes
                              are repeated less where time is short */
    unsigned most_repeats; /* as many where they differ by more than 5% */
    double enough_s; /* what all of it may take: no larger sizes, and no more of them, that would
                        take longer; 0: as long as it takes */
    unsigned kinds;  /* bits 1 << mgw_collective; PUSH and PULL make a parameter server's cluster */
    bool keeps_samples; /* a measured curve; else a line, where one fits all samples within 10%
                           and what they may be wrong by */
    void *context; /* Times one collective of `bytes` once, among all workers, after a barrier: */
    mgw_status (*time)(void *context, mgw_collective kind, uint64_t bytes, double *seconds,
                       mgw_error *error);
} mgw_calibration;

/* Collective. Ownership: the caller destroys *out. */
MGW_CHECKED mgw_status mgw_calibrate(const mgw_calibration *how, const mgw_exchange *exchange,
                                     mgw_cluster **out, mgw_error *error);

/*
 * ---- The tuner ----
 *
 * The model proposes, and steps decide. After the steps that are measured, and the early looks,
 * plans are tried on real steps, a few steps each in turn: PyTorch DDP's cut, what the model finds
 * best, the plan in force, and neighbours with fewer and with more messages (mgw_trial decides).
 * The winner stays. Looks follow every replan_steps; all are tried again when its own steps take
 * another time than they did, and it meets DDP's cut and one other plan when the model promises
 * enough of one that was not tried, and now and then. Without `trials`, with one worker, with
 * parameters to gather, and with a policy other than "optimal", the model's plan is in force.
 */

typedef struct mgw_tuner mgw_tuner;

typedef struct mgw_tuner_options {
    const char *policy;
    int profile_steps;  /* before the first plan */
    int replan_steps;   /* between two looks at drift */
    int replan_percent; /* gain that a new plan must promise */
    int early_looks;  /* looks that follow the first plan as closely as that followed the start, and
                         take any gain */
    int sampled;      /* one tensor in so many is timed in a step, as on GPUs; 0: all are */
    bool whole_steps; /* operations are not timed: how long steps take tells what messages cost
                         beside computation */
    double crowd;     /* workers on a core, where they are most */
    unsigned size;    /* workers */
    double parameter_ratio; /* the driver gathers parameters, and tells when they are needed: bytes
                               of them for one of gradients that travels, 0.5, 1 or 2. 0: it does
                               not, and policies that gather are refused */
    bool trials;            /* steps decide which plan is best; else the model does */
} mgw_tuner_options;

/*
 * For tensors in ready order, with the bytes that travel of each. Until there is a plan, operations
 * are as PyTorch's DDP would cut them, which is rarely bad. Ownership: the caller destroys *out,
 * which owns `cluster` from then on. The rest is copied.
 */
MGW_CHECKED mgw_status mgw_tuner_create(const mgw_tuner_options *options, size_t tensor_count,
                                        const char *const *names, const uint64_t *bytes,
                                        mgw_cluster *cluster, mgw_tuner **out, mgw_error *error);
void mgw_tuner_destroy(mgw_tuner *tuner);

/* What is to be done in the next step. Ownership: the tuner's, until the next look. */
const mgw_operation *mgw_tuner_operations(const mgw_tuner *tuner, size_t *count);

/* ---- What steps have shown ---- */

/* A step, in seconds from its begin. */
typedef struct mgw_step_record {
    double late_s;      /* how long after the end of the step before it was begun; 0: not known */
    double compute_s;   /* until the last gradient was ready */
    double iteration_s; /* until all were averaged */
    const double *ready_s; /* by tensor; 0: not timed in this step */
    const double *took_s;  /* by operation of this step; null: operations are not timed */
    const double *busy_s;  /* by operation: of a core, meanwhile */
    const double *need_s;  /* by tensor: when the forward pass first used it; MGW_NEVER_NEEDED: not
                              in this step; null: that is not known */
    double stall_s; /* what the forward pass waited for parameters: in iteration_s, and taken out of
                       all other times */
    double period_s; /* from the end of the step before to its end: all that a step takes, by the
                        clock of who waits for it; 0: not known */
    uint64_t step;   /* which one, as counted, from 1 on; 0: the one behind the last */
} mgw_step_record;

/* A step was run: it counts for `due`. Its times may come later. */
void mgw_tuner_count(mgw_tuner *tuner);
void mgw_tuner_observe(mgw_tuner *tuner, const mgw_step_record *record);

/* Whether it is time for a look: a matter of counting, so the same on every worker. */
bool mgw_tuner_due(const mgw_tuner *tuner);

/* To be called before a step without a look: in a trial, the next candidate's turn may have come.
 * Whether mgw_tuner_operations are others now; the same on every worker. */
bool mgw_tuner_turn(mgw_tuner *tuner);

/* Whether the times of the next step will count at the next look. */
bool mgw_tuner_watches(const mgw_tuner *tuner);

/* ---- The next plan ---- */

/*
 * A look at what was measured: rows are combined, rank 0 decides, the others follow, and all make
 * sure that they follow the same. `may_stay`: the plan in force stays unless another promises
 * enough. Collective.
 */
MGW_CHECKED mgw_status mgw_tuner_look(mgw_tuner *tuner, const mgw_exchange *exchange, bool may_stay,
                                      bool *changed, mgw_error *error);

/*
 * The same in parts, for drivers that cannot wait in a call. Row: what this worker has to say, to
 * be combined as in mgw_exchange. Propose: what was learned from the combined row, as numbers; only
 * rank 0's count. Follow: rank 0's numbers become the plan in force.
 */
void mgw_tuner_row_size(const mgw_tuner *tuner, size_t *sums, size_t *maxima);
void mgw_tuner_row(const mgw_tuner *tuner, double *row);
size_t mgw_tuner_word_size(const mgw_tuner *tuner); /* numbers */
MGW_CHECKED mgw_status mgw_tuner_propose(mgw_tuner *tuner, const double *combined, bool may_stay,
                                         uint64_t *word, mgw_error *error);
MGW_CHECKED mgw_status mgw_tuner_follow(mgw_tuner *tuner, const uint64_t *word, bool *changed,
                                        mgw_error *error);

/* From the next look on. */
MGW_CHECKED mgw_status mgw_tuner_set_policy(mgw_tuner *tuner, const char *policy, mgw_error *error);

/* Somebody else's operations are in force from now on, the same on all workers: until a policy is
 * set. */
MGW_CHECKED mgw_status mgw_tuner_set_operations(mgw_tuner *tuner, const mgw_operation *operations,
                                                size_t count, mgw_error *error);

/*
 * The same with a plan from a file: one of this tuner's, saved, or any other for the same tensors.
 * One that does not fit is an error with file and field. `hash` is of what it does: for the caller
 * to compare among workers.
 */
MGW_CHECKED mgw_status mgw_tuner_load_plan(mgw_tuner *tuner, const char *path, uint64_t *hash,
                                           mgw_error *error);

/* ---- What is known. Ownership: the tuner's, until the next look ---- */

const mgw_cluster *mgw_tuner_cluster(const mgw_tuner *tuner);
const mgw_plan *mgw_tuner_plan(const mgw_tuner *tuner);   /* in force; null before the first */
const mgw_trace *mgw_tuner_trace(const mgw_tuner *tuner); /* the median step behind it; null, too */

typedef struct mgw_tuner_statistics {
    uint64_t steps;
    uint64_t plans;     /* how many there were */
    double iteration_s; /* means since the last look, or before it if there was no step since */
    double compute_s;
    double slowdown; /* how many times as long as alone messages take beside computation */
    double worth_s;  /* what a message more takes from computation */
    double stretch;  /* how many times as long as alone computation takes beside messages, and */
    double beside;   /*   messages beside computation, where whole steps are timed; else 1 */
    double stall_s;  /* as iteration_s: what forward passes waited for parameters */
    uint64_t trials; /* that are over */
    uint64_t trial_steps; /* of all trials */
    double trial_cost_s; /* what those took longer than with the winners, of trials that are over */
    size_t
        trying; /* candidates of the trial that goes on; 0: the plan in force is the best known */
} mgw_tuner_statistics;

void mgw_tuner_measure(const mgw_tuner *tuner, mgw_tuner_statistics *out);

/* A plan in a trial. Times are of whole steps. */
typedef struct mgw_tried {
    char name[MGW_POLICY_NAME_MAX]; /* "ddp", the policy, "fewer", "fewest", "more", "single" */
    size_t messages;
    size_t rounds;      /* in which it was timed */
    double measured_s;  /* what a step took: robust mean; 0: not timed yet */
    double ratio;       /* to the best, */
    double width;       /*   give or take; 0: not known yet, or it is the best */
    double predicted_s; /* what the model thought that it would take */
    bool left;          /* it was not dropped */
    bool kept;          /* it has won */
} mgw_tried;

/* Of the trial that goes on, or of the last one; none before the first. */
const mgw_tried *mgw_tuner_tried(const mgw_tuner *tuner, size_t *count);

MGW_END_DECLS
#pragma GCC visibility pop

#endif
