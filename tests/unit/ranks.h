/* Jobs of several ranks, in threads or child processes; each runs a body and reports its error. */
#ifndef MGW_TESTS_RANKS_H
#define MGW_TESTS_RANKS_H

#include <pthread.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "support.h"

typedef struct rank_result {
    mgw_status status;
    mgw_error error;
    char wrong[200];
} rank_result;

typedef struct job {
    const char *transport;
    unsigned size;
    double timeout_s;
    char name[64];
    void (*body)(mgw_transport *transport, rank_result *result);
    rank_result *results; /* in shared memory, by rank */
} job;

typedef struct rank_start {
    job *job;
    unsigned rank;
} rank_start;

static inline void *run_rank(void *argument)
{
    rank_start *start = argument;
    rank_result *result = &start->job->results[start->rank];
    mgw_transport_options options = {.name = start->job->transport,
                                     .rank = start->rank,
                                     .size = start->job->size,
                                     .job = start->job->name,
                                     .timeout_s = start->job->timeout_s};
    mgw_transport *transport = NULL;
    result->status = mgw_transport_open(&options, &transport, &result->error);
    if (!result->status)
        start->job->body(transport, result);
    mgw_transport_close(transport);
    return NULL;
}

static inline void start_job(job *j)
{
    static int number;
    snprintf(j->name, sizeof j->name, "test-%ld-%d", (long)getpid(), number++);
    j->results = mmap(NULL, 64 * sizeof *j->results, PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(j->results != MAP_FAILED);
}

static inline void end_job(job *j)
{
    munmap(j->results, 64 * sizeof *j->results);
}

static inline void run_threads(job *j)
{
    pthread_t threads[64];
    rank_start starts[64];
    for (unsigned r = 0; r < j->size; r++) {
        starts[r] = (rank_start){j, r};
        assert_int_equal(pthread_create(&threads[r], NULL, run_rank, &starts[r]), 0);
    }
    for (unsigned r = 0; r < j->size; r++)
        assert_int_equal(pthread_join(threads[r], NULL), 0);
}

static inline void run_processes(job *j)
{
    pid_t children[64];
    for (unsigned r = 0; r < j->size; r++) {
        children[r] = fork();
        assert_true(children[r] >= 0);
        if (children[r] == 0) {
            rank_start start = {j, r};
            run_rank(&start);
            _exit(0);
        }
    }
    for (unsigned r = 0; r < j->size; r++)
        waitpid(children[r], NULL, 0);
}

static inline void expect_good(const job *j)
{
    for (unsigned r = 0; r < j->size; r++) {
        if (j->results[r].status)
            fail_msg("%s, %u workers, rank %u: %s", j->transport, j->size, r,
                     j->results[r].error.message);
        if (j->results[r].wrong[0])
            fail_msg("%s, %u workers, rank %u: %s", j->transport, j->size, r, j->results[r].wrong);
    }
}

static inline void run_well(job j, void (*run)(job *))
{
    start_job(&j);
    run(&j);
    expect_good(&j);
    end_job(&j);
}

static inline double clock_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

#endif
