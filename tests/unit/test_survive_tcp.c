/* After a failure, over TCP, on fake GPUs: how long the surviving ranks take to find each other,
 * what a hub knows after it was stopped, and which sockets stay open. */
#include "tcp_ranks.h"

#include <dirent.h>
#include <stdatomic.h>
#include <stdlib.h>

enum { MOST = 16 };

/* Shared by all processes of a test. */
typedef struct board {
    _Atomic unsigned steps[MOST]; /* by rank */
    _Atomic unsigned size[MOST];  /* of the group in which it continues, or 0 */
    _Atomic int listening[MOST];  /* sockets after the end */
    _Atomic bool lost[MOST];      /* it has noticed the failure */
    _Atomic unsigned holds;       /* these ranks wait before they continue, one bit each */
    char wrong[MOST][300];
} board;

typedef struct group {
    unsigned size;
    double timeout_s;
    const char *device; /* of the continued engine; null: the same */
    board *seen;
    pid_t pids[MOST];
} group;

static void doze(double s)
{
    struct timespec pause = {.tv_sec = (time_t)s, .tv_nsec = (long)((s - (double)(long)s) * 1e9)};
    nanosleep(&pause, NULL);
}

static int count_listening(void)
{
    DIR *folder = opendir("/proc/self/fd");
    int count = 0;
    assert_non_null(folder);
    for (struct dirent *each = NULL; (each = readdir(folder));) {
        int listens = 0;
        socklen_t length = sizeof listens;
        if (!getsockopt(atoi(each->d_name), SOL_SOCKET, SO_ACCEPTCONN, &listens, &length))
            count += listens;
    }
    closedir(folder);
    return count;
}

static mgw_status run_step(mgw_engine *engine, mgw_error *error)
{
    mgw_status status = mgw_engine_begin(engine, error);
    if (!status) {
        mgw_engine_ready(engine, 0);
        status = mgw_engine_wait(engine, error);
    }
    doze(0.002);
    return status;
}

/* Runs steps until a failure, then a few more with the surviving ranks. */
static void be_worker(const group *g, unsigned rank, const char *name)
{
    board *seen = g->seen;
    mgw_engine_options options = {.transport = {.name = "nccl:tcp",
                                                .rank = rank,
                                                .size = g->size,
                                                .job = name,
                                                .timeout_s = g->timeout_s},
                                  .device = "cuda",
                                  .op = MGW_SUM};
    mgw_engine *engine = NULL;
    mgw_error error = {.message = "?"};
    unsigned id = 0;
    mgw_status status = mgw_engine_open(&options, &engine, &error);
    if (!status)
        status = mgw_engine_add(engine, "t", 1, MGW_F32, &id, &error);
    if (!status)
        status = mgw_engine_start(engine, &error);
    while (!status) {
        status = run_step(engine, &error);
        seen->steps[rank] += !status;
    }
    seen->lost[rank] = true;
    while (seen->holds >> rank & 1)
        doze(0.001);
    options.device = g->device ? g->device : options.device;
    if (status == MGW_ERR_PEER || status == MGW_ERR_TIMEOUT)
        status = mgw_engine_reform(engine, &options, &engine, &error);
    if (!status)
        seen->size[rank] = mgw_engine_size(engine);
    else
        snprintf(seen->wrong[rank], sizeof seen->wrong[rank], "%s", error.message);
    mgw_engine_close(engine);
    seen->listening[rank] = count_listening();
    _exit(0);
}

static group start(group g)
{
    static int number;
    char name[64];
    snprintf(name, sizeof name, "survive-%ld-%d", (long)getpid(), number++);
    set_port("127.0.0.1");
    g.seen = mmap(NULL, sizeof *g.seen, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(g.seen != MAP_FAILED);
    for (unsigned r = 0; r < g.size; r++) {
        g.pids[r] = fork();
        assert_true(g.pids[r] >= 0);
        if (g.pids[r] == 0)
            be_worker(&g, r, name);
    }
    for (unsigned r = 0; r < g.size; r++)
        while (g.seen->steps[r] < 3 && !g.seen->lost[r])
            doze(0.001);
    return g;
}

/* For these ranks; the others are gone. */
static void end(group *g, unsigned first, unsigned size)
{
    for (unsigned r = 0; r < g->size; r++) {
        if (r < first || r >= first + size)
            kill(g->pids[r], SIGKILL);
        assert_int_equal(waitpid(g->pids[r], NULL, 0), g->pids[r]);
    }
}

static void expect_size(const group *g, unsigned first, unsigned size)
{
    for (unsigned r = first; r < first + size; r++)
        if (g->seen->size[r] != size)
            fail_msg("rank %u goes on as one of %u: %s", r, g->seen->size[r], g->seen->wrong[r]);
}

/* A host with six workers hangs: the others wait for all of them in parallel. */
static void the_silent_are_tried_at_the_same_time(void **unused)
{
    (void)unused;
    group g = start((group){.size = 13, .timeout_s = 1});
    for (unsigned r = 0; r < 6; r++)
        kill(g.pids[r], SIGSTOP);
    double begun_s = clock_s();
    for (unsigned r = 6; r < 13; r++)
        while (!g.seen->size[r] && !g.seen->wrong[r][0])
            doze(0.01);
    double took_s = clock_s() - begun_s;
    end(&g, 6, 7);
    expect_size(&g, 6, 7);
    if (took_s > 16) /* 3 s to notice it, 5 s for rank 0 to answer, 2 s for the others */
        fail_msg("it took %.1f s", took_s);
    munmap(g.seen, sizeof *g.seen);
}

/* Rank 3 comes in time, while the new hub is stopped; the hub's time is up when it continues. */
static void a_hub_reads_before_it_decides(void **unused)
{
    (void)unused;
    bool in_time = false;
    for (int i = 0; !in_time && i < 5; i++) {
        group g = start((group){.size = 5, .timeout_s = 2});
        g.seen->holds = 1u << 3;
        kill(g.pids[0], SIGKILL);
        double begun_s = clock_s();
        while (!g.seen->lost[1] || !g.seen->lost[3])
            doze(0.001);
        doze(0.8);
        kill(g.pids[1], SIGSTOP);
        in_time = clock_s() - begun_s < 1.8; /* otherwise this test was too slow */
        g.seen->holds = 0;
        doze(2.5);
        kill(g.pids[1], SIGCONT);
        end(&g, 1, 4);
        if (in_time)
            expect_size(&g, 1, 4);
        munmap(g.seen, sizeof *g.seen);
    }
    assert_true(in_time);
}

/* One survives, which needs no others; or opening fails before it listens. Only the haven stays
 * open, which shows others that the process exists. */
static void nothing_else_is_left_open(void **unused)
{
    (void)unused;
    static const char *const devices[] = {NULL, "no such device"};
    for (unsigned left = 1; left <= 2; left++)
        for (size_t i = 0; i < 2; i++) {
            group g = start((group){.size = left + 1, .timeout_s = 5, .device = devices[i]});
            kill(g.pids[left], SIGKILL);
            end(&g, 0, left);
            if (devices[i])
                assert_contains(g.seen->wrong[0], "no such device");
            else
                expect_size(&g, 0, left);
            assert_int_equal(g.seen->listening[0], 1);
            munmap(g.seen, sizeof *g.seen);
        }
}

int main(void)
{
    setenv("MGWFBP_DUMP", "", 1);
    unsetenv("MGWFBP_SECRET");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_silent_are_tried_at_the_same_time),
        cmocka_unit_test(a_hub_reads_before_it_decides),
        cmocka_unit_test(nothing_else_is_left_open),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
