/* Starting the workers of a job on this host, and seeing them through. */
#include "job/launch.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"

enum { WORKERS_MAX = 64, LINE_BYTES = 4096, LINE_MAX_BYTES = 1 << 20 };

/* Seconds: until the others are asked to end after a failure, and until they must. */
static const double grace_s = 2;
static const double patience_s = 7;

/* One stream of one worker, cut into lines. */
typedef struct stream {
    int fd; /* -1: at its end */
    int to; /* our standard output or error */
    char *line;
    size_t size;
    size_t used;
    int lost; /* why something of it could not be written; 0: all was */
} stream;

typedef struct launched {
    const cli_job *job;
    char name[40];
    unsigned port;
    pid_t pids[WORKERS_MAX];
    stream streams[2 * WORKERS_MAX];
    unsigned running;
    int exit_status;
    char *said; /* the last line on standard error */
    size_t said_length;
    unsigned said_by;
    double failed_s;     /* when the first failed, or 0 */
    int signals;         /* a signalfd */
    sigset_t outer_mask; /* how it was before us, for the workers */
    void (*outer_pipe)(int);
    void (*outer_child)(int);
} launched;

bool cli_in_job(void)
{
    const char *tasks = getenv("SLURM_STEP_NUM_TASKS"); /* of srun; 1 in a batch script */
    return getenv("MGWFBP_JOB") || getenv("OMPI_COMM_WORLD_SIZE") || getenv("PMI_SIZE") ||
           getenv("PMIX_RANK") || (tasks && strtoul(tasks, NULL, 10) > 1);
}

/* ---- Starting ---- */

/* A port below the ephemeral ones that nobody listens on, for programs that meet at one. */
static unsigned find_port(unsigned seed)
{
    for (unsigned i = 0; i < 200; i++) {
        unsigned port = 20000 + (seed + 37 * i) % 12000;
        struct sockaddr_in address = {.sin_family = AF_INET,
                                      .sin_port = htons((uint16_t)port),
                                      .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        bool is_free = fd >= 0 && !bind(fd, (struct sockaddr *)&address, sizeof address);
        if (fd >= 0)
            close(fd);
        if (is_free)
            return port;
    }
    return 29500;
}

static void set_number(const char *name, unsigned value)
{
    char text[16];
    snprintf(text, sizeof text, "%u", value);
    setenv(name, text, 1);
}

/* What our transports read, what PyTorch reads, and what makes Open MPI bearable on few cores. */
static void set_environment(const launched *l, unsigned rank)
{
    setenv("MGWFBP_JOB", l->name, 1);
    if (l->job->transport)
        setenv("MGWFBP_TRANSPORT", l->job->transport, 1);
    set_number("MGWFBP_RANK", rank);
    set_number("MGWFBP_SIZE", l->job->workers);
    set_number("RANK", rank);
    set_number("LOCAL_RANK", rank);
    set_number("WORLD_SIZE", l->job->workers);
    set_number("LOCAL_WORLD_SIZE", l->job->workers);
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    set_number("MASTER_PORT", l->port);
    setenv("OMPI_MCA_mpi_yield_when_idle", "1", 0);
    long threads = sysconf(_SC_NPROCESSORS_ONLN) / (long)l->job->workers;
    if (!getenv("OMP_NUM_THREADS"))
        set_number("OMP_NUM_THREADS", threads > 1 ? (unsigned)threads : 1);
}

/* In the child: becomes the program, or tells why not and ends with 127. */
static void become(const launched *l, unsigned rank, pid_t parent, const int *out, const int *err)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* no worker outlives its launcher */
    if (getppid() != parent)
        _exit(127);
    sigprocmask(SIG_SETMASK, &l->outer_mask, NULL);
    signal(SIGPIPE, l->outer_pipe);
    signal(SIGCHLD, l->outer_child);
    int null = rank == 0 ? -1 : open("/dev/null", O_RDONLY);
    if (null >= 0)
        dup2(null, STDIN_FILENO);
    dup2(out[1], STDOUT_FILENO);
    dup2(err[1], STDERR_FILENO);
    set_environment(l, rank);
    execvp(l->job->program[0], l->job->program);
    fprintf(stderr, "cannot run %s: %s\n", l->job->program[0], strerror(errno));
    _exit(127);
}

static void open_stream(stream *s, int fd, int to)
{
    *s = (stream){.fd = fd, .to = to, .line = s->line, .size = LINE_BYTES};
}

static mgw_status start_worker(launched *l, unsigned rank, mgw_error *error)
{
    int out[2];
    int err[2];
    if (pipe2(out, O_CLOEXEC) || pipe2(err, O_CLOEXEC))
        return cli_fail(error, "cannot make a pipe: %s", strerror(errno));
    pid_t parent = getpid();
    pid_t pid = fork();
    if (pid == 0)
        become(l, rank, parent, out, err);
    close(out[1]);
    close(err[1]);
    open_stream(&l->streams[2 * rank], out[0], STDOUT_FILENO);
    open_stream(&l->streams[2 * rank + 1], err[0], STDERR_FILENO);
    if (pid < 0)
        return cli_fail(error, "cannot start worker %u: %s", rank, strerror(errno));
    l->pids[rank] = pid;
    l->running++;
    return MGW_OK;
}

