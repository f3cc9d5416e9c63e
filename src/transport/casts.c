/* Measures the cost of casting f32 gradients to the wire type and back. */
#include <stdlib.h>

#include "base/clock.h"
#include "base/median.h"
#include "base/status.h"
#include "device/kernels.h"
#include "transport/on_device.h"
#include "transport/reduce.h"

enum { SMALL = 1 << 12, LARGE = 1 << 21, REPEATS = 9 }; /* elements */

typedef struct room {
    mgw_transport *transport;
    float *wide;
    void *narrow;
    float *largest;
    /* ---- On a GPU ---- */
    cuda_kernels kernels;
    cuda_stream stream;
    cuda_event begun;
    cuda_event ended;
} room;

/* ---- In the host's memory ---- */

/* Both directions, as in an engine. */
static void cast_on_host(const room *r, mgw_dtype wire, size_t count)
{
    mgw_fp8_blocks blocks = {wire, r->largest, 0, 0, count};
    if (mgw_dtype_bytes(wire) == 1) {
        mgw_fp8_largest(r->wide, count, r->largest);
        mgw_fp8_narrow(r->wide, r->narrow, &blocks);
        mgw_fp8_widen(r->narrow, r->wide, &blocks);
    } else {
        mgw_narrow(r->wide, r->narrow, count, wire);
        mgw_widen(r->narrow, r->wide, count, wire);
    }
}

static mgw_status make_room_on_host(room *r, mgw_error *error)
{
    r->wide = malloc(LARGE * sizeof(float));
    r->narrow = malloc(LARGE * sizeof(uint16_t));
    r->largest = malloc((LARGE / MGW_FP8_BLOCK + 1) * sizeof(float));
    if (!r->wide || !r->narrow || !r->largest)
        return mgw_fail_memory(error, "calibration");
    for (size_t i = 0; i < LARGE; i++)
        r->wide[i] = (float)(i % 1000) / 500 - 1;
    return MGW_OK;
}

/* ---- On a GPU ---- */

static int cast_on_device(const room *r, mgw_dtype wire, size_t count)
{
    const cuda_scales scales = {.largest = r->largest};
    int code = 0;
    if (mgw_dtype_bytes(wire) == 1)
        code = cuda_largest(&r->kernels, r->wide, count, r->largest, r->stream);
    if (!code)
        code = cuda_narrow(&r->kernels, r->wide, r->narrow, count, wire, &scales, r->stream);
    return code ? code
                : cuda_widen(&r->kernels, r->narrow, r->wide, count, wire, &scales, r->stream);
}

/* Times several casts in a row: the host submits the next while the GPU works. */
static int time_on_device(const room *r, mgw_dtype wire, size_t count, double *seconds)
{
    enum { TURNS = 8, MOST_S = 60 };
    const cuda *driver = r->kernels.cuda;
    float ms = 0;
    int code = driver->event_record(r->begun, r->stream);
    for (int turn = 0; !code && turn < TURNS; turn++)
        code = cast_on_device(r, wire, count);
    if (!code)
        code = driver->event_record(r->ended, r->stream);
    double begun_s = mgw_awake_s();
    if (!code)
        code = driver->event_query(r->ended);
    while (code == CUDA_NOT_READY && mgw_awake_s() - begun_s < MOST_S) {
        on_device_pause(begun_s);
        code = driver->event_query(r->ended);
    }
    if (!code)
        code = driver->event_elapsed(&ms, r->begun, r->ended);
    *seconds = (double)ms * 1e-3 / TURNS;
    return code;
}

