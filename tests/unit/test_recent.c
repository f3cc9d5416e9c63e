/* What the engine learns from the recent steps of all workers: against numbers found by hand. The
 * rows that workers would exchange are the test's. */
#include <math.h>

#include "engine/engine.h"
#include "support.h"

enum { RANKS = 3, TENSORS = 4, MESSAGES = 2, COLUMNS = 1 + TENSORS + 2 * MESSAGES, A = 1, B = 2 };

/* By rank, step, column: how late, ready times, how long messages took, how long they kept busy. */
static double told[RANKS][ENGINE_RECENT][COLUMNS];

/* In place of the transport's. */
mgw_status engine_exchange(mgw_engine *engine, const double *own, size_t columns, double **rows,
                           mgw_error *error)
{
    (void)engine;
    (void)own;
    (void)error;
    assert_int_equal(columns, ENGINE_RECENT * COLUMNS);
    *rows = malloc(sizeof told);
    assert_non_null(*rows);
    memcpy(*rows, told, sizeof told);
    return MGW_OK;
}

/* Messages of 1 and 3 bytes, which take 3 and 7 s alone. */
uint64_t engine_message_bytes(const mgw_engine *engine, const engine_message *message)
{
    return message == engine->messages ? 1 : 3;
}

static mgw_engine *set_up(unsigned steps)
{
    static engine_message messages[MESSAGES];
    static const mgw_line line = {A, B};
    mgw_error error = {0};
    mgw_engine *e = calloc(1, sizeof *e);
    assert_non_null(e);
    e->size = RANKS;
    e->tensor_count = TENSORS;
    e->message_count = MESSAGES;
    e->messages = messages;
    e->crowd = 2;
    assert_int_equal(engine_recent_allocate(e, &error), MGW_OK);
    assert_int_equal(mgw_cluster_from_line("test", RANKS, &line, &e->cluster, &error), MGW_OK);
    memset(told, 0, sizeof told);
    for (unsigned r = 0; r < RANKS; r++)
        for (unsigned k = 0; k < steps; k++) {
            double row[COLUMNS] = {0, 1, 2, 3, 4, 3, 7, 0.5, 1};
            memcpy(told[r][k], row, sizeof row);
        }
    return e;
}

static void learn(mgw_engine *e)
{
    mgw_error error = {0};
    if (engine_recent_gather(e, &error))
        fail_msg("%s", error.message);
}

static void tear_down(mgw_engine *e)
{
    engine_recent_free(e);
    mgw_cluster_destroy(e->cluster);
    free(e);
}

static void expect_ready(const double *ready_s, double a, double b, double c, double d)
{
    assert_close(ready_s[0], a);
    assert_close(ready_s[1], b);
    assert_close(ready_s[2], c);
    assert_close(ready_s[3], d);
}

/* The last worker counts, step by step: another one each time, 0.5 s after the others. Each worker
 * by itself has the second tensor after 2 s in most steps. */
static void test_the_last_worker_counts(void **state)
{
    (void)state;
    mgw_engine *e = set_up(6);
    for (unsigned k = 0; k < 6; k++)
        told[k % RANKS][k][2] = 2.5;
    learn(e);
    expect_ready(e->known_ready_s, 1, 2.5, 3, 4);
    assert_int_equal(e->known_steps, 6);
    for (size_t k = 0; k < 6; k++)
        expect_ready(e->step_ready_s + k * TENSORS, 1, 2.5, 3, 4);
    tear_down(e);
}

/* The end of the step before is common to all. Who begins 0.9 s after it is 0.6 s after the average
 * worker, and so are its gradients. */
static void test_late_begin(void **state)
{
    (void)state;
    mgw_engine *e = set_up(3);
    for (unsigned k = 0; k < 3; k++)
        told[1][k][0] = 0.9;
    learn(e);
    expect_ready(e->known_ready_s, 1.6, 2.6, 3.6, 4.6);
    tear_down(e);
}

/* One step in which a worker was held up does not count in the median; it is still a step. */
static void test_one_held_up(void **state)
{
    (void)state;
    mgw_engine *e = set_up(5);
    told[0][3][3] = 30;
    told[0][3][4] = 40;
    learn(e);
    expect_ready(e->known_ready_s, 1, 2, 3, 4);
    assert_int_equal(e->known_steps, 5);
    expect_ready(e->step_ready_s + 2 * TENSORS, 1, 2, 3, 4);
    expect_ready(e->step_ready_s + 3 * TENSORS, 1, 2, 30, 40);
    tear_down(e);
}

