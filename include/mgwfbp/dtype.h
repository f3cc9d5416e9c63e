/* Data types of gradients, parameters and messages. */
#ifndef MGWFBP_DTYPE_H
#define MGWFBP_DTYPE_H

#include <stddef.h>

#include <mgwfbp/status.h>

#pragma GCC visibility push(default)
MGW_BEGIN_DECLS

/* X(constant, name in files, bytes per element). The 8-bit types (e4m3, which has no infinity, and
 * e5m2) are for messages only; tensors cannot have them. */
#define MGW_DTYPE_LIST(X)                                                                          \
    X(MGW_F32, "f32", 4)                                                                           \
    X(MGW_F16, "f16", 2)                                                                           \
    X(MGW_BF16, "bf16", 2)                                                                         \
    X(MGW_F64, "f64", 8)                                                                           \
    X(MGW_FP8, "fp8", 1)                                                                           \
    X(MGW_FP8_E5M2, "fp8-e5m2", 1)

typedef enum mgw_dtype {
#define X(constant, name, bytes) constant,
    MGW_DTYPE_LIST(X)
#undef X
} mgw_dtype;

#define MGW_DTYPE_COUNT (MGW_FP8_E5M2 + 1)

/* Name in files, and bytes per element. Threads: any. */
const char *mgw_dtype_name(mgw_dtype dtype);
size_t mgw_dtype_bytes(mgw_dtype dtype);

MGW_END_DECLS
#pragma GCC visibility pop

#endif
