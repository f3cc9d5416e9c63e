/* Looks: the data that workers exchange, and checks of rank 0's message. */
#include "tuners.h"

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
        assert_int_equal(o[r].told_bytes, 8 * (7 + TENSORS));
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
    assert_contains(error.message, "is damaged");
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

/* Messages with any changed bit or count are rejected. Then the intact message is accepted. */
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
    uint64_t *count = &word[size - TENSORS - 1]; /* of the plan, whose operations are behind it */
    uint64_t right = *count;
    assert_in_range(right, 2, TENSORS);
    for (*count = 0; *count <= 3 * TENSORS; ++*count)
        if (*count != right)
            expect_damaged(tuner, word);
    *count = UINT64_MAX;
    expect_damaged(tuner, word);
    *count = right;
    uint64_t first = count[1]; /* operations that have changed places */
    count[1] = count[2];
    count[2] = first;
    expect_damaged(tuner, word);
    count[2] = count[1];
    count[1] = first;
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

/* What a step of the operations in force takes. */
static double step_s(const mgw_tuner *tuner)
{
    size_t count = 0;
    const mgw_operation *operations = mgw_tuner_operations(tuner, &count);
    double end_s = 0;
    for (size_t m = 0; m < count; m++) {
        bool behind = operations[m].release == MGW_AFTER_BACKWARD;
        size_t last = behind ? TENSORS : operations[m].first + operations[m].count;
        end_s = fmax(end_s, usual_ready_s[last - 1]) + usual_line.a_s +
                usual_line.b_s_per_byte * (double)operations[m].bytes;
    }
    return end_s;
}

/* Where rank 0 stays, all stay, whatever they have found; and know what their plan takes now. */
static void follow_and_stay(bool whole_steps)
{
    double quick_s[TENSORS];
    uint64_t word[WORD_MOST];
    uint64_t ignored[WORD_MOST];
    double row[ROW_MOST];
    bool changed = true;
    mgw_error error = {0};
    mgw_tuner_options options = usual(2);
    options.whole_steps = whole_steps;
    mgw_tuner *rank0 = make(&options, TENSORS, megabytes, usual_line);
    mgw_tuner *rank1 = make(&options, TENSORS, megabytes, usual_line);
    for (int i = 0; i < 2; i++) {
        mgw_tuner *tuner = i ? rank1 : rank0;
        step(tuner, usual_ready_s, step_s(tuner));
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

static void test_follow_and_stay(void **state)
{
    (void)state;
    follow_and_stay(true);
    follow_and_stay(false);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_look),           cmocka_unit_test(test_one_cannot_follow),
        cmocka_unit_test(test_exchange_fails), cmocka_unit_test(test_damaged_words),
        cmocka_unit_test(test_follow),         cmocka_unit_test(test_follow_and_stay),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
