/* Internals of the tuner. */
#ifndef MGW_TUNE_TUNER_H
#define MGW_TUNE_TUNER_H

#include <mgwfbp/tune.h>

#include "base/names.h"
#include "tune/beside.h"

enum {
    TUNE_RECENT = 8,      /* recent steps that are kept, */
    TUNE_PERIODS = 64,    /*   and recent whole-step times */
    TUNE_REMEMBERED = 16, /* plans that were tried */
    TUNE_NOTES = 8,       /* plans with known step times */
    TUNE_EARLIER = 2,     /* plans that were used before the first trial */
    TUNE_TENSORS = 1 << 26,
};

/* This worker's recent steps. */
typedef struct tune_recent {
    double *row;      /* numbers to combine: see recent.c */
    size_t steps;     /* since the last look */
    uint32_t *counts; /* by tensor: how often it was measured since then */
} tune_recent;

/* Learned from all workers. */
typedef struct tune_learned {
    double *ready_s;      /* by tensor: the median over steps */
    double *need_s;       /* the same; MGW_TIME_UNKNOWN, or MGW_NEVER_NEEDED */
    double *step_ready_s; /* the same for single steps */
    size_t steps;         /* number of those; 0 if tensors are sampled */
    double slowdown;
    double worth_s;
} tune_learned;

/* Sums since the last look, and means before it. */
typedef struct tune_window {
    size_t steps;
    double iteration_sum_s;
    double compute_sum_s;
    double stall_sum_s;
    double last_iteration_s;
    double last_compute_s;
    double last_stall_s;
} tune_window;

/* Times of whole steps since the last look. */
typedef struct tune_periods {
    size_t count; /* the last TUNE_PERIODS are kept */
    double period_s[TUNE_PERIODS];
    double rest_s[TUNE_PERIODS]; /* part of it before begin and after the end */
} tune_periods;

/* The same, averaged over all workers. */
typedef struct tune_pace {
    double period_s; /* 0: not known */
    double error_s;  /* its standard error */
    double rest_s;
} tune_pace;

/* Kinds of candidates: X(constant, name). The current plan keeps its name; the model's best plan is
 * named after the policy, and the best one of whole all-reduces is "optimal". */
#define TUNE_KIND_LIST(X)                                                                          \
    X(TUNE_DDP, "ddp")                                                                             \
    X(TUNE_KEPT, "kept")                                                                           \
    X(TUNE_PAST, "earlier")                                                                        \
    X(TUNE_MODEL, "model")                                                                         \
    X(TUNE_LANE, "one lane")                                                                       \
    X(TUNE_WHOLE, "optimal")                                                                       \
    X(TUNE_FEWER, "fewer")                                                                         \
    X(TUNE_FEWEST, "fewest")                                                                       \
    X(TUNE_MORE, "more")                                                                           \
    X(TUNE_SINGLE, "single")

typedef enum tune_kind {
#define X(constant, name) constant,
    TUNE_KIND_LIST(X)
#undef X
} tune_kind;

/* The candidates for a trial; the first is DDP's plan. Used between propose and follow. */
typedef struct tune_slate {
    size_t count;
    mgw_plan *plans[MGW_TRIED_MAX];
    tune_kind kinds[MGW_TRIED_MAX];
} tune_slate;

/* The order of turns: the candidates left, in this round's order. All workers use rank 0's. */
typedef struct tune_order {
    size_t left;
    size_t of[MGW_TRIED_MAX];
} tune_order;

/* The current trial, and results of earlier ones. */
typedef struct tune_trying {
    mgw_trial *trial;                /* null: no trial */
    mgw_plan *earlier[TUNE_EARLIER]; /* used before the first trial; or null */
    size_t count;                    /* number of candidates */
    mgw_plan *plans[MGW_TRIED_MAX];  /* null: it is the current plan */
    tune_order order;
    tune_order next;               /* this worker's proposal for the next round */
    size_t turn;                   /* turn of the round, */
    size_t now;                    /*   and its candidate */
    size_t turn_steps;             /* steps per turn */
    uint64_t begun;                /* steps before this round */
    double *seconds;               /* by turn and step of it; 0: not known */
    uint64_t in_force;             /* hash of the plan that was current when the trial began */
    double spent_s[MGW_TRIED_MAX]; /* time spent in its turns */
    size_t spent_steps[MGW_TRIED_MAX];
    double switched_s; /* how much longer the first steps of all turns took than their others */

    uint64_t stopped;   /* steps when a trial was stopped: those of others may be reported later */
    bool settled;       /* a full trial was completed since the policy was set */
    size_t looks;       /* since the last trial */
    size_t again_after; /* looks until the next trial; sooner if the model promises a gain */
    double usual_s;     /* step time since then; 0: not known yet */
    uint64_t hashes[MGW_TRIED_MAX];  /* hashes of the candidates, */
    uint64_t known[TUNE_REMEMBERED]; /*   and of plans tried since the last full trial */
    size_t known_count;
    mgw_tried tried[MGW_TRIED_MAX];
    size_t tried_count;
    uint64_t trials; /* completed trials, and their cost */
    uint64_t steps;
    double cost_s;
} tune_trying;

