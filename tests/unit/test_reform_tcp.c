/* The surviving workers continue after a failure, with TCP as the control channel and fake GPUs. A
 * job never splits in two, whichever ranks hang and recover. */
#include "tcp_ranks.h"

#include "reform_ranks.h"

static void test_one_after_the_other(void **state)
{
    (void)state;
    set_port("127.0.0.1");
    try_dying("nccl:tcp", (unsigned[]){NEVER, 10, NEVER, 30, NEVER}, false);
    set_port("localhost");
    try_dying("nccl:tcp", (unsigned[]){5, 25, NEVER, NEVER, NEVER}, true); /* each was rank 0 */
    char own[256];
    if (own_name(own, sizeof own)) { /* they listen at all addresses */
        set_port(own);
        try_dying("nccl:tcp", (unsigned[]){5, NEVER, 25, NEVER, NEVER}, false);
    }
    set_port("127.0.0.1");
    try_dying("nccl:shm", (unsigned[]){5, 25, NEVER, NEVER, NEVER}, false);
}

static void test_several_at_once(void **state)
{
    (void)state;
    set_port("127.0.0.1");
    try_dying("nccl:tcp", (unsigned[]){20, 20, NEVER, NEVER, NEVER}, false);
    set_port("127.0.0.1");
    try_dying("nccl:tcp", (unsigned[]){7, 7, 7, NEVER, 7}, false); /* one survives */
}

static void test_through_the_host(void **state)
{
    (void)state;
    on_gpu = true;
    try_dying("shm", (unsigned[]){5, NEVER, NEVER, 30, NEVER}, false);
    on_gpu = false;
}

static void test_at_any_moment(void **state)
{
    (void)state;
    uint64_t random = 11;
    for (int i = 0; i < 3; i++) {
        pid_t pids[WORKERS];
        const unsigned dies[] = {NEVER, NEVER, NEVER, NEVER, NEVER};
        set_port("127.0.0.1");
        board *seen = start_with("nccl:tcp", dies, i % 2, 3, 5000000, pids);
        while (!seen->done[0])
            nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        unsigned first = i < 2 ? 0 : (unsigned)random_below(&random, WORKERS);
        kill(pids[first], SIGKILL);
        nanosleep(&(struct timespec){.tv_nsec = (long)random_below(&random, 60) * 1000000}, NULL);
        kill(pids[(first + 1 + (unsigned)random_below(&random, WORKERS - 1)) % WORKERS], SIGKILL);
        unsigned killed = end(seen, pids);
        assert_true(__builtin_popcount(killed) >= 1 && __builtin_popcount(killed) <= 2);
        munmap(seen, sizeof *seen);
    }
}

/* ---- Who hangs, and comes back ---- */

/* Ranks that are stopped while all run, until the others have ended. */
typedef struct stop {
    const char *transport;
    unsigned stopped;  /* one bit each */
    bool others_go_on; /* to the end; all others end with an error, and do no further step */
    bool may_they;     /* ranks that recover may continue */
    const char *words; /* of a rank that does not continue */
    board *seen;
    pid_t pids[WORKERS];
} stop;

static void begin_stop(stop *s)
{
    const unsigned dies[] = {NEVER, NEVER, NEVER, NEVER, NEVER};
    set_port("127.0.0.1");
    s->seen = start_with(s->transport, dies, false, 1, 20000000, s->pids);
    while (s->seen->done[0] < 3)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    for (unsigned r = 0; r < WORKERS; r++)
        if (s->stopped >> r & 1)
            kill(s->pids[r], SIGSTOP);
}

/* Every step had one sum, seen by all workers that did it: otherwise workers end with 1 and an
 * error. Returns which of the wanted ranks have done all steps. */
static unsigned await_some(stop *s, unsigned wanted)
{
    unsigned whole = 0;
    for (unsigned r = 0; r < WORKERS; r++) {
        if (!(wanted >> r & 1))
            continue;
        assert_int_equal(waitpid(s->pids[r], NULL, 0), s->pids[r]);
        whole |= s->seen->done[r] == STEPS ? 1u << r : 0;
        if (strstr(s->seen->wrong[r], "the sum is"))
            fail_msg("stopped %x: rank %u: %s", s->stopped, r, s->seen->wrong[r]);
    }
    return whole;
}

static void end_stop(stop *s)
{
    unsigned all = (1u << WORKERS) - 1;
    unsigned others = all & ~s->stopped;
    unsigned whole = await_some(s, others);
    for (unsigned r = 0; r < WORKERS; r++)
        if (s->stopped >> r & 1)
            kill(s->pids[r], SIGCONT);
    unsigned back = await_some(s, s->stopped);
    if (whole != (s->others_go_on ? others : 0) || (back && !s->may_they))
        fail_msg("%s, stopped %x: %x have gone on, and %x of those; %s; %s; %s; %s; %s",
                 s->transport, s->stopped, whole, back, s->seen->wrong[0], s->seen->wrong[1],
                 s->seen->wrong[2], s->seen->wrong[3], s->seen->wrong[4]);
    assert_true(!whole || !back);
    bool said = !s->words;
    for (unsigned r = 0; r < WORKERS; r++)
        said |= s->words && strstr(s->seen->wrong[r], s->words);
    if (!said)
        fail_msg("%s, stopped %x: '%s' is not in '%s', '%s'", s->transport, s->stopped, s->words,
                 s->seen->wrong[0], s->seen->wrong[4]);
    munmap(s->seen, sizeof *s->seen);
}

static void test_never_in_two_parts(void **state)
{
    (void)state;
    stop stops[] = {
        {.transport = "nccl:tcp", .stopped = 0x18, .others_go_on = true, .words = "stays out"},
        {.transport = "nccl:tcp", .stopped = 1, .others_go_on = true, .words = "more than half"},
        {.transport = "nccl:tcp", .stopped = 7, .may_they = true, .words = "ranks 3, 4 of 5 are"},
        {.transport = "shm", .stopped = 7, .others_go_on = true, .words = "continued without"},
    };
    size_t count = sizeof stops / sizeof *stops;
    for (size_t i = 0; i < count; i++)
        begin_stop(&stops[i]);
    for (size_t i = 0; i < count; i++)
        end_stop(&stops[i]);
}

int main(void)
{
    setenv("MGWFBP_DUMP", "", 1);
    unsetenv("MGWFBP_SECRET");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_after_the_other), cmocka_unit_test(test_several_at_once),
        cmocka_unit_test(test_through_the_host),    cmocka_unit_test(test_at_any_moment),
        cmocka_unit_test(test_never_in_two_parts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
