/* The transport over NCCL, and its reduction of 16-bit and 8-bit numbers in f32. */
#ifndef MGW_TRANSPORT_NCCL_H
#define MGW_TRANSPORT_NCCL_H

#include "device/kernels.h"
#include "transport/blocks.h"
#include "transport/nccl_library.h"
#include "transport/on_device.h"

/* A communicator with a stream. Several lanes move the parts of a message at the same time. */
typedef struct nccl_lane {
    nccl_comm comm; /* non-blocking, so that every wait is ours and bounded; null: aborted */
    cuda_stream stream;
    cuda_event over; /* recorded after each part; null for the first lane, whose stream is the
                        device's */

    /* ---- nccl_once.c ---- */
    char *received; /* data of other workers, to be reduced */
    size_t received_bytes;
    mgw_blocks *owners; /* by rank: progress through the rank's blocks */
} nccl_lane;

typedef struct nccl {
    mgw_transport *control;
    on_device device;
    const nccl_library *library;
    nccl_lane lanes[MGW_LANES_MAX];
    unsigned lane_count;
    cuda_event begun; /* what came before the message, for the lanes */
    double timeout_s;
    double looked_s; /* when NCCL and the other workers were last checked */
    bool failed;
    mgw_error why;
    cuda_kernels kernels; /* opened on first use, by nccl_once.c */
} nccl;

/* ---- nccl_fail.c ---- */

/* How long NCCL may take to close, and to abort. */
static const double nccl_leaving_s = 5;

/* Frees the GPU from the collectives of lanes from `first` on, and waits a while for that. */
void nccl_abort(nccl *n, unsigned first);

/* The transport can no longer be used: an error that names the rank that prevents a collective from
 * completing. `overdue`: it has not failed, but takes too long. */
MGW_CHECKED mgw_status nccl_give_up(nccl *n, const char *what, const char *reason, bool overdue,
                                    mgw_error *error);
MGW_CHECKED mgw_status nccl_fail_cuda(nccl *n, int code, const char *what, mgw_error *error);
MGW_CHECKED mgw_status nccl_fail_again(const nccl *n, mgw_error *error);

/* Checks NCCL, whose code is given, and the other workers; does not block unless something failed.
 */
MGW_CHECKED mgw_status nccl_look(nccl *n, const char *what, int code, mgw_error *error);

/* Calls on a non-blocking communicator continue in the background; the next call has to wait. */
MGW_CHECKED mgw_status nccl_finish_call(nccl *n, const nccl_lane *lane, int code, const char *what,
                                        mgw_error *error);

/* ---- nccl_lanes.c ---- */

/* Opens the lanes: `wanted`, or as many as make long messages faster. Collective. */
MGW_CHECKED mgw_status nccl_open_lanes(nccl *n, unsigned wanted, mgw_error *error);
void nccl_close_lanes(nccl *n);

/* The parts of a call, one per lane from the first one on. Returns their number, at least 1. */
unsigned nccl_divide(const nccl *n, const mgw_transport_call *call,
                     mgw_transport_call parts[MGW_LANES_MAX]);

/* The lanes wait for what is on the device's stream; and it for their parts. Returns CUDA's code.
 */
int nccl_fork(nccl *n, unsigned used);
int nccl_join(nccl *n, unsigned used);

/* ---- nccl_begin.c ---- */

/* NCCL's code for a dtype. */
int nccl_type(mgw_dtype dtype);

/* Puts a part of a collective on its lane's stream. */
MGW_CHECKED mgw_status nccl_begin(nccl *n, const nccl_lane *lane, const mgw_transport_call *part,
                                  mgw_error *error);

/* ---- nccl.c ---- */

/* Any collective in GPU memory, whose workers are known to be in the same. */
MGW_CHECKED mgw_status nccl_run(nccl *n, const mgw_transport_call *call, mgw_error *error);

/* Waits for everything that was posted. */
MGW_CHECKED mgw_status nccl_drain(nccl *n, mgw_error *error);

/* ---- nccl_once.c ---- */

/* Whether the call uses the functions below. */
bool nccl_is_once(const nccl *n, const mgw_transport_call *call);

/*
 * Before such a part of a call: loads kernels and allocates memory. Waits for work in flight if
 * there is too little memory. That is rare, since memory is kept.
 */
MGW_CHECKED mgw_status nccl_prepare_once(nccl *n, nccl_lane *lane, const mgw_transport_call *part,
                                         mgw_error *error);

/*
 * Enqueues an all-reduce, reduce-scatter or push of 16-bit or 8-bit numbers on the lane's stream:
 * added up in f32 in rank order, and rounded once.
 */
MGW_CHECKED mgw_status nccl_sum_once(nccl *n, const nccl_lane *lane, const mgw_transport_call *part,
                                     mgw_error *error);

#endif
