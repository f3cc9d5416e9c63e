/* A worker whose gradients and parameters are on a GPU, started by mgwfbp launch: updates and
 * gathers are ordered by streams alone, so every number is looked at.
 * usage: test_device_parameters callback|said [steady|trial]
 * trial: plans change only by trials, and no state moves, which would order streams, too.
 * Ends with 77 where there is no GPU. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <mgwfbp/mgwfbp.h>

#include "numbers.h"

enum { TENSORS = 40, STEPS = 24, TRIAL_STEPS = 150 };

static const mgw_dtype dtypes[] = {MGW_F32, MGW_BF16, MGW_F32, MGW_F64};
static mgw_error error;
static mgw_device *device;
static mgw_engine *engine;
static void *state[4]; /* by dtype: of the shards, the averages of the last step */
static char *buffer;
static unsigned last_salt; /* of the last step */
static unsigned moves;

static int (*copy)(void *to, const void *from, size_t bytes, void *stream);
static int (*allocate)(void **out, size_t bytes);

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
    fprintf(stderr, "rank %u: %s\n", mgw_engine_rank(engine), what);
    exit(1);
}

static size_t count_of(unsigned t)
{
    return t % 11 == 10 ? 0 : (size_t)(t % 7 + 1) * (t % 5 == 4 ? 20000 : 300) + t;
}

/* Multiples of the number of workers: averages are whole, and exact in 8 bits. */
static unsigned value_of(unsigned rank, size_t index, unsigned salt)
{
    return (unsigned)((index * 7 + rank * 3 + salt) % 5) * mgw_engine_size(engine);
}

static unsigned average_of(size_t index, unsigned salt)
{
    unsigned sum = 0;
    for (unsigned r = 0; r < mgw_engine_size(engine); r++)
        sum += value_of(r, index, salt);
    return sum / mgw_engine_size(engine);
}

/* Reads behind the work of the stream. */
static void expect(const void *at, unsigned t, size_t first, size_t count, unsigned salt,
                   const char *what)
{
    size_t bytes = count * mgw_dtype_bytes(dtypes[t % 4]);
    demand(mgw_device_read(device, buffer, at, bytes, &error), "read");
    for (size_t i = 0; i < count; i++)
        if (!equals(buffer, i, dtypes[t % 4], average_of(first + i, salt + t))) {
            fprintf(stderr, "rank %u: %s: tensor %u, element %zu of %zu is wrong\n",
                    mgw_engine_rank(engine), what, t, first + i, count);
            exit(1);
        }
}

/* Every worker takes its turn at being slow, at the end of the backward pass and in the update:
 * what others do not wait for they do not get. */
static void dawdle(unsigned turn)
{
    if ((last_salt + turn) % mgw_engine_size(engine) != mgw_engine_rank(engine))
        return;
    demand(mgw_device_begin(device, &error), "begin");
    demand(mgw_device_hold(device, 10e-3, &error), "hold");
}

/* Parameters become the averages, and so does the state: copies on the stream, nothing waits. */
static mgw_status update(void *context, const mgw_shard *shards, size_t count, mgw_error *e)
{
    (void)context, (void)e;
    dawdle(0);
    for (size_t i = 0; i < count; i++) {
        const mgw_shard *s = &shards[i];
        size_t element = mgw_dtype_bytes(s->dtype);
        char *average = (char *)mgw_engine_gradient_memory(engine, s->dtype) + s->begin * element;
        char *parameter =
            (char *)mgw_engine_parameter_memory(engine, s->dtype) + s->begin * element;
        void *stream = mgw_device_stream(device);
        must(!copy(parameter, average, s->count * element, stream), "copy");
        must(!copy((char *)state[s->dtype] + s->at * element, average, s->count * element, stream),
             "copy");
    }
    return MGW_OK;
}

static mgw_status reshard(void *context, const mgw_shard *before, size_t before_count,
                          const mgw_shard *after, size_t after_count, mgw_error *e)
{
    (void)context, (void)before, (void)before_count;
    moves++;
    for (int d = 0; d < 4; d++) {
        void *moved = NULL;
        size_t element = mgw_dtype_bytes((mgw_dtype)d);
        must(!allocate(&moved, 8 + element * mgw_engine_shard_length(engine, (mgw_dtype)d)),
             "allocate");
        mgw_status status = mgw_engine_move(engine, (mgw_dtype)d, state[d], moved, element, e);
        if (status)
            return status;
        state[d] = moved;
    }
    for (size_t i = 0; last_salt && i < after_count; i++)
        expect((char *)state[after[i].dtype] + after[i].at * mgw_dtype_bytes(after[i].dtype),
               after[i].tensor, after[i].first, after[i].count, last_salt, "state");
    return MGW_OK;
}

