/* The engine with parameters: after every step they equal, bit for bit, those of a single process,
 * for any plan, while plans change and state moves. */
#include <pthread.h>
#include <time.h>
#include <unistd.h>

#include "simulation/job.h"
#include "support.h"

enum { MOST_WORKERS = 5, MOST_ELEMENTS = 300 };

typedef struct trial {
    uint64_t seed;
    unsigned size;
    int steps;
    size_t tensors;
    size_t counts[MOST_TENSORS];
    mgw_dtype dtypes[MOST_TENSORS];
    mgw_op op;
    const char *transport;
    const char *wire;
    const char *parameters;
    bool says;          /* what it has updated; else a callback does it */
    bool binds;         /* every third gradient stays elsewhere */
    bool unused;        /* one gradient in four is not there in a step */
    const char *policy; /* null: random plans */
    char job[64];
    struct result {
        mgw_status status;
        mgw_error error;
        char wrong[200];
        uint64_t plans;
        uint64_t moves;
        uint64_t trial_steps;
    } results[MOST_WORKERS];
} trial;

/* ---- Numbers: small and whole, so that sums are exact in any order ---- */

static double read_number(const void *data, size_t index, mgw_dtype dtype)
{
    uint32_t bits = 0;
    float number = 0;
    if (dtype == MGW_F64)
        return ((const double *)data)[index];
    if (dtype == MGW_F32)
        return ((const float *)data)[index];
    uint16_t half = ((const uint16_t *)data)[index];
    if (dtype == MGW_BF16)
        bits = (uint32_t)half << 16;
    else if (half & 0x7fff)
        bits = (uint32_t)(half & 0x8000) << 16 | (((uint32_t)(half & 0x7fff) << 13) + 0x38000000);
    memcpy(&number, &bits, sizeof number);
    return number;
}

/* Cuts off what does not fit: any rule is fine that is the same everywhere. */
static void write_number(void *data, size_t index, mgw_dtype dtype, double value)
{
    float number = (float)value;
    uint32_t bits;
    memcpy(&bits, &number, sizeof bits);
    if (dtype == MGW_F64)
        ((double *)data)[index] = value;
    else if (dtype == MGW_F32)
        ((float *)data)[index] = number;
    else if (dtype == MGW_BF16)
        ((uint16_t *)data)[index] = (uint16_t)(bits >> 16);
    else
        ((uint16_t *)data)[index] =
            number == 0
                ? 0
                : (uint16_t)((bits >> 16 & 0x8000) | (((bits & 0x7fffffff) - 0x38000000) >> 13));
}

static unsigned gradient_of(unsigned rank, unsigned tensor, size_t index, int step)
{
    return (unsigned)((index + 3 * rank + 5 * tensor + 11 * (size_t)step) % 5);
}

static bool is_used(const trial *t, unsigned tensor, int step)
{
    return !t->unused || (tensor + (unsigned)step) % 4;
}

/* The parameter of an element: what one update does to it. */
static void update_number(double gradient, int32_t *state, double *parameter)
{
    *state = (*state * 3 + (int32_t)gradient) % 97;
    *parameter = (double)((int64_t)(*parameter + *state) % 61);
}

/* The whole job in one place. */
static double expected_number(const trial *t, unsigned tensor, size_t index, int steps)
{
    int32_t state = (int32_t)(index % 13);
    double parameter = (double)((index + tensor) % 7);
    for (int step = 0; step < steps; step++) {
        double sum = 0;
        for (unsigned r = 0; r < t->size && is_used(t, tensor, step); r++)
            sum += gradient_of(r, tensor, index, step);
        update_number(sum, &state, &parameter);
    }
    return parameter;
}

/* ---- A worker ---- */

typedef struct worker {
    trial *t;
    unsigned rank;
    struct result *result;
    mgw_engine *engine;
    uint64_t random;   /* this worker's */
    uint64_t common;   /* the same on all */
    int32_t *state[4]; /* by dtype: of the shards */
    char *bound[MOST_TENSORS];
    int step;
} worker;

