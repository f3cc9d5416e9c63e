/* Ownership of elements, compared with a search by element. */
#include "plans.h"
#include "support.h"

enum { MOST = 12, DTYPES = MGW_F64 + 1 };

/* ---- An oracle: it looks at one element at a time ---- */

typedef struct world {
    layout_case l;
    mgw_layout *layout;
    mgw_operation operations[2 * MOST];
    size_t operation_count;
    unsigned workers;
    mgw_shards *shards;
} world;

static void make_world(world *w, uint64_t *random)
{
    mgw_error error = {0};
    random_layout(&w->l, MOST, random);
    if (mgw_layout_create(w->l.count, w->l.counts, w->l.dtypes, &w->layout, &error))
        fail_msg("%s", error.message);
    w->operation_count = random_operations(w->l.count, w->operations, random);
    w->workers = 1 + (unsigned)random_below(random, 9);
    if (mgw_shards_create(w->layout, w->operations, w->operation_count, w->workers, &w->shards,
                          &error))
        fail_msg("%s", error.message);
}

static void free_world(world *w)
{
    mgw_shards_destroy(w->shards);
    mgw_layout_destroy(w->layout);
}

/* The operation of a kind that has the tensor. */
static size_t find_operation(const world *w, size_t tensor, bool gathers)
{
    for (size_t i = 0; i < w->operation_count; i++) {
        const mgw_operation *o = &w->operations[i];
        if ((o->kind == MGW_ALL_GATHER) == gathers && tensor >= o->first &&
            tensor < o->first + o->count)
            return i;
    }
    return MGW_NO_OPERATION;
}

/* The tensor whose place an element of a dtype's memory is, with the gap behind it. */
static size_t find_tensor(const world *w, mgw_dtype dtype, size_t element)
{
    size_t found = SIZE_MAX;
    for (size_t i = 0; i < w->l.count; i++)
        if (w->l.dtypes[i] == dtype && w->l.counts[i] && mgw_layout_offset(w->layout, i) <= element)
            found = i;
    assert_true(found != SIZE_MAX);
    return found;
}

/* Whether a border is between two neighbours: they are not in the same operations. */
static bool is_cut(const world *w, mgw_dtype dtype, size_t element)
{
    size_t here = find_tensor(w, dtype, element);
    size_t before = find_tensor(w, dtype, element - 1);
    return find_operation(w, here, false) != find_operation(w, before, false) ||
           find_operation(w, here, true) != find_operation(w, before, true);
}

static void test_pieces_are_what_no_operation_cuts(void **state)
{
    (void)state;
    uint64_t random = 1;
    for (int round = 0; round < 300; round++) {
        world w;
        make_world(&w, &random);
        size_t count = 0;
        const mgw_piece *piece = mgw_shards_pieces(w.shards, &count);
        const mgw_piece *end = piece + count;
        for (int d = 0; d < DTYPES; d++) {
            size_t length = mgw_layout_length(w.layout, (mgw_dtype)d);
            size_t left = 0; /* of the piece */
            for (size_t e = 0; e < length; e++, left--) {
                assert_int_equal(left == 0, e == 0 || is_cut(&w, (mgw_dtype)d, e));
                if (left)
                    continue;
                assert_true(piece < end);
                size_t tensor = find_tensor(&w, (mgw_dtype)d, e);
                assert_int_equal(piece->dtype, d);
                assert_int_equal(piece->begin, e);
                assert_int_equal(piece->reduced_by, find_operation(&w, tensor, false));
                assert_true(piece->gathered_by == find_operation(&w, tensor, true));
                assert_int_equal(piece->shared_out, piece->gathered_by != MGW_NO_OPERATION);
                left = piece++->length;
            }
            assert_int_equal(left, 0);
        }
        assert_true(piece == end);
        free_world(&w);
    }
}

/* ---- Owners ---- */

/* Notes all that a rank owns: by element of the dtype's memory, how many shards have it. */
static void mark(const world *w, unsigned rank, mgw_dtype dtype, unsigned *owners)
{
    mgw_shard *shards = NULL;
    size_t count = 0;
    size_t at = 0;
    const mgw_shard *before = NULL;
    mgw_error error = {0};
    assert_int_equal(mgw_shards_of(w->shards, rank, &shards, &count, &error), MGW_OK);
    for (const mgw_shard *s = shards; s < shards + count; s++) {
        assert_true(!before || before->dtype <= s->dtype);
        before = s;
        if (s->dtype != dtype)
            continue;
        assert_int_equal(w->l.dtypes[s->tensor], dtype);
        assert_true(s->count > 0 && s->first + s->count <= w->l.counts[s->tensor]);
        assert_int_equal(s->begin, mgw_layout_offset(w->layout, s->tensor) + s->first);
        assert_int_equal(s->at, at);
        assert_int_equal(s->reduced_by, find_operation(w, s->tensor, false));
        at += s->count;
        for (size_t e = 0; e < s->count; e++)
            owners[s->begin + e]++;
    }
    assert_int_equal(at, mgw_shards_length(w->shards, rank, dtype));
    free(shards);
}

