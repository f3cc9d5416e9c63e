/* Kernels for 16-bit and 8-bit numbers, as PTX: building needs no CUDA compiler, since the driver
 * has its own. Every kernel is written once, for a type T and macros that read (FROM) and round
 * (TO) its numbers. */
#include "device/kernels.h"

/* Lines are those of the text. */
/* clang-format off */

/* ---- Numbers: F is a register of an f32, H one of 16 bits, of which 8-bit ones use half ---- */

/* As to_bf16 in src/transport/number.h: GPUs before sm_80 have no instruction for it. */
#define TO_BF16(F, H)                                                                              \
    "    {\n"                                                                                      \
    "        .reg .b32 bits, odd, quiet;\n"                                                        \
    "        .reg .pred nan;\n"                                                                    \
    "        mov.b32 bits, " F ";\n"                                                               \
    "        shr.u32 odd, bits, 16;\n"                                                             \
    "        and.b32 odd, odd, 1;\n"                                                               \
    "        or.b32 quiet, bits, 0x400000;\n"                                                      \
    "        add.u32 bits, bits, 0x7fff;\n"                                                        \
    "        add.u32 bits, bits, odd;\n"                                                           \
    "        setp.nan.f32 nan, " F ", " F ";\n"                                                    \
    "        selp.b32 bits, quiet, bits, nan;\n"                                                   \
    "        shr.u32 bits, bits, 16;\n"                                                            \
    "        cvt.u16.u32 " H ", bits;\n"                                                           \
    "    }\n"

#define FROM_BF16(F, H)                                                                            \
    "    {\n"                                                                                      \
    "        .reg .b32 bits;\n"                                                                    \
    "        cvt.u32.u16 bits, " H ";\n"                                                           \
    "        shl.b32 bits, bits, 16;\n"                                                            \
    "        mov.b32 " F ", bits;\n"                                                               \
    "    }\n"

/* The instruction maps all NaNs to one; here, as on the host, a NaN keeps its sign. */
#define TO_F16(F, H)                                                                               \
    "    {\n"                                                                                      \
    "        .reg .b32 bits;\n"                                                                    \
    "        .reg .b16 quiet;\n"                                                                   \
    "        .reg .pred nan;\n"                                                                    \
    "        mov.b32 bits, " F ";\n"                                                               \
    "        shr.u32 bits, bits, 16;\n"                                                            \
    "        and.b32 bits, bits, 0x8000;\n"                                                        \
    "        or.b32 bits, bits, 0x7e00;\n"                                                         \
    "        cvt.u16.u32 quiet, bits;\n"                                                           \
    "        setp.nan.f32 nan, " F ", " F ";\n"                                                    \
    "        cvt.rn.f16.f32 " H ", " F ";\n"                                                       \
    "        selp.b16 " H ", quiet, " H ", nan;\n"                                                 \
    "    }\n"

#define FROM_F16(F, H) "    cvt.f32.f16 " F ", " H ";\n"

/*
 * As to_e4m3 and to_e5m2 in src/transport/number.h, in the same steps: LEAST and MOST are the bits
 * of the smallest normal and the largest number, CUT the number of mantissa bits that are dropped.
 * Infinity is one more than the largest, and a NaN AS_NAN more.
 */
#define TO_8(F, H, LEAST, MOST, CUT, AS_NAN)                                                       \
    "    {\n"                                                                                      \
    "        .reg .b32 bits, magnitude, power, large, mantissa, more;\n"                           \
    "        .reg .f32 number, rounds;\n"                                                          \
    "        .reg .pred special;\n"                                                                \
    "        mov.b32 bits, " F ";\n"                                                               \
    "        and.b32 magnitude, bits, 0x7fffffff;\n"                                               \
    "        min.u32 mantissa, magnitude, " MOST ";\n"                                             \
    "        and.b32 power, mantissa, 0x7f800000;\n"                                               \
    "        max.u32 power, power, " LEAST ";\n"                                                   \
    "        add.u32 large, power, " CUT " << 23;\n"                                               \
    "        mov.b32 number, mantissa;\n"                                                          \
    "        mov.b32 rounds, large;\n"                                                             \
    "        add.rn.f32 number, number, rounds;\n"                                                 \
    "        mov.b32 mantissa, number;\n"                                                          \
    "        sub.u32 mantissa, mantissa, large;\n"                                                 \
    "        sub.u32 power, power, " LEAST ";\n"                                                   \
    "        shr.u32 power, power, " CUT ";\n"                                                     \
    "        add.u32 mantissa, mantissa, power;\n"                                                 \
    "        setp.ge.u32 special, magnitude, 0x7f800000;\n"                                        \
    "        selp.b32 more, 1, 0, special;\n"                                                      \
    "        add.u32 mantissa, mantissa, more;\n"                                                  \
    "        setp.gt.u32 special, magnitude, 0x7f800000;\n"                                        \
    "        selp.b32 more, " AS_NAN ", 0, special;\n"                                             \
    "        add.u32 mantissa, mantissa, more;\n"                                                  \
    "        shr.u32 bits, bits, 24;\n"                                                            \
    "        and.b32 bits, bits, 0x80;\n"                                                          \
    "        or.b32 bits, bits, mantissa;\n"                                                       \
    "        cvt.u16.u32 " H ", bits;\n"                                                           \
    "    }\n"

