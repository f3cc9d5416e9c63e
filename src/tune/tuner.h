/* The inside of the tuner. */
#ifndef MGW_TUNE_TUNER_H
#define MGW_TUNE_TUNER_H

#include <mgwfbp/tune.h>

#include "base/names.h"
#include "tune/beside.h"

enum {
    TUNE_RECENT = 8,      /* steps that are kept, */
    TUNE_PERIODS = 64,    /*   and of how many what they took as a whole */
    TUNE_CANDIDATES = 8,  /* of a trial, at most */
    TUNE_REMEMBERED = 16, /* plans that were tried */
    TUNE_NOTES = 8,       /* plans of which it is known what steps took */
    TUNE_EARLIER = 2,     /* plans that were in force before the first trial */
};

/* This worker's recent steps. */
typedef struct tune_recent {
    double *row;      /* what it will tell of them: recent.c */
    size_t steps;     /* since the last look */
    uint32_t *counts; /* by tensor: how often it was measured since then */
} tune_recent;

/* Of all workers together. */
typedef struct tune_learned {
    double *ready_s;      /* by tensor: the median over steps */
    double *need_s;       /* the same; MGW_TIME_UNKNOWN, or MGW_NEVER_NEEDED */
    double *step_ready_s; /* the steps behind it, one after the other */
    size_t steps;         /* how many those are; none where tensors take turns */
    double slowdown;
    double worth_s;
} tune_learned;

/* Sums since the last look, and the means before it. */
typedef struct tune_window {
    size_t steps;
    double iteration_sum_s;
    double compute_sum_s;
    double stall_sum_s;
    double last_iteration_s;
    double last_compute_s;
    double last_stall_s;
} tune_window;

/* What whole steps took since the last look. */
typedef struct tune_periods {
    size_t count; /* the last TUNE_PERIODS are kept */
    double period_s[TUNE_PERIODS];
    double rest_s[TUNE_PERIODS]; /* of it: before the begin and behind the end */
} tune_periods;

/* The same of all workers, on average. */
typedef struct tune_pace {
    double period_s; /* 0: not known */
    double error_s;  /* of it: one sigma */
    double rest_s;
} tune_pace;

/* What a candidate is: X(constant, name). A plan in force keeps its name, the model's is the
 * policy's. */
#define TUNE_KIND_LIST(X)                                                                          \
    X(TUNE_DDP, "ddp")                                                                             \
    X(TUNE_KEPT, "kept")                                                                           \
    X(TUNE_PAST, "earlier")                                                                        \
    X(TUNE_MODEL, "model")                                                                         \
    X(TUNE_FEWER, "fewer")                                                                         \
    X(TUNE_FEWEST, "fewest")                                                                       \
    X(TUNE_MORE, "more")                                                                           \
    X(TUNE_SINGLE, "single")

typedef enum tune_kind {
#define X(constant, name) constant,
    TUNE_KIND_LIST(X)
#undef X
} tune_kind;

/* Plans that are worth a trial; the first is DDP's. Between propose and follow. */
typedef struct tune_slate {
    size_t count;
    mgw_plan *plans[TUNE_CANDIDATES];
    tune_kind kinds[TUNE_CANDIDATES];
} tune_slate;

/* Whose turn it is: candidates that are left, in this round's order. All go by rank 0's. */
typedef struct tune_order {
    size_t left;
    size_t of[TUNE_CANDIDATES];
} tune_order;

/* The trial that goes on, and what is known of those before it. */
typedef struct tune_trying {
    mgw_trial *trial;                 /* null: none goes on */
    mgw_plan *earlier[TUNE_EARLIER];  /* in force before the first trial; or null */
    size_t count;                     /* of candidates */
    mgw_plan *plans[TUNE_CANDIDATES]; /* null: it is in force, and the tuner's */
    tune_order order;
    tune_order next;                 /* this worker's proposal for the next round */
    size_t turn;                     /* in the round, */
    size_t now;                      /*   and whose it is */
    size_t turn_steps;               /* of a candidate */
    uint64_t begun;                  /* steps before this round */
    double *seconds;                 /* by turn and step of it; 0: not known */
    uint64_t in_force;               /* hash of the plan that was, when it began */
    double spent_s[TUNE_CANDIDATES]; /* in its turns */
    size_t spent_steps[TUNE_CANDIDATES];

    bool settled;                     /* all was tried since the policy was set */
    size_t looks;                     /* since the last trial */
    size_t again_after;               /* so many there is one; sooner if the model promises */
    double usual_s;                   /* what a step takes since then; 0: not known yet */
    uint64_t hashes[TUNE_CANDIDATES]; /* of the candidates, */
    uint64_t known[TUNE_REMEMBERED];  /*   and of those that were tried since all were */
    size_t known_count;
    mgw_tried tried[TUNE_CANDIDATES];
    size_t tried_count;
    uint64_t trials; /* that are over, and what they took */
    uint64_t steps;
    double cost_s;
} tune_trying;