/* All zeros: the values do not affect a GPU's speed. The memory is freed with the transport. */
static mgw_status make_room_on_device(room *r, mgw_error *error)
{
    const cuda *driver = NULL;
    cuda_context context = NULL;
    void *wide = NULL;
    void *largest = NULL;
    mgw_status status = mgw_cuda_enter(&driver, &context, error);
    if (!status)
        status = mgw_transport_allocate(r->transport, LARGE * sizeof(float), &wide, error);
    if (!status)
        status = mgw_transport_allocate(r->transport, LARGE * sizeof(uint16_t), &r->narrow, error);
    if (!status)
        status = mgw_transport_allocate(r->transport, (LARGE / MGW_FP8_BLOCK + 1) * sizeof(float),
                                        &largest, error);
    if (status)
        return status;
    r->wide = wide;
    r->largest = largest;
    r->stream = mgw_transport_stream(r->transport);
    int code = cuda_kernels_open(driver, &r->kernels);
    if (!code)
        code = driver->event_create(&r->begun, CUDA_EVENT_TIMED);
    if (!code)
        code = driver->event_create(&r->ended, CUDA_EVENT_TIMED);
    return code ? mgw_cuda_fail(code, "cannot load kernels for narrow numbers", error) : MGW_OK;
}

/* ---- Either ---- */

static mgw_status time_once(const room *r, mgw_dtype wire, size_t count, double *seconds,
                            mgw_error *error)
{
    if (r->stream) {
        int code = time_on_device(r, wire, count, seconds);
        return code ? mgw_cuda_fail(code, "cannot time casts", error) : MGW_OK;
    }
    double begin_s = mgw_now_s();
    cast_on_host(r, wire, count);
    *seconds = mgw_now_s() - begin_s;
    return MGW_OK;
}

static mgw_status time_cast(const room *r, mgw_dtype wire, size_t count, double *out,
                            mgw_error *error)
{
    double times[REPEATS];
    mgw_status status = time_once(r, wire, count, &times[0], error); /* warm-up */
    for (size_t k = 0; !status && k < REPEATS; k++)
        status = time_once(r, wire, count, &times[k], error);
    *out = status ? 0 : mgw_median(times, REPEATS);
    return status;
}

/* Fits a line through a small and a large cast, of the slowest worker. */
static mgw_status measure(const room *r, mgw_dtype wire, mgw_cast *out, mgw_error *error)
{
    double took_s[2] = {0, 0};
    mgw_status status = time_cast(r, wire, SMALL, &took_s[0], error);
    if (!status)
        status = time_cast(r, wire, LARGE, &took_s[1], error);
    if (!status)
        status = mgw_transport_all_reduce(r->transport, took_s, 2, MGW_F64, MGW_MAX, error);
    double slope = (took_s[1] - took_s[0]) / (double)((LARGE - SMALL) * sizeof(float));
    out->c_s_per_byte = slope > 0 ? slope : 0;
    double start_s = took_s[0] - out->c_s_per_byte * SMALL * sizeof(float);
    out->a_s = start_s > 0 ? start_s : 0;
    return status;
}

static void clear_room(room *r)
{
    const cuda *driver = r->kernels.cuda;
    if (r->begun)
        driver->event_destroy(r->begun);
    if (r->ended)
        driver->event_destroy(r->ended);
    cuda_kernels_close(&r->kernels);
    if (mgw_transport_on_device(r->transport))
        return;
    free(r->wide);
    free(r->narrow);
    free(r->largest);
}

mgw_status mgw_measure_casts(mgw_transport *transport, mgw_cluster *cluster, mgw_error *error)
{
    room r = {.transport = transport};
    mgw_status status = mgw_transport_on_device(transport) ? make_room_on_device(&r, error)
                                                           : make_room_on_host(&r, error);
    for (int wire = 0; !status && wire < MGW_DTYPE_COUNT; wire++) {
        mgw_cast cast;
        if (wire == MGW_F32 || !mgw_wire_is_known((mgw_dtype)wire))
            continue;
        status = measure(&r, (mgw_dtype)wire, &cast, error);
        if (!status)
            status = mgw_cluster_set_cast(cluster, (mgw_dtype)wire, &cast, error);
    }
    clear_room(&r);
    return status;
}