/* As from_e4m3 and from_e5m2: the bits move to their f32 position, FACTOR is the power of two that
 * the exponents differ by, and numbers from FIRST on become SPECIAL. */
#define FROM_8(F, H, SHIFT, FACTOR, FIRST, SPECIAL)                                                \
    "    {\n"                                                                                      \
    "        .reg .b32 bits, sign, special;\n"                                                     \
    "        .reg .f32 number;\n"                                                                  \
    "        .reg .pred last;\n"                                                                   \
    "        cvt.u32.u16 bits, " H ";\n"                                                           \
    "        and.b32 sign, bits, 0x80;\n"                                                          \
    "        shl.b32 sign, sign, 24;\n"                                                            \
    "        and.b32 bits, bits, 0x7f;\n"                                                          \
    "        shl.b32 bits, bits, " SHIFT ";\n"                                                     \
    "        setp.ge.u32 last, bits, " FIRST ";\n"                                                 \
    "        selp.b32 special, " SPECIAL ", 0, last;\n"                                            \
    "        mov.b32 number, bits;\n"                                                              \
    "        mul.rn.f32 number, number, " FACTOR ";\n"                                             \
    "        mov.b32 bits, number;\n"                                                              \
    "        or.b32 bits, bits, special;\n"                                                        \
    "        or.b32 bits, bits, sign;\n"                                                           \
    "        mov.b32 " F ", bits;\n"                                                               \
    "    }\n"

#define TO_E4M3(F, H)   TO_8(F, H, "0x3c800000", "0x43e00000", "20", "0")
#define TO_E5M2(F, H)   TO_8(F, H, "0x38800000", "0x47600000", "21", "2")
#define FROM_E4M3(F, H) FROM_8(F, H, "20", "0f7b800000", "0x07f00000", "0x7fc00000") /* 2^120 */
#define FROM_E5M2(F, H) FROM_8(F, H, "21", "0f77800000", "0x0f800000", "0x7f800000") /* 2^112 */

/* Multiplies numbers by the scale of their block, or divides by it. */
#define TIMES(F) "    mul.rn.f32 " F ", " F ", scale;\n"

#define TO_E4M3_SCALED(F, H)   TIMES(F) TO_E4M3(F, H)
#define TO_E5M2_SCALED(F, H)   TIMES(F) TO_E5M2(F, H)
#define FROM_E4M3_SCALED(F, H) FROM_E4M3(F, H) TIMES(F)
#define FROM_E5M2_SCALED(F, H) FROM_E5M2(F, H) TIMES(F)

/* ---- Which numbers are a thread's: the i-th four, and behind all fours one ---- */

#define PARAMETERS ".param .u64 p_from, .param .u64 p_to, .param .u64 p_count, .param .u64 p_fours"

#define PLACE                                                                                      \
    "    .reg .u32 block, width, thread;\n"                                                        \
    "    .reg .u64 i, a, count, fours, from, to;\n"                                                \
    "    .reg .f32 f0, f1, f2, f3;\n"                                                              \
    "    .reg .b16 h0, h1, h2, h3;\n"                                                              \
    "    .reg .pred p;\n"                                                                          \
    "    ld.param.u64 from, [p_from];\n"                                                           \
    "    ld.param.u64 to, [p_to];\n"                                                               \
    "    ld.param.u64 count, [p_count];\n"                                                         \
    "    ld.param.u64 fours, [p_fours];\n"                                                         \
    "    mov.u32 block, %ctaid.x;\n"                                                               \
    "    mov.u32 width, %ntid.x;\n"                                                                \
    "    mov.u32 thread, %tid.x;\n"                                                                \
    "    cvt.u64.u32 i, thread;\n"                                                                 \
    "    mad.wide.u32 i, block, width, i;\n"                                                       \
    "    setp.lt.u64 p, i, fours;\n"                                                               \
    "    @p bra four;\n"                                                                           \
    "    mad.lo.u64 i, fours, 3, i;\n"                                                             \
    "    setp.ge.u64 p, i, count;\n"                                                               \
    "    @p ret;\n"