/* How computation and messages get on with each other, where whole steps are timed. */
typedef struct tune_model {
    bool known;
    tune_beside beside;
    double *alone_s; /* by tensor: when it would be ready without any message */
    double *room_s;  /* two numbers per tensor, for a while */
    tune_note notes[TUNE_NOTES];
    size_t note_count;
} tune_model;

struct mgw_tuner {
    mgw_tuner_options options;
    mgw_policy policy;
    size_t tensor_count;
    mgw_cluster *cluster;

    mgw_trace *untimed;  /* all tensors, as bytes: they may differ in dtype */
    mgw_plan *first;     /* until there is a plan */
    mgw_plan *plan;      /* in force */
    bool given;          /*   by somebody else, who knows why: it stays */
    mgw_trace *trace;    /* behind it */
    mgw_plan *proposed;  /* between propose and follow; null: the plan in force stays */
    mgw_trace *proposal; /* the median step by then */

    uint64_t steps;
    uint64_t observed; /* the last of them whose times have come */
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

/* ---- tuner.c: the plan in force ---- */

/* Of what a plan does; the same for the same cuts. */
uint64_t tune_hash(const mgw_operation *operations, size_t count);

/* ---- recent.c: what the last steps have shown ---- */

/* Whether the driver gathers parameters. */
static inline bool tune_gathers(const mgw_tuner *tuner)
{
    return tuner->options.parameter_ratio > 0;
}

MGW_CHECKED mgw_status tune_recent_init(mgw_tuner *tuner, mgw_error *error);
void tune_recent_fini(mgw_tuner *tuner);
void tune_recent_forget(mgw_tuner *tuner);

/* Its part of a row, and of steps. */
void tune_recent_size(const mgw_tuner *tuner, size_t *sums, size_t *maxima);
void tune_recent_row(const mgw_tuner *tuner, double *row);
void tune_recent_observe(mgw_tuner *tuner, const mgw_step_record *record);

/* What all workers have seen goes to `learned`. */
MGW_CHECKED mgw_status tune_learn(mgw_tuner *tuner, const double *combined, mgw_error *error);

/* ---- predict.c: what a step takes with a plan, by all that was learned ---- */

MGW_CHECKED mgw_status tune_model_init(mgw_tuner *tuner, mgw_error *error);
void tune_model_fini(mgw_tuner *tuner);

/* What a step took under a plan, of all workers; a compute_s of 0 is not known. `within`: the share
 * by which that may be wrong. */
MGW_CHECKED mgw_status tune_note_plan(mgw_tuner *tuner, const mgw_operation *operations,
                                      size_t count, const tune_step_times *took, double within,
                                      mgw_error *error);

/* The same for the plan in force and learned.ready_s; then all notes are looked at again. */
MGW_CHECKED mgw_status tune_model_learn(mgw_tuner *tuner, double iteration_s, double within,
                                        mgw_error *error);

/* What rank 0 has found, for this worker's ready times, and before its plan is in force. */
void tune_model_follow(mgw_tuner *tuner, tune_beside beside);

/* The times of a plan that was timed by mgw_plan_time, as they will be: computation beside these
 * messages, and messages beside computation, take longer than alone. Leaves them where nothing is
 * known. */
MGW_CHECKED mgw_status tune_correct(const mgw_tuner *tuner, mgw_plan *plan, mgw_error *error);

/* ---- choose.c: which plan is best by what was learned ---- */

/* A step as a trace. */
/* What messages cost alone, among the workers that there are: clusters have two at least. */
void tune_alone(const mgw_tuner *tuner, mgw_cost *cost);

MGW_CHECKED mgw_status tune_make_trace(const mgw_tuner *tuner, const double *ready_s,
                                       mgw_trace **out, mgw_error *error);

/* T(M) as it is in steps, `slowdown` times as long as alone. Ownership: the caller frees *samples,
 * after use. */
MGW_CHECKED mgw_status tune_cost(const mgw_tuner *tuner, double slowdown, mgw_cost *cost,
                                 mgw_sample **samples, mgw_error *error);

/* What plans are made from: the median step first, then the steps one by one. */
typedef struct tune_evidence {
    const mgw_tuner *tuner;
    mgw_trace *traces[1 + TUNE_RECENT];
    size_t count; /* of traces */
    mgw_cost cost;
    mgw_sample *samples;
} tune_evidence;

/* What steps take with the plan, by the model: on average over those that were seen, or else the
 * median one; and with what its messages take from computation. */
MGW_CHECKED mgw_status tune_predict(const tune_evidence *e, mgw_plan *plan, double *mean_s,
                                    mgw_error *error);

/* Sets `proposed`, or leaves it null where the plan in force may stay and is good enough; and
 * `proposal`. Where steps are to decide, it makes a slate instead, if it is time for a trial. */
MGW_CHECKED mgw_status tune_choose(mgw_tuner *tuner, bool may_stay, mgw_error *error);

/* ---- candidates.c: which plans are worth a trial ---- */

/* Sets the slate, or leaves it empty where there is nothing to compare. `few`: DDP's cut, the plan
 * in force, and one more. `best` is the model's, and takes best_s by tune_predict. */
MGW_CHECKED mgw_status tune_nominate(mgw_tuner *tuner, const tune_evidence *e, const mgw_plan *best,
                                     double best_s, bool few, mgw_error *error);
void tune_slate_clear(tune_slate *slate);
const char *tune_kind_name(const mgw_tuner *tuner, tune_kind kind);

/* ---- trying.c: trials on real steps ---- */

/* Whether steps may ever decide here; and whether they do, with this policy. */
bool tune_may_try(const mgw_tuner *tuner);
bool tune_tries(const mgw_tuner *tuner);

static inline bool tune_is_trying(const mgw_tuner *tuner)
{
    return tuner->trying.trial;
}

/* Whether a plan was, since all were. */
bool tune_was_tried(const mgw_tuner *tuner, const mgw_plan *plan);

/* Why there is a trial now. */
typedef enum tune_reason { TUNE_NONE, TUNE_FEW, TUNE_ALL } tune_reason;
tune_reason tune_why(mgw_tuner *tuner, const mgw_plan *best, bool promises);

/* The round's steps, and its last one was counted. */
size_t tune_round_steps(const mgw_tuner *tuner);

/* Its part of a row, all of it sums; what came of it. */
size_t tune_trying_size(const mgw_tuner *tuner);
void tune_trying_row(const mgw_tuner *tuner, double *row);
void tune_trying_observe(mgw_tuner *tuner, const mgw_step_record *record, uint64_t step);
void tune_take_pace(mgw_tuner *tuner, const double *combined);
void tune_play(mgw_tuner *tuner, const double *combined);

/* Begins a trial, of plans by `cost`; follows a round. */
MGW_CHECKED mgw_status tune_begin_trial(mgw_tuner *tuner, const uint64_t *word,
                                        const mgw_cost *cost, mgw_error *error);
void tune_follow_round(mgw_tuner *tuner, const uint64_t *word, bool *changed);

/* A plan that was in force until now: it may be worth a trial. Ownership: taken. */
void tune_keep_earlier(mgw_tuner *tuner, mgw_plan *plan);

/* The plan in force stays, whoever was to come; and all was never tried. */
void tune_stop_trying(mgw_tuner *tuner);

/* A look without a trial, or behind its end. */
void tune_count_look(mgw_tuner *tuner);
void tune_trying_fini(mgw_tuner *tuner);

/* ---- trying_word.c: the part of a word that is about trials ---- */

size_t tune_trying_words(const mgw_tuner *tuner);
void tune_trying_write(const mgw_tuner *tuner, uint64_t *word);
bool tune_trying_is_sane(const mgw_tuner *tuner, const uint64_t *word);
bool tune_trying_begins(const mgw_tuner *tuner, const uint64_t *word);

/* Whose turn it is; and how many candidates there are. */
size_t tune_read_order(const uint64_t *word, tune_order *out);

/* Which candidate is in force when the trial begins; 0: DDP's, or none. */
unsigned tune_incumbent(const uint64_t *word);

/* A candidate, timed by `cost`: the first is DDP's, which all know. */
MGW_CHECKED mgw_status tune_read_candidate(const mgw_tuner *tuner, const uint64_t *word, size_t c,
                                           const mgw_cost *cost, mgw_plan **out, mgw_error *error);

#endif
