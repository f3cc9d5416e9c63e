/* The tuner's life: when looks come, what rank 0's word is worth, what steps teach. Workers are
 * tuners of one thread. */
#include <math.h>
#include <stdbool.h>

#include "support.h"

enum { RANKS = 3, TENSORS = 8, WORD_MOST = 64, ROW_MOST = 8 * (2 + 5 * TENSORS) };

static const char *const names[] = {"a", "b", "c", "d", "e", "f", "g", "h", "i", "j",
                                    "k", "l", "m", "n", "o", "p", "q", "r", "s", "t"};

static mgw_tuner *make(const mgw_tuner_options *options, size_t tensors, const uint64_t *bytes,
                       mgw_line line)
{
    mgw_tuner *tuner = NULL;
    mgw_cluster *cluster = NULL;
    mgw_error error = {0};
    if (mgw_cluster_from_line("idle", options->size < 2 ? 2 : options->size, &line, &cluster,
                              &error) ||
        mgw_tuner_create(options, tensors, names, bytes, cluster, &tuner, &error))
        fail_msg("%s", error.message);
    return tuner;
}

/* As one of `size`: 1 MB each, a gradient every 10 ms, messages of 5 ms and 5 ms per MB. */
static const uint64_t megabytes[TENSORS] = {1000000, 1000000, 1000000, 1000000,
                                            1000000, 1000000, 1000000, 1000000};
static const mgw_line usual_line = {5e-3, 5e-9};
static const double usual_ready_s[TENSORS] = {0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.07, 0.08};

static mgw_tuner_options usual(unsigned size)
{
    return (mgw_tuner_options){.policy = "optimal",
                               .profile_steps = 2,
                               .replan_steps = 10,
                               .replan_percent = 3,
                               .early_looks = 3,
                               .whole_steps = true,
                               .crowd = 1,
                               .size = size};
}

static mgw_tuner *make_usual(unsigned size)
{
    mgw_tuner_options options = usual(size);
    return make(&options, TENSORS, megabytes, usual_line);
}

static void step(mgw_tuner *tuner, const double *ready_s, double iteration_s)
{
    mgw_tuner_count(tuner);
    mgw_tuner_observe(tuner, &(mgw_step_record){.compute_s = ready_s[TENSORS - 1],
                                                .iteration_s = iteration_s,
                                                .ready_s = ready_s});
}

static mgw_tuner_statistics statistics_of(const mgw_tuner *tuner)
{
    mgw_tuner_statistics statistics;
    mgw_tuner_measure(tuner, &statistics);
    return statistics;
}

static void expect_same_operations(const mgw_tuner *left, const mgw_tuner *right)
{
    size_t count = 0;
    size_t other = 0;
    const mgw_operation *a = mgw_tuner_operations(left, &count);
    const mgw_operation *b = mgw_tuner_operations(right, &other);
    assert_int_equal(count, other);
    for (size_t m = 0; m < count; m++)
        assert_true(a[m].kind == b[m].kind && a[m].release == b[m].release &&
                    a[m].first == b[m].first && a[m].count == b[m].count &&
                    a[m].bytes == b[m].bytes);
}

static double iteration_with(mgw_plan *plan, const mgw_trace *trace, mgw_line line, double factor)
{
    mgw_cost cost = {.workers = 2, .cluster = "idle"};
    mgw_error error = {0};
    cost.of[MGW_ALL_REDUCE] =
        (mgw_curve){.a_s = line.a_s * factor, .b_s_per_byte = line.b_s_per_byte * factor};
    if (mgw_plan_time(plan, trace, &cost, &error))
        fail_msg("%s", error.message);
    return plan->iteration_s;
}

/* A plan of the tuner's for what it knows, as it would be with slower messages. */
static double slowed_s(const mgw_tuner *tuner, mgw_line line, double factor)
{
    const mgw_plan *now = mgw_tuner_plan(tuner);
    const mgw_trace *trace = mgw_tuner_trace(tuner);
    mgw_plan *copy = NULL;
    mgw_cost cost = {.workers = 2, .cluster = "idle"};
    mgw_error error = {0};
    if (mgw_plan_from_operations(trace, &cost, "copy", now->operations, now->operation_count, &copy,
                                 &error))
        fail_msg("%s", error.message);
    double iteration_s = iteration_with(copy, trace, line, factor);
    mgw_plan_destroy(copy);
    return iteration_s;
}

