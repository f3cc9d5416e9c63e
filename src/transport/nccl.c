/*
 * The transport over NCCL, for GPU memory. Host memory, and all communication before and around
 * NCCL, goes over another transport: the control.
 */
#include <stdlib.h>

#include "base/clock.h"
#include "base/status.h"
#include "transport/nccl.h"

/* ---- Life ---- */

static mgw_status nccl_prepare(const mgw_transport_setup *setup, bool *caller, mgw_error *error)
{
    const mgw_transport_setup control = mgw_transport_inside(setup);
    const cuda *driver = NULL;
    const nccl_library *library = NULL;
    cuda_context context = NULL;
    mgw_status status = mgw_cuda_enter(&driver, &context, error);
    if (!status)
        status = mgw_nccl_load(&library, error);
    return status ? status : mgw_transport_prepare_as(&control, caller, error);
}

static void nccl_close(void *state);

static mgw_status nccl_open(const mgw_transport_setup *setup, void **state, mgw_error *error)
{
    nccl *n = calloc(1, sizeof *n);
    if (!n)
        return mgw_fail_memory(error, "nccl");
    n->timeout_s = setup->options.timeout_s;
    const mgw_transport_setup control = mgw_transport_inside(setup);
    mgw_status status = on_device_open(&n->device, error);
    if (!status)
        status = mgw_nccl_load(&n->library, error);
    if (!status)
        status = mgw_transport_open_as(&control, &n->control, error);
    if (!status)
        status = nccl_open_lanes(n, setup->options.lanes, error);
    if (status)
        nccl_close(n);
    else
        *state = n;
    return status;
}

static void nccl_place(void *state, unsigned *rank, unsigned *size)
{
    const nccl *n = state;
    *rank = mgw_transport_rank(n->control);
    *size = mgw_transport_size(n->control);
}

static void nccl_close(void *state)
{
    nccl *n = state;
    nccl_close_lanes(n);
    cuda_kernels_close(&n->kernels);
    on_device_close(&n->device);
    mgw_transport_close(n->control);
    free(n);
}

/* ---- Waiting ---- */

static void *nccl_stream(void *state)
{
    return ((nccl *)state)->device.stream;
}

/* Work of the old job on the GPU must end: freeing memory in the new one waits for it. */
static mgw_status nccl_survive(void *state, unsigned round, mgw_survivors *out, mgw_error *error)
{
    nccl *n = state;
    if (!n->failed)
        n->why.status = mgw_fail(&n->why, MGW_ERR_PEER, "nccl: those that are left have met again");
    n->failed = true;
    nccl_abort(n, 0);
    return mgw_transport_survive(n->control, round, out, error);
}

static void nccl_say(void *state, const char *doing)
{
    mgw_transport_say(((nccl *)state)->control, doing);
}

static unsigned nccl_lanes_of(void *state)
{
    return ((nccl *)state)->lane_count;
}

static int nccl_follow(void *state, void *event)
{
    return on_device_follow(&((nccl *)state)->device, event);
}

/* Between two checks of NCCL and the other workers it only queries the GPU. */
static mgw_status nccl_test(void *state, const mgw_request *request, bool *done, mgw_error *error)
{
    nccl *n = state;
    int code = 0;
    if (n->failed)
        return nccl_fail_again(n, error);
    *done = on_device_is_over(&n->device, request->number, &code);
    double begun_s = *done || code ? 0 : on_device_oldest_s(&n->device, &code);
    if (code)
        return nccl_fail_cuda(n, code, "a collective failed on the GPU", error);
    double now_s = mgw_awake_s();
    if (*done || now_s - n->looked_s < on_device_between_s)
        return MGW_OK;
    n->looked_s = now_s;
    mgw_status status = MGW_OK;
    for (unsigned l = 0; !status && l < n->lane_count; l++) {
        int async = NCCL_SUCCESS;
        n->library->async_error(n->lanes[l].comm, &async);
        status = nccl_look(n, "a message", async, error);
    }
    if (!status && begun_s > 0 && now_s - begun_s > n->timeout_s)
        status = nccl_give_up(n, "a message", "it did not end in time", true, error);
    return status;
}

