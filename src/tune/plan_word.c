/* Plans as numbers: their hash, and the form in which rank 0 sends them. */
#include <stdlib.h>

#include "base/hash.h"
#include "base/status.h"
#include "tune/tuner.h"

/* Bits: kind 3, release 2, wire 3, lanes 4, first and count 26 each (TUNE_TENSORS). */
static uint64_t pack(const mgw_operation *o)
{
    return (uint64_t)o->kind << 61 | (uint64_t)o->release << 59 | (uint64_t)o->wire << 56 |
           (uint64_t)(o->lanes & 15) << 52 | (uint64_t)o->first << 26 | o->count;
}

static mgw_operation unpack(uint64_t number)
{
    const uint64_t mask = TUNE_TENSORS - 1;
    return (mgw_operation){.kind = (mgw_collective)(number >> 61),
                           .release = (mgw_release)(number >> 59 & 3),
                           .wire = (mgw_dtype)(number >> 56 & 7),
                           .lanes = (unsigned)(number >> 52 & 15),
                           .first = number >> 26 & mask,
                           .count = number & mask};
}

/* Hashes packed operations, so that all of their fields count. */
uint64_t mgw_plan_hash(const mgw_operation *operations, size_t count)
{
    uint64_t hash = count;
    for (size_t i = 0; i < count; i++)
        hash = mgw_mix(hash ^ pack(&operations[i]));
    return hash;
}

size_t tune_most_operations(const mgw_tuner *tuner)
{
    return (tune_gathers(tuner) ? 2 : 1) * tuner->tensor_count;
}

size_t tune_plan_words(const mgw_tuner *tuner)
{
    return 1 + tune_most_operations(tuner);
}

void tune_write_plan(const mgw_plan *plan, uint64_t *word)
{
    word[0] = plan->operation_count;
    for (size_t i = 0; i < plan->operation_count; i++)
        word[1 + i] = pack(&plan->operations[i]);
}

mgw_status tune_read_plan(const mgw_tuner *tuner, const uint64_t *word, const char *name,
                          const mgw_cost *cost, mgw_plan **out, mgw_error *error)
{
    size_t count = word[0];
    if (count == 0 || count > tune_most_operations(tuner))
        return mgw_fail(error, MGW_ERR_PEER, "the plan received from rank 0 has %zu operations",
                        count);
    mgw_operation *operations = malloc(count * sizeof *operations);
    if (!operations)
        return mgw_fail_memory(error, "tuner");
    for (size_t i = 0; i < count; i++)
        operations[i] = unpack(word[1 + i]);
    mgw_status status =
        mgw_plan_from_operations(tuner->proposal, cost, name, operations, count, out, error);
    free(operations);
    return status;
}
