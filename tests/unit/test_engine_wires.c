/* The engine with plans whose messages travel as they say: bit for bit what casts written down
 * give. Alone: over shared memory, in processes of its own. Under mpirun: test_engine_wires mpi */
#include <math.h>

#include "ranks.h"

enum { TENSORS = 8, PLANS = 3, RANKS_MAX = 8 };

static const size_t counts[TENSORS] = {5, 3000, 1, 2047, 777, 64, 1500, 9};

/* The last is no f32: that travels as it is, whatever the message says. */
static mgw_dtype dtype_of(size_t tensor)
{
    return tensor == TENSORS - 1 ? MGW_F64 : MGW_F32;
}

typedef struct wire_plan {
    bool halves;
    size_t count;
    mgw_operation operations[8];
} wire_plan;

static const wire_plan plans[PLANS] = {
    {.count = 6,
     .operations = {{.first = 0, .count = 2, .wire = MGW_BF16},
                    {.first = 2, .count = 1},
                    {.first = 3, .count = 2, .wire = MGW_FP8},
                    {.first = 5, .count = 1, .wire = MGW_F16},
                    {.first = 6, .count = 1, .wire = MGW_FP8_E5M2},
                    {.first = 7, .count = 1}}},
    {.count = 2,
     .operations = {{.first = 0, .count = 6, .wire = MGW_FP8},
                    {.first = 6, .count = 2, .wire = MGW_BF16}}},
    {.halves = true,
     .count = 6,
     .operations = {
         {.kind = MGW_REDUCE_SCATTER, .first = 0, .count = 4, .wire = MGW_FP8},
         {.first = 4, .count = 1, .wire = MGW_FP8_E5M2},
         {.kind = MGW_REDUCE_SCATTER, .first = 5, .count = 2, .wire = MGW_BF16},
         {.kind = MGW_REDUCE_SCATTER, .first = 7, .count = 1, .wire = MGW_FP8},
         {.kind = MGW_ALL_GATHER, .release = MGW_AFTER_UPDATE, .first = 5, .count = 3},
         {.kind = MGW_ALL_GATHER, .release = MGW_AFTER_UPDATE, .first = 0, .count = 4}}}};

/* Of all sizes, with zeros among them: any f32, the same on all ranks that ask. */
static float value_of(unsigned rank, size_t tensor, size_t index, int step)
{
    uint64_t state = 1 + index + 100000 * tensor + 10000000 * (uint64_t)rank + 77 * (uint64_t)step;
    random_bits(&state);
    if (random_below(&state, 9) == 0)
        return 0;
    return (float)ldexp(random_unit(&state) - 0.5,
                        (int)(tensor % 5) * 6 - (int)random_below(&state, 12));
}

/* ---- Casts, written down ---- */

typedef struct format {
    int mantissa_bits;
    int least; /* exponent of the least normal number */
    double most;
} format;

static format format_of(mgw_dtype wire)
{
    switch (wire) {
    case MGW_F16:
        return (format){10, -14, 65504};
    case MGW_BF16:
        return (format){7, -126, 3.38953139e38};
    case MGW_FP8:
        return (format){3, -6, 448};
    default:
        return (format){2, -14, 57344};
    }
}

static double rounded(double value, format f)
{
    int exponent = value != 0 ? ilogb(value) : 0;
    double step = ldexp(1, (exponent < f.least ? f.least : exponent) - f.mantissa_bits);
    double result = rint(value / step) * step;
    return fabs(result) < f.most ? result : copysign(f.most, result);
}

/* The largest power of two that lets a block's largest number fit; 1 where there is no scale. */
static double scale_of(double largest, mgw_dtype wire, int headroom)
{
    int exponent = -126;
    if (mgw_dtype_bytes(wire) != 1)
        return 1;
    while (exponent < 126 && ldexp(largest, exponent + 1 + headroom) <= format_of(wire).most)
        exponent++;
    return ldexp(1, exponent);
}

typedef struct job_of {
    mgw_engine *engine;
    mgw_op op;
    char *wrong;
} job_of;

static unsigned size_of(const job_of *j)
{
    return mgw_engine_size(j->engine);
}

