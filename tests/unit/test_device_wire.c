/* A worker whose f32 gradients are on a GPU and travel as 16 or 8 bits, started by mgwfbp launch.
 * usage: test_device_wire exact   every sum that is rounded once, and steps: bit for bit the host's
 *        test_device_wire long    those of messages long enough for several lanes
 *        test_device_wire speed   what steps of 1, 16 and 64 MiB take, as f32 and narrow
 * Ends with 77 where there is no GPU, or no NCCL that was asked for. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <mgwfbp/mgwfbp.h>

#include "transport/reduce.h"

enum { WORKERS = 16 }; /* at most */

static mgw_error error;
static mgw_device *device;
static unsigned rank;
static unsigned size;

static void demand(mgw_status status, const char *what)
{
    if (!status)
        return;
    fprintf(stderr, "%s: %s\n", what, error.message);
    exit(status == MGW_ERR_UNSUPPORTED ? 77 : 1);
}

static void must(bool so, const char *what)
{
    if (so)
        return;
    fprintf(stderr, "rank %u: %s\n", rank, what);
    exit(1);
}

static void *room(size_t bytes)
{
    void *memory = malloc(bytes ? bytes : 1);
    must(memory, "no memory");
    return memory;
}

static double now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* ---- Numbers of all kinds: most of the size of gradients; some tiny, huge, infinite or NaN ----
 */

static uint32_t mix(uint64_t x)
{
    x = (x ^ x >> 31) * 0x9e3779b97f4a7c15;
    x = (x ^ x >> 29) * 0xbf58476d1ce4e5b9;
    return (uint32_t)(x >> 32);
}

static float number_of(unsigned from, size_t index, unsigned salt)
{
    uint32_t bits = mix(((uint64_t)salt << 48) + ((uint64_t)from << 40) + index);
    if (bits % 61) /* an exponent from 2^-24 to 2^7 */
        bits = (bits & 0x807fffff) | (103 + bits / 61 % 32) << 23;
    float number;
    memcpy(&number, &bits, sizeof number);
    return number;
}

/* They come again after a while: to make more would take longer than what is tested. */
enum { PERIOD = 300007 };

static void repeat(void *data, size_t count, size_t element)
{
    for (size_t i = PERIOD; i < count; i += PERIOD)
        memcpy((char *)data + i * element, data,
               (count - i < PERIOD ? count - i : PERIOD) * element);
}

static void fill(float *out, size_t count, unsigned from, unsigned salt)
{
    for (size_t i = 0; i < count && i < PERIOD; i++)
        out[i] = number_of(from, i, salt);
    repeat(out, count, sizeof *out);
}

/* What all workers' numbers become, narrow: as the host does it. */
static void expect(void *out, size_t all, unsigned salt, mgw_dtype dtype, mgw_op op)
{
    size_t count = all < PERIOD ? all : PERIOD;
    float *wide = room(count * sizeof *wide);
    void *narrow[WORKERS];
    for (unsigned r = 0; r < size; r++) {
        narrow[r] = room(count * mgw_dtype_bytes(dtype));
        fill(wide, count, r, salt);
        mgw_narrow(wide, narrow[r], count, dtype);
    }
    mgw_reduce((const void *const *)narrow, size, &out, 1, count, dtype, op);
    for (unsigned r = 0; r < size; r++)
        free(narrow[r]);
    free(wide);
    repeat(out, all, mgw_dtype_bytes(dtype));
}

static unsigned bits_at(const void *data, size_t i, mgw_dtype dtype)
{
    return mgw_dtype_bytes(dtype) == 1 ? ((const uint8_t *)data)[i] : ((const uint16_t *)data)[i];
}

static bool is_nan(unsigned bits, mgw_dtype dtype)
{
    static const unsigned infinite[] = {
        [MGW_F16] = 0x7c00, [MGW_BF16] = 0x7f80, [MGW_FP8] = 0x7e, [MGW_FP8_E5M2] = 0x7c};
    return (bits & (mgw_dtype_bytes(dtype) == 1 ? 0x7f : 0x7fff)) > infinite[dtype];
}

/* Any NaN is as good as another. */
static void compare(const void *found, const void *expected, size_t first, size_t count,
                    mgw_dtype dtype, const char *what)
{
    for (size_t i = first; i < first + count; i++) {
        unsigned is = bits_at(found, i, dtype);
        unsigned must_be = bits_at(expected, i, dtype);
        if (is == must_be || (is_nan(is, dtype) && is_nan(must_be, dtype)))
            continue;
        fprintf(stderr, "rank %u: %s, %s: element %zu is %04x, not %04x\n", rank, what,
                mgw_dtype_name(dtype), i, is, must_be);
        exit(1);
    }
}

