/* Workers of tests that go on when others die: averages are of those who are left, and of nobody
 * else. */
#ifndef MGW_TEST_REFORM_RANKS_H
#define MGW_TEST_REFORM_RANKS_H

#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <mgwfbp/mgwfbp.h>

#include "support.h"

enum { WORKERS = 5, STEPS = 60, TENSORS = 3, NEVER = 1000 };

/* Also over what is not nccl, through the host. */
static bool on_gpu;

/* What all processes of a test see. */
typedef struct board {
    _Atomic unsigned
        sums[STEPS]; /* by step: who has taken part, a bit for each; all say the same */
    _Atomic unsigned reforms[WORKERS];
    _Atomic unsigned done[WORKERS]; /* steps */
    char wrong[WORKERS][300];
} board;

typedef struct worker {
    board *seen;
    const char *transport;
    char job[64];
    unsigned rank; /* at first */
    unsigned dies; /* before its gradients of this step are ready */
    bool bound;    /* gradients are its own memory */
    double timeout_s;
    long pause_ns; /* before each step */
    float own[TENSORS][1000];
} worker;

static inline size_t count_of(unsigned t)
{
    return (size_t[]){1, 1000, 64}[t];
}

static inline mgw_status fill_and_tell(worker *w, mgw_engine *engine, unsigned step)
{
    for (unsigned t = 0; t < TENSORS; t++) {
        float *gradient = w->bound ? w->own[t] : mgw_engine_gradient(engine, t);
        for (size_t i = 0; i < count_of(t); i++)
            gradient[i] = (float)(1u << w->rank);
        if (t == 1 && step == w->dies)
            raise(SIGKILL);
        mgw_engine_ready(engine, t);
    }
    return MGW_OK;
}

/* The sum says who has taken part: this one, as many as there are, and the same to all. */
static inline bool check(worker *w, mgw_engine *engine, unsigned step)
{
    float *first = w->bound ? w->own[0] : mgw_engine_gradient(engine, 0);
    unsigned sum = (unsigned)*first;
    unsigned open = 0;
    bool good = sum >> w->rank & 1 && (unsigned)__builtin_popcount(sum) == mgw_engine_size(engine);
    good = good &&
           (unsigned)__builtin_popcount(sum & ((1u << w->rank) - 1)) == mgw_engine_rank(engine);
    if (!atomic_compare_exchange_strong(&w->seen->sums[step], &open, sum))
        good = good && open == sum;
    for (unsigned t = 0; t < TENSORS; t++) {
        const float *gradient = w->bound ? w->own[t] : mgw_engine_gradient(engine, t);
        for (size_t i = 0; i < count_of(t); i++)
            good = good && gradient[i] == (float)sum;
    }
    if (!good)
        snprintf(w->seen->wrong[w->rank], 300, "step %u: the sum is %u, on rank %u of %u", step,
                 sum, mgw_engine_rank(engine), mgw_engine_size(engine));
    return good;
}

static inline mgw_status run_step(worker *w, mgw_engine *engine, unsigned step, mgw_error *error)
{
    nanosleep(&(struct timespec){.tv_nsec = w->pause_ns}, NULL);
    mgw_status status = mgw_engine_begin(engine, error);
    if (!status)
        status = fill_and_tell(w, engine, step);
    if (!status)
        status = mgw_engine_wait(engine, error);
    return status ? status
                  : mgw_engine_synchronize(engine, error); /* the fake GPU's memory is ours */
}

static inline mgw_status open_engine(worker *w, const mgw_engine_options *options, mgw_engine **out,
                                     mgw_error *error)
{
    mgw_status status = mgw_engine_open(options, out, error);
    for (unsigned t = 0; !status && t < TENSORS; t++) {
        char name[8];
        unsigned id = 0;
        snprintf(name, sizeof name, "t%u", t);
        status = mgw_engine_add(*out, name, count_of(t), MGW_F32, &id, error);
    }
    if (!status)
        status = mgw_engine_start(*out, error);
    for (unsigned t = 0; !status && w->bound && t < TENSORS; t++)
        status = mgw_engine_bind(*out, t, w->own[t], error);
    return status;
}

