/* Completes the options of a transport from the environment. */
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>

#include "base/locale.h"
#include "base/status.h"
#include "transport/transport.h"

unsigned long mgw_transport_srun_tasks(void)
{
    const char *tasks = getenv("SLURM_STEP_NUM_TASKS");
    return tasks ? strtoul(tasks, NULL, 10) : 0;
}

/* Variables set by mpirun of Open MPI and MPICH, and by srun. */
static bool under_mpi(void)
{
    return getenv("OMPI_COMM_WORLD_SIZE") || getenv("PMI_SIZE") || getenv("PMIX_RANK") ||
           mgw_transport_srun_tasks() > 1;
}

/* Reads the first of two variables that is set, as a number. The transport checks the number of
 * workers. */
static mgw_status read_number(const char *first, const char *second, unsigned fallback,
                              unsigned *out, mgw_error *error)
{
    const char *name = getenv(first) ? first : second;
    const char *value = getenv(name);
    *out = fallback;
    if (!value)
        return MGW_OK;
    char *end = NULL;
    errno = 0;
    unsigned long number = strtoul(value, &end, 10);
    if (*value < '0' || *value > '9' || *end || errno || number > INT_MAX)
        return mgw_fail(error, MGW_ERR_ARGUMENT, "%s: '%.40s' is not a number up to %d", name,
                        value, INT_MAX);
    *out = (unsigned)number;
    return MGW_OK;
}

/*
 * The timeout for other workers, the same as PyTorch's default. Dead workers are noticed at once,
 * so it is meant for hanging ones, and must not expire while rank 0 evaluates alone. Unless set,
 * the timeout to join is shorter: a worker that was never started leaves no trace.
 */
static const double default_timeout_s = 1800;
static const double default_join_s = 300;

static mgw_status read_timeout(double *out, mgw_error *error)
{
    const char *value = getenv("MGWFBP_TIMEOUT");
    *out = default_timeout_s;
    if (!value)
        return MGW_OK;
    char *end = NULL;
    *out = strtod_l(value, &end, mgw_c_locale());
    if (end == value || *end || !isfinite(*out) || *out <= 0)
        return mgw_fail(error, MGW_ERR_ARGUMENT,
                        "MGWFBP_TIMEOUT: '%.40s' is not a number of seconds above 0", value);
    return MGW_OK;
}

static mgw_status complete_options(mgw_transport_options *options, mgw_error *error)
{
    mgw_status status = MGW_OK;
    const char *from = "";
    if (!options->job)
        options->job = getenv("MGWFBP_JOB");
    if (options->size == 0) {
        from = getenv("MGWFBP_RANK") ? "MGWFBP_RANK: " : "RANK: ";
        status = read_number("MGWFBP_SIZE", "WORLD_SIZE", 1, &options->size, error);
        if (!status)
            status = read_number("MGWFBP_RANK", "RANK", 0, &options->rank, error);
    }
    if (!status && options->rank >= options->size)
        status =
            mgw_fail(error, MGW_ERR_ARGUMENT, "%srank %u is out of range for a job of %u workers",
                     from, options->rank, options->size);
    if (!status && !(options->timeout_s > 0))
        status = read_timeout(&options->timeout_s, error);
    const char *lanes_from = options->lanes ? "lanes" : "MGWFBP_LANES";
    if (!status && !options->lanes)
        status = read_number("MGWFBP_LANES", "MGWFBP_LANES", 0, &options->lanes, error);
    if (!status && options->lanes > MGW_LANES_MAX)
        status = mgw_fail(error, MGW_ERR_ARGUMENT, "%s: %u; there are at most %d", lanes_from,
                          options->lanes, MGW_LANES_MAX);
    if (!options->name)
        options->name = getenv("MGWFBP_TRANSPORT");
    return status;
}

/* Whether there are workers on other hosts, as far as the launcher says. */
static bool spans_hosts(unsigned size)
{
    const char *local = getenv("LOCAL_WORLD_SIZE");
    return local && strtoul(local, NULL, 10) < size;
}

/* The default transport of a job. Several hosts without MPI use tcp for the control messages of GPU
 * workers; for gradients in host memory the engine says which alternatives there are. */
static mgw_transport_kind default_kind(const mgw_transport_options *options)
{
    bool several = options->size > 1;
    return several && options->job && !spans_hosts(options->size) ? MGW_TRANSPORT_SHM
           : under_mpi()                                          ? MGW_TRANSPORT_MPI
           : several && (options->address || getenv("MGWFBP_ADDRESS") || getenv("MASTER_ADDR"))
               ? MGW_TRANSPORT_TCP
               : MGW_TRANSPORT_SELF;
}

/* If the name came from the environment, the error says where. */
static mgw_status parse_name(const char *name, mgw_transport_spec *spec, mgw_error *error)
{
    mgw_error why = {0};
    mgw_status status = mgw_transport_spec_parse(name, spec, &why);
    if (!status)
        return MGW_OK;
    return mgw_fail(error, status, "%s%s",
                    name == getenv("MGWFBP_TRANSPORT") ? "MGWFBP_TRANSPORT: " : "", why.message);
}

mgw_status mgw_transport_resolve(const mgw_transport_options *given, mgw_transport_setup *out,
                                 mgw_error *error)
{
    *out = (mgw_transport_setup){.options = given ? *given : (mgw_transport_options){0}};
    mgw_transport_options *options = &out->options;
    mgw_transport_spec *spec = &out->spec;
    mgw_status status = complete_options(options, error);
    if (!status && options->name)
        status = parse_name(options->name, spec, error);
    if (status)
        return status;
    if (!spec->kind)
        spec->kind = options->on_device ? MGW_TRANSPORT_NCCL : default_kind(options);
    if (!options->name)
        options->name = mgw_transport_kind_name(spec->kind);
    if (!spec->over && !mgw_transport_is_host(spec->kind))
        spec->over = default_kind(options);
    out->join_s = options->join_s > 0                       ? options->join_s
                  : options->timeout_s == default_timeout_s ? default_join_s
                                                            : options->timeout_s;
    out->staged = options->on_device && spec->kind != MGW_TRANSPORT_NCCL;
    options->on_device = out->staged || spec->kind == MGW_TRANSPORT_NCCL;
    if (out->staged && spec->kind == MGW_TRANSPORT_EMULATED)
        return mgw_fail(
            error, MGW_ERR_UNSUPPORTED,
            "transport '%.60s': messages of GPUs cannot be emulated; use nccl, shm or mpi",
            options->name);
    return MGW_OK;
}

mgw_transport_setup mgw_transport_inside(const mgw_transport_setup *setup)
{
    mgw_transport_setup inner = *setup;
    if (!setup->staged)
        inner.spec = (mgw_transport_spec){.kind = setup->spec.over};
    inner.staged = false;
    inner.options.on_device = false;
    inner.options.name = mgw_transport_kind_name(inner.spec.kind);
    return inner;
}
