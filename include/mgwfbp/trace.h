/*
 * A trace: a model as the list of its gradient tensors, in the order in which they become ready.
 *
 * Threads: any, on objects that no other thread is changing; reading one from several is fine.
 * Ownership: what a function makes, the caller destroys; what it is given is copied.
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
    uint64_t count;         /* elements */
    double backward_s;      /* since the tensor before it was ready; the first: since the start of
                               the backward pass */
    double forward_start_s; /* when the forward pass first needs it; MGW_TIME_UNKNOWN, which plans
                               take for at once, or MGW_NEVER_NEEDED: at its end, at the latest */
} mgw_tensor;

/*
 * Fields may be read by anyone; tensors' times may be changed between calls by the owner.
 * The sum of all tensors' bytes fits in a signed 64-bit number, names are distinct.
 */
typedef struct mgw_trace {
    char *model;
    char *device;
    char *precision;
    uint64_t batch;
    mgw_dtype gradient_dtype;
    mgw_dtype parameter_dtype; /* what gathers of updated parameters carry; all else: gradients */
    double forward_s;
    size_t tensor_count; /* at least 1 */
    mgw_tensor *tensors;
    struct mgw_names *names;
    struct mgw_trace_extra *extra; /* members of the file that we only keep */
    size_t step_count;             /* 0: nobody measured how much steps differ */
    double *steps_s;               /* computation of single steps, as measured */
} mgw_trace;

/*
 * Reads a trace file, or the built-in trace of that name where there is no such file.
 * Threads: any. Ownership: the caller destroys *out.
 */
MGW_CHECKED mgw_status mgw_trace_load(const char *path_or_name, mgw_trace **out, mgw_error *error);

/* The same from memory; `origin` is what error messages call it. */
MGW_CHECKED mgw_status mgw_trace_parse(const char *origin, const char *text, size_t size,
                                       mgw_trace **out, mgw_error *error);

/*
 * Makes a trace from `count` tensors and their names, which are copied. Parameters are as
 * gradients. Device, precision and batch are set to "unknown", "unknown" and 1 for the caller to
 * replace (strings by strdup).
 */
MGW_CHECKED mgw_status mgw_trace_create(const char *model, mgw_dtype gradient_dtype,
                                        double forward_s, size_t count, const char *const *names,
                                        const mgw_tensor *tensors, mgw_trace **out,
                                        mgw_error *error);

void mgw_trace_destroy(mgw_trace *trace);

/* Appends the trace as JSON, with the members it was read with. */
void mgw_trace_write(const mgw_trace *trace, mgw_text *text);

const char *mgw_trace_tensor_name(const mgw_trace *trace, size_t index);
uint64_t mgw_trace_bytes(const mgw_trace *trace);
double mgw_trace_backward_s(const mgw_trace *trace);

/* Forward and backward: what a step takes on one worker. */
double mgw_trace_compute_s(const mgw_trace *trace);

/* Says what single steps took to compute (copied). */
MGW_CHECKED mgw_status mgw_trace_set_steps(mgw_trace *trace, const double *steps_s, size_t count,
                                           mgw_error *error);

/* Makes all computation `factor` times as long: 2 is a device of half the speed. */
MGW_CHECKED mgw_status mgw_trace_scale_compute(mgw_trace *trace, double factor, mgw_error *error);

MGW_END_DECLS
#pragma GCC visibility pop

#endif
