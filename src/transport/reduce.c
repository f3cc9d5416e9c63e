/* Sums of several workers' elements, and conversions of 16-bit numbers. Loops are plain, so that
 * compilers turn them into vector instructions. */
#include "transport/reduce.h"

#include <stdint.h>
#include <string.h>

static inline uint32_t bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float float_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* ---- bf16: the upper half of an f32 ---- */

static inline float from_bf16(uint16_t half)
{
    return float_of((uint32_t)half << 16);
}

static inline uint16_t to_bf16(float value)
{
    uint32_t bits = bits_of(value);
    uint32_t rounded = bits + 0x7fff + (bits >> 16 & 1);
    uint32_t quiet = bits | 0x400000; /* a NaN must not round to infinity */
    return (uint16_t)(((bits & 0x7fffffff) > 0x7f800000 ? quiet : rounded) >> 16);
}

/* ---- f16: 5 bits of exponent, 10 of mantissa ---- */

static inline float from_f16(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000) << 16;
    uint32_t rest = (uint32_t)(half & 0x7fff) << 13;
    /* Numbers: the exponent's bias grows from 15 to 127. Multiplying does it for subnormals too. */
    float number = float_of(rest) * 0x1p112f;
    uint32_t special = rest | 0x7f800000; /* infinity and NaN */
    return float_of(sign | (rest >= 0x0f800000 ? special : bits_of(number)));
}

static inline uint16_t to_f16(float value)
{
    uint32_t bits = bits_of(value);
    uint32_t sign = bits >> 16 & 0x8000;
    uint32_t magnitude = bits & 0x7fffffff;
    /* Normal numbers: rebias, round to nearest even; what overflows becomes infinity by itself. */
    uint32_t normal = (magnitude - 0x38000000 + 0xfff + (magnitude >> 13 & 1)) >> 13;
    /* Subnormal numbers: adding 0.5 puts the bits where they belong, rounded by the processor. */
    uint32_t subnormal = bits_of(float_of(magnitude) + 0.5f) - 0x3f000000;
    uint32_t result = magnitude < 0x38800000 ? subnormal : normal;
    result = magnitude >= 0x47800000 ? 0x7c00 : result;
    result = magnitude > 0x7f800000 ? 0x7e00 : result;
    return (uint16_t)(sign | result);
}

/* ---- Sums, a piece at a time that stays in the first cache ---- */

enum { PIECE = 1024 };

#define DEFINE_REDUCE(NAME, ELEMENT, SUM, LOAD, STORE)                                             \
    static void NAME(const void *const *source, size_t sources, void *const *target,               \
                     size_t targets, size_t count, mgw_op op)                                      \
    {                                                                                              \
        SUM sum[PIECE];                                                                            \
        ELEMENT result[PIECE];                                                                     \
        SUM divisor = (SUM)sources;                                                                \
        for (size_t begin = 0; begin < count; begin += PIECE) {                                    \
            size_t length = count - begin < PIECE ? count - begin : PIECE;                         \
            const ELEMENT *first = (const ELEMENT *)source[0] + begin;                             \
            for (size_t i = 0; i < length; i++)                                                    \
                sum[i] = LOAD(first[i]);                                                           \
            for (size_t s = 1; s < sources; s++) {                                                 \
                const ELEMENT *next = (const ELEMENT *)source[s] + begin;                          \
                for (size_t i = 0; i < length; i++)                                                \
                    sum[i] += LOAD(next[i]);                                                       \
            }                                                                                      \
            for (size_t i = 0; i < length; i++)                                                    \
                result[i] = STORE(op == MGW_AVERAGE ? sum[i] / divisor : sum[i]);                  \
            for (size_t t = 0; t < targets; t++)                                                   \
                memcpy((ELEMENT *)target[t] + begin, result, length * sizeof *result);             \
        }                                                                                          \
    }

#define SAME(value) (value)
DEFINE_REDUCE(reduce_f32, float, float, SAME, SAME)
DEFINE_REDUCE(reduce_f64, double, double, SAME, SAME)
DEFINE_REDUCE(reduce_f16, uint16_t, float, from_f16, to_f16)
DEFINE_REDUCE(reduce_bf16, uint16_t, float, from_bf16, to_bf16)

void mgw_reduce(const void *const *source, size_t sources, void *const *target, size_t targets,
                size_t count, mgw_dtype dtype, mgw_op op)
{
    static void (*const reduce[])(const void *const *, size_t, void *const *, size_t, size_t,
                                  mgw_op) = {[MGW_F32] = reduce_f32,
                                             [MGW_F16] = reduce_f16,
                                             [MGW_BF16] = reduce_bf16,
                                             [MGW_F64] = reduce_f64};
    reduce[dtype](source, sources, target, targets, count, op);
}

void mgw_narrow(const float *from, void *to, size_t count, mgw_dtype dtype)
{
    uint16_t *half = to;
    if (dtype == MGW_F16)
        for (size_t i = 0; i < count; i++)
            half[i] = to_f16(from[i]);
    else
        for (size_t i = 0; i < count; i++)
            half[i] = to_bf16(from[i]);
}

void mgw_widen(const void *from, float *to, size_t count, mgw_dtype dtype)
{
    const uint16_t *half = from;
    if (dtype == MGW_F16)
        for (size_t i = 0; i < count; i++)
            to[i] = from_f16(half[i]);
    else
        for (size_t i = 0; i < count; i++)
            to[i] = from_bf16(half[i]);
}
