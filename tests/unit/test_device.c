/* A worker whose gradients are on a GPU. Started by mgwfbp launch or mpirun, on a machine that has
 * one; MGWFBP_TRANSPORT may say that they go over shm or mpi:
 * usage: test_device sums [POLICY]   every collective, steps of every kind: whole numbers, exact
 *        test_device speed           what a step costs the host, and how often it waits for the GPU
 *        test_device steady          steps for ever, for who wants to kill a worker
 *        test_device lanes           prints how many move the parts of a long message
 *        test_device limited         how long one takes over all lanes, and over one
 *        test_device reform [AFTER]  until one is lost; who is left goes on, for so many steps
 *        test_device mixed           what no program should do: rank 0's numbers are the host's
 *        test_device broken          a thread without the GPU waits; then the fake GPU has a fault
 * Ends with 77 where there is no GPU, or no NCCL that was asked for. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <mgwfbp/mgwfbp.h>

#include "numbers.h"

static double now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static mgw_error error;
static mgw_device *device;

static void demand(mgw_status status, const char *what)
{
    if (!status)
        return;
    fprintf(stderr, "%s: %s\n", what, error.message);
    exit(status == MGW_ERR_UNSUPPORTED ? 77 : 1);
}

/* ---- Whole numbers of any dtype ---- */

static const mgw_dtype dtypes[] = {MGW_F32, MGW_F16, MGW_BF16, MGW_F64};

/* Multiples of the number of workers: sums and averages are whole, and exact in 8 bits. */
static unsigned value_of(unsigned rank, size_t index, unsigned size, unsigned salt)
{
    return (unsigned)((index * 7 + rank * 3 + salt) % 5) * size;
}

enum { PERIOD = 5 };

static pattern values_of(unsigned rank, unsigned size, unsigned salt)
{
    pattern p = {.period = PERIOD};
    for (size_t i = 0; i < PERIOD; i++)
        p.values[i] = value_of(rank, i, size, salt);
    return p;
}

static pattern results_of(unsigned size, unsigned salt, mgw_op op)
{
    pattern p = {.period = PERIOD};
    for (size_t i = 0; i < PERIOD; i++) {
        unsigned sum = 0;
        unsigned largest = 0;
        for (unsigned r = 0; r < size; r++) {
            unsigned value = value_of(r, i, size, salt);
            sum += value;
            largest = value > largest ? value : largest;
        }
        p.values[i] = op == MGW_MAX ? largest : op == MGW_SUM ? sum : sum / (size ? size : 1);
    }
    return p;
}

/* To or from the GPU through this. */
static char *buffer;
enum { BUFFER = 64 << 20 };

static void write_values(void *at, size_t count, mgw_dtype dtype, unsigned rank, unsigned size,
                         unsigned salt)
{
    pattern p = values_of(rank, size, salt);
    put_pattern(buffer, 0, count, dtype, &p);
    demand(mgw_device_write(device, at, buffer, count * mgw_dtype_bytes(dtype), &error), "write");
}

static void expect_sum(const void *at, size_t first, size_t count, mgw_dtype dtype, unsigned size,
                       unsigned salt, mgw_op op, const char *what)
{
    pattern expected = results_of(size, salt, op);
    size_t element = mgw_dtype_bytes(dtype);
    demand(mgw_device_read(device, buffer + first % PERIOD * element,
                           (const char *)at + first * element, count * element, &error),
           "read");
    size_t begin = first % PERIOD; /* in the buffer, where the period is the same */
    size_t other = find_other(buffer, begin, count, dtype, &expected);
    if (other == begin + count)
        return;
    fprintf(stderr, "%s, %s, element %zu of %zu is wrong\n", what, mgw_dtype_name(dtype),
            first + other - begin, count);
    exit(1);
}

/* ---- Collectives ---- */

