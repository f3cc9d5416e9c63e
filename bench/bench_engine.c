/* What the engine costs the program: one ready(), the way from the last gradient of a message to
 * its launch, when the communication thread sleeps, one need(), steps with gathers beside those
 * without, and memory. */
#include <string.h>
#include <unistd.h>

#include "bench.h"

enum { TENSORS = 1000, ROUNDS = 21, STEPS = 400 };

static mgw_engine *start_engine(const mgw_engine_options *options, size_t tensors, size_t elements)
{
    mgw_engine *engine = NULL;
    mgw_error error;
    bench_must(mgw_engine_open(options, &engine, &error), &error);
    for (size_t i = 0; i < tensors; i++) {
        char name[32];
        unsigned id = 0;
        snprintf(name, sizeof name, "t%zu", i);
        bench_must(mgw_engine_add(engine, name, elements, MGW_F32, &id, &error), &error);
    }
    bench_must(mgw_engine_start(engine, &error), &error);
    return engine;
}

static mgw_engine *open_engine(size_t tensors, const char *policy)
{
    mgw_engine_options options = {
        .transport = {.name = "self", .size = 1}, .policy = policy, .profile_steps = 2};
    return start_engine(&options, tensors, 16);
}

/* One message for all: no ready() but the last wakes anybody. */
static void time_ready(bench_times *times)
{
    mgw_engine *engine = open_engine(TENSORS, "single");
    mgw_error error;
    for (int round = -4; round < ROUNDS; round++) {
        bench_must(mgw_engine_begin(engine, &error), &error);
        double start = bench_now_s();
        for (unsigned i = 0; i + 1 < TENSORS; i++)
            mgw_engine_ready(engine, i);
        double each_s = (bench_now_s() - start) / (TENSORS - 1);
        mgw_engine_ready(engine, TENSORS - 1);
        bench_must(mgw_engine_wait(engine, &error), &error);
        if (round >= 0)
            times->values[times->count++] = each_s;
    }
    mgw_engine_close(engine);
}

static int compare(const void *left, const void *right)
{
    return bench_compare(left, right);
}

/* A pause before each gradient lets the thread fall asleep. */
static void time_launch(double *delays)
{
    mgw_engine *engine = open_engine(1, "wfbp");
    mgw_error error;
    for (int step = -10; step < STEPS; step++) {
        bench_must(mgw_engine_begin(engine, &error), &error);
        struct timespec pause = {.tv_nsec = 500 * 1000};
        nanosleep(&pause, NULL);
        mgw_engine_ready(engine, 0);
        bench_must(mgw_engine_wait(engine, &error), &error);
        mgw_timeline *timeline = NULL;
        bench_must(mgw_engine_timeline(engine, &timeline, &error), &error);
        const mgw_span *message = &timeline->spans[1];
        if (step >= 0)
            delays[step] = message->start_s - message->ready_s;
        mgw_timeline_destroy(timeline);
    }
    mgw_engine_close(engine);
    qsort(delays, STEPS, sizeof *delays, compare);
}

/* One need(), when the parameter is there; and whole steps of ten messages, if not null. With
 * gathers: ten reduce-scatters and as many all-gathers. */
