/* GPU memory over a host transport: the transport, and how pieces flow through it. */
#ifndef MGW_TRANSPORT_STAGED_H
#define MGW_TRANSPORT_STAGED_H

#include "transport/blocks.h"
#include "transport/crew.h"
#include "transport/on_device.h"

enum {
    STAGED_BUFFERS = 6,
    STAGED_PIECE = 4 << 20, /* bytes of a buffer */
};

typedef struct staged {
    mgw_transport *inner;
    on_device device;   /* its stream: copies from the GPU, and work that follows a collective */
    cuda_stream back;   /* copies to the GPU */
    char *buffers;      /* pinned memory, allocated by the inner transport */
    char *of_first;     /* rank 0's buffers, and the stride between ranks; null: only our own */
    size_t stride;      /* are visible */
    void *pinned;       /* the whole pinned range; null: none */
    crew *crew;         /* threads that reduce; null: only ours */
    mgw_blocks *out_of; /* by rank: progress through its blocks, for copies from the GPU, */
    mgw_blocks *into;   /* and for copies to the GPU */
    bool failed;        /* it can only be closed */
    double looked_s;    /* when the other workers were last checked */
    size_t turn;        /* pieces so far: each uses the next buffer */
    cuda_event out[STAGED_BUFFERS]; /* the piece is in the buffer */
    cuda_event in[STAGED_BUFFERS];  /* its result is on the GPU */
} staged;

/* ---- staged_flow.c ---- */

/* Runs a collective on GPU memory: everything but the last copies, which the stream waits for. */
MGW_CHECKED mgw_status staged_run(staged *s, const mgw_transport_call *call, mgw_error *error);

/* Waits for an event. */
MGW_CHECKED mgw_status staged_wait(staged *s, cuda_event event, mgw_error *error);

#endif
