/*
 * Finds which of several candidates takes the least time per step: each gets a few steps at a time,
 * in turn, until the best is clear or the rest is too close to matter. No clock, no threads, no
 * I/O: a driver runs the steps and reports their times.
 *
 *     mgw_trial_create(&options, candidates, &trial, &error);
 *     while (!mgw_trial_over(trial, &winner)) {
 *         count = mgw_trial_left(trial, order);
 *         for each of them: run options.turn_steps steps, and leave out the first;
 *             seconds[i] = mgw_trial_turn(what they took, how many);
 *         mgw_trial_round(trial, seconds);
 *     }
 *
 * Threads: one at a time for one trial.
 */
#ifndef MGWFBP_TRIAL_H
#define MGWFBP_TRIAL_H

#include <stdbool.h>
#include <stddef.h>

#include <mgwfbp/status.h>

#pragma GCC visibility push(default)
MGW_BEGIN_DECLS

typedef struct mgw_trial mgw_trial;

/* Zeros stand for MGW_TRIAL_DEFAULTS. */
typedef struct mgw_trial_options {
    double close; /* share within which two count as equal */
    double risk;  /* approximate risk that the winner is worse than the best by more than twice
                     `close` */
    unsigned turn_steps;  /* consecutive steps of a candidate, at least 2; the first does not count,
                             since the switch may slow it down */
    unsigned most_rounds; /* then the best so far wins */
    unsigned incumbent;   /* a candidate that has won before: it only loses to one that is surely
                             better; 0: none, or the baseline */
} mgw_trial_options;

#define MGW_TRIAL_DEFAULTS                                                                         \
    ((mgw_trial_options){.close = 0.005, .risk = 0.01, .turn_steps = 5, .most_rounds = 500})

/*
 * Candidate 0 is the baseline: it wins unless it is clear that the best is not worse than it by
 * more than twice `close`. The others come in the order in which they win ties. Ownership: the
 * caller destroys *out.
 */
MGW_CHECKED mgw_status mgw_trial_create(const mgw_trial_options *options, size_t candidates,
                                        mgw_trial **out, mgw_error *error);
void mgw_trial_destroy(mgw_trial *trial);

/* As given, with defaults in place of zeros. */
void mgw_trial_options_of(const mgw_trial *trial, mgw_trial_options *out);

/* The candidates still in, in the order of their turns in the next round, and their number. The
 * order is random, but the same for the same earlier rounds. There must be room for all candidates.
 */
size_t mgw_trial_left(const mgw_trial *trial, size_t *candidates);

/* The time of a step in a turn: the mean of its counted steps, which it sorts, without those that
 * took more than 1.75 times as long as the median, if there are three or more. */
double mgw_trial_turn(double *seconds, size_t count);

/*
 * A round is over: the time of a step of each candidate still in, in the order of mgw_trial_left.
 * Candidates that cannot be worthwhile are dropped: they are worse than the best, or not better by
 * more than twice `close`. If a number is not positive and finite, the round counts, but its times
 * do not.
 */
void mgw_trial_round(mgw_trial *trial, const double *seconds);

/* Ends the trial early, as if all rounds were over. */
void mgw_trial_end(mgw_trial *trial);

/* Whether it is over; then, which candidate won. */
bool mgw_trial_over(const mgw_trial *trial, size_t *winner);

/* The results of a candidate. */
typedef struct mgw_trial_outcome {
    size_t rounds; /* in which it was timed, and which count */
    bool left;     /* still in, or the trial ended with it; else dropped */
    double mean_s; /* of a step: robust, over its rounds; 0: none */
    double ratio;  /* to the best, over the rounds that both had; 1: it is the best */
    double width; /* half width of the confidence interval of that ratio; 0: not known yet, or it is
                     the best */
} mgw_trial_outcome;

void mgw_trial_result(const mgw_trial *trial, size_t candidate, mgw_trial_outcome *out);

/* Number of steps in all rounds so far, of all candidates, including those that do not count. */
size_t mgw_trial_steps(const mgw_trial *trial);

MGW_END_DECLS
#pragma GCC visibility pop

#endif
