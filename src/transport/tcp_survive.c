/* After a failure: a rank finds the hub, or who takes its place, and hears whether it goes on. */
#include <errno.h>
#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#include "base/clock.h"
#include "base/status.h"
#include "transport/tcp_rank.h"

/* Who is alive and has not come by then is left behind. */
static const double coming_s = 30;
static const double knocking_s = 3; /* for a connection to stand */
static const double parting_s = 1;

double tcp_coming_s(const tcp *t)
{
    return fmin(t->timeout_s, coming_s);
}

double tcp_joining_s(const tcp *t)
{
    return fmin(fmax(t->timeout_s, 2), 10);
}

int tcp_rank_listen(const tcp *t, uint16_t *port)
{
    return tcp_place_listen(&t->here, t->anywhere, port);
}

/* Until the hub hangs up: what was not read would take this back. */
void tcp_rank_leave(tcp *t, bool away)
{
    const tcp_header leave = {.kind = TCP_LEFT, .rank = t->rank, .number = away};
    double deadline_s = mgw_awake_s() + parting_s;
    if (t->fd < 0)
        return;
    tcp_rank_send(t, &leave, NULL, deadline_s);
    shutdown(t->fd, SHUT_WR);
    while (tcp_rank_next(t, (tcp_awaited){0}) ||
           (!t->cut && tcp_wait(t->fd, POLLIN, deadline_s) && mgw_awake_s() < deadline_s))
        continue;
    tcp_drop(t->fd);
    t->fd = -1;
}

typedef struct search {
    tcp *t;
    double begun_s;
    double most_s;         /* for ranks to come, */
    double deciding_s;     /*   and for the hub to say who goes on; then it hangs itself */
    uint16_t port;         /* where this rank listens, should it be the first */
    unsigned char *passed; /* by rank: it has died, or does not answer */
    bool out_of_touch;     /* of a hub nothing was heard any more */
} search;

/* ---- A hub ---- */

typedef enum tried { IS_IN, IS_DEAD, IS_SILENT } tried;

/* Its host refuses connections if the process has ended, and takes them if it is only busy. */
static tried try_rank(search *s, unsigned rank)
{
    tcp *t = s->t;
    double deadline_s = fmax(s->begun_s + s->most_s, mgw_awake_s()) + s->deciding_s;
    mgw_error why = {0};
    while (t->havens[rank].family && mgw_awake_s() < deadline_s) {
        int code = 0;
        socklen_t length = sizeof code;
        int fd = tcp_place_connect(&t->havens[rank], &code);
        if (fd >= 0 && !tcp_wait(fd, POLLOUT, fmin(deadline_s, mgw_awake_s() + knocking_s)))
            code = ETIMEDOUT;
        else if (fd >= 0)
            getsockopt(fd, SOL_SOCKET, SO_ERROR, &code, &length);
        if (fd >= 0 && !code && tcp_knock(&t->party, fd, deadline_s, &why) == TCP_IN) {
            t->fd = fd;
            return IS_IN;
        }
        tcp_drop(fd);
        if (code == ECONNREFUSED)
            return IS_DEAD;
        nanosleep(&(struct timespec){.tv_nsec = 50 * 1000 * 1000}, NULL);
    }
    return IS_SILENT;
}

static mgw_status be_hub(search *s, mgw_error *error)
{
    tcp *t = s->t;
    const tcp_footing footing = {.listener = -1,
                                 .haven = t->haven,
                                 .havens = t->havens,
                                 .coming_s = s->most_s,
                                 .joining_s = tcp_joining_s(t),
                                 .out_of_touch = s->out_of_touch};
    if (t->hub)
        return mgw_fail(error, MGW_ERR_PEER, "tcp: rank %u has lost its own hub", t->rank);
    t->hub_rank = t->rank;
    return tcp_hub_start(&t->party, &footing, &t->hub, &t->fd, error);
}

/* The lowest rank that is there. */
static mgw_status find_hub(search *s, mgw_error *error)
{
    tcp *t = s->t;
    /* Who has not looked for long may have missed that the others went on, and ended. */
    s->out_of_touch |= t->cut && (t->is_silence || mgw_now_s() - t->heard_s > s->most_s);
    if (t->fd >= 0)
        tcp_drop(t->fd);
    t->fd = -1;
    t->cut = t->is_silence = false;
    t->head_got = 0;
    for (unsigned r = 0; r < t->rank; r++) {
        if (s->passed[r])
            continue;
        tried came = try_rank(s, r);
        t->hub_rank = r;
        if (came == IS_IN)
            return MGW_OK;
        s->passed[r] = 1;
    }
    return be_hub(s, error);
}

