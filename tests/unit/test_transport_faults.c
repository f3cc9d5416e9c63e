/* Names of jobs, and what the other ranks report when one dies, leaves, hangs or mismatches. */
#include <dirent.h>
#include <signal.h>

#include "ranks.h"

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
    mgw_error again = {0};
    if (result->status && (mgw_transport_barrier(t, &again) != MGW_ERR_PEER ||
                           !strstr(again.message, "failed before; close it")))
        snprintf(result->wrong, sizeof result->wrong, "then: %s", again.message);
}

/* A worker's child is no worker: it may end in any way. */
static void one_forks(mgw_transport *t, rank_result *result)
{
    float data[10] = {0};
    int ended = 0;
    pid_t child = mgw_transport_rank(t) == 1 ? fork() : -1;
    if (child == 0) {
        mgw_status status = mgw_transport_all_reduce(t, data, 10, MGW_F32, MGW_SUM, &result->error);
        bool told = status == MGW_ERR_ARGUMENT && strstr(result->error.message, "is a fork of it");
        mgw_transport_close(t);
        _exit(told ? 0 : 1);
    }
    if (child > 0)
        waitpid(child, &ended, 0);
    if (ended)
        snprintf(result->wrong, sizeof result->wrong, "fork: %s", result->error.message);
    if (mgw_transport_broadcast(t, data, sizeof data, 3, &result->error) != MGW_ERR_ARGUMENT ||
        !strstr(result->error.message, "root 3: there are 3 workers"))
        snprintf(result->wrong, sizeof result->wrong, "root 3: %s", result->error.message);
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
        assert_string_equal(j.results[r].wrong, "");
        if (word && !strstr(j.results[r].error.message, "failed"))
            assert_contains(j.results[r].error.message, word);
    }
    assert_true(took_s >= least_s);
    assert_true(took_s < most_s);
    end_job(&j);
}

/* One rank's call differs from the others'; `oddity` says how. */
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
    case 4: /* other memory: it would take another path */
        result->status = mgw_transport_all_reduce(t, data, 20000, MGW_F32, MGW_SUM, error);
        break;
    case 5:
        result->status = mgw_transport_barrier(t, error);
        break;
    default:
        result->status = mgw_transport_all_reduce(t, shared, 20000, MGW_F32, MGW_SUM, error);
    }
}

static void one_cuts_elsewhere(mgw_transport *t, rank_result *result)
{
    static float data[20000];
    const size_t segments[] = {10000 + mgw_transport_rank(t) % 2,
                               10000 - mgw_transport_rank(t) % 2};
    mgw_call call = {.kind = oddity ? MGW_ALL_GATHER : MGW_REDUCE_SCATTER,
                     .data = data,
                     .count = 20000,
                     .dtype = MGW_F32,
                     .op = MGW_SUM,
                     .segments = segments,
                     .segment_count = 2};
    mgw_request request;
    result->status = mgw_transport_post(t, &call, &request, &result->error);
}

static void those_who_differ_are_named(void **unused)
{
    (void)unused;
    for (int i = 0; i < 8; i++) {
        bool cuts = i >= 6;
        oddity = i % 6;
        job j = {.transport = "shm",
                 .size = 3,
                 .timeout_s = 60,
                 .body = cuts ? one_cuts_elsewhere : one_differs};
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

/* The thread that opened the transport may end before the worker does. */
static void *open_use_close(void *argument)
{
    in_thread(open_only, argument);
    in_thread(use_only, argument);
    in_thread(close_only, argument);
    return NULL;
}

/* The opening thread has robust mutexes of its own: those that another thread closed must not be
 * among them. */
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

/* ---- Jobs that cannot be ---- */

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
        {{.name = "pigeon", .size = 1}, MGW_ERR_ARGUMENT, "unknown transport 'pigeon'"},
        {{.name = "self", .size = 2}, MGW_ERR_ARGUMENT, "one worker"},
        {{.name = "shm", .rank = 2, .size = 2},
         MGW_ERR_ARGUMENT,
         "rank 2 is out of range for a job of 2 workers"},
        {{.name = "shm", .size = 2}, MGW_ERR_ARGUMENT, "MGWFBP_JOB"},
        {{.name = "shm", .size = 2, .job = "nobody", .timeout_s = 0.1},
         MGW_ERR_TIMEOUT,
         "rank 1 of 2 did not come"},
        {{.name = "shm", .rank = 1, .size = 2, .job = "nobody", .timeout_s = 0.1},
         MGW_ERR_TIMEOUT,
         "rank 0 did not come"},
        {{.name = "emulated:1", .size = 1}, MGW_ERR_ARGUMENT, "emulated:A,B"},
        {{.name = "emulated:-1,0", .size = 1}, MGW_ERR_ARGUMENT, "emulated:A,B"},
        {{.name = "emulated:1,0:emulated:1,0", .size = 1}, MGW_ERR_ARGUMENT, "only once"},
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

/* An accepted name still means the same after it is printed and parsed again. */
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
        {"tcp", {.kind = MGW_TRANSPORT_TCP}},
        {"nccl:tcp", {.kind = NCCL, .over = MGW_TRANSPORT_TCP}},
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

/* Parts of names in any order. */
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_are_read),
        cmocka_unit_test(names_are_read_back),
        cmocka_unit_test(bad_jobs),
        cmocka_unit_test(forks_are_no_workers),
        cmocka_unit_test(any_thread_may_open_use_and_close),
        cmocka_unit_test(the_dead_are_named),
        cmocka_unit_test(those_who_leave_are_named),
        cmocka_unit_test(those_who_hang_are_named),
        cmocka_unit_test(those_who_differ_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
