/* The rows of a profile about gradients, passes, messages or the device. */
#ifndef MGW_TRACE_PROFILE_ROWS_H
#define MGW_TRACE_PROFILE_ROWS_H

#include <jansson.h>
#include <mgwfbp/profile.h>

#include "base/json.h"

typedef enum mgw_row_kind {
    MGW_ROW_STEP,      /* ProfilerStep#N */
    MGW_ROW_OPTIMIZER, /* Optimizer.step, Optimizer.zero_grad */
    MGW_ROW_OPERATION, /* of the forward pass, the optimizer or anything else */
    MGW_ROW_NODE,      /* of the backward pass */
    MGW_ROW_GRADIENT,  /* accumulation of a gradient: it is ready at the end */
    MGW_ROW_SETUP,     /* messages other than all-reduces of gradients */
    MGW_ROW_MESSAGE,   /* an all-reduce */
    MGW_ROW_SENT,      /* the call of an all-reduce on a device, with its arguments */
    MGW_ROW_LAUNCH,    /* the host launches work on the device */
    MGW_ROW_KERNEL,    /* work on the device */
} mgw_row_kind;

typedef struct mgw_row {
    mgw_row_kind kind;
    bool on_device; /* MESSAGE */
    int dtype;      /* mgw_dtype, or -1: unknown */
    unsigned workers;
    double start_us;
    double end_us;
    int64_t number; /* NODE, OPERATION: sequence number; LAUNCH, KERNEL: correlation; -1: none */
    uint64_t count; /* elements: GRADIENT, MESSAGE, SENT; OPERATION: samples of its first input; 0:
                       unknown */
    char *label;    /* NODE: its name */
} mgw_row;

typedef struct mgw_rows {
    mgw_row *list; /* sorted by start */
    size_t count;
    size_t capacity;
    size_t broken; /* rows with invalid times, ignored */
    char *device;  /* its name, or null */
    unsigned workers;
    bool numbered; /* operations have sequence numbers */
} mgw_rows;

/* Ownership: the caller calls mgw_rows_fini on *out, also after a failure. */
MGW_CHECKED mgw_status mgw_rows_read(const char *origin, const char *text, size_t size,
                                     mgw_rows *out, mgw_error *error);
void mgw_rows_fini(mgw_rows *rows);

#endif
