/*
 * A timeline: spans of computation and communication, predicted or measured.
 *
 * Threads: any, on objects that no other thread is changing; reading one from several is fine.
 * Ownership: the caller destroys what a function creates.
 */
#ifndef MGWFBP_TIMELINE_H
#define MGWFBP_TIMELINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <mgwfbp/status.h>
#include <mgwfbp/text.h>

#pragma GCC visibility push(default)
MGW_BEGIN_DECLS

/* X(constant, name). Operations come in the order of mgw_collective, MESSAGE first. */
#define MGW_SPAN_LIST(X)                                                                           \
    X(MGW_SPAN_FORWARD, "forward")                                                                 \
    X(MGW_SPAN_BACKWARD, "backward")     /* of some tensors, or of all */                          \
    X(MGW_SPAN_MESSAGE, "communication") /* an all-reduce */                                       \
    X(MGW_SPAN_REDUCE_SCATTER, "reduce-scatter")                                                   \
    X(MGW_SPAN_ALL_GATHER, "all-gather")                                                           \
    X(MGW_SPAN_PUSH, "push")                                                                       \
    X(MGW_SPAN_PULL, "pull")                                                                       \
    X(MGW_SPAN_STALL, "stall")               /* a forward pass waits for a tensor */               \
    X(MGW_SPAN_NEXT_FORWARD, "next-forward") /* of the step after this one, between its stalls */

typedef enum mgw_span_kind {
#define X(constant, name) constant,
    MGW_SPAN_LIST(X)
#undef X
} mgw_span_kind;

#define MGW_SPAN_COUNT (MGW_SPAN_NEXT_FORWARD + 1)

const char *mgw_span_name(mgw_span_kind kind);

/* Whether it is communication, with `bytes` and `ready_s`. */
static inline bool mgw_span_is_operation(mgw_span_kind kind)
{
    return kind >= MGW_SPAN_MESSAGE && kind <= MGW_SPAN_PULL;
}

/* Times count from the start of the step. `first` and `count` give its tensors. */
typedef struct mgw_span {
    mgw_span_kind kind;
    double start_s;
    double end_s;
    double ready_s; /* of an operation: when its data was ready; from then to start_s it waited */
    size_t first;
    size_t count;
    uint64_t bytes; /* of an operation */
} mgw_span;

/*
 * The timeline of one step. If its operations continue during the next forward pass, period_s is
 * the time from the start of a step to the start of the next. Stalls are in one of the two forward
 * passes, never in both.
 */
typedef struct mgw_timeline {
    char *title;
    size_t span_count;
    mgw_span *spans; /* those of each kind are sorted by time */
    struct mgw_names *names;
    double period_s; /* 0: the step ends with its last span */
} mgw_timeline;

void mgw_timeline_destroy(mgw_timeline *timeline);

const char *mgw_timeline_tensor_name(const mgw_timeline *timeline, size_t index);

typedef struct mgw_timeline_stats {
    double iteration_s;     /* the period; if it is 0, the end of the last span */
    double compute_s;       /* to the end of the backward pass, without stalls */
    double communication_s; /* sum over operations */
    double exposed_s;       /* iteration_s - compute_s */
    double overlap;         /* share of communication that computation hides, 0 to 1 */
    double end_s;           /* of the last span; with a period, in the next forward pass */
    double stalled_s;       /* sum over stalls */
    size_t messages;        /* operations of any kind */
} mgw_timeline_stats;

mgw_timeline_stats mgw_timeline_measure(const mgw_timeline *timeline);

/* Adds `seconds` to all times, to move them to another clock. */
void mgw_timeline_shift(mgw_timeline *timeline, double seconds);

/*
 * Appends timelines in the Chrome trace event format, which Perfetto opens: one process per
 * timeline, all on one clock. Times must not be negative. mgw_timelines_parse reads them back.
 */
void mgw_timelines_write(const mgw_timeline *const *timelines, size_t count, mgw_text *text);
void mgw_timeline_write_chrome(const mgw_timeline *timeline, mgw_text *text); /* a single one */

/*
 * Reads the output of mgw_timelines_write, to the nanosecond. Ownership: the caller frees *out with
 * mgw_timelines_destroy.
 */
MGW_CHECKED mgw_status mgw_timelines_parse(const char *origin, const char *text, size_t size,
                                           mgw_timeline ***out, size_t *count, mgw_error *error);
void mgw_timelines_destroy(mgw_timeline **timelines, size_t count);

MGW_END_DECLS
#pragma GCC visibility pop

#endif