static bool is_wrong(worker *w, unsigned tensor, int steps, const char *when)
{
    const trial *t = w->t;
    const void *data = mgw_engine_parameter(w->engine, tensor);
    mgw_dtype dtype = mgw_engine_parameter_dtype(w->engine, t->dtypes[tensor]);
    for (size_t i = 0; i < t->counts[tensor]; i++) {
        double expected = expected_number(t, tensor, i, steps);
        double actual = read_number(data, i, dtype);
        if (actual == expected)
            continue;
        snprintf(w->result->wrong, sizeof w->result->wrong,
                 "rank %u, %s, step %d: element %zu of tensor %u is %g, not %g", w->rank, when,
                 w->step, i, tensor, actual, expected);
        return true;
    }
    return false;
}

static mgw_status update_shards(void *context, const mgw_shard *shards, size_t count,
                                mgw_error *error)
{
    worker *w = context;
    (void)error;
    for (size_t k = 0; k < count; k++) {
        const mgw_shard *s = &shards[k];
        mgw_dtype kept = mgw_engine_parameter_dtype(w->engine, s->dtype);
        void *parameters = mgw_engine_parameter_memory(w->engine, s->dtype);
        const void *gradients = mgw_engine_gradient_memory(w->engine, s->dtype);
        for (size_t i = 0; i < s->count; i++) {
            double gradient = read_number(gradients, s->begin + i, s->dtype);
            double parameter = read_number(parameters, s->begin + i, kept);
            update_number(gradient, &w->state[s->dtype][s->at + i], &parameter);
            write_number(parameters, s->begin + i, kept, parameter);
        }
    }
    return MGW_OK;
}

static size_t length_of(const mgw_shard *shards, size_t count, mgw_dtype dtype)
{
    size_t length = 0;
    for (size_t i = 0; i < count; i++)
        if (shards[i].dtype == dtype)
            length = shards[i].at + shards[i].count;
    return length;
}

static mgw_status move_state(void *context, const mgw_shard *before, size_t before_count,
                             const mgw_shard *after, size_t after_count, mgw_error *error)
{
    worker *w = context;
    mgw_status status = MGW_OK;
    w->result->moves++;
    for (int d = 0; !status && d < 4; d++) {
        size_t length = length_of(after, after_count, (mgw_dtype)d);
        int32_t *moved = malloc((length + 1) * sizeof *moved);
        memset(moved, 0xff, (length + 1) * sizeof *moved);
        (void)before, (void)before_count;
        status = mgw_engine_move(w->engine, (mgw_dtype)d, w->state[d], moved, sizeof *moved, error);
        if (mgw_engine_shard_length(w->engine, (mgw_dtype)d) != length)
            snprintf(w->result->wrong, sizeof w->result->wrong, "shard_length of dtype %d", d);
        free(w->state[d]);
        w->state[d] = moved;
    }
    return status;
}

