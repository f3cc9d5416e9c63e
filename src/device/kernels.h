/* GPU kernels for f32 gradients that are sent as 16 or 8 bits; the driver compiles them for the
 * present GPU. Results are identical to those of the host's loops in src/transport/reduce.c and
 * cast.c, bit for bit, except for the payload of NaNs. */
#ifndef MGW_DEVICE_KERNELS_H
#define MGW_DEVICE_KERNELS_H

#include <stdbool.h>

#include <mgwfbp/dtype.h>

#include "device/cuda.h"

enum { CUDA_SCALED_BLOCK = 1 << 10 }; /* 8-bit elements that share one scale */

typedef struct cuda_kernels {
    const cuda *cuda; /* null: not open */
    cuda_module module;
    cuda_function narrow[MGW_DTYPE_COUNT]; /* by narrow dtype: 16 and 8 bits */
    cuda_function widen[MGW_DTYPE_COUNT];
    cuda_function add_up[MGW_DTYPE_COUNT];
    cuda_function largest;
} cuda_kernels;

/* In the current context. Returns CUDA's code, as do all functions below: errors of launched
 * kernels appear later. */
int cuda_kernels_open(const cuda *driver, cuda_kernels *out);
void cuda_kernels_close(cuda_kernels *kernels);

/* For 8 bits: how elements are scaled, as in mgw_fp8_blocks. */
typedef struct cuda_scales {
    const float *largest; /* by block, on the GPU */
    size_t first;         /* index, within the blocks, of the first element that is cast */
    int headroom;
} cuda_scales;

/* The largest magnitude of each block; a NaN counts as infinity. */
int cuda_largest(const cuda_kernels *kernels, const float *from, size_t count, float *largest,
                 cuda_stream stream);

/* Between f32 and a narrow dtype: to nearest, ties to even. Values too large for f16 become
 * infinite, for 8 bits the largest number. `scales` is for 8 bits only. */
int cuda_narrow(const cuda_kernels *kernels, const float *from, void *to, size_t count,
                mgw_dtype dtype, const cuda_scales *scales, cuda_stream stream);
int cuda_widen(const cuda_kernels *kernels, const void *from, float *to, size_t count,
               mgw_dtype dtype, const cuda_scales *scales, cuda_stream stream);

/* Reduces the numbers of all ranks, in place of our own. */
typedef struct cuda_sum {
    void *own;
    const char *others; /* by rank, with a gap for our own: */
    size_t stride;      /* bytes between two ranks */
    size_t count;
    unsigned size;
    unsigned rank;
    bool average;
} cuda_sum;

/* Adds up in f32 in rank order, divides for an average, and rounds once. */
int cuda_add_up(const cuda_kernels *kernels, const cuda_sum *sum, mgw_dtype dtype,
                cuda_stream stream);

/* The kernels as text, for callers that assemble them. */
extern const char cuda_kernels_ptx[];

#endif
