/* Opens the requested transport, and forwards calls to it. */
#include "transport/transport.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/block.h"
#include "base/process.h"
#include "base/status.h"

static const mgw_transport_table *const tables[] = {
    [MGW_TRANSPORT_SELF] = &mgw_transport_self,         [MGW_TRANSPORT_SHM] = &mgw_transport_shm,
#ifdef MGW_HAVE_MPI
    [MGW_TRANSPORT_MPI] = &mgw_transport_mpi,
#endif
    [MGW_TRANSPORT_TCP] = &mgw_transport_tcp,           [MGW_TRANSPORT_NCCL] = &mgw_transport_nccl,
    [MGW_TRANSPORT_EMULATED] = &mgw_transport_emulated,
};

static mgw_status find_table(const mgw_transport_setup *setup, const mgw_transport_table **out,
                             mgw_error *error)
{
    const mgw_transport_table *table = tables[setup->spec.kind];
    *out = setup->staged ? &mgw_transport_staged : table;
    if (table)
        return MGW_OK;
    return mgw_fail(error, MGW_ERR_UNSUPPORTED,
                    "this build has no transport mpi: install libopenmpi-dev or libmpich-dev and "
                    "build again, or use shm");
}

mgw_status mgw_transport_prepare_as(const mgw_transport_setup *setup, bool *caller,
                                    mgw_error *error)
{
    const mgw_transport_table *table = NULL;
    *caller = false;
    mgw_status status = find_table(setup, &table, error);
    if (!status && table->prepare)
        status = table->prepare(setup, caller, error);
    return status;
}

mgw_status mgw_transport_prepare(const mgw_transport_options *options, bool *caller,
                                 mgw_error *error)
{
    mgw_transport_setup setup;
    mgw_status status = mgw_transport_resolve(options, &setup, error);
    return status ? status : mgw_transport_prepare_as(&setup, caller, error);
}

mgw_status mgw_transport_open_as(const mgw_transport_setup *setup, mgw_transport **out,
                                 mgw_error *error)
{
    const mgw_transport_options *options = &setup->options;
    const mgw_transport_table *table = NULL;
    mgw_status status = find_table(setup, &table, error);
    if (status)
        return status;
    mgw_transport *transport = calloc(1, sizeof *transport);
    if (!transport)
        return mgw_fail_memory(error, options->name);
    transport->table = table;
    transport->process = mgw_process();
    transport->rank = options->rank;
    transport->size = options->size;
    snprintf(transport->name, sizeof transport->name, "%s%s", setup->staged ? "staged-" : "",
             options->name);
    status = table->open(setup, &transport->state, error);
    if (!status && table->place)
        table->place(transport->state, &transport->rank, &transport->size);
    if (status)
        free(transport);
    else
        *out = transport;
    return status;
}

mgw_status mgw_transport_open(const mgw_transport_options *options, mgw_transport **out,
                              mgw_error *error)
{
    mgw_transport_setup setup;
    mgw_status status = mgw_transport_resolve(options, &setup, error);
    return status ? status : mgw_transport_open_as(&setup, out, error);
}

unsigned mgw_transport_capabilities(const mgw_transport *transport)
{
    return transport->table->capabilities;
}

void mgw_transport_close(mgw_transport *transport)
{
    if (!transport || transport->process != mgw_process()) /* a fork is no worker of the job */
        return;
    transport->table->close(transport->state);
    free(transport);
}

const char *mgw_transport_name(const mgw_transport *transport)
{
    return transport->name;
}

unsigned mgw_transport_rank(const mgw_transport *transport)
{
    return transport->rank;
}

unsigned mgw_transport_size(const mgw_transport *transport)
{
    return transport->size;
}

void mgw_transport_block(size_t count, unsigned size, unsigned rank, size_t *first, size_t *length)
{
    mgw_block(count, size, rank, first, length);
}

void *mgw_transport_stream(const mgw_transport *transport)
{
    return transport->table->stream ? transport->table->stream(transport->state) : NULL;
}

unsigned mgw_transport_lanes(const mgw_transport *transport)
{
    return transport->table->lanes ? transport->table->lanes(transport->state) : 1;
}

int mgw_transport_follow(mgw_transport *transport, void *event)
{
    return transport->table->follow(transport->state, event);
}

