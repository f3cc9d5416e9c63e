/* What training and comparing have in common. */
#ifndef MGW_CLI_TRAINING_H
#define MGW_CLI_TRAINING_H

#include "cli/command.h"
#include "train/worker.h"

enum { CLI_ROUNDS_MAX = 1000 };

typedef struct training {
    const cli_args *args;
    nn_worker_options options;
    nn_worker *worker;
    mgw_cluster *network; /* what is emulated, or null */
    char transport[96];
    unsigned steps; /* 0: as many as there are in all epochs */
    unsigned checkpoint_steps;
    mgw_policy *policies; /* to compare */
    size_t policy_count;
    unsigned rounds;
    bool json;
} training;

/* Whether this worker was asked to end, in good order. */
bool cli_train_interrupted(void);

/* Policy after policy, round after round. */
MGW_CHECKED mgw_status cli_train_compare(training *t, mgw_error *error);

/* "resnet20, 59 tensors, …" in lines. */
void cli_describe_training(const training *t, mgw_text *text);

#endif