static mgw_status open_worker(worker *w, mgw_error *error)
{
    trial *t = w->t;
    mgw_engine_options options = {
        .transport = {.name = t->transport,
                      .rank = w->rank,
                      .size = t->size,
                      .job = t->job,
                      .timeout_s = 60},
        .wire = t->wire,
        .op = t->op,
        .policy = t->policy,
        .profile_steps = 2,
        .replan_steps = 3,
        .replan_percent = -1,
        .zero_unused = t->unused,
        .keeps_parameters = true,
        .parameters = t->parameters,
    };
    mgw_status status = mgw_engine_open(&options, &w->engine, error);
    if (!status && !t->says)
        status = mgw_engine_on_update(w->engine, update_shards, w, error);
    if (!status)
        status = mgw_engine_on_reshard(w->engine, move_state, w, error);
    for (size_t i = 0; !status && i < t->tensors; i++) {
        char name[32];
        unsigned id = 0;
        snprintf(name, sizeof name, "tensor.%zu", i);
        status = mgw_engine_add(w->engine, name, t->counts[i], t->dtypes[i], &id, error);
    }
    if (!status)
        status = mgw_engine_start(w->engine, error);
    for (unsigned i = 0; !status && i < t->tensors; i++) {
        mgw_dtype kept = mgw_engine_parameter_dtype(w->engine, t->dtypes[i]);
        for (size_t k = 0; k < t->counts[i]; k++)
            write_number(mgw_engine_parameter(w->engine, i), k, kept, expected_number(t, i, k, 0));
        if (t->binds && i % 3 == 0) {
            w->bound[i] = calloc(t->counts[i] + 1, 8);
            status = mgw_engine_bind(w->engine, i, w->bound[i], error);
        }
    }
    size_t count = 0;
    const mgw_shard *shards = status ? NULL : mgw_engine_shards(w->engine, &count);
    for (int d = 0; d < 4; d++)
        w->state[d] = calloc(length_of(shards, count, (mgw_dtype)d) + 1, sizeof *w->state[d]);
    for (size_t k = 0; k < count; k++)
        for (size_t i = 0; i < shards[k].count; i++)
            w->state[shards[k].dtype][shards[k].at + i] = (int32_t)((shards[k].first + i) % 13);
    return status;
}

static void pause_now_and_then(worker *w)
{
    struct timespec pause = {.tv_nsec = (long)random_below(&w->random, 100) * 1000};
    if (random_below(&w->random, 8) == 0)
        nanosleep(&pause, NULL);
}

static mgw_status change_plan(worker *w, mgw_error *error)
{
    mgw_operation operations[2 * MOST_TENSORS];
    bool scattered[MOST_TENSORS] = {false};
    size_t count = make_operations(&w->common, w->t->tensors, false, scattered, operations);
    return mgw_engine_set_plan(w->engine, operations, count, error);
}

static mgw_status run_forward(worker *w, mgw_error *error)
{
    const trial *t = w->t;
    mgw_status status = MGW_OK;
    for (size_t k = t->tensors; !status && k-- > 0;) {
        unsigned id = (unsigned)(k ^ (random_below(&w->random, 5) == 0));
        if (id >= t->tensors || random_below(&w->random, 9) == 0)
            continue;
        pause_now_and_then(w);
        status = mgw_engine_need(w->engine, id, error);
        if (!status && is_wrong(w, id, w->step, "need"))
            break;
    }
    return status;
}

static void run_backward(worker *w)
{
    const trial *t = w->t;
    for (unsigned id = 0; id < t->tensors; id++) {
        if (!is_used(t, id, w->step))
            continue;
        void *data = w->bound[id] ? w->bound[id] : mgw_engine_gradient(w->engine, id);
        for (size_t i = 0; i < t->counts[id]; i++)
            write_number(data, i, t->dtypes[id],
                         gradient_of(w->rank, id, i, w->step) *
                             (t->op == MGW_AVERAGE ? t->size : 1));
        pause_now_and_then(w);
        mgw_engine_ready(w->engine, id);
    }
}

/* The averages, where the caller keeps its gradients: what is this worker's of them. */
static bool is_bound_wrong(worker *w)
{
    const trial *t = w->t;
    size_t count = 0;
    const mgw_shard *shards = mgw_engine_shards(w->engine, &count);
    for (size_t k = 0; k < count; k++) {
        const mgw_shard *s = &shards[k];
        for (size_t i = s->first; w->bound[s->tensor] && i < s->first + s->count; i++) {
            double sum = 0;
            for (unsigned r = 0; r < t->size && is_used(t, s->tensor, w->step); r++)
                sum += gradient_of(r, s->tensor, i, w->step);
            if (read_number(w->bound[s->tensor], i, s->dtype) == sum)
                continue;
            snprintf(w->result->wrong, sizeof w->result->wrong, "bound tensor %u, element %zu",
                     s->tensor, i);
            return true;
        }
    }
    return false;
}

