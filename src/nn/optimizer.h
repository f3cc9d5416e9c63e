/* Optimizers: they update weights element by element, so that any range of a tensor can be updated
 * separately. */
#ifndef MGW_NN_OPTIMIZER_H
#define MGW_NN_OPTIMIZER_H

#include <stddef.h>
#include <stdint.h>

/* The hyperparameters of a rule; it ignores those it does not use. */
typedef struct nn_rule {
    double rate;
    double decay;    /* of the weights */
    double momentum; /* sgd */
    double beta1;    /* adamw: decay of the mean per step */
    double beta2;    /* adamw: the same for the mean square */
    double epsilon;  /* adamw */
    uint64_t step;   /* counted from 1: adamw's means start at 0, which it corrects for */
} nn_rule;

enum { NN_ARRAYS_MAX = 2 };

/* Updates `count` weights; arrays[i] is the same range of the i-th state array. Threads: any, on
 * different ranges. */
typedef void nn_update(const nn_rule *rule, float *weights, const float *gradients,
                       float *const *arrays, size_t count);

typedef struct nn_optimizer {
    const char *name;
    int array_count; /* state numbers per weight, initially zero */
    nn_rule usual;
    nn_update *update;
} nn_optimizer;

extern const nn_optimizer nn_optimizers[];
extern const size_t nn_optimizer_count;

/* By name, or null. */
const nn_optimizer *nn_optimizer_find(const char *name);

#endif
