/* Sums of arrays by every kind of vectors that this processor has: bit for bit what adding up one
 * element after another gives. And the conversions of 16-bit numbers, against what they mean. */
#include <math.h>

#include "support.h"
#include "transport/reduce.h"

enum { ARRAYS = 9, MOST = 1031, ROOM = (MOST + 1) * 8 };

static const size_t counts[] = {0, 1, 2, 7, 31, 33, 63, 65, 511, 512, 513, 1024, MOST};

/* ---- Sums ---- */

/* Any bits, but NaN in the first array only: of two NaNs, either may be the sum. */
static void fill(char *data, mgw_dtype dtype, bool may_be_nan, uint64_t *random)
{
    size_t size = mgw_dtype_bytes(dtype);
    for (size_t i = 0; i < ROOM; i += size) {
        double value = NAN;
        while (isnan(value)) {
            uint64_t bits = random_bits(random);
            float number = 0;
            memcpy(data + i, &bits, size);
            if (dtype == MGW_F64)
                memcpy(&value, &bits, sizeof value);
            else if (dtype == MGW_F32)
                memcpy(&number, &bits, sizeof number);
            else
                mgw_widen(&bits, &number, 1, dtype);
            if (dtype != MGW_F64)
                value = number;
            if (may_be_nan)
                break;
        }
    }
}

static void add_doubles(char source[][ROOM], size_t sources, char *result, size_t count, mgw_op op)
{
    for (size_t i = 0; i < count; i++) {
        double sum = ((double *)source[0])[i];
        for (size_t s = 1; s < sources; s++)
            sum += ((double *)source[s])[i];
        ((double *)result)[i] = op == MGW_AVERAGE ? sum / (double)sources : sum;
    }
}

static float element(const char *data, size_t index, mgw_dtype dtype)
{
    float value = 0;
    if (dtype == MGW_F32)
        return ((const float *)data)[index];
    mgw_widen((const uint16_t *)data + index, &value, 1, dtype);
    return value;
}

static void add_floats(char source[][ROOM], size_t sources, char *result, size_t count,
                       mgw_dtype dtype, mgw_op op)
{
    for (size_t i = 0; i < count; i++) {
        float sum = element(source[0], i, dtype);
        for (size_t s = 1; s < sources; s++)
            sum += element(source[s], i, dtype);
        if (op == MGW_AVERAGE)
            sum /= (float)sources;
        if (dtype == MGW_F32)
            ((float *)result)[i] = sum;
        else
            mgw_narrow(&sum, (uint16_t *)result + i, 1, dtype);
    }
}

/* The bits of one of the elements. */
static void take_largest(char source[][ROOM], size_t sources, char *result, size_t count,
                         mgw_dtype dtype)
{
    size_t bytes = mgw_dtype_bytes(dtype);
    for (size_t i = 0; i < count; i++) {
        size_t largest = 0;
        for (size_t s = 1; s < sources; s++) {
            bool larger = dtype == MGW_F64
                              ? ((double *)source[s])[i] > ((double *)source[largest])[i]
                              : element(source[s], i, dtype) > element(source[largest], i, dtype);
            largest = larger ? s : largest;
        }
        memcpy(result + i * bytes, source[largest] + i * bytes, bytes);
    }
}

static void add(char source[][ROOM], size_t sources, char *result, size_t count, mgw_dtype dtype,
                mgw_op op)
{
    if (sources == 1)
        memcpy(result, source[0], count * mgw_dtype_bytes(dtype));
    else if (op == MGW_MAX)
        take_largest(source, sources, result, count, dtype);
    else if (dtype == MGW_F64)
        add_doubles(source, sources, result, count, op);
    else
        add_floats(source, sources, result, count, dtype, op);
}

/* Targets are the sources themselves and then other memory, or other memory only; what is behind
 * their last element stays. */
static void compare(char original[][ROOM], size_t sources, size_t targets, bool in_place,
                    size_t count, mgw_dtype dtype, mgw_op op, const char *expected)
{
    static _Alignas(64) char source[ARRAYS][ROOM];
    static _Alignas(64) char other[ARRAYS][ROOM];
    size_t bytes = count * mgw_dtype_bytes(dtype);
    const void *from[ARRAYS];
    void *to[ARRAYS];
    for (size_t way = 0; way < mgw_reduce_ways(dtype); way++) {
        for (size_t s = 0; s < sources; s++)
            from[s] = memcpy(source[s], original[s], bytes);
        for (size_t t = 0; t < targets; t++) {
            to[t] = in_place && t < sources ? source[t] : other[t];
            ((char *)to[t])[bytes] = 'x';
        }
        mgw_reduce_in(way, from, sources, to, targets, count, dtype, op);
        for (size_t t = 0; t < targets; t++)
            if (memcmp(to[t], expected, bytes) != 0 || ((char *)to[t])[bytes] != 'x')
                fail_msg("way %zu, %s, op %d, %zu elements: %zu into target %zu of %zu%s", way,
                         mgw_dtype_name(dtype), op, count, sources, t, targets,
                         in_place ? ", in place" : "");
    }
}

