/*
 * Lanes: communicators that move the parts of one message at the same time. Over sockets, NCCL has
 * a single thread per communicator that copies everything, and fast networks can take more than
 * that.
 */
#include <stdlib.h>

#include "base/clock.h"
#include "base/status.h"
#include "transport/nccl.h"

/* ---- Opening and closing ---- */

/* All workers have joined the control; now their GPUs do. */
static mgw_status join(nccl *n, nccl_lane *lane, mgw_error *error)
{
    nccl_id id = {{0}};
    nccl_config config = {sizeof config, NCCL_CONFIG_MAGIC, NCCL_CONFIG_VERSION, 0};
    unsigned rank = mgw_transport_rank(n->control);
    int code = 0;
    if (rank == 0 && (code = n->library->get_id(&id)))
        return mgw_fail(error, MGW_ERR_IO, "nccl: no unique id: %s", n->library->error_text(code));
    mgw_status status = mgw_transport_broadcast(n->control, &id, sizeof id, 0, error);
    if (status)
        return status;
    code =
        n->library->init(&lane->comm, (int)mgw_transport_size(n->control), id, (int)rank, &config);
    if (!lane->comm)
        return mgw_fail(error, MGW_ERR_IO, "nccl: joining: %s", n->library->error_text(code));
    return nccl_finish_call(n, lane, code, "joining", error);
}

/* Opens lanes until there are so many. */
static mgw_status open_more(nccl *n, unsigned count, mgw_error *error)
{
    const cuda *c = n->device.cuda;
    mgw_status status = MGW_OK;
    while (!status && n->lane_count < count) {
        nccl_lane *lane = &n->lanes[n->lane_count++];
        int code = 0;
        if (n->lane_count == 1)
            lane->stream = n->device.stream;
        else if (!(code = c->stream_create(&lane->stream, CUDA_STREAM_NON_BLOCKING)))
            code = c->event_create(&lane->over, CUDA_EVENT_UNTIMED);
        if (!code && n->lane_count == 2)
            code = c->event_create(&n->begun, CUDA_EVENT_UNTIMED);
        status =
            code ? nccl_fail_cuda(n, code, "cannot make a stream", error) : join(n, lane, error);
    }
    return status;
}

/* Sends what others still wait for, but does not wait for them long. */
static bool leave(nccl *n, const nccl_lane *lane, double begun_s)
{
    int code = n->library->finalize(lane->comm);
    while (code == NCCL_IN_PROGRESS && mgw_awake_s() - begun_s < nccl_leaving_s &&
           !mgw_transport_check(n->control, NULL)) {
        int called = n->library->async_error(lane->comm, &code);
        code = called ? called : code;
        on_device_pause(begun_s);
    }
    return code == NCCL_SUCCESS;
}

/* Closes the lanes from `first` on. */
static void close_from(nccl *n, unsigned first)
{
    const cuda *c = n->device.cuda;
    double begun_s = mgw_awake_s();
    for (unsigned l = first; l < n->lane_count; l++) {
        nccl_lane *lane = &n->lanes[l];
        if (lane->comm && !n->failed && leave(n, lane, begun_s)) {
            n->library->destroy(lane->comm);
            lane->comm = NULL;
        }
    }
    nccl_abort(n, first);
    for (unsigned l = first; l < n->lane_count; l++) {
        nccl_lane *lane = &n->lanes[l];
        if (lane->over)
            c->event_destroy(lane->over);
        if (l && lane->stream)
            c->stream_destroy(lane->stream);
        free(lane->owners);
        *lane = (nccl_lane){0};
    }
    n->lane_count = first < n->lane_count ? first : n->lane_count;
}

void nccl_close_lanes(nccl *n)
{
    close_from(n, 0);
    if (n->begun)
        n->device.cuda->event_destroy(n->begun);
}

/* ---- How many ---- */

typedef struct probe {
    nccl *nccl;
    cuda_pointer data;
} probe;

static mgw_status time_lanes(void *context, unsigned lanes, double *seconds, mgw_error *error)
{
    const probe *p = context;
    const mgw_transport_call call = {.kind = MGW_ALL_REDUCE,
                                     .data = p->data,
                                     .count = MGW_PROBE_BYTES / sizeof(float),
                                     .element = sizeof(float),
                                     .dtype = MGW_F32,
                                     .op = MGW_SUM};
    mgw_status status = open_more(p->nccl, lanes, error);
    if (!status)
        status = mgw_transport_barrier(p->nccl->control, error);
    double begun_s = mgw_now_s();
    if (!status)
        status = nccl_run(p->nccl, &call, error);
    if (!status)
        status = nccl_drain(p->nccl, error);
    *seconds = mgw_now_s() - begun_s;
    return status;
}

static mgw_status choose_lanes(nccl *n, mgw_error *error)
{
    const mgw_exchange exchange = mgw_transport_exchange(n->control);
    probe p = {.nccl = n};
    unsigned lanes = 1;
    int code = n->device.cuda->allocate(&p.data, MGW_PROBE_BYTES);
    if (code)
        return nccl_fail_cuda(n, code, "no memory", error);
    mgw_status status = mgw_choose_lanes(&exchange, &p, time_lanes, &lanes, error);
    if (status) /* CUDA might wait for ever for a message, so the memory stays */
        return status;
    close_from(n, lanes);
    n->device.cuda->release(p.data);
    return MGW_OK;
}

mgw_status nccl_open_lanes(nccl *n, unsigned wanted, mgw_error *error)
{
    bool alone = mgw_transport_size(n->control) == 1;
    uint64_t count = wanted;
    mgw_status status = mgw_transport_broadcast(n->control, &count, sizeof count, 0, error);
    if (!status)
        status = open_more(n, count && !alone ? (unsigned)count : 1, error);
    return status || count || alone ? status : choose_lanes(n, error);
}

/* ---- Parts ---- */

/* All-reduces and the like are cut anywhere. A lane moves its part of every rank's block of a
 * reduce-scatter or all-gather, so that lanes do not change which elements a rank gets. */
unsigned nccl_divide(const nccl *n, const mgw_transport_call *call,
                     mgw_transport_call parts[MGW_LANES_MAX])
{
    bool half = call->kind == MGW_REDUCE_SCATTER || call->kind == MGW_ALL_GATHER;
    size_t most = call->count * call->element / MGW_LANE_BYTES;
    unsigned used = n->lane_count < most ? n->lane_count : (unsigned)most;
    if (call->most_lanes && call->most_lanes < used)
        used = call->most_lanes;
    parts[0] = *call;
    if (used < 2)
        return 1;
    for (unsigned l = 0; l < used; l++) {
        size_t first = 0;
        parts[l] = *call;
        if (half) {
            parts[l].lane = l;
            parts[l].lanes = used;
        } else {
            mgw_block(call->count, used, l, &first, &parts[l].count);
            parts[l].data = call->data + first * call->element;
        }
    }
    return used;
}

int nccl_fork(nccl *n, unsigned used)
{
    const cuda *c = n->device.cuda;
    int code = used > 1 ? c->event_record(n->begun, n->device.stream) : 0;
    for (unsigned l = 1; !code && l < used; l++)
        code = c->stream_wait(n->lanes[l].stream, n->begun, 0);
    return code;
}

int nccl_join(nccl *n, unsigned used)
{
    const cuda *c = n->device.cuda;
    int code = 0;
    for (unsigned l = 1; !code && l < used; l++) {
        code = c->event_record(n->lanes[l].over, n->lanes[l].stream);
        if (!code)
            code = c->stream_wait(n->device.stream, n->lanes[l].over, 0);
    }
    return code;
}
