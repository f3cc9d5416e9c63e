/* Optimizers: how weights follow their gradients, element by element, so that any stretch of a
 * tensor can be updated by itself. */
#ifndef MGW_NN_OPTIMIZER_H
#define MGW_NN_OPTIMIZER_H

#include <stddef.h>
#include <stdint.h>

/* The numbers of a rule; those that it does not know are ignored. */
typedef struct nn_rule {
    double rate;
    double decay;    /* of the weights */
    double momentum; /* sgd */
    double beta1;    /* adamw: what the mean keeps of itself in a step */
    double beta2;    /* adamw: the same of the mean square */
    double epsilon;  /* adamw */
    uint64_t step;   /* counted from 1: adamw's means begin at 0, which it corrects for */
} nn_rule;

enum { NN_ARRAYS_MAX = 2 };

/* `count` weights with their gradients; arrays[i] is the same stretch of the i-th state array.
 * Threads: any, on different stretches. */
typedef void nn_update(const nn_rule *rule, float *weights, const float *gradients,
                       float *const *arrays, size_t count);

typedef struct nn_optimizer {
    const char *name;
    int array_count; /* numbers it remembers of each weight, zero at first */
    nn_rule usual;
    nn_update *update;
} nn_optimizer;

extern const nn_optimizer nn_optimizers[];
extern const size_t nn_optimizer_count;

/* By name, or null. */
const nn_optimizer *nn_optimizer_find(const char *name);

#endif
