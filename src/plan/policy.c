/* Policies by name: parsing, printing, and their planners. */
#include "plan/policy.h"

#include <stdio.h>
#include <string.h>

#include "base/near.h"
#include "base/status.h"

static const char *const names[] = {
#define X(constant, name, about) [constant] = name,
    MGW_POLICY_LIST(X)
#undef X
};

static mgw_planner *const planners[] = {
    [MGW_NAIVE] = mgw_plan_each,      [MGW_WFBP] = mgw_plan_each,
    [MGW_SINGLE] = mgw_plan_single,   [MGW_GREEDY] = mgw_plan_greedy,
    [MGW_OPTIMAL] = mgw_plan_optimal, [MGW_THRESHOLD] = mgw_plan_threshold,
    [MGW_DDP] = mgw_plan_threshold,   [MGW_OVERLAP] = NULL,
};

static mgw_composer *const composers[] = {
    [MGW_FSDP] = mgw_plan_peers,      [MGW_ZERO] = mgw_plan_peers,      [MGW_DEAR] = mgw_plan_peers,
    [MGW_SHARDED] = mgw_plan_overlap, [MGW_OVERLAP] = mgw_plan_overlap,
};

/* Number of sizes that a policy takes. */
static const unsigned char sizes_taken[MGW_POLICY_COUNT] = {
    [MGW_THRESHOLD] = 1, [MGW_DDP] = 2, [MGW_FSDP] = 1, [MGW_ZERO] = 1, [MGW_DEAR] = 1};

/* Horovod's long-standing fusion threshold. */
#define THRESHOLD_BYTES ((uint64_t)64 << 20)

/* Each kind with its usual sizes; comparisons show those before COMPARED. */
static const mgw_policy usual[] = {
    {.kind = MGW_NAIVE},
    {.kind = MGW_WFBP},
    {.kind = MGW_SINGLE},
    {.kind = MGW_THRESHOLD, .first_bytes = THRESHOLD_BYTES, .cap_bytes = THRESHOLD_BYTES},
    {.kind = MGW_DDP, .first_bytes = MGW_DDP_FIRST_BYTES, .cap_bytes = MGW_DDP_CAP_BYTES},
    {.kind = MGW_GREEDY},
    {.kind = MGW_OPTIMAL},
    {.kind = MGW_ZERO, .first_bytes = MGW_DDP_CAP_BYTES, .cap_bytes = MGW_DDP_CAP_BYTES},
    {.kind = MGW_DEAR, .first_bytes = MGW_DDP_CAP_BYTES, .cap_bytes = MGW_DDP_CAP_BYTES},
    {.kind = MGW_FSDP},
    {.kind = MGW_SHARDED},
    {.kind = MGW_OVERLAP},
};

enum { COMPARED = MGW_POLICY_COUNT - 5 };

_Static_assert(sizeof usual / sizeof *usual == MGW_POLICY_COUNT, "one of each kind");

mgw_planner *mgw_policy_planner(const mgw_policy *policy)
{
    return planners[policy->kind];
}

mgw_composer *mgw_policy_composer(const mgw_policy *policy)
{
    return composers[policy->kind];
}

bool mgw_policy_gathers(const mgw_policy *policy)
{
    return composers[policy->kind];
}

mgw_release mgw_policy_release(const mgw_policy *policy)
{
    return policy->kind == MGW_NAIVE ? MGW_AFTER_BACKWARD : MGW_WHEN_READY;
}

const mgw_policy *mgw_policy_list(size_t *count)
{
    *count = COMPARED;
    return usual;
}

const mgw_policy *mgw_policy_all(size_t *count)
{
    *count = MGW_POLICY_COUNT;
    return usual;
}

static const mgw_policy *find_usual(mgw_policy_kind kind)
{
    const mgw_policy *found = usual;
    while (found->kind != kind)
        found++;
    return found;
}

/* Numbers this small would be parsed as MiB. */
static const char *unit_of(unsigned long long bytes)
{
    return bytes > 0 && bytes < 1024 ? "B" : "";
}

