/* A worker that does what no program should, and prints what it is told. Started by mgwfbp launch
 * or mpirun, on shm, mpi, or with gradients on the fake GPU (MGWFBP_DEVICE=cuda): usage:
 * test_misuse metric|broadcast|barrier    rank 0 does that while the others begin a step
 *        test_misuse start     rank 0 starts while the others average a number
 *        test_misuse alike     rank 0 averages the gradients itself
 *        test_misuse other     rank 0 averages a number more than the others
 *        test_misuse fork      a fork uses the engine, before start, between steps and in a step
 *        test_misuse update    rank 0 averages a number before it says that it has updated
 * and with MGWFBP_DEBUG=1:
 *        test_misuse written   rank 1 writes to a gradient after it was ready
 *        test_misuse late      rank 1 writes to an average before wait
 *        test_misuse shared    rank 1 keeps two gradients in the same memory
 *        test_misuse nothing   all is as it should be
 * Ends with 0 if it was told something, or with 1. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <mgwfbp/mgwfbp.h>

enum { TENSORS = 3, COUNT = 5000 };

static mgw_error error;
static mgw_engine *engine;
static mgw_device *device; /* null: gradients are in the host's memory */

static int say(const char *what, mgw_status status)
{
    printf("rank %u: %s: %s\n", mgw_engine_rank(engine), what, status ? error.message : "fine");
    fflush(stdout);
    return status ? 0 : 1;
}

static void must(mgw_status status, const char *what)
{
    if (!status)
        return;
    say(what, status);
    exit(3);
}

static void open_engine(bool keeps_parameters)
{
    mgw_engine_options options = {.policy = keeps_parameters ? "zero:1KiB" : "wfbp",
                                  .cluster = "paper-2-10gbe",
                                  .keeps_parameters = keeps_parameters};
    const char *where = getenv("MGWFBP_DEVICE");
    if (where && !strcmp(where, "cuda"))
        must(mgw_device_open(&device, &error), "device");
    must(mgw_engine_open(&options, &engine, &error), "open");
    for (int t = 0; t < TENSORS; t++) {
        char name[8];
        unsigned id = 0;
        snprintf(name, sizeof name, "t%d", t);
        must(mgw_engine_add(engine, name, COUNT, MGW_F32, &id, &error), "add");
    }
}

static void start(bool keeps_parameters)
{
    open_engine(keeps_parameters);
    must(mgw_engine_start(engine, &error), "start");
}

static void write_gradient(unsigned id, float value)
{
    static float numbers[COUNT];
    void *at = mgw_engine_gradient(engine, id);
    for (size_t i = 0; i < COUNT; i++)
        numbers[i] = value;
    if (!device) {
        memcpy(at, numbers, sizeof numbers);
        return;
    }
    must(mgw_device_write(device, at, numbers, sizeof numbers, &error), "write");
    must(mgw_device_finish(device, &error), "finish");
}

static mgw_status step(void)
{
    mgw_status status = mgw_engine_begin(engine, &error);
    for (unsigned t = 0; !status && t < TENSORS; t++) {
        write_gradient(t, (float)mgw_engine_rank(engine));
        mgw_engine_ready(engine, t);
    }
    if (!status)
        status = mgw_engine_wait(engine, &error);
    return status ? status : mgw_engine_synchronize(engine, &error);
}

/* ---- Different collectives ---- */

static int differ(const char *mode)
{
    double numbers[2] = {0};
    start(false);
    must(step(), "step");
    if (mgw_engine_rank(engine))
        return say("step", step());
    return say(mode, !strcmp(mode, "metric")
                         ? mgw_engine_all_reduce(engine, numbers, 1, MGW_F64, MGW_SUM, &error)
                     : !strcmp(mode, "barrier")
                         ? mgw_engine_barrier(engine, &error)
                         : mgw_engine_broadcast(engine, numbers, sizeof numbers, &error));
}

/* Rank 0 averages all gradients itself, as message 1 would: but the others are in a step. */
static int differ_in_purpose(const char *mode)
{
    start(false);
    must(step(), "step");
    mgw_timeline *timeline = NULL;
    must(mgw_engine_timeline(engine, &timeline, &error), "timeline");
    size_t count = timeline->spans[timeline->span_count - 1].bytes / sizeof(float);
    float *first = mgw_engine_gradient(engine, 0);
    mgw_timeline_destroy(timeline);
    if (mgw_engine_rank(engine))
        return say("step", step());
    return say(mode, mgw_engine_all_reduce(engine, first, count, MGW_F32, MGW_AVERAGE, &error));
}

static int differ_in_start(const char *mode)
{
    double number = 0;
    open_engine(false);
    if (mgw_engine_rank(engine) == 0)
        return say(mode, mgw_engine_start(engine, &error));
    return say("metric", mgw_engine_all_reduce(engine, &number, 1, MGW_F64, MGW_SUM, &error));
}

static int differ_in_number(const char *mode)
{
    double numbers[2] = {0};
    start(false);
    size_t count = mgw_engine_rank(engine) ? 1 : 2;
    return say(mode, mgw_engine_all_reduce(engine, numbers, count, MGW_F64, MGW_SUM, &error));
}

/* Its gathers come when they may, between steps. */
static int differ_before_update(const char *mode)
{
    double number = 0;
    start(true);
    for (int i = 0; i < 12; i++) { /* until the plan has gathers */
        must(step(), "step");
        if (i < 11)
            must(mgw_engine_update(engine, MGW_NO_OPERATION, &error), "update");
    }
    if (mgw_engine_rank(engine) == 0)
        return say(mode, mgw_engine_all_reduce(engine, &number, 1, MGW_F64, MGW_SUM, &error));
    mgw_status status = mgw_engine_update(engine, MGW_NO_OPERATION, &error);
    if (status) /* on a GPU gathers may begin in there */
        return say("update", status);
    return say("drain", mgw_engine_drain(engine, &error));
}