bool mgw_transport_on_device(const mgw_transport *transport)
{
    return transport->table->capabilities & MGW_ON_DEVICE;
}

mgw_status mgw_transport_survive(mgw_transport *transport, unsigned round, mgw_survivors *out,
                                 mgw_error *error)
{
    if (!transport->table->survive)
        return mgw_fail(error, MGW_ERR_UNSUPPORTED,
                        "over %s the remaining workers cannot continue: start the job again",
                        transport->name);
    return transport->table->survive(transport->state, round, out, error);
}

mgw_status mgw_transport_check(mgw_transport *transport, mgw_error *error)
{
    return transport->table->check ? transport->table->check(transport->state, error) : MGW_OK;
}

void mgw_transport_say(mgw_transport *transport, const char *doing)
{
    if (transport->table->say)
        transport->table->say(transport->state, doing);
}

bool mgw_transport_find_all(const mgw_transport *transport, const void *data, size_t bytes,
                            char **first, size_t *stride)
{
    return transport->table->find_all &&
           transport->table->find_all(transport->state, data, bytes, first, stride);
}

mgw_status mgw_transport_meet(mgw_transport *transport, const mgw_transport_call *call,
                              unsigned buffer, mgw_error *error)
{
    return transport->table->meet ? transport->table->meet(transport->state, call, buffer, error)
                                  : MGW_OK;
}

/* ---- Collectives ---- */

/* A forked child would join meetings as its parent, whose memory it may share. */
static mgw_status check_process(const mgw_transport *transport, mgw_error *error)
{
    if (transport->process == mgw_process())
        return MGW_OK;
    return mgw_fail(error, MGW_ERR_ARGUMENT,
                    "the transport belongs to process %ld, and this process is a fork of it",
                    (long)transport->process);
}

mgw_status mgw_transport_allocate(mgw_transport *transport, size_t bytes, void **out,
                                  mgw_error *error)
{
    mgw_status status = check_process(transport, error);
    return status ? status : transport->table->allocate(transport->state, bytes, out, error);
}

void mgw_transport_intend(mgw_transport *transport, uint64_t purpose, bool follows)
{
    transport->purpose = purpose;
    transport->follows = follows;
    transport->most_lanes = 0;
}

void mgw_transport_limit_lanes(mgw_transport *transport, unsigned most)
{
    transport->most_lanes = most;
}

/* The purpose is known here, or to the outer transport. */
static mgw_status post(mgw_transport *transport, const mgw_transport_call *call, mgw_request *out,
                       mgw_error *error)
{
    mgw_transport_call meant = *call;
    if (transport->purpose)
        meant.purpose = transport->purpose;
    meant.follows |= transport->follows;
    if (transport->most_lanes)
        meant.most_lanes = transport->most_lanes;
    *out = (mgw_request){0};
    mgw_status status = check_process(transport, error);
    if (status)
        return status;
    if (call->root >= transport->size)
        return mgw_fail(error, MGW_ERR_ARGUMENT, "root %u: there are %u workers", call->root,
                        transport->size);
    return transport->table->post(transport->state, &meant, out, error);
}

static mgw_status check_segments(const mgw_call *call, mgw_error *error)
{
    size_t left = call->count;
    for (size_t i = 0; i < call->segment_count; i++) {
        if (call->segments[i] > left)
            return mgw_fail(error, MGW_ERR_ARGUMENT, "%s of %zu elements: its segments are longer",
                            mgw_collective_name(call->kind), call->count);
        left -= call->segments[i];
    }
    return left ? mgw_fail(error, MGW_ERR_ARGUMENT, "%s of %zu elements: its segments have %zu",
                           mgw_collective_name(call->kind), call->count, call->count - left)
                : MGW_OK;
}

mgw_status mgw_transport_post(mgw_transport *transport, const mgw_call *call, mgw_request *out,
                              mgw_error *error)
{
    bool half = call->kind == MGW_REDUCE_SCATTER || call->kind == MGW_ALL_GATHER;
    bool rooted = call->kind == MGW_PUSH || call->kind == MGW_PULL;
    size_t element = mgw_dtype_bytes(call->dtype);
    const mgw_transport_call inside = {.kind = call->kind,
                                       .data = call->data,
                                       .count = call->count,
                                       .element = call->kind == MGW_PULL ? 1 : element,
                                       .dtype = call->dtype,
                                       .op = call->op,
                                       .root = rooted ? call->root : 0,
                                       .segments = half ? call->segments : NULL,
                                       .segment_count = half ? call->segment_count : 0,
                                       .rounds_once = call->rounds_once,
                                       .follows = call->follows};
    mgw_status status = inside.segments ? check_segments(call, error) : MGW_OK;
    return status ? status : post(transport, &inside, out, error);
}

