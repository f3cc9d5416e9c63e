/* One conformance test, run over every transport: sums of small integers, which are exact. */
#include <dirent.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "numbers.h"
#include "support.h"
#include "transport/shm.h"

/* A job of several ranks; each runs `body` and reports what went wrong. */
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

static void *run_rank(void *argument)
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

static void start_job(job *j)
{
    static int number;
    snprintf(j->name, sizeof j->name, "test-%ld-%d", (long)getpid(), number++);
    j->results = mmap(NULL, 64 * sizeof *j->results, PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(j->results != MAP_FAILED);
}

static void end_job(job *j)
{
    munmap(j->results, 64 * sizeof *j->results);
}

static void run_threads(job *j)
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

static void run_processes(job *j)
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

static void expect_good(const job *j)
{
    for (unsigned r = 0; r < j->size; r++) {
        if (j->results[r].status)
            fail_msg("%s, %u workers, rank %u: %s", j->transport, j->size, r,
                     j->results[r].error.message);
        if (j->results[r].wrong[0])
            fail_msg("%s, %u workers, rank %u: %s", j->transport, j->size, r, j->results[r].wrong);
    }
}

/* What rank r has at index i: small enough that sums of 8 stay exact even in bf16. */
static unsigned value_of(unsigned rank, size_t index, unsigned size)
{
    return (unsigned)((index * 7 + rank * 3) % 5) * size % 30;
}

static unsigned sum_of(size_t index, unsigned size)
{
    unsigned sum = 0;
    for (unsigned r = 0; r < size; r++)
        sum += value_of(r, index, size);
    return sum;
}

static void fill(void *data, size_t count, mgw_dtype dtype, unsigned rank, unsigned size)
{
    for (size_t i = 0; i < count; i++)
        put(data, i, dtype, value_of(rank, i, size));
}

static bool check(const void *data, size_t first, size_t length, mgw_dtype dtype, unsigned size,
                  unsigned divisor, const char *what, rank_result *result)
{
    for (size_t i = first; i < first + length; i++) {
        if (equals(data, i, dtype, sum_of(i, size) / divisor))
            continue;
        snprintf(result->wrong, sizeof result->wrong, "%s of %s: element %zu is wrong", what,
                 mgw_dtype_name(dtype), i);
        return false;
    }
    return true;
}

static const size_t sizes[] = {0, 1, 2, 31, 33, 1000, 2048, 5000, 131072 + 7, 300001};

static bool check_all_reduce(mgw_transport *t, void *data, size_t count, mgw_dtype dtype,
                             rank_result *result)
{
    unsigned rank = mgw_transport_rank(t);
    unsigned size = mgw_transport_size(t);
    fill(data, count, dtype, rank, size);
    result->status = mgw_transport_all_reduce(t, data, count, dtype, MGW_SUM, &result->error);
    if (result->status || !check(data, 0, count, dtype, size, 1, "sum", result))
        return false;
    /* Every value is a multiple of the number of ranks or small, so average what divides. */
    fill(data, count, dtype, 0, size);
    result->status = mgw_transport_all_reduce(t, data, count, dtype, MGW_AVERAGE, &result->error);
    for (size_t i = 0; !result->status && i < count; i++)
        if (!equals(data, i, dtype, value_of(0, i, size))) {
            snprintf(result->wrong, sizeof result->wrong, "average of %s: element %zu is wrong",
                     mgw_dtype_name(dtype), i);
            return false;
        }
    return !result->status;
}

/* Some below zero; and what all have alike. */
static bool check_largest(mgw_transport *t, void *data, size_t count, mgw_dtype dtype,
                          rank_result *result)
{
    unsigned rank = mgw_transport_rank(t);
    unsigned size = mgw_transport_size(t);
    fill(data, count, dtype, rank, size);
    result->status = mgw_transport_all_reduce(t, data, count, dtype, MGW_MAX, &result->error);
    for (size_t i = 0; !result->status && i < count; i++) {
        unsigned largest = 0;
        for (unsigned r = 0; r < size; r++)
            largest = value_of(r, i, size) > largest ? value_of(r, i, size) : largest;
        if (equals(data, i, dtype, largest))
            continue;
        snprintf(result->wrong, sizeof result->wrong, "largest of %s: element %zu is wrong",
                 mgw_dtype_name(dtype), i);
        return false;
    }
    double numbers[2] = {-1.0 - rank, -7};
    if (!result->status)
        result->status = mgw_transport_all_reduce(t, numbers, 2, MGW_F64, MGW_MAX, &result->error);
    if (!result->status && (numbers[0] != -1 || numbers[1] != -7))
        snprintf(result->wrong, sizeof result->wrong, "the largest below zero is wrong");
    return !result->status && !result->wrong[0];
}

static bool check_halves(mgw_transport *t, void *data, size_t count, mgw_dtype dtype,
                         rank_result *result)
{
    unsigned rank = mgw_transport_rank(t);
    unsigned size = mgw_transport_size(t);
    size_t first = 0;
    size_t length = 0;
    mgw_transport_block(count, size, rank, &first, &length);
    fill(data, count, dtype, rank, size);
    result->status = mgw_transport_reduce_scatter(t, data, count, dtype, MGW_SUM, &result->error);
    if (result->status || !check(data, first, length, dtype, size, 1, "reduce-scatter", result))
        return false;
    for (size_t i = 0; i < count; i++)
        if (i < first || i >= first + length)
            put(data, i, dtype, 1); /* the rest is undefined: it must come from the others */
    result->status = mgw_transport_all_gather(t, data, count, dtype, &result->error);
    return !result->status && check(data, 0, count, dtype, size, 1, "all-gather", result);
}

/* Cuts some of them into segments: none, empty ones, of one element, and others. */
static size_t cut(size_t count, size_t *segments, size_t most, uint64_t *random)
{
    static const unsigned limits[] = {1, 2, 40, 400, 40000};
    size_t n = 0;
    while (n + 1 < most && (count || n % 3)) {
        size_t length = random_below(random, limits[random_below(random, 5)]);
        segments[n] = length < count ? length : count;
        count -= segments[n++];
    }
    segments[n] = count;
    return n + 1;
}

static bool run_call(mgw_transport *t, const mgw_call *call, rank_result *result)
{
    mgw_request request;
    result->status = mgw_transport_post(t, call, &request, &result->error);
    if (!result->status)
        result->status = mgw_request_wait(t, &request, &result->error);
    return !result->status;
}

/* Every worker has its block of every segment; what it does not have comes from the others. */
static bool check_segments(mgw_transport *t, void *data, size_t count, mgw_dtype dtype,
                           rank_result *result)
{
    enum { MOST = 50 };
    unsigned rank = mgw_transport_rank(t);
    unsigned size = mgw_transport_size(t);
    size_t segments[MOST];
    uint64_t random = count * 4 + (unsigned)dtype; /* the same on all ranks */
    mgw_call call = {.kind = MGW_REDUCE_SCATTER,
                     .data = data,
                     .count = count,
                     .dtype = dtype,
                     .op = MGW_SUM,
                     .segments = segments,
                     .segment_count = cut(count, segments, MOST, &random)};
    fill(data, count, dtype, rank, size);
    if (!run_call(t, &call, result))
        return false;
    for (size_t s = 0, at = 0; s < call.segment_count; at += segments[s++]) {
        size_t first = 0;
        size_t length = 0;
        mgw_transport_block(segments[s], size, rank, &first, &length);
        if (!check(data, at + first, length, dtype, size, 1, "scattered segments", result))
            return false;
        for (size_t i = 0; i < segments[s]; i++)
            if (i < first || i >= first + length)
                put(data, at + i, dtype, 1);
    }
    call.kind = MGW_ALL_GATHER;
    return run_call(t, &call, result) &&
           check(data, 0, count, dtype, size, 1, "gathered segments", result);
}

static bool check_reduce(mgw_transport *t, void *data, size_t count, mgw_dtype dtype,
                         rank_result *result)
{
    unsigned size = mgw_transport_size(t);
    unsigned root = (unsigned)(count % size);
    unsigned rank = mgw_transport_rank(t);
    fill(data, count, dtype, rank, size);
    result->status = mgw_transport_reduce(t, data, count, dtype, MGW_SUM, root, &result->error);
    if (result->status)
        return false;
    if (rank == root)
        return check(data, 0, count, dtype, size, 1, "reduce", result);
    for (size_t i = 0; i < count; i++)
        if (!equals(data, i, dtype, value_of(rank, i, size))) {
            snprintf(result->wrong, sizeof result->wrong, "reduce changed element %zu", i);
            return false;
        }
    return true;
}

static bool check_broadcast(mgw_transport *t, char *data, size_t bytes, rank_result *result)
{
    for (unsigned root = 0; root < mgw_transport_size(t); root++) {
        memset(data, mgw_transport_rank(t) == root ? 'a' + (int)root : 'z', bytes);
        result->status = mgw_transport_broadcast(t, data, bytes, root, &result->error);
        if (result->status)
            return false;
        for (size_t i = 0; i < bytes; i++)
            if (data[i] != 'a' + (int)root) {
                snprintf(result->wrong, sizeof result->wrong, "broadcast from %u is wrong", root);
                return false;
            }
    }
    return true;
}

/* The largest f16 numbers, whose sum is none: an average of them is. */
static bool check_large_halves(mgw_transport *t, rank_result *result)
{
    enum { COUNT = 1000 };
    uint16_t numbers[COUNT];
    for (size_t i = 0; i < COUNT; i++)
        numbers[i] = 0x7bff;
    result->status =
        mgw_transport_all_reduce(t, numbers, COUNT, MGW_F16, MGW_AVERAGE, &result->error);
    for (size_t i = 0; !result->status && i < COUNT; i++)
        if (numbers[i] != 0x7bff)
            snprintf(result->wrong, sizeof result->wrong, "the average of large f16 is wrong");
    return !result->status && !result->wrong[0];
}

/* Several at once, of every kind, each in memory of its own; the last one's end is that of all. */
static bool check_posts(mgw_transport *t, char *data, bool asks, rank_result *result)
{
    enum { COUNT = 3000, BYTES = COUNT * 4, CALLS = 10 };
    unsigned rank = mgw_transport_rank(t);
    unsigned size = mgw_transport_size(t);
    mgw_request last = {0};
    size_t first = 0;
    size_t length = 0;
    mgw_transport_block(COUNT, size, rank, &first, &length);
    for (size_t i = 0; !result->status && i < CALLS; i++) {
        mgw_collective kind = (mgw_collective)(i % MGW_COLLECTIVE_COUNT);
        mgw_call call = {.kind = kind,
                         .data = data + i * BYTES,
                         .count = kind == MGW_PULL ? BYTES : COUNT,
                         .dtype = MGW_F32,
                         .op = MGW_SUM,
                         .root = (unsigned)i % size};
        fill(call.data, COUNT, MGW_F32, rank, size);
        result->status = mgw_transport_post(t, &call, &last, &result->error);
    }
    bool done = false;
    while (asks && !result->status && !done)
        result->status = mgw_request_test(t, &last, &done, &result->error);
    if (!result->status)
        result->status = mgw_request_wait(t, &last, &result->error);
    for (size_t i = 0; !result->status && i < CALLS; i++) {
        mgw_collective kind = (mgw_collective)(i % MGW_COLLECTIVE_COUNT);
        unsigned root = (unsigned)i % size;
        bool some = kind == MGW_REDUCE_SCATTER;
        if (kind == MGW_ALL_REDUCE || some || (kind == MGW_PUSH && rank == root))
            check(data + i * BYTES, some ? first : 0, some ? length : COUNT, MGW_F32, size, 1,
                  "a posted sum", result);
        for (unsigned r = 0; r < size && (kind == MGW_ALL_GATHER || kind == MGW_PULL); r++) {
            size_t begin = 0;
            size_t count = COUNT;
            unsigned owner = kind == MGW_PULL ? root : r;
            if (kind == MGW_ALL_GATHER)
                mgw_transport_block(COUNT, size, r, &begin, &count);
            for (size_t k = begin; k < begin + count; k++)
                if (!equals(data + i * BYTES, k, MGW_F32, value_of(owner, k, size)))
                    snprintf(result->wrong, sizeof result->wrong, "posted %s: element %zu is wrong",
                             mgw_collective_name(kind), k);
        }
    }
    return !result->status && !result->wrong[0];
}

static void everything(mgw_transport *t, rank_result *result)
{
    void *shared = NULL;
    size_t most = sizes[sizeof sizes / sizeof *sizes - 1];
    void *own = malloc(most * 8);
    result->status = mgw_transport_allocate(t, most * 8 + 64, &shared, &result->error);
    bool good = !result->status && own && check_large_halves(t, result);
    if (good && (uintptr_t)shared % 64) {
        snprintf(result->wrong, sizeof result->wrong, "memory is not aligned");
        good = false;
    }
    for (int dtype = MGW_F32; good && dtype <= MGW_F64; dtype++)
        for (size_t s = 0; good && s < sizeof sizes / sizeof *sizes; s++) {
            /* In our memory (not at its beginning), and in memory from elsewhere. */
            char *inside = (char *)shared + 64;
            good = check_all_reduce(t, inside, sizes[s], (mgw_dtype)dtype, result) &&
                   check_all_reduce(t, own, sizes[s], (mgw_dtype)dtype, result) &&
                   check_largest(t, inside, sizes[s], (mgw_dtype)dtype, result) &&
                   check_largest(t, own, sizes[s], (mgw_dtype)dtype, result) &&
                   check_halves(t, inside, sizes[s], (mgw_dtype)dtype, result) &&
                   check_halves(t, own, sizes[s], (mgw_dtype)dtype, result) &&
                   check_segments(t, inside, sizes[s], (mgw_dtype)dtype, result) &&
                   check_segments(t, own, sizes[s], (mgw_dtype)dtype, result) &&
                   check_reduce(t, inside, sizes[s], (mgw_dtype)dtype, result) &&
                   check_reduce(t, own, sizes[s], (mgw_dtype)dtype, result) &&
                   check_broadcast(t, own, sizes[s], result) &&
                   check_broadcast(t, inside, sizes[s], result) &&
                   !(result->status = mgw_transport_barrier(t, &result->error));
        }
    for (int asks = 0; good && asks < 2; asks++)
        good =
            check_posts(t, (char *)shared + 64, asks, result) && check_posts(t, own, asks, result);
    free(own);
}

static void run_well(job j, void (*run)(job *))
{
    start_job(&j);
    run(&j);
    expect_good(&j);
    end_job(&j);
}

static void conform(void (*run)(job *), const char *transport, unsigned size)
{
    job j = {.transport = transport, .size = size, .timeout_s = 60, .body = everything};
    run_well(j, run);
}

static void self_conforms(void **unused)
{
    (void)unused;
    conform(run_threads, "self", 1);
}

static void shm_conforms_in_threads(void **unused)
{
    (void)unused;
    for (unsigned size = 1; size <= 8; size++)
        conform(run_threads, "shm", size);
}

static void shm_conforms_in_processes(void **unused)
{
    (void)unused;
    for (unsigned size = 1; size <= 8; size += size < 4 ? 1 : 2)
        conform(run_processes, "shm", size);
}

static void emulated_conforms(void **unused)
{
    (void)unused;
    conform(run_threads, "emulated:1e-6,1e-12", 1);
    conform(run_processes, "emulated:1e-6,1e-12:shm", 3);
}

/* ---- Emulation takes its time ---- */

static double clock_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static void timed(mgw_transport *t, rank_result *result)
{
    float data[1000] = {0};
    double begin_s = clock_s();
    result->status = mgw_transport_all_reduce(t, data, 1000, MGW_F32, MGW_SUM, &result->error);
    double took_s = clock_s() - begin_s;
    if (took_s < 0.02 + 4000 * 1e-5)
        snprintf(result->wrong, sizeof result->wrong, "took only %g s", took_s);
}

/* A cluster says how long each kind lasts. */
static void timed_by_cluster(mgw_transport *t, rank_result *result)
{
    enum { COUNT = 1 << 20 };
    static float data[COUNT];
    mgw_cluster *cluster = NULL;
    mgw_cost cost;
    result->status = mgw_cluster_load("paper-2-10gbe", &cluster, &result->error);
    if (result->status)
        return;
    mgw_cluster_cost(cluster, &cost);
    for (int kind = 0; !result->status && kind < MGW_COLLECTIVE_COUNT; kind++) {
        double begin_s = clock_s();
        mgw_error *error = &result->error;
        result->status =
            kind == MGW_ALL_REDUCE
                ? mgw_transport_all_reduce(t, data, COUNT, MGW_F32, MGW_SUM, error)
            : kind == MGW_REDUCE_SCATTER
                ? mgw_transport_reduce_scatter(t, data, COUNT, MGW_F32, MGW_SUM, error)
            : kind == MGW_ALL_GATHER ? mgw_transport_all_gather(t, data, COUNT, MGW_F32, error)
            : kind == MGW_PUSH ? mgw_transport_reduce(t, data, COUNT, MGW_F32, MGW_SUM, 0, error)
                               : mgw_transport_broadcast(t, data, sizeof data, 0, error);
        double took_s = clock_s() - begin_s;
        double least_s = mgw_cost_seconds(&cost, (mgw_collective)kind, sizeof data);
        if (took_s < 0.999 * least_s)
            snprintf(result->wrong, sizeof result->wrong, "%s took only %g s, not %g s",
                     mgw_collective_name((mgw_collective)kind), took_s, least_s);
    }
    mgw_cluster_destroy(cluster);
}

static void emulation_lasts(void **unused)
{
    (void)unused;
    job cluster = {.transport = "emulated:paper-2-10gbe:shm",
                   .size = 2,
                   .timeout_s = 60,
                   .body = timed_by_cluster};
    run_well(cluster, run_processes);
    job j = {.transport = "emulated:0.02,1e-5", .size = 2, .timeout_s = 60, .body = timed};
    run_well(j, run_processes);
}

/* What is posted returns early, is not over before its time, and the next one begins behind it. */
static void posted(mgw_transport *t, rank_result *result)
{
    float data[2][10] = {{0}};
    mgw_request request[2];
    mgw_error *error = &result->error;
    double begin_s = clock_s();
    bool done = true;
    for (int i = 0; !result->status && i < 2; i++) {
        mgw_call call = {.data = data[i], .count = 10, .dtype = MGW_F32, .op = MGW_SUM};
        result->status = mgw_transport_post(t, &call, &request[i], error);
    }
    if (!result->status)
        result->status = mgw_request_test(t, &request[0], &done, error);
    if (done && clock_s() - begin_s < 0.2)
        snprintf(result->wrong, sizeof result->wrong, "it was over before its time");
    for (int i = 0; !result->status && i < 2; i++) {
        result->status = mgw_request_wait(t, &request[i], error);
        if (clock_s() - begin_s < 0.2 * (i + 1))
            snprintf(result->wrong, sizeof result->wrong, "request %d took only %g s", i,
                     clock_s() - begin_s);
    }
}

static void emulation_is_one_channel(void **unused)
{
    (void)unused;
    job j = {.transport = "emulated:0.2,0", .size = 2, .timeout_s = 60, .body = posted};
    run_well(j, run_processes);
}

static void capabilities_are_as_said(void **unused)
{
    (void)unused;
    static const struct {
        const char *name;
        unsigned has;
    } cases[] = {
        {"self", MGW_MOVES_HALVES | MGW_NAMES_LATE | MGW_WAITS_ASLEEP},
        {"shm", MGW_MOVES_HALVES | MGW_NAMES_LATE | MGW_WAITS_ASLEEP | MGW_SHARES_MEMORY},
        {"emulated:0,0:shm", MGW_MOVES_HALVES | MGW_NAMES_LATE},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        mgw_transport *t = NULL;
        mgw_transport_options options = {.name = cases[i].name, .size = 1};
        assert_int_equal(mgw_transport_open(&options, &t, NULL), MGW_OK);
        assert_int_equal(mgw_transport_capabilities(t), cases[i].has);
        mgw_transport_close(t);
    }
}

/* ---- Faults ---- */

static void one_dies(mgw_transport *t, rank_result *result)
{
    float data[10000] = {0};
    for (int i = 0; !result->status; i++) {
        if (mgw_transport_rank(t) == 1 && i == 20)
            kill(getpid(), SIGKILL);
        result->status = mgw_transport_all_reduce(t, data, i % 2 ? 100 : 10000, MGW_F32, MGW_SUM,
                                                  &result->error);
    }
}

static void one_leaves(mgw_transport *t, rank_result *result)
{
    float data[10] = {0};
    for (int i = 0; !result->status && !(mgw_transport_rank(t) == 1 && i == 5); i++)
        result->status = mgw_transport_all_reduce(t, data, 10, MGW_F32, MGW_SUM, &result->error);
}

/* A child of a worker is none: that it ends, however, is nobody's business. */
static void one_forks(mgw_transport *t, rank_result *result)
{
    pid_t child = mgw_transport_rank(t) == 1 ? fork() : -1;
    if (child == 0) {
        mgw_transport_close(t);
        _exit(0);
    }
    if (child > 0)
        waitpid(child, NULL, 0);
    for (int i = 0; !result->status && i < 10; i++)
        result->status = mgw_transport_barrier(t, &result->error);
}

static void forks_are_no_workers(void **unused)
{
    (void)unused;
    job j = {.transport = "shm", .size = 3, .timeout_s = 20, .body = one_forks};
    run_well(j, run_processes);
}

static void one_hangs(mgw_transport *t, rank_result *result)
{
    float data[10] = {0};
    if (mgw_transport_rank(t) == 1)
        sleep(3);
    result->status = mgw_transport_all_reduce(t, data, 10, MGW_F32, MGW_SUM, &result->error);
}

static void expect_failure(void (*body)(mgw_transport *, rank_result *), double timeout_s,
                           double least_s, double most_s, const char *word)
{
    job j = {.transport = "shm", .size = 4, .timeout_s = timeout_s, .body = body};
    start_job(&j);
    double begin_s = clock_s();
    run_processes(&j);
    double took_s = clock_s() - begin_s;
    for (unsigned r = 0; r < j.size; r++) {
        if (r == 1)
            continue;
        assert_int_not_equal(j.results[r].status, MGW_OK);
        assert_contains(j.results[r].error.message, "rank 1");
        if (word && !strstr(j.results[r].error.message, "failed"))
            assert_contains(j.results[r].error.message, word);
    }
    assert_true(took_s >= least_s);
    assert_true(took_s < most_s);
    end_job(&j);
}

/* One rank's call is another than the others'; `oddity` says how. */
static int oddity;

static void one_differs(mgw_transport *t, rank_result *result)
{
    static float data[20000];
    bool odd = mgw_transport_rank(t) == 1;
    mgw_error *error = &result->error;
    void *shared = NULL;
    result->status = mgw_transport_allocate(t, sizeof data, &shared, error);
    if (result->status)
        return;
    switch (odd ? oddity : -1) {
    case 0:
        result->status = mgw_transport_broadcast(t, shared, sizeof data, 0, error);
        break;
    case 1:
        result->status = mgw_transport_all_reduce(t, shared, 19999, MGW_F32, MGW_SUM, error);
        break;
    case 2:
        result->status = mgw_transport_all_reduce(t, shared, 20000, MGW_BF16, MGW_SUM, error);
        break;
    case 3:
        result->status = mgw_transport_all_reduce(t, shared, 20000, MGW_F32, MGW_AVERAGE, error);
        break;
    case 4: /* from elsewhere: it would go another way */
        result->status = mgw_transport_all_reduce(t, data, 20000, MGW_F32, MGW_SUM, error);
        break;
    case 5:
        result->status = mgw_transport_barrier(t, error);
        break;
    default:
        result->status = mgw_transport_all_reduce(t, shared, 20000, MGW_F32, MGW_SUM, error);
    }
}

static void those_who_differ_are_named(void **unused)
{
    (void)unused;
    for (oddity = 0; oddity < 6; oddity++) {
        job j = {.transport = "shm", .size = 3, .timeout_s = 60, .body = one_differs};
        start_job(&j);
        run_processes(&j);
        for (unsigned r = 0; r < j.size; r++) {
            assert_int_equal(j.results[r].status, MGW_ERR_PEER);
            assert_contains(j.results[r].error.message, "workers disagree");
            assert_contains(j.results[r].error.message, "rank 1");
        }
        end_job(&j);
    }
}

static size_t named_segments(void)
{
    size_t count = 0;
    DIR *dir = opendir("/dev/shm");
    for (struct dirent *entry = dir ? readdir(dir) : NULL; entry; entry = readdir(dir))
        count += strstr(entry->d_name, "mgwfbp") != NULL;
    if (dir)
        closedir(dir);
    return count;
}

static void the_dead_are_named(void **unused)
{
    (void)unused;
    expect_failure(one_dies, 60, 0, 20, "died");
    assert_int_equal(named_segments(), 0);
}

static void those_who_leave_are_named(void **unused)
{
    (void)unused;
    expect_failure(one_leaves, 60, 0, 20, "left");
}

static void those_who_hang_are_named(void **unused)
{
    (void)unused;
    expect_failure(one_hangs, 0.5, 3, 20, NULL);
}

/* ---- Threads: one opens, one uses, one closes ---- */

typedef struct hand_over {
    job *job;
    mgw_transport *transport;
    pthread_mutex_t *robust;
    rank_result *result;
} hand_over;

static void *open_only(void *argument)
{
    hand_over *h = argument;
    mgw_transport_options options = {
        .name = "shm", .rank = 1, .size = 2, .job = h->job->name, .timeout_s = 20};
    h->result->status = mgw_transport_open(&options, &h->transport, &h->result->error);
    return NULL;
}

static void *use_only(void *argument)
{
    hand_over *h = argument;
    for (int i = 0; !h->result->status && i < 10; i++) {
        nanosleep(&(struct timespec){.tv_nsec = 30000000}, NULL);
        h->result->status = mgw_transport_barrier(h->transport, &h->result->error);
    }
    return NULL;
}

static void *close_only(void *argument)
{
    mgw_transport_close(((hand_over *)argument)->transport);
    return NULL;
}

static void in_thread(void *(*run)(void *), hand_over *h)
{
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, run, h), 0);
    pthread_join(thread, NULL);
}

