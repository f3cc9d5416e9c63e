/* Options of the engine: from the program, else from the environment, else the default. */
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/dtype.h"
#include "base/status.h"
#include "engine/engine.h"
#include "transport/transport.h"

static mgw_status read_count(const char *variable, int fallback, int least, int *out,
                             mgw_error *error)
{
    if (*out > 0)
        return MGW_OK;
    const char *value = getenv(variable);
    *out = fallback;
    if (!value)
        return MGW_OK;
    char *end = NULL;
    errno = 0;
    long number = strtol(value, &end, 10);
    if (end == value || *end || errno || number < least || number > INT_MAX)
        return mgw_fail(error, MGW_ERR_ARGUMENT, "%s: '%.40s' is not an integer of at least %d",
                        variable, value, least);
    *out = (int)number;
    return MGW_OK;
}

mgw_status engine_read_dtype(const char *option, const char *name, mgw_dtype *out, mgw_error *error)
{
    *out = MGW_F32;
    if (!name || (mgw_dtype_parse(name, out) && *out <= MGW_BF16))
        return MGW_OK;
    return mgw_fail(error, MGW_ERR_ARGUMENT, "%s: '%.40s' is not f32, f16 or bf16", option, name);
}

const char *engine_option_name(const char *value, const char *variable, const char *option)
{
    return value && value == getenv(variable) ? variable : option;
}

mgw_status engine_blame(const char *value, const char *variable, mgw_status status,
                        const mgw_error *why, mgw_error *error)
{
    if (!status)
        return MGW_OK;
    return value && value == getenv(variable)
               ? mgw_fail(error, status, "%s: %s", variable, why->message)
               : mgw_fail(error, status, "%s", why->message);
}

mgw_status engine_check_servers(const mgw_engine *engine, mgw_error *error)
{
    unsigned servers = engine->options.servers > 0 ? (unsigned)engine->options.servers : 0;
    if (servers <= engine->size)
        return MGW_OK;
    return mgw_fail(error, MGW_ERR_ARGUMENT, "%s: %u servers, but there %s only %u worker%s",
                    engine->servers_from ? engine->servers_from : "servers", servers,
                    engine->size == 1 ? "is" : "are", engine->size, engine->size == 1 ? "" : "s");
}

mgw_status engine_read_wire(const char *name, mgw_dtype *out, mgw_error *error)
{
    *out = MGW_F32;
    if (!name || (mgw_dtype_parse(name, out) && mgw_wire_is_known(*out)))
        return MGW_OK;
    return mgw_fail(error, MGW_ERR_ARGUMENT, "%s: '%.40s' is not f32, f16, bf16, fp8 or fp8-e5m2",
                    engine_option_name(name, "MGWFBP_WIRE", "wire"), name);
}

static mgw_status complete_transport(mgw_engine_options *out, mgw_error *error)
{
    const char *device = out->device ? out->device : "host";
    mgw_transport_options transport = out->transport;
    if (!strcmp(device, "cuda"))
        transport.on_device = true;
    else if (strcmp(device, "host") != 0)
        return mgw_fail(error, MGW_ERR_ARGUMENT, "%s: '%.40s' is not host or cuda",
                        engine_option_name(device, "MGWFBP_DEVICE", "device"), device);
    mgw_transport_setup setup;
    mgw_status status = mgw_transport_resolve(&transport, &setup, error);
    out->transport = setup.options;
    if (!status &&
        (setup.spec.kind == MGW_TRANSPORT_TCP ||
         (setup.spec.kind == MGW_TRANSPORT_EMULATED && setup.spec.over == MGW_TRANSPORT_TCP)))
        status = mgw_fail(
            error, MGW_ERR_UNSUPPORTED,
            "tcp is for coordination only and cannot send gradients: between hosts, use mpi (start "
            "the job with mpirun or srun), on GPUs nccl, or in Python a process group "
            "(init_process_group first); on one host, use shm");
    return status;
}

mgw_status engine_complete_options(const mgw_engine_options *given, mgw_engine_options *out,
                                   mgw_error *error)
{
    *out = given ? *given : (mgw_engine_options){0};
    static const struct {
        const char *variable;
        size_t offset;
    } texts[] = {{"MGWFBP_POLICY", offsetof(mgw_engine_options, policy)},
                 {"MGWFBP_CLUSTER", offsetof(mgw_engine_options, cluster)},
                 {"MGWFBP_WIRE", offsetof(mgw_engine_options, wire)},
                 {"MGWFBP_DEVICE", offsetof(mgw_engine_options, device)},
                 {"MGWFBP_PLAN", offsetof(mgw_engine_options, plan)}};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        const char **field = (const char **)((char *)out + texts[i].offset);
        if (!*field)
            *field = getenv(texts[i].variable);
    }
    if (!out->policy)
        out->policy = "optimal";
    mgw_status status = complete_transport(out, error);
    if (!status)
        status = read_count("MGWFBP_PROFILE_STEPS", 5, 1, &out->profile_steps, error);
    if (!status)
        status = read_count("MGWFBP_REPLAN_STEPS", 100, 1, &out->replan_steps, error);
    if (out->replan_percent < 0)
        out->replan_percent = 0;
    else if (!status)
        status = read_count("MGWFBP_REPLAN_PERCENT", 3, 0, &out->replan_percent, error);
    if (out->trials < 0)
        out->trials = 0;
    else if (!status)
        status = read_count("MGWFBP_TRIALS", 1, 0, &out->trials, error);
    if (!status)
        status = read_count("MGWFBP_SERVERS", 0, 0, &out->servers, error);
    if (!status && out->debug >= 0)
        status = read_count("MGWFBP_DEBUG", 0, 0, &out->debug, error);
    return status;
}
