/* How the workers of a job on one host find each other. Rank 0 creates the segment, which never has
 * a name, and passes it to the others over a socket in the abstract namespace: however processes
 * end, nothing is left behind. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/status.h"
#include "transport/shm.h"

static size_t round_up(size_t size, size_t unit)
{
    return (size + unit - 1) / unit * unit;
}

/* Sizes of the segment's parts, the same on every rank. */
static size_t head_size(unsigned size)
{
    return round_up(sizeof(shm_segment) + size * sizeof(shm_rank), (size_t)sysconf(_SC_PAGESIZE));
}

static size_t slots_size(unsigned size)
{
    return round_up((size_t)2 * size * SHM_SMALL, (size_t)sysconf(_SC_PAGESIZE));
}

static size_t whole_size(unsigned size)
{
    return head_size(size) + slots_size(size) + (size_t)size * SHM_STAGE;
}

/* ---- The segment ---- */

static mgw_status map_segment(shm *s, mgw_error *error)
{
    s->segment_size = whole_size(s->size);
    void *base = mmap(NULL, s->segment_size, PROT_READ | PROT_WRITE, MAP_SHARED, s->fd, 0);
    if (base == MAP_FAILED)
        return shm_fail("map the segment", error);
    s->segment = base;
    s->slots = (char *)base + head_size(s->size);
    s->stages = s->slots + slots_size(s->size);
    s->file_size = s->segment_size;
    return MGW_OK;
}

static mgw_status make_segment(shm *s, mgw_error *error)
{
    s->fd = memfd_create("mgwfbp", MFD_CLOEXEC);
    if (s->fd < 0 || fchmod(s->fd, 0600) || ftruncate(s->fd, (off_t)whole_size(s->size)))
        return shm_fail("make the segment", error);
    mgw_status status = map_segment(s, error);
    if (status)
        return status;
    s->segment->size = s->size;
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    int code = 0;
    for (unsigned r = 0; !code && r < s->size; r++)
        code = pthread_mutex_init(&s->segment->ranks[r].alive, &attributes);
    pthread_mutexattr_destroy(&attributes);
    errno = code;
    return code ? shm_fail("make a mutex of the segment", error) : shm_appear(s, error);
}

/* ---- A visit to rank 0 ---- */

/* Whether a socket becomes readable before the deadline. */
static bool wait_readable(int fd, double deadline_s)
{
    for (;;) {
        double left_s = deadline_s - mgw_awake_s();
        struct pollfd poll_fd = {.fd = fd, .events = POLLIN};
        int ready = poll(&poll_fd, 1, left_s > 1 ? 1000 : left_s > 0 ? (int)(left_s * 1e3) + 1 : 0);
        if (ready > 0)
            return true;
        if ((ready == 0 && left_s <= 0) || (ready < 0 && errno != EINTR))
            return false;
    }
}

/*
 * Rank 0 may not be listening yet, or its backlog may be full. The connect does not block on that,
 * because the system has no bound for it.
 */
static mgw_status connect_until(const shm *s, const char *job, double deadline_s, int *out,
                                mgw_error *error)
{
    struct sockaddr_un address;
    socklen_t length = 0;
    mgw_status status = shm_address_make(job, &address, &length, error);
    while (!status && mgw_awake_s() < deadline_s) {
        int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (fd < 0)
            return shm_fail("make a socket", error);
        if (!connect(fd, (struct sockaddr *)&address, length)) {
            *out = fd;
            return MGW_OK;
        }
        close(fd);
        nanosleep(&(struct timespec){.tv_nsec = 5 * 1000 * 1000}, NULL);
    }
    return status ? status
                  : mgw_fail(error, MGW_ERR_TIMEOUT, "shm: rank 0 did not come within %.3g s",
                             s->timeout_s);
}

static mgw_status visit(shm *s, const char *job, double deadline_s, mgw_error *error)
{
    int fd = -1;
    mgw_status status = connect_until(s, job, deadline_s, &fd, error);
    if (status)
        return status;
    const shm_greeting hello = shm_greeting_make(s);
    shm_greeting answer = {.rank = 0};
    size_t bytes = 0;
    struct stat info;
    if (shm_is_ours(fd) && shm_greeting_send(fd, &hello, -1) && wait_readable(fd, deadline_s))
        bytes = shm_greeting_receive(fd, &answer, &s->fd);
    close(fd);
    status = bytes ? shm_greeting_compare(s, &answer, bytes, error) : MGW_OK;
    if (status)
        return status;
    if (s->fd < 0 || fstat(s->fd, &info) || info.st_size < (off_t)whole_size(s->size))
        return mgw_fail(error, MGW_ERR_PEER,
                        "shm: rank 0 did not take rank %u of %u in (it has failed, expects another "
                        "number of workers, or has another version of libmgwfbp than %s)",
                        s->rank, s->size, hello.version);
    status = map_segment(s, error);
    return status ? status : shm_appear(s, error);
}

mgw_status shm_join(const mgw_transport_setup *setup, shm *s, mgw_error *error)
{
    const mgw_transport_options *options = &setup->options;
    *s = (shm){.rank = options->rank,
               .size = options->size,
               .timeout_s = setup->join_s,
               .fd = -1,
               .spin = (long)options->size <= sysconf(_SC_NPROCESSORS_ONLN)};
    const char *job = options->job;
    if (!job && s->size > 1)
        return mgw_fail(error, MGW_ERR_ARGUMENT,
                        "shm: the job has no name; start it with 'mgwfbp launch', or set "
                        "MGWFBP_JOB to the same name on every worker");
    double deadline_s = mgw_awake_s() + s->timeout_s;
    mgw_status status = s->rank == 0 ? make_segment(s, error) : visit(s, job, deadline_s, error);
    if (!status && s->rank == 0 && s->size > 1)
        status = shm_host(s, job, deadline_s, error);
    if (!status)
        status = shm_meet(s, mgw_word_make(MGW_WORD_JOINING, THROUGH_SLOTS, 0), error);
    s->timeout_s = options->timeout_s;
    return status;
}

void shm_leave(shm *s)
{
    for (shm_region *region = s->regions, *next = NULL; region; region = next) {
        next = region->next;
        munmap(region->base, region->mapped);
        free(region);
    }
    shm_disappear(s);
    if (s->segment)
        munmap(s->segment, s->segment_size);
    if (s->fd >= 0)
        close(s->fd);
}