/* What one element must be. */
static float expected_of(const job_of *j, size_t tensor, size_t index, mgw_dtype wire,
                         double largest, int step)
{
    unsigned size = size_of(j);
    int headroom = 0;
    while (j->op == MGW_SUM && 1u << headroom < size)
        headroom++;
    double scale = scale_of(largest, wire, headroom);
    float sum = 0;
    if (size == 1) /* nothing travels */
        return value_of(0, tensor, index, step);
    for (unsigned r = 0; r < size; r++) {
        double value = (double)value_of(r, tensor, index, step) * scale;
        sum += (float)(wire == MGW_F32 ? value : rounded(value, format_of(wire)));
    }
    if (j->op == MGW_AVERAGE)
        sum /= (float)size;
    return wire == MGW_F32 ? sum : (float)(rounded((double)sum, format_of(wire)) / scale);
}

/* Where an f32 tensor begins in its message: other tensors and gaps are before it. */
static size_t offset_of(const job_of *j, const mgw_operation *o, size_t tensor)
{
    size_t first = o->first;
    while (dtype_of(first) != MGW_F32)
        first++;
    return (size_t)((float *)mgw_engine_gradient(j->engine, (unsigned)tensor) -
                    (float *)mgw_engine_gradient(j->engine, (unsigned)first));
}

static void find_largest(const job_of *j, const mgw_operation *o, int step, double *largest)
{
    for (size_t t = o->first; t < o->first + o->count; t++)
        for (size_t i = 0; t < TENSORS && dtype_of(t) == MGW_F32 && i < counts[t]; i++)
            for (unsigned r = 0; r < size_of(j); r++) {
                double *most = &largest[(offset_of(j, o, t) + i) / MGW_FP8_BLOCK];
                *most = fmax(*most, fabs((double)value_of(r, t, i, step)));
            }
}

static void check_element(const job_of *j, const mgw_operation *o, size_t t, size_t i,
                          double largest, int step)
{
    float expected = expected_of(j, t, i, o->wire, largest, step);
    float found = ((float *)mgw_engine_gradient(j->engine, (unsigned)t))[i];
    bool near = o->wire == MGW_F32 && fabsf(found - expected) <= 1e-6f * fabsf(expected) + 1e-12f;
    bool none = isnan(found) && isnan(expected);
    if (found != expected && !none && !near && !*j->wrong)
        snprintf(j->wrong, 200, "step %d, tensor %zu as %s: element %zu is %.9g, not %.9g", step, t,
                 mgw_dtype_name(o->wire), i, (double)found, (double)expected);
}

/* Whether the averages of an element are this worker's. */
static bool is_ours(const job_of *j, size_t tensor, size_t index)
{
    size_t count = 0;
    const mgw_shard *shards = mgw_engine_shards(j->engine, &count);
    for (size_t k = 0; k < count; k++)
        if (shards[k].tensor == tensor && index >= shards[k].first &&
            index < shards[k].first + shards[k].count)
            return true;
    return false;
}

static void check_operation(const job_of *j, const mgw_operation *o, int step)
{
    double largest[16] = {0};
    find_largest(j, o, step, largest);
    for (size_t t = o->first; t < o->first + o->count; t++)
        for (size_t i = 0; i < counts[t]; i++) {
            if (o->kind == MGW_REDUCE_SCATTER && !is_ours(j, t, i))
                continue;
            if (dtype_of(t) == MGW_F32) {
                size_t block = (offset_of(j, o, t) + i) / MGW_FP8_BLOCK;
                check_element(j, o, t, i, largest[block], step);
                continue;
            }
            double sum = 0;
            for (unsigned r = 0; r < size_of(j); r++)
                sum += (double)value_of(r, t, i, step);
            sum /= j->op == MGW_AVERAGE ? size_of(j) : 1;
            double found = ((double *)mgw_engine_gradient(j->engine, (unsigned)t))[i];
            if (fabs(found - sum) > 1e-14 * fabs(sum) && !*j->wrong)
                snprintf(j->wrong, 200, "step %d: f64 is %.17g, not %.17g", step, found, sum);
        }
}

/* ---- Steps ---- */