/* The opener's end is not the worker's. */
static void *open_use_close(void *argument)
{
    in_thread(open_only, argument);
    in_thread(use_only, argument);
    in_thread(close_only, argument);
    return NULL;
}

/* Who opened has robust mutexes of its own: what another thread closed must not be among them. */
static void *open_and_go_on(void *argument)
{
    hand_over *h = argument;
    open_only(h);
    in_thread(use_only, h);
    in_thread(close_only, h);
    for (int i = 0; i < 3; i++) {
        pthread_mutex_lock(h->robust);
        pthread_mutex_unlock(h->robust);
    }
    return NULL;
}

static void any_thread_may_open_use_and_close(void **unused)
{
    (void)unused;
    void *(*const ways[])(void *) = {open_use_close, open_and_go_on};
    pthread_mutexattr_t attributes;
    pthread_mutex_t robust;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&robust, &attributes);
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        job j = {.transport = "shm", .size = 2, .timeout_s = 20};
        start_job(&j);
        pid_t other = fork();
        if (other == 0) {
            hand_over h = {.job = &j, .robust = &robust, .result = &j.results[1]};
            pthread_t thread;
            if (!pthread_create(&thread, NULL, ways[i], &h))
                pthread_join(thread, NULL);
            _exit(0);
        }
        mgw_transport_options options = {.name = "shm", .size = 2, .job = j.name, .timeout_s = 20};
        hand_over own = {.job = &j, .result = &j.results[0]};
        own.result->status = mgw_transport_open(&options, &own.transport, &own.result->error);
        use_only(&own);
        mgw_transport_close(own.transport);
        int ended = 0;
        waitpid(other, &ended, 0);
        assert_int_equal(ended, 0);
        expect_good(&j);
        end_job(&j);
    }
    pthread_mutex_destroy(&robust);
    pthread_mutexattr_destroy(&attributes);
}

