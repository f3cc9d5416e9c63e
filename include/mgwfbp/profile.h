/*
 * What PyTorch's profiler writes (torch.profiler, export_chrome_trace), as a trace: when gradients
 * were ready, when the forward pass needed their parameters, and what its all-reduces took.
 *
 * Threads: any, on objects that no other thread is changing. Ownership: what a function makes, the
 * caller ends; what it is given is copied.
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

/* What a profile does not say. Zeroes: nothing of it is known. */
typedef struct mgw_profile_options {
    const char *model;   /* its name */
    uint64_t batch;      /* samples of a step; 0: the first dimension of the first operation */
    const char *tensors; /* JSON: {"name": elements or [shape], …}, as the model names them */
    size_t tensors_size;
    const char *tensors_origin; /* what error messages call it */
} mgw_profile_options;

/* One all-reduce, as long as it took this worker: with what it waited for others. */
typedef struct mgw_profile_message {
    uint64_t bytes;
    double seconds;
} mgw_profile_message;

typedef struct mgw_profile {
    mgw_trace *trace;
    unsigned workers; /* of all-reduces; 0: it does not say */
    size_t message_count;
    mgw_profile_message *messages; /* by size; of several of one size, the shortest */
    mgw_text notes;                /* what was not found, or taken for granted: a line for each */
} mgw_profile;

/*
 * Reads a profile of one step or more; of several, the one whose computation is the median of all,
 * and what each took (steps_s). Times are the device's where kernels were recorded, else the
 * host's. Ownership: the caller ends *out with mgw_profile_fini, also after a failure.
 */
MGW_CHECKED mgw_status mgw_profile_parse(const char *origin, const char *text, size_t size,
                                         const mgw_profile_options *options, mgw_profile *out,
                                         mgw_error *error);

/* The same from files; `tensors_path` (or null) takes the place of `tensors` in the options. */
MGW_CHECKED mgw_status mgw_profile_load(const char *path, const char *tensors_path,
                                        const mgw_profile_options *options, mgw_profile *out,
                                        mgw_error *error);
void mgw_profile_fini(mgw_profile *profile);

MGW_END_DECLS
#pragma GCC visibility pop

#endif
