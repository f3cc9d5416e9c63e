/* Reductions of several workers' elements, and conversions of narrow types. */
#ifndef MGW_TRANSPORT_REDUCE_H
#define MGW_TRANSPORT_REDUCE_H

#include <stddef.h>

#include <mgwfbp/transport.h>

/*
 * Adds up `sources` arrays of `count` elements in order, divides by their number for an average, or
 * takes the maximum. Writes the result to each of `targets` arrays, which may also be sources.
 * 16-bit and 8-bit numbers are added up in 32 bits and rounded once, to nearest, ties to even.
 */
void mgw_reduce(const void *const *source, size_t sources, void *const *target, size_t targets,
                size_t count, mgw_dtype dtype, mgw_op op);

/*
 * Implementations with plain and wider vectors that this processor supports: mgw_reduce uses the
 * last. All give the same bits.
 */
size_t mgw_reduce_ways(mgw_dtype dtype);
void mgw_reduce_in(size_t way, const void *const *source, size_t sources, void *const *target,
                   size_t targets, size_t count, mgw_dtype dtype, mgw_op op);

/* Between f32 and a narrower dtype, without a scale: rounded to nearest, ties to even. */
void mgw_narrow(const float *from, void *to, size_t count, mgw_dtype dtype);
void mgw_widen(const void *from, float *to, size_t count, mgw_dtype dtype);

/* ---- 8 bits, with a scale for each MGW_FP8_BLOCK elements ---- */

/* The largest magnitude of each block, for all workers to agree on; a NaN counts as infinity. */
void mgw_fp8_largest(const float *from, size_t count, float *largest);

/*
 * The power of 2 that the numbers of a block are multiplied by before rounding: the largest that
 * leaves room for the block's largest magnitude times 2 to the power of `headroom`, which sums need
 * (averages do not). So scaling is exact, except where the power is at its limits, +-126.
 */
int mgw_fp8_exponent(float largest, mgw_dtype dtype, int headroom);

/* Elements first .. first+count-1 of numbers that are divided into blocks. */
typedef struct mgw_fp8_blocks {
    mgw_dtype dtype;
    const float *largest; /* by block */
    int headroom;
    size_t first;
    size_t count;
} mgw_fp8_blocks;

/* `from` and `to` point to the start of the first block. */
void mgw_fp8_narrow(const float *from, void *to, const mgw_fp8_blocks *blocks);
void mgw_fp8_widen(const void *from, float *to, const mgw_fp8_blocks *blocks);

#endif
