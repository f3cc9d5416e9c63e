/* Moving state from one ownership to another, compared with state tracked per element. */
#include "plans.h"
#include "support.h"

enum { MOST = 12, DTYPES = MGW_F64 + 1, WORKERS = 8 };

/* ---- A job in one process: every rank's moves, gathers at the same time ---- */

typedef struct rank_state {
    mgw_move *moves;
    size_t count;
    size_t done;
    size_t scratch_length;
    uint64_t *before;
    uint64_t *after;
    size_t after_length;
    uint64_t *scratch;
} rank_state;

/* What an element of the dtype's memory has: nothing else looks like it. */
static uint64_t value_of(mgw_dtype dtype, size_t element)
{
    uint64_t seed = (uint64_t)dtype << 40 | element;
    return random_bits(&seed) | 1;
}

static uint64_t *make_array(size_t length)
{
    uint64_t *array = calloc(length + 1, sizeof *array);
    assert_non_null(array);
    return array;
}

/* The state of a rank by definition, shard by shard. */
static void fill_state(const mgw_shards *shards, unsigned rank, mgw_dtype dtype, uint64_t *state)
{
    mgw_shard *of = NULL;
    size_t count = 0;
    mgw_error error = {0};
    assert_int_equal(mgw_shards_of(shards, rank, &of, &count, &error), MGW_OK);
    for (size_t i = 0; i < count; i++)
        for (size_t e = 0; of[i].dtype == dtype && e < of[i].count; e++)
            state[of[i].at + e] = value_of(dtype, of[i].begin + e);
    free(of);
}

static void open_rank(rank_state *s, const mgw_shards *before, const mgw_shards *after,
                      unsigned rank, mgw_dtype dtype, size_t most)
{
    mgw_error error = {0};
    *s = (rank_state){0};
    if (mgw_shards_moves(before, after, rank, dtype, most, &s->moves, &s->count, &s->scratch_length,
                         &error))
        fail_msg("%s", error.message);
    s->before = make_array(mgw_shards_length(before, rank, dtype));
    s->after_length = mgw_shards_length(after, rank, dtype);
    s->after = make_array(s->after_length);
    s->scratch = make_array(s->scratch_length);
    fill_state(before, rank, dtype, s->before);
}

static void close_rank(rank_state *s)
{
    free(s->moves);
    free(s->before);
    free(s->after);
    free(s->scratch);
}

/* Up to its next gather; null: there is none. */
static const mgw_move *go_on(rank_state *s, size_t before_length)
{
    for (; s->done < s->count; s->done++) {
        const mgw_move *m = &s->moves[s->done];
        if (m->kind == MGW_MOVE_GATHER)
            return &s->moves[s->done++];
        bool takes = m->kind == MGW_MOVE_TAKE;
        bool lends = m->kind == MGW_MOVE_LEND;
        assert_true(m->count > 0);
        assert_true(m->from + m->count <= (takes ? s->scratch_length : before_length));
        assert_true(m->to + m->count <= (lends ? s->scratch_length : s->after_length));
        memcpy((lends ? s->scratch : s->after) + m->to, (takes ? s->scratch : s->before) + m->from,
               m->count * sizeof(uint64_t));
    }
    return NULL;
}

/* As a transport does it: what is not a rank's own block is the others'. */
static void gather(rank_state *ranks, unsigned workers, size_t count)
{
    uint64_t *all = make_array(count);
    for (unsigned r = 0; r < workers; r++) {
        size_t first = 0;
        size_t length = 0;
        mgw_transport_block(count, workers, r, &first, &length);
        assert_int_equal(length, count / workers);
        memcpy(all + first, ranks[r].scratch + first, length * sizeof *all);
    }
    for (unsigned r = 0; r < workers; r++)
        memcpy(ranks[r].scratch, all, count * sizeof *all);
    free(all);
}

