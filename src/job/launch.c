/* A job on this host: starts its workers, and restarts them when they fail. */
#include "job/launch.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/status.h"
#include "job/family.h"
#include "job/output.h"
#include "job/workers.h"

enum { RESTARTS_MAX = 10000, HOUR_S = 3600 };

/* A start that lasted this long shows that the job can run, and resets the pauses. */
static const double long_s = 600;
static const double longest_pause_s = 60;

typedef struct launcher {
    job_options job; /* with the current number of workers */
    unsigned most;   /* number of workers if none is lost */
    int signals;     /* a signalfd */
    workers_signals outer;
    int told;               /* the last signal that asked the job to end, or 0 */
    bool grows;             /* more workers were asked for */
    pid_t keeper;           /* the process that runs the workers, or 0 */
    _Atomic unsigned *left; /* number of workers, in memory shared with the keeper; */
    unsigned seen;          /*   its last value, */
    double lost_s;          /*   and when it changed to that */
    double *begins_s;       /* times of restarts, in a ring of job.restarts */
    unsigned starts;        /* restarts so far */
    unsigned restarts;      /*   of which after failures */
    unsigned quick;         /* consecutive quick failures */
} launcher;

/* ---- Signals ---- */

static void take_signals(launcher *l)
{
    struct signalfd_siginfo info;
    while (read(l->signals, &info, sizeof info) == sizeof info) {
        int number = (int)info.ssi_signo;
        if (number == SIGUSR1)
            l->grows = true;
        if (number == SIGUSR1 || number == SIGCHLD)
            continue;
        l->told = number;
        if (l->keeper && info.ssi_code != SI_KERNEL) { /* else the terminal signals it as well */
            kill(l->keeper, number);
            kill(l->keeper, SIGCONT);
        }
    }
}

static void await_signal(launcher *l, double most_s)
{
    struct pollfd signals = {.fd = l->signals, .events = POLLIN};
    poll(&signals, 1, (int)ceil(1e3 * fmin(fmax(most_s, 0), 1)));
    take_signals(l);
}

static mgw_status take_over_signals(launcher *l, mgw_error *error)
{
    static const int watched[] = {SIGCHLD, SIGINT, SIGTERM, SIGHUP, SIGUSR1};
    sigset_t mask;
    sigemptyset(&mask);
    for (size_t i = 0; i < sizeof watched / sizeof *watched; i++)
        if (watched[i] != SIGUSR1 || l->job.least)
            sigaddset(&mask, watched[i]);
    sigprocmask(SIG_BLOCK, &mask, &l->outer.mask);
    l->outer.pipe = signal(SIGPIPE, SIG_IGN); /* a closed output does not end the job */
    l->outer.child = signal(SIGCHLD, SIG_DFL);
    l->signals = signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK);
    return l->signals < 0 ? mgw_fail(error, MGW_ERR_IO, "signalfd: %s", strerror(errno)) : MGW_OK;
}

static void release_signals(const launcher *l)
{
    if (l->signals >= 0)
        close(l->signals);
    sigprocmask(SIG_SETMASK, &l->outer.mask, NULL);
    signal(SIGPIPE, l->outer.pipe);
    signal(SIGCHLD, l->outer.child);
}

/* ---- One start ---- */

static bool hear(int report, workers_end *end)
{
    size_t done = 0;
    while (done < sizeof *end) {
        ssize_t got = read(report, (char *)end + done, sizeof *end - done);
        if (got == 0 || (got < 0 && errno != EINTR))
            return false;
        done += got > 0 ? (size_t)got : 0;
    }
    return true;
}

static void note_keeper(const launcher *l, int status, int report, workers_end *end)
{
    bool told = WIFEXITED(status) && WEXITSTATUS(status) == 0;
    if (told && hear(report, end))
        return;
    bool killed = WIFSIGNALED(status);
    *end = (workers_end){.exit_status = killed ? 128 + WTERMSIG(status) : 2};
    snprintf(end->cause, sizeof end->cause, "the process that has the workers %s%s%s",
             killed ? "was killed (" : "did not report how they ended",
             killed ? strsignal(WTERMSIG(status)) : "", killed ? ")" : "");
    fprintf(stderr, "mgwfbp %s: %s\n", l->job.command, end->cause);
}

/* Tries to start lost workers again, after regrow_s or SIGUSR1: asks the running ones to end, which
 * they do after a checkpoint if they write any. */
static void grow(launcher *l, bool *asked)
{
    unsigned now = atomic_load(l->left);
    l->lost_s = now == l->seen ? l->lost_s : mgw_now_s();
    l->seen = now;
    bool due = l->job.regrow_s > 0 && mgw_now_s() - l->lost_s > l->job.regrow_s;
    if (*asked || now >= l->most || !(due || l->grows))
        return;
    fprintf(stderr, "mgwfbp %s: from %u workers to %u at the next checkpoint\n", l->job.command,
            now, l->most);
    kill(l->keeper, SIGTERM);
    *asked = true;
}