static void try_collectives(mgw_transport *t, void *data, size_t count, mgw_dtype dtype, mgw_op op)
{
    unsigned rank = mgw_transport_rank(t);
    unsigned size = mgw_transport_size(t);
    size_t first = 0;
    size_t length = 0;
    mgw_transport_block(count, size, rank, &first, &length);

    write_values(data, count, dtype, rank, size, 1);
    demand(mgw_device_finish(device, &error), "finish");
    demand(mgw_transport_all_reduce(t, data, count, dtype, op, &error), "all-reduce");
    expect_sum(data, 0, count, dtype, size, 1, op, "all-reduce");

    write_values(data, count, dtype, rank, size, 2);
    demand(mgw_device_finish(device, &error), "finish");
    demand(mgw_transport_reduce_scatter(t, data, count, dtype, op, &error), "reduce-scatter");
    expect_sum(data, first, length, dtype, size, 2, op, "reduce-scatter");
    demand(mgw_transport_all_gather(t, data, count, dtype, &error), "all-gather");
    expect_sum(data, 0, count, dtype, size, 2, op, "all-gather");

    unsigned root = size - 1;
    write_values(data, count, dtype, rank, size, 3);
    demand(mgw_device_finish(device, &error), "finish");
    demand(mgw_transport_reduce(t, data, count, dtype, op, root, &error), "reduce");
    if (rank == root)
        expect_sum(data, 0, count, dtype, size, 3, op, "reduce");
    demand(mgw_transport_broadcast(t, data, count * mgw_dtype_bytes(dtype), root, &error),
           "broadcast");
    expect_sum(data, 0, count, dtype, size, 3, op, "broadcast");
}

/* Every worker has its block of every segment, and gets those of the others. */
static void try_segments(mgw_transport *t, char *data, const size_t *segments, size_t segment_count,
                         mgw_dtype dtype, mgw_op op)
{
    unsigned rank = mgw_transport_rank(t);
    unsigned size = mgw_transport_size(t);
    size_t element = mgw_dtype_bytes(dtype);
    mgw_call call = {.kind = MGW_REDUCE_SCATTER,
                     .data = data,
                     .dtype = dtype,
                     .op = op,
                     .segments = segments,
                     .segment_count = segment_count};
    mgw_request request;
    for (size_t s = 0; s < segment_count; s++)
        call.count += segments[s];
    write_values(data, call.count, dtype, rank, size, 4);
    demand(mgw_device_finish(device, &error), "finish");
    demand(mgw_transport_post(t, &call, &request, &error), "segments");
    demand(mgw_request_wait(t, &request, &error), "segments");
    for (size_t s = 0, at = 0; s < segment_count; at += segments[s++]) {
        size_t first = 0;
        size_t length = 0;
        mgw_transport_block(segments[s], size, rank, &first, &length);
        expect_sum(data, at + first, length, dtype, size, 4, op, "scattered segments");
        write_values(data + at * element, first, dtype, rank, size, 5); /* must not stay */
        size_t end = first + length;
        write_values(data + (at + end) * element, segments[s] - end, dtype, rank, size, 6);
    }
    demand(mgw_device_finish(device, &error), "finish");
    call.kind = MGW_ALL_GATHER;
    demand(mgw_transport_post(t, &call, &request, &error), "segments");
    demand(mgw_request_wait(t, &request, &error), "segments");
    expect_sum(data, 0, call.count, dtype, size, 4, op, "gathered segments");
}

static void try_all_segments(mgw_transport *t, char *data)
{
    static const size_t several[] = {1, 0, 31, 33, 768, 0, 4001, 96 * 64, 3, 70007, 200000, 5};
    static const size_t empty[] = {0, 0};
    static size_t many[600]; /* more blocks than NCCL takes at a time */
    for (size_t i = 0; i < sizeof many / sizeof *many; i++)
        many[i] = i % 97;
    for (size_t d = 0; d < sizeof dtypes / sizeof *dtypes; d++)
        for (int op = MGW_AVERAGE; op <= MGW_MAX; op++) {
            try_segments(t, data, several, sizeof several / sizeof *several, dtypes[d], (mgw_op)op);
            try_segments(t, data, several, 4, dtypes[d], (mgw_op)op);
            try_segments(t, data, empty, 2, dtypes[d], (mgw_op)op);
        }
    try_segments(t, data, many, sizeof many / sizeof *many, MGW_F32, MGW_SUM);
}

