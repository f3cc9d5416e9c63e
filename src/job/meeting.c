/* The rendezvous of a job's workers: its name and address, in the environment. */
#include "job/meeting.h"

#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <mgwfbp/device.h>

#include "base/status.h"

bool job_is_joined(void)
{
    const char *tasks = getenv("SLURM_STEP_NUM_TASKS"); /* set by srun; 1 in a batch script */
    return getenv("MGWFBP_JOB") || getenv("OMPI_COMM_WORLD_SIZE") || getenv("PMI_SIZE") ||
           getenv("PMIX_RANK") || (tasks && strtoul(tasks, NULL, 10) > 1);
}

void job_say_joined(void)
{
    const char *launcher = getenv("MGWFBP_LAUNCHER");
    long pid = launcher ? strtol(launcher, NULL, 10) : 0;
    if (pid > 1 && pid == getppid())
        kill((pid_t)pid, SIGUSR1);
}

/* A free port below the ephemeral ones, for programs that meet at a port. */
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

/* For several hosts: all must have the same job name. The caller must choose it if two jobs might
 * use the same port. */
static mgw_status take_name(const char *address, job_meeting *m, mgw_error *error)
{
    const char *colon = strrchr(address, ':');
    const char *name = getenv("MGWFBP_JOB");
    char *end = NULL;
    unsigned long port = colon ? strtoul(colon + 1, &end, 10) : 0;
    size_t length = colon ? (size_t)(colon - address) : 0;
    if (!colon || end == colon + 1 || *end || port < 1 || port > 65534 || length < 1 ||
        length >= sizeof m->host)
        return mgw_fail(error, MGW_ERR_ARGUMENT,
                        "--address: '%.100s' is not HOST:PORT of the first host, with a port from "
                        "1 to 65534",
                        address);
    bool bracketed = length > 2 && address[0] == '[' && colon[-1] == ']';
    snprintf(m->host, sizeof m->host, "%.*s", (int)(bracketed ? length - 2 : length),
             bracketed ? address + 1 : address);
    snprintf(m->name, sizeof m->name, "%.280s", name ? name : address);
    m->port = (unsigned)port;
    return MGW_OK;
}

static void make_name(job_meeting *m)
{
    snprintf(m->host, sizeof m->host, "127.0.0.1");
    unsigned char bytes[12] = {0};
    if (getrandom(bytes, sizeof bytes, 0) != sizeof bytes)
        memcpy(bytes, &(unsigned long){(unsigned long)getpid()}, sizeof(unsigned long));
    for (size_t i = 0; i < sizeof bytes; i++)
        sprintf(m->name + 2 * i, "%02x", bytes[i]);
    m->port = find_port((unsigned)bytes[0] * 256 + bytes[1]);
}

mgw_status job_meeting_make(const job_options *job, job_meeting *out, mgw_error *error)
{
    *out = (job_meeting){.port = 0};
    if (job->nodes > 1)
        return take_name(job->address, out, error);
    make_name(out);
    return MGW_OK;
}

/* Sets a variable; returns whether that worked. */
static bool set(const char *name, const char *value)
{
    return !setenv(name, value, 1);
}

static bool set_number(const char *name, unsigned value)
{
    char text[16];
    snprintf(text, sizeof text, "%u", value);
    return set(name, text);
}

/* Unless it is set. */
static bool suggest_number(const char *name, unsigned value)
{
    return getenv(name) || value == 0 || set_number(name, value);
}

static long allowed_cores(void)
{
    cpu_set_t cores;
    return sched_getaffinity(0, sizeof cores, &cores) ? sysconf(_SC_NPROCESSORS_ONLN)
                                                      : CPU_COUNT(&cores);
}

bool job_meeting_tell(const job_meeting *m, const job_options *job, unsigned local,
                      unsigned restart)
{
    unsigned nodes = job->nodes ? job->nodes : 1;
    unsigned rank = job->node * job->workers + local;
    long threads = allowed_cores() / (long)job->workers;
    unsetenv("MGWFBP_LAUNCHER");
    return set("MGWFBP_JOB", m->name) &&
           (!job->transport || set("MGWFBP_TRANSPORT", job->transport)) &&
           set_number("MGWFBP_RANK", rank) && set_number("MGWFBP_SIZE", nodes * job->workers) &&
           set_number("MGWFBP_RESTART", restart) &&
           (!job->reforms || !job->least || set_number("MGWFBP_LAUNCHER", (unsigned)getppid())) &&
           set_number("RANK", rank) && set_number("LOCAL_RANK", local) &&
           set_number("WORLD_SIZE", nodes * job->workers) &&
           set_number("LOCAL_WORLD_SIZE", job->workers) && set("MASTER_ADDR", m->host) &&
           set_number("MASTER_PORT", m->port) && !setenv("OMPI_MCA_mpi_yield_when_idle", "1", 0) &&
           suggest_number("CUDA_DEVICE_MAX_CONNECTIONS", mgw_device_queues(job->workers)) &&
           suggest_number("OMP_NUM_THREADS", threads > 1 ? (unsigned)threads : 1);
}
