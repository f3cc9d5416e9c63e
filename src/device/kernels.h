/* What GPUs do to f32 gradients that travel as 16 or 8 bits: kernels that the driver compiles for
 * the GPU that is there. Results are those of the host's loops in src/transport/reduce.c and
 * cast.c, bit for bit, but for which NaN a NaN is. */
#ifndef MGW_DEVICE_KERNELS_H
#define MGW_DEVICE_KERNELS_H

#include <stdbool.h>

#include <mgwfbp/dtype.h>

#include "device/cuda.h"

enum { CUDA_SCALED_BLOCK = 1 << 10 }; /* elements of 8 bits that have one scale */

typedef struct cuda_kernels {
    const cuda *cuda; /* null: not open */
    cuda_module module;
    cuda_function narrow[MGW_DTYPE_COUNT]; /* by what is narrow: 16 and 8 bits */
    cuda_function widen[MGW_DTYPE_COUNT];
    cuda_function add_up[MGW_DTYPE_COUNT];
    cuda_function largest;
} cuda_kernels;

/* In the context that is current. Returns CUDA's code, as all below: what was launched fails later.
 */
int cuda_kernels_open(const cuda *driver, cuda_kernels *out);
void cuda_kernels_close(cuda_kernels *kernels);

/* Of 8 bits: how elements are scaled, as mgw_fp8_blocks has it. */
typedef struct cuda_scales {
    const float *largest; /* by block, on the GPU */
    size_t first;         /* the number, within the blocks, of the first element that is cast */
    int headroom;
} cuda_scales;

/* The largest magnitude of each block; a NaN counts as infinity. */
int cuda_largest(const cuda_kernels *kernels, const float *from, size_t count, float *largest,
                 cuda_stream stream);

/* Between f32 and a narrow dtype: to nearest, ties to even; too large for f16 becomes infinite, for
 * 8 bits the largest number. `scales` of 8 bits only. */
int cuda_narrow(const cuda_kernels *kernels, const float *from, void *to, size_t count,
                mgw_dtype dtype, const cuda_scales *scales, cuda_stream stream);
int cuda_widen(const cuda_kernels *kernels, const void *from, float *to, size_t count,
               mgw_dtype dtype, const cuda_scales *scales, cuda_stream stream);

/* The numbers of all ranks, in the place of our own. */
typedef struct cuda_sum {
    void *own;
    const char *others; /* by rank, our own left out in its place: */
    size_t stride;      /*   bytes from one rank's to the next's */
    size_t count;
    unsigned size;
    unsigned rank;
    bool average;
} cuda_sum;

/* Added up in f32 in rank order, divided for an average, and rounded once. */
int cuda_add_up(const cuda_kernels *kernels, const cuda_sum *sum, mgw_dtype dtype,
                cuda_stream stream);

/* The kernels as text, for who wants to assemble it. */
extern const char cuda_kernels_ptx[];

#endif
