/*
 * The reported cause of a job's end, for messages of workers in any order: the cause comes first,
 * and nothing twice.
 */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "job/output.h"

enum { WORKERS = 3 };

typedef struct job {
    job_output output;
    int errors[WORKERS]; /* where workers write */
    int said[2];
} job;

static void begin(job *j)
{
    mgw_error error = {0};
    assert_int_equal(job_output_init(&j->output, WORKERS, false, &error), MGW_OK);
    assert_int_equal(pipe(j->said), 0);
    j->output.sinks[1].fd = j->said[1];
    for (unsigned r = 0; r < WORKERS; r++) {
        int out[2];
        int err[2];
        assert_int_equal(pipe(out) | pipe(err), 0);
        close(out[1]);
        job_output_open(&j->output, r, out[0], err[0]);
        j->errors[r] = err[1];
    }
}

/* All that was said. */
static void end(job *j, char *out, size_t size)
{
    for (unsigned r = 0; r < WORKERS; r++)
        close(j->errors[r]);
    job_output_drain(&j->output);
    while (!job_output_is_written(&j->output))
        job_output_step(&j->output, NULL, 100);
    job_output_fini(&j->output);
    close(j->said[1]);
    ssize_t got = 0;
    size_t used = 0;
    while ((got = read(j->said[0], out + used, size - 1 - used)) > 0)
        used += (size_t)got;
    out[used] = '\0';
    close(j->said[0]);
}

static void say(job *j, unsigned rank, const char *line)
{
    assert_int_equal(write(j->errors[rank], line, strlen(line)), (ssize_t)strlen(line));
    job_output_step(&j->output, NULL, 0);
}

static void test_a_follower_is_first(void **state)
{
    (void)state;
    char said[1000];
    job j;
    begin(&j);
    say(&j, 1, JOB_FOLLOWS "rank 2 has failed\n");
    job_output_blame(&j.output, 1, "rank 1 ended\n");
    assert_true(job_output_follows(&j.output, 1));
    say(&j, 0, JOB_FOLLOWS "rank 2 has failed, for rank 2\n");
    say(&j, 2, JOB_LAST_WORD "out of memory\n");
    end(&j, said, sizeof said);
    assert_string_equal(said, "out of memory\n");
}

static void test_the_cause_was_told_before(void **state)
{
    (void)state;
    char said[1000];
    job j;
    begin(&j);
    say(&j, 2, JOB_LAST_WORD "out of memory\n");
    say(&j, 0, JOB_FOLLOWS "rank 2 has failed\n");
    job_output_blame(&j.output, 0, "rank 0 ended\n");
    job_output_blame(&j.output, 2, "rank 2 ended\n");
    end(&j, said, sizeof said);
    assert_string_equal(said, "out of memory\n");
}

static void test_the_cause_was_killed(void **state)
{
    (void)state;
    char said[1000];
    job j;
    begin(&j);
    say(&j, 0, JOB_FOLLOWS "rank 1 has died\n");
    job_output_blame(&j.output, 0, "rank 0 ended\n");
    job_output_blame(&j.output, 1, "rank 1 was killed\n");
    say(&j, 2, JOB_FOLLOWS "rank 1 has died, too\n");
    end(&j, said, sizeof said);
    assert_string_equal(said, "rank 1 was killed\nrank 1 has died\n");
}

static void test_nobody_knows_better(void **state)
{
    (void)state;
    char said[1000];
    job j;
    begin(&j);
    say(&j, 1, JOB_FOLLOWS "rank 0 is late\n");
    job_output_blame(&j.output, 1, "rank 1 ended\n");
    job_output_settle(&j.output); /* when others have had their time */
    say(&j, 0, JOB_LAST_WORD "something else\n");
    end(&j, said, sizeof said);
    assert_string_equal(said, "rank 0 is late\n");
}

static void test_without_words(void **state)
{
    (void)state;
    char said[1000];
    job j;
    begin(&j);
    job_output_blame(&j.output, 1, "rank 1 was killed\n");
    say(&j, 0, JOB_FOLLOWS "rank 1 has died\n");
    say(&j, 2, JOB_FOLLOWS "rank 1 has died\n");
    end(&j, said, sizeof said);
    assert_string_equal(said, "rank 1 was killed\nrank 1 has died\n");
}

/* Its last word is behind more than is read at a time. */
static void test_a_follower_says_much_before(void **state)
{
    (void)state;
    static char said[100000];
    static char much[60001];
    job j;
    begin(&j);
    for (size_t i = 0; i + 1 < sizeof much; i++)
        much[i] = i % 100 == 99 ? '\n' : (char)('a' + i / 100 % 26);
    say(&j, 1, much);
    assert_int_equal(write(j.errors[1], JOB_FOLLOWS "rank 2 has failed\n", 19), 19);
    job_output_step(&j.output, NULL, 0);
    job_output_hear(&j.output, 1);
    job_output_blame(&j.output, 1, "rank 1 ended\n");
    assert_true(job_output_follows(&j.output, 1));
    say(&j, 2, JOB_LAST_WORD "out of memory\n");
    job_output_blame(&j.output, 2, "rank 2 ended\n");
    end(&j, said, sizeof said);
    assert_memory_equal(said, much, 60000);
    assert_string_equal(said + 60000, "out of memory\n");
}

/* What a worker leaves behind may write on: it is not listened to for ever. */
static void test_somebody_writes_on(void **state)
{
    (void)state;
    job j;
    begin(&j);
    pid_t child = fork();
    while (child == 0)
        if (write(j.errors[1], "and on\n", 7) < 0)
            _exit(1);
    alarm(20);
    job_output_hear(&j.output, 1);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    alarm(0);
    job_output_fini(&j.output);
}

static void test_nobody_is_blamed(void **state)
{
    (void)state;
    char said[1000];
    job j;
    begin(&j);
    say(&j, 0, JOB_FOLLOWS "rank 1 has failed\n");
    say(&j, 1, JOB_LAST_WORD "no such file\n");
    end(&j, said, sizeof said);
    assert_string_equal(said, "no such file\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_follower_is_first),
        cmocka_unit_test(test_the_cause_was_told_before),
        cmocka_unit_test(test_the_cause_was_killed),
        cmocka_unit_test(test_nobody_knows_better),
        cmocka_unit_test(test_without_words),
        cmocka_unit_test(test_a_follower_says_much_before),
        cmocka_unit_test(test_somebody_writes_on),
        cmocka_unit_test(test_nobody_is_blamed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
