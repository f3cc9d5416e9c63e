/* A plan from a file: checks that it matches the tensors, and uses it without tuning. */
#include <string.h>

#include "base/names.h"
#include "base/status.h"
#include "plan/places.h"
#include "tune/tuner.h"

static mgw_status check_names(const mgw_tuner *tuner, const mgw_plan *plan, const char *path,
                              mgw_error *error)
{
    size_t count = mgw_plan_tensor_count(plan);
    if (count != tuner->tensor_count)
        return mgw_fail(error, MGW_ERR_INPUT,
                        "%s: operations: have %zu tensors, but the program has %zu", path, count,
                        tuner->tensor_count);
    for (size_t m = 0; m < plan->operation_count; m++)
        for (size_t k = 0; k < plan->operations[m].count; k++) {
            size_t i = plan->operations[m].first + k;
            const char *planned = mgw_plan_tensor_name(plan, i);
            const char *here = mgw_trace_tensor_name(tuner->untimed, i);
            if (strcmp(planned, here) != 0)
                return mgw_fail(error, MGW_ERR_INPUT,
                                "%s: operations[%zu].tensors: '%.80s', but tensor %zu of the "
                                "program is '%.80s'",
                                path, m, planned, i, here);
        }
    return MGW_OK;
}

static mgw_status check_kinds(const mgw_tuner *tuner, const mgw_plan *plan, const char *path,
                              mgw_error *error)
{
    for (size_t m = 0; m < plan->operation_count; m++) {
        mgw_collective kind = plan->operations[m].kind;
        bool half = kind == MGW_REDUCE_SCATTER || kind == MGW_ALL_GATHER;
        if (kind != MGW_ALL_REDUCE && !(half && tune_gathers(tuner)))
            return mgw_fail(error, MGW_ERR_UNSUPPORTED,
                            "%s: operations[%zu].kind: %s, but the engine does not keep parameters",
                            path, m, mgw_collective_name(kind));
    }
    return MGW_OK;
}

/* Checks that every tensor is averaged, and gathered if it is scattered. */
static mgw_status check_places(const mgw_tuner *tuner, const mgw_plan *plan, const char *path,
                               mgw_error *error)
{
    mgw_places places = {0};
    mgw_error why = {0};
    mgw_status status = mgw_places_init(tuner->tensor_count, plan->operations,
                                        plan->operation_count, &places, &why);
    mgw_places_fini(&places);
    return status ? mgw_fail(error, status, "%s: %s", path, why.message) : MGW_OK;
}

/* Checks that operations have the same bytes as here. */
static mgw_status check_bytes(const mgw_tuner *tuner, const mgw_plan *plan, const char *path,
                              mgw_error *error)
{
    mgw_cost cost;
    mgw_plan *here = NULL;
    tune_alone(tuner, &cost);
    mgw_status status = mgw_plan_from_operations(tuner->untimed, &cost, "here", plan->operations,
                                                 plan->operation_count, &here, error);
    for (size_t m = 0; !status && m < plan->operation_count; m++) {
        uint64_t planned = plan->operations[m].bytes;
        uint64_t found = here->operations[m].bytes;
        if (planned != found)
            status = mgw_fail(error, MGW_ERR_INPUT,
                              "%s: operations[%zu].bytes: %llu, but the program has %llu", path, m,
                              (unsigned long long)planned, (unsigned long long)found);
    }
    mgw_plan_destroy(here);
    return status;
}

mgw_status mgw_tuner_load_plan(mgw_tuner *tuner, const char *path, uint64_t *hash, mgw_error *error)
{
    mgw_plan *plan = NULL;
    mgw_status status = mgw_plan_load(path, &plan, error);
    if (!status)
        status = check_names(tuner, plan, path, error);
    if (!status)
        status = check_kinds(tuner, plan, path, error);
    if (!status)
        status = check_places(tuner, plan, path, error);
    if (!status)
        status = check_bytes(tuner, plan, path, error);
    if (!status)
        status = mgw_tuner_set_operations(tuner, plan->operations, plan->operation_count, error);
    if (!status)
        *hash = mgw_plan_hash(plan->operations, plan->operation_count);
    mgw_plan_destroy(plan);
    return status;
}