/* ---- Output ---- */

static void write_out(stream *s, const char *data, size_t size)
{
    while (size > 0) {
        ssize_t done = write(s->to, data, size);
        if (done < 0 && errno != EINTR) {               /* the workers go on */
            s->lost = errno == EPIPE ? s->lost : errno; /* that nobody reads it is no failure */
            return;
        }
        if (done > 0) {
            data += done;
            size -= (size_t)done;
        }
    }
}

/* Where the workers are one command, what several of them have to say is said once. */
static bool was_said(launched *l, unsigned rank, const stream *s, size_t length)
{
    if (l->job->prefix || s->to != STDERR_FILENO)
        return false;
    bool again = l->said_by != rank && l->said_length == length && l->said &&
                 !memcmp(l->said, s->line, length);
    if (again)
        return true;
    char *copy = realloc(l->said, length);
    if (copy) {
        memcpy(copy, s->line, length);
        l->said = copy;
        l->said_length = length;
        l->said_by = rank;
    }
    return false;
}

/* Whole lines, so that those of several workers do not mix. */
static void flush_line(launched *l, unsigned rank, stream *s, size_t length)
{
    bool shown = l->job->prefix || rank == 0 || s->to == STDERR_FILENO;
    if (shown && !was_said(l, rank, s, length)) {
        char prefix[16] = "";
        if (l->job->prefix)
            snprintf(prefix, sizeof prefix, "[%u] ", rank);
        write_out(s, prefix, strlen(prefix));
        write_out(s, s->line, length);
        write_out(s, "\n", s->line[length - 1] != '\n');
    }
    memmove(s->line, s->line + length, s->used - length);
    s->used -= length;
}

/* For more of a line; one that is too long is cut. */
static void make_room(launched *l, unsigned rank, stream *s)
{
    if (s->used < s->size)
        return;
    char *larger = s->size < LINE_MAX_BYTES ? realloc(s->line, 2 * s->size) : NULL;
    if (larger) {
        s->line = larger;
        s->size *= 2;
    } else {
        flush_line(l, rank, s, s->used);
    }
}

static void read_stream(launched *l, unsigned rank, stream *s)
{
    make_room(l, rank, s);
    ssize_t got = read(s->fd, s->line + s->used, s->size - s->used);
    if (got < 0 && errno == EINTR)
        return;
    if (got > 0)
        s->used += (size_t)got;
    char *end = NULL;
    while (s->used && (end = memchr(s->line, '\n', s->used)))
        flush_line(l, rank, s, (size_t)(end - s->line) + 1);
    if (got <= 0 && s->used)
        flush_line(l, rank, s, s->used);
    if (got <= 0) {
        close(s->fd);
        s->fd = -1;
    }
}

/* ---- Endings ---- */

static void signal_all(const launched *l, int signal_number)
{
    for (unsigned r = 0; r < l->job->workers; r++)
        if (l->pids[r] > 0)
            kill(l->pids[r], signal_number);
}

static void note_end(launched *l, unsigned rank, int status)
{
    l->pids[rank] = 0;
    l->running--;
    int code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    if (code == 0 || l->failed_s > 0)
        return;
    l->exit_status = code;
    l->failed_s = mgw_now_s();
    if (WIFSIGNALED(status))
        fprintf(stderr, "mgwfbp %s: rank %u was killed by signal %d (%s)\n", l->job->command, rank,
                WTERMSIG(status), strsignal(WTERMSIG(status)));
    else
        fprintf(stderr, "mgwfbp %s: rank %u ended with exit status %d\n", l->job->command, rank,
                code);
}

static void reap(launched *l)
{
    for (unsigned r = 0; r < l->job->workers; r++) {
        int status = 0;
        pid_t ended = l->pids[r] > 0 ? waitpid(l->pids[r], &status, WNOHANG) : 0;
        if (ended > 0 || (ended < 0 && errno == ECHILD))
            note_end(l, r, status);
    }
}

static void handle_signal(launched *l)
{
    struct signalfd_siginfo info;
    while (read(l->signals, &info, sizeof info) == sizeof info) {
        bool by_terminal = info.ssi_code == SI_KERNEL; /* which tells the workers as well */
        if (info.ssi_signo == SIGCHLD)
            reap(l);
        else if (!by_terminal)
            signal_all(l, (int)info.ssi_signo);
    }
}

/* After a failure the others have a moment to say what they saw; then they are ended. */
static void press(launched *l, bool *asked)
{
    double since_s = l->failed_s > 0 ? mgw_now_s() - l->failed_s : 0;
    if (since_s > grace_s && !*asked) {
        signal_all(l, SIGTERM);
        *asked = true;
    }
    if (since_s > patience_s)
        signal_all(l, SIGKILL);
}

