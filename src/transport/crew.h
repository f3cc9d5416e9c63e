/* Threads that reduce together. */
#ifndef MGW_TRANSPORT_CREW_H
#define MGW_TRANSPORT_CREW_H

#include <stddef.h>

#include <mgwfbp/transport.h>

typedef struct crew crew;

/* `threads` includes the caller's. Ownership: the caller closes *out. */
MGW_CHECKED mgw_status crew_open(unsigned threads, crew **out, mgw_error *error);

/* Null is fine. */
void crew_close(crew *c);

/*
 * mgw_reduce to one target, split among the threads. Null: only the caller works. One call at a
 * time.
 */
void crew_reduce(crew *c, const void *const *source, size_t sources, void *target, size_t count,
                 mgw_dtype dtype, mgw_op op);

#endif
