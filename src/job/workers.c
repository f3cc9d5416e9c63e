/* One start of a job's workers: runs them to their end, and handles their output. */
#include "job/workers.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/status.h"
#include "job/family.h"
#include "job/meeting.h"
#include "job/output.h"

/* Seconds after a failure until the others get SIGTERM, and until they get SIGKILL. */
static const double grace_s = 2;
static const double patience_s = 7;
/* Seconds for readers of our output, after the job was asked to end or has failed. */
static const double unread_s = 2;

typedef struct crew {
    const job_options *job;
    const workers_signals *outer;
    job_meeting meeting;
    unsigned restart;
    pid_t parent; /* the launcher */
    pid_t pids[JOB_WORKERS_MAX];
    job_output output;
    unsigned running;
    double failed_s; /* when the first failed, or 0 */
    bool follows;    /* it reported that it failed because of another one */
    bool asked;      /* the others were asked to end */
    int told;        /* the last signal that asked the job to end, or 0 */
    bool joined;     /* they have joined, so they can re-form when one is lost */
    int signals;     /* a signalfd */
    workers_end *end;
    _Atomic unsigned *left;
} crew;

/* ---- Starting ---- */

/* In the child: executes the program, or prints why not and exits with 127. */
static void become(const crew *c, unsigned rank, pid_t parent, int out, int err)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* no worker outlives its launcher */
    if (getppid() != parent)
        _exit(127);
    sigprocmask(SIG_SETMASK, &c->outer->mask, NULL);
    signal(SIGPIPE, c->outer->pipe);
    signal(SIGCHLD, c->outer->child);
    if (c->job->prefix && !isatty(STDOUT_FILENO))
        setenv("NO_COLOR", "1", 0); /* the pseudo-terminal may lead to a file */
    int null = -1;
    while (rank > 0 && (null = open("/dev/null", O_RDONLY)) < 0 && errno == EINTR)
        continue;
    bool ready = rank == 0 || (null >= 0 && dup2(null, STDIN_FILENO) >= 0);
    dup2(out, STDOUT_FILENO);
    dup2(err, STDERR_FILENO);
    if (ready && job_meeting_tell(&c->meeting, c->job, rank, c->restart))
        execvp(c->job->program[0], c->job->program);
    fprintf(stderr, "cannot run %s: %s\n", c->job->program[0], strerror(errno));
    _exit(127);
}

static mgw_status open_pipe(int ends[2], mgw_error *error)
{
    return pipe2(ends, O_CLOEXEC)
               ? mgw_fail(error, MGW_ERR_IO, "cannot create a pipe: %s", strerror(errno))
               : MGW_OK;
}

/*
 * A pseudo-terminal for standard output: programs write to a terminal line by line, so that nothing
 * is lost when they are killed. It passes lines unchanged. Our own workers flush, and use a pipe.
 */
static mgw_status open_terminal(const crew *c, int ends[2], mgw_error *error)
{
    struct termios raw;
    struct winsize size = {0};
    (void)ioctl(STDOUT_FILENO, TIOCGWINSZ, &size);
    if (!c->job->prefix || openpty(&ends[0], &ends[1], NULL, NULL, &size))
        return open_pipe(ends, error);
    fcntl(ends[0], F_SETFD, FD_CLOEXEC);
    fcntl(ends[1], F_SETFD, FD_CLOEXEC);
    if (!tcgetattr(ends[1], &raw)) {
        cfmakeraw(&raw);
        tcsetattr(ends[1], TCSANOW, &raw);
    }
    return MGW_OK;
}

static mgw_status start_worker(crew *c, unsigned rank, mgw_error *error)
{
    int out[2];
    int err[2];
    mgw_status status = open_terminal(c, out, error);
    if (status)
        return status;
    status = open_pipe(err, error);
    if (status) {
        close(out[0]);
        close(out[1]);
        return status;
    }
    pid_t parent = getpid();
    pid_t pid = fork();
    if (pid == 0)
        become(c, rank, parent, out[1], err[1]);
    close(out[1]);
    close(err[1]);
    job_output_open(&c->output, rank, out[0], err[0]);
    if (pid < 0)
        return mgw_fail(error, MGW_ERR_IO, "cannot start worker %u: %s", rank, strerror(errno));
    c->pids[rank] = pid;
    c->running++;
    return MGW_OK;
}

