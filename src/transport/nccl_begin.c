/* Collectives of NCCL, put on the stream of a lane. */
#include "base/status.h"
#include "transport/nccl.h"

/* NCCL moves 8-bit numbers as plain bytes. */
static const int types[MGW_DTYPE_COUNT] = {
    [MGW_F32] = NCCL_F32, [MGW_F16] = NCCL_F16, [MGW_BF16] = NCCL_BF16,
    [MGW_F64] = NCCL_F64, [MGW_FP8] = NCCL_U8,  [MGW_FP8_E5M2] = NCCL_U8};

int nccl_type(mgw_dtype dtype)
{
    return types[dtype];
}

static const int ops[] = {[MGW_AVERAGE] = NCCL_AVERAGE, [MGW_SUM] = NCCL_SUM, [MGW_MAX] = NCCL_MAX};

/* Progress through the segments of a call. */
typedef struct progress {
    size_t segment; /* the next one */
    char *at;       /* where it begins */
} progress;

/* Starts a collective for one rank's block. */
static int begin_block(const nccl *n, const nccl_lane *lane, const mgw_transport_call *call,
                       void *block, size_t length, unsigned rank)
{
    int type = types[call->dtype];
    int code = call->kind == MGW_REDUCE_SCATTER
                   ? n->library->reduce(block, block, length, type, ops[call->op], (int)rank,
                                        lane->comm, lane->stream)
                   : n->library->broadcast(block, block, length, type, (int)rank, lane->comm,
                                           lane->stream);
    return code == NCCL_IN_PROGRESS ? NCCL_SUCCESS : code;
}

/* Starts a collective for blocks of equal length. */
static int begin_even(const nccl *n, const nccl_lane *lane, const mgw_transport_call *call,
                      char *data, size_t block)
{
    int type = types[call->dtype];
    char *own = data + mgw_transport_rank(n->control) * block * call->element;
    int code = call->kind == MGW_REDUCE_SCATTER
                   ? n->library->reduce_scatter(data, own, block, type, ops[call->op], lane->comm,
                                                lane->stream)
                   : n->library->all_gather(own, data, block, type, lane->comm, lane->stream);
    return code == NCCL_IN_PROGRESS ? NCCL_SUCCESS : code;
}

/*
 * Our blocks may differ in length, or be parts of longer ones, NCCL's may not. Equal blocks need
 * one call in place; others need one call per rank.
 */
static int begin_segment(const nccl *n, const nccl_lane *lane, const mgw_transport_call *call,
                         char *data, size_t count)
{
    unsigned size = mgw_transport_size(n->control);
    int code = 0;
    if (!call->lanes && count % (32 * (size_t)size) == 0)
        return count ? begin_even(n, lane, call, data, count / size) : 0;
    for (unsigned r = 0; !code && r < size; r++) {
        size_t first = 0;
        size_t length = 0;
        mgw_block(count, size, r, &first, &length);
        mgw_block_of_lane(call, &first, &length);
        if (length)
            code = begin_block(n, lane, call, data + first * call->element, length, r);
    }
    return code;
}

/*
 * Starts all segments in one group, which NCCL runs concurrently; or in several, within its limit.
 */
static int halves(const nccl *n, const nccl_lane *lane, const mgw_transport_call *call, progress *p)
{
    enum { MOST = 1024 }; /* half the documented limit of older versions */
    unsigned size = mgw_transport_size(n->control);
    size_t count = call->segments ? call->segment_count : 1;
    int code = n->library->group_start();
    for (size_t begun = 0; !code && p->segment < count && (!begun || begun + size <= MOST);
         begun += size) {
        size_t length = call->segments ? call->segments[p->segment] : call->count;
        code = begin_segment(n, lane, call, p->at, length);
        p->at += length * call->element;
        p->segment++;
    }
    int ended = n->library->group_end();
    return code ? code : ended;
}

static int begin(const nccl *n, const nccl_lane *lane, const mgw_transport_call *call, progress *p)
{
    void *data = call->data;
    int root = (int)call->root;
    switch (call->kind) {
    case MGW_ALL_REDUCE:
        return n->library->all_reduce(data, data, call->count, types[call->dtype], ops[call->op],
                                      lane->comm, lane->stream);
    case MGW_PUSH:
        return n->library->reduce(data, data, call->count, types[call->dtype], ops[call->op], root,
                                  lane->comm, lane->stream);
    case MGW_PULL:
        return n->library->broadcast(data, data, call->count, NCCL_U8, root, lane->comm,
                                     lane->stream);
    default:
        return halves(n, lane, call, p);
    }
}

mgw_status nccl_begin(nccl *n, const nccl_lane *lane, const mgw_transport_call *call,
                      mgw_error *error)
{
    progress p = {0, call->data};
    mgw_status status = MGW_OK;
    do
        status = nccl_finish_call(n, lane, begin(n, lane, call, &p),
                                  mgw_collective_name(call->kind), error);
    while (!status && p.segment < call->segment_count);
    return status;
}