/* More than the transport has marks for at first; only the last is asked after. */
static void try_posts(mgw_transport *t, char *data)
{
    enum { CALLS = 200, COUNT = 1000, BYTES = COUNT * 4 };
    unsigned rank = mgw_transport_rank(t);
    unsigned size = mgw_transport_size(t);
    mgw_request last = {0};
    for (unsigned i = 0; i < CALLS; i++)
        write_values(data + i * BYTES, COUNT, MGW_F32, rank, size, i);
    demand(mgw_device_finish(device, &error), "finish");
    for (unsigned i = 0; i < CALLS; i++) {
        mgw_call call = {.data = data + i * BYTES, .count = COUNT, .dtype = MGW_F32, .op = MGW_SUM};
        demand(mgw_transport_post(t, &call, &last, &error), "post");
    }
    for (bool done = false; !done;)
        demand(mgw_request_test(t, &last, &done, &error), "test");
    for (unsigned i = 0; i < CALLS; i++)
        expect_sum(data + i * BYTES, 0, COUNT, MGW_F32, size, i, MGW_SUM, "posted");
}

/* How many workers there are. */
static unsigned try_transport(void)
{
    static const size_t counts[] = {1, 31, 768, 1000, 65537, 3000000};
    mgw_transport *t = NULL;
    void *data = NULL;
    mgw_transport_options options = {.on_device = true};
    demand(mgw_transport_open(&options, &t, &error), "open");
    demand(mgw_transport_allocate(t, (size_t)3000000 * 8, &data, &error), "allocate");
    for (size_t d = 0; d < sizeof dtypes / sizeof *dtypes; d++)
        for (size_t c = 0; c < sizeof counts / sizeof *counts; c++)
            for (int op = MGW_AVERAGE; op <= MGW_MAX; op++)
                try_collectives(t, data, counts[c], dtypes[d], (mgw_op)op);
    try_all_segments(t, data);
    try_posts(t, data);
    double number = mgw_transport_rank(t) + 1; /* in the host's memory */
    double size = mgw_transport_size(t);
    demand(mgw_transport_all_reduce(t, &number, 1, MGW_F64, MGW_SUM, &error), "host");
    if (number != size * (size + 1) / 2) {
        fprintf(stderr, "a sum in the host's memory is wrong\n");
        exit(1);
    }
    demand(mgw_transport_barrier(t, &error), "barrier");
    if (mgw_transport_rank(t) == 0 && mgw_transport_lanes(t) > 1)
        printf("over %u lanes\n", mgw_transport_lanes(t));
    mgw_transport_close(t);
    return (unsigned)size;
}

/* ---- Steps ---- */

enum { TENSORS = 61 };

static size_t count_of(unsigned t)
{
    return t % 13 == 12 ? 0 : (size_t)(t % 7 + 1) * (t % 5 == 4 ? 40000 : 700) + t;
}

static mgw_engine *open_engine(const mgw_engine_options *options)
{
    mgw_engine *engine = NULL;
    demand(mgw_engine_open(options, &engine, &error), "open");
    for (unsigned t = 0; t < TENSORS; t++) {
        char name[16];
        unsigned id = 0;
        snprintf(name, sizeof name, "t%u", t);
        demand(mgw_engine_add(engine, name, count_of(t), dtypes[t % 4], &id, &error), "add");
    }
    demand(mgw_engine_start(engine, &error), "start");
    mgw_engine_set_stream(engine, mgw_device_stream(device));
    return engine;
}