static bool step(launched *l, bool *asked)
{
    struct pollfd polls[2 * WORKERS_MAX + 1];
    unsigned index[2 * WORKERS_MAX + 1];
    nfds_t count = 0;
    polls[count++] = (struct pollfd){.fd = l->signals, .events = POLLIN};
    for (unsigned i = 0; i < 2 * l->job->workers; i++)
        if (l->streams[i].fd >= 0) {
            index[count] = i;
            polls[count++] = (struct pollfd){.fd = l->streams[i].fd, .events = POLLIN};
        }
    if (l->running == 0 && count == 1)
        return false;
    int ready = poll(polls, count, 200);
    for (nfds_t i = 1; ready > 0 && i < count; i++)
        if (polls[i].revents)
            read_stream(l, index[i] / 2, &l->streams[index[i]]);
    if (ready > 0 && polls[0].revents) /* behind what those who have ended had to say */
        handle_signal(l);
    press(l, asked);
    /* A grandchild may hold a pipe open for ever: with the workers gone, silence is the end. */
    return l->running > 0 || ready > 0;
}

static void make_name(launched *l)
{
    unsigned char bytes[12] = {0};
    if (getrandom(bytes, sizeof bytes, 0) != sizeof bytes)
        memcpy(bytes, &(unsigned long){(unsigned long)getpid()}, sizeof(unsigned long));
    for (size_t i = 0; i < sizeof bytes; i++)
        sprintf(l->name + 2 * i, "%02x", bytes[i]);
    l->port = find_port((unsigned)bytes[0] * 256 + bytes[1]);
}

static mgw_status prepare(launched *l, mgw_error *error)
{
    static const int watched[] = {SIGCHLD, SIGINT, SIGTERM, SIGHUP};
    sigset_t mask;
    sigemptyset(&mask);
    for (size_t i = 0; i < sizeof watched / sizeof *watched; i++)
        sigaddset(&mask, watched[i]);
    sigprocmask(SIG_BLOCK, &mask, &l->outer_mask);
    l->outer_pipe =
        signal(SIGPIPE, SIG_IGN); /* who does not read our output does not end the job */
    l->outer_child = signal(SIGCHLD, SIG_DFL);
    l->signals = signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK);
    if (l->signals < 0)
        return cli_fail(error, "signalfd: %s", strerror(errno));
    for (unsigned i = 0; i < 2 * l->job->workers; i++) {
        l->streams[i].fd = -1;
        l->streams[i].line = malloc(LINE_BYTES);
        if (!l->streams[i].line)
            return cli_fail(error, "out of memory");
    }
    return MGW_OK;
}

static void release(launched *l)
{
    if (l->signals >= 0)
        close(l->signals);
    sigprocmask(SIG_SETMASK, &l->outer_mask, NULL);
    signal(SIGPIPE, l->outer_pipe);
    signal(SIGCHLD, l->outer_child);
    for (unsigned i = 0; i < 2 * l->job->workers; i++)
        free(l->streams[i].line);
    free(l->said);
    free(l);
}

/* Starts the workers, and sees them through. */
static mgw_status run(launched *l, mgw_error *error)
{
    mgw_status status = MGW_OK;
    bool asked = false;
    fflush(stdout);
    for (unsigned r = 0; !status && r < l->job->workers; r++)
        status = start_worker(l, r, error);
    if (status)
        signal_all(l, SIGKILL);
    while (step(l, &asked))
        continue;
    reap(l);
    for (unsigned r = 0; !status && !l->exit_status && r < l->job->workers; r++)
        if (l->streams[2 * r].lost)
            status = cli_fail(error, "standard output: %s", strerror(l->streams[2 * r].lost));
    return status;
}

mgw_status cli_launch_job(const cli_job *job, int *exit_status, mgw_error *error)
{
    if (job->workers < 1 || job->workers > WORKERS_MAX)
        return cli_fail(error, "-n: between 1 and %d workers", WORKERS_MAX);
    launched *l = calloc(1, sizeof *l);
    if (!l)
        return cli_fail(error, "out of memory");
    l->job = job;
    make_name(l);
    mgw_status status = prepare(l, error);
    if (!status)
        status = run(l, error);
    *exit_status = l->exit_status;
    release(l);
    return status;
}

mgw_status cli_launch_self(const cli_args *args, unsigned workers, mgw_error *error)
{
    size_t count = 0;
    while (args->argv[count])
        count++;
    char **program = calloc(count + 2, sizeof *program);
    if (!program)
        return cli_fail(error, "out of memory");
    program[0] = "/proc/self/exe";
    memcpy(program + 1, args->argv, count * sizeof *program);
    cli_job job = {.command = args->command->name, .workers = workers, .program = program};
    int exit_status = 0;
    mgw_status status = cli_launch_job(&job, &exit_status, error);
    free(program);
    if (!status && exit_status)
        exit(exit_status); /* the workers have said why */
    return status;
}
