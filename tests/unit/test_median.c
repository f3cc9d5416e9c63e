/* The median and its confidence interval. */
#include "base/median.h"

#include "support.h"

static void the_middle_of_the_sorted(void **unused)
{
    (void)unused;
    double odd[] = {3, 1, 2};
    double even[] = {4, 1, 3, 2};
    assert_true(mgw_median(odd, 3) == 2);
    assert_true(odd[0] == 1 && odd[2] == 3);
    assert_true(mgw_median(even, 4) == 3);
}

/* The interval of 1, 2, 3 … is the ranks of its ends. */
static size_t lower_rank(size_t count)
{
    double values[1000];
    double low = 0;
    double high = 0;
    for (size_t i = 0; i < count; i++)
        values[i] = (double)(i + 1);
    mgw_median_interval(values, count, &low, &high);
    assert_true(low + high == (double)(count + 1));
    return (size_t)low;
}

/* Ranks by sums of binomial coefficients, in whole numbers. */
static void ranks_of_the_tables(void **unused)
{
    (void)unused;
    static const size_t known[][2] = {{1, 1},   {2, 1},   {5, 1},   {6, 1},    {8, 1},     {9, 2},
                                      {11, 2},  {12, 3},  {15, 4},  {20, 6},   {25, 8},    {30, 10},
                                      {40, 14}, {50, 18}, {60, 22}, {100, 40}, {1000, 469}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        assert_int_equal(lower_rank(known[i][0]), known[i][1]);
}

/* Of all ways in which values can be below (1) or above (0) the median, how many have fewer than
 * `rank` on one side: those in which the interval misses it. */
static unsigned misses(size_t count, size_t rank)
{
    unsigned missed = 0;
    for (unsigned way = 0; way < 1U << count; way++) {
        size_t below = 0;
        for (size_t i = 0; i < count; i++)
            below += way >> i & 1;
        missed += below < rank || count - below < rank;
    }
    return missed;
}

static void as_narrow_as_it_may_be(void **unused)
{
    (void)unused;
    for (size_t count = 6; count <= 18; count++) {
        size_t rank = lower_rank(count);
        unsigned allowed = (1U << count) / 20;
        assert_true(misses(count, rank) <= allowed);
        assert_true(misses(count, rank + 1) > allowed);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_middle_of_the_sorted),
        cmocka_unit_test(ranks_of_the_tables),
        cmocka_unit_test(as_narrow_as_it_may_be),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
