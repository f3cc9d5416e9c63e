/*
 * How operations become kernels: shared by kernel.c and operations.c, the only two files that use
 * oneDNN; all others use kernel.h.
 */
#ifndef MGW_NN_ONEDNN_H
#define MGW_NN_ONEDNN_H

#include <oneapi/dnnl/dnnl.h>

#include "nn/kernel.h"

enum { CALLS_MAX = 2, ARGS_MAX = 9 };

/* Weights in a primitive's preferred layout only live while it runs: all share one buffer. */
struct nn_processor {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    void *scratch;
    size_t scratch_bytes;
};

typedef struct call {
    dnnl_primitive_t primitive;
    dnnl_exec_arg_t args[ARGS_MAX];
    int count;
} call;

/* A primitive, with a reorder of its weights before or after it where needed. */
struct nn_kernel {
    nn_processor *processor;
    dnnl_primitive_desc_t description;
    call calls[CALLS_MAX];
    int call_count;
    dnnl_memory_t in_scratch[2]; /* arguments in the scratch memory */
    int in_scratch_count;
    const char *reference; /* the operation that uses oneDNN's reference code, or null */
    float *workspace;      /* the positions of a pooling's maxima, or null */
};

typedef dnnl_memory_desc_t layout; /* memory layout */

/* An argument of a primitive, in our layout. */
typedef struct binding {
    int arg;
    layout where;
    float *data; /* null: omitted */
} binding;

MGW_CHECKED mgw_status kernel_check(dnnl_status_t code, const char *what, mgw_error *error);

/* A kernel without calls; null: out of memory. */
nn_kernel *kernel_begin(nn_processor *processor);

/* Returns the kernel in *made, or destroys it after a failure. */
mgw_status kernel_finish(mgw_status status, nn_kernel *kernel, nn_kernel **made);

/* Adds a copy from one layout into another. */
MGW_CHECKED mgw_status kernel_reorder(nn_kernel *kernel, const binding *from, const binding *to,
                                      mgw_error *error);

/*
 * Adds the primitive of kernel->description, bound to memory. If it prefers another layout for its
 * weights, these go through the scratch memory.
 */
MGW_CHECKED mgw_status kernel_complete(nn_kernel *kernel, const binding *bindings, size_t count,
                                       const char *what, mgw_error *error);

/*
 * All of this at once, from the description of an operation; for a backward pass also that of the
 * forward pass, which oneDNN needs as a hint. `code` is the result of creating the descriptions.
 */
MGW_CHECKED mgw_status kernel_make(nn_processor *processor, const char *what, dnnl_status_t code,
                                   const void *operation, const void *forward,
                                   const binding *bindings, size_t count, nn_kernel **made,
                                   mgw_error *error);

#endif
