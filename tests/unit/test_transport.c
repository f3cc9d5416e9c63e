/* One conformance test, run over every transport: sums of small integers, which are exact. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "numbers.h"
#include "ranks.h"

/* Rank r's value at index i: small enough that sums of 8 stay exact even in bf16. */
static unsigned value_of(unsigned rank, size_t index, unsigned size)
{
    return (unsigned)((index * 7 + rank * 3) % 5) * size % 30;
}

enum { PERIOD = 5 };

static pattern values_of(unsigned rank, unsigned size)
{
    pattern p = {.period = PERIOD};
    for (size_t i = 0; i < PERIOD; i++)
        p.values[i] = value_of(rank, i, size);
    return p;
}

static pattern sums_of(unsigned size)
{
    pattern p = {.period = PERIOD};
    for (unsigned r = 0; r < size; r++)
        for (size_t i = 0; i < PERIOD; i++)
            p.values[i] += value_of(r, i, size);
    return p;
}

static pattern largest_of(unsigned size)
{
    pattern p = {.period = PERIOD};
    for (unsigned r = 0; r < size; r++)
        for (size_t i = 0; i < PERIOD; i++)
            if (value_of(r, i, size) > p.values[i])
                p.values[i] = value_of(r, i, size);
    return p;
}

static void fill(void *data, size_t count, mgw_dtype dtype, unsigned rank, unsigned size)
{
    pattern p = values_of(rank, size);
    put_pattern(data, 0, count, dtype, &p);
}

static bool check(const void *data, size_t first, size_t length, mgw_dtype dtype, pattern expected,
                  const char *what, rank_result *result)
{
    size_t other = find_other(data, first, length, dtype, &expected);
    if (other < first + length)
        snprintf(result->wrong, sizeof result->wrong, "%s of %s: element %zu is wrong", what,
                 mgw_dtype_name(dtype), other);
    return other == first + length;
}

static const size_t sizes[] = {0, 1, 2, 31, 33, 1000, 2048, 5000, 131072 + 7, 300001};

static bool check_all_reduce(mgw_transport *t, void *data, size_t count, mgw_dtype dtype,
                             rank_result *result)
{
    unsigned rank = mgw_transport_rank(t);
    unsigned size = mgw_transport_size(t);
    fill(data, count, dtype, rank, size);
    result->status = mgw_transport_all_reduce(t, data, count, dtype, MGW_SUM, &result->error);
    if (result->status || !check(data, 0, count, dtype, sums_of(size), "sum", result))
        return false;
    /* Every value is a multiple of the number of ranks or small, so average what divides. */
    fill(data, count, dtype, 0, size);
    result->status = mgw_transport_all_reduce(t, data, count, dtype, MGW_AVERAGE, &result->error);
    return !result->status && check(data, 0, count, dtype, values_of(0, size), "average", result);
}

/* Some below zero; and what all have alike. */
static bool check_largest(mgw_transport *t, void *data, size_t count, mgw_dtype dtype,
                          rank_result *result)
{
    unsigned rank = mgw_transport_rank(t);
    unsigned size = mgw_transport_size(t);
    fill(data, count, dtype, rank, size);
    result->status = mgw_transport_all_reduce(t, data, count, dtype, MGW_MAX, &result->error);
    if (result->status || !check(data, 0, count, dtype, largest_of(size), "largest", result))
        return false;
    double numbers[2] = {-1.0 - rank, -7};
    result->status = mgw_transport_all_reduce(t, numbers, 2, MGW_F64, MGW_MAX, &result->error);
    if (!result->status && (numbers[0] != -1 || numbers[1] != -7))
        snprintf(result->wrong, sizeof result->wrong, "the largest below zero is wrong");
    return !result->status && !result->wrong[0];
}

static const pattern ones = {1, {1}};

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
    if (result->status ||
        !check(data, first, length, dtype, sums_of(size), "reduce-scatter", result))
        return false;
    /* The rest is undefined: it must come from the others. */
    put_pattern(data, 0, first, dtype, &ones);
    put_pattern(data, first + length, count - first - length, dtype, &ones);
    result->status = mgw_transport_all_gather(t, data, count, dtype, &result->error);
    return !result->status && check(data, 0, count, dtype, sums_of(size), "all-gather", result);
}

/* Divides some of them into segments: none, empty ones, of one element, and others. */
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

/* Every worker has its block of every segment; the other blocks come from the other workers. */
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
        if (!check(data, at + first, length, dtype, sums_of(size), "scattered segments", result))
            return false;
        put_pattern(data, at, first, dtype, &ones);
        put_pattern(data, at + first + length, segments[s] - first - length, dtype, &ones);
    }
    call.kind = MGW_ALL_GATHER;
    return run_call(t, &call, result) &&
           check(data, 0, count, dtype, sums_of(size), "gathered segments", result);
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
        return check(data, 0, count, dtype, sums_of(size), "reduce", result);
    return check(data, 0, count, dtype, values_of(rank, size), "what a reduce leaves", result);
}

