/* Loads NCCL. */
#include "transport/nccl_library.h"

#include <pthread.h>

#include "base/status.h"

static nccl_library library;
static mgw_error load_error;
static pthread_once_t loaded = PTHREAD_ONCE_INIT;

static void load(void)
{
    static const char *const names[] = {
#define X(name, symbol, returned, parameters) #symbol,
        NCCL_FUNCTIONS(X)
#undef X
    };
    load_error.status =
        mgw_device_library("libnccl.so.2",
                           "the transport nccl needs it (NVIDIA's package libnccl2; PyTorch has "
                           "one in nvidia/nccl/lib: add its folder to LD_LIBRARY_PATH); shm and "
                           "mpi do without",
                           names, sizeof names / sizeof *names, &library, &load_error);
}

mgw_status mgw_nccl_load(const nccl_library **out, mgw_error *error)
{
    pthread_once(&loaded, load);
    if (load_error.status)
        return mgw_fail(error, load_error.status, "%s", load_error.message);
    *out = &library;
    return MGW_OK;
}