/* Returns how many gathers it took. */
static size_t move_all(const mgw_shards *before, const mgw_shards *after, mgw_dtype dtype,
                       size_t most)
{
    rank_state ranks[WORKERS];
    unsigned workers = mgw_shards_workers(before);
    size_t gathers = 0;
    for (unsigned r = 0; r < workers; r++)
        open_rank(&ranks[r], before, after, r, dtype, most);
    for (bool goes_on = true; goes_on;) {
        const mgw_move *first = NULL;
        for (unsigned r = 0; r < workers; r++) {
            const mgw_move *m = go_on(&ranks[r], mgw_shards_length(before, r, dtype));
            first = r ? first : m;
            assert_int_equal(m != NULL, first != NULL);
            assert_true(!m || m->count == first->count);
            assert_true(!m || m->count == ranks[r].scratch_length);
        }
        goes_on = first;
        gathers += first != NULL;
        if (first)
            gather(ranks, workers, first->count);
    }
    for (unsigned r = 0; r < workers; r++) {
        uint64_t *expected = make_array(ranks[r].after_length);
        fill_state(after, r, dtype, expected);
        assert_memory_equal(ranks[r].after, expected, (ranks[r].after_length + 1) * 8);
        free(expected);
        close_rank(&ranks[r]);
    }
    return gathers;
}

/* ---- Cases ---- */

static mgw_shards *make_shards(const mgw_layout *layout, const mgw_operation *operations,
                               size_t count, unsigned workers)
{
    mgw_shards *shards = NULL;
    mgw_error error = {0};
    if (mgw_shards_create(layout, operations, count, workers, &shards, &error))
        fail_msg("%s", error.message);
    return shards;
}

static mgw_layout *make_layout(size_t count, const size_t *counts, const mgw_dtype *dtypes)
{
    mgw_layout *layout = NULL;
    mgw_error error = {0};
    if (mgw_layout_create(count, counts, dtypes, &layout, &error))
        fail_msg("%s", error.message);
    return layout;
}

static void test_state_moves_bit_for_bit(void **state)
{
    (void)state;
    uint64_t random = 1;
    size_t gathers = 0;
    for (int round = 0; round < 3000; round++) {
        static const size_t mosts[] = {0, 1, 100, 1000};
        layout_case l;
        mgw_operation operations[2 * MOST];
        random_layout(&l, MOST, &random);
        mgw_layout *layout = make_layout(l.count, l.counts, l.dtypes);
        unsigned workers = 1 + (unsigned)random_below(&random, WORKERS);
        size_t count = random_operations(l.count, operations, &random);
        mgw_shards *before = make_shards(layout, operations, count, workers);
        count = random_operations(l.count, operations, &random);
        mgw_shards *after = make_shards(layout, operations, count, workers);
        for (int d = 0; d < DTYPES; d++) {
            gathers += move_all(before, after, (mgw_dtype)d, mosts[random_below(&random, 4)]);
            assert_int_equal(move_all(before, before, (mgw_dtype)d, 0), 0);
            if (workers == 1)
                assert_int_equal(move_all(before, after, (mgw_dtype)d, 0), 0);
        }
        mgw_shards_destroy(before);
        mgw_shards_destroy(after);
        mgw_layout_destroy(layout);
    }
    assert_true(gathers > 1000);
}

/* ---- By hand ---- */

/* The halves of a plan, with these cuts in front of tensors, of so many. */
static size_t halves(size_t tensors, size_t scatter_cut, size_t gather_cut, mgw_operation *out)
{
    size_t count = 0;
    for (int gathers = 0; gathers < 2; gathers++) {
        size_t cut = gathers ? gather_cut : scatter_cut;
        mgw_collective kind = gathers ? MGW_ALL_GATHER : MGW_REDUCE_SCATTER;
        mgw_release release = gathers ? MGW_AFTER_UPDATE : MGW_WHEN_READY;
        if (cut)
            out[count++] =
                (mgw_operation){.kind = kind, .release = release, .first = 0, .count = cut};
        out[count++] =
            (mgw_operation){.kind = kind, .release = release, .first = cut, .count = tensors - cut};
    }
    return count;
}

/*
 * Two tensors of 64 floats, two workers. As one piece, rank 0 has the first tensor and rank 1 the
 * second; as two, each has half of either. Elements that stay travel with the others.
 */
