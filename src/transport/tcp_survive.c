/* After a failure: a rank finds the hub or its replacement, and learns whether it continues. */
#include <errno.h>
#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/status.h"
#include "transport/tcp_rank.h"

/* A rank that is alive and has not come by then is left behind. */
static const double coming_s = 30;
static const double knocking_s = 3; /* for a connection to be established */
static const double first_pause_s = 0.05;
static const double last_pause_s = 0.4;
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

/* Waits until the hub closes the connection: closing with unread input would discard this frame. */
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

enum { AT_ONCE = 16 }; /* ranks that are tried in parallel */

typedef struct search {
    tcp *t;
    double begun_s;
    double asked_s;        /* when the last search for a hub began */
    double most_s;         /* for ranks to come, */
    double deciding_s;     /* and for the hub to decide; after that the hub itself hangs */
    uint16_t port;         /* where this rank listens if it becomes the first */
    unsigned char *passed; /* by rank: it has died, or does not answer */
    bool out_of_touch;     /* a hub went silent */
} search;

/* ---- Finding a hub ---- */

/* An attempt to reach a lower rank. */
typedef struct knock {
    unsigned rank;
    int fd;          /* -1: none, until next_s */
    bool greeted;    /* connected and greeted: the next input is the answer */
    double next_s;   /* deadline for the connection; or the time of the next attempt, */
    double pause_s;  /* this long after the last one */
    double alive_s;  /* when it last showed that it is alive */
    tcp_visit visit; /* valid once greeted */
} knock;

typedef enum tried { IS_TRIED, IS_IN, IS_PASSED } tried;

/*
 * When a silent rank is passed over. A rank that is alive is waited for, within a limit: an
 * unrelated program may be closing connections at its port.
 */
static double silent_at(const search *s, const knock *k)
{
    double least_s = fmax(s->begun_s + s->most_s, s->asked_s);
    double most_s = least_s + s->most_s + s->deciding_s;
    return fmin(fmax(k->alive_s, least_s), most_s) + s->deciding_s;
}

/*
 * The rank's host refuses connections if the process has ended, and accepts them if it is only
 * busy.
 */
static tried end_knock(knock *k, int code)
{
    tcp_drop(k->fd);
    k->fd = -1;
    k->pause_s = fmin(fmax(2 * k->pause_s, first_pause_s), last_pause_s);
    k->next_s = mgw_awake_s() + k->pause_s;
    return code == ECONNREFUSED ? IS_PASSED : IS_TRIED;
}

/* A rank that is itself looking for a hub closes the connection. */
static tried hear_answer(search *s, knock *k)
{
    mgw_error why = {0};
    tcp_outcome came = tcp_visit_end(&k->visit, mgw_awake_s() + knocking_s, &why);
    if (came == TCP_AGAIN)
        k->alive_s = mgw_awake_s();
    if (came != TCP_IN)
        return end_knock(k, 0);
    s->t->fd = k->fd;
    s->t->hub_rank = k->rank;
    k->fd = -1;
    return IS_IN;
}

static tried try_rank(search *s, knock *k)
{
    const tcp_place *place = &s->t->havens[k->rank];
    double now_s = mgw_awake_s();
    mgw_error why = {0};
    int code = 0;
    socklen_t length = sizeof code;
    if (!place->family || now_s >= silent_at(s, k))
        return IS_PASSED;
    if (k->fd < 0 && now_s < k->next_s)
        return IS_TRIED;
    if (k->fd < 0) {
        k->fd = tcp_place_connect(place, &code);
        k->greeted = false;
        k->next_s = now_s + knocking_s;
    }
    if (k->fd < 0)
        return end_knock(k, code);
    if (!tcp_wait(k->fd, k->greeted ? POLLIN : POLLOUT, 0))
        return k->greeted || now_s < k->next_s ? IS_TRIED : end_knock(k, ETIMEDOUT);
    if (k->greeted)
        return hear_answer(s, k);
    getsockopt(k->fd, SOL_SOCKET, SO_ERROR, &code, &length);
    k->greeted = !code && tcp_visit_begin(&s->t->party, k->fd, now_s + knocking_s, &k->visit,
                                          &why) == TCP_IN;
    return k->greeted ? IS_TRIED : end_knock(k, code);
}

/*
 * A higher rank that connects here would take this rank for silent. Closing the connection shows
 * that this rank is alive and not a hub.
 */