static void test_every_element_has_its_owners(void **state)
{
    (void)state;
    uint64_t random = 2;
    for (int round = 0; round < 300; round++) {
        world w;
        make_world(&w, &random);
        for (int d = 0; d < DTYPES; d++) {
            size_t length = mgw_layout_length(w.layout, (mgw_dtype)d);
            unsigned *owners = calloc(length + 1, sizeof *owners);
            assert_non_null(owners);
            for (unsigned r = 0; r < w.workers; r++)
                mark(&w, r, (mgw_dtype)d, owners);
            for (size_t e = 0; e < length; e++) {
                size_t tensor = find_tensor(&w, (mgw_dtype)d, e);
                size_t inside = e - mgw_layout_offset(w.layout, tensor);
                bool scattered = find_operation(&w, tensor, true) != MGW_NO_OPERATION;
                unsigned expected = inside >= w.l.counts[tensor] ? 0 : scattered ? 1 : w.workers;
                assert_int_equal(owners[e], expected);
            }
            free(owners);
        }
        free_world(&w);
    }
}

/* What a worker owns is what the transport's calls leave it with, segment by segment. */
static void test_segments_are_the_pieces(void **state)
{
    (void)state;
    uint64_t random = 3;
    for (int round = 0; round < 300; round++) {
        world w;
        make_world(&w, &random);
        size_t piece_count = 0;
        const mgw_piece *pieces = mgw_shards_pieces(w.shards, &piece_count);
        for (size_t o = 0; o < w.operation_count; o++)
            for (int d = 0; d < DTYPES; d++) {
                const size_t *segments = NULL;
                size_t begin = 0;
                size_t length = 0;
                size_t count =
                    mgw_shards_segments(w.shards, o, (mgw_dtype)d, &segments, &begin, &length);
                size_t slice_begin = 0;
                size_t slice_length = 0;
                mgw_layout_slice(w.layout, w.operations[o].first, w.operations[o].count,
                                 (mgw_dtype)d, &slice_begin, &slice_length);
                assert_int_equal(length, slice_length);
                assert_true(count ? begin == slice_begin : length == 0);
                size_t at = begin;
                for (size_t p = 0; p < piece_count; p++) {
                    if (pieces[p].dtype != (mgw_dtype)d ||
                        (pieces[p].reduced_by != o && pieces[p].gathered_by != o))
                        continue;
                    assert_true(count-- > 0);
                    assert_int_equal(pieces[p].begin, at);
                    assert_int_equal(*segments, pieces[p].length);
                    for (unsigned r = 0; pieces[p].shared_out && r < w.workers; r++) {
                        size_t first = 0;
                        size_t block = 0;
                        size_t owned = 0;
                        size_t owned_length = 0;
                        mgw_transport_block(*segments, w.workers, r, &first, &block);
                        mgw_shards_owned(w.shards, p, r, &owned, &owned_length);
                        assert_int_equal(owned, at + first);
                        assert_int_equal(owned_length, block);
                    }
                    at += *segments++;
                }
                assert_int_equal(count, 0);
                assert_int_equal(at, begin + length);
            }
        free_world(&w);
    }
}

/* ---- By hand ---- */

/*
 * Tensors of 64, 64, 64, 5 and 7 floats (and their gaps), the third of doubles: scattered as 0-1,
 * 2-3, gathered as 0, 1-3; the last one all-reduced.
 */
