/* The engine: exact averages in every configuration, and plans that follow drift. */
#include <math.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "numbers.h"
#include "support.h"

typedef struct worker_result {
    mgw_status status;
    mgw_error error;
    char wrong[200];
    uint64_t plans;
    uint64_t copied;
} worker_result;

/* What all workers of a test do; each worker has a random stream of its own and a common one. */
typedef struct scenario {
    unsigned size;
    int steps;
    size_t tensors;
    size_t most_elements;
    const char *policy;
    const char *wire;
    const char *transport;
    mgw_dtype dtypes[2]; /* tensors take turns */
    mgw_op op;
    bool bind;        /* every third gradient stays elsewhere */
    bool visit;       /* every other gradient comes from elsewhere, others in each step */
    bool shuffle;     /* ready in random order */
    bool together;    /* ready four at a time */
    int jitter_us;    /* between gradients, at most */
    int replan_steps; /* 0: the default */
    int servers;
    bool large; /* all but one tensor are empty */
    int unused; /* one in `unused` tensors is not used, with zero_unused */
    char job[64];
    worker_result *results;
} scenario;

static void pause_us(long us)
{
    struct timespec pause = {.tv_nsec = us * 1000};
    if (us > 0)
        nanosleep(&pause, NULL);
}

/* Small whole numbers, exact in every dtype even when eight are added up. */
enum { PERIOD = 7 };

static unsigned value_of(unsigned rank, unsigned tensor, size_t index, int step)
{
    return (unsigned)((index + 3 * rank + 5 * tensor + (size_t)step) % PERIOD);
}

static size_t count_of(const scenario *s, size_t tensor)
{
    if (s->large)
        return tensor == 2 ? s->most_elements : 0;
    uint64_t state = 77 + tensor;
    switch (tensor % 4) {
    case 0:
        return random_below(&state, 5); /* zero is among them */
    case 1:
        return 64;
    default:
        return 1 + random_below(&state, s->most_elements);
    }
}

/* What a worker adds: averages of what divides are exact. */
static pattern given_of(const scenario *s, unsigned rank, unsigned tensor, int step)
{
    pattern p = {.period = PERIOD};
    for (size_t i = 0; i < PERIOD; i++)
        p.values[i] = value_of(rank, tensor, i, step) * (s->op == MGW_AVERAGE ? s->size : 1);
    return p;
}

static pattern expected_of(const scenario *s, unsigned tensor, int step)
{
    pattern sum = {.period = PERIOD};
    for (unsigned r = 0; r < s->size; r++)
        for (size_t i = 0; i < PERIOD; i++)
            sum.values[i] += value_of(r, tensor, i, step);
    return sum;
}

static bool is_used(const scenario *s, unsigned tensor)
{
    return !s->unused || tensor % (unsigned)s->unused != 0;
}

static bool check_tensor(const scenario *s, const void *data, unsigned tensor, int step,
                         worker_result *result)
{
    static const pattern zeros = {.period = 1};
    size_t count = count_of(s, tensor);
    pattern expected = is_used(s, tensor) ? expected_of(s, tensor, step) : zeros;
    size_t other = find_other(data, 0, count, s->dtypes[tensor % 2], &expected);
    if (other < count)
        snprintf(result->wrong, sizeof result->wrong, "step %d, tensor %u, element %zu is wrong",
                 step, tensor, other);
    return other == count;
}

static void *run_worker(void *argument);

typedef struct worker_start {
    const scenario *scenario;
    unsigned rank;
} worker_start;

/* Where a gradient is in this step: where it belongs, or behind all of those. */
static void *source_of(const scenario *s, void **places, unsigned tensor, int step)
{
    bool visits = s->visit && (tensor + (unsigned)step) % 2;
    return visits ? places[s->tensors + tensor] : NULL;
}

/* Gradients that are there, and were not said to be. */
typedef struct handful {
    size_t count;
    unsigned ids[4];
    const void *sources[4];
    double at_s[64]; /* by tensor */
} handful;

