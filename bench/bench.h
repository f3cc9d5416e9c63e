/* Clock, medians and spread for the benchmarks. */
#ifndef BENCH_H
#define BENCH_H

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <mgwfbp/mgwfbp.h>

static inline double bench_now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static inline int bench_compare(const void *left, const void *right)
{
    double a = *(const double *)left;
    double b = *(const double *)right;
    return (a > b) - (a < b);
}

typedef struct bench_times {
    double values[64];
    size_t count;
} bench_times;

static inline double bench_median(bench_times *times)
{
    qsort(times->values, times->count, sizeof *times->values, bench_compare);
    return times->values[times->count / 2];
}

/* Half the distance between the quartiles, as a share of the median. */
static inline double bench_spread(bench_times *times)
{
    double median = bench_median(times);
    size_t n = times->count;
    return (times->values[n * 3 / 4] - times->values[n / 4]) / 2 / median;
}

static inline void bench_must(mgw_status status, const mgw_error *error)
{
    if (status) {
        fprintf(stderr, "bench: %s\n", error->message);
        exit(1);
    }
}

/* "t0", "t1" … as a model of `count` tensors: sizes and times as in a deep network. */
static inline mgw_trace *bench_trace(size_t count)
{
    char(*names)[24] = malloc(count * sizeof *names);
    const char **pointers = malloc(count * sizeof *pointers);
    mgw_tensor *tensors = malloc(count * sizeof *tensors);
    if (!names || !pointers || !tensors)
        exit(1);
    unsigned long state = 1;
    for (size_t i = 0; i < count; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        snprintf(names[i], sizeof names[i], "layer%zu.weight", i);
        pointers[i] = names[i];
        tensors[i] = (mgw_tensor){.count = i % 3 ? 64 + (state >> 58) : (state >> 40) % 1000000,
                                  .backward_s = 1e-9 * (double)((state >> 33) % 200000),
                                  .forward_start_s = MGW_TIME_UNKNOWN};
    }
    mgw_trace *trace = NULL;
    mgw_error error;
    bench_must(mgw_trace_create("bench", MGW_F32, 0.01, count, pointers, tensors, &trace, &error),
               &error);
    free(tensors);
    free(pointers);
    free(names);
    return trace;
}

#endif