static void change_plan(unsigned step)
{
    static const mgw_operation plans[][8] = {
        {{MGW_ALL_REDUCE, MGW_WHEN_READY, .first = 0, .count = 12},
         {MGW_REDUCE_SCATTER, MGW_WHEN_READY, .first = 12, .count = 9},
         {MGW_REDUCE_SCATTER, MGW_WHEN_READY, .first = 21, .count = 19},
         {MGW_ALL_GATHER, MGW_AFTER_UPDATE, .first = 30, .count = 10},
         {MGW_ALL_GATHER, MGW_AFTER_UPDATE, .first = 15, .count = 15},
         {MGW_ALL_GATHER, MGW_AFTER_UPDATE, .first = 12, .count = 3}},
        {{MGW_REDUCE_SCATTER, MGW_AFTER_BACKWARD, .first = 0, .count = 40},
         {MGW_ALL_GATHER, MGW_AFTER_UPDATE, .first = 0, .count = 40}},
        {{MGW_REDUCE_SCATTER, MGW_WHEN_READY, .first = 0, .count = 25},
         {MGW_ALL_REDUCE, MGW_WHEN_READY, .first = 25, .count = 15},
         {MGW_ALL_GATHER, MGW_AFTER_UPDATE, .first = 20, .count = 5},
         {MGW_ALL_GATHER, MGW_AFTER_UPDATE, .first = 0, .count = 20}}};
    static const size_t counts[] = {6, 2, 4};
    if (step % 12 == 11)
        demand(mgw_engine_set_policy(engine, "overlap", &error), "set_policy");
    else if (step % 3 == 2)
        demand(mgw_engine_set_plan(engine, plans[step / 3 % 3], counts[step / 3 % 3], &error),
               "set_plan");
}

static void run_step(unsigned step, bool says)
{
    unsigned salt = 7 * step + 1; /* other numbers than in the step before */
    bool looks = step % 2;        /* in other steps the host does not wait for the GPU */
    demand(mgw_engine_begin(engine, &error), "begin");
    demand(mgw_device_begin(device, &error), "begin");
    for (unsigned t = TENSORS; t-- > 0;) {
        if (t % 6 == 5 && step % 4 == 0)
            continue;
        demand(mgw_engine_need(engine, t, &error), "need");
        demand(mgw_device_hold(device, (TENSORS - t) * 10e-6, &error), "hold");
        if (looks && last_salt)
            expect(mgw_engine_parameter(engine, t), t, 0, count_of(t), last_salt, "need");
    }
    for (unsigned t = 0; t < TENSORS; t++) {
        for (size_t i = 0; i < count_of(t); i++)
            put(buffer, i, dtypes[t % 4], value_of(mgw_engine_rank(engine), i, salt + t));
        demand(mgw_device_write(device, mgw_engine_gradient(engine, t), buffer,
                                count_of(t) * mgw_dtype_bytes(dtypes[t % 4]), &error),
               "write");
        if (t % 20 == 19)
            dawdle(1);
        mgw_engine_ready(engine, t);
    }
    demand(mgw_engine_wait(engine, &error), "wait");
    if (says) {
        size_t count = 0;
        const mgw_shard *shards = mgw_engine_shards(engine, &count);
        demand(update(NULL, shards, count, &error), "update");
        demand(mgw_engine_update(engine, MGW_NO_OPERATION, &error), "update");
    }
    last_salt = salt;
    if (step % 5 == 4) {
        demand(mgw_engine_drain(engine, &error), "drain");
        for (unsigned t = 0; t < TENSORS; t++)
            expect(mgw_engine_parameter(engine, t), t, 0, count_of(t), salt, "drain");
    }
}

static void open_all(bool says, bool tries)
{
    mgw_engine_options options = {
        .device = "cuda", .policy = "overlap", .profile_steps = 2, .keeps_parameters = true};
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    demand(mgw_device_open(&device, &error), "device");
    *(void **)&copy = dlsym(library, "cuMemcpyDtoDAsync_v2");
    *(void **)&allocate = dlsym(library, "cuMemAlloc_v2");
    demand(mgw_engine_open(&options, &engine, &error), "open");
    if (!says)
        demand(mgw_engine_on_update(engine, update, NULL, &error), "on_update");
    if (!tries)
        demand(mgw_engine_on_reshard(engine, reshard, NULL, &error), "on_reshard");
    for (unsigned t = 0; t < TENSORS; t++) {
        char name[16];
        unsigned id = 0;
        snprintf(name, sizeof name, "t%u", t);
        demand(mgw_engine_add(engine, name, count_of(t), dtypes[t % 4], &id, &error), "add");
    }
    demand(mgw_engine_start(engine, &error), "start");
    mgw_engine_set_stream(engine, mgw_device_stream(device));
    for (int d = 0; d < 4; d++)
        must(!allocate(&state[d], 8 + mgw_dtype_bytes((mgw_dtype)d) *
                                          mgw_engine_shard_length(engine, (mgw_dtype)d)),
             "allocate");
}

int main(int argc, char **argv)
{
    bool says = argc > 1 && !strcmp(argv[1], "said");
    bool steady = argc > 2 && !strcmp(argv[2], "steady");
    bool tries = argc > 2 && !strcmp(argv[2], "trial");
    buffer = malloc(1 << 22);
    open_all(says, tries);
    for (unsigned step = 0; steady || step < (tries ? TRIAL_STEPS : STEPS); step++) {
        if (!tries)
            change_plan(step);
        run_step(step, says);
        if (steady && step == 30) {
            printf("steady %ld\n", (long)getpid());
            fflush(stdout);
        }
    }
    demand(mgw_engine_drain(engine, &error), "drain");
    for (unsigned t = 0; t < TENSORS; t++)
        expect(mgw_engine_parameter(engine, t), t, 0, count_of(t), last_salt, "end");
    mgw_engine_statistics seen;
    mgw_engine_measure(engine, &seen);
    must(tries ? seen.trial_steps > 0 : moves >= 4 && seen.plans > 4, "nothing has changed");
    printf("exact: %u moves, %llu plans, %llu waits\n", moves, (unsigned long long)seen.plans,
           (unsigned long long)seen.device_waits);
    mgw_engine_close(engine);
    mgw_device_close(device);
    free(buffer);
    return 0;
}