static mgw_status nccl_wait(void *state, const mgw_request *request, mgw_error *error)
{
    double begun_s = mgw_awake_s();
    bool done = false;
    mgw_status status = nccl_test(state, request, &done, error);
    while (!status && !done) {
        on_device_pause(begun_s);
        status = nccl_test(state, request, &done, error);
    }
    return status;
}

mgw_status nccl_drain(nccl *n, mgw_error *error)
{
    const mgw_request last = {.number = n->device.posted};
    return nccl_wait(n, &last, error);
}

static mgw_status nccl_allocate(void *state, size_t bytes, void **out, mgw_error *error)
{
    nccl *n = state;
    int code = on_device_mark_begun(&n->device, true);
    mgw_status status = code ? MGW_OK : on_device_allocate(&n->device, bytes, out, error);
    if (!code && !status)
        code = on_device_mark_ended(&n->device);
    if (code)
        return nccl_fail_cuda(n, code, "cannot clear memory", error);
    return status ? status : nccl_drain(n, error);
}

/*
 * NCCL would hang, or mix up data, if workers are in different collectives, and data in host memory
 * goes another way. So workers whose collectives may differ meet first. Only the hosts wait for
 * each other, not for their GPUs.
 */
static mgw_status meet(nccl *n, const mgw_transport_call *call, mgw_error *error)
{
    mgw_status status = call->follows ? MGW_OK : mgw_transport_meet(n->control, call, 0, &n->why);
    n->failed = status != MGW_OK;
    return status ? nccl_fail_again(n, error) : MGW_OK;
}

/* The parts are begun in the same order on all workers. A GPU that has no room for the kernels of
 * all lanes could still start them in another order than another GPU: docs/guide/gpu.md, Limits. */
mgw_status nccl_run(nccl *n, const mgw_transport_call *call, mgw_error *error)
{
    mgw_transport_call parts[MGW_LANES_MAX];
    unsigned used = nccl_divide(n, call, parts);
    bool once = nccl_is_once(n, call);
    mgw_status status = MGW_OK;
    for (unsigned l = 0; once && !status && l < used; l++)
        status = nccl_prepare_once(n, &n->lanes[l], &parts[l], error);
    if (status)
        return status;
    int code = on_device_mark_begun(&n->device, true);
    if (!code)
        code = nccl_fork(n, used);
    for (unsigned l = 0; !code && !status && l < used; l++)
        status = once ? nccl_sum_once(n, &n->lanes[l], &parts[l], error)
                      : nccl_begin(n, &n->lanes[l], &parts[l], error);
    if (!code && !status)
        code = nccl_join(n, used);
    if (!code && !status)
        code = on_device_mark_ended(&n->device);
    return code ? nccl_fail_cuda(n, code, "cannot begin a collective", error) : status;
}

static mgw_status nccl_post(void *state, const mgw_transport_call *call, mgw_request *out,
                            mgw_error *error)
{
    nccl *n = state;
    if (n->failed)
        return nccl_fail_again(n, error);
    if (!call->count || !on_device_has(&n->device, call->data))
        return mgw_transport_run(n->control, call, error);
    if (call->element == 1 && call->op == MGW_MAX && mgw_collective_averages(call->kind))
        return mgw_fail(error, MGW_ERR_UNSUPPORTED,
                        "nccl: %s of %s: GPUs find the largest of 16 bits or more",
                        mgw_collective_name(call->kind), mgw_dtype_name(call->dtype));
    mgw_status status = meet(n, call, error);
    if (!status)
        status = nccl_run(n, call, error);
    out->number = n->device.posted;
    return status;
}

static mgw_status nccl_barrier(void *state, mgw_error *error)
{
    nccl *n = state;
    mgw_status status = nccl_drain(n, error);
    return status ? status : mgw_transport_barrier(n->control, error);
}

const mgw_transport_table mgw_transport_nccl = {
    .capabilities = MGW_MOVES_HALVES | MGW_ON_DEVICE | MGW_NAMES_LATE | MGW_GOES_ON,
    .prepare = nccl_prepare,
    .open = nccl_open,
    .place = nccl_place,
    .close = nccl_close,
    .stream = nccl_stream,
    .follow = nccl_follow,
    .lanes = nccl_lanes_of,
    .say = nccl_say,
    .survive = nccl_survive,
    .allocate = nccl_allocate,
    .post = nccl_post,
    .test = nccl_test,
    .wait = nccl_wait,
    .barrier = nccl_barrier,
};
