/* Names and sizes of a profile's gradients. */
#ifndef MGW_TRACE_PROFILE_NAMES_H
#define MGW_TRACE_PROFILE_NAMES_H

#include "trace/profile_steps.h"

typedef struct mgw_named {
    char *name;
    uint64_t count;
} mgw_named;

/* Names the gradients of a step, in ready order. Ownership: the caller frees *out. */
MGW_CHECKED mgw_status mgw_profile_name(const char *origin, const mgw_profile_options *options,
                                        const mgw_step *step, mgw_named **out, mgw_text *notes,
                                        mgw_error *error);
void mgw_named_free(mgw_named *named, size_t count);

#endif