/* ---- Other workers ---- */

/* The others' share of what is exchanged: made up, or what rank 0 has told. */
typedef struct others {
    unsigned combines;
    unsigned tells;
    size_t sums[4];
    size_t maxima[4];
    size_t told_bytes;
    uint64_t word[WORD_MOST];
    unsigned rank;
    double failed;     /* what the others say of themselves in the end, */
    double said;       /*   and this one of itself */
    bool damages;      /* a bit of what is told */
    int fails_at;      /* the exchange itself, at which call */
    double row_factor; /* what all together have, of what one has, in sums */
} others;

static mgw_status combine(void *context, double *values, size_t sums, size_t maxima,
                          mgw_error *error)
{
    others *o = context;
    if (o->fails_at == (int)(o->combines + o->tells + 1)) {
        error->status = MGW_ERR_PEER;
        snprintf(error->message, sizeof error->message, "rank 1 is gone");
        return MGW_ERR_PEER;
    }
    o->sums[o->combines] = sums;
    o->maxima[o->combines] = maxima;
    if (++o->combines == 2) { /* whether all could follow */
        assert_int_equal(sums, 0);
        assert_int_equal(maxima, 1);
        o->said = values[0];
        values[0] = fmax(values[0], o->failed);
    }
    for (size_t i = 0; o->combines == 1 && i < sums; i++)
        values[i] *= o->row_factor;
    return MGW_OK;
}

static mgw_status tell(void *context, void *data, size_t bytes, mgw_error *error)
{
    others *o = context;
    if (o->fails_at == (int)(o->combines + ++o->tells)) {
        error->status = MGW_ERR_PEER;
        snprintf(error->message, sizeof error->message, "rank 0 is gone");
        return MGW_ERR_PEER;
    }
    assert_true(bytes <= sizeof o->word);
    o->told_bytes = bytes;
    if (o->rank == 0)
        memcpy(o->word, data, bytes);
    else
        memcpy(data, o->word, bytes);
    if (o->damages)
        ((uint64_t *)data)[5] ^= 2;
    return MGW_OK;
}

static mgw_exchange exchange_of(others *o, unsigned rank, unsigned size)
{
    o->rank = rank;
    o->combines = o->tells = 0;
    if (o->row_factor == 0)
        o->row_factor = size;
    return (mgw_exchange){o, rank, size, combine, tell};
}

/* A look of one worker among equals; whether the plan has changed. */
static bool look(mgw_tuner *tuner, bool may_stay)
{
    others o = {0};
    mgw_exchange exchange = exchange_of(&o, 0, 1);
    mgw_error error = {0};
    bool changed = false;
    if (mgw_tuner_look(tuner, &exchange, may_stay, &changed, &error))
        fail_msg("%s", error.message);
    return changed;
}

/* The numbers that a look goes through, for one worker. */
static void propose(mgw_tuner *tuner, uint64_t *word)
{
    double row[ROW_MOST];
    size_t sums = 0;
    size_t maxima = 0;
    mgw_error error = {0};
    mgw_tuner_row_size(tuner, &sums, &maxima);
    assert_true(sums + maxima <= ROW_MOST);
    assert_true(mgw_tuner_word_size(tuner) <= WORD_MOST);
    mgw_tuner_row(tuner, row);
    if (mgw_tuner_propose(tuner, row, false, word, &error))
        fail_msg("%s", error.message);
}

/* ---- Steps are counted ---- */

/* At which steps a look is due, of so many; bit k: before the step after the k-th. */
static uint64_t looks_of(const mgw_tuner_options *options, unsigned steps)
{
    uint64_t looks = 0;
    mgw_tuner *tuner = make(options, TENSORS, megabytes, usual_line);
    for (unsigned k = 0; k < steps; k++) {
        if (mgw_tuner_due(tuner)) {
            looks |= (uint64_t)1 << k;
            look(tuner, true);
            assert_false(mgw_tuner_due(tuner));
        }
        step(tuner, usual_ready_s, 0.1);
    }
    mgw_tuner_destroy(tuner);
    return looks;
}

#define AT(k) ((uint64_t)1 << (k))

