/* Parses the name of a transport. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <mgwfbp/transport.h>

#include "base/locale.h"
#include "base/status.h"

static const char *const names[] = {
#define X(constant, name) [constant] = name,
    MGW_TRANSPORT_LIST(X)
#undef X
};

static const int kinds = sizeof names / sizeof *names;

const char *mgw_transport_kind_name(mgw_transport_kind kind)
{
    return (int)kind < kinds && names[kind] ? names[kind] : "";
}

/* Returns MGW_TRANSPORT_UNSAID for an unknown name. */
static mgw_transport_kind find_kind(const char *text, size_t length)
{
    for (int kind = MGW_TRANSPORT_UNSAID + 1; kind < kinds; kind++)
        if (strlen(names[kind]) == length && !memcmp(names[kind], text, length))
            return (mgw_transport_kind)kind;
    return MGW_TRANSPORT_UNSAID;
}

static mgw_status fail_unknown(const char *name, mgw_error *error)
{
    return mgw_fail(
        error, MGW_ERR_ARGUMENT,
        "unknown transport '%.60s'; choose one of self, shm, mpi, tcp, nccl, emulated:A,B and "
        "emulated:CLUSTER",
        name);
}

static mgw_status fail_emulated(const char *name, mgw_error *error)
{
    return mgw_fail(
        error, MGW_ERR_ARGUMENT,
        "transport '%.60s': write emulated:A,B with seconds and seconds per byte, as in "
        "emulated:9.08e-4,7.4e-10, or emulated:CLUSTER",
        name);
}

/* ---- nccl, and what the workers agree through ---- */

static mgw_status parse_control(const char *name, const char *rest, mgw_transport_spec *out,
                                mgw_error *error)
{
    out->over = find_kind(rest, strlen(rest));
    if (mgw_transport_is_host(out->over))
        return MGW_OK;
    return mgw_fail(error, MGW_ERR_ARGUMENT,
                    "transport '%.60s': write nccl, or nccl:shm, nccl:tcp or nccl:mpi to say what "
                    "the workers agree through",
                    name);
}

/* ---- emulated: costs, or a cluster that has them; and what is made slow ---- */

static mgw_status parse_slowed(const char *name, const char *rest, mgw_transport_spec *out,
                               mgw_error *error)
{
    out->over = find_kind(rest, strcspn(rest, ":"));
    if (out->over == MGW_TRANSPORT_EMULATED)
        return mgw_fail(error, MGW_ERR_ARGUMENT,
                        "transport '%.60s': emulated can be given only once", name);
    if (out->over == MGW_TRANSPORT_NCCL)
        return mgw_fail(error, MGW_ERR_ARGUMENT,
                        "transport '%.60s': messages of GPUs cannot be emulated", name);
    if (out->over == MGW_TRANSPORT_UNSAID || strchr(rest, ':'))
        return fail_unknown(rest, error);
    return MGW_OK;
}

/* "A,B" or "A,B:NAME". False: it does not start like that. */
static bool parse_costs(const char *name, const char *rest, mgw_transport_spec *out,
                        mgw_status *status, mgw_error *error)
{
    char *comma = NULL;
    char *end = NULL;
    out->a_s = strtod_l(rest, &comma, mgw_c_locale());
    if (comma == rest || *comma != ',')
        return false;
    out->b_s_per_byte = strtod_l(comma + 1, &end, mgw_c_locale());
    bool whole = end != comma + 1 && (*end == '\0' || *end == ':');
    if (!whole || !isfinite(out->a_s) || !isfinite(out->b_s_per_byte) || out->a_s < 0 ||
        out->b_s_per_byte < 0)
        *status = fail_emulated(name, error);
    else if (*end)
        *status = parse_slowed(name, end + 1, out, error);
    return true;
}

/* "CLUSTER" or "CLUSTER:NAME": the part after the last colon belongs to a path unless it is the
 * name of a transport. */
static mgw_status parse_cluster(const char *name, const char *rest, mgw_transport_spec *out,
                                mgw_error *error)
{
    const char *colon = strrchr(rest, ':');
    const char *last = colon ? colon + 1 : rest;
    bool slowed = find_kind(last, strlen(last)) != MGW_TRANSPORT_UNSAID;
    size_t length = !slowed ? strlen(rest) : colon ? (size_t)(colon - rest) : 0;
    out->a_s = out->b_s_per_byte = 0;
    if (!length)
        return fail_emulated(name, error);
    if (length >= sizeof out->cluster)
        return mgw_fail(error, MGW_ERR_ARGUMENT,
                        "transport '%.60s…': the name of a cluster has at most %zu bytes", name,
                        sizeof out->cluster - 1);
    memcpy(out->cluster, rest, length);
    return slowed ? parse_slowed(name, last, out, error) : MGW_OK;
}

/* ---- All of it ---- */

mgw_status mgw_transport_spec_parse(const char *name, mgw_transport_spec *out, mgw_error *error)
{
    size_t length = strcspn(name, ":");
    const char *rest = name[length] ? name + length + 1 : NULL;
    mgw_status status = MGW_OK;
    *out = (mgw_transport_spec){.kind = find_kind(name, length)};
    switch (out->kind) {
    case MGW_TRANSPORT_NCCL:
        return rest ? parse_control(name, rest, out, error) : MGW_OK;
    case MGW_TRANSPORT_EMULATED:
        if (!rest)
            return fail_emulated(name, error);
        return parse_costs(name, rest, out, &status, error) ? status
                                                            : parse_cluster(name, rest, out, error);
    case MGW_TRANSPORT_UNSAID:
        return fail_unknown(name, error);
    default:
        return rest ? mgw_fail(error, MGW_ERR_ARGUMENT, "transport '%.60s': nothing can follow %s",
                               name, names[out->kind])
                    : MGW_OK;
    }
}

void mgw_transport_spec_print(const mgw_transport_spec *spec, char out[MGW_TRANSPORT_SPEC_MAX])
{
    const char *kind = mgw_transport_kind_name(spec->kind);
    const char *colon = spec->over ? ":" : "";
    const char *over = mgw_transport_kind_name(spec->over);
    if (spec->kind != MGW_TRANSPORT_EMULATED)
        snprintf(out, MGW_TRANSPORT_SPEC_MAX, "%s%s%s", kind, colon, over);
    else if (spec->cluster[0])
        snprintf(out, MGW_TRANSPORT_SPEC_MAX, "%s:%s%s%s", kind, spec->cluster, colon, over);
    else
        mgw_snprintf(out, MGW_TRANSPORT_SPEC_MAX, "%s:%.17g,%.17g%s%s", kind, spec->a_s,
                     spec->b_s_per_byte, colon, over);
}