/* ---- Ending ---- */

static void signal_all(const crew *c, int signal_number)
{
    for (unsigned r = 0; r < c->job->workers; r++)
        if (c->pids[r] > 0) {
            kill(c->pids[r], signal_number);
            if (signal_number == SIGTERM)
                kill(c->pids[r], SIGCONT); /* a stopped process would not handle the signal */
        }
}

/* Whether it ended because of a forwarded signal. */
static bool was_told(const crew *c, int code)
{
    return c->told && code == 128 + c->told;
}

/* Whether a failure is the cause of the first one, which has reported that it failed because of
 * another worker. */
static bool is_cause(const crew *c, unsigned local, int status)
{
    bool by_itself = WIFSIGNALED(status) || !job_output_follows(&c->output, local);
    return c->follows && by_itself && !c->asked;
}

static void note_end(crew *c, unsigned local, int status)
{
    unsigned rank = c->output.first + local;
    workers_end *end = c->end;
    c->pids[local] = 0;
    c->running--;
    int code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    bool first = c->failed_s == 0;
    if (was_told(c, code) && WIFEXITED(status)) { /* not a failure, and the others have time */
        end->exit_status = end->exit_status ? end->exit_status : code;
        return;
    }
    if (code && is_cause(c, local, status)) {
        first = true;
        end->lost--;
    }
    if (code && (first || (WIFSIGNALED(status) && !c->asked)))
        end->lost++;
    if (code == 0 || !first)
        return;
    bool goes_on = c->failed_s == 0 && c->joined && WIFSIGNALED(status) && !was_told(c, code) &&
                   c->job->least > 0 && c->running >= c->job->least;
    if (!goes_on) {
        end->exit_status = code;
        c->failed_s = c->failed_s > 0 ? c->failed_s : mgw_now_s();
        c->follows = WIFEXITED(status) && job_output_follows(&c->output, local);
    }
    if (WIFSIGNALED(status))
        snprintf(end->cause, sizeof end->cause, "rank %u was killed by signal %d (%s)", rank,
                 WTERMSIG(status), strsignal(WTERMSIG(status)));
    else
        snprintf(end->cause, sizeof end->cause, "rank %u ended with exit status %d", rank, code);
    char line[256];
    atomic_store(c->left, c->running);
    snprintf(line, sizeof line, "mgwfbp %s: %s%s\n", c->job->command, end->cause,
             goes_on ? "; the others go on" : "");
    if (goes_on)
        job_output_say(&c->output, line);
    else if (!was_told(c, code))
        job_output_blame(&c->output, local, line);
}

/* Handles killed workers first, since others may have failed because of them. Orphans of workers
 * are our children, too. */
static void reap(crew *c)
{
    int statuses[JOB_WORKERS_MAX];
    bool have_ended[JOB_WORKERS_MAX] = {false};
    int status = 0;
    pid_t ended = 0;
    while ((ended = waitpid(-1, &status, WNOHANG)) > 0)
        for (unsigned r = 0; r < c->job->workers; r++)
            if (c->pids[r] == ended) {
                statuses[r] = status;
                have_ended[r] = true;
            }
    job_output_step(&c->output, NULL, 0); /* the output of the others, */
    for (unsigned r = 0; r < c->job->workers; r++)
        if (have_ended[r]) /*   and the last of these */
            job_output_hear(&c->output, r);
    for (int killed = 1; killed >= 0; killed--)
        for (unsigned r = 0; r < c->job->workers; r++)
            if (have_ended[r] && WIFSIGNALED(statuses[r]) == killed)
                note_end(c, r, statuses[r]);
}

static void handle_signals(crew *c)
{
    struct signalfd_siginfo info;
    while (read(c->signals, &info, sizeof info) == sizeof info) {
        bool by_terminal = info.ssi_code == SI_KERNEL; /* which signals the workers as well */
        if (info.ssi_signo == SIGCHLD)
            reap(c);
        else if (info.ssi_signo == SIGUSR1)
            c->joined = c->job->reforms;
        if (info.ssi_signo == SIGCHLD || info.ssi_signo == SIGUSR1)
            continue;
        c->told = (int)info.ssi_signo;
        c->output.hurries = true;
        if (!by_terminal)
            signal_all(c, (int)info.ssi_signo);
    }
}

