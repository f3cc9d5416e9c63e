/*
 * Reductions of several workers' elements. Loops are plain and branch-free, so that compilers
 * vectorize them. The same loops are compiled for every supported vector extension.
 */
#include "transport/reduce.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "transport/number.h"

/* Before a loop that writes where it reads, but never an element that another iteration reads. */
#ifdef __clang__
#pragma clang diagnostic ignored "-Wpass-failed" /* sanitizers' code prevents vectorization */
#define TURNS_ARE_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define TURNS_ARE_INDEPENDENT _Pragma("GCC ivdep")
#endif

/* ---- Sums, a piece at a time that stays in the first cache ---- */

enum { PIECE = 512 };

typedef struct reduction {
    const void *const *source;
    size_t sources; /* two or more */
    void *const *target;
    size_t targets;
    size_t count;
    double scale; /* results are sums times this, or divided by it */
    bool divides;
} reduction;

/* The last source is added when the result is written: two sources need no separate pass. */
#define FINISH(LOAD, STORE, SUM_BEFORE)                                                            \
    if (r->divides)                                                                                \
        WRITE(STORE(((SUM_BEFORE) + LOAD(last[i])) / scale))                                       \
    else                                                                                           \
        WRITE(STORE(((SUM_BEFORE) + LOAD(last[i])) * scale))

#define WRITE(RESULT)                                                                              \
    TURNS_ARE_INDEPENDENT                                                                          \
    for (size_t i = 0; i < length; i++)                                                            \
        result[i] = RESULT;

#define DEFINE_REDUCE(NAME, ELEMENT, SUM, LOAD, STORE)                                             \
    INLINE void NAME(const reduction *r)                                                           \
    {                                                                                              \
        SUM sum[PIECE];                                                                            \
        const SUM scale = (SUM)r->scale;                                                           \
        for (size_t begin = 0; begin < r->count; begin += PIECE) {                                 \
            size_t length = r->count - begin < PIECE ? r->count - begin : PIECE;                   \
            const ELEMENT *first = (const ELEMENT *)r->source[0] + begin;                          \
            const ELEMENT *second = (const ELEMENT *)r->source[1] + begin;                         \
            const ELEMENT *last = (const ELEMENT *)r->source[r->sources - 1] + begin;              \
            ELEMENT *result = (ELEMENT *)r->target[0] + begin;                                     \
            if (r->sources == 2) {                                                                 \
                FINISH(LOAD, STORE, LOAD(first[i]))                                                \
            } else {                                                                               \
                for (size_t i = 0; i < length; i++)                                                \
                    sum[i] = LOAD(first[i]) + LOAD(second[i]);                                     \
                for (size_t s = 2; s + 1 < r->sources; s++) {                                      \
                    const ELEMENT *next = (const ELEMENT *)r->source[s] + begin;                   \
                    for (size_t i = 0; i < length; i++)                                            \
                        sum[i] += LOAD(next[i]);                                                   \
                }                                                                                  \
                FINISH(LOAD, STORE, sum[i])                                                        \
            }                                                                                      \
            for (size_t t = 1; t < r->targets; t++)                                                \
                memcpy((ELEMENT *)r->target[t] + begin, result, length * sizeof *result);          \
        }                                                                                          \
    }

#define SAME(value) (value)
DEFINE_REDUCE(reduce_f32, float, float, SAME, SAME)
DEFINE_REDUCE(reduce_f64, double, double, SAME, SAME)
DEFINE_REDUCE(reduce_f16, uint16_t, float, from_f16, to_f16)
DEFINE_REDUCE(reduce_bf16, uint16_t, float, from_bf16, to_bf16)
DEFINE_REDUCE(reduce_fp8, uint8_t, float, from_e4m3, to_e4m3)
DEFINE_REDUCE(reduce_e5m2, uint8_t, float, from_e5m2, to_e5m2)

/* ---- The largest: of few numbers, as a rule, so that there is one way ---- */

#define DEFINE_LARGEST(NAME, ELEMENT, LOAD)                                                        \
    static void NAME(const reduction *r)                                                           \
    {                                                                                              \
        for (size_t i = 0; i < r->count; i++) {                                                    \
            ELEMENT largest = ((const ELEMENT *)r->source[0])[i];                                  \
            for (size_t s = 1; s < r->sources; s++) {                                              \
                ELEMENT next = ((const ELEMENT *)r->source[s])[i];                                 \
                largest = LOAD(next) > LOAD(largest) ? next : largest;                             \
            }                                                                                      \
            for (size_t t = 0; t < r->targets; t++)                                                \
                ((ELEMENT *)r->target[t])[i] = largest;                                            \
        }                                                                                          \
    }

DEFINE_LARGEST(largest_f32, float, SAME)
DEFINE_LARGEST(largest_f64, double, SAME)
DEFINE_LARGEST(largest_f16, uint16_t, from_f16)
DEFINE_LARGEST(largest_bf16, uint16_t, from_bf16)
DEFINE_LARGEST(largest_fp8, uint8_t, from_e4m3)
DEFINE_LARGEST(largest_e5m2, uint8_t, from_e5m2)

