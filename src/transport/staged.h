/* Memory of GPUs over a transport of hosts: the transport, and how pieces flow through it. */
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
    on_device device;   /* its stream: copies from the GPU, and what follows a collective */
    cuda_stream back;   /* copies to the GPU */
    char *buffers;      /* pinned memory of the inner transport's */
    char *of_first;     /* rank 0's buffers, and from one rank's to the next; null: only our own */
    size_t stride;      /*   can be seen */
    void *pinned;       /* all that is; null: nothing */
    crew *crew;         /* who adds up; null: we alone */
    mgw_blocks *out_of; /* by rank: how far a half is through its blocks, on the way out, */
    mgw_blocks *into;   /*   and on the way back */
    bool failed;        /* only closing is left */
    double looked_s;    /* when the other workers were looked at */
    size_t turn;        /* pieces so far: each has the next buffer */
    cuda_event out[STAGED_BUFFERS]; /* the piece is in the buffer */
    cuda_event in[STAGED_BUFFERS];  /* its result is on the GPU */
} staged;

/* ---- staged_flow.c ---- */

/* The collective, of the GPU's memory: all but the last copies, which the stream waits for. */
MGW_CHECKED mgw_status staged_run(staged *s, const mgw_transport_call *call, mgw_error *error);

/* For an event. */
MGW_CHECKED mgw_status staged_wait(staged *s, cuda_event event, mgw_error *error);

#endif