/* ---- What it says ---- */

static unsigned count_members(const tcp *t, unsigned end)
{
    unsigned count = 0;
    for (unsigned r = 0; r < end; r++)
        count += t->text[r / 8] >> r % 8 & 1;
    return count;
}

/* Whether it was a decision. */
static mgw_status take_word(tcp *t, mgw_survivors *out, bool *over, mgw_error *error)
{
    tcp_rank_hear(t);
    if (t->stays[0])
        return mgw_fail(error, MGW_ERR_PEER, "tcp: %s", t->stays);
    const tcp_header *h = &t->header;
    if (h->kind != TCP_MEMBERS || h->bytes != (t->size + 7) / 8 || h->rank >= t->size)
        return MGW_OK;
    tcp_place first = t->havens[h->rank];
    first.port = (uint16_t)h->number;
    *out = (mgw_survivors){.rank = count_members(t, t->rank),
                           .size = count_members(t, t->size),
                           .round = t->hub_rank << 8 | (unsigned)(h->call & 255),
                           .join_s = tcp_joining_s(t)};
    tcp_place_name(&first, out->address, sizeof out->address);
    *over = true;
    return MGW_OK;
}

/* Not over, and no failure: the hub is gone, or does not answer. */
static mgw_status ask(search *s, mgw_survivors *out, bool *over, mgw_error *error)
{
    tcp *t = s->t;
    const tcp_header come = {.kind = TCP_COME, .rank = t->rank, .number = s->port};
    double deadline_s = mgw_awake_s() + s->most_s + tcp_joining_s(t) + s->deciding_s;
    mgw_status status = MGW_OK;
    while (!status && !*over && tcp_rank_next(t, (tcp_awaited){0})) /* what was said before */
        status = take_word(t, out, over, error);
    *over = false;
    if (status || t->cut)
        return status;
    tcp_rank_send(t, &come, NULL, mgw_awake_s() + parting_s);
    while (!status && !*over && !t->cut) {
        if (tcp_rank_next(t, (tcp_awaited){0}))
            status = take_word(t, out, over, error);
        else if (!t->cut && !tcp_wait(t->fd, POLLIN, deadline_s))
            break;
    }
    if (!status && !*over && !t->cut) { /* it hangs: should it come back, it goes on without us */
        s->passed[t->hub_rank] = 1;
        tcp_rank_leave(t, true);
    }
    return status;
}

static mgw_status find_others(search *s, mgw_survivors *out, mgw_error *error)
{
    bool over = false;
    mgw_status status = MGW_OK;
    double most_s = 4 * (s->most_s + tcp_joining_s(s->t) + s->deciding_s);
    while (!status && !over) {
        if (mgw_awake_s() - s->begun_s > most_s)
            return mgw_fail(error, MGW_ERR_TIMEOUT,
                            "tcp: within %.3g s nobody said who goes on; rank %u was the last to "
                            "be asked",
                            most_s, s->t->hub_rank);
        if (s->t->fd < 0 || s->t->cut)
            status = find_hub(s, error);
        if (!status)
            status = ask(s, out, &over, error);
    }
    return status;
}

mgw_status tcp_survive(void *state, unsigned round, mgw_survivors *out, mgw_error *error)
{
    tcp *t = state;
    search s = {.t = t, .begun_s = mgw_awake_s(), .most_s = tcp_coming_s(t)};
    s.deciding_s = fmin(1 + s.most_s, 5);
    *out = (mgw_survivors){.size = 1, .round = round, .join_s = tcp_joining_s(t)};
    if (t->size == 1)
        return MGW_OK;
    if (t->stays[0])
        return mgw_fail(error, MGW_ERR_PEER, "tcp: %s", t->stays);
    if (!t->failed)
        tcp_rank_give_up(t, t->rank);
    int listener = tcp_rank_listen(t, &s.port);
    if (listener < 0)
        return mgw_fail(error, MGW_ERR_IO, "tcp: no port is left to listen at");
    s.passed = calloc(t->size, 1);
    mgw_status status = s.passed ? find_others(&s, out, error) : mgw_fail_memory(error, "tcp");
    free(s.passed);
    if (!status && out->rank == 0)
        snprintf(out->address, sizeof out->address, "fd:%d", listener);
    else
        tcp_drop(listener);
    t->gone_on |= !status;
    return status;
}