const char *mgw_policy_name(const mgw_policy *policy, char out[MGW_POLICY_NAME_MAX])
{
    const char *name = names[policy->kind];
    const mgw_policy *known = find_usual(policy->kind);
    bool as_usual =
        policy->first_bytes == known->first_bytes && policy->cap_bytes == known->cap_bytes;
    unsigned sizes = sizes_taken[policy->kind];
    unsigned long long first = policy->first_bytes;
    unsigned long long cap = policy->cap_bytes;
    if (policy->kind == MGW_THRESHOLD || (sizes == 1 && !as_usual))
        snprintf(out, MGW_POLICY_NAME_MAX, "%s:%llu%s", name, cap, unit_of(cap));
    else if (sizes == 2 && !as_usual)
        snprintf(out, MGW_POLICY_NAME_MAX, "%s:%llu%s,%llu%s", name, first, unit_of(first), cap,
                 unit_of(cap));
    else
        snprintf(out, MGW_POLICY_NAME_MAX, "%s", name);
    return out;
}

static mgw_status fail_unknown(const char *text, mgw_error *error)
{
    char hint[MGW_NEAR_HINT];
    char name[MGW_POLICY_NAME_MAX];
    snprintf(name, sizeof name, "%.*s", (int)strcspn(text, ":"), text);
    if (strchr(name, ','))
        return mgw_fail(error, MGW_ERR_ARGUMENT, "'%.60s': one policy is expected", text);
    mgw_near near = mgw_near_to(name);
    for (size_t i = 0; i < MGW_POLICY_COUNT; i++)
        mgw_near_offer(&near, names[i]);
    if (near.count && strcmp(near.names[0], name) != 0)
        return mgw_fail(error, MGW_ERR_ARGUMENT, "unknown policy '%.60s'%s", text,
                        mgw_near_hint(&near, hint));
    return mgw_fail(
        error, MGW_ERR_ARGUMENT,
        "unknown policy '%.60s'; choose one of naive, wfbp, single, mgwfbp, optimal, overlap, "
        "sharded, threshold or threshold:SIZE, ddp, ddp:CAP or ddp:FIRST,CAP, and fsdp, zero or "
        "dear, "
        "each alone or with :CAP",
        text);
}

/* "64MiB" or, for ddp, "1MiB,25MiB". As in PyTorch, the second alone is enough. */
static mgw_status parse_sizes(const char *sizes, mgw_policy *policy, mgw_error *error)
{
    char first[48];
    const char *comma = strchr(sizes, ',');
    size_t length = comma ? (size_t)(comma - sizes) : strlen(sizes);
    bool two = sizes_taken[policy->kind] == 2;
    if (comma && !two)
        return mgw_fail(error, MGW_ERR_ARGUMENT, "%s needs one size: %s:SIZE", names[policy->kind],
                        names[policy->kind]);
    if (length >= sizeof first)
        return fail_unknown(sizes, error);
    memcpy(first, sizes, length);
    first[length] = '\0';
    mgw_status status = mgw_parse_size(first, &policy->first_bytes, error);
    policy->cap_bytes = policy->first_bytes;
    if (!status && comma)
        status = mgw_parse_size(comma + 1, &policy->cap_bytes, error);
    else if (two)
        policy->first_bytes = MGW_DDP_FIRST_BYTES;
    return status;
}

/* The policy of that name, with its usual sizes. */
static const mgw_policy *find_policy(const char *name, size_t length)
{
    for (size_t i = 0; i < MGW_POLICY_COUNT; i++) {
        const char *known = names[usual[i].kind];
        if (strlen(known) == length && !strncmp(known, name, length))
            return &usual[i];
    }
    return NULL;
}

mgw_status mgw_policy_parse(const char *text, mgw_policy *out, mgw_error *error)
{
    size_t length = strcspn(text, ":");
    const mgw_policy *found = find_policy(text, length);
    if (!found || (text[length] && !sizes_taken[found->kind]))
        return fail_unknown(text, error);
    mgw_policy policy = *found;
    mgw_status status = text[length] ? parse_sizes(text + length + 1, &policy, error) : MGW_OK;
    if (!status)
        *out = policy;
    return status;
}
