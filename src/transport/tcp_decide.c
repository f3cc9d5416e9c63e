/*
 * Decides who continues after a failure. The hub waits for the ranks that may still come. It then
 * lets the ranks that have come continue if no other group can: if they are more than half of the
 * job, or if all other ranks are certain not to continue. A rank is certain not to if its process
 * has ended, which its host shows by refusing connections; if it has left; or if it is connected,
 * has not come, and has been told to stay out. Whatever ranks believe of each other, the job never
 * splits in two: if neither half knows enough, both end.
 */
#include <errno.h>
#include <linux/sockios.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "transport/tcp_hub.h"

static const double probing_s = 0.1; /* between two attempts to reach a missing rank */
static const double telling_s = 1;   /* for the notice to reach ranks that have not come */
static const double talking_s = 2;   /* incoming messages can delay a decision by at most this long;
                                        more than passes while this process is stopped */

/* ---- Who is there ---- */

static bool is_in(const tcp_hub *hub, unsigned rank)
{
    return hub->ranks[rank].phase == TCP_PRESENT && hub->returns[rank].came;
}

static bool is_out(const tcp_hub *hub, unsigned rank)
{
    tcp_fate fate = hub->returns[rank].fate;
    return fate == TCP_DEAD || fate == TCP_TOLD;
}

void tcp_decide_note(tcp_hub *hub, unsigned rank, tcp_kind kind, bool away)
{
    tcp_return *r = &hub->returns[rank];
    r->came = false;
    if (away)
        r->fate = TCP_AWAY;
    else if (kind == TCP_LEFT)
        r->fate = TCP_DEAD;
    else if (tcp_is_silence(hub->ranks[rank].code))
        r->fate = TCP_SILENT;
}

void tcp_decide_come(tcp_hub *hub, unsigned rank)
{
    tcp_return *r = &hub->returns[rank];
    if (r->fate == TCP_TOLD) /* too late: it is reading the notice now */
        return;
    r->came = true;
    r->fate = TCP_UNKNOWN;
    r->port = (uint16_t)hub->ranks[rank].header.number;
    if (hub->decides)
        return;
    hub->decides = true;
    hub->since_s = mgw_awake_s();
    if (hub->listener >= 0)
        tcp_greet_close(hub); /* ranks that have not joined by now are too late */
    hub->listener = hub->haven;
    for (unsigned each = 0; each < hub->size; each++)
        if (hub->ranks[each].phase == TCP_GONE) /* it may only have lost its connection */
            hub->ranks[each].phase = TCP_ABSENT;
}

/* A host refuses connections to a process that has ended, because its haven is closed. */
static void end_probe(tcp_hub *hub, tcp_return *r, int code)
{
    tcp_drop(r->probe);
    r->probe = -1;
    r->next_s = mgw_awake_s() + probing_s;
    if (code == ECONNREFUSED && !hub->out_of_touch)
        r->fate = TCP_DEAD;
}

static void probe(tcp_hub *hub, unsigned rank)
{
    tcp_return *r = &hub->returns[rank];
    int code = 0;
    if (r->probe < 0) {
        if (mgw_awake_s() < r->next_s || !hub->havens[rank].family)
            return;
        r->probe = tcp_place_connect(&hub->havens[rank], &code);
        if (r->probe < 0)
            end_probe(hub, r, code);
        return;
    }
    struct pollfd one = {.fd = r->probe, .events = POLLOUT};
    socklen_t length = sizeof code;
    if (poll(&one, 1, 0) > 0)
        end_probe(hub, r, getsockopt(r->probe, SOL_SOCKET, SO_ERROR, &code, &length) ? 0 : code);
}

/* ---- Deciding ---- */

/*
 * The notice has reached the rank's system, if not the rank itself. The rank reads it before
 * anything else.
 */
static bool has_arrived(tcp_hub *hub, unsigned rank)
{
    int waiting = 0;
    tcp_peer *peer = &hub->ranks[rank];
    tcp_peer_flush(peer);
    bool own = rank == hub->party.rank; /* a socket pair delivers at once */
    return !peer->broken && !peer->deaf && peer->out_from == peer->out_to &&
           (own || (!ioctl(peer->fd, SIOCOUTQ, &waiting) && !waiting));
}

