/*
 * Every allocation and every call of the system that jobs of two workers make fails once: in
 * opening, collectives, steps and closing, over shm and tcp. Each run is a child's, which must end
 * in time, with an error that says something or with the right sums, and leave no memory and no
 * file open.
 *
 *     inject_library [--every K] [--offset O] [--only NAME] [--verbose]
 */
#include <dirent.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <mgwfbp/mgwfbp.h>

#include "inject.h"

enum { RANKS = 2, LIMIT_S = 30 };

typedef struct rank_end {
    mgw_status status;
    mgw_error error;
    bool wrong; /* it says that all is well, and sums are not */
} rank_end;

/* What a child tells its parent, in shared memory. */
typedef struct run_end {
    rank_end ranks[RANKS];
    unsigned long counts[INJECT_MODES];
    bool hit;
    char where[128];
    long live;
    char leak[128];
    int descriptors; /* more than before */
} run_end;

typedef struct scenario {
    const char *name;
    const char *transport;
    void (*run)(const struct scenario *s, const mgw_transport_options *options, rank_end *end);
    bool keeps_parameters;
    const char *wire;
} scenario;

static double now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* ---- What workers do ---- */

static void check_sum(const float *data, size_t count, float expected, rank_end *end)
{
    for (size_t i = 0; i < count; i++)
        end->wrong |= data[i] != expected;
}

static void fill(float *data, size_t count, float value)
{
    for (size_t i = 0; i < count; i++)
        data[i] = value;
}

/* Small, large and shared messages of every kind. */
static void run_transport(const scenario *s, const mgw_transport_options *options, rank_end *end)
{
    enum { LARGE = 200000 };
    static float room[RANKS][LARGE];
    float *data = room[options->rank];
    float own = (float)(options->rank + 1);
    void *shared = NULL;
    mgw_transport *t = NULL;
    mgw_error *error = &end->error;
    (void)s;
    end->status = mgw_transport_open(options, &t, error);
    if (!end->status)
        end->status = mgw_transport_allocate(t, 5000 * sizeof(float), &shared, error);
    static const size_t counts[] = {3, 5000, LARGE};
    for (size_t i = 0; !end->status && i < 3; i++) {
        float *at = i == 1 ? shared : data;
        fill(at, counts[i], own);
        end->status = mgw_transport_all_reduce(t, at, counts[i], MGW_F32, MGW_SUM, error);
        if (!end->status)
            check_sum(at, counts[i], 3, end);
    }
    fill(data, 1000, options->rank == 0 ? 7 : 0);
    if (!end->status)
        end->status = mgw_transport_broadcast(t, data, 4000, 0, error);
    if (!end->status)
        check_sum(data, 1000, 7, end);
    fill(data, 1000, own);
    if (!end->status)
        end->status = mgw_transport_reduce_scatter(t, data, 1000, MGW_F32, MGW_SUM, error);
    if (!end->status)
        end->status = mgw_transport_all_gather(t, data, 1000, MGW_F32, error);
    if (!end->status)
        check_sum(data, 1000, 3, end);
    if (!end->status)
        end->status = mgw_transport_barrier(t, error);
    mgw_transport_close(t);
}

enum { TENSORS = 5, STEPS = 12 };

static const size_t tensor_counts[TENSORS] = {10, 3000, 0, 700, 40000};

static mgw_status run_step(mgw_engine *engine, const scenario *s, unsigned rank, int step,
                           rank_end *end)
{
    mgw_status status = mgw_engine_begin(engine, &end->error);
    for (unsigned id = TENSORS; !status && s->keeps_parameters && id-- > 0;)
        status = mgw_engine_need(engine, id, &end->error);
    for (unsigned id = 0; !status && id < TENSORS; id++) {
        float *gradient = mgw_engine_gradient(engine, id);
        fill(gradient, tensor_counts[id], (float)(2 * (rank + 1) + (unsigned)step));
        mgw_engine_ready(engine, id);
    }
    if (!status)
        status = mgw_engine_wait(engine, &end->error);
    for (unsigned id = 0; !status && !s->keeps_parameters && id < TENSORS; id++)
        check_sum(mgw_engine_gradient(engine, id), tensor_counts[id], (float)(3 + step), end);
    return status;
}

static mgw_status update_nothing(void *context, const mgw_shard *shards, size_t count,
                                 mgw_error *error)
{
    (void)context, (void)shards, (void)count, (void)error;
    return MGW_OK;
}

