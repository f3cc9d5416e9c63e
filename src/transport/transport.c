/* Finding a transport by name or from the environment, and passing calls on to it. */
#include "transport/transport.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/status.h"

static const mgw_transport_table *const tables[] = {
    &mgw_transport_self, &mgw_transport_shm, &mgw_transport_emulated, &mgw_transport_nccl,
#ifdef MGW_HAVE_MPI
    &mgw_transport_mpi,
#endif
};

unsigned long mgw_transport_srun_tasks(void)
{
    const char *tasks = getenv("SLURM_STEP_NUM_TASKS");
    return tasks ? strtoul(tasks, NULL, 10) : 0;
}

/* What mpirun of Open MPI and of MPICH, and srun, tell their programs. */
static bool under_mpi(void)
{
    return getenv("OMPI_COMM_WORLD_SIZE") || getenv("PMI_SIZE") || getenv("PMIX_RANK") ||
           mgw_transport_srun_tasks() > 1;
}

enum { RANKS_MAX = 1024 };

/* The first of two variables that is set, as a number. */
static mgw_status read_number(const char *first, const char *second, unsigned long fallback,
                              unsigned long most, unsigned *out, mgw_error *error)
{
    const char *name = getenv(first) ? first : second;
    const char *value = getenv(name);
    *out = (unsigned)fallback;
    if (!value)
        return MGW_OK;
    char *end = NULL;
    errno = 0;
    unsigned long number = strtoul(value, &end, 10);
    if (*value < '0' || *value > '9' || *end || errno || number > most)
        return mgw_fail(error, MGW_ERR_ARGUMENT, "%s: '%.40s' is not a number up to %lu", name,
                        value, most);
    *out = (unsigned)number;
    return MGW_OK;
}

static mgw_status read_timeout(double *out, mgw_error *error)
{
    const char *value = getenv("MGWFBP_TIMEOUT");
    *out = 30;
    if (!value)
        return MGW_OK;
    char *end = NULL;
    *out = strtod(value, &end);
    if (end == value || *end || !isfinite(*out) || *out <= 0)
        return mgw_fail(error, MGW_ERR_ARGUMENT,
                        "MGWFBP_TIMEOUT: '%.40s' is not a number of seconds above 0", value);
    return MGW_OK;
}

const char *mgw_transport_default(const mgw_transport_options *options)
{
    return options->job && options->size > 1 ? "shm" : under_mpi() ? "mpi" : "self";
}

/*
 * "emulated:1e-3,1e-9" is the transport "emulated"; what follows is its own business. Who does not
 * reach the memory of GPUs gets there through the host's.
 */
static mgw_status find_table(const mgw_transport_options *options, const mgw_transport_table **out,
                             mgw_error *error)
{
    const char *name = options->name;
    size_t length = strcspn(name, ":");
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++)
        if (strlen(tables[i]->name) == length && !strncmp(tables[i]->name, name, length)) {
            bool staged = options->on_device && !tables[i]->stream;
            *out = staged ? &mgw_transport_staged : tables[i];
            return MGW_OK;
        }
    if (!strcmp(name, "mpi"))
        return mgw_fail(error, MGW_ERR_UNSUPPORTED,
                        "transport mpi is not in this build: install libopenmpi-dev or "
                        "libmpich-dev and build again, or name shm");
    return mgw_fail(error, MGW_ERR_ARGUMENT,
                    "'%.60s' is not a transport; known are self, shm, mpi, nccl and emulated:A,B",
                    name);
}

mgw_status mgw_transport_complete(const mgw_transport_options *given, mgw_transport_options *out,
                                  mgw_error *error)
{
    *out = given ? *given : (mgw_transport_options){0};
    mgw_status status = MGW_OK;
    if (!out->job)
        out->job = getenv("MGWFBP_JOB");
    if (out->size == 0) {
        status = read_number("MGWFBP_SIZE", "WORLD_SIZE", 1, RANKS_MAX, &out->size, error);
        if (!status)
            status = read_number("MGWFBP_RANK", "RANK", 0, RANKS_MAX, &out->rank, error);
    }
    if (!status && (out->size == 0 || out->size > RANKS_MAX || out->rank >= out->size))
        status = mgw_fail(error, MGW_ERR_ARGUMENT, "rank %u of %u workers: there is no such",
                          out->rank, out->size);
    if (!status && !(out->timeout_s > 0))
        status = read_timeout(&out->timeout_s, error);
    if (!out->name)
        out->name = getenv("MGWFBP_TRANSPORT");
    if (!out->name)
        out->name = out->on_device ? "nccl" : mgw_transport_default(out);
    const mgw_transport_table *table = NULL;
    if (!status)
        status = find_table(out, &table, error);
    if (!status)
        out->on_device = table->stream;
    return status;
}

mgw_status mgw_transport_prepare(const mgw_transport_options *options, bool *caller,
                                 mgw_error *error)
{
    const mgw_transport_table *table = NULL;
    *caller = false;
    mgw_status status = find_table(options, &table, error);
    if (!status && table->prepare)
        status = table->prepare(options, caller, error);
    return status;
}