static void every_way_gives_the_same_bits(void **unused)
{
    (void)unused;
    static _Alignas(64) char original[ARRAYS][ROOM];
    static _Alignas(64) char expected[ROOM];
    uint64_t random = 1;
    for (mgw_dtype dtype = MGW_F32; dtype <= MGW_F64; dtype++) {
        for (size_t s = 0; s < ARRAYS; s++)
            fill(original[s], dtype, s == 0, &random);
        for (size_t c = 0; c < sizeof counts / sizeof *counts; c++)
            for (size_t sources = 1; sources <= ARRAYS; sources++)
                for (mgw_op kind = MGW_AVERAGE; kind <= MGW_MAX; kind++) {
                    add(original, sources, expected, counts[c], dtype, kind);
                    for (size_t targets = 1; targets <= ARRAYS; targets++)
                        for (int in_place = 0; in_place < 2; in_place++)
                            compare(original, sources, targets, in_place, counts[c], dtype, kind,
                                    expected);
                }
    }
}

/* ---- Conversions ---- */

static float widened(uint16_t half, mgw_dtype dtype)
{
    float value = 0;
    mgw_widen(&half, &value, 1, dtype);
    return value;
}

static uint16_t narrowed(float value, mgw_dtype dtype)
{
    uint16_t half = 0;
    mgw_narrow(&value, &half, 1, dtype);
    return half;
}

/* What the bits of a finite number say; the exponent is one of `mantissa_bits` up to the sign. */
static double meaning(uint16_t half, int mantissa_bits, int bias)
{
    int exponent = (half & 0x7fff) >> mantissa_bits;
    int mantissa = half & ((1 << mantissa_bits) - 1);
    if (exponent)
        mantissa += 1 << mantissa_bits;
    double magnitude = ldexp(mantissa, (exponent ? exponent : 1) - bias - mantissa_bits);
    return half & 0x8000 ? -magnitude : magnitude;
}

/* A number, and what lies between it and the next one away from zero: ties go to even. */
static void check_rounding(uint16_t half, mgw_dtype dtype, double value, double next)
{
    float middle = (float)((value + next) / 2);
    uint16_t even = (uint16_t)(half + (half & 1));
    assert_int_equal(narrowed(middle, dtype), even);
    assert_int_equal(narrowed(nextafterf(middle, 0), dtype), half);
    assert_int_equal(narrowed(nextafterf(middle, 2 * (float)next), dtype), half + 1);
}

static void check_conversions(mgw_dtype dtype, int mantissa_bits, int bias)
{
    uint16_t infinity = dtype == MGW_F16 ? 0x7c00 : 0x7f80;
    for (unsigned bits = 0; bits < 0x10000; bits++) {
        uint16_t half = (uint16_t)bits;
        uint16_t magnitude = half & 0x7fff;
        float value = widened(half, dtype);
        assert_int_equal(signbit(value) != 0, half >> 15);
        if (magnitude > infinity) {
            assert_true(isnan(value));
            assert_true((narrowed(value, dtype) & 0x7fff) > infinity);
            continue;
        }
        assert_int_equal(narrowed(value, dtype), half);
        if (magnitude == infinity) {
            assert_true(isinf(value));
            continue;
        }
        double expected = meaning(half, mantissa_bits, bias);
        assert_true((double)value == expected);
        /* The number after the greatest one would be what infinity's bits mean. */
        if (dtype == MGW_F16 || magnitude + 1 < infinity)
            check_rounding(half, dtype, expected,
                           meaning((uint16_t)(half + 1), mantissa_bits, bias));
    }
    assert_int_equal(narrowed(INFINITY, dtype), infinity);
    assert_int_equal(narrowed(-3.4028235e38f, dtype), infinity | 0x8000);
    assert_int_equal(narrowed(1e-45f, dtype), 0);
}

static void halves_are_rounded_to_nearest(void **unused)
{
    (void)unused;
    check_conversions(MGW_F16, 10, 15);
    check_conversions(MGW_BF16, 7, 127);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_way_gives_the_same_bits),
        cmocka_unit_test(halves_are_rounded_to_nearest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