mgw_status mgw_request_test(mgw_transport *transport, const mgw_request *request, bool *done,
                            mgw_error *error)
{
    *done = request->number == 0;
    return *done ? MGW_OK : transport->table->test(transport->state, request, done, error);
}

mgw_status mgw_request_wait(mgw_transport *transport, const mgw_request *request, mgw_error *error)
{
    return request->number == 0 ? MGW_OK : transport->table->wait(transport->state, request, error);
}

mgw_status mgw_transport_run(mgw_transport *transport, const mgw_transport_call *call,
                             mgw_error *error)
{
    mgw_request request;
    mgw_status status = post(transport, call, &request, error);
    return status ? status : mgw_request_wait(transport, &request, error);
}

mgw_status mgw_transport_all_reduce(mgw_transport *transport, void *data, size_t count,
                                    mgw_dtype dtype, mgw_op op, mgw_error *error)
{
    const mgw_transport_call call = {.kind = MGW_ALL_REDUCE,
                                     .data = data,
                                     .count = count,
                                     .element = mgw_dtype_bytes(dtype),
                                     .dtype = dtype,
                                     .op = op};
    return mgw_transport_run(transport, &call, error);
}

mgw_status mgw_transport_reduce_scatter(mgw_transport *transport, void *data, size_t count,
                                        mgw_dtype dtype, mgw_op op, mgw_error *error)
{
    const mgw_transport_call call = {.kind = MGW_REDUCE_SCATTER,
                                     .data = data,
                                     .count = count,
                                     .element = mgw_dtype_bytes(dtype),
                                     .dtype = dtype,
                                     .op = op};
    return mgw_transport_run(transport, &call, error);
}

mgw_status mgw_transport_all_gather(mgw_transport *transport, void *data, size_t count,
                                    mgw_dtype dtype, mgw_error *error)
{
    const mgw_transport_call call = {.kind = MGW_ALL_GATHER,
                                     .data = data,
                                     .count = count,
                                     .element = mgw_dtype_bytes(dtype),
                                     .dtype = dtype};
    return mgw_transport_run(transport, &call, error);
}

mgw_status mgw_transport_reduce(mgw_transport *transport, void *data, size_t count, mgw_dtype dtype,
                                mgw_op op, unsigned root, mgw_error *error)
{
    const mgw_transport_call call = {.kind = MGW_PUSH,
                                     .data = data,
                                     .count = count,
                                     .element = mgw_dtype_bytes(dtype),
                                     .dtype = dtype,
                                     .op = op,
                                     .root = root};
    return mgw_transport_run(transport, &call, error);
}

mgw_status mgw_transport_broadcast(mgw_transport *transport, void *data, size_t bytes,
                                   unsigned root, mgw_error *error)
{
    const mgw_transport_call call = {
        .kind = MGW_PULL, .data = data, .count = bytes, .element = 1, .root = root};
    return mgw_transport_run(transport, &call, error);
}

mgw_status mgw_transport_barrier(mgw_transport *transport, mgw_error *error)
{
    mgw_status status = check_process(transport, error);
    return status ? status : transport->table->barrier(transport->state, error);
}

/* ---- Exchange between workers ---- */

static mgw_status combine(void *context, double *values, size_t sums, size_t maxima,
                          mgw_error *error)
{
    mgw_status status =
        sums ? mgw_transport_all_reduce(context, values, sums, MGW_F64, MGW_SUM, error) : MGW_OK;
    if (!status && maxima)
        status = mgw_transport_all_reduce(context, values + sums, maxima, MGW_F64, MGW_MAX, error);
    return status;
}

static mgw_status tell(void *context, void *data, size_t bytes, mgw_error *error)
{
    return mgw_transport_broadcast(context, data, bytes, 0, error);
}

mgw_exchange mgw_transport_exchange(mgw_transport *transport)
{
    return (mgw_exchange){transport, transport->rank, transport->size, combine, tell};
}