/* ---- Builds that differ ---- */

static int job_socket(const char *name, struct sockaddr_un *address, socklen_t *length)
{
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    int bytes = snprintf(address->sun_path + 1, sizeof address->sun_path - 1, "mgwfbp-%u-%s",
                         (unsigned)getuid(), name);
    *length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)bytes);
    return socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
}

/* In a child: a worker of this build. */
static pid_t start_worker(job *j, unsigned rank)
{
    pid_t child = fork();
    if (child == 0) {
        rank_start start = {j, rank};
        run_rank(&start);
        _exit(0);
    }
    return child;
}

/* As a rank 0 that says what it is told: takes the greeting of rank 1, and answers. */
static void answer_as(job *j, void (*change)(shm_greeting *), shm_greeting *heard)
{
    struct sockaddr_un address;
    socklen_t length = 0;
    start_job(j);
    int listener = job_socket(j->name, &address, &length);
    assert_int_equal(bind(listener, (struct sockaddr *)&address, length), 0);
    assert_int_equal(listen(listener, 1), 0);
    pid_t child = start_worker(j, 1);
    int peer = accept(listener, NULL, NULL);
    assert_int_equal(recv(peer, heard, sizeof *heard, MSG_WAITALL), sizeof *heard);
    shm_greeting answer = *heard;
    answer.rank = 0;
    change(&answer);
    assert_int_equal(send(peer, &answer, sizeof answer, 0), sizeof answer);
    close(peer);
    close(listener);
    waitpid(child, NULL, 0);
}

