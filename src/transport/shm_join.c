/* How the workers of a job on one host find each other. Rank 0 makes the segment, which never has
 * a name, and hands it to the others over a socket whose name is no file: whenever processes end,
 * and however, nothing is left behind. */
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
#include "base/hash.h"
#include "base/status.h"
#include "transport/shm.h"

/* Of everything that decides where in the segment something is. */
static uint64_t layout_hash(void)
{
    const size_t numbers[] = {sizeof(shm_segment),
                              offsetof(shm_segment, ranks),
                              sizeof(shm_rank),
                              offsetof(shm_rank, presence),
                              offsetof(shm_rank, blamed),
                              offsetof(shm_rank, arrived),
                              offsetof(shm_rank, sleepers),
                              offsetof(shm_rank, doing),
                              offsetof(shm_rank, calls),
                              sizeof(pthread_mutex_t),
                              SHM_SMALL,
                              SHM_STAGE,
                              (size_t)sysconf(_SC_PAGESIZE)};
    return mgw_hash(numbers, sizeof numbers);
}

static const char magic[8] = "mgwfbp2";

static shm_greeting make_greeting(const shm *s)
{
    shm_greeting greeting = {.layout = layout_hash(), .rank = s->rank, .size = s->size};
    memcpy(greeting.magic, magic, sizeof magic);
    snprintf(greeting.version, sizeof greeting.version, "%s", mgw_version());
    return greeting;
}

/* Whether the other worker has the same library; `bytes` have come. */
static mgw_status compare_builds(const shm *s, const shm_greeting *other, size_t bytes,
                                 mgw_error *error)
{
    shm_greeting own = make_greeting(s);
    if (bytes < sizeof own || memcmp(other->magic, magic, sizeof magic) != 0)
        return mgw_fail(error, MGW_ERR_PEER,
                        "shm: a worker with another version of libmgwfbp has come, not %s: all "
                        "need the same",
                        own.version);
    bool same = !memcmp(other->version, own.version, sizeof own.version);
    if (same && other->layout == own.layout)
        return MGW_OK;
    return mgw_fail(error, MGW_ERR_PEER,
                    "shm: rank %u has libmgwfbp %.*s%s, rank %u has %s: all need the same",
                    other->rank, (int)sizeof other->version, other->version,
                    same ? " of another build" : "", own.rank, own.version);
}

static size_t round_up(size_t size, size_t unit)
{
    return (size + unit - 1) / unit * unit;
}

/* Sizes of the parts of the segment, the same on every rank. */
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

static mgw_status fail_errno(const char *what, mgw_error *error)
{
    return mgw_fail(error, MGW_ERR_IO, "shm: cannot %s: %s", what, strerror(errno));
}

/* A name in the abstract namespace, of this user and job. */
static socklen_t make_address(const char *job, struct sockaddr_un *address)
{
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    int length = snprintf(address->sun_path + 1, sizeof address->sun_path - 1, "mgwfbp-%u-%s",
                          (unsigned)getuid(), job);
    if (length > (int)sizeof address->sun_path - 2)
        length = (int)sizeof address->sun_path - 2;
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length);
}

/* ---- The segment ---- */

static mgw_status map_segment(shm *s, mgw_error *error)
{
    s->segment_size = whole_size(s->size);
    void *base = mmap(NULL, s->segment_size, PROT_READ | PROT_WRITE, MAP_SHARED, s->fd, 0);
    if (base == MAP_FAILED)
        return fail_errno("map the segment", error);
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
        return fail_errno("make the segment", error);
    mgw_status status = map_segment(s, error);
    if (status)
        return status;
    s->segment->size = s->size;
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    for (unsigned r = 0; r < s->size; r++)
        pthread_mutex_init(&s->segment->ranks[r].alive, &attributes);
    pthread_mutexattr_destroy(&attributes);
    return shm_appear(s, error);
}

/* ---- Handing it over ---- */

/* Our greeting, and the segment with it; -1: without. */
static bool send_segment(int to, const shm_greeting *greeting, int fd)
{
    shm_greeting copy = *greeting;
    struct iovec data = {&copy, sizeof copy};
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(sizeof(int))];
    } control = {0};
    struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1};
    if (fd >= 0) {
        message.msg_control = control.space;
        message.msg_controllen = sizeof control.space;
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(header), &fd, sizeof fd);
    }
    return sendmsg(to, &message, MSG_NOSIGNAL) == sizeof copy;
}

/* How many bytes of the greeting came; and the segment, or -1. */
static size_t receive_segment(int from, shm_greeting *greeting, int *fd)
{
    struct iovec data = {greeting, sizeof *greeting};
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(sizeof(int))];
    } control = {0};
    struct msghdr message = {.msg_iov = &data,
                             .msg_iovlen = 1,
                             .msg_control = control.space,
                             .msg_controllen = sizeof control.space};
    ssize_t bytes = recvmsg(from, &message, MSG_CMSG_CLOEXEC);
    struct cmsghdr *header = bytes > 0 ? CMSG_FIRSTHDR(&message) : NULL;
    *fd = -1;
    if (header && header->cmsg_type == SCM_RIGHTS)
        memcpy(fd, CMSG_DATA(header), sizeof *fd);
    return bytes > 0 ? (size_t)bytes : 0;
}

/* Whether a socket becomes readable before the deadline. */
static bool wait_readable(int fd, double deadline_s)
{
    for (;;) {
        double left_s = deadline_s - mgw_now_s();
        struct pollfd poll_fd = {.fd = fd, .events = POLLIN};
        int ready = poll(&poll_fd, 1, left_s > 1 ? 1000 : left_s > 0 ? (int)(left_s * 1e3) + 1 : 0);
        if (ready > 0)
            return true;
        if ((ready == 0 && left_s <= 0) || (ready < 0 && errno != EINTR))
            return false;
    }
}

