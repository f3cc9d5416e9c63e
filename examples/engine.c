/* Gradients averaged across workers, in merged messages, while the backward pass runs.
 * Run it with: mgwfbp launch -n 4 ./example_engine */
#include <stdio.h>

#include <mgwfbp/mgwfbp.h>

enum { LAYERS = 20, STEPS = 30 };

/* Stands for a backward pass: the gradient of one layer. */
static void compute(float *gradient, size_t count, unsigned rank)
{
    for (size_t i = 0; i < count; i++)
        gradient[i] = (float)(rank + i % 3);
}

int main(void)
{
    mgw_engine *engine = NULL;
    mgw_error error;
    unsigned id[LAYERS];
    size_t count[LAYERS];
    mgw_status failed = mgw_engine_open(NULL, &engine, &error); /* alone, or under the launcher */
    for (int layer = LAYERS - 1, k = 0; !failed && layer >= 0; layer--, k++) { /* the last first */
        char name[32];
        snprintf(name, sizeof name, "layer%d", layer);
        count[k] = (size_t)1000 << layer % 8;
        failed = mgw_engine_add(engine, name, count[k], MGW_F32, &id[k], &error);
    }
    if (!failed)
        failed = mgw_engine_start(engine, &error);
    for (int step = 0; !failed && step < STEPS; step++) {
        failed = mgw_engine_begin(engine, &error);
        for (int k = 0; !failed && k < LAYERS; k++) {
            compute((float *)mgw_engine_gradient(engine, id[k]), count[k], mgw_engine_rank(engine));
            mgw_engine_ready(engine, id[k]); /* may be on its way while the next is computed */
        }
        if (!failed)
            failed = mgw_engine_wait(engine, &error); /* now all are averages: update weights */
    }
    if (failed) {
        fprintf(stderr, "%s\n", error.message);
    } else if (mgw_engine_rank(engine) == 0) {
        const float *first = (const float *)mgw_engine_gradient(engine, id[0]);
        mgw_engine_statistics statistics;
        mgw_engine_measure(engine, &statistics);
        printf("%u workers: the first average is %g; %zu tensors in %zu messages\n",
               mgw_engine_size(engine), first[0], statistics.tensors, statistics.messages);
    }
    mgw_engine_close(engine);
    return failed ? 1 : 0;
}
