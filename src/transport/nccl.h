/* The transport over NCCL, and its reduction of 16-bit and 8-bit numbers in f32. */
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
    nccl_comm comm; /* non-blocking, so that every wait is ours and bounded; null: aborted */
    double timeout_s;
    double looked_s; /* when NCCL and the other workers were last checked */
    bool failed;
    mgw_error why;

    /* ---- nccl_once.c ---- */
    cuda_kernels kernels; /* opened on first use */
    char *received;       /* data of other workers, to be reduced */
    size_t received_bytes;
    mgw_blocks *owners; /* by rank: progress through the rank's blocks */
} nccl;

/* ---- nccl.c ---- */

/* NCCL's code for a dtype. */
int nccl_type(mgw_dtype dtype);

/* Calls on a non-blocking communicator continue in the background; the next call has to wait. */
MGW_CHECKED mgw_status nccl_finish_call(nccl *n, int code, const char *what, mgw_error *error);

/* Waits for everything that was posted. */
MGW_CHECKED mgw_status nccl_drain(nccl *n, mgw_error *error);

/* The transport can no longer be used. */
MGW_CHECKED mgw_status nccl_fail_cuda(nccl *n, int code, const char *what, mgw_error *error);

/* ---- nccl_once.c ---- */

/* Whether the call uses the functions below. */
bool nccl_is_once(const nccl *n, const mgw_transport_call *call);

/*
 * Before such a call: loads kernels and allocates memory. Waits for work in flight if there is too
 * little memory. That is rare, since memory is kept.
 */
MGW_CHECKED mgw_status nccl_prepare_once(nccl *n, const mgw_transport_call *call, mgw_error *error);

/*
 * Enqueues an all-reduce, reduce-scatter or push of 16-bit or 8-bit numbers on the stream: added up
 * in f32 in rank order, and rounded once.
 */
MGW_CHECKED mgw_status nccl_sum_once(nccl *n, const mgw_transport_call *call, mgw_error *error);

void nccl_close_once(nccl *n);

#endif
