/* Small integers as elements of any dtype. */
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

/* ---- Many of them, by blocks: one by one, tests would take longer than what they test ---- */

enum { MOST_PERIOD = 8, BLOCK_BYTES = 1 << 14 };

/* Element i is values[i % period]. */
typedef struct pattern {
    size_t period;
    unsigned values[MOST_PERIOD];
} pattern;

/* As many whole periods as fit, or as are asked for; returns their elements. */
static inline size_t make_block(const pattern *p, size_t first, size_t count, mgw_dtype dtype,
                                char *block)
{
    size_t size = mgw_dtype_bytes(dtype);
    size_t most = BLOCK_BYTES / size / p->period * p->period;
    size_t length = p->period;
    for (size_t i = 0; i < length; i++)
        put(block, i, dtype, p->values[(first + i) % p->period]);
    for (; length < count && length < most; length *= 2)
        memcpy(block + length * size, block, (2 * length <= most ? length : most - length) * size);
    return length < most ? length : most;
}

/* Elements first .. first+count-1; `data` points to element 0. */
static inline void put_pattern(void *data, size_t first, size_t count, mgw_dtype dtype,
                               const pattern *p)
{
    _Alignas(8) char block[BLOCK_BYTES];
    size_t size = mgw_dtype_bytes(dtype);
    size_t length = make_block(p, first, count, dtype, block);
    for (size_t i = 0; i < count; i += length)
        memcpy((char *)data + (first + i) * size, block,
               (length < count - i ? length : count - i) * size);
}

/* The first of those elements that is another; first + count: there is none. */
static inline size_t find_other(const void *data, size_t first, size_t count, mgw_dtype dtype,
                                const pattern *p)
{
    _Alignas(8) char block[BLOCK_BYTES];
    size_t size = mgw_dtype_bytes(dtype);
    size_t length = make_block(p, first, count, dtype, block);
    size_t i = first;
    for (size_t k = 0; k < count; k += length, i = first + k) {
        size_t here = length < count - k ? length : count - k;
        if (memcmp((const char *)data + i * size, block, here * size) != 0)
            break;
    }
    while (i < first + count && equals(data, i, dtype, p->values[i % p->period]))
        i++;
    return i < first + count ? i : first + count;
}

#endif