static void test_by_hand(void **state)
{
    (void)state;
    const size_t counts[] = {64, 64, 64, 5, 7};
    const mgw_dtype dtypes[] = {MGW_F32, MGW_F32, MGW_F64, MGW_F32, MGW_F32};
    const mgw_operation operations[] = {
        {.kind = MGW_REDUCE_SCATTER, .first = 0, .count = 2},
        {.kind = MGW_REDUCE_SCATTER, .first = 2, .count = 2},
        {.kind = MGW_ALL_REDUCE, .first = 4, .count = 1},
        {.kind = MGW_ALL_GATHER, .release = MGW_AFTER_UPDATE, .first = 1, .count = 3},
        {.kind = MGW_ALL_GATHER, .release = MGW_AFTER_UPDATE, .first = 0, .count = 1},
    };
    mgw_layout *layout = NULL;
    mgw_shards *shards = NULL;
    mgw_error error = {0};
    assert_int_equal(mgw_layout_create(5, counts, dtypes, &layout, &error), MGW_OK);
    assert_int_equal(mgw_shards_create(layout, operations, 5, 2, &shards, &error), MGW_OK);
    mgw_layout_destroy(layout);
    assert_int_equal(mgw_shards_workers(shards), 2);
    const mgw_piece expected[] = {
        {MGW_F32, 0, 64, true, 0, 4},   {MGW_F32, 64, 64, true, 0, 3},
        {MGW_F32, 128, 16, true, 1, 3}, {MGW_F32, 144, 16, false, 2, MGW_NO_OPERATION},
        {MGW_F64, 0, 64, true, 1, 3},
    };
    size_t count = 0;
    const mgw_piece *pieces = mgw_shards_pieces(shards, &count);
    assert_int_equal(count, 5);
    for (size_t i = 0; i < 5; i++) {
        assert_int_equal(pieces[i].dtype, expected[i].dtype);
        assert_int_equal(pieces[i].begin, expected[i].begin);
        assert_int_equal(pieces[i].length, expected[i].length);
        assert_int_equal(pieces[i].shared_out, expected[i].shared_out);
        assert_true(pieces[i].reduced_by == expected[i].reduced_by);
        assert_true(pieces[i].gathered_by == expected[i].gathered_by);
    }
    /* 16 elements are less than a line of blocks, which nobody but the last of two gets. */
    const mgw_shard last[] = {{0, 32, 32, MGW_F32, 32, 0, 0},
                              {1, 32, 32, MGW_F32, 96, 32, 0},
                              {3, 0, 5, MGW_F32, 128, 64, 1},
                              {4, 0, 7, MGW_F32, 144, 69, 2},
                              {2, 32, 32, MGW_F64, 32, 0, 1}};
    mgw_shard *of = NULL;
    assert_int_equal(mgw_shards_of(shards, 1, &of, &count, &error), MGW_OK);
    assert_int_equal(count, 5);
    for (size_t i = 0; i < 5; i++) {
        assert_int_equal(of[i].tensor, last[i].tensor);
        assert_int_equal(of[i].first, last[i].first);
        assert_int_equal(of[i].count, last[i].count);
        assert_int_equal(of[i].dtype, last[i].dtype);
        assert_int_equal(of[i].begin, last[i].begin);
        assert_int_equal(of[i].at, last[i].at);
        assert_int_equal(of[i].reduced_by, last[i].reduced_by);
    }
    free(of);
    assert_int_equal(mgw_shards_length(shards, 0, MGW_F32), 64 + 7);
    assert_int_equal(mgw_shards_length(shards, 1, MGW_F32), 64 + 5 + 7);
    assert_int_equal(mgw_shards_length(shards, 1, MGW_F16), 0);
    mgw_shards_destroy(shards);
}

static void expect_refused(const mgw_operation *operations, size_t count, unsigned workers,
                           const char *part)
{
    mgw_layout *layout = NULL;
    mgw_shards *shards = NULL;
    mgw_error error = {0};
    assert_int_equal(
        mgw_layout_create(2, (size_t[]){3, 4}, (mgw_dtype[]){MGW_F32, MGW_F32}, &layout, &error),
        MGW_OK);
    assert_true(mgw_shards_create(layout, operations, count, workers, &shards, &error));
    assert_null(shards);
    assert_contains(error.message, part);
    mgw_layout_destroy(layout);
}

static void test_refused(void **state)
{
    (void)state;
    const mgw_operation all = {.kind = MGW_ALL_REDUCE, .first = 0, .count = 2};
    const mgw_operation half = {.kind = MGW_REDUCE_SCATTER, .first = 0, .count = 2};
    expect_refused(&all, 1, 0, "no workers");
    expect_refused(&all, 0, 2, "0 operations");
    expect_refused(&half, 1, 2, "tensor 0 is scattered but not gathered");
    expect_refused((mgw_operation[]){all, half}, 2, 2, "tensor 0 is in operations 1 and 2");
    mgw_layout *layout = NULL;
    mgw_shards *shards = NULL;
    mgw_shard *of = NULL;
    size_t count = 0;
    mgw_error error = {0};
    assert_int_equal(mgw_layout_create(1, (size_t[]){3}, (mgw_dtype[]){MGW_F32}, &layout, &error),
                     MGW_OK);
    const mgw_operation one = {.kind = MGW_ALL_REDUCE, .first = 0, .count = 1};
    assert_int_equal(mgw_shards_create(layout, &one, 1, 2, &shards, &error), MGW_OK);
    assert_int_equal(mgw_shards_of(shards, 2, &of, &count, &error), MGW_ERR_ARGUMENT);
    assert_contains(error.message, "rank 2 of 2 workers");
    mgw_shards_destroy(shards);
    mgw_shards_destroy(NULL);
    mgw_layout_destroy(layout);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_by_hand),
        cmocka_unit_test(test_pieces_are_what_no_operation_cuts),
        cmocka_unit_test(test_every_element_has_its_owners),
        cmocka_unit_test(test_segments_are_the_pieces),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
