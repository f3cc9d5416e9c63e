/* Sums that several threads make together: the same bits as of one alone, call after call. */
#include <time.h>

#include "support.h"
#include "transport/crew.h"
#include "transport/reduce.h"

enum { SOURCES = 5, MOST = 3000, ROOM = MOST * 8 };

static char source[SOURCES][ROOM];
static char expected[ROOM];

static void fill(uint64_t *random)
{
    for (size_t s = 0; s < SOURCES; s++)
        for (size_t i = 0; i < ROOM; i += 2) {
            uint16_t small = (uint16_t)(random_bits(random) & 0x3bff); /* finite in every dtype */
            memcpy(source[s] + i, &small, sizeof small);
        }
}

/* In place, as a worker does it: its own elements are one of the sources. */
static void reduce_once(crew *c, uint64_t *random)
{
    static const mgw_dtype dtypes[] = {MGW_F32, MGW_F16, MGW_BF16, MGW_F64};
    mgw_dtype dtype = dtypes[random_below(random, 4)];
    mgw_op op = random_below(random, 2) ? MGW_SUM : MGW_AVERAGE;
    size_t sources = 1 + random_below(random, SOURCES);
    size_t count = random_below(random, 2) ? random_below(random, 9) : random_below(random, MOST);
    const void *from[SOURCES];
    for (size_t s = 0; s < sources; s++)
        from[s] = source[s];
    char *own = source[random_below(random, sources)];
    char before[16];
    char *after = own + count * mgw_dtype_bytes(dtype);
    size_t rest = (size_t)(own + ROOM - after);
    size_t looked = rest < sizeof before ? rest : sizeof before;
    memcpy(before, after, looked);
    void *to = expected;
    mgw_reduce(from, sources, &to, 1, count, dtype, op);
    crew_reduce(c, from, sources, own, count, dtype, op);
    assert_memory_equal(own, expected, count * mgw_dtype_bytes(dtype));
    assert_memory_equal(after, before, looked);
}

static void test_the_same_bits(void **state)
{
    (void)state;
    uint64_t random = 1;
    for (unsigned threads = 1; threads <= 4; threads++) {
        crew *c = NULL;
        mgw_error error = {0};
        assert_int_equal(crew_open(threads, &c, &error), MGW_OK);
        for (int i = 0; i < 300; i++) {
            fill(&random);
            reduce_once(c, &random);
            if (i % 100 == 0) /* until all are asleep */
                nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
        }
        crew_close(c);
    }
}

static void test_alone(void **state)
{
    (void)state;
    uint64_t random = 2;
    for (int i = 0; i < 100; i++) {
        fill(&random);
        reduce_once(NULL, &random);
    }
    crew_close(NULL);
}

/* Who was never called can go as well. */
static void test_idle(void **state)
{
    (void)state;
    mgw_error error = {0};
    for (int i = 0; i < 50; i++) {
        crew *c = NULL;
        assert_int_equal(crew_open(3, &c, &error), MGW_OK);
        crew_close(c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_same_bits),
        cmocka_unit_test(test_alone),
        cmocka_unit_test(test_idle),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
