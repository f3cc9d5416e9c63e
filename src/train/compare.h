/* Compares policies: the same steps with each in turn, from the same weights. */
#ifndef MGW_TRAIN_COMPARE_H
#define MGW_TRAIN_COMPARE_H

#include "train/reference.h"
#include "train/worker.h"

enum { TRAIN_ROUNDS_MAX = 1000 };

typedef struct train_compare_options {
    const mgw_policy *policies;
    size_t policy_count;
    unsigned steps;  /* per policy and round */
    unsigned rounds; /* at most TRAIN_ROUNDS_MAX */
    void (*round)(const train_worker *worker, unsigned done, unsigned rounds); /* or null */
    void (*progress)(void *context, double share); /* or null: reports progress, on rank 0 */
    void *context;
    train_warn *warn; /* on rank 0; or null */
} train_compare_options;

/* The results of a policy: medians over the rounds. */
typedef struct train_row {
    char policy[MGW_POLICY_NAME_MAX];
    size_t messages;
    double iteration_s;
    double spread;
    double compute_s;
    double predicted_s;
    double ratio; /* iteration time relative to the reference in the same round */
    double ratio_low, ratio_high;
    uint32_t checksum; /* of the weights after the last round */
} train_row;

/*
 * Runs all policies in each round, until all rounds are done or it is interrupted. All workers make
 * the same calls. *stopped_by is the signal that interrupted it, or 0. Ownership: the caller frees
 * *rows, one for each policy.
 */
MGW_CHECKED mgw_status train_compare(train_worker *worker, const train_compare_options *options,
                                     train_row **rows, int *stopped_by, mgw_error *error);

#endif