/* The model of concurrent computation and messages, if whole steps are timed. */
typedef struct tune_model {
    bool known;
    mgw_beside beside;
    double *alone_s; /* by tensor: when it would be ready without any message */
    double *room_s;  /* scratch: two numbers per tensor */
    tune_note notes[TUNE_NOTES];
    size_t note_count;
} tune_model;

struct mgw_tuner {
    mgw_tuner_options options;
    mgw_policy policy;
    size_t tensor_count;
    mgw_cluster *cluster;

    mgw_trace *untimed;  /* all tensors, without times */
    mgw_plan *ddp;       /* DDP's buckets, with which others are compared; */
    mgw_plan *zero;      /*   and those of halves, if parameters are gathered, else null */
    mgw_plan *first;     /* used until there is a plan */
    mgw_plan *plan;      /* the current plan */
    bool given;          /*   it was set by the caller, and is not tuned */
    mgw_trace *trace;    /* the trace it is based on, */
    mgw_trace *alone;    /*   and without messages; null: nothing slows computation down */
    mgw_plan *proposed;  /* between propose and follow; null: the current plan stays */
    mgw_trace *proposal; /* the median step at that time */

    uint64_t steps;
    uint64_t observed; /* the last step whose times were reported */
    uint64_t plans;
    size_t looks;
    size_t since_look;
    tune_window window;
    double forward_s; /* of the last steps; 0: not known */
    tune_recent recent;
    tune_learned learned;
    tune_model model;
    tune_periods periods;
    tune_pace pace;
    tune_slate slate;
    tune_trying trying;
};

/* Whether a plan does not use all lanes: then the model does not know what its messages cost. */
bool tune_is_limited(const mgw_tuner *tuner, const mgw_operation *operations, size_t count);

/* Whether the driver gathers parameters. */
static inline bool tune_gathers(const mgw_tuner *tuner)
{
    return tuner->options.parameter_ratio > 0;
}

/* ---- plan_word.c: plans as numbers ---- */

size_t tune_most_operations(const mgw_tuner *tuner);

/* Room for a plan; writing it; and reading it, timed with this worker's data by `cost`. */
size_t tune_plan_words(const mgw_tuner *tuner);
void tune_write_plan(const mgw_plan *plan, uint64_t *word);
MGW_CHECKED mgw_status tune_read_plan(const mgw_tuner *tuner, const uint64_t *word,
                                      const char *name, const mgw_cost *cost, mgw_plan **out,
                                      mgw_error *error);

/* ---- recent.c: learning from the last steps ---- */

MGW_CHECKED mgw_status tune_recent_init(mgw_tuner *tuner, mgw_error *error);
void tune_recent_fini(mgw_tuner *tuner);
void tune_recent_forget(mgw_tuner *tuner);

/* This file's part of a row. */
void tune_recent_size(const mgw_tuner *tuner, size_t *sums, size_t *maxima);
void tune_recent_row(const mgw_tuner *tuner, double *row);
void tune_recent_observe(mgw_tuner *tuner, const mgw_step_record *record);

/* Updates `learned` from the combined row. */
MGW_CHECKED mgw_status tune_learn(mgw_tuner *tuner, const double *combined, mgw_error *error);

/* ---- predict.c: predicting the step time of a plan ---- */

MGW_CHECKED mgw_status tune_model_init(mgw_tuner *tuner, mgw_error *error);
void tune_model_fini(mgw_tuner *tuner);

/* Records the measured step time of a plan; compute_s = 0: unknown. `within`: relative uncertainty.
 */
MGW_CHECKED mgw_status tune_note_plan(mgw_tuner *tuner, const mgw_operation *operations,
                                      size_t count, const mgw_step_times *took, double within,
                                      mgw_error *error);

/* The same for the current plan and learned.ready_s; then fits the model to all notes again. */
MGW_CHECKED mgw_status tune_model_learn(mgw_tuner *tuner, double iteration_s, double within,
                                        mgw_error *error);

/* Takes rank 0's factors, with this worker's ready times. Call it before rank 0's plan is adopted.
 */
void tune_model_follow(mgw_tuner *tuner, mgw_beside beside);

/* Corrects the times of a plan from mgw_plan_time: concurrent computation and messages slow each
 * other down. Leaves them unchanged if nothing is known. */
MGW_CHECKED mgw_status tune_correct(const mgw_tuner *tuner, mgw_plan *plan, mgw_error *error);

/* ---- choose.c: choosing the best plan ---- */

/* The cost of messages without computation, for the actual number of workers: a cluster has at
 * least two. */
void tune_alone(const mgw_tuner *tuner, mgw_cost *cost);

/* A step as a trace. */
MGW_CHECKED mgw_status tune_make_trace(const mgw_tuner *tuner, const double *ready_s,
                                       mgw_trace **out, mgw_error *error);

/* T(M) during steps: `slowdown` times as long as alone. Ownership: the caller frees *samples after
 * use. */
