/* Sums of several workers' elements, and conversions of 16-bit numbers. */
#ifndef MGW_TRANSPORT_REDUCE_H
#define MGW_TRANSPORT_REDUCE_H

#include <stddef.h>

#include <mgwfbp/transport.h>

/*
 * Adds up `sources` arrays of `count` elements in order, divides by their number for an average, or
 * takes the largest; and writes the result to each of `targets` arrays, which may be sources, too.
 * 16-bit numbers are added up in 32 bits and rounded once, to nearest, ties to even.
 */
void mgw_reduce(const void *const *source, size_t sources, void *const *target, size_t targets,
                size_t count, mgw_dtype dtype, mgw_op op);

/* Ways with plain and with wider vectors, as many as this processor has: mgw_reduce takes the last.
 * All give the same bits. */
size_t mgw_reduce_ways(mgw_dtype dtype);
void mgw_reduce_in(size_t way, const void *const *source, size_t sources, void *const *target,
                   size_t targets, size_t count, mgw_dtype dtype, mgw_op op);

/* Between f32 and a 16-bit dtype. */
void mgw_narrow(const float *from, void *to, size_t count, mgw_dtype dtype);
void mgw_widen(const void *from, float *to, size_t count, mgw_dtype dtype);

#endif