static void hang_up(const tcp *t)
{
    int fd = accept4(t->haven, NULL, NULL, SOCK_CLOEXEC);
    if (fd >= 0)
        close(fd);
    else if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED)
        nanosleep(&(struct timespec){.tv_nsec = 10 * 1000 * 1000}, NULL); /* out of descriptors */
}

static void await_any(const search *s, const knock *knocks, size_t count)
{
    struct pollfd polls[AT_ONCE + 1];
    for (size_t i = 0; i < count; i++)
        polls[i] =
            (struct pollfd){.fd = knocks[i].fd, .events = knocks[i].greeted ? POLLIN : POLLOUT};
    polls[count] = (struct pollfd){.fd = s->t->haven, .events = POLLIN};
    if (poll(polls, count + 1, (int)(first_pause_s * 1e3)) > 0 && polls[count].revents)
        hang_up(s->t);
}

/*
 * Connects to the lowest rank that answers; false: none does. Ranks are tried in parallel, so that
 * many silent ranks, as on a host that is down, do not add up their delays.
 */
static bool find_lower(search *s)
{
    knock knocks[AT_ONCE];
    size_t count = 0;
    unsigned next = 0;
    bool in = false;
    do {
        for (; count < AT_ONCE && next < s->t->rank; next++)
            if (!s->passed[next])
                knocks[count++] = (knock){.rank = next, .fd = -1};
        size_t left = 0;
        for (size_t i = 0; i < count; i++) {
            tried came = in ? IS_TRIED : try_rank(s, &knocks[i]);
            in |= came == IS_IN;
            if (came == IS_PASSED) {
                s->passed[knocks[i].rank] = 1;
                tcp_drop(knocks[i].fd);
            } else {
                knocks[left++] = knocks[i];
            }
        }
        count = left;
        if (!in && count)
            await_any(s, knocks, count);
    } while (!in && (count || next < s->t->rank));
    for (size_t i = 0; i < count; i++)
        tcp_drop(knocks[i].fd);
    return in;
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

/* The hub is the lowest rank that is alive. */
static mgw_status find_hub(search *s, mgw_error *error)
{
    tcp *t = s->t;
    /* A rank that was out of touch for long may have missed that the others continued and ended. */
    s->out_of_touch |= t->cut && (t->is_silence || mgw_now_s() - t->heard_s > s->most_s);
    if (t->fd >= 0)
        tcp_drop(t->fd);
    t->fd = -1;
    t->cut = t->is_silence = false;
    t->head_got = 0;
    s->asked_s = mgw_awake_s();
    return find_lower(s) ? MGW_OK : be_hub(s, error);
}

/* ---- Its decision ---- */

static unsigned count_members(const tcp *t, unsigned end)
{
    unsigned count = 0;
    for (unsigned r = 0; r < end; r++)
        count += t->text[r / 8] >> r % 8 & 1;
    return count;
}

/* Handles a frame; sets *over if it was a decision. */
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

/* Neither *over nor an error: the hub is gone, or does not answer. */
static mgw_status ask(search *s, mgw_survivors *out, bool *over, mgw_error *error)
{
    tcp *t = s->t;
    const tcp_header come = {.kind = TCP_COME, .rank = t->rank, .number = s->port};
    double deadline_s = mgw_awake_s() + s->most_s + tcp_joining_s(t) + s->deciding_s;
    mgw_status status = MGW_OK;
    while (!status && !*over && tcp_rank_next(t, (tcp_awaited){0})) /* frames received before */
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
    if (!status && !*over && !t->cut) { /* it hangs: if it recovers, it goes on without us */
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
            return mgw_fail(
                error, MGW_ERR_TIMEOUT,
                "tcp: within %.3g s nobody said which ranks continue; rank %u was the last to "
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
    tcp_drop(t->listener); /* from the previous round */
    t->listener = tcp_rank_listen(t, &s.port);
    if (t->listener < 0)
        return mgw_fail(error, MGW_ERR_IO, "tcp: no port is left to listen at");
    s.passed = calloc(t->size, 1);
    mgw_status status = s.passed ? find_others(&s, out, error) : mgw_fail_memory(error, "tcp");
    free(s.passed);
    if (!status && out->rank == 0) {
        snprintf(out->address, sizeof out->address, TCP_KEPT "%d", t->listener);
    } else {
        tcp_drop(t->listener);
        t->listener = -1;
    }
    t->gone_on |= !status;
    return status;
}