/* Memory that is no engine's: of a gradient that stays there, and of guests from there. */
typedef struct places {
    void *bound;
    char *guests;
} places;

enum { GUEST_BYTES = 400000 * 8 };

/*
 * Gradients come on two streams, and every third is elsewhere before, others in each step;
 * `skipped` does not come at all, if it is one.
 */
static void run_step(mgw_engine *engine, mgw_device *other, places at, unsigned salt,
                     unsigned skipped, mgw_op op)
{
    unsigned rank = mgw_engine_rank(engine);
    unsigned size = mgw_engine_size(engine);
    demand(mgw_engine_begin(engine, &error), "begin");
    demand(mgw_device_begin(device, &error), "begin");
    for (unsigned t = 0; t < TENSORS; t++) {
        if (t == skipped)
            continue;
        demand(mgw_device_hold(device, (t + 1) * 20e-6, &error), "hold");
        mgw_device *mine = device;
        device = t % 9 == 5 ? other : mine;
        void *home = t == 0 && at.bound ? at.bound : mgw_engine_gradient(engine, t);
        void *guest = (salt + t) % 3 == 1 ? at.guests + (size_t)t * GUEST_BYTES : NULL;
        write_values(guest ? guest : home, count_of(t), dtypes[t % 4], rank, size, salt + t);
        if (guest)
            mgw_engine_ready_at(engine, t, guest, mgw_device_stream(device));
        else
            mgw_engine_ready_on(engine, t, mgw_device_stream(device));
        device = mine;
    }
    demand(mgw_engine_wait(engine, &error), "wait");
    for (unsigned t = 0; t < TENSORS; t++)
        if (t != skipped) /* reads behind the averages, on the same stream */
            expect_sum(t == 0 && at.bound ? at.bound : mgw_engine_gradient(engine, t), 0,
                       count_of(t), dtypes[t % 4], size, salt + t, op, "step");
    /* The other stream knows nothing of wait: the next step's gradients must not come too early. */
    demand(mgw_engine_synchronize(engine, &error), "synchronize");
}

/* Numbers that are no gradients, in the GPU's memory and in the host's. */
static void try_numbers(mgw_engine *engine, void *data)
{
    enum { COUNT = 1000 };
    static const pattern nonsense = {1, {99}};
    unsigned rank = mgw_engine_rank(engine);
    unsigned size = mgw_engine_size(engine);
    for (unsigned i = 0; i < 20; i++) {
        mgw_op op = i % 2 ? MGW_SUM : MGW_AVERAGE;
        write_values(data, COUNT, MGW_F32, rank, size, i);
        demand(mgw_engine_all_reduce(engine, data, COUNT, MGW_F32, op, &error), "all-reduce");
        expect_sum(data, 0, COUNT, MGW_F32, size, i, op, "numbers");
        pattern told = results_of(size, i + 1, MGW_SUM);
        put_pattern(buffer, 0, COUNT, MGW_F32, rank ? &nonsense : &told); /* only rank 0 has them */
        demand(mgw_device_write(device, data, buffer, COUNT * sizeof(float), &error), "write");
        demand(mgw_engine_broadcast(engine, data, COUNT * sizeof(float), &error), "broadcast");
        expect_sum(data, 0, COUNT, MGW_F32, size, i + 1, MGW_SUM, "told numbers");
    }
    write_values(data, COUNT, MGW_F32, rank, size, 0);
    for (unsigned i = 0; i < 20; i++) /* more than the engine has events for, without waiting */
        demand(mgw_engine_broadcast(engine, data, COUNT * sizeof(float), &error), "broadcast");
    demand(mgw_engine_all_reduce(engine, data, COUNT, MGW_F32, MGW_AVERAGE, &error), "all-reduce");
    demand(mgw_device_read(device, buffer, data, COUNT * sizeof(float), &error), "read");
    for (size_t k = 0; k < COUNT; k++)
        if (!equals(buffer, k, MGW_F32, value_of(0, k, size, 0))) {
            fprintf(stderr, "told numbers, element %zu is wrong\n", k);
            exit(1);
        }
    double number = rank + 1; /* in the host's memory */
    demand(mgw_engine_all_reduce(engine, &number, 1, MGW_F64, MGW_SUM, &error), "host");
    if (number == size * (size + 1) / 2.0)
        return;
    fprintf(stderr, "a sum in the host's memory is wrong\n");
    exit(1);
}