static void test_due(void **state)
{
    (void)state;
    static const struct row {
        int profile_steps;
        int replan_steps;
        int early_looks;
        int sampled;
        uint64_t looks;
    } table[] = {
        {5, 20, 0, 0, AT(5) | AT(25) | AT(45)},
        {5, 20, 1, 0, AT(5) | AT(10) | AT(30) | AT(50)},
        {5, 20, 3, 0, AT(5) | AT(10) | AT(15) | AT(20) | AT(40)},
        {20, 5, 2, 0, AT(20) | AT(25) | AT(30) | AT(35) | AT(40) | AT(45) | AT(50) | AT(55)},
        {5, 20, 1, 8, AT(9) | AT(18) | AT(38) | AT(58)},
        {5, 5, 0, 5, AT(6) | AT(12) | AT(18) | AT(24) | AT(30) | AT(36) | AT(42) | AT(48) | AT(54)},
        {30, 20, 0, 30, AT(31)},
        {0, 30, 0, 0, AT(1) | AT(31)},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        mgw_tuner_options options = usual(1);
        options.profile_steps = table[i].profile_steps;
        options.replan_steps = table[i].replan_steps;
        options.early_looks = table[i].early_looks;
        options.sampled = table[i].sampled;
        uint64_t looks = looks_of(&options, 60);
        if (looks != table[i].looks)
            fail_msg("row %zu: %llx, not %llx", i, (unsigned long long)looks,
                     (unsigned long long)table[i].looks);
    }
}

/* Bit k: the times of the step after the k-th count; of the steps from one look to the next. */
static uint64_t watched(int replan_steps, int sampled, bool planned)
{
    mgw_tuner_options options = usual(1);
    options.profile_steps = planned ? 1 : replan_steps;
    options.replan_steps = replan_steps;
    options.early_looks = 0;
    options.sampled = sampled;
    mgw_tuner *tuner = make(&options, TENSORS, megabytes, usual_line);
    if (planned) {
        step(tuner, usual_ready_s, 0.1);
        look(tuner, true);
    }
    uint64_t seen = 0;
    for (unsigned k = 0; !mgw_tuner_due(tuner); k++) {
        seen |= mgw_tuner_watches(tuner) ? AT(k) : 0;
        step(tuner, usual_ready_s, 0.1);
    }
    mgw_tuner_destroy(tuner);
    return seen;
}

/* All before the first plan; then as many as there are turns, or rows. */
static void test_watches(void **state)
{
    (void)state;
    assert_int_equal(watched(5, 0, false), 0x1f);
    assert_int_equal(watched(12, 4, false), 0xfff);
    assert_int_equal(watched(12, 4, true), 0xf00);
    assert_int_equal(watched(12, 1, true), 0x800);
    assert_int_equal(watched(4, 8, true), 0x1fe); /* nine steps: the first has no turn */
    assert_int_equal(watched(12, 0, true), 0xff0);
    assert_int_equal(watched(5, 0, true), 0x1f);
}

/* Means since the last look; those before it, until there is a step. */
static void test_statistics(void **state)
{
    (void)state;
    mgw_tuner *tuner = make_usual(1);
    mgw_tuner_statistics s = statistics_of(tuner);
    assert_true(s.steps == 0 && s.plans == 0 && s.iteration_s == 0 && s.slowdown == 1);
    step(tuner, usual_ready_s, 0.2);
    step(tuner, usual_ready_s, 0.4);
    s = statistics_of(tuner);
    assert_int_equal(s.steps, 2);
    assert_close(s.iteration_s, 0.3);
    assert_close(s.compute_s, 0.08);
    assert_true(look(tuner, true));
    s = statistics_of(tuner);
    assert_int_equal(s.plans, 1);
    assert_close(s.iteration_s, 0.3);
    look(tuner, true); /* without a step */
    assert_close(statistics_of(tuner).iteration_s, 0.3);
    step(tuner, usual_ready_s, 0.5);
    s = statistics_of(tuner);
    assert_int_equal(s.steps, 3);
    assert_close(s.iteration_s, 0.5);
    assert_close(s.compute_s, 0.08);
    mgw_tuner_destroy(tuner);
}

/* ---- Life ---- */

