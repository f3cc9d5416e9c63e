/* Elements of any dtype that are small whole numbers. */
#ifndef MGW_TESTS_NUMBERS_H
#define MGW_TESTS_NUMBERS_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include <mgwfbp/trace.h>

static inline uint16_t half_of(unsigned value, mgw_dtype dtype)
{
    float number = (float)value;
    uint32_t bits;
    memcpy(&bits, &number, sizeof bits);
    if (dtype == MGW_BF16)
        return (uint16_t)(bits >> 16);
    return value ? (uint16_t)((bits - 0x38000000) >> 13) : 0;
}

static inline void put(void *data, size_t index, mgw_dtype dtype, unsigned value)
{
    if (dtype == MGW_F32)
        ((float *)data)[index] = (float)value;
    else if (dtype == MGW_F64)
        ((double *)data)[index] = value;
    else
        ((uint16_t *)data)[index] = half_of(value, dtype);
}

static inline bool equals(const void *data, size_t index, mgw_dtype dtype, unsigned value)
{
    char expected[8];
    put(expected, 0, dtype, value);
    size_t size = mgw_dtype_bytes(dtype);
    return !memcmp(expected, (const char *)data + index * size, size);
}

#endif
