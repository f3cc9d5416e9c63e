/* The numbers of a replay: correct averages and sums are accepted, and wrong ones detected. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "job/numbers.h"

enum { COUNT = 1000, WORKERS = 5 };

/* What a worker would have after an all-reduce. */
static void average(float *out, size_t count, unsigned step)
{
    float each[COUNT];
    double sums[COUNT] = {0};
    for (unsigned rank = 0; rank < WORKERS; rank++) {
        job_fill(each, job_all(0, count), rank, WORKERS, step);
        for (size_t i = 0; i < count; i++)
            sums[i] += each[i];
    }
    for (size_t i = 0; i < count; i++)
        out[i] = (float)(sums[i] / WORKERS);
}

static void test_averages(void **state)
{
    (void)state;
    float averages[COUNT];
    for (unsigned step = 0; step < 20; step++) {
        average(averages, COUNT, step);
        assert_true(job_check(averages, job_all(0, COUNT), WORKERS, step));
        assert_false(job_check(averages, job_all(0, COUNT), WORKERS, step + 1));
        averages[step * 7] += 1;
        assert_false(job_check(averages, job_all(0, COUNT), WORKERS, step));
    }
}

/* However a tensor is divided, every one of the some belongs to one part. */
static void test_some_are_the_same_in_any_division(void **state)
{
    (void)state;
    static const size_t counts[] = {0, 1, 15, 16, 31, 32, 33, 100, 999, 1000};
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
        size_t count = counts[c];
        float once[COUNT] = {0};
        float parts[COUNT] = {0};
        float ones[COUNT];
        for (size_t i = 0; i < COUNT; i++)
            ones[i] = 1;
        job_stretch some = job_some(0, count, count);
        assert_true(some.count <= 32 && (some.count >= 16 || some.count == count));
        job_add(once, ones, some);
        for (size_t at = 0, length = 1; at < count; at += length, length = length * 3 % 101) {
            length = at + length < count ? length : count - at;
            job_add(parts, ones, job_some(at, length, count));
        }
        assert_memory_equal(once, parts, sizeof once);
        double sum = 0;
        for (size_t i = 0; i < COUNT; i++)
            sum += once[i];
        assert_true(sum == (double)some.count);
    }
}

/* Also when they have become so large that they begin again. */
static void test_sums(void **state)
{
    (void)state;
    float parameters[COUNT] = {0};
    float averages[COUNT];
    job_sum sum = {0};
    for (unsigned step = 0; step < 60000; step++) {
        average(averages, 40, step);
        job_add(parameters, averages, job_all(0, 40));
        assert_false(job_check_sum(parameters, job_all(0, 40), &sum));
        job_sum_add(&sum, WORKERS, step);
        assert_true(job_check_sum(parameters, job_all(0, 40), &sum));
    }
    assert_true(sum.base > 1 << 20);
    parameters[39] -= 1;
    assert_false(job_check_sum(parameters, job_all(0, 40), &sum));
    assert_true(job_check_sum(parameters, job_all(0, 39), &sum));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_averages),
        cmocka_unit_test(test_some_are_the_same_in_any_division),
        cmocka_unit_test(test_sums),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