mgw_status mgw_transport_open(const mgw_transport_options *options, mgw_transport **out,
                              mgw_error *error)
{
    mgw_transport_options complete;
    const mgw_transport_table *table = NULL;
    mgw_status status = mgw_transport_complete(options, &complete, error);
    if (!status)
        status = find_table(&complete, &table, error);
    if (status)
        return status;
    mgw_transport *transport = calloc(1, sizeof *transport);
    if (!transport)
        return mgw_fail_memory(error, complete.name);
    transport->table = table;
    transport->process = getpid();
    transport->rank = complete.rank;
    transport->size = complete.size;
    snprintf(transport->name, sizeof transport->name, "%s%s",
             table == &mgw_transport_staged ? "staged-" : "", complete.name);
    status = table->open(&complete, &transport->state, error);
    if (!status && table->place)
        table->place(transport->state, &transport->rank, &transport->size);
    if (status)
        free(transport);
    else
        *out = transport;
    return status;
}

bool mgw_transport_waits_asleep(const mgw_transport *transport)
{
    return transport->table->waits_asleep;
}

bool mgw_transport_waits_for_device(const mgw_transport *transport)
{
    return transport->table == &mgw_transport_staged;
}

void mgw_transport_close(mgw_transport *transport)
{
    if (!transport || transport->process != getpid()) /* a fork is no worker of the job */
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
    /* Blocks begin on multiples of 32 elements, so that two ranks never write one cache line. */
    size_t units = (count + 31) / 32;
    size_t begin = units * rank / size * 32;
    size_t end = units * (rank + 1) / size * 32;
    begin = begin < count ? begin : count;
    end = end < count ? end : count;
    *first = begin;
    *length = end - begin;
}

/* ---- What goes on by itself, on a GPU ---- */

void *mgw_transport_stream(const mgw_transport *transport)
{
    return transport->table->stream ? transport->table->stream(transport->state) : NULL;
}

bool mgw_transport_on_device(const mgw_transport *transport)
{
    return transport->table->stream;
}

void mgw_transport_defer(mgw_transport *transport, bool on)
{
    transport->deferred = on;
}

mgw_status mgw_transport_settle(mgw_transport *transport, mgw_error *error)
{
    return transport->table->settle ? transport->table->settle(transport->state, error) : MGW_OK;
}

mgw_status mgw_transport_watch(mgw_transport *transport, bool overdue, mgw_error *error)
{
    return transport->table->watch ? transport->table->watch(transport->state, overdue, error)
                                   : MGW_OK;
}

mgw_status mgw_transport_check(mgw_transport *transport, mgw_error *error)
{
    return transport->table->check ? transport->table->check(transport->state, error) : MGW_OK;
}

bool mgw_transport_find_all(const mgw_transport *transport, const void *data, size_t bytes,
                            char **first, size_t *stride)
{
    return transport->table->find_all &&
           transport->table->find_all(transport->state, data, bytes, first, stride);
}

mgw_status mgw_transport_meet(mgw_transport *transport, size_t count, mgw_dtype dtype, mgw_op op,
                              unsigned buffer, mgw_error *error)
{
    return transport->table->meet(transport->state, count, dtype, op, buffer, error);
}

/* Behind every collective, once it is begun. */
static mgw_status end(mgw_transport *transport, mgw_status status, mgw_error *error)
{
    return status || transport->deferred ? status : mgw_transport_settle(transport, error);
}

/* ---- Collectives ---- */

mgw_status mgw_transport_allocate(mgw_transport *transport, size_t bytes, void **out,
                                  mgw_error *error)
{
    return transport->table->allocate(transport->state, bytes, out, error);
}

mgw_status mgw_transport_all_reduce(mgw_transport *transport, void *data, size_t count,
                                    mgw_dtype dtype, mgw_op op, mgw_error *error)
{
    return end(transport,
               transport->table->all_reduce(transport->state, data, count, dtype, op, error),
               error);
}

mgw_status mgw_transport_reduce_scatter(mgw_transport *transport, void *data, size_t count,
                                        mgw_dtype dtype, mgw_op op, mgw_error *error)
{
    return end(transport,
               transport->table->reduce_scatter(transport->state, data, count, dtype, op, error),
               error);
}

mgw_status mgw_transport_all_gather(mgw_transport *transport, void *data, size_t count,
                                    mgw_dtype dtype, mgw_error *error)
{
    return end(transport, transport->table->all_gather(transport->state, data, count, dtype, error),
               error);
}

static mgw_status check_root(const mgw_transport *transport, unsigned root, mgw_error *error)
{
    if (root < transport->size)
        return MGW_OK;
    return mgw_fail(error, MGW_ERR_ARGUMENT, "root %u: there are %u workers", root,
                    transport->size);
}

mgw_status mgw_transport_reduce(mgw_transport *transport, void *data, size_t count, mgw_dtype dtype,
                                mgw_op op, unsigned root, mgw_error *error)
{
    mgw_status status = check_root(transport, root, error);
    if (status)
        return status;
    return end(transport,
               transport->table->reduce(transport->state, data, count, dtype, op, root, error),
               error);
}

mgw_status mgw_transport_broadcast(mgw_transport *transport, void *data, size_t bytes,
                                   unsigned root, mgw_error *error)
{
    mgw_status status = check_root(transport, root, error);
    if (status)
        return status;
    return end(transport, transport->table->broadcast(transport->state, data, bytes, root, error),
               error);
}

mgw_status mgw_transport_barrier(mgw_transport *transport, mgw_error *error)
{
    return transport->table->barrier(transport->state, error);
}