/* ---- Collectives ---- */

typedef struct narrow_test {
    mgw_transport *transport;
    char *data; /* on the GPU */
    void *found;
    void *expected;
    float *wide;
} narrow_test;

static void sum(narrow_test *t, mgw_call call)
{
    mgw_request request;
    static unsigned salt;
    size_t bytes = call.count * mgw_dtype_bytes(call.dtype);
    salt++;
    fill(t->wide, call.count, rank, salt);
    mgw_narrow(t->wide, t->found, call.count, call.dtype);
    demand(mgw_device_write(device, call.data, t->found, bytes, &error), "write");
    demand(mgw_device_finish(device, &error), "finish");
    call.rounds_once = true;
    demand(mgw_transport_post(t->transport, &call, &request, &error), "post");
    demand(mgw_request_wait(t->transport, &request, &error), "wait");
    demand(mgw_device_read(device, t->found, call.data, bytes, &error), "read");
    expect(t->expected, call.count, salt, call.dtype, call.op);
}

static void try_whole(narrow_test *t, size_t shift, size_t count, mgw_dtype dtype, mgw_op op)
{
    mgw_call call = {.kind = MGW_ALL_REDUCE,
                     .data =
                         t->data + shift * mgw_dtype_bytes(dtype), /* not where fours are moved */
                     .count = count,
                     .dtype = dtype,
                     .op = op};
    sum(t, call);
    compare(t->found, t->expected, 0, count, dtype, "all-reduce");
    call.kind = MGW_PUSH;
    call.root = size - 1;
    sum(t, call);
    if (rank == size - 1)
        compare(t->found, t->expected, 0, count, dtype, "push");
}

static void try_segments(narrow_test *t, const size_t *segments, size_t segment_count,
                         mgw_dtype dtype, mgw_op op)
{
    mgw_call call = {.kind = MGW_REDUCE_SCATTER,
                     .data = t->data,
                     .dtype = dtype,
                     .op = op,
                     .segments = segments,
                     .segment_count = segment_count};
    for (size_t s = 0; s < segment_count; s++)
        call.count += segments[s];
    sum(t, call);
    for (size_t s = 0, at = 0; s < segment_count; at += segments[s++]) {
        size_t first = 0;
        size_t length = 0;
        mgw_transport_block(segments[s], size, rank, &first, &length);
        compare(t->found, t->expected, at + first, length, dtype, "reduce-scatter");
    }
}

enum { LONGEST = 17 << 20 }; /* more than there is room for at a time */

static void open_transport(narrow_test *t)
{
    mgw_transport_options options = {.on_device = true};
    void *data = NULL;
    *t = (narrow_test){.found = room((size_t)LONGEST * 2),
                       .expected = room((size_t)LONGEST * 2),
                       .wide = room((size_t)LONGEST * 4)};
    demand(mgw_transport_open(&options, &t->transport, &error), "open");
    demand(mgw_transport_allocate(t->transport, (size_t)LONGEST * 2 + 64, &data, &error),
           "allocate");
    t->data = data;
    rank = mgw_transport_rank(t->transport);
    size = mgw_transport_size(t->transport);
}

static void close_transport(narrow_test *t)
{
    demand(mgw_transport_barrier(t->transport, &error), "barrier");
    mgw_transport_close(t->transport);
    free(t->found);
    free(t->expected);
    free(t->wide);
}

static void try_transport(void)
{
    static const size_t counts[] = {1, 31, 64, 768, 1000, 65537, 200003, 300032};
    static const size_t several[] = {1, 0, 31, 33, 768, 0, 4001, 96 * 64, 3, 70007, 100000, 5};
    static size_t many[1500]; /* more than NCCL takes at a time */
    narrow_test t;
    open_transport(&t);
    for (size_t i = 0; i < sizeof many / sizeof *many; i++)
        many[i] = i % 97;
    static const mgw_dtype dtypes[] = {MGW_BF16, MGW_F16, MGW_FP8, MGW_FP8_E5M2};
    for (size_t d = 0; d < 4; d++)
        for (int op = MGW_AVERAGE; op <= MGW_SUM; op++) {
            for (size_t c = 0; c < sizeof counts / sizeof *counts; c++)
                try_whole(&t, c % 3, counts[c], dtypes[d], (mgw_op)op);
            try_segments(&t, several, sizeof several / sizeof *several, dtypes[d], (mgw_op)op);
        }
    try_segments(&t, many, sizeof many / sizeof *many, MGW_BF16, MGW_AVERAGE);
    try_segments(&t, many, sizeof many / sizeof *many, MGW_FP8, MGW_AVERAGE);
    try_whole(&t, 0, LONGEST, MGW_BF16, MGW_AVERAGE);
    close_transport(&t);
    if (rank == 0)
        printf("collectives: exact\n");
}