static void run_engine(const scenario *s, const mgw_transport_options *options, rank_end *end)
{
    mgw_engine_options wanted = {.transport = *options,
                                 .profile_steps = 2,
                                 .replan_steps = 4,
                                 .wire = s->wire,
                                 .keeps_parameters = s->keeps_parameters};
    mgw_engine *engine = NULL;
    mgw_error *error = &end->error;
    end->status = mgw_engine_open(&wanted, &engine, error);
    for (unsigned i = 0; !end->status && i < TENSORS; i++) {
        char name[16];
        unsigned id = 0;
        snprintf(name, sizeof name, "t%u", i);
        end->status = mgw_engine_add(engine, name, tensor_counts[i], MGW_F32, &id, error);
    }
    if (!end->status && s->keeps_parameters)
        end->status = mgw_engine_on_update(engine, update_nothing, NULL, error);
    if (!end->status)
        end->status = mgw_engine_start(engine, error);
    for (int step = 0; !end->status && step < STEPS; step++)
        end->status = run_step(engine, s, options->rank, step, end);
    mgw_timeline *timeline = NULL;
    if (!end->status)
        end->status = mgw_engine_timeline(engine, &timeline, error);
    mgw_timeline_destroy(timeline);
    if (!end->status)
        end->status = mgw_engine_set_policy(engine, "single", error);
    if (!end->status)
        end->status = run_step(engine, s, options->rank, STEPS, end);
    if (!end->status && s->keeps_parameters)
        end->status = mgw_engine_drain(engine, error);
    mgw_engine_close(engine);
}

static const scenario scenarios[] = {
    {"transport", "shm", run_transport, false, NULL},
    {"transport", "tcp", run_transport, false, NULL},
    {"engine", "shm", run_engine, false, NULL},
    {"engine, f16", "shm", run_engine, false, "f16"},
    {"parameters", "shm", run_engine, true, NULL},
};

/* ---- One run ---- */

typedef struct worker {
    const scenario *scenario;
    mgw_transport_options options;
    rank_end *end;
} worker;

static void *work(void *argument)
{
    worker *w = argument;
    w->scenario->run(w->scenario, &w->options, w->end);
    return NULL;
}

static int count_descriptors(void)
{
    DIR *folder = opendir("/proc/self/fd");
    int count = 0;
    while (folder && readdir(folder))
        count++;
    if (folder)
        closedir(folder);
    return count;
}

/* Rank 0's socket, so that the port is free; and where it is. */
static int listen_anywhere(char address[32])
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof at;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&at, length) || listen(fd, 8) ||
        getsockname(fd, (struct sockaddr *)&at, &length))
        _exit(97);
    snprintf(address, 32, "127.0.0.1:%u", ntohs(at.sin_port));
    return fd;
}

static void run_child(const scenario *s, inject_mode mode, unsigned long at, run_end *out)
{
    static const char *const library[] = {"libmgwfbp", "libjansson", NULL};
    static worker workers[RANKS];
    static char job[64], address[32], listening[16];
    pthread_t threads[RANKS];
    int before = count_descriptors();
    int fd = listen_anywhere(address);
    snprintf(job, sizeof job, "inject-%ld", (long)getpid());
    snprintf(listening, sizeof listening, "fd:%d", fd);
    bool tcp = !strcmp(s->transport, "tcp");
    bool must_work = at == 0 || mode == INJECT_INTERRUPT || mode == INJECT_SHORT;
    if (!tcp)
        close(fd);
    for (unsigned r = 0; r < RANKS; r++)
        workers[r] = (worker){s,
                              {.name = s->transport,
                               .rank = r,
                               .size = RANKS,
                               .job = job,
                               .address = tcp ? (r == 0 ? listening : address) : NULL,
                               .timeout_s = must_work ? 20 : 0.4},
                              &out->ranks[r]};
    inject_arm(mode, at, library);
    for (unsigned r = 0; r < RANKS; r++)
        if (pthread_create(&threads[r], NULL, work, &workers[r]))
            _exit(96);
    for (unsigned r = 0; r < RANKS; r++)
        pthread_join(threads[r], NULL);
    inject_disarm(out->counts);
    out->hit = inject_hit(out->where, sizeof out->where);
    out->live = inject_live(out->leak, sizeof out->leak);
    out->descriptors = count_descriptors() - before;
    /* A listening socket that rank 0 did not come to take is still ours. */
    out->descriptors -= out->descriptors > 0 && tcp && workers[0].end->status;
    exit(0);
}