static inline void be_worker(worker *w)
{
    mgw_engine_options options = {.transport = {.name = w->transport,
                                                .rank = w->rank,
                                                .size = WORKERS,
                                                .job = w->job,
                                                .timeout_s = w->timeout_s},
                                  .device =
                                      on_gpu || strstr(w->transport, "nccl") ? "cuda" : "host",
                                  .op = MGW_SUM,
                                  .profile_steps = 3};
    mgw_engine *engine = NULL;
    mgw_error error = {.message = "?"};
    mgw_status status = open_engine(w, &options, &engine, &error);
    for (unsigned step = 0; !status && step < STEPS;) {
        status = run_step(w, engine, step, &error);
        if (!status && !check(w, engine, step))
            _exit(1);
        step += !status;
        w->seen->done[w->rank] = step;
        if (status == MGW_ERR_PEER || status == MGW_ERR_TIMEOUT) {
            status = mgw_engine_reform(engine, &options, &engine, &error);
            w->seen->reforms[w->rank] += !status;
        }
    }
    if (status)
        snprintf(w->seen->wrong[w->rank], 300, "%s", error.message);
    mgw_engine_close(engine);
    _exit(status ? 1 : 0);
}

static inline board *start_with(const char *transport, const unsigned dies[WORKERS], bool bound,
                                double timeout_s, long pause_ns, pid_t pids[WORKERS])
{
    static int number;
    board *seen =
        mmap(NULL, sizeof *seen, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(seen != MAP_FAILED);
    number++;
    for (unsigned r = 0; r < WORKERS; r++) {
        pids[r] = fork();
        assert_true(pids[r] >= 0);
        if (pids[r] == 0) {
            worker *w = calloc(1, sizeof *w);
            *w = (worker){.seen = seen,
                          .transport = transport,
                          .rank = r,
                          .dies = dies[r],
                          .bound = bound,
                          .timeout_s = timeout_s,
                          .pause_ns = pause_ns};
            snprintf(w->job, sizeof w->job, "reform-%ld-%d", (long)getppid(), number);
            be_worker(w);
        }
    }
    return seen;
}

static inline board *start(const char *transport, const unsigned dies[WORKERS], bool bound,
                           pid_t pids[WORKERS])
{
    return start_with(transport, dies, bound, 5, 0, pids);
}

/* Who was killed by us is gone; all others have done all steps. Returns who was killed. */
static inline unsigned end(board *seen, const pid_t pids[WORKERS])
{
    unsigned killed = 0;
    for (unsigned r = 0; r < WORKERS; r++) {
        int status = 0;
        assert_int_equal(waitpid(pids[r], &status, 0), pids[r]);
        if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) {
            killed |= 1u << r;
            continue;
        }
        if (status || seen->done[r] != STEPS)
            fail_msg("rank %u: status %x, %u steps: %s", r, status, seen->done[r], seen->wrong[r]);
    }
    return killed;
}

static inline void try_dying(const char *transport, const unsigned dies[WORKERS], bool bound)
{
    pid_t pids[WORKERS];
    board *seen = start(transport, dies, bound, pids);
    unsigned killed = end(seen, pids);
    for (unsigned r = 0; r < WORKERS; r++)
        assert_int_equal(killed >> r & 1, dies[r] < STEPS);
    for (unsigned step = 0; step < STEPS; step++) { /* those who have not died before it */
        unsigned wanted = 0;
        for (unsigned r = 0; r < WORKERS; r++)
            wanted |= dies[r] > step ? 1u << r : 0;
        assert_int_equal(seen->sums[step], wanted);
    }
    munmap(seen, sizeof *seen);
}

#endif