static void test_refused(void **state)
{
    (void)state;
    mgw_tuner *tuner = NULL;
    mgw_cluster *cluster = NULL;
    mgw_error error = {0};
    mgw_tuner_options options = usual(2);
    assert_int_equal(mgw_cluster_from_line("idle", 2, &usual_line, &cluster, &error), MGW_OK);
    assert_int_equal(mgw_tuner_create(&options, 0, names, megabytes, cluster, &tuner, &error),
                     MGW_ERR_ARGUMENT);
    assert_int_equal(
        mgw_tuner_create(&options, (size_t)1 << 28, names, megabytes, cluster, &tuner, &error),
        MGW_ERR_ARGUMENT);
    options.size = 0;
    assert_int_equal(mgw_tuner_create(&options, 8, names, megabytes, cluster, &tuner, &error),
                     MGW_ERR_ARGUMENT);
    options = usual(2);
    options.policy = "best";
    assert_int_equal(mgw_tuner_create(&options, 8, names, megabytes, cluster, &tuner, &error),
                     MGW_ERR_ARGUMENT);
    assert_contains(error.message, "best");
    assert_null(tuner);
    mgw_cluster_destroy(cluster); /* still the caller's */
    tuner = make_usual(2);
    assert_int_equal(mgw_tuner_set_policy(tuner, "best", &error), MGW_ERR_ARGUMENT);
    mgw_tuner_destroy(tuner);
    mgw_tuner_destroy(NULL);
}

/* Until there is a plan: 1 MiB first, 25 MiB then. */
static void test_first_operations(void **state)
{
    (void)state;
    static const uint64_t bytes[] = {1 << 19, 1 << 19, 1 << 24, 1 << 23, 1 << 21, 4};
    mgw_tuner_options options = usual(2);
    mgw_tuner *tuner = make(&options, 6, bytes, usual_line);
    size_t count = 0;
    const mgw_operation *operations = mgw_tuner_operations(tuner, &count);
    assert_int_equal(count, 3);
    static const size_t counts[] = {2, 3, 1};
    for (size_t m = 0; m < 3; m++)
        assert_int_equal(operations[m].count, counts[m]);
    assert_null(mgw_tuner_plan(tuner));
    assert_null(mgw_tuner_trace(tuner));
    assert_string_equal(mgw_tuner_cluster(tuner)->name, "idle");
    mgw_tuner_destroy(tuner);
}

/* ---- Looks ---- */

/* What is exchanged is as much on every worker, and all follow the same. */
static void test_look(void **state)
{
    (void)state;
    mgw_tuner *ranks[RANKS];
    others o[RANKS] = {{0}};
    mgw_error error = {0};
    for (unsigned r = 0; r < RANKS; r++) {
        bool changed = false;
        ranks[r] = make_usual(RANKS);
        step(ranks[r], usual_ready_s, 0.1);
        step(ranks[r], usual_ready_s, 0.1);
        memcpy(o[r].word, o[0].word, sizeof o[0].word);
        mgw_exchange exchange = exchange_of(&o[r], r, RANKS);
        assert_int_equal(mgw_tuner_look(ranks[r], &exchange, true, &changed, &error), MGW_OK);
        assert_true(changed);
        expect_same_operations(ranks[0], ranks[r]);
        assert_int_equal(o[r].combines, 2);
        assert_int_equal(o[r].tells, 1);
        assert_true(o[r].said == 0);
        assert_int_equal(o[r].told_bytes, 8 * (5 + 2 * TENSORS));
        assert_int_equal(o[r].sums[0], o[0].sums[0]);
        assert_int_equal(o[r].maxima[0], o[0].maxima[0]);
    }
    for (unsigned r = 0; r < RANKS; r++)
        mgw_tuner_destroy(ranks[r]);
}

static mgw_status look_badly(others *o, unsigned rank, bool *changed, mgw_error *error)
{
    mgw_tuner *tuner = make_usual(RANKS);
    step(tuner, usual_ready_s, 0.1);
    if (rank)
        propose(tuner, o->word);
    mgw_exchange exchange = exchange_of(o, rank, RANKS);
    mgw_status status = mgw_tuner_look(tuner, &exchange, true, changed, error);
    mgw_tuner_destroy(tuner);
    return status;
}

