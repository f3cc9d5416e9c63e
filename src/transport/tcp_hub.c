/*
 * The hub: a thread of rank 0 (after a failure, of the lowest remaining rank) that all ranks are
 * connected to. It runs the meetings, and tells all ranks at once when one dies, leaves or fails,
 * whatever rank 0 itself is doing.
 */
#include "transport/tcp_hub.h"

#include <errno.h>
#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "base/status.h"
#include "base/thread.h"

static const double leaving_s = 2;
static const double lingering_s = 0.2;
static const double deciding_s = 0.005; /* between two checks for missing ranks */

/* ---- Notices to all ranks ---- */

static void tell_others(tcp_hub *hub, unsigned about, tcp_kind kind, uint64_t number)
{
    const tcp_header header = {.kind = kind, .rank = about, .number = number};
    for (unsigned r = 0; r < hub->size; r++)
        if (r != about && hub->ranks[r].phase == TCP_PRESENT)
            tcp_peer_send(&hub->ranks[r], &header, NULL);
}

static void lose(tcp_hub *hub, unsigned rank, tcp_kind kind)
{
    tcp_peer *peer = &hub->ranks[rank];
    tcp_decide_note(hub, rank, kind, kind == TCP_LEFT && peer->header.number);
    tcp_peer_close(peer);
    peer->phase = hub->decides ? TCP_ABSENT : TCP_GONE;
    hub->leaving |= rank == hub->party.rank;
    tell_others(hub, rank, kind, 0);
}

/* ---- Meetings ---- */

/* The ranks are in different calls: each receives an error with its own call and another rank's. */
static void end_meetings(tcp_hub *hub)
{
    for (unsigned r = 0; r < hub->size; r++) {
        tcp_meet_explain(hub->parts, hub->size, r, hub->ended);
        tcp_peer_say(&hub->ranks[r], TCP_ENDED, r, hub->ended);
    }
}

/* All ranks have joined: lists where each can be reached if this hub cannot. */
static size_t list_places(tcp_hub *hub)
{
    for (unsigned r = 0; r < hub->size; r++) {
        tcp_place *place = &hub->havens[r];
        const unsigned char *port = hub->parts[r].data;
        *place = r == hub->party.rank ? (tcp_place){0} : tcp_place_there(hub->ranks[r].fd);
        place->port = (uint16_t)(port[0] | port[1] << 8);
        tcp_place_write(place, hub->room + (size_t)r * TCP_PLACE);
    }
    return (size_t)hub->size * TCP_PLACE;
}

static void finish_meeting(tcp_hub *hub)
{
    const unsigned char *data = NULL;
    size_t bytes = 0;
    for (unsigned r = 0; r < hub->size; r++)
        hub->parts[r] = hub->ranks[r].part;
    if (!tcp_meet(hub->parts, hub->size, hub->room, &data, &bytes)) {
        end_meetings(hub);
        return;
    }
    bool joins = tcp_call_read(hub->parts[0].call).kind == TCP_JOINING;
    if (joins) {
        data = hub->room;
        bytes = list_places(hub);
    }
    hub->meetings++;
    for (unsigned r = 0; r < hub->size; r++) {
        tcp_header header = {.kind = TCP_RESULT, .rank = r, .number = hub->meetings};
        header.bytes = joins || tcp_takes(hub->parts[r].call, r) ? (uint32_t)bytes : 0;
        tcp_peer_send(&hub->ranks[r], &header, data);
    }
}

/* Keeps the rank's part. The previous part's buffer receives the next frame. */
static void bring(tcp_hub *hub, tcp_peer *peer)
{
    unsigned char *data = peer->in;
    size_t room = peer->in_room;
    if (peer->header.number != hub->meetings + 1 || peer->come == peer->header.number) {
        peer->broken = true;
        return;
    }
    peer->in = peer->part.data;
    peer->in_room = peer->part_room;
    peer->part = (tcp_part){.call = peer->header.call,
                            .purpose = peer->header.purpose,
                            .segments = peer->header.segments,
                            .bytes = peer->header.bytes,
                            .data = data};
    peer->part_room = room;
    peer->come = peer->header.number;
    peer->doing[0] = '\0';
    for (unsigned r = 0; r < hub->size; r++)
        if (hub->ranks[r].phase != TCP_PRESENT || hub->ranks[r].come != peer->come)
            return;
    finish_meeting(hub);
}

/* The first rank that has not come; a rank that is not connected takes precedence. */
static unsigned find_missing(const tcp_hub *hub, uint64_t meeting)
{
    for (unsigned r = 0; r < hub->size; r++)
        if (hub->ranks[r].phase != TCP_PRESENT)
            return r;
    for (unsigned r = 0; r < hub->size; r++)
        if (hub->ranks[r].come < meeting)
            return r;
    return 0;
}

