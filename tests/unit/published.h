/* Algorithm 1 of the paper as printed: every merge recomputes all start times, which makes it
 * O(L^2). An oracle for the linear version, and the baseline of the benchmark. */
#ifndef TESTS_PUBLISHED_H
#define TESTS_PUBLISHED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

typedef struct published_work {
    double *comm;  /* t_c: how long each tensor's message takes; 0 once merged */
    double *start; /* tau_c: when it can start */
    double *bytes; /* p, with what was merged into it */
    bool *merged;
} published_work;

static inline published_work published_work_create(size_t n)
{
    return (published_work){malloc((n + 1) * sizeof(double)), malloc((n + 1) * sizeof(double)),
                            malloc((n + 1) * sizeof(double)), malloc((n + 1) * sizeof(bool))};
}

static inline void published_work_destroy(published_work *w)
{
    free(w->comm);
    free(w->start);
    free(w->bytes);
    free(w->merged);
}

static inline void published_starts(published_work *w, size_t n, const double *ready_s)
{
    w->start[1] = ready_s[1];
    for (size_t k = 2; k <= n; k++) {
        double free_s = w->start[k - 1] + w->comm[k - 1];
        w->start[k] = free_s > ready_s[k] ? free_s : ready_s[k];
    }
}

/* Tensors 1..n in ready order (the paper counts layers from the other end). Returns the number of
 * messages, and the last tensor of each in `ends`. */
static inline size_t published_plan(published_work *w, size_t n, const double *ready_s,
                                    const uint64_t *prefix, double a, double b, size_t *ends)
{
    for (size_t j = 1; j <= n; j++) {
        w->bytes[j] = (double)(prefix[j] - prefix[j - 1]);
        w->comm[j] = a + b * w->bytes[j];
        w->merged[j] = false;
    }
    published_starts(w, n, ready_s);
    for (size_t j = 1; j < n; j++) {
        if (ready_s[j + 1] - w->start[j] >= a)
            continue;
        w->comm[j] = 0;
        w->bytes[j + 1] += w->bytes[j];
        w->comm[j + 1] = a + b * w->bytes[j + 1];
        w->merged[j] = true;
        published_starts(w, n, ready_s);
    }
    size_t count = 0;
    for (size_t j = 1; j <= n; j++)
        if (!w->merged[j])
            ends[count++] = j;
    return count;
}

#endif