static mgw_status run_step(const job_of *j, int step, mgw_error *error)
{
    unsigned rank = mgw_engine_rank(j->engine);
    mgw_status status = mgw_engine_begin(j->engine, error);
    for (unsigned t = 0; !status && t < TENSORS; t++) {
        void *gradient = mgw_engine_gradient(j->engine, t);
        for (size_t i = 0; i < counts[t]; i++)
            if (dtype_of(t) == MGW_F32)
                ((float *)gradient)[i] = value_of(rank, t, i, step);
            else
                ((double *)gradient)[i] = (double)value_of(rank, t, i, step);
        mgw_engine_ready(j->engine, t);
    }
    return status ? status : mgw_engine_wait(j->engine, error);
}

/* The bytes of a timeline's messages are those on the wire: gaps between tensors travel, too. */
static mgw_status check_bytes(const job_of *j, const wire_plan *plan, mgw_error *error)
{
    mgw_timeline *timeline = NULL;
    mgw_status status = mgw_engine_timeline(j->engine, &timeline, error);
    if (status)
        return status;
    size_t m = 0;
    for (size_t s = 0; s < timeline->span_count; s++) {
        const mgw_span *span = &timeline->spans[s];
        if (span->kind != MGW_SPAN_MESSAGE && span->kind != MGW_SPAN_REDUCE_SCATTER)
            continue;
        const mgw_operation *o = &plan->operations[m++];
        uint64_t least = 0;
        for (size_t t = o->first; t < o->first + o->count; t++)
            least += dtype_of(t) == MGW_F32 ? mgw_wire_bytes(o->wire, counts[t]) : 8 * counts[t];
        uint64_t gaps = o->count * 16 * 4 + 64;
        if ((span->bytes + 8 * o->count < least || span->bytes > least + gaps) && !*j->wrong)
            snprintf(j->wrong, 200, "message %zu: %llu bytes, not %llu", m,
                     (unsigned long long)span->bytes, (unsigned long long)least);
    }
    mgw_timeline_destroy(timeline);
    return MGW_OK;
}

static mgw_status run_plan(const job_of *j, const wire_plan *plan, int step, mgw_error *error)
{
    mgw_status status = mgw_engine_set_plan(j->engine, plan->operations, plan->count, error);
    if (!status)
        status = run_step(j, step, error);
    for (size_t m = 0; !status && m < plan->count; m++)
        if (plan->operations[m].kind != MGW_ALL_GATHER)
            check_operation(j, &plan->operations[m], step);
    if (!status && !plan->halves)
        status = check_bytes(j, plan, error);
    if (!status && plan->halves)
        status = mgw_engine_update(j->engine, MGW_NO_OPERATION, error);
    return status;
}

static mgw_status add_tensors(mgw_engine *engine, mgw_error *error)
{
    mgw_status status = MGW_OK;
    for (size_t t = 0; !status && t < TENSORS; t++) {
        char name[8];
        unsigned id = 0;
        snprintf(name, sizeof name, "t%zu", t);
        status = mgw_engine_add(engine, name, counts[t], dtype_of(t), &id, error);
    }
    return status;
}

static mgw_status run_job(mgw_engine_options options, bool halves, char *wrong, mgw_error *error)
{
    mgw_engine *engine = NULL;
    options.keeps_parameters = halves;
    options.cluster = "paper-1-10gbe"; /* any: plans are given */
    mgw_status status = mgw_engine_open(&options, &engine, error);
    job_of j = {.engine = engine, .op = options.op, .wrong = wrong};
    if (!status)
        status = add_tensors(engine, error);
    if (!status)
        status = mgw_engine_start(engine, error);
    for (int step = 0; !status && step < 6; step++)
        if (plans[step % PLANS].halves == halves)
            status = run_plan(&j, &plans[step % PLANS], step, error);
    if (!status && halves)
        status = mgw_engine_drain(engine, error);
    mgw_engine_close(engine);
    return status;
}

/* ---- Over shared memory ---- */

typedef struct shm_start {
    unsigned rank;
    unsigned size;
    char job[64];
    bool halves;
    mgw_op op;
    rank_result *result;
} shm_start;

static void be_rank(const shm_start *s)
{
    mgw_engine_options options = {
        .transport = {.name = "shm", .rank = s->rank, .size = s->size, .job = s->job}, .op = s->op};
    s->result->status = run_job(options, s->halves, s->result->wrong, &s->result->error);
}