/* Lanes move 512 KiB or more. */
static void try_long(void)
{
    enum { COUNT = (3 << 19) + 7 }; /* parts that are no multiples of anything */
    static const size_t several[] = {1, 0, 500000, 31, 33, 300007, 0, 4001, 614400, 3, 200000, 5};
    static size_t many[400]; /* more than NCCL takes at a time */
    narrow_test t;
    open_transport(&t);
    for (size_t i = 0; i < sizeof many / sizeof *many; i++)
        many[i] = 10 * i;
    static const mgw_dtype dtypes[] = {MGW_BF16, MGW_FP8};
    for (size_t d = 0; d < 2; d++) {
        try_whole(&t, 1, COUNT, dtypes[d], MGW_AVERAGE);
        try_segments(&t, several, sizeof several / sizeof *several, dtypes[d], MGW_SUM);
    }
    try_segments(&t, many, sizeof many / sizeof *many, MGW_BF16, MGW_AVERAGE);
    if (rank == 0)
        printf("long messages over %u lanes: exact\n", mgw_transport_lanes(t.transport));
    close_transport(&t);
}

/* ---- Steps ---- */

enum { TENSORS = 23 };

static size_t count_of(unsigned t)
{
    return t % 13 == 12 ? 0 : (size_t)(t % 7 + 1) * (t % 5 == 4 ? 4000 : 300) + t;
}

/* By tensor, what it travels as; of those that travel as they are, sums are not looked at. */
static void run_step(mgw_engine *engine, unsigned salt, const mgw_dtype wires[TENSORS], mgw_op op)
{
    enum { MOST = 60000 };
    static float wide[MOST];
    static uint16_t narrow[MOST];
    static uint16_t expected[MOST];
    demand(mgw_engine_begin(engine, &error), "begin");
    for (unsigned t = 0; t < TENSORS; t++) {
        fill(wide, count_of(t), rank, salt + t);
        demand(mgw_device_write(device, mgw_engine_gradient(engine, t), wide,
                                count_of(t) * sizeof *wide, &error),
               "write");
        mgw_engine_ready(engine, t);
    }
    demand(mgw_engine_wait(engine, &error), "wait");
    for (unsigned t = 0; t < TENSORS; t++) {
        size_t count = count_of(t);
        mgw_dtype wire = wires[t];
        if (wire == MGW_F32)
            continue;
        demand(mgw_device_read(device, wide, mgw_engine_gradient(engine, t), count * sizeof *wide,
                               &error),
               "read");
        mgw_narrow(wide, narrow, count, wire);
        expect(expected, count, salt + t, wire, op);
        compare(narrow, expected, 0, count, wire, "step");
        mgw_widen(narrow, wide + MOST / 2, count < MOST / 2 ? count : MOST / 2, wire);
        for (size_t i = 0; i < count && i < MOST / 2;
             i++) /* no bit is lost by narrowing it again */
            must(wide[i] == wide[MOST / 2 + i] || wide[i] != wide[i], "an average is not narrow");
    }
}

static mgw_engine *open_engine(const mgw_engine_options *options)
{
    mgw_engine *engine = NULL;
    demand(mgw_engine_open(options, &engine, &error), "open");
    for (unsigned t = 0; t < TENSORS; t++) {
        char name[16];
        unsigned id = 0;
        snprintf(name, sizeof name, "t%u", t);
        demand(mgw_engine_add(engine, name, count_of(t), MGW_F32, &id, &error), "add");
    }
    demand(mgw_engine_start(engine, &error), "start");
    mgw_engine_set_stream(engine, mgw_device_stream(device));
    return engine;
}

static void try_engine(const char *policy, const char *wire, mgw_dtype dtype, mgw_op op,
                       int servers)
{
    mgw_engine_options options = {.policy = policy,
                                  .device = "cuda",
                                  .wire = wire,
                                  .op = op,
                                  .servers = servers,
                                  .profile_steps = 2,
                                  .replan_steps = 3};
    mgw_dtype wires[TENSORS];
    for (unsigned t = 0; t < TENSORS; t++)
        wires[t] = dtype;
    mgw_engine *engine = open_engine(&options);
    for (unsigned step = 0; step < 20; step++)
        run_step(engine, 1000 + step, wires, op);
    mgw_engine_statistics s;
    mgw_engine_measure(engine, &s);
    if (rank == 0)
        printf("%s, %s, %d servers: %zu messages: exact\n", policy, wire, servers, s.messages);
    mgw_engine_close(engine);
}

