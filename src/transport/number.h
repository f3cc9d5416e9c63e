/*
 * Conversions between f32 and narrower types: branch-free, so that loops over them can be
 * vectorized. All round to nearest, ties to even.
 */
#ifndef MGW_TRANSPORT_NUMBER_H
#define MGW_TRANSPORT_NUMBER_H

#include <stdint.h>
#include <string.h>

/* Also into functions that are compiled for wider vectors. */
#define INLINE static inline __attribute__((always_inline))

INLINE uint32_t bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

INLINE float float_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* ---- bf16: the upper half of an f32 ---- */

INLINE float from_bf16(uint16_t half)
{
    return float_of((uint32_t)half << 16);
}

INLINE uint16_t to_bf16(float value)
{
    uint32_t bits = bits_of(value);
    uint32_t rounded = bits + 0x7fff + (bits >> 16 & 1);
    uint32_t quiet = bits | 0x400000; /* a NaN must not round to infinity */
    int32_t magnitude = (int32_t)(bits & 0x7fffffff);
    return (uint16_t)((magnitude > 0x7f800000 ? quiet : rounded) >> 16);
}

/* ---- f16: 5 bits of exponent, 10 of mantissa ---- */

INLINE float from_f16(uint16_t half)
{
    /* The sign stays in place; the other bits move to their f32 position. */
    uint32_t bits = (uint32_t)(int16_t)half << 13 & 0x8fffe000;
    uint32_t special = (bits & 0x0f800000) == 0x0f800000 ? 0x7f800000 : 0; /* infinity and NaN */
    /* The exponent's bias changes from 15 to 127. The multiplication also handles subnormals. */
    return float_of(bits_of(float_of(bits) * 0x1p112f) | special);
}

INLINE uint16_t to_f16(float value)
{
    enum { LEAST = 0x38800000, INFINITE = 0x47800000 }; /* 2^-14, the least normal; 2^16 */
    uint32_t bits = bits_of(value);
    int32_t magnitude = (int32_t)(bits & 0x7fffffff);
    int32_t finite = magnitude < INFINITE ? magnitude : INFINITE;
    int32_t power = finite & 0x7f800000;
    power = power > LEAST ? power : LEAST;
    /*
     * Adding 2^13 times the number's power of two leaves as many bits as an f16 has, rounded by the
     * processor. Subnormals keep the bits that the smallest power leaves.
     */
    uint32_t large = (uint32_t)power + (13 << 23);
    uint32_t mantissa = bits_of(float_of((uint32_t)finite) + float_of(large)) - large;
    uint32_t exponent = (uint32_t)(power - LEAST) >> 13; /* minus one, carried by the mantissa */
    uint32_t nan = magnitude > 0x7f800000 ? 0x200 : 0;
    return (uint16_t)((bits >> 16 & 0x8000) | nan | (exponent + mantissa));
}

/* ---- 8 bits: finite numbers stay finite, saturating at the largest number ---- */

/*
 * The bits of a magnitude with `bits` mantissa bits and `least` as its smallest normal number,
 * computed as in to_f16.
 */
INLINE uint32_t round_magnitude(int32_t magnitude, int32_t least, int bits)
{
    int32_t power = magnitude & 0x7f800000;
    power = power > least ? power : least;
    uint32_t large = (uint32_t)power + ((uint32_t)(23 - bits) << 23);
    uint32_t mantissa = bits_of(float_of((uint32_t)magnitude) + float_of(large)) - large;
    return ((uint32_t)(power - least) >> (23 - bits)) + mantissa;
}

/* e4m3: 4 exponent bits, 3 mantissa bits, up to 448. It has no infinity: that becomes NaN. */
INLINE float from_e4m3(uint8_t number)
{
    uint32_t bits = (uint32_t)(number & 0x7f) << 20;
    uint32_t special = bits == 0x07f00000 ? 0x7fc00000 : 0;
    uint32_t sign = (uint32_t)(number & 0x80) << 24;
    /* As in from_f16: the exponent's bias changes from 7 to 127. */
    return float_of(bits_of(float_of(bits) * 0x1p120f) | special | sign);
}

INLINE uint8_t to_e4m3(float value)
{
    enum { LEAST = 0x3c800000, MOST = 0x43e00000 }; /* 2^-6, 448 */
    uint32_t bits = bits_of(value);
    int32_t magnitude = (int32_t)(bits & 0x7fffffff);
    uint32_t rounded = round_magnitude(magnitude < MOST ? magnitude : MOST, LEAST, 3);
    uint32_t nan = magnitude >= 0x7f800000; /* the code after the largest number */
    return (uint8_t)((bits >> 24 & 0x80) | (rounded + nan));
}

/* e5m2: the upper half of an f16, up to 57344. */
INLINE float from_e5m2(uint8_t number)
{
    return from_f16((uint16_t)(number << 8));
}

INLINE uint8_t to_e5m2(float value)
{
    enum { LEAST = 0x38800000, MOST = 0x47600000 }; /* 2^-14, 57344 */
    uint32_t bits = bits_of(value);
    int32_t magnitude = (int32_t)(bits & 0x7fffffff);
    uint32_t rounded = round_magnitude(magnitude < MOST ? magnitude : MOST, LEAST, 2);
    uint32_t infinite = magnitude >= 0x7f800000; /* the code after the largest number */
    uint32_t nan = magnitude > 0x7f800000;
    return (uint8_t)((bits >> 24 & 0x80) | (rounded + infinite + 2 * nan));
}

#endif
