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
#include "base/status.h"
#include "job/output.h"

/* Seconds: until the others are asked to end after a failure, and until they must. */
static const double grace_s = 2;
static const double patience_s = 7;

typedef struct launched {
    const job_options *job;
    char name[300];
    char host[256]; /* where rank 0 is, */
    unsigned port;  /*   for programs that meet there */
    pid_t pids[JOB_WORKERS_MAX];
    job_output output;
    unsigned running;
    int exit_status;
    double failed_s;     /* when the first failed, or 0 */
    int signals;         /* a signalfd */
    sigset_t outer_mask; /* how it was before us, for the workers */
    void (*outer_pipe)(int);
    void (*outer_child)(int);
} launched;

bool job_is_joined(void)
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
static void set_environment(const launched *l, unsigned local)
{
    unsigned nodes = l->job->nodes ? l->job->nodes : 1;
    unsigned rank = l->output.first + local;
    setenv("MGWFBP_JOB", l->name, 1);
    if (l->job->transport)
        setenv("MGWFBP_TRANSPORT", l->job->transport, 1);
    set_number("MGWFBP_RANK", rank);
    set_number("MGWFBP_SIZE", nodes * l->job->workers);
    set_number("RANK", rank);
    set_number("LOCAL_RANK", local);
    set_number("WORLD_SIZE", nodes * l->job->workers);
    set_number("LOCAL_WORLD_SIZE", l->job->workers);
    setenv("MASTER_ADDR", l->host, 1);
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

static mgw_status start_worker(launched *l, unsigned rank, mgw_error *error)
{
    int out[2];
    int err[2];
    if (pipe2(out, O_CLOEXEC) || pipe2(err, O_CLOEXEC))
        return mgw_fail(error, MGW_ERR_IO, "cannot make a pipe: %s", strerror(errno));
    pid_t parent = getpid();
    pid_t pid = fork();
    if (pid == 0)
        become(l, rank, parent, out, err);
    close(out[1]);
    close(err[1]);
    job_output_open(&l->output, rank, out[0], err[0]);
    if (pid < 0)
        return mgw_fail(error, MGW_ERR_IO, "cannot start worker %u: %s", rank, strerror(errno));
    l->pids[rank] = pid;
    l->running++;
    return MGW_OK;
}

/* ---- Endings ---- */

static void signal_all(const launched *l, int signal_number)
{
    for (unsigned r = 0; r < l->job->workers; r++)
        if (l->pids[r] > 0)
            kill(l->pids[r], signal_number);
}

static void note_end(launched *l, unsigned local, int status)
{
    unsigned rank = l->output.first + local;
    l->pids[local] = 0;
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
    struct pollfd polls[1 + JOB_STREAMS_MAX];
    unsigned index[JOB_STREAMS_MAX];
    polls[0] = (struct pollfd){.fd = l->signals, .events = POLLIN};
    nfds_t count = job_output_poll(&l->output, polls + 1, index);
    if (l->running == 0 && count == 0)
        return false;
    int ready = poll(polls, 1 + count, 200);
    for (nfds_t i = 0; ready > 0 && i < count; i++)
        if (polls[1 + i].revents)
            job_output_read(&l->output, index[i]);
    if (ready > 0 && polls[0].revents) /* behind what those who have ended had to say */
        handle_signal(l);
    press(l, asked);
    /* A grandchild may hold a pipe open for ever: with the workers gone, silence is the end. */
    return l->running > 0 || ready > 0;
}

/* Of several hosts: the name is the same on all of them, and is the caller's to choose, if two jobs
 * may come to meet at one port. */
static mgw_status take_name(launched *l, mgw_error *error)
{
    const char *address = l->job->address;
    const char *colon = strrchr(address, ':');
    const char *name = getenv("MGWFBP_JOB");
    char *end = NULL;
    unsigned long port = colon ? strtoul(colon + 1, &end, 10) : 0;
    size_t length = colon ? (size_t)(colon - address) : 0;
    if (!colon || end == colon + 1 || *end || port < 1 || port > 65534 || length < 1 ||
        length >= sizeof l->host)
        return mgw_fail(error, MGW_ERR_ARGUMENT,
                        "--address: '%.100s' is not HOST:PORT of the first host, with a port from "
                        "1 to 65534",
                        address);
    bool bracketed = length > 2 && address[0] == '[' && colon[-1] == ']';
    snprintf(l->host, sizeof l->host, "%.*s", (int)(bracketed ? length - 2 : length),
             bracketed ? address + 1 : address);
    snprintf(l->name, sizeof l->name, "%.280s", name ? name : address);
    l->port = (unsigned)port;
    return MGW_OK;
}

static void make_name(launched *l)
{
    snprintf(l->host, sizeof l->host, "127.0.0.1");
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
        return mgw_fail(error, MGW_ERR_IO, "signalfd: %s", strerror(errno));
    mgw_status status = job_output_init(&l->output, l->job->workers, l->job->prefix, error);
    l->output.first = l->job->node * l->job->workers;
    return status;
}

static void release(launched *l)
{
    if (l->signals >= 0)
        close(l->signals);
    sigprocmask(SIG_SETMASK, &l->outer_mask, NULL);
    signal(SIGPIPE, l->outer_pipe);
    signal(SIGCHLD, l->outer_child);
    job_output_fini(&l->output);
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
    int lost = job_output_lost(&l->output);
    if (!status && !l->exit_status && lost)
        status = mgw_fail(error, MGW_ERR_IO, "standard output: %s", strerror(lost));
    return status;
}

mgw_status job_launch(const job_options *job, int *exit_status, mgw_error *error)
{
    if (job->workers < 1 || job->workers > JOB_WORKERS_MAX)
        return mgw_fail(error, MGW_ERR_ARGUMENT, "-n: between 1 and %d workers", JOB_WORKERS_MAX);
    launched *l = calloc(1, sizeof *l);
    if (!l)
        return mgw_fail_memory(error, "launcher");
    l->job = job;
    mgw_status status = MGW_OK;
    if (job->nodes > 1)
        status = take_name(l, error);
    else
        make_name(l);
    if (status) {
        free(l);
        return status;
    }
    status = prepare(l, error);
    if (!status)
        status = run(l, error);
    *exit_status = l->exit_status;
    release(l);
    return status;
}

mgw_status job_launch_self(char **argv, unsigned workers, int *exit_status, mgw_error *error)
{
    size_t count = 0;
    while (argv[count])
        count++;
    char **program = calloc(count + 2, sizeof *program);
    if (!program)
        return mgw_fail_memory(error, "launcher");
    program[0] = "/proc/self/exe";
    memcpy(program + 1, argv, count * sizeof *program);
    job_options job = {.command = argv[0], .workers = workers, .program = program};
    mgw_status status = job_launch(&job, exit_status, error);
    free(program);
    return status;
}
