/* NCCL, loaded at run time. The declarations are its stable ABI since 2.14. */
#ifndef MGW_TRANSPORT_NCCL_LIBRARY_H
#define MGW_TRANSPORT_NCCL_LIBRARY_H

#include <stddef.h>

#include "device/cuda.h"

typedef struct ncclComm *nccl_comm;

typedef struct nccl_id {
    char bytes[128];
} nccl_id;

/* The beginning of ncclConfig_t; NCCL uses defaults for the fields beyond `size`. */
typedef struct nccl_config {
    size_t size;
    unsigned magic;
    unsigned version;
    int blocking;
} nccl_config;

enum {
    NCCL_SUCCESS = 0,
    NCCL_IN_PROGRESS = 7,
    NCCL_SUM = 0,
    NCCL_MAX = 2,
    NCCL_AVERAGE = 4,
    NCCL_U8 = 1,
    NCCL_F16 = 6,
    NCCL_F32 = 7,
    NCCL_F64 = 8,
    NCCL_BF16 = 9,
    NCCL_CONFIG_VERSION = 21400,
};
#define NCCL_CONFIG_MAGIC 0xcafebeefu

/* X(our name, NCCL's name, return type, parameters) */
#define NCCL_FUNCTIONS(X)                                                                          \
    X(error_text, ncclGetErrorString, const char *, (int code))                                    \
    X(last_error, ncclGetLastError, const char *, (nccl_comm comm))                                \
    X(get_id, ncclGetUniqueId, int, (nccl_id * out))                                               \
    X(init, ncclCommInitRankConfig, int,                                                           \
      (nccl_comm * out, int size, nccl_id id, int rank, nccl_config *config))                      \
    X(async_error, ncclCommGetAsyncError, int, (nccl_comm comm, int *out))                         \
    X(finalize, ncclCommFinalize, int, (nccl_comm comm))                                           \
    X(destroy, ncclCommDestroy, int, (nccl_comm comm))                                             \
    X(abort, ncclCommAbort, int, (nccl_comm comm))                                                 \
    X(group_start, ncclGroupStart, int, (void))                                                    \
    X(group_end, ncclGroupEnd, int, (void))                                                        \
    X(all_reduce, ncclAllReduce, int,                                                              \
      (const void *from, void *to, size_t count, int type, int op, nccl_comm comm,                 \
       cuda_stream stream))                                                                        \
    X(reduce_scatter, ncclReduceScatter, int,                                                      \
      (const void *from, void *to, size_t count, int type, int op, nccl_comm comm,                 \
       cuda_stream stream))                                                                        \
    X(all_gather, ncclAllGather, int,                                                              \
      (const void *from, void *to, size_t count, int type, nccl_comm comm, cuda_stream stream))    \
    X(reduce, ncclReduce, int,                                                                     \
      (const void *from, void *to, size_t count, int type, int op, int root, nccl_comm comm,       \
       cuda_stream stream))                                                                        \
    X(broadcast, ncclBroadcast, int,                                                               \
      (const void *from, void *to, size_t count, int type, int root, nccl_comm comm,               \
       cuda_stream stream))                                                                        \
    X(send, ncclSend, int,                                                                         \
      (const void *from, size_t count, int type, int peer, nccl_comm comm, cuda_stream stream))    \
    X(receive, ncclRecv, int,                                                                      \
      (void *to, size_t count, int type, int peer, nccl_comm comm, cuda_stream stream))

typedef struct nccl_library {
#define X(name, symbol, returned, parameters) returned(*name) parameters;
    NCCL_FUNCTIONS(X)
#undef X
} nccl_library;

/* Loaded once per process. Threads: any. */
MGW_CHECKED mgw_status mgw_nccl_load(const nccl_library **out, mgw_error *error);

#endif