/* Whether the other end belongs to our user: the name of a job is no secret. */
static bool is_ours(int peer)
{
    struct ucred credentials;
    socklen_t length = sizeof credentials;
    return !getsockopt(peer, SOL_SOCKET, SO_PEERCRED, &credentials, &length) &&
           credentials.uid == getuid();
}

/* Takes one rank in; a stranger, or one that says nothing, is sent away. */
static mgw_status greet(shm *s, int peer, bool *present, mgw_error *error)
{
    const shm_greeting own = make_greeting(s);
    shm_greeting hello = {.rank = 0};
    size_t same = strlen("mgwfbp"); /* of all versions' magic */
    if (!is_ours(peer) || !wait_readable(peer, mgw_now_s() + 5))
        return MGW_OK;
    ssize_t bytes = recv(peer, &hello, sizeof hello, 0);
    if (bytes < (ssize_t)same || memcmp(hello.magic, magic, same) != 0)
        return MGW_OK;
    mgw_status status = compare_builds(s, &hello, (size_t)bytes, error);
    bool fits = !status && hello.size == s->size && hello.rank < s->size && !present[hello.rank];
    if (!fits && !send_segment(peer, &own, -1)) /* so that it sees why */
        return fail_errno("answer another rank", error);
    if (status)
        return status;
    if (!fits)
        return mgw_fail(
            error, MGW_ERR_PEER, "shm: rank %u of %u has come, but this is a job of %u%s",
            hello.rank, hello.size, s->size,
            hello.rank < s->size && present[hello.rank] ? " and has that rank already" : "");
    if (!send_segment(peer, &own, s->fd))
        return fail_errno("hand over the segment", error);
    present[hello.rank] = true;
    return MGW_OK;
}

static mgw_status fail_absent(shm *s, const bool *present, mgw_error *error)
{
    unsigned absent = 0;
    while (absent + 1 < s->size && present[absent])
        absent++;
    shm_give_up(s, absent); /* those who are here wait for us, but should not blame us */
    return mgw_fail(error, MGW_ERR_TIMEOUT, "shm: rank %u of %u did not come within %.3g s", absent,
                    s->size, s->timeout_s);
}

static mgw_status take_in_all(shm *s, int listener, double deadline_s, mgw_error *error)
{
    bool *present = calloc(s->size, sizeof *present);
    if (!present)
        return mgw_fail_memory(error, "shm");
    present[0] = true;
    mgw_status status = MGW_OK;
    for (unsigned missing = s->size - 1; !status && missing > 0;) {
        int peer =
            wait_readable(listener, deadline_s) ? accept4(listener, NULL, NULL, SOCK_CLOEXEC) : -1;
        if (peer < 0) {
            status = fail_absent(s, present, error);
            break;
        }
        status = greet(s, peer, present, error);
        close(peer);
        missing = 0;
        for (unsigned r = 0; r < s->size; r++)
            missing += !present[r];
    }
    free(present);
    return status;
}

static mgw_status host(shm *s, const char *job, double deadline_s, mgw_error *error)
{
    mgw_status status = make_segment(s, error);
    if (status || s->size == 1)
        return status;
    struct sockaddr_un address;
    socklen_t length = make_address(job, &address);
    int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (listener < 0 || bind(listener, (struct sockaddr *)&address, length) ||
        listen(listener, (int)s->size)) {
        status =
            errno == EADDRINUSE
                ? mgw_fail(error, MGW_ERR_PEER,
                           "shm: job '%.60s' has a rank 0 already; give each job its own name", job)
                : fail_errno("listen for the other ranks", error);
    } else {
        status = take_in_all(s, listener, deadline_s, error);
    }
    if (listener >= 0)
        close(listener);
    return status;
}

/* Rank 0 may not be listening yet. */
static int connect_until(const char *job, double deadline_s)
{
    struct sockaddr_un address;
    socklen_t length = make_address(job, &address);
    while (mgw_now_s() < deadline_s) {
        int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (fd < 0)
            return -1;
        if (!connect(fd, (struct sockaddr *)&address, length))
            return fd;
        close(fd);
        struct timespec pause = {.tv_nsec = 5 * 1000 * 1000};
        nanosleep(&pause, NULL);
    }
    return -1;
}

static mgw_status visit(shm *s, const char *job, double deadline_s, mgw_error *error)
{
    int fd = connect_until(job, deadline_s);
    if (fd < 0)
        return mgw_fail(error, MGW_ERR_TIMEOUT, "shm: rank 0 did not come within %.3g s",
                        s->timeout_s);
    const shm_greeting hello = make_greeting(s);
    shm_greeting answer = {.rank = 0};
    size_t bytes = 0;
    struct stat info;
    if (is_ours(fd) && send(fd, &hello, sizeof hello, MSG_NOSIGNAL) == sizeof hello &&
        wait_readable(fd, deadline_s))
        bytes = receive_segment(fd, &answer, &s->fd);
    close(fd);
    mgw_status status = bytes ? compare_builds(s, &answer, bytes, error) : MGW_OK;
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
                        "MGWFBP_JOB to the same on every worker");
    double deadline_s = mgw_now_s() + s->timeout_s;
    mgw_status status = s->rank == 0 ? host(s, job ? job : "", deadline_s, error)
                                     : visit(s, job, deadline_s, error);
    if (!status)
        status = shm_meet(s, SHM_JOINING, error);
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