/* A message waits for all before it, in whatever order they come. */
static void test_never_falling(void **state)
{
    (void)state;
    mgw_engine *e = set_up(1);
    for (unsigned r = 0; r < RANKS; r++)
        told[r][0][1] = 2.25;
    learn(e);
    expect_ready(e->known_ready_s, 2.25, 2.25, 3, 4);
    expect_ready(e->step_ready_s, 2.25, 2.25, 3, 4);
    tear_down(e);
}

/* What no row has is as it was; and a row that lacks something is no step. */
static void test_not_measured(void **state)
{
    (void)state;
    mgw_engine *e = set_up(2);
    e->known_ready_s[2] = 3.5;
    for (unsigned r = 0; r < RANKS; r++)
        told[r][0][3] = told[r][1][3] = 0;
    learn(e);
    expect_ready(e->known_ready_s, 1, 2, 3.5, 4);
    assert_int_equal(e->known_steps, 0);
    tear_down(e);
    e = set_up(2);
    learn(e);
    memset(told, 0, sizeof told); /* as if asked again at once */
    learn(e);
    expect_ready(e->known_ready_s, 1, 2, 3, 4);
    assert_int_equal(e->known_steps, 2);
    expect_ready(e->step_ready_s, 1, 2, 3, 4);
    tear_down(e);
}

/* Rows of a device are not steps, whatever they have. */
static void test_device(void **state)
{
    (void)state;
    mgw_engine *e = set_up(8);
    e->device = (engine_device *)e; /* any but null: nobody looks inside */
    learn(e);
    expect_ready(e->known_ready_s, 1, 2, 3, 4);
    assert_int_equal(e->known_steps, 0);
    tear_down(e);
}

/* The message beside computation took 12 s where it was shortest, and takes 3 s alone: 4 times as
 * long. Half of the way there, in factors, is 2; and then half of the way from 2 to 4. The last
 * message has computation behind it, and does not count; nor what the others waited. */
static void test_slowdown(void **state)
{
    (void)state;
    mgw_engine *e = set_up(4);
    for (unsigned k = 0; k < 4; k++) {
        told[0][k][5] = 40;
        told[1][k][5] = 12;
        told[2][k][5] = 50;
        told[1][k][6] = 7000;
    }
    learn(e);
    assert_close(e->slowdown, 2);
    learn(e);
    assert_close(e->slowdown, sqrt(8));
    tear_down(e);
}

/* Behind the backward pass there is no computation to be slowed down by. */
static void test_slowdown_of_naive(void **state)
{
    (void)state;
    mgw_engine *e = set_up(4);
    e->slowdown = 4;
    e->after_backward = true;
    learn(e);
    assert_close(e->slowdown, 4);
    tear_down(e);
}

/* Never faster than alone, nor any slower than 8 times. */
static void test_slowdown_has_bounds(void **state)
{
    (void)state;
    mgw_engine *e = set_up(4);
    for (unsigned k = 0; k < 4; k++)
        told[0][k][5] = 0.1;
    learn(e);
    assert_close(e->slowdown, 1);
    for (unsigned k = 0; k < 4; k++)
        told[0][k][5] = told[1][k][5] = told[2][k][5] = 3000;
    learn(e);
    assert_close(e->slowdown, sqrt(8));
    tear_down(e);
}

/* Busy for 0.5 s with 1 byte and 1 s with 3: 0.25 s whatever the size, which two workers on a core
 * make 0.5 s. The next look says 1 s; half of the way there is 0.75 s. */
static void test_worth(void **state)
{
    (void)state;
    mgw_engine *e = set_up(3);
    learn(e);
    assert_close(e->worth_s, 0.5);
    for (unsigned r = 0; r < RANKS; r++)
        for (unsigned k = 0; k < 3; k++) {
            told[r][k][7] = 0.5 + (r == 0) * 0.75; /* 0.75 s on average */
            told[r][k][8] = 1.25;
        }
    learn(e);
    assert_close(e->worth_s, 0.75);
    tear_down(e);
}

/* Of one message alone there is no telling what of it depends on its size. */
static void test_worth_of_one_message(void **state)
{
    (void)state;
    mgw_engine *e = set_up(3);
    e->worth_s = 0.125;
    for (unsigned r = 0; r < RANKS; r++)
        for (unsigned k = 0; k < 3; k++)
            told[r][k][7] = 0;
    learn(e);
    assert_close(e->worth_s, 0.125);
    tear_down(e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_last_worker_counts),
        cmocka_unit_test(test_late_begin),
        cmocka_unit_test(test_one_held_up),
        cmocka_unit_test(test_never_falling),
        cmocka_unit_test(test_not_measured),
        cmocka_unit_test(test_device),
        cmocka_unit_test(test_slowdown),
        cmocka_unit_test(test_slowdown_of_naive),
        cmocka_unit_test(test_slowdown_has_bounds),
        cmocka_unit_test(test_worth),
        cmocka_unit_test(test_worth_of_one_message),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