/* Advances a pointer to the thread's element: 2^SHIFT bytes each. */
#define ADVANCE(POINTER, SHIFT)                                                                    \
    "    shl.b64 a, i, " SHIFT ";\n"                                                               \
    "    add.u64 " POINTER ", " POINTER ", a;\n"

#define EACH_OF_FOUR(DO)                                                                           \
    DO("f0", "h0")                                                                                 \
    DO("f1", "h1")                                                                                 \
    DO("f2", "h2")                                                                                 \
    DO("f3", "h3")

/* ---- Scales: one for each 2^10 elements, from the largest magnitude in them ---- */

#define SCALES ", .param .u64 p_largest, .param .u64 p_first, .param .u32 p_top"
#define NO_SCALES

/*
 * As mgw_fp8_exponent in src/transport/cast.c, for the block of the thread's first number; a thread
 * handles 2^SHIFT numbers. TURN is "neg" for dividing by the scale. p_top is the f32 exponent, as
 * bits, that the largest magnitude is scaled to.
 */
#define FIND_SCALE(SHIFT, TURN)                                                                    \
    "    {\n"                                                                                      \
    "        .reg .u64 at, first, largest;\n"                                                      \
    "        .reg .u32 power;\n"                                                                   \
    "        .reg .s32 exponent;\n"                                                                \
    "        ld.param.u64 first, [p_first];\n"                                                     \
    "        ld.param.u64 largest, [p_largest];\n"                                                 \
    "        ld.param.s32 exponent, [p_top];\n"                                                    \
    "        shl.b64 at, i, " SHIFT ";\n"                                                          \
    "        add.u64 at, at, first;\n"                                                             \
    "        shr.u64 at, at, 10;\n"                                                                \
    "        shl.b64 at, at, 2;\n"                                                                 \
    "        add.u64 at, at, largest;\n"                                                           \
    "        ld.global.u32 power, [at];\n"                                                         \
    "        add.u32 power, power, 0x1fffff;\n"                                                    \
    "        shr.u32 power, power, 23;\n"                                                          \
    "        sub.s32 exponent, exponent, power;\n"                                                 \
    "        max.s32 exponent, exponent, -126;\n"                                                  \
    "        min.s32 exponent, exponent, 126;\n"                                                   \
    "        " TURN ".s32 exponent, exponent;\n"                                                   \
    "        add.s32 exponent, exponent, 127;\n"                                                   \
    "        shl.b32 exponent, exponent, 23;\n"                                                    \
    "        mov.b32 scale, exponent;\n"                                                           \
    "    }\n"

#define TIMES_SCALE(SHIFT)   FIND_SCALE(SHIFT, "mov")
#define DIVIDED_SCALE(SHIFT) FIND_SCALE(SHIFT, "neg")
#define UNSCALED(SHIFT)      ""

/*
 * One warp per block. In a complete block whose numbers can be read in groups of four (fours is not
 * 0), a thread reads eight groups; otherwise one number at a time.
 */
#define MAGNITUDE(V)                                                                               \
    "    and.b32 " V ", " V ", 0x7fffffff;\n"                                                      \
    "    max.u32 most, most, " V ";\n"

#define FOUR_AT(OFFSET)                                                                            \
    "    ld.global.v4.u32 {v0, v1, v2, v3}, [from + " OFFSET "];\n" MAGNITUDE("v0")                \
        MAGNITUDE("v1") MAGNITUDE("v2") MAGNITUDE("v3")

#define FOLD(APART)                                                                                \
    "    shfl.sync.bfly.b32 v0, most, " APART ", 31, 0xffffffff;\n"                                \
    "    max.u32 most, most, v0;\n"