/* All hear who could not follow: the first of them; and that one says why. */
static void test_one_cannot_follow(void **state)
{
    (void)state;
    bool changed = true;
    mgw_error error = {0};
    others o = {.failed = RANKS - 2}; /* rank 2 */
    assert_int_equal(look_badly(&o, 0, &changed, &error), MGW_ERR_PEER);
    assert_contains(error.message, "rank 2 cannot follow the plan of rank 0");
    o = (others){.failed = RANKS - 1}; /* rank 1, and maybe others */
    assert_int_equal(look_badly(&o, 2, &changed, &error), MGW_ERR_PEER);
    assert_contains(error.message, "rank 1 cannot follow");
    o = (others){.damages = true};
    assert_int_equal(look_badly(&o, 1, &changed, &error), MGW_ERR_PEER);
    assert_contains(error.message, "came damaged");
    assert_false(changed);
    assert_true(o.said == RANKS - 1); /* the most is the first rank's */
}

/* What the exchange says is passed on, at once. */
static void test_exchange_fails(void **state)
{
    (void)state;
    for (int at = 1; at <= 3; at++) {
        bool changed = false;
        mgw_error error = {0};
        others o = {.fails_at = at};
        assert_int_equal(look_badly(&o, 1, &changed, &error), MGW_ERR_PEER);
        assert_contains(error.message, "is gone");
        assert_int_equal(o.combines + o.tells, at == 2 ? 2 : at - 1);
    }
}

/* ---- Rank 0's word ---- */

static void expect_damaged(mgw_tuner *tuner, const uint64_t *word)
{
    bool changed = true;
    mgw_error error = {0};
    size_t before = 0;
    size_t after = 0;
    const mgw_operation *operations = mgw_tuner_operations(tuner, &before);
    assert_int_equal(mgw_tuner_follow(tuner, word, &changed, &error), MGW_ERR_PEER);
    assert_contains(error.message, "damaged");
    assert_false(changed);
    assert_ptr_equal(mgw_tuner_operations(tuner, &after), operations);
    assert_int_equal(after, before);
    assert_true(statistics_of(tuner).slowdown == 1 && statistics_of(tuner).plans == 0);
}

/* Any bit that is another, any count that is another: nobody follows that. Then the word itself. */
static void test_damaged_words(void **state)
{
    (void)state;
    uint64_t word[WORD_MOST];
    bool changed = false;
    mgw_error error = {0};
    mgw_tuner *tuner = make_usual(RANKS);
    step(tuner, usual_ready_s, 0.1);
    propose(tuner, word);
    size_t size = mgw_tuner_word_size(tuner);
    for (size_t i = 0; i < 64 * size; i++) {
        word[i / 64] ^= (uint64_t)1 << i % 64;
        expect_damaged(tuner, word);
        word[i / 64] ^= (uint64_t)1 << i % 64;
    }
    uint64_t count = word[1];
    assert_in_range(count, 2, TENSORS);
    for (word[1] = 0; word[1] <= 3 * TENSORS; word[1]++)
        if (word[1] != count)
            expect_damaged(tuner, word);
    word[1] = UINT64_MAX;
    expect_damaged(tuner, word);
    word[1] = count;
    uint64_t first = word[5]; /* operations that have changed places */
    word[5] = word[6];
    word[6] = first;
    expect_damaged(tuner, word);
    word[6] = word[5];
    word[5] = first;
    assert_int_equal(mgw_tuner_follow(tuner, word, &changed, &error), MGW_OK);
    assert_true(changed);
    mgw_tuner_destroy(tuner);
}

/* Rank 0's operations, with times by what this worker knows; the slowdown is rank 0's, too. */
static void test_follow(void **state)
{
    (void)state;
    static const double own_s[TENSORS] = {0.02, 0.04, 0.06, 0.08, 0.1, 0.12, 0.14, 0.16};
    uint64_t word[WORD_MOST];
    uint64_t ignored[WORD_MOST];
    bool changed = false;
    mgw_error error = {0};
    mgw_tuner *rank0 = make_usual(2);
    mgw_tuner *rank1 = make_usual(2);
    step(rank0, usual_ready_s, 0.1);
    step(rank1, own_s, 0.1);
    propose(rank0, word);
    propose(rank1, ignored);
    assert_int_equal(mgw_tuner_follow(rank0, word, &changed, &error), MGW_OK);
    assert_int_equal(mgw_tuner_follow(rank1, word, &changed, &error), MGW_OK);
    assert_true(changed);
    expect_same_operations(rank0, rank1);
    const mgw_plan *plan = mgw_tuner_plan(rank1);
    double free_s = 0;
    for (size_t m = 0; m < plan->operation_count; m++) {
        const mgw_operation *o = &plan->operations[m];
        double ready_s = own_s[o->first + o->count - 1];
        assert_close(o->ready_s, ready_s);
        assert_close(o->start_s, fmax(ready_s, free_s));
        free_s = o->start_s + 5e-3 + 5e-9 * 1e6 * (double)o->count;
        assert_close(o->end_s, free_s);
    }
    assert_close(plan->iteration_s, free_s);
    assert_close(plan->compute_s, 0.16);
    assert_string_equal(plan->policy, "optimal");
    assert_non_null(mgw_tuner_trace(rank1));
    step(rank0, usual_ready_s, 10); /* which only much slower messages explain */
    step(rank1, own_s, 0.16);
    propose(rank0, word);
    propose(rank1, ignored);
    assert_int_equal(mgw_tuner_follow(rank1, word, &changed, &error), MGW_OK);
    assert_close(statistics_of(rank1).slowdown, 8);
    assert_int_equal(statistics_of(rank1).plans, 2);
    mgw_tuner_destroy(rank0);
    mgw_tuner_destroy(rank1);
}

