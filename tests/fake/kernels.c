/*
 * The kernels of src/device/kernels_ptx.c for the fake GPU, written in C.
 */
#include "kernels.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "transport/reduce.h"

typedef struct numbers {
    const char *from;
    char *to;
    uint64_t count;
    uint64_t fours;
    uint64_t stride; /* these and those below of sums only */
    uint32_t size;
    uint32_t rank;
    float scale;
    uint32_t divides;
    const float *largest; /* these and those below of casts with 8 bits only */
    uint64_t first;
    int32_t top;
} numbers;

struct launched {
    void (*run)(const numbers *n, uint64_t first, size_t count, mgw_dtype dtype);
    mgw_dtype dtype;
    numbers n;
    uint64_t threads;
};

static void narrow(const numbers *n, uint64_t first, size_t count, mgw_dtype dtype)
{
    mgw_narrow((const float *)(const void *)n->from + first, n->to + 2 * first, count, dtype);
}

static void widen(const numbers *n, uint64_t first, size_t count, mgw_dtype dtype)
{
    mgw_widen(n->from + 2 * first, (float *)(void *)n->to + first, count, dtype);
}

/* Fours must not be of two blocks: then all would have the scale of the first. */
static mgw_fp8_blocks blocks_of(const numbers *n, uint64_t first, size_t count, mgw_dtype dtype)
{
    int headroom = 127 + (dtype == MGW_FP8 ? 8 : 15) - n->top;
    uint64_t at = n->first + first;
    if (at / MGW_FP8_BLOCK != (at + count - 1) / MGW_FP8_BLOCK)
        abort();
    return (mgw_fp8_blocks){dtype, n->largest, headroom, at, count};
}

static void narrow_8(const numbers *n, uint64_t first, size_t count, mgw_dtype dtype)
{
    mgw_fp8_blocks blocks = blocks_of(n, first, count, dtype);
    mgw_fp8_narrow((const float *)(const void *)n->from - n->first, n->to - n->first, &blocks);
}

static void widen_8(const numbers *n, uint64_t first, size_t count, mgw_dtype dtype)
{
    mgw_fp8_blocks blocks = blocks_of(n, first, count, dtype);
    mgw_fp8_widen(n->from - n->first, (float *)(void *)n->to - n->first, &blocks);
}

static void add_up(const numbers *n, uint64_t first, size_t count, mgw_dtype dtype)
{
    float sum[4] = {-0.0F, -0.0F, -0.0F, -0.0F};
    size_t at = first * mgw_dtype_bytes(dtype);
    for (uint32_t r = 0; r < n->size; r++) {
        float values[4];
        mgw_widen((r == n->rank ? n->to : n->from + r * n->stride) + at, values, count, dtype);
        for (size_t k = 0; k < count; k++)
            sum[k] += values[k];
    }
    for (size_t k = 0; k < count; k++)
        sum[k] = n->divides ? sum[k] / n->scale : sum[k] * n->scale;
    mgw_narrow(sum, n->to + at, count, dtype);
}

/* A warp for each block: called once, for all of them. */
static void find_largest(const numbers *n, uint64_t threads)
{
    uint64_t most = threads / 32 * MGW_FP8_BLOCK;
    mgw_fp8_largest((const float *)(const void *)n->from, n->count < most ? n->count : most,
                    (float *)(void *)n->to);
}

static const struct kernel {
    const char *name;
    void (*run)(const numbers *n, uint64_t first, size_t count, mgw_dtype dtype);
    mgw_dtype dtype;
    unsigned from_bytes; /* of four numbers: what their address must be a multiple of */
    unsigned to_bytes;
} kernels[] = {
    {"narrow_bf16", narrow, MGW_BF16, 16, 8}, {"narrow_f16", narrow, MGW_F16, 16, 8},
    {"narrow_fp8", narrow_8, MGW_FP8, 16, 4}, {"narrow_e5m2", narrow_8, MGW_FP8_E5M2, 16, 4},
    {"widen_bf16", widen, MGW_BF16, 8, 16},   {"widen_f16", widen, MGW_F16, 8, 16},
    {"widen_fp8", widen_8, MGW_FP8, 4, 16},   {"widen_e5m2", widen_8, MGW_FP8_E5M2, 4, 16},
    {"add_up_bf16", add_up, MGW_BF16, 8, 8},  {"add_up_f16", add_up, MGW_F16, 8, 8},
    {"add_up_fp8", add_up, MGW_FP8, 4, 4},    {"add_up_e5m2", add_up, MGW_FP8_E5M2, 4, 4},
    {"largest", NULL, MGW_F32, 16, 4},
};

const struct kernel *kernel_named(const char *image, const char *name)
{
    char entry[64];
    snprintf(entry, sizeof entry, ".entry %s(", name);
    for (size_t k = 0; k < sizeof kernels / sizeof *kernels; k++)
        if (!strcmp(kernels[k].name, name) && strstr(image, entry))
            return &kernels[k];
    return NULL;
}

bool is_kernel(const void *function)
{
    const struct kernel *k = function;
    return k >= kernels && k < kernels + sizeof kernels / sizeof *kernels;
}

launched *kernel_launched(const void *function, void **parameters, uint64_t threads)
{
    const struct kernel *k = function;
    launched *l = calloc(1, sizeof *l);
    if (!l)
        return NULL;
    *l = (launched){.run = k->run, .dtype = k->dtype, .threads = threads};
    numbers *n = &l->n;
    memcpy(&n->from, parameters[0], 8);
    memcpy(&n->to, parameters[1], 8);
    memcpy(&n->count, parameters[2], 8);
    memcpy(&n->fours, parameters[3], 8);
    if (k->run == add_up) {
        memcpy(&n->stride, parameters[4], 8);
        memcpy(&n->size, parameters[5], 4);
        memcpy(&n->rank, parameters[6], 4);
        memcpy(&n->scale, parameters[7], 4);
        memcpy(&n->divides, parameters[8], 4);
    }
    if (k->run == narrow_8 || k->run == widen_8) {
        memcpy(&n->largest, parameters[4], 8);
        memcpy(&n->first, parameters[5], 8);
        memcpy(&n->top, parameters[6], 4);
    }
    bool aligned = (uintptr_t)n->from % k->from_bytes == 0 && (uintptr_t)n->to % k->to_bytes == 0 &&
                   n->stride % k->to_bytes == 0;
    if (n->fours && !aligned) { /* a GPU would fault */
        free(l);
        return NULL;
    }
    return l;
}

void kernel_run(void *argument)
{
    launched *l = argument;
    const numbers *n = &l->n;
    if (!l->run)
        find_largest(n, l->threads);
    for (uint64_t i = 0; l->run && i < l->threads; i++) {
        if (i < n->fours)
            l->run(n, 4 * i, 4, l->dtype);
        else if (i + 3 * n->fours < n->count)
            l->run(n, i + 3 * n->fours, 1, l->dtype);
    }
    free(l);
}
