/* Loads and launches the kernels for 16-bit and 8-bit numbers. */
#include "device/kernels.h"

#include <stdint.h>
#include <stdio.h>

/* ---- Life ---- */

int cuda_kernels_open(const cuda *driver, cuda_kernels *out)
{
    static const struct {
        const char *name;
        mgw_dtype dtype;
    } types[] = {{"bf16", MGW_BF16}, {"f16", MGW_F16}, {"fp8", MGW_FP8}, {"e5m2", MGW_FP8_E5M2}};
    *out = (cuda_kernels){.cuda = driver};
    int code = driver->module_load(&out->module, cuda_kernels_ptx);
    if (!code)
        code = driver->module_function(&out->largest, out->module, "largest");
    for (size_t t = 0; !code && t < sizeof types / sizeof *types; t++) {
        const struct {
            const char *does;
            cuda_function *at;
        } kernels[] = {{"narrow", &out->narrow[types[t].dtype]},
                       {"widen", &out->widen[types[t].dtype]},
                       {"add_up", &out->add_up[types[t].dtype]}};
        for (size_t k = 0; !code && k < sizeof kernels / sizeof *kernels; k++) {
            char name[32];
            snprintf(name, sizeof name, "%s_%s", kernels[k].does, types[t].name);
            code = driver->module_function(kernels[k].at, out->module, name);
        }
    }
    if (code)
        cuda_kernels_close(out);
    return code;
}

void cuda_kernels_close(cuda_kernels *kernels)
{
    if (kernels->module)
        kernels->cuda->module_unload(kernels->module);
    *kernels = (cuda_kernels){0};
}

/* ---- Launching ---- */

/* The number of groups of four, if both pointers are aligned for vector access. */
static uint64_t fours_of(uintptr_t f32_at, uintptr_t narrow_at, uint64_t count, mgw_dtype dtype)
{
    return f32_at % 16 == 0 && narrow_at % (4 * mgw_dtype_bytes(dtype)) == 0 ? count / 4 : 0;
}

static int launch(const cuda_kernels *kernels, cuda_function function, uint64_t threads,
                  void **parameters, cuda_stream stream)
{
    enum { WIDTH = 256 };
    uint64_t blocks = (threads + WIDTH - 1) / WIDTH;
    if (!threads || blocks > INT32_MAX)
        return threads ? CUDA_INVALID_VALUE : 0;
    return kernels->cuda->launch(function, (unsigned)blocks, 1, 1, WIDTH, 1, 1, 0, stream,
                                 parameters, NULL);
}

int cuda_largest(const cuda_kernels *kernels, const float *from, size_t count, float *largest,
                 cuda_stream stream)
{
    enum { WARP = 32 };
    uint64_t n = count;
    uint64_t fours = (uintptr_t)from % 16 == 0;
    uint64_t blocks = (n + CUDA_SCALED_BLOCK - 1) / CUDA_SCALED_BLOCK;
    void *parameters[] = {&from, &largest, &n, &fours};
    return launch(kernels, kernels->largest, blocks * WARP, parameters, stream);
}

/* Kernels for 16 bits ignore the last three parameters. */
static int cast(const cuda_kernels *kernels, cuda_function function, const void *from, void *to,
                uint64_t fours, uint64_t count, mgw_dtype dtype, const cuda_scales *scales,
                cuda_stream stream)
{
    const cuda_scales none = {0};
    const cuda_scales *s = scales ? scales : &none;
    const void *largest = s->largest;
    uint64_t first = s->first;
    /* The largest magnitude becomes 2^8 or 2^15 times 1 to 1.75: as the exponent bits of an f32. */
    int32_t top = 127 + (dtype == MGW_FP8 ? 8 : 15) - s->headroom;
    if (first % 4) /* a group of four would span two blocks */
        fours = 0;
    void *parameters[] = {&from, &to, &count, &fours, &largest, &first, &top};
    return launch(kernels, function, count - 3 * fours, parameters, stream);
}

int cuda_narrow(const cuda_kernels *kernels, const float *from, void *to, size_t count,
                mgw_dtype dtype, const cuda_scales *scales, cuda_stream stream)
{
    uint64_t fours = fours_of((uintptr_t)from, (uintptr_t)to, count, dtype);
    return cast(kernels, kernels->narrow[dtype], from, to, fours, count, dtype, scales, stream);
}

int cuda_widen(const cuda_kernels *kernels, const void *from, float *to, size_t count,
               mgw_dtype dtype, const cuda_scales *scales, cuda_stream stream)
{
    uint64_t fours = fours_of((uintptr_t)to, (uintptr_t)from, count, dtype);
    return cast(kernels, kernels->widen[dtype], from, to, fours, count, dtype, scales, stream);
}

int cuda_add_up(const cuda_kernels *kernels, const cuda_sum *sum, mgw_dtype dtype,
                cuda_stream stream)
{
    uint32_t size = sum->size;
    uint32_t rank = sum->rank;
    uint32_t divides = sum->average && (size & (size - 1)); /* 2^n has an exact reciprocal */
    float scale = divides ? (float)size : sum->average ? 1 / (float)size : 1;
    uint64_t n = sum->count;
    uint64_t stride = sum->stride;
    uintptr_t places = (uintptr_t)sum->own | (uintptr_t)sum->others | stride;
    uint64_t fours = fours_of(0, places, n, dtype);
    void *own = sum->own;
    const void *others = sum->others;
    void *parameters[] = {&others, &own, &n, &fours, &stride, &size, &rank, &scale, &divides};
    return launch(kernels, kernels->add_up[dtype], n - 3 * fours, parameters, stream);
}