/* Where rank 0 stays, all stay, whatever they have found; and know what their plan takes now. */
static void test_follow_and_stay(void **state)
{
    (void)state;
    double quick_s[TENSORS];
    uint64_t word[WORD_MOST];
    uint64_t ignored[WORD_MOST];
    double row[ROW_MOST];
    bool changed = true;
    mgw_error error = {0};
    mgw_tuner *rank0 = make_usual(2);
    mgw_tuner *rank1 = make_usual(2);
    for (int i = 0; i < 2; i++) {
        mgw_tuner *tuner = i ? rank1 : rank0;
        step(tuner, usual_ready_s, 0.1);
        propose(tuner, i ? ignored : word);
        assert_int_equal(mgw_tuner_follow(tuner, word, &changed, &error), MGW_OK);
    }
    double iteration_s = mgw_tuner_plan(rank0)->iteration_s;
    for (size_t i = 0; i < TENSORS; i++)
        quick_s[i] = usual_ready_s[i] / 10;
    step(rank0, usual_ready_s, iteration_s);
    step(rank1, quick_s, iteration_s);
    mgw_tuner_row(rank0, row);
    assert_int_equal(mgw_tuner_propose(rank0, row, true, word, &error), MGW_OK);
    propose(rank1, ignored);
    assert_true(memcmp(word, ignored, mgw_tuner_word_size(rank0) * sizeof *word) != 0);
    for (int i = 0; i < 2; i++) {
        changed = true;
        assert_int_equal(mgw_tuner_follow(i ? rank1 : rank0, word, &changed, &error), MGW_OK);
        assert_false(changed);
    }
    expect_same_operations(rank0, rank1);
    assert_close(mgw_tuner_plan(rank0)->iteration_s, iteration_s);
    assert_true(mgw_tuner_plan(rank1)->compute_s == mgw_trace_compute_s(mgw_tuner_trace(rank1)));
    assert_close(mgw_tuner_plan(rank1)->compute_s, 0.008);
    assert_close(mgw_tuner_plan(rank1)->iteration_s, slowed_s(rank1, usual_line, 1));
    mgw_tuner_destroy(rank0);
    mgw_tuner_destroy(rank1);
}

/* ---- Drift ---- */

/* As long as a step takes, so much slower messages are: at once after the first plan. */
static void test_slowdown_is_found(void **state)
{
    (void)state;
    uint64_t random = 3;
    const mgw_line line = {1e-4, 1e-8};
    for (int round = 0; round < 50; round++) {
        uint64_t bytes[20];
        double ready_s[20];
        double now_s = 0.01;
        mgw_tuner_options options = usual(1);
        for (size_t i = 0; i < 20; i++) {
            bytes[i] = 4 * (1 + random_below(&random, 100000));
            ready_s[i] = now_s += random_unit(&random) * 0.009;
        }
        mgw_tuner *tuner = make(&options, 20, bytes, line);
        mgw_step_record record = {.compute_s = now_s, .iteration_s = 1, .ready_s = ready_s};
        mgw_tuner_count(tuner);
        mgw_tuner_observe(tuner, &record);
        assert_true(look(tuner, true));
        assert_close(statistics_of(tuner).slowdown, 1); /* no plan, nothing to compare with */
        double factor = 1 + 3 * random_unit(&random);
        record.iteration_s = slowed_s(tuner, line, factor);
        mgw_tuner_count(tuner);
        mgw_tuner_observe(tuner, &record);
        look(tuner, true);
        assert_true(fabs(statistics_of(tuner).slowdown - factor) < 1e-3);
        record.iteration_s = 1e-6; /* faster than alone is 1; half of the way there */
        mgw_tuner_count(tuner);
        mgw_tuner_observe(tuner, &record);
        look(tuner, true);
        assert_true(fabs(statistics_of(tuner).slowdown - sqrt(factor)) < 1e-3);
        mgw_tuner_destroy(tuner);
    }
}