/* After a failure, gives the others a moment to report; then ends them. */
static void press(crew *c)
{
    double since_s = c->failed_s > 0 ? mgw_now_s() - c->failed_s : 0;
    if (since_s > grace_s && !c->asked) {
        signal_all(c, SIGTERM);
        c->asked = true;
        job_output_settle(&c->output);
    }
    if (since_s > patience_s)
        signal_all(c, SIGKILL);
}

static void end_if_alone(const crew *c)
{
    if (getppid() == c->parent)
        return;
    signal_all(c, SIGKILL);
    family_end(true);
    _exit(128 + SIGKILL);
}

/* Runs until all workers have ended. */
static void attend(crew *c)
{
    while (c->running > 0) {
        struct pollfd signals = {.fd = c->signals, .events = POLLIN};
        job_output_step(&c->output, &signals, 200);
        end_if_alone(c);
        if (signals.revents) /* after the output of those that have ended */
            handle_signals(c);
        press(c);
    }
}

/* Ends processes that workers left behind, and writes all output; with a time limit if the job
 * failed and nobody reads. */
static void conclude(crew *c)
{
    family_end(false);
    double begun_s = mgw_now_s();
    for (;;) {
        job_output_drain(&c->output);
        if (job_output_is_written(&c->output))
            return;
        bool hurries = c->told || c->failed_s > 0;
        if (hurries && mgw_now_s() - begun_s > unread_s)
            return;
        struct pollfd signals = {.fd = c->signals, .events = POLLIN};
        job_output_step(&c->output, &signals, 200);
        end_if_alone(c);
        handle_signals(c);
    }
}

/* ---- The process ---- */

static mgw_status prepare(crew *c, mgw_error *error)
{
    static const int watched[] = {SIGCHLD, SIGINT, SIGTERM, SIGHUP, SIGUSR1};
    sigset_t mask;
    sigemptyset(&mask);
    for (size_t i = 0; i < sizeof watched / sizeof *watched; i++)
        if (watched[i] != SIGUSR1 || c->job->least)
            sigaddset(&mask, watched[i]);
    c->signals = signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK);
    if (c->signals < 0)
        return mgw_fail(error, MGW_ERR_IO, "signalfd: %s", strerror(errno));
    mgw_status status = job_meeting_make(c->job, &c->meeting, error);
    if (!status)
        status = job_output_init(&c->output, c->job->workers, c->job->prefix, error);
    c->output.first = c->job->node * c->job->workers;
    c->output.whole = c->job->reforms && c->job->least;
    return status;
}

static mgw_status run(crew *c, mgw_error *error)
{
    mgw_status status = prepare(c, error);
    for (unsigned r = 0; !status && r < c->job->workers; r++)
        status = start_worker(c, r, error);
    if (status) { /* report this as the cause, not that they were killed */
        c->told = SIGKILL;
        signal_all(c, SIGKILL);
    }
    attend(c);
    conclude(c);
    int lost = job_output_lost(&c->output);
    if (!status && !c->end->exit_status && lost)
        status = mgw_fail(error, MGW_ERR_IO, "output of workers was lost: %s", strerror(lost));
    return status;
}

static bool tell(int report, const workers_end *end)
{
    size_t done = 0;
    while (done < sizeof *end) {
        ssize_t wrote = write(report, (const char *)end + done, sizeof *end - done);
        if (wrote < 0 && errno != EINTR)
            return false;
        done += wrote > 0 ? (size_t)wrote : 0;
    }
    return true;
}

void workers_run(const job_options *job, unsigned restart, const workers_signals *outer, int parent,
                 int report, _Atomic unsigned *left)
{
    prctl(PR_SET_PDEATHSIG, SIGTERM); /* wakes us up to notice that the launcher is gone */
    family_adopt();
    workers_end end = {.exit_status = 0};
    crew *c = calloc(1, sizeof *c);
    if (c) {
        *c = (crew){.job = job,
                    .outer = outer,
                    .restart = restart,
                    .parent = parent,
                    .end = &end,
                    .left = left};
        end_if_alone(c);
        mgw_status status = run(c, &end.error);
        end.error.status = status;
        job_output_fini(&c->output);
        free(c);
    } else {
        end.error.status = mgw_fail_memory(&end.error, "launcher");
    }
    _exit(tell(report, &end) ? 0 : 1);
}