/* Each message as a plan says, which comes when steps have been without wires. */
static void try_plan(void)
{
    enum { MESSAGES = 3 };
    static const mgw_dtype plan[MESSAGES] = {MGW_BF16, MGW_F32, MGW_F16};
    const mgw_engine_options options = {.device = "cuda", .trials = -1};
    mgw_engine *engine = open_engine(&options);
    mgw_operation operations[MESSAGES] = {{0}};
    mgw_dtype wires[TENSORS] = {MGW_F32};
    run_step(engine, 2000, wires, MGW_AVERAGE);
    for (unsigned m = 0; m < MESSAGES; m++) {
        unsigned first = m * TENSORS / MESSAGES;
        unsigned end = (m + 1) * TENSORS / MESSAGES;
        operations[m] = (mgw_operation){.kind = MGW_ALL_REDUCE,
                                        .first = first,
                                        .count = end - first,
                                        .release = MGW_WHEN_READY,
                                        .wire = plan[m]};
        for (unsigned t = first; t < end; t++)
            wires[t] = plan[m];
    }
    demand(mgw_engine_set_plan(engine, operations, MESSAGES, &error), "plan");
    for (unsigned step = 1; step < 4; step++)
        run_step(engine, 2000 + step, wires, MGW_AVERAGE);
    if (rank == 0)
        printf("a plan with wires: exact\n");
    mgw_engine_close(engine);
}

/* ---- Steps with 8 bits: what the host's engine makes of the same numbers ---- */

/* Most blocks are of gradients' size; every other 3000 numbers are of all kinds. */
static void fill_blocks(float *out, size_t count, unsigned salt)
{
    for (size_t i = 0; i < count; i++) {
        float number = number_of(rank, i, salt);
        uint32_t bits;
        memcpy(&bits, &number, sizeof bits);
        bits = (bits & 0x807fffff) | (103 + mix(bits) % 32) << 23;
        if ((i + salt * 1000) / 3000 % 2)
            memcpy(&number, &bits, sizeof bits);
        out[i] = number;
    }
}

static void step_of(mgw_engine *engine, bool on_device, unsigned salt, float *out)
{
    static float wide[60000];
    demand(mgw_engine_begin(engine, &error), "begin");
    for (unsigned t = 0; t < TENSORS; t++) {
        size_t bytes = count_of(t) * sizeof *wide;
        void *gradient = mgw_engine_gradient(engine, t);
        fill_blocks(wide, count_of(t), salt + t);
        if (on_device)
            demand(mgw_device_write(device, gradient, wide, bytes, &error), "write");
        else
            memcpy(gradient, wide, bytes);
        mgw_engine_ready(engine, t);
    }
    demand(mgw_engine_wait(engine, &error), "wait");
    for (unsigned t = 0; t < TENSORS; out += count_of(t++)) {
        size_t bytes = count_of(t) * sizeof *out;
        if (on_device)
            demand(mgw_device_read(device, out, mgw_engine_gradient(engine, t), bytes, &error),
                   "read");
        else
            memcpy(out, mgw_engine_gradient(engine, t), bytes);
    }
}

static uint32_t bits_of(float number)
{
    uint32_t bits = 0;
    memcpy(&bits, &number, sizeof bits);
    return bits;
}

static void compare_steps(const float *found, const float *expected, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (bits_of(found[i]) != bits_of(expected[i]) &&
            !(found[i] != found[i] && expected[i] != expected[i])) {
            fprintf(stderr, "rank %u: number %zu is %a, not %a\n", rank, i, (double)found[i],
                    (double)expected[i]);
            exit(1);
        }
}

/* In one message or several, as the plan says. */
static void plan_eights(mgw_engine *engine, unsigned messages)
{
    mgw_operation operations[4] = {{0}};
    for (unsigned m = 0; m < messages; m++) {
        unsigned first = m * TENSORS / messages;
        operations[m] = (mgw_operation){.kind = MGW_ALL_REDUCE,
                                        .first = first,
                                        .count = (m + 1) * TENSORS / messages - first,
                                        .release = MGW_WHEN_READY,
                                        .wire = m % 2 ? MGW_FP8_E5M2 : MGW_FP8};
    }
    demand(mgw_engine_set_plan(engine, operations, messages, &error), "plan");
}