/* Steps as predicted change nothing; ten times as fast computation does, at the next look. */
static void test_drift(void **state)
{
    (void)state;
    double quick_s[TENSORS];
    mgw_tuner *tuner = make_usual(1);
    mgw_tuner *fresh = make_usual(1);
    unsigned changes = 0;
    for (size_t i = 0; i < TENSORS; i++)
        quick_s[i] = usual_ready_s[i] / 10;
    for (int k = 0; k < 2 + 6 + 30; k++) {
        const mgw_plan *plan = mgw_tuner_plan(tuner);
        step(tuner, usual_ready_s, plan ? plan->iteration_s : 0.1);
        if (mgw_tuner_due(tuner))
            changes += look(tuner, true);
        assert_int_equal(changes, k >= 1);
    }
    assert_true(statistics_of(tuner).slowdown < 1 + 1e-5);
    assert_int_equal(statistics_of(tuner).plans, 1);
    step(fresh, quick_s, 0.05);
    look(fresh, true);
    for (int k = 0; k < 10; k++) {
        step(tuner, quick_s, mgw_tuner_plan(fresh)->iteration_s);
        if (mgw_tuner_due(tuner))
            changes += look(tuner, true);
    }
    assert_int_equal(changes, 2);
    expect_same_operations(tuner, fresh);
    assert_int_equal(statistics_of(tuner).plans, 2);
    mgw_tuner_destroy(tuner);
    mgw_tuner_destroy(fresh);
}

/* Where neither operations nor whole steps are timed, messages cost what the cluster says. */
static void test_a_cluster_that_was_given_stays(void **state)
{
    (void)state;
    mgw_tuner_options options = usual(1);
    options.whole_steps = false;
    mgw_tuner *tuner = make(&options, TENSORS, megabytes, usual_line);
    for (int k = 0; k < 8; k++) {
        step(tuner, usual_ready_s, 1);
        if (mgw_tuner_due(tuner))
            look(tuner, true);
    }
    assert_true(statistics_of(tuner).slowdown == 1);
    mgw_tuner_destroy(tuner);
}

/* Another policy, from the next look on. */
static void test_set_policy(void **state)
{
    (void)state;
    mgw_error error = {0};
    size_t count = 0;
    mgw_tuner *tuner = make_usual(1);
    step(tuner, usual_ready_s, 0.1);
    look(tuner, true);
    assert_int_equal(mgw_tuner_set_policy(tuner, "naive", &error), MGW_OK);
    assert_string_equal(mgw_tuner_plan(tuner)->policy, "optimal");
    assert_false(look(tuner, true)); /* it promises nothing */
    assert_true(look(tuner, false));
    const mgw_operation *operations = mgw_tuner_operations(tuner, &count);
    assert_int_equal(count, TENSORS);
    for (size_t m = 0; m < count; m++)
        assert_int_equal(operations[m].release, MGW_AFTER_BACKWARD);
    assert_string_equal(mgw_tuner_plan(tuner)->policy, "naive");
    mgw_tuner_destroy(tuner);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_due),
        cmocka_unit_test(test_watches),
        cmocka_unit_test(test_statistics),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_first_operations),
        cmocka_unit_test(test_look),
        cmocka_unit_test(test_one_cannot_follow),
        cmocka_unit_test(test_exchange_fails),
        cmocka_unit_test(test_damaged_words),
        cmocka_unit_test(test_follow),
        cmocka_unit_test(test_follow_and_stay),
        cmocka_unit_test(test_slowdown_is_found),
        cmocka_unit_test(test_drift),
        cmocka_unit_test(test_a_cluster_that_was_given_stays),
        cmocka_unit_test(test_set_policy),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