/* As a rank 1 that says so many bytes of it; what rank 0 answers. */
static size_t visit_as(job *j, const shm_greeting *hello, size_t bytes, shm_greeting *answer)
{
    struct sockaddr_un address;
    socklen_t length = 0;
    start_job(j);
    pid_t child = start_worker(j, 0);
    int fd = job_socket(j->name, &address, &length);
    while (connect(fd, (struct sockaddr *)&address, length))
        usleep(1000);
    assert_int_equal(send(fd, hello, bytes, 0), bytes);
    ssize_t heard = recv(fd, answer, sizeof *answer, MSG_WAITALL);
    close(fd);
    waitpid(child, NULL, 0);
    return heard < 0 ? 0 : (size_t)heard;
}

static void be_another_version(shm_greeting *greeting)
{
    snprintf(greeting->version, sizeof greeting->version, "99.1.2");
}

static void be_another_build(shm_greeting *greeting)
{
    greeting->layout ^= 1;
}

static void builds_that_differ_are_refused(void **unused)
{
    (void)unused;
    static const struct {
        void (*change)(shm_greeting *);
        const char *words;
    } cases[] = {{be_another_version, "libmgwfbp 99.1.2"}, {be_another_build, "of another build"}};
    shm_greeting greeting = {.rank = 0};
    shm_greeting answer = {.rank = 0};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        job j = {.transport = "shm", .size = 2, .timeout_s = 20};
        answer_as(&j, cases[i].change, &greeting);
        assert_int_equal(j.results[1].status, MGW_ERR_PEER);
        assert_contains(j.results[1].error.message, cases[i].words);
        assert_contains(j.results[1].error.message, mgw_version());
        end_job(&j);
        cases[i].change(&greeting);
        assert_int_equal(visit_as(&j, &greeting, sizeof greeting, &answer), sizeof answer);
        assert_string_equal(answer.version, mgw_version()); /* so that it can say so, too */
        assert_int_equal(j.results[0].status, MGW_ERR_PEER);
        assert_contains(j.results[0].error.message, cases[i].words);
        end_job(&j);
    }
    /* What said 16 bytes, without a version. */
    job j = {.transport = "shm", .size = 2, .timeout_s = 20};
    memcpy(greeting.magic, "mgwfbp1", 8);
    visit_as(&j, &greeting, 16, &answer);
    assert_contains(j.results[0].error.message, "another version of libmgwfbp");
    end_job(&j);
}