static void try_engine(const char *policy, mgw_op op, int servers)
{
    mgw_engine_options options = {.policy = policy,
                                  .device = "cuda",
                                  .op = op,
                                  .servers = servers,
                                  .zero_unused = true,
                                  .replan_steps = 12};
    mgw_device *other = NULL;
    demand(mgw_device_open(&other, &error), "device");
    mgw_engine *engine = open_engine(&options);
    mgw_transport *elsewhere = NULL;
    mgw_transport_options alone = {.name = "self", .size = 1, .on_device = true};
    void *bound = NULL;
    void *guests = NULL;
    demand(mgw_transport_open(&alone, &elsewhere, &error), "elsewhere");
    demand(mgw_transport_allocate(elsewhere, (size_t)1 << 20, &bound, &error), "elsewhere");
    demand(mgw_transport_allocate(elsewhere, (size_t)TENSORS * GUEST_BYTES, &guests, &error),
           "elsewhere");
    for (unsigned step = 0; step < 25; step++) {
        if (step == 15)
            demand(mgw_engine_bind(engine, 0, bound, &error), "bind");
        run_step(engine, other, (places){step >= 15 ? bound : NULL, guests}, step,
                 step == 20 ? 7 : TENSORS, op);
    }
    demand(mgw_engine_bind(engine, 0, NULL, &error), "bind");
    try_numbers(engine, bound);
    run_step(engine, other, (places){NULL, guests}, 25, TENSORS, op);
    mgw_engine_statistics s;
    mgw_engine_measure(engine, &s);
    if (mgw_engine_rank(engine) == 0)
        printf("%s: %zu messages, %llu plans: exact\n", policy, s.messages,
               (unsigned long long)s.plans);
    mgw_transport_close(elsewhere);
    mgw_engine_close(engine);
    mgw_device_close(other);
}

static void sums(const char *only)
{
    static const char *const policies[] = {"naive", "wfbp",   "single", "threshold:100000",
                                           "ddp",   "mgwfbp", "optimal"};
    unsigned workers = try_transport();
    for (size_t i = 0; i < sizeof policies / sizeof *policies; i++)
        if (!only || !strcmp(only, policies[i]))
            try_engine(policies[i], i % 2 ? MGW_SUM : MGW_AVERAGE, 0);
    if (!only)
        try_engine("optimal", MGW_AVERAGE, workers > 1 ? 2 : 1);
}

/* Plans take turns while the GPU is behind: sums stay exact, and what its events say of a turn's
 * steps is what they take at least. */
static void trials(const char *unused)
{
    (void)unused;
    mgw_engine_options options = {.device = "cuda"};
    mgw_device *other = NULL;
    mgw_transport *elsewhere = NULL;
    mgw_transport_options alone = {.name = "self", .size = 1, .on_device = true};
    void *guests = NULL;
    demand(mgw_device_open(&other, &error), "device");
    mgw_engine *engine = open_engine(&options);
    demand(mgw_transport_open(&alone, &elsewhere, &error), "elsewhere");
    demand(mgw_transport_allocate(elsewhere, (size_t)TENSORS * GUEST_BYTES, &guests, &error),
           "elsewhere");
    for (unsigned step = 0; step < 50; step++)
        run_step(engine, other, (places){NULL, guests}, step, TENSORS, MGW_AVERAGE);
    mgw_engine_statistics s;
    size_t count = 0;
    const mgw_tried *tried = mgw_engine_tried(engine, &count);
    bool known = count > 1;
    mgw_engine_measure(engine, &s);
    for (size_t i = 0; i < count; i++)
        known = known && tried[i].rounds > 0 && tried[i].measured_s > TENSORS * 20e-6;
    printf("%s after %llu steps of trials\n", known ? "all are known" : "some are not known",
           (unsigned long long)s.trial_steps);
    for (size_t i = 0; i < count; i++)
        printf("tried: %s\n", tried[i].name);
    mgw_transport_close(elsewhere);
    mgw_engine_close(engine);
    mgw_device_close(other);
}