static void time_parameters(bool gathers, bench_times *needs, bench_times *steps)
{
    enum { EACH = TENSORS / 10 };
    mgw_operation operations[20];
    mgw_error error;
    mgw_engine_options options = {.transport = {.name = "self", .size = 1},
                                  .replan_steps = 1 << 20,
                                  .keeps_parameters = true};
    for (size_t i = 0; i < 10; i++) {
        operations[i] = (mgw_operation){.kind = gathers ? MGW_REDUCE_SCATTER : MGW_ALL_REDUCE,
                                        .first = i * EACH,
                                        .count = EACH};
        operations[10 + i] = (mgw_operation){.kind = MGW_ALL_GATHER,
                                             .release = MGW_AFTER_UPDATE,
                                             .first = (9 - i) * EACH,
                                             .count = EACH};
    }
    mgw_engine *engine = start_engine(&options, TENSORS, 16);
    bench_must(mgw_engine_set_plan(engine, operations, gathers ? 20 : 10, &error), &error);
    for (int round = -4; round < ROUNDS; round++) {
        double start = bench_now_s();
        bench_must(mgw_engine_begin(engine, &error), &error);
        double begun = bench_now_s();
        for (unsigned i = TENSORS; i-- > 0;)
            bench_must(mgw_engine_need(engine, i, &error), &error);
        double needed = bench_now_s();
        for (unsigned i = 0; i < TENSORS; i++)
            mgw_engine_ready(engine, i);
        bench_must(mgw_engine_wait(engine, &error), &error);
        bench_must(mgw_engine_update(engine, MGW_NO_OPERATION, &error), &error);
        double end = bench_now_s();
        if (round >= 0 && needs)
            needs->values[needs->count++] = (needed - begun) / TENSORS;
        if (round >= 0)
            steps->values[steps->count++] = end - start;
    }
    bench_must(mgw_engine_drain(engine, &error), &error);
    mgw_engine_close(engine);
}

static double resident_bytes(void)
{
    long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (!file || fscanf(file, "%*s %ld", &pages) != 1)
        pages = 0;
    if (file)
        fclose(file);
    return (double)pages * (double)sysconf(_SC_PAGESIZE);
}

/* What the process grows by beyond the gradients themselves, per byte of gradients. */
static double added_memory(const char *wire)
{
    enum { ELEMENTS = 65536 };
    char job[32];
    snprintf(job, sizeof job, "bench-%ld", (long)getpid());
    mgw_engine_options options = {
        .transport = {.name = "shm", .size = 1, .job = job}, .profile_steps = 2, .wire = wire};
    double before = resident_bytes();
    mgw_engine *engine = start_engine(&options, TENSORS, ELEMENTS);
    mgw_error error;
    for (int step = 0; step < 4; step++) {
        bench_must(mgw_engine_begin(engine, &error), &error);
        for (unsigned i = 0; i < TENSORS; i++) {
            memset(mgw_engine_gradient(engine, i), step, ELEMENTS * sizeof(float));
            mgw_engine_ready(engine, i);
        }
        bench_must(mgw_engine_wait(engine, &error), &error);
    }
    double gradients = (double)TENSORS * ELEMENTS * sizeof(float);
    double added = (resident_bytes() - before - gradients) / gradients;
    mgw_engine_close(engine);
    return added;
}

int main(void)
{
    bench_times ready = {0};
    static double delays[STEPS];
    time_ready(&ready);
    time_launch(delays);
    char units[MGW_UNITS_MAX];
    printf("one ready():                       %s (spread %.0f%%)\n",
           mgw_format_seconds(bench_median(&ready), units), 100 * bench_spread(&ready));
    printf("last gradient ready to launch:     median %s",
           mgw_format_seconds(delays[STEPS / 2], units));
    printf(", 90%% below %s\n", mgw_format_seconds(delays[STEPS * 9 / 10], units));
    bench_times needs = {0};
    bench_times whole = {0};
    bench_times halves = {0};
    time_parameters(false, &needs, &whole);
    time_parameters(true, NULL, &halves);
    printf("one need(), of what is there:      %s (spread %.0f%%)\n",
           mgw_format_seconds(bench_median(&needs), units), 100 * bench_spread(&needs));
    printf("a step of ten messages, alone:     %s",
           mgw_format_seconds(bench_median(&whole), units));
    printf(", with ten gathers behind: %s\n", mgw_format_seconds(bench_median(&halves), units));
    double plain = added_memory(NULL);
    double narrow = added_memory("bf16");
    printf("added memory per gradient byte:    %.4f (f32 as bf16: %.4f)\n", plain, narrow);
    return 0;
}
