/* All-reduce of a GPU's memory through the host's, beside what it is made of: copies of as many
 * bytes from and to pinned memory, and the all-reduce in the host's memory. All workers do the same
 * at the same time, and share what they share.
 * usage: mgwfbp launch -n N bench_staged TRANSPORT    self (one worker: copies alone), shm or mpi
 */
#include <dlfcn.h>
#include <sched.h>
#include <string.h>

#include "bench.h"
#include "device/cuda.h"

enum { ROUNDS = 9, SIZES = 2 };

static const size_t sizes[SIZES] = {(size_t)64 << 20, (size_t)256 << 20};

typedef struct bench_copies {
    mgw_device *device; /* gives this thread its GPU */
    cuda cuda;
    cuda_stream stream[2];
    char *host[2];
    cuda_pointer gpu[2];
} bench_copies;

static mgw_error error;

static void check(int code, const char *what)
{
    if (!code)
        return;
    fprintf(stderr, "bench: %s: error %d of the driver\n", what, code);
    exit(1);
}

static void find_functions(cuda *out)
{
    static const char *const names[] = {
#define X(name, symbol, parameters) #symbol,
        CUDA_FUNCTIONS(X)
#undef X
    };
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    for (size_t i = 0; library && i < sizeof names / sizeof *names; i++) {
        void *symbol = dlsym(library, names[i]);
        memcpy((char *)out + i * sizeof symbol, &symbol, sizeof symbol);
    }
}

static void open_copies(bench_copies *c)
{
    size_t most = sizes[SIZES - 1];
    bench_must(mgw_device_open(&c->device, &error), &error);
    find_functions(&c->cuda);
    for (int i = 0; i < 2; i++) {
        check(c->cuda.stream_create(&c->stream[i], CUDA_STREAM_NON_BLOCKING), "stream");
        check(c->cuda.allocate(&c->gpu[i], most), "memory");
        c->host[i] = aligned_alloc(4096, most);
        if (!c->host[i])
            exit(1);
        memset(c->host[i], 0, most);
        check(c->cuda.host_register(c->host[i], most, 0), "pinning");
    }
}

static void close_copies(bench_copies *c)
{
    for (int i = 0; i < 2; i++) {
        c->cuda.host_unregister(c->host[i]);
        free(c->host[i]);
        c->cuda.release(c->gpu[i]);
        c->cuda.stream_destroy(c->stream[i]);
    }
    mgw_device_close(c->device);
}

/* From the GPU, to it, or both at once. */
static double time_copies(const bench_copies *c, mgw_transport *t, size_t bytes, bool out, bool in)
{
    bench_times times = {.count = ROUNDS};
    for (int i = 0; i < ROUNDS; i++) {
        bench_must(mgw_transport_barrier(t, &error), &error);
        double begin_s = bench_now_s();
        if (out)
            check(c->cuda.copy_out(c->host[0], c->gpu[0], bytes, c->stream[0]), "copy");
        if (in)
            check(c->cuda.copy_in(c->gpu[1], c->host[1], bytes, c->stream[1]), "copy");
        for (int k = 0; k < 2; k++)
            while (c->cuda.stream_query(c->stream[k]) == CUDA_NOT_READY)
                sched_yield();
        times.values[i] = bench_now_s() - begin_s;
    }
    return bench_median(&times);
}

static double time_all_reduce(mgw_transport *t, void *data, size_t bytes)
{
    bench_times times = {.count = ROUNDS};
    for (int i = -1; i < ROUNDS; i++) { /* the first warms up */
        bench_must(mgw_transport_barrier(t, &error), &error);
        double begin_s = bench_now_s();
        bench_must(mgw_transport_all_reduce(t, data, bytes / 4, MGW_F32, MGW_SUM, &error), &error);
        times.values[i < 0 ? 0 : i] = bench_now_s() - begin_s;
    }
    return bench_median(&times);
}

static mgw_transport *open_transport(const char *name, bool on_device, void **data)
{
    mgw_transport *t = NULL;
    mgw_transport_options options = {.name = name, .on_device = on_device};
    bench_must(mgw_transport_open(&options, &t, &error), &error);
    bench_must(mgw_transport_allocate(t, sizes[SIZES - 1], data, &error), &error);
    return t;
}

int main(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "shm";
    bench_copies copies = {0};
    double limits_s[SIZES][3];
    double staged_s[SIZES];
    void *data = NULL;
    open_copies(&copies);
    mgw_transport *t = open_transport(name, true, &data);
    for (int i = 0; i < SIZES; i++) {
        limits_s[i][0] = time_copies(&copies, t, sizes[i], true, false);
        limits_s[i][1] = time_copies(&copies, t, sizes[i], false, true);
        limits_s[i][2] = time_copies(&copies, t, sizes[i], true, true);
        staged_s[i] = time_all_reduce(t, data, sizes[i]);
    }
    mgw_transport_close(t);
    close_copies(&copies);
    t = open_transport(name, false, &data);
    for (int i = 0; i < SIZES; i++) {
        double host_s = time_all_reduce(t, data, sizes[i]);
        double giga = (double)sizes[i] * 1e-9;
        if (mgw_transport_rank(t) != 0)
            continue;
        printf("%zu MiB, %u workers, %s, GB/s: from the GPU %.1f, to it %.1f, both at once %.1f "
               "each; all-reduce through the host %.1f",
               sizes[i] >> 20, mgw_transport_size(t), name, giga / limits_s[i][0],
               giga / limits_s[i][1], giga / limits_s[i][2], giga / staged_s[i]);
        if (mgw_transport_size(t) > 1) /* else there is nothing to do */
            printf(", in its memory alone %.1f", giga / host_s);
        printf("\n");
    }
    mgw_transport_close(t);
    return 0;
}