static mgw_status say_updates(worker *w, mgw_error *error)
{
    size_t count = 0;
    const mgw_shard *shards = mgw_engine_shards(w->engine, &count);
    mgw_status status = update_shards(w, shards, count, error);
    const mgw_plan *plan = mgw_engine_plan(w->engine);
    for (size_t m = 0; !status && plan && m < plan->operation_count; m++)
        if (mgw_collective_averages(plan->operations[m].kind) && random_below(&w->common, 2))
            status = mgw_engine_update(w->engine, m, error);
    return status ? status : mgw_engine_update(w->engine, MGW_NO_OPERATION, error);
}

static mgw_status run_step(worker *w, mgw_error *error)
{
    const trial *t = w->t;
    mgw_status status = MGW_OK;
    if (!t->policy && random_below(&w->common, 3) == 0)
        status = change_plan(w, error);
    if (!status)
        status = mgw_engine_begin(w->engine, error);
    if (!status)
        status = run_forward(w, error);
    if (status || w->result->wrong[0])
        return status;
    run_backward(w);
    status = mgw_engine_wait(w->engine, error);
    if (!status && is_bound_wrong(w))
        return status;
    if (!status && t->says)
        status = say_updates(w, error);
    double ones = 1;
    if (!status && random_below(&w->common, 3) == 0)
        status = mgw_engine_all_reduce(w->engine, &ones, 1, MGW_F64, MGW_SUM, error);
    else
        ones = t->size;
    if (!status && ones != t->size)
        snprintf(w->result->wrong, sizeof w->result->wrong, "numbers: %g", ones);
    if (!status && random_below(&w->common, 4) == 0) {
        status = mgw_engine_drain(w->engine, error);
        for (unsigned i = 0; !status && i < t->tensors && !is_wrong(w, i, w->step + 1, "drain");)
            i++;
    }
    return status;
}

static void *run_worker(void *argument)
{
    worker *w = argument;
    mgw_error *error = &w->result->error;
    mgw_status status = open_worker(w, error);
    for (; !status && !w->result->wrong[0] && w->step < w->t->steps; w->step++)
        status = run_step(w, error);
    if (!status && !w->result->wrong[0])
        status = mgw_engine_drain(w->engine, error);
    for (unsigned i = 0; !status && !w->result->wrong[0] && i < w->t->tensors; i++)
        is_wrong(w, i, w->t->steps, "end");
    mgw_engine_statistics seen = {0};
    if (w->engine)
        mgw_engine_measure(w->engine, &seen);
    w->result->plans = seen.plans;
    w->result->trial_steps = seen.trial_steps;
    w->result->status = status;
    mgw_engine_close(w->engine);
    for (int d = 0; d < 4; d++)
        free(w->state[d]);
    for (size_t i = 0; i < MOST_TENSORS; i++)
        free(w->bound[i]);
    return NULL;
}

static void run_trial(trial *t)
{
    static int number;
    snprintf(t->job, sizeof t->job, "parameters-%ld-%d", (long)getpid(), number++);
    pthread_t threads[MOST_WORKERS];
    worker workers[MOST_WORKERS] = {0};
    for (unsigned r = 0; r < t->size; r++) {
        workers[r] = (worker){.t = t,
                              .rank = r,
                              .result = &t->results[r],
                              .random = t->seed + 1000 * r,
                              .common = t->seed};
        assert_int_equal(pthread_create(&threads[r], NULL, run_worker, &workers[r]), 0);
    }
    for (unsigned r = 0; r < t->size; r++)
        pthread_join(threads[r], NULL);
    for (unsigned r = 0; r < t->size; r++) {
        if (t->results[r].status)
            fail_msg("seed %llu, rank %u: %s", (unsigned long long)t->seed, r,
                     t->results[r].error.message);
        if (t->results[r].wrong[0])
            fail_msg("seed %llu: %s", (unsigned long long)t->seed, t->results[r].wrong);
    }
}

