/* The first messages between ranks on one host, and the checks of these. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/status.h"
#include "transport/shm.h"

mgw_status shm_fail(const char *what, mgw_error *error)
{
    return mgw_fail(error, MGW_ERR_IO, "shm: cannot %s: %s", what, strerror(errno));
}

mgw_status shm_address_make(const char *job, struct sockaddr_un *address, socklen_t *length,
                            mgw_error *error)
{
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    size_t room = sizeof address->sun_path - 1;
    int bytes = snprintf(address->sun_path + 1, room, "mgwfbp-%u-%s", (unsigned)getuid(), job);
    if (bytes < 0 || (size_t)bytes >= room) /* truncated names could make two jobs one */
        return mgw_fail(error, MGW_ERR_ARGUMENT,
                        "shm: the name of the job is %zu bytes too long: '%.60s…'",
                        (size_t)bytes - room + 1, job);
    *length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)bytes);
    return MGW_OK;
}

/* A hash of everything that determines the segment's layout. */
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
                              offsetof(shm_rank, wants),
                              offsetof(shm_segment, members),
                              sizeof(mgw_word),
                              SHM_ROUNDS,
                              sizeof(pthread_mutex_t),
                              SHM_SMALL,
                              SHM_STAGE,
                              (size_t)sysconf(_SC_PAGESIZE)};
    return mgw_hash(numbers, sizeof numbers);
}

static const char magic[8] = "mgwfbp3";

shm_greeting shm_greeting_make(const shm *s)
{
    shm_greeting greeting = {.layout = layout_hash(), .rank = s->rank, .size = s->size};
    memcpy(greeting.magic, magic, sizeof magic);
    snprintf(greeting.version, sizeof greeting.version, "%s", mgw_version());
    return greeting;
}

mgw_status shm_greeting_compare(const shm *s, const shm_greeting *other, size_t bytes,
                                mgw_error *error)
{
    shm_greeting own = shm_greeting_make(s);
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

bool shm_greeting_send(int to, const shm_greeting *greeting, int fd)
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
    return TEMP_FAILURE_RETRY(sendmsg(to, &message, MSG_NOSIGNAL)) == sizeof copy;
}

size_t shm_greeting_receive(int from, shm_greeting *greeting, int *fd)
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
    ssize_t bytes = TEMP_FAILURE_RETRY(recvmsg(from, &message, MSG_CMSG_CLOEXEC));
    struct cmsghdr *header = bytes > 0 ? CMSG_FIRSTHDR(&message) : NULL;
    *fd = -1;
    if (header && header->cmsg_type == SCM_RIGHTS)
        memcpy(fd, CMSG_DATA(header), sizeof *fd);
    return bytes > 0 ? (size_t)bytes : 0;
}

bool shm_is_ours(int peer)
{
    struct ucred credentials;
    socklen_t length = sizeof credentials;
    return !getsockopt(peer, SOL_SOCKET, SO_PEERCRED, &credentials, &length) &&
           credentials.uid == getuid();
}