#define LARGEST                                                                                    \
    ".visible .entry largest(" PARAMETERS ")\n"                                                    \
    "{\n"                                                                                          \
    "    .reg .u32 block, width, thread, most, v0, v1, v2, v3;\n"                                  \
    "    .reg .u64 i, a, lane, at, end, count, fours, from, to;\n"                                 \
    "    .reg .pred p;\n"                                                                          \
    "    ld.param.u64 from, [p_from];\n"                                                           \
    "    ld.param.u64 to, [p_to];\n"                                                               \
    "    ld.param.u64 count, [p_count];\n"                                                         \
    "    ld.param.u64 fours, [p_fours];\n"                                                         \
    "    mov.u32 block, %ctaid.x;\n"                                                               \
    "    mov.u32 width, %ntid.x;\n"                                                                \
    "    mov.u32 thread, %tid.x;\n"                                                                \
    "    mov.u32 most, 0;\n"                                                                       \
    "    cvt.u64.u32 i, thread;\n"                                                                 \
    "    and.b64 lane, i, 31;\n"                                                                   \
    "    mad.wide.u32 i, block, width, i;\n"                                                       \
    "    shr.u64 i, i, 5;\n"                                                                       \
    "    shl.b64 at, i, 10;\n"                                                                     \
    "    setp.ge.u64 p, at, count;\n"                                                              \
    "    @p ret;\n" /* all of a warp do, or none */                                                \
    "    add.u64 end, at, 1024;\n"                                                                 \
    "    setp.gt.u64 p, end, count;\n"                                                             \
    "    @p bra part;\n"                                                                           \
    "    setp.eq.u64 p, fours, 0;\n"                                                               \
    "    @p bra ones;\n"                                                                           \
    "    shl.b64 a, at, 2;\n"                                                                      \
    "    add.u64 from, from, a;\n"                                                                 \
    "    shl.b64 a, lane, 4;\n"                                                                    \
    "    add.u64 from, from, a;\n" FOUR_AT("0") FOUR_AT("512") FOUR_AT("1024") FOUR_AT("1536")     \
        FOUR_AT("2048") FOUR_AT("2560") FOUR_AT("3072") FOUR_AT("3584") "    bra.uni fold;\n"      \
    "part:\n"                                                                                      \
    "    mov.u64 end, count;\n"                                                                    \
    "ones:\n"                                                                                      \
    "    add.u64 at, at, lane;\n"                                                                  \
    "next:\n"                                                                                      \
    "    setp.ge.u64 p, at, end;\n"                                                                \
    "    @p bra fold;\n"                                                                           \
    "    shl.b64 a, at, 2;\n"                                                                      \
    "    add.u64 a, from, a;\n"                                                                    \
    "    ld.global.u32 v0, [a];\n" MAGNITUDE("v0") "    add.u64 at, at, 32;\n"                     \
    "    bra next;\n"                                                                              \
    "fold:\n" FOLD("16") FOLD("8") FOLD("4") FOLD("2") FOLD("1")                                   \
    "    min.u32 most, most, 0x7f800000;\n"                                                        \
    "    setp.ne.u64 p, lane, 0;\n"                                                                \
    "    @p ret;\n"                                                                                \
    "    shl.b64 a, i, 2;\n"                                                                       \
    "    add.u64 to, to, a;\n"                                                                     \
    "    st.global.u32 [to], most;\n"                                                              \
    "    ret;\n"                                                                                   \
    "}\n"

/* ---- Between f32 and narrow ones of type B: 2^ONE bytes, four of them 2^FOUR ---- */

#define NARROW(T, MORE, ONE, FOUR, B, PREPARE, TO)                                                 \
    ".visible .entry narrow_" T "(" PARAMETERS MORE ")\n"                                          \
    "{\n"                                                                                          \
    "    .reg .f32 scale;\n" PLACE PREPARE("0") ADVANCE("from", "2") ADVANCE("to", ONE)            \
    "    ld.global.f32 f0, [from];\n" TO("f0", "h0")                                               \
    "    st.global." B " [to], h0;\n"                                                              \
    "    ret;\n"                                                                                   \
    "four:\n" PREPARE("2") ADVANCE("from", "4") ADVANCE("to", FOUR)                                \
    "    ld.global.v4.f32 {f0, f1, f2, f3}, [from];\n" EACH_OF_FOUR(TO)                            \
    "    st.global.v4." B " [to], {h0, h1, h2, h3};\n"                                             \
    "    ret;\n"                                                                                   \
    "}\n"

#define WIDEN(T, MORE, ONE, FOUR, B, PREPARE, FROM)                                                \
    ".visible .entry widen_" T "(" PARAMETERS MORE ")\n"                                           \
    "{\n"                                                                                          \
    "    .reg .f32 scale;\n" PLACE PREPARE("0") ADVANCE("from", ONE) ADVANCE("to", "2")            \
    "    ld.global." B " h0, [from];\n" FROM("f0", "h0")                                           \
    "    st.global.f32 [to], f0;\n"                                                                \
    "    ret;\n"                                                                                   \
    "four:\n" PREPARE("2") ADVANCE("from", FOUR) ADVANCE("to", "4")                                \
    "    ld.global.v4." B " {h0, h1, h2, h3}, [from];\n" EACH_OF_FOUR(FROM)                        \
    "    st.global.v4.f32 [to], {f0, f1, f2, f3};\n"                                               \
    "    ret;\n"                                                                                   \
    "}\n"