static trial make_trial(uint64_t seed)
{
    static const char *const sixteen[] = {NULL, "bf16", "f16"};
    uint64_t random = 77 * seed;
    trial t = {.seed = seed,
               .size = 1 + (unsigned)random_below(&random, MOST_WORKERS),
               .steps = 4 + (int)random_below(&random, 8),
               .tensors = 1 + random_below(&random, 12),
               .op = random_below(&random, 2) ? MGW_SUM : MGW_AVERAGE,
               .wire = sixteen[random_below(&random, 3)],
               .parameters = sixteen[random_below(&random, 3)],
               .says = random_below(&random, 2),
               .binds = random_below(&random, 3) == 0,
               .unused = random_below(&random, 3) == 0,
               .transport = "shm"};
    bool mixed = random_below(&random, 2);
    for (size_t i = 0; i < t.tensors; i++) {
        t.counts[i] = random_below(&random, 5) ? random_below(&random, MOST_ELEMENTS) : 0;
        t.dtypes[i] = mixed ? (mgw_dtype)random_below(&random, 4) : MGW_F32;
    }
    return t;
}

static void any_plan(void **unused)
{
    (void)unused;
    const char *runs = getenv("MGWFBP_TRIALS");
    uint64_t moves = 0;
    for (uint64_t seed = 1; seed <= (runs ? strtoull(runs, NULL, 10) : 150); seed++) {
        trial t = make_trial(seed);
        run_trial(&t);
        moves += t.results[0].moves;
    }
    assert_true(moves > 50);
}

/* Policies that plan from what steps show, and others after them. */
static void policies(void **unused)
{
    (void)unused;
    static const char *const names[] = {"overlap", "zero:512B", "dear:700B", "fsdp", "optimal"};
    for (uint64_t seed = 1; seed <= 20; seed++) {
        trial t = make_trial(seed);
        t.steps = 10;
        t.policy = names[seed % 5];
        t.transport = seed % 2 ? "emulated:1e-4,1e-8:shm" : "shm";
        run_trial(&t);
        assert_true(t.results[0].plans > 0);
    }
}

/* Plans of halves and of whole all-reduces take turns: with each, shards and their state move. */
static void turns_of_a_trial(void **unused)
{
    (void)unused;
    uint64_t moves = 0;
    uint64_t steps = 0;
    for (uint64_t seed = 1; seed <= 8; seed++) {
        trial t = make_trial(seed);
        t.size = 2 + seed % 3;
        t.tensors = 12;
        t.steps = 100;
        t.policy = seed % 4 ? "overlap" : "optimal";
        t.transport = "emulated:2e-4,1e-7:shm";
        run_trial(&t);
        for (unsigned r = 1; r < t.size; r++) {
            assert_int_equal(t.results[r].moves, t.results[0].moves);
            assert_int_equal(t.results[r].trial_steps, t.results[0].trial_steps);
        }
        moves += t.results[0].moves;
        steps += t.results[0].trial_steps;
    }
    assert_true(steps > 8 * 20);
    assert_true(moves > 8 * 2);
}

/* ---- Reports of a step ---- */

typedef struct witness {
    unsigned rank;
    const char *job;
    mgw_status status;
    mgw_error error;
    mgw_engine_statistics seen;
    mgw_timeline *timeline;
    double needed_s[2];
} witness;

