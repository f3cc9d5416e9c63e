/* Which operations of a plan each tensor is in, and which plans are valid. */
#include "plan/places.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"

static bool is_gather(const mgw_operation *operation)
{
    return operation->kind == MGW_ALL_GATHER;
}

static mgw_status check_operation(size_t tensor_count, const mgw_operation *o, size_t index,
                                  mgw_error *error)
{
    if (o->count == 0 || o->count > tensor_count || o->first > tensor_count - o->count)
        return mgw_fail(error, MGW_ERR_INPUT, "plan: operation %zu has tensors %zu to %zu of %zu",
                        index + 1, o->first, o->first + o->count, tensor_count);
    bool known = (o->kind == MGW_ALL_REDUCE || o->kind == MGW_REDUCE_SCATTER || is_gather(o)) &&
                 (unsigned)o->release < MGW_RELEASE_COUNT;
    /* A plan may gather averages after the backward pass, so that every worker updates everything.
     * Here parameters are gathered instead, after their update. */
    mgw_release never = is_gather(o) ? MGW_WHEN_READY : MGW_AFTER_UPDATE;
    if (!known || o->release == never)
        return mgw_fail(error, MGW_ERR_INPUT,
                        "plan: operation %zu: all-gathers are released after-backward or "
                        "after-update, all-reduces and reduce-scatters when-ready or "
                        "after-backward",
                        index + 1);
    return MGW_OK;
}

/* Records this operation for each of its tensors, which no other operation may have. */
static mgw_status place(const mgw_places *p, const mgw_operation *operations, size_t index,
                        mgw_error *error)
{
    const mgw_operation *o = &operations[index];
    uint32_t *by = is_gather(o) ? p->gathered_by : p->averaged_by;
    for (size_t i = o->first; i < o->first + o->count; i++) {
        if (by[i] != MGW_NOWHERE)
            return mgw_fail(error, MGW_ERR_INPUT, "plan: tensor %zu is in operations %u and %zu", i,
                            by[i] + 1, index + 1);
        uint32_t before = p->averaged_by[i];
        if (is_gather(o) &&
            (before == MGW_NOWHERE || operations[before].kind != MGW_REDUCE_SCATTER))
            return mgw_fail(
                error, MGW_ERR_INPUT,
                "plan: operation %zu gathers tensor %zu, which no earlier operation scatters",
                index + 1, i);
        by[i] = (uint32_t)index;
    }
    return MGW_OK;
}

static mgw_status check_complete(size_t tensor_count, const mgw_places *p,
                                 const mgw_operation *operations, mgw_error *error)
{
    for (size_t i = 0; i < tensor_count; i++) {
        if (p->averaged_by[i] == MGW_NOWHERE)
            return mgw_fail(error, MGW_ERR_INPUT, "plan: tensor %zu is in no operation", i);
        if (operations[p->averaged_by[i]].kind == MGW_REDUCE_SCATTER &&
            p->gathered_by[i] == MGW_NOWHERE)
            return mgw_fail(error, MGW_ERR_INPUT, "plan: tensor %zu is scattered but not gathered",
                            i);
    }
    return MGW_OK;
}

static mgw_status fill(size_t n, const mgw_operation *operations, size_t count, mgw_places *p,
                       mgw_error *error)
{
    if (!p->averaged_by || !p->gathered_by)
        return mgw_fail_memory(error, "plan");
    memset(p->averaged_by, 0xff, n * sizeof *p->averaged_by);
    memset(p->gathered_by, 0xff, n * sizeof *p->gathered_by);
    mgw_status status = MGW_OK;
    for (size_t i = 0; !status && i < count; i++) {
        status = check_operation(n, &operations[i], i, error);
        if (!status)
            status = place(p, operations, i, error);
    }
    return status ? status : check_complete(n, p, operations, error);
}

mgw_status mgw_places_init(size_t tensor_count, const mgw_operation *operations, size_t count,
                           mgw_places *out, mgw_error *error)
{
    *out = (mgw_places){0};
    if (count == 0 || count > 2 * tensor_count)
        return mgw_fail(error, MGW_ERR_INPUT, "plan: %zu operations for %zu tensors", count,
                        tensor_count);
    out->averaged_by = malloc(tensor_count * sizeof *out->averaged_by);
    out->gathered_by = malloc(tensor_count * sizeof *out->gathered_by);
    mgw_status status = fill(tensor_count, operations, count, out, error);
    if (status)
        mgw_places_fini(out);
    return status;
}

void mgw_places_fini(mgw_places *places)
{
    free(places->averaged_by);
    free(places->gathered_by);
    *places = (mgw_places){0};
}