/* ---- Speed ---- */

static mgw_status step(mgw_engine *engine, double gap_s, double *ready_s)
{
    mgw_status status = mgw_engine_begin(engine, &error);
    if (status)
        return status;
    demand(mgw_device_begin(device, &error), "begin");
    for (unsigned t = 0; t < TENSORS; t++) {
        demand(mgw_device_hold(device, (t + 1) * gap_s, &error), "hold");
        double begin_s = now_s();
        mgw_engine_ready(engine, t);
        *ready_s += now_s() - begin_s;
    }
    return mgw_engine_wait(engine, &error);
}

/* Six steps of 61 ms each are handed over while the first still runs. */
static void speed(const char *unused)
{
    enum { STEPS = 6 };
    (void)unused;
    const char *policy = getenv("MGWFBP_POLICY");
    mgw_engine_options options = {.device = "cuda", .trials = -1}; /* whose looks wait */
    mgw_engine *engine = open_engine(&options);
    double ready_s = 0;
    for (int i = 0; i < 20; i++)
        demand(step(engine, 50e-6, &ready_s), "step");
    demand(mgw_engine_synchronize(engine, &error), "synchronize");
    mgw_engine_statistics before;
    mgw_engine_statistics after;
    mgw_engine_measure(engine, &before);
    demand(mgw_engine_barrier(engine, &error), "barrier");
    ready_s = 0;
    double begin_s = now_s();
    for (int i = 0; i < STEPS; i++)
        demand(step(engine, 1e-3, &ready_s), "step");
    double handed_s = now_s() - begin_s;
    mgw_engine_measure(engine, &after);
    demand(mgw_engine_synchronize(engine, &error), "synchronize");
    double done_s = now_s() - begin_s;
    if (mgw_engine_rank(engine) == 0)
        printf(
            "%s, %u workers, %zu messages: %.2f us per ready; %d steps handed over in %.2f ms "
            "of host time, done after %.1f ms; the host waited for the GPU %llu times meanwhile\n",
            policy ? policy : "optimal", mgw_engine_size(engine), after.messages,
            ready_s / STEPS / TENSORS * 1e6, STEPS, handed_s * 1e3, done_s * 1e3,
            (unsigned long long)(after.device_waits - before.device_waits));
    mgw_engine_close(engine);
}

/* The program computes for longer than the timeout between two messages, which must not be an
 * error. */
static void slow(const char *unused)
{
    (void)unused;
    mgw_engine_options options = {.device = "cuda", .policy = "wfbp", .profile_steps = 1};
    mgw_engine *engine = open_engine(&options);
    for (int i = 0; i < 3; i++) {
        demand(mgw_engine_begin(engine, &error), "begin");
        demand(mgw_device_begin(device, &error), "begin");
        mgw_engine_ready(engine, 0);
        demand(mgw_device_hold(device, 2.5, &error), "hold");
        for (unsigned t = 1; t < TENSORS; t++)
            mgw_engine_ready(engine, t);
        demand(mgw_engine_wait(engine, &error), "wait");
    }
    demand(mgw_engine_synchronize(engine, &error), "synchronize");
    printf("nobody was late\n");
    mgw_engine_close(engine);
}