/* A gather lasts 50 ms, and is needed at once. */
static mgw_status run_witness(witness *w, mgw_engine *engine, mgw_error *error)
{
    static const mgw_operation halves[] = {
        {.kind = MGW_REDUCE_SCATTER, .release = MGW_WHEN_READY, .first = 0, .count = 2},
        {.kind = MGW_ALL_GATHER, .release = MGW_AFTER_UPDATE, .first = 0, .count = 2}};
    unsigned id = 0;
    mgw_status status = mgw_engine_add(engine, "a", 500, MGW_F32, &id, error);
    if (!status)
        status = mgw_engine_add(engine, "b", 500, MGW_F32, &id, error);
    if (!status)
        status = mgw_engine_start(engine, error);
    if (!status)
        status = mgw_engine_set_plan(engine, halves, 2, error);
    for (int step = 0; !status && step < 5; step++) {
        status = mgw_engine_begin(engine, error);
        for (unsigned t = 2; !status && t-- > 0;)
            status = mgw_engine_need(engine, t, error);
        for (unsigned t = 0; !status && t < 2; t++)
            mgw_engine_ready(engine, t);
        if (!status)
            status = mgw_engine_wait(engine, error);
        if (!status)
            status = mgw_engine_update(engine, MGW_NO_OPERATION, error);
    }
    if (!status)
        status = mgw_engine_timeline(engine, &w->timeline, error);
    mgw_engine_measure(engine, &w->seen);
    if (!status)
        status = mgw_engine_set_policy(engine, "overlap", error);
    for (size_t i = 0; !status && i < 2; i++)
        w->needed_s[i] = mgw_engine_trace(engine)->tensors[i].forward_start_s;
    return status;
}

static void *be_witness(void *argument)
{
    witness *w = argument;
    mgw_engine_options options = {
        .transport = {.name = "emulated:0.1,0:shm", .rank = w->rank, .size = 2, .job = w->job},
        .cluster = "paper-2-10gbe",
        .keeps_parameters = true};
    mgw_engine *engine = NULL;
    w->status = mgw_engine_open(&options, &engine, &w->error);
    if (!w->status)
        w->status = run_witness(w, engine, &w->error);
    mgw_engine_close(engine);
    return NULL;
}

static size_t count_spans(const mgw_timeline *timeline, mgw_span_kind kind)
{
    size_t count = 0;
    for (size_t i = 0; i < timeline->span_count; i++)
        count += timeline->spans[i].kind == kind;
    return count;
}

/* Waits for parameters are reported, and not included in other times. */
static void stalls_are_told(void **unused)
{
    (void)unused;
    char name[64];
    snprintf(name, sizeof name, "witness-%ld", (long)getpid());
    witness witnesses[2] = {{.rank = 0, .job = name}, {.rank = 1, .job = name}};
    pthread_t threads[2];
    for (int r = 0; r < 2; r++)
        assert_int_equal(pthread_create(&threads[r], NULL, be_witness, &witnesses[r]), 0);
    for (int r = 0; r < 2; r++)
        pthread_join(threads[r], NULL);
    for (int r = 0; r < 2; r++) {
        const witness *w = &witnesses[r];
        if (w->status)
            fail_msg("%s", w->error.message);
        assert_true(w->seen.stall_s > 0.025); /* in four of five steps */
        assert_true(w->seen.compute_s < 0.025);
        assert_true(w->seen.exposed_s > w->seen.stall_s + 0.04);
        for (int i = 0; i < 2; i++)
            assert_true(w->needed_s[i] >= 0 && w->needed_s[i] < 0.025);
        assert_int_equal(count_spans(w->timeline, MGW_SPAN_STALL), 1);
        assert_int_equal(count_spans(w->timeline, MGW_SPAN_REDUCE_SCATTER), 1);
        assert_int_equal(count_spans(w->timeline, MGW_SPAN_ALL_GATHER), 1);
        mgw_timeline_stats stats = mgw_timeline_measure(w->timeline);
        assert_true(stats.stalled_s > 0.025 && stats.compute_s < 0.025);
        assert_true(stats.iteration_s > 0.08);
        mgw_timeline_destroy(w->timeline);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_plan),
        cmocka_unit_test(policies),
        cmocka_unit_test(turns_of_a_trial),
        cmocka_unit_test(stalls_are_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