/* ---- Errors that only the option `debug` detects ---- */

static void pause_ms(long ms)
{
    nanosleep(&(struct timespec){.tv_nsec = ms * 1000000}, NULL);
}

/* All three are in one message at first, which waits for the last. */
static int write_after(const char *mode)
{
    bool late = !strcmp(mode, "late");
    start(false);
    bool odd = mgw_engine_rank(engine) == 1;
    must(mgw_engine_begin(engine, &error), "begin");
    for (unsigned t = 0; t < TENSORS; t++) {
        write_gradient(t, (float)t);
        mgw_engine_ready(engine, t);
        if (odd && t == 1 && !late)
            write_gradient(0, 7);
    }
    if (late)
        pause_ms(700);
    if (late && odd)
        write_gradient(1, 7);
    return say(mode, mgw_engine_wait(engine, &error));
}

/* On rank 1 what was average 0 is average 1 in the end. */
static int share_memory(const char *mode)
{
    static float memory[COUNT];
    start(false);
    bool odd = mgw_engine_rank(engine) == 1;
    for (unsigned t = 0; odd && t < 2; t++)
        must(mgw_engine_bind(engine, t, memory, &error), "bind");
    must(mgw_engine_begin(engine, &error), "begin");
    for (unsigned t = 0; t < TENSORS; t++) {
        if (!odd || t == 2)
            write_gradient(t, (float)t);
        mgw_engine_ready(engine, t);
    }
    return say(mode, mgw_engine_wait(engine, &error));
}

static int do_nothing_wrong(const char *mode)
{
    double number = 1;
    start(false);
    mgw_status status = MGW_OK;
    for (int i = 0; !status && i < 12; i++)
        status = step();
    if (!status)
        status = mgw_engine_all_reduce(engine, &number, 1, MGW_F64, MGW_SUM, &error);
    say(mode, status);
    return status ? 1 : 0;
}

/* ---- Forks ---- */

static int use_in_fork(const char *call)
{
    static float numbers[COUNT];
    alarm(10); /* it may not hang */
    mgw_engine_ready(engine, 0);
    mgw_engine_ready_at(engine, 0, numbers, NULL);
    mgw_engine_ready_range(engine, 0, TENSORS);
    mgw_engine_mark(engine, 0, NULL);
    mgw_status status = !strcmp(call, "start")     ? mgw_engine_start(engine, &error)
                        : !strcmp(call, "begin")   ? mgw_engine_begin(engine, &error)
                        : !strcmp(call, "wait")    ? mgw_engine_wait(engine, &error)
                        : !strcmp(call, "barrier") ? mgw_engine_barrier(engine, &error)
                        : !strcmp(call, "bind")    ? mgw_engine_bind(engine, 0, numbers, &error)
                        : !strcmp(call, "set_policy")
                            ? mgw_engine_set_policy(engine, "single", &error)
                        : !strcmp(call, "add")
                            ? mgw_engine_add(engine, "more", 1, MGW_F32, &(unsigned){0}, &error)
                            : mgw_engine_all_reduce(engine, numbers, 1, MGW_F32, MGW_SUM, &error);
    int told = say(call, status);
    mgw_engine_close(engine);
    return told;
}

static void try_in_fork(const char *call)
{
    int ended = 0;
    fflush(NULL);
    pid_t child = fork();
    if (child == 0)
        _exit(use_in_fork(call));
    if (waitpid(child, &ended, 0) != child || ended) {
        printf("rank %u: %s: the fork ended with %x\n", mgw_engine_rank(engine), call, ended);
        exit(4);
    }
}

static int use_in_forks(const char *unused)
{
    (void)unused;
    open_engine(false);
    try_in_fork("start");
    try_in_fork("add");
    must(mgw_engine_start(engine, &error), "start");
    must(step(), "step");
    try_in_fork("begin");
    try_in_fork("all-reduce");
    try_in_fork("barrier");
    try_in_fork("set_policy");
    must(mgw_engine_begin(engine, &error), "begin");
    write_gradient(0, (float)mgw_engine_rank(engine));
    mgw_engine_ready(engine, 0);
    try_in_fork("wait");
    try_in_fork("bind");
    for (unsigned t = 1; t < TENSORS; t++)
        mgw_engine_ready(engine, t);
    must(mgw_engine_wait(engine, &error), "wait");
    must(step(), "step"); /* the parent is not affected */
    return 0;
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        int (*run)(const char *name);
    } modes[] = {
        {"metric", differ},           {"broadcast", differ},
        {"barrier", differ},          {"start", differ_in_start},
        {"alike", differ_in_purpose}, {"other", differ_in_number},
        {"fork", use_in_forks},       {"update", differ_before_update},
        {"written", write_after},     {"late", write_after},
        {"shared", share_memory},     {"nothing", do_nothing_wrong},
    };
    for (size_t i = 0; argc > 1 && i < sizeof modes / sizeof *modes; i++)
        if (!strcmp(argv[1], modes[i].name)) {
            int code = modes[i].run(argv[1]);
            mgw_engine_close(engine);
            mgw_device_close(device);
            return code;
        }
    fprintf(stderr, "usage: test_misuse MODE\n");
    return 2;
}
