/*
 * Reads the output of PyTorch's profiler (torch.profiler, export_chrome_trace) as a trace: when
 * gradients were ready, when the forward pass needed their parameters, and how long the all-reduces
 * took.
 *
 * Threads: any, on objects that no other thread is changing. Ownership: the caller frees what a
 * function creates; arguments are copied.
 */
#ifndef MGWFBP_PROFILE_H
#define MGWFBP_PROFILE_H

#include <stddef.h>
#include <stdint.h>

#include <mgwfbp/status.h>
#include <mgwfbp/text.h>
#include <mgwfbp/trace.h>

#pragma GCC visibility push(default)
MGW_BEGIN_DECLS

/* Facts that are missing from a profile. All zero: none is known. */
typedef struct mgw_profile_options {
    const char *model;   /* name of the model */
    uint64_t batch;      /* samples per step; 0: use the first dimension of the first operation */
    const char *tensors; /* JSON: {"name": elements or [shape], …}, with the model's names */
    size_t tensors_size;
    const char *tensors_origin; /* its name in error messages */
} mgw_profile_options;

/* One all-reduce, with its time on this worker, which includes waiting for other workers. */
typedef struct mgw_profile_message {
    uint64_t bytes;
    double seconds;
} mgw_profile_message;

typedef struct mgw_profile {
    mgw_trace *trace;
    unsigned workers; /* that take part in the all-reduces; 0: the profile does not say */
    size_t message_count;
    mgw_profile_message *messages; /* sorted by size; one per size, the shortest */
    mgw_text notes;                /* what was missing or had to be assumed, one per line */
} mgw_profile;

/*
 * Reads a profile of one or more steps. The trace is the step with the median computation time, and
 * its steps_s has the computation time of every step. Times are the device's if kernels were
 * recorded, otherwise the host's. Ownership: the caller calls mgw_profile_fini on *out, even after
 * a failure.
 */
MGW_CHECKED mgw_status mgw_profile_parse(const char *origin, const char *text, size_t size,
                                         const mgw_profile_options *options, mgw_profile *out,
                                         mgw_error *error);

/* The same from files. `tensors_path`, if not null, replaces `tensors` in the options. */
MGW_CHECKED mgw_status mgw_profile_load(const char *path, const char *tensors_path,
                                        const mgw_profile_options *options, mgw_profile *out,
                                        mgw_error *error);
void mgw_profile_fini(mgw_profile *profile);

MGW_END_DECLS
#pragma GCC visibility pop

#endif