static void run_shm(unsigned size, bool halves, mgw_op op)
{
    static int number;
    pid_t children[RANKS_MAX];
    rank_result *results = mmap(NULL, RANKS_MAX * sizeof *results, PROT_READ | PROT_WRITE,
                                MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    shm_start s = {.size = size, .halves = halves, .op = op};
    snprintf(s.job, sizeof s.job, "wires-%ld-%d", (long)getpid(), number++);
    for (s.rank = 0; s.rank < size; s.rank++) {
        s.result = &results[s.rank];
        children[s.rank] = fork();
        assert_true(children[s.rank] >= 0);
        if (!children[s.rank]) {
            be_rank(&s);
            _exit(0);
        }
    }
    for (unsigned r = 0; r < size; r++) {
        int code = 0;
        waitpid(children[r], &code, 0);
        if (code || results[r].status || results[r].wrong[0])
            fail_msg("%u workers, rank %u: %d %s%s", size, r, code, results[r].error.message,
                     results[r].wrong);
    }
    munmap(results, RANKS_MAX * sizeof *results);
}

static void messages_travel_as_the_plan_says(void **unused)
{
    (void)unused;
    run_shm(1, false, MGW_AVERAGE);
    run_shm(2, false, MGW_AVERAGE);
    run_shm(3, false, MGW_AVERAGE);
    run_shm(4, false, MGW_SUM);
}

static void reduce_scatters_do_too(void **unused)
{
    (void)unused;
    run_shm(2, true, MGW_AVERAGE);
    run_shm(3, true, MGW_SUM);
}

/* ---- What cannot be ---- */

static void bad_wires(void **unused)
{
    (void)unused;
    mgw_engine *engine = NULL;
    mgw_error error;
    mgw_engine_options options = {.transport = {.name = "self"}, .cluster = "paper-1-10gbe"};
    assert_int_equal(mgw_engine_open(&options, &engine, &error), MGW_OK);
    assert_int_equal(add_tensors(engine, &error), MGW_OK);
    assert_int_equal(mgw_engine_start(engine, &error), MGW_OK);
    mgw_operation whole = {.first = 0, .count = TENSORS, .wire = MGW_F64};
    assert_int_not_equal(mgw_engine_set_plan(engine, &whole, 1, &error), MGW_OK);
    mgw_engine_close(engine);
    options.wire = "int8";
    assert_int_equal(mgw_engine_open(&options, &engine, &error), MGW_ERR_ARGUMENT);
    assert_non_null(strstr(error.message, "fp8"));
}

/* Workers that disagree about a wire find out. */
static void disagree(mgw_transport *transport, rank_result *result)
{
    unsigned rank = mgw_transport_rank(transport);
    char name[96];
    snprintf(name, sizeof name, "wires-apart-%ld", (long)getppid());
    mgw_engine_options options = {
        .transport = {.name = "shm", .rank = rank, .size = 2, .job = name},
        .cluster = "paper-1-10gbe"};
    mgw_engine *engine = NULL;
    mgw_error error = {0};
    mgw_operation whole = {.first = 0, .count = TENSORS, .wire = rank ? MGW_FP8 : MGW_BF16};
    result->status = mgw_engine_open(&options, &engine, &result->error);
    if (!result->status)
        result->status = add_tensors(engine, &result->error);
    if (!result->status)
        result->status = mgw_engine_start(engine, &result->error);
    if (!result->status && mgw_engine_set_plan(engine, &whole, 1, &error) != MGW_ERR_PEER)
        snprintf(result->wrong, sizeof result->wrong, "not told apart: %s", error.message);
    mgw_engine_close(engine);
}

static void workers_agree_on_wires(void **unused)
{
    (void)unused;
    run_well((job){.transport = "shm", .size = 2, .timeout_s = 20, .body = disagree},
             run_processes);
}

static const mgw_tensor tensors[2] = {{100000, 1e-3, MGW_TIME_UNKNOWN},
                                      {100, 1e-3, MGW_TIME_UNKNOWN}};
static const char *const names[] = {"large", "small"};
static char path[64];

/* One step; the average of tensor 0 must be the given value, and that of tensor 1 exact. */
static mgw_status step_of_pinned(mgw_engine *engine, float large, rank_result *result)
{
    const float exact = 1.0009765625f; /* more bits than bf16 has */
    mgw_status status = mgw_engine_begin(engine, &result->error);
    for (unsigned t = 0; !status && t < 2; t++) {
        ((float *)mgw_engine_gradient(engine, t))[7] = exact;
        mgw_engine_ready(engine, t);
    }
    if (!status)
        status = mgw_engine_wait(engine, &result->error);
    if (!status && (((float *)mgw_engine_gradient(engine, 0))[7] != large ||
                    ((float *)mgw_engine_gradient(engine, 1))[7] != exact))
        snprintf(result->wrong, sizeof result->wrong, "tensor 0 is not %.10g", (double)large);
    return status;
}

/* One step by the file, and those of a trial: a policy sends f32, whatever the plan before did. */
static void run_pinned(mgw_transport *transport, rank_result *result)
{
    unsigned rank = mgw_transport_rank(transport);
    char name[96];
    snprintf(name, sizeof name, "wires-pinned-%ld", (long)getppid());
    mgw_engine_options options = {
        .transport = {.name = "shm", .rank = rank, .size = 2, .job = name},
        .plan = path,
        .cluster = "paper-1-10gbe"};
    mgw_engine *engine = NULL;
    unsigned id = 0;
    mgw_status status = mgw_engine_open(&options, &engine, &result->error);
    for (size_t t = 0; !status && t < 2; t++)
        status = mgw_engine_add(engine, names[t], tensors[t].count, MGW_F32, &id, &result->error);
    if (!status)
        status = mgw_engine_start(engine, &result->error);
    if (!status)
        status = step_of_pinned(engine, 1, result);
    if (!status)
        status = mgw_engine_set_policy(engine, "optimal", &result->error);
    size_t tried = 0;
    for (int step = 0; !status && !result->wrong[0] && step < 200; step++)
        status = step_of_pinned(engine, 1.0009765625f, result);
    if (!status && mgw_engine_tried(engine, &tried) && tried < 2)
        snprintf(result->wrong, sizeof result->wrong, "%zu plans were tried", tried);
    result->status = status;
    mgw_engine_close(engine);
}

/* A plan made and written for wires, from the first step on. */
static void a_plan_file_says_it(void **unused)
{
    (void)unused;
    snprintf(path, sizeof path, "/tmp/wires-%ld.json", (long)getpid());
    mgw_trace *trace = NULL;
    mgw_cluster *cluster = NULL;
    mgw_error error;
    mgw_cost cost;
    mgw_text text;
    mgw_text_init(&text);
    assert_int_equal(mgw_trace_create("m", MGW_F32, 0, 2, names, tensors, &trace, &error), MGW_OK);
    assert_int_equal(mgw_cluster_load("paper-1-10gbe", &cluster, &error), MGW_OK);
    mgw_cluster_cost(cluster, &cost);
    assert_int_equal(mgw_wires_parse("bf16,f32", &cost.wires, &error), MGW_OK);
    mgw_plan *plan = make_plan(trace, &cost, "wfbp");
    assert_int_equal(plan->operations[0].wire, MGW_BF16);
    assert_int_equal(plan->operations[1].wire, MGW_F32);
    mgw_plan_write(plan, &text);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text.data, file);
    fclose(file);
    run_well((job){.transport = "shm", .size = 2, .timeout_s = 20, .body = run_pinned},
             run_processes);
    unlink(path);
    mgw_text_fini(&text);
    mgw_plan_destroy(plan);
    mgw_cluster_destroy(cluster);
    mgw_trace_destroy(trace);
}

/* ---- Under mpirun ---- */

static int be_mpi_rank(void)
{
    static const mgw_op ops[] = {MGW_AVERAGE, MGW_SUM};
    for (int k = 0; k < 2; k++) {
        char wrong[200] = "";
        mgw_error error = {0};
        mgw_engine_options options = {.transport = {.name = "mpi"}, .op = ops[k]};
        if (run_job(options, k == 1, wrong, &error) || *wrong) {
            fprintf(stderr, "%s%s\n", error.message, wrong);
            return 1;
        }
    }
    puts("good");
    return 0;
}

int main(int argc, char **argv)
{
    if (argc > 1 && !strcmp(argv[1], "mpi"))
        return be_mpi_rank();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(messages_travel_as_the_plan_says),
        cmocka_unit_test(reduce_scatters_do_too),
        cmocka_unit_test(bad_wires),
        cmocka_unit_test(workers_agree_on_wires),
        cmocka_unit_test(a_plan_file_says_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