/* ---- Sums: `to` is what the rank itself has, `from` + r * stride what rank r has ---- */

#define EACH_RANK(LABEL, LOAD, ADD)                                                                \
    LABEL ":\n"                                                                                    \
          "    setp.eq.u32 p, r, rank;\n"                                                          \
          "    selp.b64 a, to, from, p;\n" LOAD ADD "    add.u64 from, from, stride;\n"            \
          "    add.u32 r, r, 1;\n"                                                                 \
          "    setp.lt.u32 p, r, size;\n"                                                          \
          "    @p bra " LABEL ";\n"

#define ADD(F, S) "    add.rn.f32 " S ", " S ", " F ";\n"

/* A sum times `scale`, or divided by it. */
#define SCALE(S)                                                                                   \
    "    @divides div.rn.f32 " S ", " S ", scale;\n"                                               \
    "    @!divides mul.rn.f32 " S ", " S ", scale;\n"

/* A sum starts with -0: adding any number to it gives that number. */
#define ADD_UP(T, ONE, FOUR, B, FROM, TO)                                                          \
    ".visible .entry add_up_" T "(" PARAMETERS ", .param .u64 p_stride,\n"                         \
    "    .param .u32 p_size, .param .u32 p_rank, .param .f32 p_scale, .param .u32 p_divides)\n"    \
    "{\n"                                                                                          \
    "    .reg .u64 stride;\n"                                                                      \
    "    .reg .u32 size, rank, r, d;\n"                                                            \
    "    .reg .f32 scale, s0, s1, s2, s3;\n"                                                       \
    "    .reg .pred divides;\n"                                                                    \
    "    ld.param.u64 stride, [p_stride];\n"                                                       \
    "    ld.param.u32 size, [p_size];\n"                                                           \
    "    ld.param.u32 rank, [p_rank];\n"                                                           \
    "    ld.param.f32 scale, [p_scale];\n"                                                         \
    "    ld.param.u32 d, [p_divides];\n"                                                           \
    "    setp.ne.u32 divides, d, 0;\n"                                                             \
    "    mov.u32 r, 0;\n"                                                                          \
    "    mov.f32 s0, 0f80000000;\n"                                                                \
    "    mov.f32 s1, s0;\n"                                                                        \
    "    mov.f32 s2, s0;\n"                                                                        \
    "    mov.f32 s3, s0;\n" PLACE ADVANCE("from", ONE) ADVANCE("to", ONE)                          \
    EACH_RANK("next_one", "    ld.global." B " h0, [a];\n", FROM("f0", "h0") ADD("f0", "s0"))      \
    SCALE("s0") TO("s0", "h0")                                                                     \
    "    st.global." B " [to], h0;\n"                                                              \
    "    ret;\n"                                                                                   \
    "four:\n" ADVANCE("from", FOUR) ADVANCE("to", FOUR)                                            \
    EACH_RANK("next_four", "    ld.global.v4." B " {h0, h1, h2, h3}, [a];\n",                      \
              EACH_OF_FOUR(FROM) ADD("f0", "s0") ADD("f1", "s1") ADD("f2", "s2") ADD("f3", "s3"))  \
    SCALE("s0") SCALE("s1") SCALE("s2") SCALE("s3")                                                \
    TO("s0", "h0") TO("s1", "h1") TO("s2", "h2") TO("s3", "h3")                                    \
    "    st.global.v4." B " [to], {h0, h1, h2, h3};\n"                                             \
    "    ret;\n"                                                                                   \
    "}\n"

#define HALVES(T, FROM, TO)                                                                        \
    NARROW(T, NO_SCALES, "1", "3", "b16", UNSCALED, TO)                                            \
    WIDEN(T, NO_SCALES, "1", "3", "b16", UNSCALED, FROM)                                           \
    ADD_UP(T, "1", "3", "b16", FROM, TO)

#define EIGHTS(T, FROM, TO)                                                                        \
    NARROW(T, SCALES, "0", "2", "u8", TIMES_SCALE, TO##_SCALED)                                    \
    WIDEN(T, SCALES, "0", "2", "u8", DIVIDED_SCALE, FROM##_SCALED)                                 \
    ADD_UP(T, "0", "2", "u8", FROM, TO)

const char cuda_kernels_ptx[] =
    ".version 6.3\n"
    ".target sm_70\n"
    ".address_size 64\n" HALVES("bf16", FROM_BF16, TO_BF16) HALVES("f16", FROM_F16, TO_F16)
        LARGEST EIGHTS("fp8", FROM_E4M3, TO_E4M3) EIGHTS("e5m2", FROM_E5M2, TO_E5M2);