static void say_ready(const scenario *s, mgw_engine *engine, unsigned tensor, const void *source,
                      handful *some)
{
    if (s->together) {
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        some->at_s[tensor] = (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
        some->sources[some->count] = source;
        some->ids[some->count++] = tensor;
        if (some->count == 4) {
            mgw_engine_ready_all(engine, some->ids, some->count, some->at_s,
                                 s->visit ? some->sources : NULL, NULL);
            some->count = 0;
        }
    } else if (source) {
        mgw_engine_ready_at(engine, tensor, source, NULL);
    } else {
        mgw_engine_ready(engine, tensor);
    }
}

static bool run_step(const scenario *s, mgw_engine *engine, void **places, unsigned *order,
                     uint64_t *random, int step, worker_result *result)
{
    unsigned rank = mgw_engine_rank(engine);
    handful some = {0};
    if ((result->status = mgw_engine_begin(engine, &result->error)))
        return false;
    for (size_t k = s->shuffle ? s->tensors : 0; k > 1; k--) {
        size_t other = random_below(random, k);
        unsigned swap = order[k - 1];
        order[k - 1] = order[other];
        order[other] = swap;
    }
    for (size_t k = 0; k < s->tensors; k++) {
        unsigned tensor = order[k];
        if (!is_used(s, tensor))
            continue;
        void *source = source_of(s, places, tensor, step);
        pattern given = given_of(s, rank, tensor, step);
        put_pattern(source ? source : places[tensor], 0, count_of(s, tensor), s->dtypes[tensor % 2],
                    &given);
        if (s->jitter_us)
            pause_us((long)random_below(random, (uint64_t)s->jitter_us));
        say_ready(s, engine, tensor, source, &some);
    }
    mgw_engine_ready_all(engine, some.ids, some.count, some.at_s, some.sources, NULL);
    if ((result->status = mgw_engine_wait(engine, &result->error)))
        return false;
    for (unsigned tensor = 0; tensor < s->tensors; tensor++)
        if (!check_tensor(s, places[tensor], tensor, step, result))
            return false;
    return true;
}

/* Numbers that are no gradients. */
static void check_numbers(const scenario *s, mgw_engine *engine, worker_result *result)
{
    unsigned rank = mgw_engine_rank(engine);
    double sums[] = {rank + 1.0, 10.0 * rank};
    char word[8] = "rank";
    word[4] = (char)('0' + rank);
    result->status = mgw_engine_all_reduce(engine, sums, 2, MGW_F64, MGW_SUM, &result->error);
    if (!result->status)
        result->status = mgw_engine_broadcast(engine, word, sizeof word, &result->error);
    double size = s->size;
    if (sums[0] != size * (size + 1) / 2 || sums[1] != 10 * size * (size - 1) / 2 ||
        strcmp(word, "rank0") != 0)
        snprintf(result->wrong, sizeof result->wrong, "numbers: %g, %g, '%.8s'", sums[0], sums[1],
                 word);
}

static void *run_worker(void *argument)
{
    const worker_start *start = argument;
    const scenario *s = start->scenario;
    worker_result *result = &s->results[start->rank];
    mgw_engine_options options = {
        .transport = {.name = s->transport ? s->transport : "shm",
                      .rank = start->rank,
                      .size = s->size,
                      .job = s->job,
                      .timeout_s = 60},
        .policy = s->policy,
        .wire = s->wire,
        .op = s->op,
        .profile_steps = 3,
        .replan_steps = s->replan_steps,
        .zero_unused = s->unused > 0,
        .servers = s->servers,
    };
    mgw_engine *engine = NULL;
    void **places = calloc(2 * s->tensors, sizeof *places);
    unsigned *order = calloc(s->tensors, sizeof *order);
    size_t room = s->bind || s->visit ? s->most_elements * 8 : 0;
    char *elsewhere = malloc(2 * s->tensors * room + 1);
    uint64_t random = start->rank + 1;
    result->status = mgw_engine_open(&options, &engine, &result->error);
    for (size_t t = 0; !result->status && t < s->tensors; t++) {
        char name[32];
        snprintf(name, sizeof name, "tensor.%zu", t);
        result->status = mgw_engine_add(engine, name, count_of(s, t), s->dtypes[t % 2], &order[t],
                                        &result->error);
    }
    if (!result->status)
        result->status = mgw_engine_start(engine, &result->error);
    for (unsigned t = 0; !result->status && t < s->tensors; t++) {
        places[t] = mgw_engine_gradient(engine, t);
        places[s->tensors + t] = elsewhere + (s->tensors + t) * room;
        if (s->bind && t % 3 == 0) {
            places[t] = elsewhere + t * room;
            result->status = mgw_engine_bind(engine, t, places[t], &result->error);
        }
    }
    for (int step = 0; !result->status && step < s->steps; step++)
        if (!run_step(s, engine, places, order, &random, step, result))
            break;
    if (!result->status && !result->wrong[0])
        check_numbers(s, engine, result);
    if (engine) {
        mgw_engine_statistics statistics;
        mgw_engine_measure(engine, &statistics);
        result->plans = statistics.plans;
        result->copied = statistics.copied_bytes;
    }
    mgw_engine_close(engine);
    free(elsewhere);
    free(order);
    free(places);
    return NULL;
}

static void run_scenario(scenario *s, bool processes)
{
    static int number;
    snprintf(s->job, sizeof s->job, "engine-%ld-%d", (long)getpid(), number++);
    size_t bytes = s->size * sizeof *s->results;
    s->results = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(s->results != MAP_FAILED);
    pthread_t threads[16];
    pid_t children[16];
    worker_start starts[16];
    for (unsigned r = 0; r < s->size; r++) {
        starts[r] = (worker_start){s, r};
        if (processes && (children[r] = fork()) == 0) {
            run_worker(&starts[r]);
            _exit(0);
        }
        if (!processes)
            assert_int_equal(pthread_create(&threads[r], NULL, run_worker, &starts[r]), 0);
    }
    for (unsigned r = 0; r < s->size; r++) {
        if (processes)
            waitpid(children[r], NULL, 0);
        else
            pthread_join(threads[r], NULL);
    }
}

static void end_scenario(scenario *s)
{
    munmap(s->results, s->size * sizeof *s->results);
}

static void expect_exact(scenario s, bool processes)
{
    run_scenario(&s, processes);
    for (unsigned r = 0; r < s.size; r++) {
        if (s.results[r].status)
            fail_msg("%u workers, %s, rank %u: %s", s.size, s.policy, r,
                     s.results[r].error.message);
        if (s.results[r].wrong[0])
            fail_msg("%u workers, %s, rank %u: %s", s.size, s.policy, r, s.results[r].wrong);
        assert_true(s.results[r].plans >= 1);
        assert_int_equal(s.results[r].plans, s.results[0].plans);
        assert_int_equal(s.results[r].copied > 0, s.bind || s.visit);
    }
    end_scenario(&s);
}

static const scenario usual = {.size = 4,
                               .steps = 8,
                               .tensors = 23,
                               .most_elements = 5000,
                               .policy = "optimal",
                               .dtypes = {MGW_F32, MGW_F32}};

static void every_policy_is_exact(void **unused)
{
    (void)unused;
    static const char *const policies[] = {"naive",   "wfbp",           "single",      "mgwfbp",
                                           "optimal", "threshold:4096", "ddp:64B,9000"};
    for (size_t i = 0; i < sizeof policies / sizeof *policies; i++) {
        scenario s = usual;
        s.policy = policies[i];
        s.shuffle = true;
        expect_exact(s, false);
    }
}

static void every_dtype_and_size_is_exact(void **unused)
{
    (void)unused;
    for (unsigned size = 1; size <= 8; size++)
        for (int dtype = MGW_F32; dtype <= MGW_F64; dtype++) {
            scenario s = usual;
            s.size = size;
            s.steps = 5;
            s.dtypes[0] = (mgw_dtype)dtype;
            s.dtypes[1] = dtype == MGW_F16 ? MGW_F32 : (mgw_dtype)dtype; /* two arenas */
            s.op = size % 2 ? MGW_SUM : MGW_AVERAGE;
            expect_exact(s, size % 3 == 0);
        }
}

static void gradients_may_stay_elsewhere(void **unused)
{
    (void)unused;
    scenario s = usual;
    s.bind = true;
    s.shuffle = true;
    expect_exact(s, false);
    s.visit = true;
    expect_exact(s, false);
    s.bind = false;
    s.op = MGW_SUM;
    expect_exact(s, false);
}

static void several_may_be_ready_at_once(void **unused)
{
    (void)unused;
    static const char *const policies[] = {"wfbp", "single", "ddp:64B,9000"};
    for (size_t i = 0; i < sizeof policies / sizeof *policies; i++)
        for (int visit = 0; visit < 2; visit++) {
            scenario s = usual;
            s.policy = policies[i];
            s.together = s.shuffle = true;
            s.visit = visit;
            expect_exact(s, false);
        }
}

static void f32_may_travel_as_16_bits(void **unused)
{
    (void)unused;
    scenario s = usual;
    s.wire = "bf16";
    expect_exact(s, false);
    s.wire = "f16";
    expect_exact(s, true);
}

static void servers_are_exact(void **unused)
{
    (void)unused;
    for (int servers = 1; servers <= (int)usual.size; servers++) {
        scenario s = usual;
        s.servers = servers;
        s.op = servers % 2 ? MGW_AVERAGE : MGW_SUM;
        s.shuffle = true;
        s.dtypes[1] = servers == 3 ? MGW_BF16 : MGW_F32;
        expect_exact(s, servers == 2);
    }
}

static void unused_tensors_are_zero(void **unused)
{
    (void)unused;
    scenario s = usual;
    s.unused = 4;
    expect_exact(s, false);
}

static void on_a_slow_network(void **unused)
{
    (void)unused;
    scenario s = usual;
    s.transport = "emulated:1e-3,1e-9";
    s.size = 2;
    expect_exact(s, true);
}

/* Jitter and new plans all the time: nothing is lost, and all workers switch together. */
static void a_soak_loses_nothing(void **unused)
{
    (void)unused;
    const char *steps = getenv("SOAK_STEPS"); /* docs/explanation/engine.md has a long one */
    scenario s = usual;
    s.steps = steps ? atoi(steps) : 1500;
    s.tensors = 12;
    s.most_elements = 300;
    s.replan_steps = 7;
    s.jitter_us = 30;
    s.shuffle = true;
    expect_exact(s, false);
}

/* 64 MB in one tensor, and nothing in others: each dtype once, or with 1 to 8 workers each. */
static void large_tensors_are_exact(void **unused)
{
    (void)unused;
    static const unsigned few[] = {[MGW_F32] = 3, [MGW_F16] = 2, [MGW_BF16] = 1, [MGW_F64] = 2};
    bool all = getenv("SOAK_STEPS") != NULL;
    for (int dtype = MGW_F32; dtype <= MGW_F64; dtype++)
        for (unsigned size = all ? 1 : few[dtype]; size <= (all ? 8 : few[dtype]); size++) {
            scenario s = usual;
            s.size = size;
            s.tensors = 3; /* the third is the large one */
            s.dtypes[0] = (mgw_dtype)dtype;
            s.most_elements = ((size_t)64 << 20) / mgw_dtype_bytes((mgw_dtype)dtype);
            s.large = true;
            s.steps = 4; /* the last with a plan */
            expect_exact(s, size % 2 == 0);
        }
}

/* ---- Drift ---- */

/* Runs steps whose two gradients come `gap_us` apart. */
static void run_steps(mgw_engine *engine, int steps, long gap_us)
{
    mgw_error error = {0};
    for (int step = 0; step < steps; step++) {
        assert_int_equal(mgw_engine_begin(engine, &error), MGW_OK);
        mgw_engine_ready(engine, 0);
        pause_us(gap_us);
        mgw_engine_ready(engine, 1);
        if (mgw_engine_wait(engine, &error))
            fail_msg("%s", error.message);
    }
}

/* While both gradients come at once, one message is best; when they drift apart, two are. */
static void plans_follow_drift(void **unused)
{
    (void)unused;
    mgw_engine *engine = NULL;
    mgw_error error = {0};
    unsigned id = 0;
    mgw_engine_options options = {.transport = {.name = "emulated:50e-3,0", .size = 1},
                                  .profile_steps = 2,
                                  .replan_steps = 3};
    assert_int_equal(mgw_engine_open(&options, &engine, &error), MGW_OK);
    assert_int_equal(mgw_engine_add(engine, "b", 10, MGW_F32, &id, &error), MGW_OK);
    assert_int_equal(mgw_engine_add(engine, "a", 10, MGW_F32, &id, &error), MGW_OK);
    assert_int_equal(mgw_engine_start(engine, &error), MGW_OK);
    run_steps(engine, 2, 0);
    assert_null(mgw_engine_plan(engine)); /* it is made when the next step begins */
    run_steps(engine, 1, 0);
    assert_int_equal(mgw_engine_plan(engine)->operation_count, 1);
    run_steps(engine, 6, 0);
    mgw_engine_statistics statistics;
    mgw_engine_measure(engine, &statistics);
    assert_int_equal(statistics.plans, 1); /* nothing has changed, so there was no new plan */
    assert_int_equal(mgw_engine_set_policy(engine, "wfbp", &error), MGW_OK);
    run_steps(engine, 3, 400000);
    assert_int_equal(mgw_engine_set_policy(engine, "mgwfbp", &error), MGW_OK);
    assert_int_equal(mgw_engine_plan(engine)->operation_count, 2);
    mgw_engine_measure(engine, &statistics);
    assert_int_equal(statistics.plans, 3);
    /* Back together: the rule would send one message again, which is 50 ms shorter. */
    run_steps(engine, 6, 0);
    assert_int_equal(mgw_engine_plan(engine)->operation_count, 1);
    mgw_engine_measure(engine, &statistics);
    assert_int_equal(statistics.plans, 4);
    mgw_engine_close(engine);
}

/* ---- What plans are made from ---- */

typedef struct pair {
    char job[32];
    unsigned rank;
    double ready_s;
    mgw_error error;
} pair;

/* In every step another one of the two is late. */
static void *run_in_turn(void *argument)
{
    pair *p = argument;
    mgw_engine *engine = NULL;
    unsigned id = 0;
    mgw_engine_options options = {
        .transport = {.name = "shm", .job = p->job, .rank = p->rank, .size = 2},
        .profile_steps = 4};
    if (mgw_engine_open(&options, &engine, &p->error) ||
        mgw_engine_add(engine, "only", 10, MGW_F32, &id, &p->error) ||
        mgw_engine_start(engine, &p->error))
        return NULL;
    for (unsigned step = 0; step < 5; step++) {
        if (mgw_engine_begin(engine, &p->error))
            break;
        pause_us(step % 2 == p->rank ? 100000 : 0);
        mgw_engine_ready(engine, id);
        if (mgw_engine_wait(engine, &p->error))
            break;
    }
    const mgw_trace *trace = mgw_engine_trace(engine);
    if (trace)
        p->ready_s = trace->tensors[0].backward_s;
    mgw_engine_close(engine);
    return NULL;
}

/* A message begins when the last worker has come, whichever that is: not when the average has. */
static void the_last_worker_of_a_step_counts(void **unused)
{
    (void)unused;
    pair pairs[2] = {{.rank = 0}, {.rank = 1}};
    pthread_t threads[2];
    for (int r = 0; r < 2; r++) {
        snprintf(pairs[r].job, sizeof pairs[r].job, "turns-%ld", (long)getpid());
        assert_int_equal(pthread_create(&threads[r], NULL, run_in_turn, &pairs[r]), 0);
    }
    for (int r = 0; r < 2; r++)
        pthread_join(threads[r], NULL);
    for (int r = 0; r < 2; r++) {
        assert_string_equal(pairs[r].error.message, "");
        assert_true(pairs[r].ready_s > 0.08);
    }
}

/* A network that is slower than it was said to be: plans count with what messages take. */
static void slow_messages_are_noticed(void **unused)
{
    (void)unused;
    char path[] = "/tmp/mgwfbp-cluster-XXXXXX";
    int fd = mkstemp(path);
    static const char cluster[] = "{\"format\": \"mgwfbp-cluster-1\", \"name\": "
                                  "\"fast\", \"workers\": 2, \"cost\": {\"a_s\": 0.01, "
                                  "\"b_s_per_byte\": 0}}";
    assert_int_equal(write(fd, cluster, sizeof cluster - 1), (ssize_t)sizeof cluster - 1);
    close(fd);
    mgw_engine *engine = NULL;
    mgw_error error = {0};
    unsigned id = 0;
    mgw_engine_options options = {.transport = {.name = "emulated:40e-3,0", .size = 1},
                                  .cluster = path,
                                  .policy = "wfbp",
                                  .profile_steps = 1,
                                  .replan_steps = 2};
    assert_int_equal(mgw_engine_open(&options, &engine, &error), MGW_OK);
    assert_int_equal(mgw_engine_add(engine, "b", 10, MGW_F32, &id, &error), MGW_OK);
    assert_int_equal(mgw_engine_add(engine, "a", 10, MGW_F32, &id, &error), MGW_OK);
    if (mgw_engine_start(engine, &error))
        fail_msg("%s", error.message);
    mgw_engine_statistics statistics;
    run_steps(engine, 1, 0);
    mgw_engine_measure(engine, &statistics);
    assert_true(statistics.slowdown == 1); /* there was no message during computation yet */
    run_steps(engine, 4, 0);
    mgw_engine_measure(engine, &statistics);
    assert_true(statistics.slowdown > 1.9 && statistics.slowdown <= 8); /* half of the way to 4 */
    mgw_engine_close(engine);
    unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_policy_is_exact),
        cmocka_unit_test(every_dtype_and_size_is_exact),
        cmocka_unit_test(gradients_may_stay_elsewhere),
        cmocka_unit_test(several_may_be_ready_at_once),
        cmocka_unit_test(f32_may_travel_as_16_bits),
        cmocka_unit_test(servers_are_exact),
        cmocka_unit_test(unused_tensors_are_zero),
        cmocka_unit_test(on_a_slow_network),
        cmocka_unit_test(a_soak_loses_nothing),
        cmocka_unit_test(large_tensors_are_exact),
        cmocka_unit_test(plans_follow_drift),
        cmocka_unit_test(the_last_worker_of_a_step_counts),
        cmocka_unit_test(slow_messages_are_noticed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
