/* Compares our declarations of CUDA's driver and of NCCL with their own headers, if a machine has
 * them. Compiled, never run. */
#include <cuda.h>
#include <nccl.h>

#include "transport/nccl_library.h"

#define SAME(ours, theirs) _Static_assert((int)(ours) == (int)(theirs), #theirs)

SAME(CUDA_INVALID_VALUE, CUDA_ERROR_INVALID_VALUE);
SAME(CUDA_OUT_OF_MEMORY, CUDA_ERROR_OUT_OF_MEMORY);
SAME(CUDA_NOT_READY, CUDA_ERROR_NOT_READY);
SAME(CUDA_INVALID_CONTEXT, CUDA_ERROR_INVALID_CONTEXT);
SAME(CUDA_STREAM_NON_BLOCKING, CU_STREAM_NON_BLOCKING);
SAME(CUDA_EVENT_TIMED, CU_EVENT_DEFAULT);
SAME(CUDA_EVENT_UNTIMED, CU_EVENT_DISABLE_TIMING);
SAME(CUDA_POINTER_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_MEMORY_TYPE);
SAME(CUDA_MEMORY_OF_HOST, CU_MEMORYTYPE_HOST);
SAME(CUDA_MEMORY_OF_DEVICE, CU_MEMORYTYPE_DEVICE);
SAME(sizeof(cuda_copy_of_rows), sizeof(CUDA_MEMCPY2D));
SAME(offsetof(cuda_copy_of_rows, from.host), offsetof(CUDA_MEMCPY2D, srcHost));
SAME(offsetof(cuda_copy_of_rows, from.pitch), offsetof(CUDA_MEMCPY2D, srcPitch));
SAME(offsetof(cuda_copy_of_rows, to.memory), offsetof(CUDA_MEMCPY2D, dstMemoryType));
SAME(offsetof(cuda_copy_of_rows, to.device), offsetof(CUDA_MEMCPY2D, dstDevice));
SAME(offsetof(cuda_copy_of_rows, to.pitch), offsetof(CUDA_MEMCPY2D, dstPitch));
SAME(offsetof(cuda_copy_of_rows, bytes), offsetof(CUDA_MEMCPY2D, WidthInBytes));
SAME(offsetof(cuda_copy_of_rows, rows), offsetof(CUDA_MEMCPY2D, Height));
SAME(sizeof(cuda_pointer), sizeof(CUdeviceptr));

SAME(NCCL_SUCCESS, ncclSuccess);
SAME(NCCL_IN_PROGRESS, ncclInProgress);
SAME(NCCL_SUM, ncclSum);
SAME(NCCL_MAX, ncclMax);
SAME(NCCL_AVERAGE, ncclAvg);
SAME(NCCL_U8, ncclUint8);
SAME(NCCL_F16, ncclFloat16);
SAME(NCCL_F32, ncclFloat32);
SAME(NCCL_F64, ncclFloat64);
SAME(NCCL_BF16, ncclBfloat16);
SAME(sizeof(nccl_id), sizeof(ncclUniqueId));
SAME(offsetof(nccl_config, magic), offsetof(ncclConfig_t, magic));
SAME(offsetof(nccl_config, version), offsetof(ncclConfig_t, version));
SAME(offsetof(nccl_config, blocking), offsetof(ncclConfig_t, blocking));

/* Every function is there, under the name that we look it up by. */
void (*const mgw_abi_functions[])(void) = {
#define X(name, symbol, returned, parameters) (void (*)(void)) symbol,
    NCCL_FUNCTIONS(X)
#undef X
};
