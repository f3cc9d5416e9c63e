/* The transport over NCCL, and how it adds up 16-bit and 8-bit numbers in f32. */
#ifndef MGW_TRANSPORT_NCCL_H
#define MGW_TRANSPORT_NCCL_H

#include "device/kernels.h"
#include "transport/blocks.h"
#include "transport/nccl_library.h"
#include "transport/on_device.h"

typedef struct nccl {
    mgw_transport *control;
    on_device device;
    const nccl_library *library;
    nccl_comm comm; /* not blocking, so that every wait is ours, and bounded; null: aborted */
    double timeout_s;
    double looked_s; /* when NCCL and the other workers were looked at */
    bool failed;
    mgw_error why;

    /* ---- nccl_once.c ---- */
    cuda_kernels kernels; /* open once they were needed */
    char *received;       /* what other workers sent, to be added up */
    size_t received_bytes;
    mgw_blocks *owners; /* by rank: how far it is through what the rank adds up */
} nccl;

/* ---- nccl.c ---- */

/* NCCL's name of a dtype. */
int nccl_type(mgw_dtype dtype);

/* Calls on a communicator that does not block go on in the background; the next has to wait. */
MGW_CHECKED mgw_status nccl_finish_call(nccl *n, int code, const char *what, mgw_error *error);

/* Waits for all that was posted. */
MGW_CHECKED mgw_status nccl_drain(nccl *n, mgw_error *error);

/* The transport is of no use any more. */
MGW_CHECKED mgw_status nccl_fail_cuda(nccl *n, int code, const char *what, mgw_error *error);

/* ---- nccl_once.c ---- */

/* Whether the call is to be done as below. */
bool nccl_is_once(const nccl *n, const mgw_transport_call *call);

/* Before such a call: loads kernels, and makes room. Waits for what is under way, if there is too
 * little: seldom, since room is not given back. */
MGW_CHECKED mgw_status nccl_prepare_once(nccl *n, const mgw_transport_call *call, mgw_error *error);

/* All-reduce, reduce-scatter or push of 16-bit or 8-bit numbers, put onto the stream: added up in
 * f32 in rank order, and rounded once. */
MGW_CHECKED mgw_status nccl_sum_once(nccl *n, const mgw_transport_call *call, mgw_error *error);

void nccl_close_once(nccl *n);

#endif
