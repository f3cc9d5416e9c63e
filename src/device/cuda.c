/* Loads the CUDA driver, and selects a GPU for this worker. */
#include "device/cuda.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"

mgw_status mgw_device_library(const char *file, const char *advice, const char *const *names,
                              size_t count, void *table, mgw_error *error)
{
    void *library = dlopen(file, RTLD_NOW | RTLD_LOCAL); /* for the lifetime of the process */
    if (!library)
        return mgw_fail(error, MGW_ERR_UNSUPPORTED, "%s not found: %s", file, advice);
    for (size_t i = 0; i < count; i++) {
        void *symbol = dlsym(library, names[i]);
        if (!symbol)
            return mgw_fail(error, MGW_ERR_UNSUPPORTED, "%s is too old: it has no %s", file,
                            names[i]);
        memcpy((char *)table + i * sizeof symbol, &symbol, sizeof symbol);
    }
    return MGW_OK;
}

/* Written once, before any pointer to it is returned. */
static cuda driver;
static mgw_error load_error;
static pthread_once_t loaded = PTHREAD_ONCE_INIT;

static mgw_status fail_with(mgw_status status, int code, const char *what, mgw_error *error)
{
    const char *text = NULL;
    if (driver.error_text(code, &text) || !text)
        text = "unknown error";
    return mgw_fail(error, status, "cuda: %s: %s (%d)", what, text, code);
}

static mgw_status fail_without_gpu(int code, mgw_error *error)
{
    return fail_with(MGW_ERR_UNSUPPORTED, code, "no GPU can be used", error);
}

static void load(void)
{
    static const char *const names[] = {
#define X(name, symbol, parameters) #symbol,
        CUDA_FUNCTIONS(X)
#undef X
    };
    if (mgw_device_library("libcuda.so.1",
                           "it comes with the driver of an NVIDIA GPU, which gradients on a device "
                           "and the transport nccl need",
                           names, sizeof names / sizeof *names, &driver, &load_error))
        return;
    int code = driver.init(0);
    if (code)
        load_error.status = fail_without_gpu(code, &load_error);
}

mgw_status mgw_cuda_fail(int code, const char *what, mgw_error *error)
{
    return fail_with(MGW_ERR_IO, code, what, error);
}

/* The local rank, from the launcher's variables. */
static unsigned long local_rank(void)
{
    static const char *const variables[] = {"LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK",
                                            "MPI_LOCALRANKID", "SLURM_LOCALID"};
    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++) {
        const char *value = getenv(variables[i]);
        if (value)
            return strtoul(value, NULL, 10);
    }
    return 0;
}

/* The primary context, which CUDA programs and libraries share; it lives as long as the process. */
static int choose_device(cuda_context *context)
{
    int count = 0;
    int device = 0;
    int code = driver.device_count(&count);
    if (!code)
        code = driver.device_get(&device, count ? (int)(local_rank() % (unsigned)count) : 0);
    if (!code)
        code = driver.context_retain(context, device);
    return code ? code : driver.context_set(*context);
}

mgw_status mgw_cuda_enter(const cuda **out, cuda_context *context, mgw_error *error)
{
    pthread_once(&loaded, load);
    if (load_error.status)
        return mgw_fail(error, load_error.status, "%s", load_error.message);
    *context = NULL;
    int code = driver.context_get(context);
    if (!code && !*context)
        code = choose_device(context);
    if (code)
        return fail_without_gpu(code, error);
    *out = &driver;
    return MGW_OK;
}
