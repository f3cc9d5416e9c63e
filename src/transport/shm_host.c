/* How rank 0 admits the others. Anybody can connect while it listens: silent connections delay
 * nobody. */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/status.h"
#include "transport/shm.h"

enum { VISITORS = 2 * SHM_RANKS_MAX };

/*
 * Connections that have not identified themselves, in order of arrival; the first is the listener.
 */
typedef struct door {
    struct pollfd all[1 + VISITORS];
    size_t count;
    bool present[SHM_RANKS_MAX];
    unsigned missing;
} door;

static void send_away(door *d, size_t which)
{
    close(d->all[which].fd);
    d->count--;
    memmove(&d->all[which], &d->all[which + 1], (d->count - which) * sizeof *d->all);
}

/* Admits a rank that has sent its greeting; a stranger gets no answer. */
static mgw_status greet(shm *s, int peer, door *d, mgw_error *error)
{
    const shm_greeting own = shm_greeting_make(s);
    shm_greeting hello = {.rank = 0};
    size_t same = strlen("mgwfbp"); /* common to all versions */
    ssize_t bytes = TEMP_FAILURE_RETRY(recv(peer, &hello, sizeof hello, MSG_DONTWAIT));
    if (bytes < (ssize_t)same || memcmp(hello.magic, own.magic, same) != 0)
        return MGW_OK;
    mgw_status status = shm_greeting_compare(s, &hello, (size_t)bytes, error);
    bool fits = !status && hello.size == s->size && hello.rank < s->size && !d->present[hello.rank];
    if (!fits && !shm_greeting_send(peer, &own, -1)) /* so that it can report the reason */
        return shm_fail("answer another rank", error);
    if (status)
        return status;
    if (!fits)
        return mgw_fail(
            error, MGW_ERR_PEER, "shm: rank %u of %u has come, but this is a job of %u%s",
            hello.rank, hello.size, s->size,
            hello.rank < s->size && d->present[hello.rank] ? " and has that rank already" : "");
    if (!shm_greeting_send(peer, &own, s->fd))
        return shm_fail("hand over the segment", error);
    d->present[hello.rank] = true;
    d->missing--;
    return MGW_OK;
}

/* If all slots are taken, the connection that has been silent for longest is closed. */
static mgw_status let_in(door *d, mgw_error *error)
{
    int peer = accept4(d->all[0].fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (peer < 0)
        return errno == EAGAIN || errno == EINTR || errno == ECONNABORTED
                   ? MGW_OK
                   : shm_fail("take another rank in", error);
    if (!shm_is_ours(peer)) {
        close(peer);
        return MGW_OK;
    }
    if (d->count > VISITORS)
        send_away(d, 1);
    d->all[d->count++] = (struct pollfd){.fd = peer, .events = POLLIN};
    return MGW_OK;
}

static mgw_status fail_absent(shm *s, const door *d, mgw_error *error)
{
    unsigned absent = 0;
    while (absent + 1 < s->size && d->present[absent])
        absent++;
    shm_give_up(s, absent); /* ranks that have joined wait for us, but should not blame us */
    return mgw_fail(error, MGW_ERR_TIMEOUT, "shm: rank %u of %u did not come within %.3g s", absent,
                    s->size, s->timeout_s);
}

static mgw_status take_in_all(shm *s, door *d, double deadline_s, mgw_error *error)
{
    mgw_status status = MGW_OK;
    while (!status && d->missing > 0) {
        double left_s = deadline_s - mgw_awake_s();
        if (left_s <= 0)
            return fail_absent(s, d, error);
        int ready = poll(d->all, d->count, left_s > 1 ? 1000 : (int)(left_s * 1e3) + 1);
        if (ready < 0 && errno != EINTR)
            return shm_fail("wait for the other ranks", error);
        if (ready <= 0)
            continue;
        for (size_t i = d->count - 1; !status && i > 0; i--)
            if (d->all[i].revents) {
                status = greet(s, d->all[i].fd, d, error);
                send_away(d, i);
            }
        if (!status && d->all[0].revents)
            status = let_in(d, error);
    }
    return status;
}

mgw_status shm_host(shm *s, const char *job, double deadline_s, mgw_error *error)
{
    struct sockaddr_un address;
    socklen_t length = 0;
    mgw_status status = shm_address_make(job, &address, &length, error);
    if (status)
        return status;
    door d = {.count = 1, .present = {true}, .missing = s->size - 1};
    int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    d.all[0] = (struct pollfd){.fd = listener, .events = POLLIN};
    if (listener < 0 || bind(listener, (struct sockaddr *)&address, length) ||
        listen(listener, (int)s->size))
        status =
            listener >= 0 && errno == EADDRINUSE
                ? mgw_fail(error, MGW_ERR_PEER,
                           "shm: job '%.60s' has a rank 0 already; give each job its own name", job)
                : shm_fail("listen for the other ranks", error);
    else
        status = take_in_all(s, &d, deadline_s, error);
    while (d.count > 1)
        send_away(&d, 1);
    if (listener >= 0)
        close(listener);
    return status;
}