static void steady(const char *unused)
{
    (void)unused;
    mgw_engine_options options = {.device = "cuda"};
    mgw_engine *engine = open_engine(&options);
    double ready_s = 0;
    mgw_status status = MGW_OK;
    for (int i = 0; !status; i++) {
        if (i == 30) {
            printf("steady %ld\n", (long)getpid());
            fflush(stdout);
        }
        status = step(engine, 100e-6, &ready_s);
    }
    fprintf(stderr, "step: %s\n", error.message);
    mgw_engine_close(engine);
    demand(mgw_device_finish(device, &error), "finish"); /* nothing keeps the program's stream */
    fprintf(stderr, "the stream is free\n");
    exit(1);
}

/* As many as were asked for, or as are worth it. */
static void lanes(const char *unused)
{
    (void)unused;
    mgw_transport *t = NULL;
    mgw_transport_options options = {.on_device = true};
    demand(mgw_transport_open(&options, &t, &error), "open");
    printf("%u lanes\n", mgw_transport_lanes(t));
    mgw_transport_close(t);
}

/* Two gradients of 8 MiB, in one message: the least that a step takes. */
static void limited(const char *unused)
{
    enum { COUNT = 2 << 20 };
    (void)unused;
    mgw_engine *engine = NULL;
    mgw_engine_options options = {.device = "cuda", .trials = -1};
    demand(mgw_engine_open(&options, &engine, &error), "open");
    for (unsigned t = 0; t < 2; t++)
        demand(mgw_engine_add(engine, t ? "b" : "a", COUNT, MGW_F32, &(unsigned){0}, &error),
               "add");
    demand(mgw_engine_start(engine, &error), "start");
    mgw_engine_set_stream(engine, mgw_device_stream(device));
    for (unsigned most = 0; most < 3; most++) {
        const mgw_operation operation = {.count = 2, .lanes = most};
        double least_s = 1e9;
        demand(mgw_engine_set_plan(engine, &operation, 1, &error), "set_plan");
        for (int i = 0; i < 5; i++) {
            double begin_s = now_s();
            demand(mgw_engine_begin(engine, &error), "begin");
            mgw_engine_ready(engine, 0);
            mgw_engine_ready(engine, 1);
            demand(mgw_engine_wait(engine, &error), "wait");
            demand(mgw_engine_synchronize(engine, &error), "synchronize");
            double took_s = now_s() - begin_s;
            least_s = took_s < least_s ? took_s : least_s;
        }
        printf("at most %u: %.2f ms\n", most, least_s * 1e3);
    }
    mgw_engine_close(engine);
}

/* Prints the surviving workers, one bit for each initial rank. */
static mgw_status tell_members(mgw_engine *engine, unsigned first, unsigned generation)
{
    double members = (double)(1u << first);
    mgw_status status = mgw_engine_all_reduce(engine, &members, 1, MGW_F64, MGW_SUM, &error);
    if (!status)
        printf("went on as rank %u of %u, generation %u, members %x\n", mgw_engine_rank(engine),
               mgw_engine_size(engine), generation, (unsigned)members);
    fflush(stdout);
    return status;
}

/* Runs steps until a worker is lost; then the survivors print that, and run some more. */
static void reform(const char *more)
{
    int after = more ? (int)strtol(more, NULL, 10) : 30;
    mgw_engine_options options = {.device = "cuda"};
    mgw_engine *engine = open_engine(&options);
    unsigned first = mgw_engine_rank(engine);
    unsigned generation = 0;
    double ready_s = 0;
    for (int i = 0; !generation || i < after; i++) {
        if (i == 30 && !generation) {
            printf("steady %ld\n", (long)getpid());
            fflush(stdout);
        }
        mgw_status status = step(engine, 100e-6, &ready_s);
        while (status == MGW_ERR_PEER || status == MGW_ERR_TIMEOUT) {
            printf("step: %s\n", error.message);
            fflush(stdout);
            if (mgw_engine_reform(engine, &options, &engine, &error)) {
                printf("stays: %s\n", error.message);
                mgw_engine_close(engine);
                exit(1);
            }
            mgw_engine_set_stream(engine, mgw_device_stream(device));
            status = tell_members(engine, first, ++generation);
            i = 0;
        }
        demand(status, "step");
    }
    printf("done\n");
    mgw_engine_close(engine);
}