MGW_CHECKED mgw_status tune_cost(const mgw_tuner *tuner, double slowdown, mgw_cost *cost,
                                 mgw_sample **samples, mgw_error *error);

/* The data for planning: the median step first, then single steps. */
typedef struct tune_evidence {
    const mgw_tuner *tuner;
    mgw_trace *traces[1 + TUNE_RECENT];
    size_t count; /* number of traces */
    mgw_cost cost;
    mgw_sample *samples;
} tune_evidence;

/* The cost to make a plan of a policy with: on a measured curve, many tensors would take too long.
 */
mgw_cost tune_planning_cost(const mgw_tuner *tuner, mgw_policy_kind policy, const mgw_cost *cost);

/* The predicted step time of a plan: the mean over the recorded steps, or else that of the median
 * step, plus the time that its messages take from computation. */
MGW_CHECKED mgw_status tune_predict(const tune_evidence *e, mgw_plan *plan, double *mean_s,
                                    mgw_error *error);

/* Sets `proposal`, and `proposed` unless the current plan may stay and is good enough. If trials
 * decide and one is due, sets the slate instead. */
MGW_CHECKED mgw_status tune_choose(mgw_tuner *tuner, bool may_stay, mgw_error *error);

/* ---- candidates.c: candidates for a trial ---- */

/* Sets the slate, or leaves it empty if there is nothing to compare. `few`: only DDP's buckets, the
 * current plan, and one more. `best` is the model's best plan, with the predicted time best_s. */
MGW_CHECKED mgw_status tune_nominate(mgw_tuner *tuner, const tune_evidence *e, const mgw_plan *best,
                                     double best_s, bool few, mgw_error *error);
void tune_slate_clear(tune_slate *slate);

/* If there are several lanes: as without this library, a plan uses one. */
void tune_use_one_lane(const mgw_tuner *tuner, mgw_plan *plan);
const char *tune_kind_name(const mgw_tuner *tuner, tune_kind kind);

/* The buckets that plans of the current policy are compared with. */
const mgw_plan *tune_peer(const mgw_tuner *tuner);

/* ---- trying.c: trials on real steps ---- */

/* Whether trials are possible at all; and whether they are used with the current policy. */
bool tune_may_try(const mgw_tuner *tuner);
bool tune_tries(const mgw_tuner *tuner);

static inline bool tune_is_trying(const mgw_tuner *tuner)
{
    return tuner->trying.trial;
}

/* Whether a plan was tried since the last full trial. */
bool tune_was_tried(const mgw_tuner *tuner, const mgw_plan *plan);

/* The reason for a trial now. */
typedef enum tune_reason { TUNE_NONE, TUNE_FEW, TUNE_ALL } tune_reason;
tune_reason tune_why(mgw_tuner *tuner, const mgw_plan *best, bool promises);

/* Number of steps in the current round. */
size_t tune_round_steps(const mgw_tuner *tuner);

/* This file's part of a row, all sums; and its use. */
size_t tune_trying_size(const mgw_tuner *tuner);
void tune_trying_row(const mgw_tuner *tuner, double *row);
void tune_trying_observe(mgw_tuner *tuner, const mgw_step_record *record, uint64_t step);
void tune_take_pace(mgw_tuner *tuner, const double *combined);
void tune_play(mgw_tuner *tuner, const double *combined);

/* Begins a trial, with plans timed by `cost`; follows a round. */
MGW_CHECKED mgw_status tune_begin_trial(mgw_tuner *tuner, const uint64_t *word,
                                        const mgw_cost *cost, mgw_error *error);
void tune_follow_round(mgw_tuner *tuner, const uint64_t *word, bool *changed);

/* Keeps a plan that was current until now, as a candidate for a trial. Ownership: taken. */
void tune_keep_earlier(mgw_tuner *tuner, mgw_plan *plan);

/* Ends the trial with the current plan, and forgets that plans were tried. */
void tune_stop_trying(mgw_tuner *tuner);

/* Counts a look outside a trial. */
void tune_count_look(mgw_tuner *tuner);
void tune_trying_fini(mgw_tuner *tuner);

/* ---- trying_word.c: the part of rank 0's message about trials ---- */

size_t tune_trying_words(const mgw_tuner *tuner);
void tune_trying_write(const mgw_tuner *tuner, uint64_t *word);
bool tune_trying_is_sane(const mgw_tuner *tuner, const uint64_t *word);
bool tune_trying_begins(const mgw_tuner *tuner, const uint64_t *word);

/* Reads the order of turns; returns the number of candidates. */
size_t tune_read_order(const uint64_t *word, tune_order *out);

/* The candidate that is the current plan when the trial begins; 0: DDP's plan, or none. */
unsigned tune_incumbent(const uint64_t *word);

/* Reads a candidate, timed by `cost`. The first is DDP's plan, which all workers know. */
MGW_CHECKED mgw_status tune_read_candidate(const mgw_tuner *tuner, const uint64_t *word, size_t c,
                                           const mgw_cost *cost, mgw_plan **out, mgw_error *error);

#endif
