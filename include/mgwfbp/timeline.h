/*
 * A timeline: spans of computation and communication, predicted or measured.
 *
 * Threads: any, on objects that no other thread is changing; reading one from several is fine.
 * Ownership: what a function makes, the caller destroys.
 */
#ifndef MGWFBP_TIMELINE_H
#define MGWFBP_TIMELINE_H

#include <stddef.h>
#include <stdint.h>

#include <mgwfbp/status.h>
#include <mgwfbp/text.h>

#pragma GCC visibility push(default)
MGW_BEGIN_DECLS

typedef enum mgw_span_kind {
    MGW_SPAN_FORWARD,
    MGW_SPAN_BACKWARD, /* of some tensors, or of all */
    MGW_SPAN_MESSAGE,
} mgw_span_kind;

/* Times count from the start of the step. `first` and `count` say which tensors it concerns. */
typedef struct mgw_span {
    mgw_span_kind kind;
    double start_s;
    double end_s;
    double ready_s; /* MESSAGE: when its last gradient was ready; it waited from then to start_s */
    size_t first;
    size_t count;
    uint64_t bytes; /* MESSAGE */
} mgw_span;

typedef struct mgw_timeline {
    char *title;
    size_t span_count;
    mgw_span *spans; /* those of each kind in order of time */
    struct mgw_names *names;
} mgw_timeline;

void mgw_timeline_destroy(mgw_timeline *timeline);

const char *mgw_timeline_tensor_name(const mgw_timeline *timeline, size_t index);

typedef struct mgw_timeline_stats {
    double iteration_s;     /* to the end of everything */
    double compute_s;       /* to the end of computation */
    double communication_s; /* sum over messages */
    double exposed_s;       /* iteration_s - compute_s */
    double overlap;         /* share of communication that computation hides, 0 to 1 */
    size_t messages;
} mgw_timeline_stats;

mgw_timeline_stats mgw_timeline_measure(const mgw_timeline *timeline);

/* Puts all of its times off by so much: onto another clock. */
void mgw_timeline_shift(mgw_timeline *timeline, double seconds);

/*
 * Appends timelines in the Chrome trace event format, which opens in Perfetto: a process for each,
 * all on one clock, whose times must not be negative. mgw_timelines_parse reads them back.
 */
void mgw_timelines_write(const mgw_timeline *const *timelines, size_t count, mgw_text *text);
void mgw_timeline_write_chrome(const mgw_timeline *timeline, mgw_text *text); /* of one */

/*
 * Reads what mgw_timelines_write has written, to the nanosecond.
 * Ownership: the caller ends *out with mgw_timelines_destroy.
 */
MGW_CHECKED mgw_status mgw_timelines_parse(const char *origin, const char *text, size_t size,
                                           mgw_timeline ***out, size_t *count, mgw_error *error);
void mgw_timelines_destroy(mgw_timeline **timelines, size_t count);

MGW_END_DECLS
#pragma GCC visibility pop

#endif
