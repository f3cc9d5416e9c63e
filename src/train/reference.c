/* The share of oneDNN's slow reference code in a step, if it is large. */
#include "train/reference.h"

static const double much = 0.05;

bool train_judge_reference(const nn_program *program, unsigned steps, train_warn *warn)
{
    char what[NN_WHAT_MAX];
    unsigned counted = 0;
    double share = nn_program_reference(program, what, &counted);
    if (counted < steps)
        return false;
    if (share > much && warn)
        warn(what, share);
    return true;
}
