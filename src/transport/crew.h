/* Threads that add up together. */
#ifndef MGW_TRANSPORT_CREW_H
#define MGW_TRANSPORT_CREW_H

#include <stddef.h>

#include <mgwfbp/transport.h>

typedef struct crew crew;

/* So many threads, the caller's among them. Ownership: the caller closes *out. */
MGW_CHECKED mgw_status crew_open(unsigned threads, crew **out, mgw_error *error);

/* Null is fine. */
void crew_close(crew *c);

/* mgw_reduce to one target, each thread a part of it. Null: the caller alone. One at a time. */
void crew_reduce(crew *c, const void *const *source, size_t sources, void *target, size_t count,
                 mgw_dtype dtype, mgw_op op);

#endif