/* ---- Sums with every kind of vectors ---- */

typedef void reduce_way(const reduction *r);

#define DEFINE_WAY(NAME, REDUCE, ATTRIBUTE)                                                        \
    ATTRIBUTE static void NAME(const reduction *r)                                                 \
    {                                                                                              \
        REDUCE(r);                                                                                 \
    }

DEFINE_WAY(plain_f32, reduce_f32, )
DEFINE_WAY(plain_f64, reduce_f64, )
DEFINE_WAY(plain_f16, reduce_f16, )
DEFINE_WAY(plain_bf16, reduce_bf16, )
DEFINE_WAY(plain_fp8, reduce_fp8, )
DEFINE_WAY(plain_e5m2, reduce_e5m2, )

#ifdef __x86_64__
#define AVX2 __attribute__((target("avx2")))
DEFINE_WAY(avx2_f32, reduce_f32, AVX2)
DEFINE_WAY(avx2_f64, reduce_f64, AVX2)
DEFINE_WAY(avx2_f16, reduce_f16, AVX2)
DEFINE_WAY(avx2_bf16, reduce_bf16, AVX2)
DEFINE_WAY(avx2_fp8, reduce_fp8, AVX2)
DEFINE_WAY(avx2_e5m2, reduce_e5m2, AVX2)

/* Wider vectors only speed up conversions; without these, memory is the bottleneck. */
#define AVX512 __attribute__((target("avx512bw,avx512vl")))
DEFINE_WAY(avx512_f16, reduce_f16, AVX512)
DEFINE_WAY(avx512_bf16, reduce_bf16, AVX512)
DEFINE_WAY(avx512_fp8, reduce_fp8, AVX512)
DEFINE_WAY(avx512_e5m2, reduce_e5m2, AVX512)

static reduce_way *const ways[][3] = {[MGW_F32] = {plain_f32, avx2_f32},
                                      [MGW_F16] = {plain_f16, avx2_f16, avx512_f16},
                                      [MGW_BF16] = {plain_bf16, avx2_bf16, avx512_bf16},
                                      [MGW_F64] = {plain_f64, avx2_f64},
                                      [MGW_FP8] = {plain_fp8, avx2_fp8, avx512_fp8},
                                      [MGW_FP8_E5M2] = {plain_e5m2, avx2_e5m2, avx512_e5m2}};

size_t mgw_reduce_ways(mgw_dtype dtype)
{
    /* VBMI2 came with processors that no longer reduce their clock much for such vectors. */
    bool has_avx512 = __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
                      __builtin_cpu_supports("avx512vbmi2");
    if (!__builtin_cpu_supports("avx2"))
        return 1;
    return has_avx512 && ways[dtype][2] ? 3 : 2;
}
#else
static reduce_way *const ways[][1] = {
    [MGW_F32] = {plain_f32}, [MGW_F16] = {plain_f16}, [MGW_BF16] = {plain_bf16},
    [MGW_F64] = {plain_f64}, [MGW_FP8] = {plain_fp8}, [MGW_FP8_E5M2] = {plain_e5m2}};

size_t mgw_reduce_ways(mgw_dtype dtype)
{
    (void)dtype;
    return 1;
}
#endif

static reduce_way *const largest[] = {
    [MGW_F32] = largest_f32, [MGW_F16] = largest_f16, [MGW_BF16] = largest_bf16,
    [MGW_F64] = largest_f64, [MGW_FP8] = largest_fp8, [MGW_FP8_E5M2] = largest_e5m2};

static void copy(const void *source, void *const *target, size_t targets, size_t bytes)
{
    for (size_t t = 0; bytes && t < targets; t++)
        if (target[t] != source)
            memcpy(target[t], source, bytes);
}

void mgw_reduce_in(size_t way, const void *const *source, size_t sources, void *const *target,
                   size_t targets, size_t count, mgw_dtype dtype, mgw_op op)
{
    if (sources == 1) {
        copy(source[0], target, targets, count * mgw_dtype_bytes(dtype));
        return;
    }
    bool average = op == MGW_AVERAGE;
    bool exact = (sources & (sources - 1)) == 0; /* a power of two has an exact reciprocal */
    reduction r = {.source = source,
                   .sources = sources,
                   .target = target,
                   .targets = targets,
                   .count = count,
                   .scale = !average ? 1
                            : exact  ? 1 / (double)sources
                                     : (double)sources,
                   .divides = average && !exact};
    if (op == MGW_MAX)
        largest[dtype](&r);
    else
        ways[dtype][way](&r);
}

void mgw_reduce(const void *const *source, size_t sources, void *const *target, size_t targets,
                size_t count, mgw_dtype dtype, mgw_op op)
{
    mgw_reduce_in(mgw_reduce_ways(dtype) - 1, source, sources, target, targets, count, dtype, op);
}
