/*
 * A trace: a model as a list of its gradient tensors, in the order in which they become ready.
 *
 * Threads: any, on objects that no other thread is changing; reading one from several is fine.
 * Ownership: the caller destroys what a function creates; arguments are copied.
 */
#ifndef MGWFBP_TRACE_H
#define MGWFBP_TRACE_H

#include <stddef.h>
#include <stdint.h>

#include <mgwfbp/dtype.h>
#include <mgwfbp/status.h>
#include <mgwfbp/text.h>

#pragma GCC visibility push(default)
MGW_BEGIN_DECLS

#define MGW_TIME_UNKNOWN (-1.0)
#define MGW_NEVER_NEEDED (-2.0)

typedef struct mgw_tensor {
    uint64_t count;    /* elements */
    double backward_s; /* since the previous tensor was ready, or since the backward pass began */
    double forward_start_s; /* when the forward pass first needs it. Plans take MGW_TIME_UNKNOWN for
                               the start of the pass, and MGW_NEVER_NEEDED for its end */
} mgw_tensor;

/*
 * Fields may be read. The owner may change the times of tensors between calls. The total number of
 * bytes fits in a signed 64-bit integer, and names are unique.
 */
typedef struct mgw_trace {
    char *model;
    char *device;
    char *precision;
    uint64_t batch;
    mgw_dtype gradient_dtype;
    mgw_dtype parameter_dtype; /* type sent by all-gathers of updated parameters; all other
                                  operations send gradients */
    double forward_s;
    size_t tensor_count; /* at least 1 */
    mgw_tensor *tensors;
    struct mgw_names *names;
    struct mgw_trace_extra *extra; /* other members of the file, kept for writing */
    size_t step_count;             /* 0: single steps were not measured */
    double *steps_s;               /* measured computation times of single steps */
} mgw_trace;

/*
 * Reads a trace file or, if there is no such file, the built-in trace of that name. Threads: any.
 * Ownership: the caller destroys *out.
 */
MGW_CHECKED mgw_status mgw_trace_load(const char *path_or_name, mgw_trace **out, mgw_error *error);

/* The same from memory; `origin` is its name in error messages. */
MGW_CHECKED mgw_status mgw_trace_parse(const char *origin, const char *text, size_t size,
                                       mgw_trace **out, mgw_error *error);

/*
 * Creates a trace from `count` tensors and their names, which are copied. Parameters have the type
 * of the gradients. Device, precision and batch are "unknown", "unknown" and 1; the caller may
 * replace them (strings must come from strdup).
 */
MGW_CHECKED mgw_status mgw_trace_create(const char *model, mgw_dtype gradient_dtype,
                                        double forward_s, size_t count, const char *const *names,
                                        const mgw_tensor *tensors, mgw_trace **out,
                                        mgw_error *error);

void mgw_trace_destroy(mgw_trace *trace);

/* Appends the trace as JSON, including unknown members of the file it was read from. */
void mgw_trace_write(const mgw_trace *trace, mgw_text *text);

const char *mgw_trace_tensor_name(const mgw_trace *trace, size_t index);
uint64_t mgw_trace_bytes(const mgw_trace *trace);
double mgw_trace_backward_s(const mgw_trace *trace);

/* Forward plus backward pass: the time of a step on one worker. */
double mgw_trace_compute_s(const mgw_trace *trace);

/* Sets the computation times of single steps (copied). */
MGW_CHECKED mgw_status mgw_trace_set_steps(mgw_trace *trace, const double *steps_s, size_t count,
                                           mgw_error *error);

/* Multiplies all computation times by `factor`: 2 models a device of half the speed. */
MGW_CHECKED mgw_status mgw_trace_scale_compute(mgw_trace *trace, double factor, mgw_error *error);

MGW_END_DECLS
#pragma GCC visibility pop

#endif