/* A few numbers find their way. Then workers differ in what they have sent from the GPU, which must
 * not go unnoticed. */
static void mixed(const char *unused)
{
    (void)unused;
    enum { FEW = 3, MANY = 100000 };
    mgw_transport *t = NULL;
    void *data = NULL;
    float few[FEW] = {0};
    mgw_transport_options options = {.on_device = true};
    demand(mgw_transport_open(&options, &t, &error), "open");
    demand(mgw_transport_allocate(t, MANY * sizeof(float), &data, &error), "allocate");
    void *mine = mgw_transport_rank(t) == 0 ? few : data;
    demand(mgw_transport_all_reduce(t, mine, FEW, MGW_F32, MGW_SUM, &error), "few");
    mgw_status status = mgw_transport_all_reduce(t, data, MANY, MGW_F32, MGW_SUM, &error);
    if (status)
        fprintf(stderr, "many: %s\n", error.message);
    status = mgw_transport_all_reduce(t, data, MANY, MGW_F32, MGW_SUM, &error);
    if (status)
        fprintf(stderr, "again: %s\n", error.message);
    mgw_transport_close(t);
}

static void *wait_elsewhere(void *engine)
{
    demand(mgw_engine_wait(engine, &error), "wait");
    return NULL;
}

/* A step that another thread waits for, which never met the GPU. Then a fault of the (fake) GPU's,
 * while numbers are under way: who waits for them must hear of it. */
static void broken(const char *unused)
{
    (void)unused;
    mgw_engine_options options = {.device = "cuda", .zero_unused = true};
    mgw_engine *engine = open_engine(&options);
    pthread_t thread;
    demand(mgw_engine_begin(engine, &error), "begin");
    for (unsigned t = 1; t < TENSORS; t++) /* the first does not come */
        mgw_engine_ready(engine, t);
    if (pthread_create(&thread, NULL, wait_elsewhere, engine))
        exit(1);
    pthread_join(thread, NULL);
    demand(mgw_engine_synchronize(engine, &error), "synchronize");
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    void (*fail)(void) = NULL;
    *(void **)&fail = library ? dlsym(library, "fakeCudaFault") : NULL;
    if (!fail)
        exit(1);
    demand(mgw_engine_broadcast(engine, mgw_engine_gradient(engine, 1), 1000, &error), "broadcast");
    fail();
    if (mgw_engine_synchronize(engine, &error))
        fprintf(stderr, "synchronize: %s\n", error.message);
    mgw_engine_close(engine);
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
    void (*run)(const char *) = !strcmp(what, "sums")      ? sums
                                : !strcmp(what, "trials")  ? trials
                                : !strcmp(what, "speed")   ? speed
                                : !strcmp(what, "slow")    ? slow
                                : !strcmp(what, "steady")  ? steady
                                : !strcmp(what, "lanes")   ? lanes
                                : !strcmp(what, "limited") ? limited
                                : !strcmp(what, "reform")  ? reform
                                : !strcmp(what, "mixed")   ? mixed
                                : !strcmp(what, "broken")  ? broken
                                                           : NULL;
    if (!run) {
        fprintf(
            stderr,
            "usage: test_device sums|trials|speed|slow|steady|lanes|limited|reform|mixed|broken\n");
        return 2;
    }
    buffer = malloc(BUFFER);
    if (!buffer)
        return 1;
    demand(mgw_device_open(&device, &error), "device");
    run(argc > 2 ? argv[2] : NULL);
    mgw_device_close(device);
    free(buffer);
    return 0;
}