static void bad_jobs(void **unused)
{
    (void)unused;
    mgw_transport *t = NULL;
    mgw_error error = {0};
    static const struct {
        mgw_transport_options options;
        mgw_status status;
        const char *message;
    } cases[] = {
        {{.name = "pigeon", .size = 1}, MGW_ERR_ARGUMENT, "'pigeon' is not a transport"},
        {{.name = "self", .size = 2}, MGW_ERR_ARGUMENT, "one worker"},
        {{.name = "shm", .rank = 2, .size = 2}, MGW_ERR_ARGUMENT, "rank 2 of 2"},
        {{.name = "shm", .size = 2}, MGW_ERR_ARGUMENT, "MGWFBP_JOB"},
        {{.name = "shm", .size = 2, .job = "nobody", .timeout_s = 0.1},
         MGW_ERR_TIMEOUT,
         "rank 1 of 2 did not come"},
        {{.name = "shm", .rank = 1, .size = 2, .job = "nobody", .timeout_s = 0.1},
         MGW_ERR_TIMEOUT,
         "rank 0 did not come"},
        {{.name = "emulated:1", .size = 1}, MGW_ERR_ARGUMENT, "emulated:A,B"},
        {{.name = "emulated:-1,0", .size = 1}, MGW_ERR_ARGUMENT, "emulated:A,B"},
        {{.name = "emulated:1,0:emulated:1,0", .size = 1}, MGW_ERR_ARGUMENT, "one emulation"},
        {{.name = "emulated:no-such-cluster", .size = 1}, MGW_ERR_ARGUMENT, "emulated:CLUSTER"},
        {{.name = "shm", .rank = 1, .size = 2000}, MGW_ERR_ARGUMENT, "at most 64 workers"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(mgw_transport_open(&cases[i].options, &t, &error), cases[i].status);
        assert_contains(error.message, cases[i].message);
    }
}

/* ---- Names ---- */

static bool same_spec(const mgw_transport_spec *x, const mgw_transport_spec *y)
{
    return x->kind == y->kind && x->over == y->over && x->a_s == y->a_s &&
           x->b_s_per_byte == y->b_s_per_byte && !strcmp(x->cluster, y->cluster);
}

/* What was accepted says the same when it is printed. */
static bool accepts(const char *name)
{
    mgw_transport_spec spec;
    mgw_transport_spec again;
    char once[MGW_TRANSPORT_SPEC_MAX];
    char twice[MGW_TRANSPORT_SPEC_MAX];
    mgw_error error = {0};
    if (mgw_transport_spec_parse(name, &spec, &error)) {
        assert_int_not_equal(error.message[0], '\0');
        return false;
    }
    mgw_transport_spec_print(&spec, once);
    if (mgw_transport_spec_parse(once, &again, &error) || !same_spec(&spec, &again))
        fail_msg("'%s' was printed as '%s'", name, once);
    mgw_transport_spec_print(&again, twice);
    assert_string_equal(once, twice);
    return true;
}

static void names_are_read(void **unused)
{
    (void)unused;
#define EMULATED MGW_TRANSPORT_EMULATED
#define NCCL     MGW_TRANSPORT_NCCL
#define MPI      MGW_TRANSPORT_MPI
    static const struct {
        const char *name;
        mgw_transport_spec spec;
    } cases[] = {
        {"self", {.kind = MGW_TRANSPORT_SELF}},
        {"shm", {.kind = MGW_TRANSPORT_SHM}},
        {"mpi", {.kind = MPI}},
        {"nccl", {.kind = NCCL}},
        {"nccl:mpi", {.kind = NCCL, .over = MPI}},
        {"emulated:1e-3,0", {.kind = EMULATED, .a_s = 1e-3}},
        {"emulated:0.5,2e-9:mpi", {EMULATED, MPI, 0.5, 2e-9, ""}},
        {"emulated:paper-2-10gbe", {.kind = EMULATED, .cluster = "paper-2-10gbe"}},
        {"emulated:./a:b.json", {.kind = EMULATED, .cluster = "./a:b.json"}},
        {"emulated:16,gpus.json", {0}},
        {"emulated:16gpus.json:mpi", {EMULATED, MPI, 0, 0, "16gpus.json"}},
        {"", {0}},
        {":", {0}},
        {"Shm", {0}},
        {"shm ", {0}},
        {"shm:", {0}},
        {"shm:mpi", {0}},
        {"nccl:", {0}},
        {"nccl:nccl", {0}},
        {"nccl:shm:", {0}},
        {"nccl:emulated:1,0", {0}},
        {"emulated", {0}},
        {"emulated:", {0}},
        {"emulated:shm", {0}},
        {"emulated::shm", {0}},
        {"emulated:1,", {0}},
        {"emulated:1,1:", {0}},
        {"emulated:nan,1", {0}},
        {"emulated:inf,1", {0}},
        {"emulated:1,-1", {0}},
        {"emulated:1,1x", {0}},
        {"emulated:1,1:nccl", {0}},
        {"emulated:paper-2-10gbe:nccl", {0}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        mgw_transport_spec spec = {0};
        bool good = cases[i].spec.kind != MGW_TRANSPORT_UNSAID;
        if (accepts(cases[i].name) != good)
            fail_msg("'%s' was %s", cases[i].name, good ? "refused" : "accepted");
        if (good && !mgw_transport_spec_parse(cases[i].name, &spec, NULL))
            assert_true(same_spec(&spec, &cases[i].spec));
    }
    char longest[400] = "emulated:";
    memset(longest + 9, 'x', sizeof longest - 10);
    assert_false(accepts(longest));
}

/* Pieces of names in any order. */
static void names_are_read_back(void **unused)
{
    (void)unused;
    static const char *const pieces[] = {
        "self", "shm", "mpi", "nccl", "emulated", ":", ":", ":",    ",",   ",", "1",  "0.1",
        "1e-9", "-",   "a",   "/",    "e",        ".", " ", "0x1p", "nan", "5", "%s", "\xff"};
    uint64_t random = 7;
    size_t accepted = 0;
    for (int i = 0; i < 200000; i++) {
        char name[64] = "";
        for (uint64_t n = 1 + random_below(&random, 7); n > 0; n--)
            strcat(name, pieces[random_below(&random, sizeof pieces / sizeof *pieces)]);
        accepted += accepts(name);
    }
    assert_true(accepted > 1000);
}

static void blocks_cover(void **unused)
{
    (void)unused;
    for (unsigned size = 1; size <= 9; size++)
        for (size_t count = 0; count < 700; count++) {
            size_t next = 0;
            for (unsigned r = 0; r < size; r++) {
                size_t first = 0;
                size_t length = 0;
                mgw_transport_block(count, size, r, &first, &length);
                assert_int_equal(first, next);
                next += length;
            }
            assert_int_equal(next, count);
        }
}

/* Under mpirun every process is a rank: "test_transport mpi" runs what all transports must do. */
static int conform_as_rank(const char *transport)
{
    mgw_transport_options options = {.name = transport, .timeout_s = 60};
    rank_result result = {0};
    mgw_transport *t = NULL;
    result.status = mgw_transport_open(&options, &t, &result.error);
    if (!result.status)
        everything(t, &result);
    if (result.status || result.wrong[0])
        fprintf(stderr, "%s%s\n", result.error.message, result.wrong);
    else if (mgw_transport_rank(t) == 0)
        printf("%s: %u ranks conform\n", transport, mgw_transport_size(t));
    mgw_transport_close(t);
    return result.status || result.wrong[0] ? 1 : 0;
}

int main(int argc, char **argv)
{
    if (argc > 1)
        return conform_as_rank(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_cover),
        cmocka_unit_test(names_are_read),
        cmocka_unit_test(names_are_read_back),
        cmocka_unit_test(bad_jobs),
        cmocka_unit_test(self_conforms),
        cmocka_unit_test(shm_conforms_in_threads),
        cmocka_unit_test(shm_conforms_in_processes),
        cmocka_unit_test(emulated_conforms),
        cmocka_unit_test(emulation_lasts),
        cmocka_unit_test(emulation_is_one_channel),
        cmocka_unit_test(capabilities_are_as_said),
        cmocka_unit_test(forks_are_no_workers),
        cmocka_unit_test(any_thread_may_open_use_and_close),
        cmocka_unit_test(builds_that_differ_are_refused),
        cmocka_unit_test(the_dead_are_named),
        cmocka_unit_test(those_who_leave_are_named),
        cmocka_unit_test(those_who_hang_are_named),
        cmocka_unit_test(those_who_differ_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
