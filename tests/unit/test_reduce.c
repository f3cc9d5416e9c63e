/* Sums of arrays with every vector extension of this processor: bit for bit equal to
 * element-by-element sums. And conversions of narrow formats, compared with their definition. */
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
    mgw_widen(data + index * mgw_dtype_bytes(dtype), &value, 1, dtype);
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
            mgw_narrow(&sum, result + i * mgw_dtype_bytes(dtype), 1, dtype);
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
    for (mgw_dtype dtype = MGW_F32; dtype < MGW_DTYPE_COUNT; dtype++) {
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

/* ---- 8 bits ---- */

typedef struct small_kind {
    mgw_dtype dtype;
    int mantissa_bits;
    int bias;
    uint8_t most; /* the bits of the largest number; all above are infinity or NaN */
} small_kind;

static const small_kind smalls[] = {{MGW_FP8, 3, 7, 0x7e}, {MGW_FP8_E5M2, 2, 15, 0x7b}};

static double small_meaning(const small_kind *kind, unsigned bits)
{
    int exponent = (int)(bits & 0x7f) >> kind->mantissa_bits;
    int mantissa = (int)bits & ((1 << kind->mantissa_bits) - 1);
    if (exponent)
        mantissa += 1 << kind->mantissa_bits;
    double magnitude =
        ldexp(mantissa, (exponent ? exponent : 1) - kind->bias - kind->mantissa_bits);
    return bits & 0x80 ? -magnitude : magnitude;
}

static uint8_t small_of(float value, mgw_dtype dtype)
{
    uint8_t bits = 0;
    mgw_narrow(&value, &bits, 1, dtype);
    return bits;
}

/* The nearest of all numbers; of two, the even one. */
static uint8_t nearest(const small_kind *kind, double value)
{
    unsigned best = 0;
    double magnitude = fabs(value);
    for (unsigned bits = 1; bits <= kind->most; bits++) {
        double gap = fabs(small_meaning(kind, bits) - magnitude);
        double before = fabs(small_meaning(kind, best) - magnitude);
        if (gap < before || (gap == before && bits % 2 == 0))
            best = bits;
    }
    return (uint8_t)(best | (signbit(value) ? 0x80 : 0));
}

static void small_numbers_mean_what_they_say(void **unused)
{
    (void)unused;
    for (size_t k = 0; k < 2; k++) {
        const small_kind *kind = &smalls[k];
        for (unsigned bits = 0; bits < 256; bits++) {
            uint8_t number = (uint8_t)bits;
            float value = 0;
            mgw_widen(&number, &value, 1, kind->dtype);
            assert_int_equal(signbit(value) != 0, bits >> 7);
            if ((bits & 0x7f) <= kind->most) {
                assert_true((double)value == small_meaning(kind, bits));
                assert_int_equal(small_of(value, kind->dtype), bits);
            } else {
                bool infinite = kind->dtype == MGW_FP8_E5M2 && (bits & 0x7f) == 0x7c;
                assert_true(infinite ? isinf(value) : isnan(value));
                assert_true((small_of(value, kind->dtype) & 0x7f) > kind->most);
            }
        }
        assert_int_equal(small_of(3.4028235e38f, kind->dtype), kind->most);
        assert_int_equal(small_of(-1e9f, kind->dtype), kind->most | 0x80);
        assert_true((small_of(INFINITY, kind->dtype) & 0x7f) > kind->most);
    }
}

static void small_numbers_are_rounded_to_nearest(void **unused)
{
    (void)unused;
    uint64_t random = 3;
    for (size_t k = 0; k < 2; k++) {
        const small_kind *kind = &smalls[k];
        for (unsigned bits = 0; bits < kind->most; bits++) { /* and the ties between two */
            float middle = (float)((small_meaning(kind, bits) + small_meaning(kind, bits + 1)) / 2);
            assert_int_equal(small_of(middle, kind->dtype), bits + bits % 2);
            assert_int_equal(small_of(nextafterf(middle, 0), kind->dtype), bits);
            assert_int_equal(small_of(nextafterf(middle, 1e9f), kind->dtype), bits + 1);
        }
        for (int i = 0; i < 20000; i++) {
            float value =
                (float)ldexp(random_unit(&random) - 0.5, (int)random_below(&random, 44) - 24);
            assert_int_equal(small_of(value, kind->dtype), nearest(kind, (double)value));
        }
    }
}

/* Blocks of very different numbers, and parts of them, against the nearest of scaled numbers. */
static void blocks_have_scales_of_their_own(void **unused)
{
    (void)unused;
    enum { COUNT = 2 * MGW_FP8_BLOCK + 77 };
    static float from[COUNT];
    static float back[COUNT];
    static uint8_t narrow[COUNT];
    uint64_t random = 4;
    for (int round = 0; round < 12; round++) {
        const small_kind *kind = &smalls[round % 2];
        int headroom = round % 3;
        float largest[3] = {0};
        for (size_t i = 0; i < COUNT; i++)
            from[i] = (float)ldexp(random_unit(&random) - 0.5, (int)(i / MGW_FP8_BLOCK) * 40 - 60 -
                                                                   (int)random_below(&random, 9));
        if (round == 5)
            memset(from, 0, sizeof from);
        mgw_fp8_largest(from, COUNT, largest);
        for (size_t begin = 0, length = 0; begin < COUNT; begin += length) { /* in parts */
            length = 1 + random_below(&random, 900);
            length = length < COUNT - begin ? length : COUNT - begin;
            mgw_fp8_blocks blocks = {kind->dtype, largest, headroom, begin, length};
            mgw_fp8_narrow(from, narrow, &blocks);
            mgw_fp8_widen(narrow, back, &blocks);
        }
        for (size_t i = 0; i < COUNT; i++) {
            float most = largest[i / MGW_FP8_BLOCK];
            int exponent = mgw_fp8_exponent(most, kind->dtype, headroom);
            double limit = small_meaning(kind, kind->most);
            assert_true(fabs((double)from[i]) <= (double)most);
            if (most > 0) { /* as large as it can be */
                assert_true(ldexp((double)most, exponent + headroom) <= limit);
                assert_true(ldexp((double)most, exponent + headroom + 1) > limit);
            }
            uint8_t expected = nearest(kind, ldexp((double)from[i], exponent));
            assert_int_equal(narrow[i], expected);
            assert_true((double)back[i] == ldexp(small_meaning(kind, expected), -exponent));
        }
    }
}

/* What is not finite stays so, and does no harm to other blocks. */
static void blocks_with_infinity(void **unused)
{
    (void)unused;
    enum { COUNT = 2 * MGW_FP8_BLOCK };
    static float data[COUNT];
    static uint8_t narrow[COUNT];
    for (int round = 0; round < 4; round++) {
        float largest[2];
        for (size_t i = 0; i < COUNT; i++)
            data[i] = 1;
        data[3] = round < 2 ? INFINITY : NAN;
        mgw_fp8_largest(data, COUNT, largest);
        assert_true(isinf(largest[0]) && largest[1] == 1);
        mgw_fp8_blocks blocks = {smalls[round % 2].dtype, largest, 0, 0, COUNT};
        mgw_fp8_narrow(data, narrow, &blocks);
        mgw_fp8_widen(narrow, data, &blocks);
        assert_false(isfinite(data[3]));
        assert_true(data[MGW_FP8_BLOCK] == 1);
    }
    const float extremes[] = {0, 1e-45f, 1.17549435e-38f, 3.4028235e38f};
    for (size_t i = 0; i < 4; i++) { /* scales are numbers, too */
        int exponent = mgw_fp8_exponent(extremes[i], MGW_FP8_E5M2, 0);
        assert_true(exponent >= -126 && exponent <= 126);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_way_gives_the_same_bits),
        cmocka_unit_test(halves_are_rounded_to_nearest),
        cmocka_unit_test(small_numbers_mean_what_they_say),
        cmocka_unit_test(small_numbers_are_rounded_to_nearest),
        cmocka_unit_test(blocks_have_scales_of_their_own),
        cmocka_unit_test(blocks_with_infinity),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
