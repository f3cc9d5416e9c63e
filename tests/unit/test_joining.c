/* How workers on one host join a job, and that strangers cannot interfere. */
#include <sys/socket.h>
#include <sys/un.h>

#include "ranks.h"
#include "transport/shm.h"

/* ---- Builds that differ ---- */

static int job_socket(const char *name, struct sockaddr_un *address, socklen_t *length)
{
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    int bytes = snprintf(address->sun_path + 1, sizeof address->sun_path - 1, "mgwfbp-%u-%s",
                         (unsigned)getuid(), name);
    *length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)bytes);
    return socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
}

/* In a child: a worker of this build. */
static pid_t start_worker(job *j, unsigned rank)
{
    pid_t child = fork();
    if (child == 0) {
        rank_start start = {j, rank};
        run_rank(&start);
        _exit(0);
    }
    return child;
}

/* Acts as rank 0 with a given answer: receives the greeting of rank 1, and replies. */
static void answer_as(job *j, void (*change)(shm_greeting *), shm_greeting *heard)
{
    struct sockaddr_un address;
    socklen_t length = 0;
    start_job(j);
    int listener = job_socket(j->name, &address, &length);
    assert_int_equal(bind(listener, (struct sockaddr *)&address, length), 0);
    assert_int_equal(listen(listener, 1), 0);
    pid_t child = start_worker(j, 1);
    int peer = accept(listener, NULL, NULL);
    assert_int_equal(recv(peer, heard, sizeof *heard, MSG_WAITALL), sizeof *heard);
    shm_greeting answer = *heard;
    answer.rank = 0;
    change(&answer);
    assert_int_equal(send(peer, &answer, sizeof answer, 0), sizeof answer);
    close(peer);
    close(listener);
    waitpid(child, NULL, 0);
}

/* Acts as rank 1 and sends the first bytes of its greeting; returns rank 0's answer. */
static size_t visit_as(job *j, const shm_greeting *hello, size_t bytes, shm_greeting *answer)
{
    struct sockaddr_un address;
    socklen_t length = 0;
    start_job(j);
    pid_t child = start_worker(j, 0);
    int fd = job_socket(j->name, &address, &length);
    while (connect(fd, (struct sockaddr *)&address, length))
        usleep(1000);
    assert_int_equal(send(fd, hello, bytes, 0), bytes);
    ssize_t heard = recv(fd, answer, sizeof *answer, MSG_WAITALL);
    close(fd);
    waitpid(child, NULL, 0);
    return heard < 0 ? 0 : (size_t)heard;
}

static void be_another_version(shm_greeting *greeting)
{
    snprintf(greeting->version, sizeof greeting->version, "99.1.2");
}

static void be_another_build(shm_greeting *greeting)
{
    greeting->layout ^= 1;
}

static void builds_that_differ_are_refused(void **unused)
{
    (void)unused;
    static const struct {
        void (*change)(shm_greeting *);
        const char *words;
    } cases[] = {{be_another_version, "libmgwfbp 99.1.2"}, {be_another_build, "of another build"}};
    shm_greeting greeting = {.rank = 0};
    shm_greeting answer = {.rank = 0};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        job j = {.transport = "shm", .size = 2, .timeout_s = 20};
        answer_as(&j, cases[i].change, &greeting);
        assert_int_equal(j.results[1].status, MGW_ERR_PEER);
        assert_contains(j.results[1].error.message, cases[i].words);
        assert_contains(j.results[1].error.message, mgw_version());
        end_job(&j);
        cases[i].change(&greeting);
        assert_int_equal(visit_as(&j, &greeting, sizeof greeting, &answer), sizeof answer);
        assert_string_equal(answer.version, mgw_version()); /* so that it can report it, too */
        assert_int_equal(j.results[0].status, MGW_ERR_PEER);
        assert_contains(j.results[0].error.message, cases[i].words);
        end_job(&j);
    }
    /* An older build that sent 16 bytes, without a version. */
    job j = {.transport = "shm", .size = 2, .timeout_s = 20};
    memcpy(greeting.magic, "mgwfbp1", 8);
    visit_as(&j, &greeting, 16, &answer);
    assert_contains(j.results[0].error.message, "another version of libmgwfbp");
    end_job(&j);
}

/* ---- Strangers ---- */

static void meet_once(mgw_transport *t, rank_result *result)
{
    result->status = mgw_transport_barrier(t, &result->error);
}

/* Of the same user, so that only their messages tell them apart. */
static void the_silent_keep_nobody_waiting(void **unused)
{
    (void)unused;
    enum { SILENT = 3 * SHM_RANKS_MAX }; /* more than rank 0 keeps */
    job j = {.transport = "shm", .size = 2, .timeout_s = 20, .body = meet_once};
    struct sockaddr_un address;
    socklen_t length = 0;
    int silent[SILENT];
    start_job(&j);
    double begun_s = clock_s();
    pid_t host = start_worker(&j, 0);
    for (int i = 0; i < SILENT; i++) {
        silent[i] = job_socket(j.name, &address, &length);
        while (connect(silent[i], (struct sockaddr *)&address, length))
            usleep(1000);
    }
    pid_t visitor = start_worker(&j, 1);
    waitpid(host, NULL, 0);
    waitpid(visitor, NULL, 0);
    expect_good(&j);
    assert_true(clock_s() - begun_s < 4);
    for (int i = 0; i < SILENT; i++)
        close(silent[i]);
    end_job(&j);
}

/* Another process has the name, and accepts nobody: connecting would block for as long as that
 * lasts. */
static void a_taken_name_costs_no_more_than_the_timeout(void **unused)
{
    (void)unused;
    job j = {.transport = "shm", .size = 2, .timeout_s = 0.5, .body = meet_once};
    struct sockaddr_un address;
    socklen_t length = 0;
    start_job(&j);
    int listener = job_socket(j.name, &address, &length);
    assert_int_equal(bind(listener, (struct sockaddr *)&address, length), 0);
    assert_int_equal(listen(listener, 0), 0);
    int first = job_socket(j.name, &address, &length);
    assert_int_equal(connect(first, (struct sockaddr *)&address, length), 0);
    double begun_s = clock_s();
    rank_start start = {&j, 1};
    run_rank(&start);
    assert_int_equal(j.results[1].status, MGW_ERR_TIMEOUT);
    assert_contains(j.results[1].error.message, "rank 0 did not come");
    assert_true(clock_s() - begun_s < 3);
    close(first);
    close(listener);
    end_job(&j);
}

/* Truncated, these two names would be the same. */
static void names_are_never_cut(void **unused)
{
    (void)unused;
    char name[200];
    memset(name, 'n', sizeof name);
    name[sizeof name - 1] = '\0';
    for (unsigned rank = 0; rank < 2; rank++) {
        mgw_transport_options options = {
            .name = "shm", .rank = rank, .size = 2, .job = name, .timeout_s = 5};
        mgw_transport *t = NULL;
        mgw_error error = {0};
        name[sizeof name - 2] = (char)('0' + rank);
        assert_int_equal(mgw_transport_open(&options, &t, &error), MGW_ERR_ARGUMENT);
        assert_contains(error.message, "the name of the job");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(builds_that_differ_are_refused),
        cmocka_unit_test(the_silent_keep_nobody_waiting),
        cmocka_unit_test(a_taken_name_costs_no_more_than_the_timeout),
        cmocka_unit_test(names_are_never_cut),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
