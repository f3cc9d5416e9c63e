/* Casts between f32 and narrower types; 8-bit types have a scale per block. */
#include <stdbool.h>

#include "transport/number.h"
#include "transport/reduce.h"

/* ---- Loops, for every kind of vectors that the processor may have ---- */

typedef void cast_way(const void *from, void *to, size_t count, float scale);

#define SCALED(value)   ((value)*scale)
#define UNSCALED(value) (value)

#define DEFINE_CAST(NAME, FROM, TO, CONVERT, BEFORE, BEHIND, ATTRIBUTE)                            \
    ATTRIBUTE static void NAME(const void *from, void *to, size_t count, float scale)              \
    {                                                                                              \
        const FROM *source = from;                                                                 \
        TO *target = to;                                                                           \
        (void)scale;                                                                               \
        for (size_t i = 0; i < count; i++)                                                         \
            target[i] = BEHIND(CONVERT(BEFORE(source[i])));                                        \
    }

#define DEFINE_CASTS(KIND, ATTRIBUTE)                                                              \
    DEFINE_CAST(KIND##_to_f16, float, uint16_t, to_f16, UNSCALED, UNSCALED, ATTRIBUTE)             \
    DEFINE_CAST(KIND##_to_bf16, float, uint16_t, to_bf16, UNSCALED, UNSCALED, ATTRIBUTE)           \
    DEFINE_CAST(KIND##_to_fp8, float, uint8_t, to_e4m3, SCALED, UNSCALED, ATTRIBUTE)               \
    DEFINE_CAST(KIND##_to_e5m2, float, uint8_t, to_e5m2, SCALED, UNSCALED, ATTRIBUTE)              \
    DEFINE_CAST(KIND##_from_f16, uint16_t, float, from_f16, UNSCALED, UNSCALED, ATTRIBUTE)         \
    DEFINE_CAST(KIND##_from_bf16, uint16_t, float, from_bf16, UNSCALED, UNSCALED, ATTRIBUTE)       \
    DEFINE_CAST(KIND##_from_fp8, uint8_t, float, from_e4m3, UNSCALED, SCALED, ATTRIBUTE)           \
    DEFINE_CAST(KIND##_from_e5m2, uint8_t, float, from_e5m2, UNSCALED, SCALED, ATTRIBUTE)

#define WAYS(KIND)                                                                                 \
    {                                                                                              \
        [MGW_F16] = {KIND##_to_f16, KIND##_from_f16},                                              \
        [MGW_BF16] = {KIND##_to_bf16, KIND##_from_bf16},                                           \
        [MGW_FP8] = {KIND##_to_fp8, KIND##_from_fp8},                                              \
        [MGW_FP8_E5M2] = {KIND##_to_e5m2, KIND##_from_e5m2},                                       \
    }

DEFINE_CASTS(plain, )

#ifdef __x86_64__
DEFINE_CASTS(avx2, __attribute__((target("avx2"))))
static cast_way *const ways[][MGW_DTYPE_COUNT][2] = {WAYS(plain), WAYS(avx2)};

static size_t best_way(void)
{
    return __builtin_cpu_supports("avx2") ? 1 : 0;
}
#else
static cast_way *const ways[][MGW_DTYPE_COUNT][2] = {WAYS(plain)};

static size_t best_way(void)
{
    return 0;
}
#endif

void mgw_narrow(const float *from, void *to, size_t count, mgw_dtype dtype)
{
    ways[best_way()][dtype][0](from, to, count, 1);
}

void mgw_widen(const void *from, float *to, size_t count, mgw_dtype dtype)
{
    ways[best_way()][dtype][1](from, to, count, 1);
}

/* ---- Blocks with a scale ---- */

void mgw_fp8_largest(const float *from, size_t count, float *largest)
{
    for (size_t begin = 0; begin < count; begin += MGW_FP8_BLOCK) {
        size_t length = count - begin < MGW_FP8_BLOCK ? count - begin : MGW_FP8_BLOCK;
        int32_t most = 0;
        for (size_t i = begin; i < begin + length; i++) {
            int32_t magnitude = (int32_t)(bits_of(from[i]) & 0x7fffffff);
            most = magnitude > most ? magnitude : most;
        }
        *largest++ = float_of((uint32_t)(most < 0x7f800000 ? most : 0x7f800000));
    }
}

int mgw_fp8_exponent(float largest, mgw_dtype dtype, int headroom)
{
    /* Both formats end at 1.75 times a power of two: a larger mantissa counts as the next power. */
    int power = (int)((bits_of(largest) + 0x1fffff) >> 23) - 127;
    int exponent = (dtype == MGW_FP8 ? 8 : 15) - power - headroom;
    return exponent < -126 ? -126 : exponent > 126 ? 126 : exponent;
}

static float power_of_two(int exponent)
{
    return float_of((uint32_t)(exponent + 127) << 23);
}

/* Block by block; the range may start inside the first block. */
static void cast_blocks(cast_way *way, const char *from, size_t from_bytes, char *to,
                        size_t to_bytes, const mgw_fp8_blocks *b, int sign)
{
    size_t end = b->first + b->count;
    for (size_t i = b->first; i < end;) {
        size_t block = i / MGW_FP8_BLOCK;
        size_t next = (block + 1) * MGW_FP8_BLOCK;
        size_t length = (next < end ? next : end) - i;
        int exponent = mgw_fp8_exponent(b->largest[block], b->dtype, b->headroom);
        way(from + i * from_bytes, to + i * to_bytes, length, power_of_two(sign * exponent));
        i += length;
    }
}

void mgw_fp8_narrow(const float *from, void *to, const mgw_fp8_blocks *blocks)
{
    cast_blocks(ways[best_way()][blocks->dtype][0], (const char *)from, sizeof *from, to, 1, blocks,
                1);
}

void mgw_fp8_widen(const void *from, float *to, const mgw_fp8_blocks *blocks)
{
    cast_blocks(ways[best_way()][blocks->dtype][1], from, 1, (char *)to, sizeof *to, blocks, -1);
}
