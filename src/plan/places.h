/* Which operations of a plan each tensor is in. */
#ifndef MGW_PLAN_PLACES_H
#define MGW_PLAN_PLACES_H

#include <stdint.h>

#include <mgwfbp/plan.h>

enum { MGW_NOWHERE = UINT32_MAX };

typedef struct mgw_places {
    uint32_t *averaged_by; /* by tensor: its all-reduce or reduce-scatter */
    uint32_t *gathered_by; /* by tensor; MGW_NOWHERE: it needs no all-gather */
} mgw_places;

/*
 * Each tensor must be in exactly one all-reduce or reduce-scatter. If it is in a reduce-scatter, it
 * must be in exactly one later all-gather, otherwise in none. All-gathers start after the backward
 * pass or after the update, all others when ready or after the backward pass. Ownership: the caller
 * calls mgw_places_fini, unless it failed.
 */
MGW_CHECKED mgw_status mgw_places_init(size_t tensor_count, const mgw_operation *operations,
                                       size_t count, mgw_places *out, mgw_error *error);
void mgw_places_fini(mgw_places *places);

#endif
