/* The layout of gradients: offsets and slices solved by hand, and compared with a map of every
 * element. */
#include <stdbool.h>

#include "support.h"

enum { MOST = 12 };

static mgw_layout *make(size_t tensors, const size_t *counts, const mgw_dtype *dtypes)
{
    mgw_layout *layout = NULL;
    mgw_error error = {0};
    if (mgw_layout_create(tensors, counts, dtypes, &layout, &error))
        fail_msg("%s", error.message);
    return layout;
}

static void expect_slice(const mgw_layout *layout, size_t first, size_t count, mgw_dtype dtype,
                         size_t begin, size_t length)
{
    size_t begins = 0;
    size_t lasts = 0;
    mgw_layout_slice(layout, first, count, dtype, &begins, &lasts);
    assert_int_equal(begins, begin);
    assert_int_equal(lasts, length);
}

/* 64 bytes are 16 floats, 8 doubles, 32 halves. */
static void test_by_hand(void **state)
{
    (void)state;
    const size_t counts[] = {1, 16, 9, 0, 17, 33};
    const mgw_dtype dtypes[] = {MGW_F32, MGW_F32, MGW_F64, MGW_F32, MGW_F32, MGW_F16};
    mgw_layout *layout = make(6, counts, dtypes);
    static const size_t offsets[] = {0, 16, 0, 32, 32, 0};
    for (size_t i = 0; i < 6; i++)
        assert_int_equal(mgw_layout_offset(layout, i), offsets[i]);
    assert_int_equal(mgw_layout_length(layout, MGW_F32), 64);
    assert_int_equal(mgw_layout_length(layout, MGW_F64), 16);
    assert_int_equal(mgw_layout_length(layout, MGW_F16), 64);
    assert_int_equal(mgw_layout_length(layout, MGW_BF16), 0);
    expect_slice(layout, 0, 6, MGW_F32, 0, 64);
    expect_slice(layout, 1, 2, MGW_F32, 16, 16);
    expect_slice(layout, 1, 2, MGW_F64, 0, 16);
    expect_slice(layout, 3, 1, MGW_F32, 32, 0);
    expect_slice(layout, 5, 1, MGW_F64, 16, 0);
    expect_slice(layout, 4, 2, MGW_F16, 0, 64);
    mgw_layout_destroy(layout);
}

/* Every slice of every run of tensors holds exactly their elements. */
static void test_slices_are_exactly_their_tensors(void **state)
{
    (void)state;
    uint64_t random = 1;
    for (int round = 0; round < 300; round++) {
        size_t counts[MOST];
        mgw_dtype dtypes[MOST];
        size_t n = 1 + random_below(&random, MOST);
        for (size_t i = 0; i < n; i++) {
            counts[i] = random_below(&random, 70);
            dtypes[i] = (mgw_dtype)random_below(&random, MGW_F64 + 1);
        }
        mgw_layout *layout = make(n, counts, dtypes);
        for (size_t i = 0; i < n; i++) {
            size_t offset = mgw_layout_offset(layout, i);
            assert_int_equal(offset * mgw_dtype_bytes(dtypes[i]) % 64, 0);
            for (size_t first = 0; first < n; first++)
                for (size_t count = 1; count <= n - first; count++) {
                    size_t begin = 0;
                    size_t length = 0;
                    bool within = first <= i && i < first + count;
                    mgw_layout_slice(layout, first, count, dtypes[i], &begin, &length);
                    assert_true(begin + length <= mgw_layout_length(layout, dtypes[i]));
                    if (within)
                        assert_true(offset >= begin && offset + counts[i] <= begin + length);
                    else
                        assert_true(offset + counts[i] <= begin || offset >= begin + length);
                }
        }
        mgw_layout_destroy(layout);
    }
}

static void expect_refused(size_t tensors, const size_t *counts, const mgw_dtype *dtypes,
                           const char *part)
{
    mgw_layout *layout = NULL;
    mgw_error error = {0};
    assert_int_equal(mgw_layout_create(tensors, counts, dtypes, &layout, &error), MGW_ERR_ARGUMENT);
    assert_contains(error.message, part);
    assert_null(layout);
}

/* What has no room is refused, and not counted modulo 2^64. */
static void test_too_many(void **state)
{
    (void)state;
    const size_t most = SIZE_MAX / 32;
    const mgw_dtype f32[] = {MGW_F32, MGW_F32, MGW_F32};
    expect_refused(1, (size_t[]){SIZE_MAX}, f32, "tensor 0");
    expect_refused(1, (size_t[]){most}, f32, "tensor 0");
    expect_refused(2, (size_t[]){1, most - 16}, f32, "tensor 1");
    expect_refused(2, (size_t[]){most - 16, SIZE_MAX / 2}, f32, "tensor 1");
    expect_refused(3, (size_t[]){1, most - 64, SIZE_MAX}, f32, "tensor 2");
    expect_refused(1, (size_t[]){1}, (mgw_dtype[]){(mgw_dtype)(MGW_F64 + 1)}, "unknown dtype");
    expect_refused(1, (size_t[]){1}, (mgw_dtype[]){(mgw_dtype)-1}, "unknown dtype");
    mgw_layout *layout = make(2, (size_t[]){most / 2, 64}, f32);
    assert_int_equal(mgw_layout_length(layout, MGW_F32), (most / 2 + 15) / 16 * 16 + 64);
    mgw_layout_destroy(layout);
    layout = make(0, NULL, NULL);
    assert_int_equal(mgw_layout_length(layout, MGW_F32), 0);
    mgw_layout_destroy(layout);
    mgw_layout_destroy(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_by_hand),
        cmocka_unit_test(test_slices_are_exactly_their_tensors),
        cmocka_unit_test(test_too_many),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