static bool check_broadcast(mgw_transport *t, char *data, size_t bytes, rank_result *result)
{
    for (unsigned root = 0; root < mgw_transport_size(t); root++) {
        memset(data, mgw_transport_rank(t) == root ? 'a' + (int)root : 'z', bytes);
        result->status = mgw_transport_broadcast(t, data, bytes, root, &result->error);
        if (result->status)
            return false;
        /* The first is correct, and every other one equals the one before it. */
        if (bytes && (data[0] != 'a' + (int)root || memcmp(data, data + 1, bytes - 1) != 0)) {
            snprintf(result->wrong, sizeof result->wrong, "broadcast from %u is wrong", root);
            return false;
        }
    }
    return true;
}

/* The largest f16 numbers: their sum overflows, but their average does not. */
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

/* Several at once, of every kind, each in its own memory; when the last one is over, all are. */
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
            check(data + i * BYTES, some ? first : 0, some ? length : COUNT, MGW_F32, sums_of(size),
                  "a posted sum", result);
        for (unsigned r = 0; r < size && (kind == MGW_ALL_GATHER || kind == MGW_PULL); r++) {
            size_t begin = 0;
            size_t count = COUNT;
            unsigned owner = kind == MGW_PULL ? root : r;
            if (kind == MGW_ALL_GATHER)
                mgw_transport_block(COUNT, size, r, &begin, &count);
            check(data + i * BYTES, begin, count, MGW_F32, values_of(owner, size),
                  kind == MGW_PULL ? "a posted pull" : "a posted all-gather", result);
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
            /* In allocated memory (not at its start), and in other memory. */
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
#ifdef __SANITIZE_THREAD__ /* it detects races between threads, not between processes */
    skip();
#endif
    for (unsigned size = 1; size <= 8; size += size < 4 ? 1 : 2)
        conform(run_processes, "shm", size);
}

static void tcp_conforms(void **unused)
{
    (void)unused;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    char text[32];
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &length), 0);
    close(fd);
    snprintf(text, sizeof text, "127.0.0.1:%u", ntohs(address.sin_port));
    setenv("MGWFBP_ADDRESS", text, 1);
    conform(run_threads, "tcp", 1);
    conform(run_threads, "tcp", 2);
    conform(run_processes, "tcp", 3);
    unsetenv("MGWFBP_ADDRESS");
}

static void emulated_conforms(void **unused)
{
    (void)unused;
    conform(run_threads, "emulated:1e-6,1e-12", 1);
    conform(run_processes, "emulated:1e-6,1e-12:shm", 3);
}

/* ---- Emulation takes its time ---- */

static void timed(mgw_transport *t, rank_result *result)
{
    float data[1000] = {0};
    double begin_s = clock_s();
    result->status = mgw_transport_all_reduce(t, data, 1000, MGW_F32, MGW_SUM, &result->error);
    double took_s = clock_s() - begin_s;
    if (took_s < 0.02 + 4000 * 1e-5)
        snprintf(result->wrong, sizeof result->wrong, "took only %g s", took_s);
}

/* A cluster defines how long each kind takes. */
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

/* A post returns early, is not over before its time, and the next one starts after it. */
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

/* Many segments are one message. */
static void posted_segments(mgw_transport *t, rank_result *result)
{
    float data[20] = {0};
    size_t segments[20];
    for (size_t i = 0; i < 20; i++)
        segments[i] = 1;
    mgw_call call = {.kind = MGW_ALL_GATHER,
                     .data = data,
                     .count = 20,
                     .dtype = MGW_F32,
                     .segments = segments,
                     .segment_count = 20};
    double begin_s = clock_s();
    run_call(t, &call, result);
    double took_s = clock_s() - begin_s;
    if (took_s < 0.1 || took_s > 1) /* 2 s, if they were 20 */
        snprintf(result->wrong, sizeof result->wrong, "20 segments took %g s", took_s);
}

static void segments_are_one_message(void **unused)
{
    (void)unused;
    job j = {.transport = "emulated:0.2,0", .size = 2, .timeout_s = 60, .body = posted_segments};
    run_well(j, run_processes);
}

static void segments_must_add_up(void **unused)
{
    (void)unused;
    static const size_t segments[3][2] = {{3, 6}, {3, 8}, {SIZE_MAX, 11}};
    mgw_transport *t = NULL;
    mgw_transport_options options = {.name = "self", .size = 1};
    assert_int_equal(mgw_transport_open(&options, &t, NULL), MGW_OK);
    for (int i = 0; i < 3; i++) {
        float data[10] = {0};
        mgw_error error = {0};
        mgw_request request;
        mgw_call call = {.kind = MGW_ALL_GATHER,
                         .data = data,
                         .count = 10,
                         .segments = segments[i],
                         .segment_count = 2};
        assert_int_equal(mgw_transport_post(t, &call, &request, &error), MGW_ERR_ARGUMENT);
        assert_contains(error.message, "all-gather of 10 elements: its segments");
    }
    mgw_transport_close(t);
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

/* Under mpirun every process is a rank: "test_transport mpi" runs the conformance test. */
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
        cmocka_unit_test(self_conforms),
        cmocka_unit_test(shm_conforms_in_threads),
        cmocka_unit_test(shm_conforms_in_processes),
        cmocka_unit_test(tcp_conforms),
        cmocka_unit_test(emulated_conforms),
        cmocka_unit_test(emulation_lasts),
        cmocka_unit_test(emulation_is_one_channel),
        cmocka_unit_test(segments_are_one_message),
        cmocka_unit_test(segments_must_add_up),
        cmocka_unit_test(capabilities_are_as_said),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