static void answer(tcp_hub *hub, tcp_peer *peer)
{
    char text[TCP_TEXT] = "";
    unsigned missing = find_missing(hub, peer->header.number);
    const tcp_peer *late = &hub->ranks[missing];
    if (late->phase != TCP_ABSENT)
        snprintf(text, sizeof text, "%s", late->doing);
    else if (hub->refused)
        snprintf(text, sizeof text, "%u refused, the last %s", hub->refused, hub->last_refused);
    tcp_peer_say(peer, TCP_MISSING, missing, text);
}

/* ---- Frames of ranks ---- */

static void hear(tcp_hub *hub, unsigned rank)
{
    tcp_peer *peer = &hub->ranks[rank];
    switch (peer->header.kind) {
    case TCP_CALL:
        bring(hub, peer);
        break;
    case TCP_ASK:
        answer(hub, peer);
        break;
    case TCP_SAY:
        tcp_text_read(peer->in, peer->header.bytes, peer->doing);
        break;
    case TCP_FAILED:
        tell_others(hub, rank, TCP_FAILED, peer->header.number);
        break;
    case TCP_LEFT:
        lose(hub, rank, TCP_LEFT);
        break;
    case TCP_COME:
        tcp_decide_come(hub, rank);
        break;
    default:
        peer->broken = true;
    }
}

static void read_rank(tcp_hub *hub, unsigned rank)
{
    while (tcp_peer_next(&hub->ranks[rank], 0))
        hear(hub, rank);
}

/* Handles broken connections, including those that broke while others were notified. */
static void see_to_the_broken(tcp_hub *hub)
{
    bool any = true;
    while (any) {
        any = false;
        for (unsigned r = 0; r < hub->size; r++)
            if (hub->ranks[r].phase == TCP_PRESENT && hub->ranks[r].broken) {
                any = true;
                lose(hub, r, TCP_DIED);
            }
    }
}

/* ---- The thread ---- */

static void add(tcp_hub *hub, size_t *count, int fd, tcp_peer *peer)
{
    short events = POLLIN;
    if (peer && peer->out_from < peer->out_to)
        events |= POLLOUT;
    hub->polls[*count] = (struct pollfd){.fd = fd, .events = events};
    hub->polled[(*count)++] = peer;
}

static size_t list_connections(tcp_hub *hub)
{
    size_t count = 0;
    for (unsigned r = 0; r < hub->size; r++)
        if (hub->ranks[r].fd >= 0)
            add(hub, &count, hub->ranks[r].fd, &hub->ranks[r]);
    for (size_t i = 0; hub->listener >= 0 && i < TCP_STRANGERS; i++)
        if (hub->strangers[i].phase != TCP_ABSENT)
            add(hub, &count, hub->strangers[i].fd, &hub->strangers[i]);
    if (hub->listener >= 0)
        add(hub, &count, hub->listener, NULL);
    return count;
}

static void step(tcp_hub *hub)
{
    double next_s = hub->listener >= 0 ? tcp_greet_expire(hub) : 0;
    double left_s = next_s > 0 ? next_s - mgw_awake_s() : 10;
    left_s = hub->decides ? fmin(left_s, deciding_s) : left_s;
    int most_ms = next_s > 0 && left_s > 1 ? 1000 : (int)(left_s * 1e3) + 1;
    size_t count = list_connections(hub);
    int ready = poll(hub->polls, count, left_s > 0 ? most_ms : 0);
    for (size_t i = 0; ready > 0 && i < count; i++) {
        tcp_peer *peer = hub->polled[i];
        bool current = peer ? peer->fd == hub->polls[i].fd : hub->listener == hub->polls[i].fd;
        if (!hub->polls[i].revents || !current) /* it may have closed or become a rank meanwhile */
            continue;
        if (!peer) {
            tcp_greet_accept(hub);
            continue;
        }
        tcp_peer_flush(peer);
        if (peer >= hub->strangers && peer < hub->strangers + TCP_STRANGERS)
            tcp_greet_read(hub, peer);
        else
            read_rank(hub, (unsigned)(peer - hub->ranks));
    }
    see_to_the_broken(hub);
    if (hub->decides)
        tcp_decide_step(hub, ready == 0);
}

/*
 * Sends pending data, but waits for no peer for long. Then reads for a moment, until the peers have
 * received it: closing with unread input would reset the connection and discard what was sent.
 */