/* Two engines of a job: one of them has another name for it. */
static void try_eights(const char *wire, unsigned messages, mgw_op op, int servers)
{
    size_t count = 0;
    char name[64];
    for (unsigned t = 0; t < TENSORS; t++)
        count += count_of(t);
    float *found = room(count * sizeof *found);
    float *expected = room(count * sizeof *expected);
    mgw_engine_options options = {.policy = "single",
                                  .device = "cuda",
                                  .wire = wire,
                                  .op = op,
                                  .servers = servers,
                                  .trials = -1};
    mgw_engine *engine = open_engine(&options);
    snprintf(name, sizeof name, "device-wire-%ld", (long)getppid());
    options.device = "host";
    options.cluster = "10gbe";
    options.transport =
        (mgw_transport_options){.name = "shm", .rank = rank, .size = size, .job = name};
    mgw_engine *host = open_engine(&options);
    if (messages > 1) {
        plan_eights(engine, messages);
        plan_eights(host, messages);
    }
    for (unsigned step = 0; step < 3; step++) {
        step_of(engine, true, 3000 + 100 * step, found);
        step_of(host, false, 3000 + 100 * step, expected);
        compare_steps(found, expected, count);
    }
    mgw_engine_close(host);
    mgw_engine_close(engine);
    free(found);
    free(expected);
    if (rank == 0)
        printf("%s, %u messages, %d servers, 8 bits: exact\n", wire ? wire : "a plan", messages,
               servers);
}

static void exact(void)
{
    try_transport();
    try_engine("wfbp", "bf16", MGW_BF16, MGW_AVERAGE, 0);
    try_engine("single", "f16", MGW_F16, MGW_SUM, 0);
    try_engine("optimal", "bf16", MGW_BF16, MGW_AVERAGE, 0);
    try_engine("mgwfbp", "f16", MGW_F16, MGW_AVERAGE, size > 1 ? 2 : 1);
    try_plan();
    try_eights("fp8", 1, MGW_AVERAGE, 0);
    try_eights("fp8-e5m2", 1, MGW_SUM, 0);
    try_eights("fp8", 1, MGW_AVERAGE, size > 1 ? 2 : 1);
    try_eights(NULL, 4, MGW_AVERAGE, 0);
}

/* ---- Speed ---- */

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a;
    double y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The median of steps of one message, from when it is ready until its average is there. */
static double time_steps(const char *wire, size_t count)
{
    enum { STEPS = 21, FIRST = 4 };
    double took_s[STEPS];
    unsigned id = 0;
    mgw_engine_options options = {
        .policy = "single", .device = "cuda", .wire = wire, .cluster = "10gbe", .trials = -1};
    mgw_engine *engine = NULL;
    demand(mgw_engine_open(&options, &engine, &error), "open");
    demand(mgw_engine_add(engine, "all", count, MGW_F32, &id, &error), "add");
    demand(mgw_engine_start(engine, &error), "start");
    mgw_engine_set_stream(engine, mgw_device_stream(device));
    rank = mgw_engine_rank(engine);
    size = mgw_engine_size(engine);
    for (int i = -FIRST; i < STEPS; i++) {
        demand(mgw_engine_barrier(engine, &error), "barrier");
        double begin_s = now_s();
        demand(mgw_engine_begin(engine, &error), "begin");
        mgw_engine_ready(engine, id);
        demand(mgw_engine_wait(engine, &error), "wait");
        demand(mgw_device_finish(device, &error), "finish");
        if (i >= 0)
            took_s[i] = now_s() - begin_s;
    }
    mgw_engine_close(engine);
    qsort(took_s, STEPS, sizeof *took_s, by_value);
    return took_s[STEPS / 2];
}

static void speed(void)
{
    static const size_t mib[] = {1, 16, 64};
    for (size_t i = 0; i < sizeof mib / sizeof *mib; i++) {
        size_t count = (mib[i] << 20) / sizeof(float);
        double f32_s = time_steps("f32", count);
        double bf16_s = time_steps("bf16", count);
        double fp8_s = time_steps("fp8", count);
        if (rank == 0)
            printf("%u workers, %zu MiB of f32: %.3f ms as f32, %.3f ms as bf16: %.2f times as "
                   "fast, %.3f ms as fp8: %.2f times\n",
                   size, mib[i], f32_s * 1e3, bf16_s * 1e3, f32_s / bf16_s, fp8_s * 1e3,
                   f32_s / fp8_s);
    }
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
    void (*run)(void) = !strcmp(what, "exact")   ? exact
                        : !strcmp(what, "long")  ? try_long
                        : !strcmp(what, "speed") ? speed
                                                 : NULL;
    if (!run) {
        fprintf(stderr, "usage: test_device_wire exact|long|speed\n");
        return 2;
    }
    demand(mgw_device_open(&device, &error), "device");
    run();
    mgw_device_close(device);
    return 0;
}