static mgw_status run_once(launcher *l, bool *grown, workers_end *end, mgw_error *error)
{
    int report[2];
    if (pipe2(report, O_CLOEXEC))
        return mgw_fail(error, MGW_ERR_IO, "cannot create a pipe: %s", strerror(errno));
    pid_t self = getpid();
    l->grows = false;
    l->lost_s = mgw_now_s();
    l->seen = l->job.workers;
    atomic_store(l->left, l->job.workers);
    l->keeper = fork();
    if (l->keeper == 0) {
        close(report[0]);
        workers_run(&l->job, l->starts, &l->outer, self, report[1], l->left);
    }
    close(report[1]);
    mgw_status status =
        l->keeper < 0 ? mgw_fail(error, MGW_ERR_IO, "cannot start a process: %s", strerror(errno))
                      : MGW_OK;
    int code = 0;
    while (!status && waitpid(l->keeper, &code, WNOHANG) == 0) {
        await_signal(l, 1);
        if (l->job.least && !l->told)
            grow(l, grown);
    }
    l->keeper = 0;
    if (!status)
        note_keeper(l, code, report[0], end);
    close(report[0]);
    family_end(true); /* processes that it could not end itself */
    return status;
}

/* ---- Restarting ---- */

/* The pause before a restart: doubled each time, unless the last start has shown that the job can
 * run. */
static double pause_before(launcher *l, double lasted_s)
{
    l->quick = lasted_s > long_s ? 0 : l->quick;
    double pause_s = l->job.backoff_s * pow(2, fmin(l->quick, 30));
    l->quick++;
    return fmin(pause_s, fmax(longest_pause_s, l->job.backoff_s));
}

static bool may_restart(const launcher *l)
{
    if (!l->job.restarts)
        return false;
    double oldest_s = l->begins_s[l->restarts % l->job.restarts];
    return l->restarts < l->job.restarts || mgw_now_s() - oldest_s > HOUR_S;
}

/* Continues with the remaining workers, but at least `least`. */
static void shrink(launcher *l, unsigned lost)
{
    unsigned left = l->job.workers > lost ? l->job.workers - lost : 0;
    if (l->job.least)
        l->job.workers = left > l->job.least ? left : l->job.least;
}

/* Whether the job starts again, after a pause that a signal may end. */
static bool begin_again(launcher *l, const workers_end *end, bool grown, double lasted_s)
{
    if (grown && !l->told && end->exit_status) {
        l->job.workers = l->most;
        l->starts++;
        return true;
    }
    /* A program that cannot be started will not start next time either. */
    bool useless = end->exit_status == 126 || end->exit_status == 127;
    if (!end->exit_status || end->error.status || l->told || useless || !l->job.restarts)
        return false;
    if (!may_restart(l)) {
        fprintf(stderr, "mgwfbp %s: %u restarts within an hour were not enough; the job ends\n",
                l->job.command, l->job.restarts);
        return false;
    }
    unsigned before = l->job.workers;
    shrink(l, end->lost);
    double pause_s = pause_before(l, lasted_s);
    l->begins_s[l->restarts % l->job.restarts] = mgw_now_s() + pause_s;
    l->restarts++;
    l->starts++;
    fprintf(stderr, "mgwfbp %s: restart %u in %.1f s, after %.1f s, with %u workers of %u: %s\n",
            l->job.command, l->restarts, pause_s, lasted_s, l->job.workers, before, end->cause);
    double until_s = mgw_now_s() + pause_s;
    while (!l->told && mgw_now_s() < until_s)
        await_signal(l, until_s - mgw_now_s());
    return !l->told;
}

static mgw_status run_all(launcher *l, int *exit_status, mgw_error *error)
{
    for (;;) {
        workers_end end = {.exit_status = 0};
        bool grown = false;
        double begun_s = mgw_now_s();
        mgw_status status = run_once(l, &grown, &end, error);
        *exit_status = end.exit_status;
        if (!status && end.error.status)
            status = mgw_fail(error, end.error.status, "%s", end.error.message);
        if (status || !begin_again(l, &end, grown, mgw_now_s() - begun_s))
            return status;
    }
}

mgw_status job_launch(const job_options *job, int *exit_status, mgw_error *error)
{
    if (job->workers < 1 || job->workers > JOB_WORKERS_MAX)
        return mgw_fail(error, MGW_ERR_ARGUMENT,
                        "-n: the number of workers must be between 1 and %d", JOB_WORKERS_MAX);
    launcher l = {.job = *job, .most = job->workers, .signals = -1};
    if (l.job.restarts > RESTARTS_MAX)
        l.job.restarts = RESTARTS_MAX;
    l.begins_s = calloc(l.job.restarts + 1, sizeof *l.begins_s);
    void *shared =
        mmap(NULL, sizeof *l.left, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (!l.begins_s || shared == MAP_FAILED) {
        if (shared != MAP_FAILED)
            munmap(shared, sizeof *l.left);
        free(l.begins_s);
        return mgw_fail_memory(error, "launcher");
    }
    l.left = shared;
    fflush(stdout);
    family_adopt();
    mgw_status status = take_over_signals(&l, error);
    if (!status)
        status = run_all(&l, exit_status, error);
    release_signals(&l);
    munmap(shared, sizeof *l.left);
    free(l.begins_s);
    return status;
}

mgw_status job_launch_self(char **argv, const job_options *options, int *exit_status,
                           mgw_error *error)
{
    size_t count = 0;
    while (argv[count])
        count++;
    char **program = calloc(count + 2, sizeof *program);
    if (!program)
        return mgw_fail_memory(error, "launcher");
    program[0] = "/proc/self/exe";
    memcpy(program + 1, argv, count * sizeof *program);
    job_options job = *options;
    job.command = argv[0];
    job.program = program;
    mgw_status status = job_launch(&job, exit_status, error);
    free(program);
    return status;
}