static void tell_the_late(tcp_hub *hub)
{
    char text[TCP_TEXT];
    double deadline_s = mgw_awake_s() + telling_s;
    for (unsigned r = 0; r < hub->size; r++) {
        if (hub->ranks[r].phase != TCP_PRESENT || hub->returns[r].came || is_out(hub, r))
            continue;
        snprintf(text, sizeof text, "rank %u did not come within %.3g s of a failure: it stays out",
                 r, hub->coming_s);
        tcp_peer_say(&hub->ranks[r], TCP_STAY, r, text);
    }
    for (unsigned r = 0; r < hub->size; r++) {
        tcp_peer *peer = &hub->ranks[r];
        if (peer->phase != TCP_PRESENT || hub->returns[r].came || is_out(hub, r))
            continue;
        while (!has_arrived(hub, r) && !peer->broken && !peer->deaf && mgw_awake_s() < deadline_s)
            poll(NULL, 0, 5);
        if (has_arrived(hub, r))
            hub->returns[r].fate = TCP_TOLD;
    }
}

/* "2, 5 and others". */
static void list_ranks(const tcp_hub *hub, bool (*wanted)(const tcp_hub *, unsigned), char *out,
                       size_t size)
{
    size_t used = 0;
    *out = '\0';
    for (unsigned r = 0; r < hub->size; r++) {
        if (!wanted(hub, r))
            continue;
        if (used + 20 > size) {
            snprintf(out + used, size - used, ", ...");
            return;
        }
        used += (size_t)snprintf(out + used, size - used, "%s%u", used ? ", " : "", r);
    }
}

static bool is_missing(const tcp_hub *hub, unsigned rank)
{
    return !is_in(hub, rank) && !is_out(hub, rank);
}

static void refuse_all(tcp_hub *hub, unsigned members)
{
    char in[64];
    char missing[64];
    char text[TCP_TEXT];
    list_ranks(hub, is_in, in, sizeof in);
    list_ranks(hub, is_missing, missing, sizeof missing);
    snprintf(text, sizeof text,
             "rank%s %s of %u %s not more than half of the job, and nothing says that rank%s %s "
             "%s not going on: it ends here, so that it is never in two parts",
             members == 1 ? "" : "s", in, hub->size, members == 1 ? "is" : "are",
             strchr(missing, ',') ? "s" : "", missing, strchr(missing, ',') ? "are" : "is");
    for (unsigned r = 0; r < hub->size; r++)
        if (is_in(hub, r))
            tcp_peer_say(&hub->ranks[r], TCP_STAY, r, text);
}

static void let_go_on(tcp_hub *hub, unsigned lowest)
{
    unsigned char members[TCP_MEMBERS_MOST] = {0};
    tcp_header header = {.kind = TCP_MEMBERS,
                         .rank = lowest,
                         .bytes = (hub->size + 7) / 8,
                         .number = hub->returns[lowest].port,
                         .call = hub->decisions};
    for (unsigned r = 0; r < hub->size; r++)
        if (is_in(hub, r))
            members[r / 8] |= (unsigned char)(1u << r % 8);
    for (unsigned r = 0; r < hub->size; r++)
        if (is_in(hub, r))
            tcp_peer_send(&hub->ranks[r], &header, members);
}

static void decide(tcp_hub *hub)
{
    unsigned members = 0;
    unsigned missing = 0;
    unsigned lowest = hub->size;
    tell_the_late(hub);
    for (unsigned r = 0; r < hub->size; r++) {
        members += is_in(hub, r);
        missing += is_missing(hub, r);
        lowest = is_in(hub, r) && r < lowest ? r : lowest;
    }
    hub->decisions++;
    if (2 * members > hub->size || !missing)
        let_go_on(hub, lowest);
    else
        refuse_all(hub, members);
    for (unsigned r = 0; r < hub->size; r++)
        hub->returns[r].came = false;
    hub->decides = false;
    tcp_greet_close(hub);
}

/*
 * Without a majority the wait is longer: others may be joining the group that another hub decided
 * on before it died. While there is data to read, it may be from a rank that comes.
 */
static bool is_time(const tcp_hub *hub, unsigned members, bool all, bool quiet)
{
    double waited_s = mgw_awake_s() - hub->since_s;
    double most_s = hub->coming_s + (2 * members > hub->size ? 0 : hub->joining_s);
    return quiet ? all || waited_s > most_s : waited_s > most_s + talking_s;
}

void tcp_decide_step(tcp_hub *hub, bool quiet)
{
    bool all = true;
    unsigned members = 0;
    for (unsigned r = 0; r < hub->size; r++) {
        if (hub->ranks[r].phase != TCP_PRESENT && hub->returns[r].fate == TCP_UNKNOWN)
            probe(hub, r);
        all &= is_in(hub, r) || is_out(hub, r);
        members += is_in(hub, r);
    }
    if (!members) { /* all ranks that wanted to continue have died since */
        hub->decides = false;
        tcp_greet_close(hub);
    } else if (is_time(hub, members, all, quiet))
        decide(hub);
}