/* Its exit status; negative: a signal, or it hung. */
static int run_point(const scenario *s, inject_mode mode, unsigned long at, run_end *out)
{
    int status = 0;
    memset(out, 0, sizeof *out);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0)
        run_child(s, mode, at, out);
    double until_s = now_s() + LIMIT_S;
    while (waitpid(child, &status, WNOHANG) != child) {
        if (now_s() > until_s) {
            kill(child, SIGKILL);
            waitpid(child, &status, 0);
            return -1000;
        }
        usleep(500);
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

/* ---- All of them ---- */

/* What is wrong with it, or null. */
static const char *judge(int code, const run_end *e, inject_mode mode, bool *error)
{
    *error = false;
    if (code)
        return code == -1000 ? "it hung" : code < 0 ? "it crashed" : "its exit status";
    for (unsigned r = 0; r < RANKS; r++) {
        *error |= e->ranks[r].status != MGW_OK;
        if (e->ranks[r].status && !e->ranks[r].error.message[0])
            return "an error without words";
        if (e->ranks[r].wrong)
            return "wrong sums";
    }
    if (*error && (mode == INJECT_INTERRUPT || mode == INJECT_SHORT))
        return "an error for nothing";
    if (e->live)
        return "memory is left";
    return e->descriptors ? "files are left open" : NULL;
}

typedef struct totals {
    unsigned long points, tried, errors, bad;
} totals;

static void run_mode(const scenario *s, inject_mode mode, unsigned long points, unsigned long every,
                     unsigned long offset, bool verbose, run_end *e, totals *t)
{
    t->points += points;
    for (unsigned long at = 1 + offset % every; at <= points; at += every) {
        bool error = false;
        int code = run_point(s, mode, at, e);
        const char *why = judge(code, e, mode, &error);
        t->tried++;
        t->errors += error;
        t->bad += why != NULL;
        if (why || verbose)
            printf("%s over %s, %s %lu (%s): %s (%d), %ld left (%s), %d files; %s | %s\n", s->name,
                   s->transport, inject_mode_names[mode], at, e->where, why ? why : "good", code,
                   e->live, e->leak, e->descriptors, e->ranks[0].error.message,
                   e->ranks[1].error.message);
        fflush(stdout);
    }
}

/* Without any failure; how many points there are. */
static bool run_well(const scenario *s, run_end *e, unsigned long points[INJECT_MODES])
{
    bool error = false;
    const char *why = judge(run_point(s, INJECT_MEMORY, 0, e), e, INJECT_MEMORY, &error);
    memcpy(points, e->counts, sizeof e->counts);
    if (why || error)
        printf("%s over %s without any failure: %s; %s | %s\n", s->name, s->transport,
               why ? why : "an error", e->ranks[0].error.message, e->ranks[1].error.message);
    return !why && !error;
}

int main(int argc, char **argv)
{
    unsigned long every = 1, offset = (unsigned long)(now_s() * 1e6) % 1000003;
    const char *only = "", *only_mode = "";
    bool verbose = false;
    totals all = {0};
    for (int i = 1; i < argc; i++) {
        verbose |= !strcmp(argv[i], "--verbose");
        if (i + 1 < argc && !strcmp(argv[i], "--every"))
            every = strtoul(argv[i + 1], NULL, 10);
        if (i + 1 < argc && !strcmp(argv[i], "--offset"))
            offset = strtoul(argv[i + 1], NULL, 10);
        if (i + 1 < argc && !strcmp(argv[i], "--only"))
            only = argv[i + 1];
        if (i + 1 < argc && !strcmp(argv[i], "--mode"))
            only_mode = argv[i + 1];
    }
    run_end *e = mmap(NULL, sizeof *e, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (e == MAP_FAILED || every == 0)
        return 2;
    printf("one in %lu, offset %lu\n", every, offset);
    for (size_t i = 0; i < sizeof scenarios / sizeof *scenarios; i++) {
        const scenario *s = &scenarios[i];
        unsigned long points[INJECT_MODES];
        if (!strstr(s->name, only))
            continue;
        if (!run_well(s, e, points))
            return 1;
        for (int mode = 1; mode < INJECT_MODES; mode++) {
            totals t = {0};
            if (!strstr(inject_mode_names[mode], only_mode))
                continue;
            run_mode(s, (inject_mode)mode, points[mode], every, offset, verbose, e, &t);
            printf(
                "%-12s %-4s %-10s %6lu points, %5lu tried: %5lu errors, %5lu went well, %lu bad\n",
                s->name, s->transport, inject_mode_names[mode], t.points, t.tried, t.errors,
                t.tried - t.errors, t.bad);
            all.points += t.points;
            all.tried += t.tried;
            all.errors += t.errors;
            all.bad += t.bad;
        }
    }
    printf("%lu points, %lu tried: %lu errors, %lu went well, %lu bad\n", all.points, all.tried,
           all.errors, all.tried - all.errors, all.bad);
    return all.bad || !all.tried;
}