static void test_by_hand(void **state)
{
    (void)state;
    mgw_operation operations[4];
    mgw_layout *layout = make_layout(2, (size_t[]){64, 64}, (mgw_dtype[]){MGW_F32, MGW_F32});
    mgw_shards *one = make_shards(layout, operations, halves(2, 0, 0, operations), 2);
    mgw_shards *two = make_shards(layout, operations, halves(2, 0, 1, operations), 2);
    static const mgw_move expected[] = {{MGW_MOVE_LEND, 0, 64, 64},
                                        {MGW_MOVE_GATHER, 0, 0, 128},
                                        {MGW_MOVE_TAKE, 32, 0, 32},
                                        {MGW_MOVE_TAKE, 96, 32, 32}};
    mgw_move *moves = NULL;
    size_t count = 0;
    size_t scratch = 0;
    mgw_error error = {0};
    assert_int_equal(mgw_shards_moves(one, two, 1, MGW_F32, 0, &moves, &count, &scratch, &error),
                     MGW_OK);
    assert_int_equal(count, 4);
    assert_int_equal(scratch, 128);
    for (size_t i = 0; i < 4; i++) {
        assert_int_equal(moves[i].kind, expected[i].kind);
        assert_int_equal(moves[i].from, expected[i].from);
        assert_int_equal(moves[i].to, expected[i].to);
        assert_int_equal(moves[i].count, expected[i].count);
    }
    free(moves);
    /* The same pieces under other operations: nothing moves. */
    mgw_shards *other = make_shards(layout, operations, halves(2, 1, 0, operations), 2);
    assert_int_equal(move_all(two, other, MGW_F32, 0), 0);
    /* Pieces that every worker has in full: each takes its own part. */
    mgw_operation all = {.kind = MGW_ALL_REDUCE, .first = 0, .count = 2};
    mgw_shards *whole = make_shards(layout, &all, 1, 2);
    assert_int_equal(move_all(whole, two, MGW_F32, 0), 0);
    assert_int_equal(move_all(two, whole, MGW_F32, 0), 1);
    /* A small scratch: windows of 32. */
    assert_int_equal(move_all(two, whole, MGW_F32, 64), 2);
    mgw_shards_destroy(whole);
    mgw_shards_destroy(other);
    mgw_shards_destroy(two);
    mgw_shards_destroy(one);
    mgw_layout_destroy(layout);
}

static void expect_refused(const mgw_shards *before, const mgw_shards *after, unsigned rank,
                           const char *part)
{
    mgw_move *moves = NULL;
    size_t count = 0;
    size_t scratch = 0;
    mgw_error error = {0};
    assert_int_equal(
        mgw_shards_moves(before, after, rank, MGW_F32, 0, &moves, &count, &scratch, &error),
        MGW_ERR_ARGUMENT);
    assert_contains(error.message, part);
    assert_null(moves);
}

static void test_refused(void **state)
{
    (void)state;
    const mgw_operation all = {.kind = MGW_ALL_REDUCE, .first = 0, .count = 1};
    mgw_layout *layout = make_layout(1, (size_t[]){64}, (mgw_dtype[]){MGW_F32});
    mgw_layout *larger = make_layout(1, (size_t[]){65}, (mgw_dtype[]){MGW_F32});
    mgw_layout *another = make_layout(2, (size_t[]){64, 8}, (mgw_dtype[]){MGW_F32, MGW_F64});
    mgw_shards *of_two = make_shards(layout, &all, 1, 2);
    mgw_shards *of_three = make_shards(layout, &all, 1, 3);
    mgw_shards *more = make_shards(larger, &all, 1, 2);
    expect_refused(of_two, of_three, 0, "2 workers before, 3 after");
    expect_refused(of_two, of_two, 2, "rank 2 of 2");
    expect_refused(of_two, more, 0, "shards have different layouts: 64 and 80 elements of f32");
    const mgw_operation both = {.kind = MGW_ALL_REDUCE, .first = 0, .count = 2};
    mgw_shards *wider = make_shards(another, &both, 1, 2);
    expect_refused(of_two, wider, 0, "shards have different layouts: 0 and 8 elements of f64");
    mgw_shards_destroy(wider);
    mgw_layout_destroy(another);
    mgw_shards_destroy(more);
    mgw_shards_destroy(of_three);
    mgw_shards_destroy(of_two);
    mgw_layout_destroy(larger);
    mgw_layout_destroy(layout);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_by_hand),
        cmocka_unit_test(test_state_moves_bit_for_bit),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