static void let_go(tcp_hub *hub)
{
    double deadline_s = mgw_awake_s() + leaving_s;
    for (unsigned r = 0; r < hub->size; r++) {
        tcp_peer *peer = &hub->ranks[r];
        while (peer->fd >= 0 && !peer->broken && peer->out_from < peer->out_to &&
               tcp_wait(peer->fd, POLLOUT, deadline_s))
            tcp_peer_flush(peer);
        if (peer->fd >= 0)
            shutdown(peer->fd, SHUT_WR);
    }
    deadline_s = mgw_awake_s() + lingering_s;
    for (unsigned r = 0; r < hub->size; r++) {
        tcp_peer *peer = &hub->ranks[r];
        while (tcp_peer_next(peer, 0) ||
               (peer->fd >= 0 && !peer->broken && tcp_wait(peer->fd, POLLIN, deadline_s)))
            continue;
        tcp_peer_close(peer);
    }
}

static void *run(void *argument)
{
    tcp_hub *hub = argument;
    while (!hub->leaving)
        step(hub);
    tcp_greet_close(hub);
    let_go(hub);
    for (unsigned r = 0; r < hub->size; r++)
        tcp_drop(hub->returns[r].probe);
    return NULL;
}

/* ---- Life ---- */

static void free_hub(tcp_hub *hub)
{
    free((void *)hub->party.job);
    free((void *)hub->party.secret);
    free(hub->ranks);
    free(hub->havens);
    free(hub->returns);
    free(hub->parts);
    free(hub->room);
    free(hub->polls);
    free((void *)hub->polled);
    free(hub);
}

static tcp_hub *make_hub(const tcp_party *party)
{
    size_t connections = party->size + TCP_STRANGERS + 1;
    tcp_hub *hub = calloc(1, sizeof *hub);
    if (!hub)
        return NULL;
    hub->size = party->size;
    hub->party = *party;
    hub->party.job = strdup(party->job);
    hub->party.secret = party->secret ? strdup(party->secret) : NULL;
    hub->ranks = calloc(party->size, sizeof *hub->ranks);
    hub->havens = calloc(party->size, sizeof *hub->havens);
    hub->returns = calloc(party->size, sizeof *hub->returns);
    hub->parts = calloc(party->size, sizeof *hub->parts);
    hub->room = malloc(TCP_PIECE);
    hub->polls = calloc(connections, sizeof *hub->polls);
    hub->polled = calloc(connections, sizeof(tcp_peer *));
    if (hub->party.job && (hub->party.secret || !party->secret) && hub->ranks && hub->havens &&
        hub->returns && hub->parts && hub->room && hub->polls && hub->polled)
        return hub;
    free_hub(hub);
    return NULL;
}

static void set_down(tcp_hub *hub, const tcp_footing *footing)
{
    hub->listener = footing->listener;
    hub->haven = footing->haven;
    hub->coming_s = footing->coming_s;
    hub->joining_s = footing->joining_s;
    hub->out_of_touch = footing->out_of_touch;
    if (footing->havens)
        memcpy(hub->havens, footing->havens, hub->size * sizeof *hub->havens);
    for (size_t i = 0; i < TCP_STRANGERS; i++)
        hub->strangers[i].fd = -1;
    for (unsigned r = 0; r < hub->size; r++) {
        hub->ranks[r].fd = -1;
        hub->returns[r].probe = -1;
    }
}

mgw_status tcp_hub_start(const tcp_party *party, const tcp_footing *footing, tcp_hub **out,
                         int *own, mgw_error *error)
{
    int pair[2] = {-1, -1};
    tcp_hub *hub = make_hub(party);
    tcp_keep(footing->listener);
    if (!hub || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair)) {
        int code = errno;
        tcp_drop(footing->listener);
        if (!hub)
            return mgw_fail_memory(error, "tcp");
        free_hub(hub);
        return mgw_fail(error, MGW_ERR_IO, "tcp: no pair of sockets: %s", strerror(code));
    }
    set_down(hub, footing);
    hub->ranks[party->rank].fd = pair[0];
    hub->ranks[party->rank].phase = TCP_PRESENT;
    hub->present = 1;
    tcp_set_up(pair[0], false);
    tcp_set_up(pair[1], false);
    if (hub->size == 1)
        tcp_greet_close(hub);
    if (mgw_thread_start(&hub->thread, run, hub)) {
        tcp_greet_close(hub);
        tcp_drop(pair[0]);
        tcp_drop(pair[1]);
        free_hub(hub);
        return mgw_fail(error, MGW_ERR_NO_MEMORY, "tcp: cannot start a thread");
    }
    *own = pair[1];
    *out = hub;
    return MGW_OK;
}

void tcp_hub_end(tcp_hub *hub)
{
    if (!hub)
        return;
    pthread_join(hub->thread, NULL);
    free_hub(hub);
}
