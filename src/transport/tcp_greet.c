/*
 * How the hub admits ranks. Anybody can connect while it listens: a silent stranger is disconnected
 * after a while, an invalid one at once, and neither delays the others. Only a stranger that
 * belongs to this job, as far as can be known (it has the secret; or there is none, and it has the
 * job's name), can end the job at once, by not matching what the job expects. A stranger that only
 * has the job's name may be one of its ranks with a wrong secret, and would not retry. If no other
 * ranks are missing, and no replacement has come for a while, the job ends as well.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#include "base/clock.h"
#include "transport/tcp_hub.h"

void tcp_hub_give_up(tcp_hub *hub, const char *format, ...)
{
    va_list arguments;
    if (hub->ended[0])
        return;
    va_start(arguments, format);
    vsnprintf(hub->ended, sizeof hub->ended, format, arguments);
    va_end(arguments);
    for (unsigned r = 0; r < hub->size; r++)
        if (hub->ranks[r].phase == TCP_PRESENT)
            tcp_peer_say(&hub->ranks[r], TCP_ENDED, r, hub->ended);
}

/* ---- Strangers ---- */

static void forget(tcp_peer *stranger)
{
    tcp_peer_close(stranger);
    *stranger = (tcp_peer){.fd = -1};
}

static void note(tcp_hub *hub, const tcp_peer *stranger, const char *why)
{
    hub->refused++;
    snprintf(hub->last_refused, sizeof hub->last_refused, "from %s: %s", stranger->from, why);
}

/* Sends the reason, and keeps it for the error in case a rank never comes. */
static void refuse(tcp_hub *hub, tcp_peer *stranger, const char *text, const char *why)
{
    tcp_peer_say(stranger, TCP_REFUSED, 0, text);
    note(hub, stranger, why);
    forget(stranger);
}

/*
 * As above, for a stranger that may be a rank of this job. Only its first refusal counts, so that
 * retries cannot postpone the end.
 */
static void refuse_rank(tcp_hub *hub, tcp_peer *stranger, const char *why)
{
    bool known = stranger->hello.protocol == TCP_PROTOCOL;
    tcp_peer *rank =
        known && stranger->hello.rank < hub->size ? &hub->ranks[stranger->hello.rank] : NULL;
    if (rank ? rank->phase == TCP_ABSENT && !rank->refused : !known && hub->unknown < hub->size) {
        hub->unknown += !known;
        hub->doubted_s = mgw_awake_s();
        snprintf(hub->doubted, sizeof hub->doubted, "from %s: %s", stranger->from, why);
        if (rank)
            rank->refused = true;
    }
    refuse(hub, stranger, why, why);
}

/* A free slot; if there is none, the slot of the stranger that has waited longest. */
static tcp_peer *find_place(tcp_hub *hub)
{
    tcp_peer *oldest = &hub->strangers[0];
    for (size_t i = 0; i < TCP_STRANGERS; i++) {
        tcp_peer *each = &hub->strangers[i];
        if (each->phase == TCP_ABSENT)
            return each;
        if (each->deadline_s < oldest->deadline_s)
            oldest = each;
    }
    note(hub, oldest, "too many came at once");
    forget(oldest);
    return oldest;
}

void tcp_greet_accept(tcp_hub *hub)
{
    struct sockaddr_storage address;
    socklen_t length = sizeof address;
    int fd =
        accept4(hub->listener, (struct sockaddr *)&address, &length, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) {
        if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED) /* out of descriptors */
            nanosleep(&(struct timespec){.tv_nsec = 10 * 1000 * 1000}, NULL);
        return;
    }
    tcp_peer *stranger = find_place(hub);
    *stranger =
        (tcp_peer){.fd = fd, .phase = TCP_GREETING, .deadline_s = mgw_awake_s() + tcp_greeting_s};
    tcp_set_up(fd, true);
    if (getnameinfo((struct sockaddr *)&address, length, stranger->from, sizeof stranger->from,
                    NULL, 0, NI_NUMERICHOST))
        snprintf(stranger->from, sizeof stranger->from, "?");
}

/* When the job ends because only refused ranks are missing; 0: other ranks may still come. */
static double end_of_grace(tcp_hub *hub)
{
    unsigned missing = hub->size - hub->present;
    unsigned refused = hub->unknown;
    unsigned first = 0;
    for (unsigned r = hub->size; r-- > 0;)
        if (hub->ranks[r].phase == TCP_ABSENT) {
            refused += hub->ranks[r].refused;
            first = r;
        }
    if (hub->ended[0] || hub->decides || refused < missing)
        return 0;
    if (mgw_awake_s() < hub->doubted_s + tcp_grace_s)
        return hub->doubted_s + tcp_grace_s;
    tcp_hub_give_up(hub,
                    "rank %u did not come: a connection that may have been its own was refused "
                    "(%s), and no other came within %.3g s",
                    first, hub->doubted, tcp_grace_s);
    return 0;
}

double tcp_greet_expire(tcp_hub *hub)
{
    double next_s = end_of_grace(hub);
    for (size_t i = 0; i < TCP_STRANGERS; i++) {
        tcp_peer *each = &hub->strangers[i];
        if (each->phase == TCP_ABSENT)
            continue;
        if (each->deadline_s <= mgw_awake_s()) {
            note(hub, each, "it did not say its rank");
            forget(each);
        } else if (next_s == 0 || each->deadline_s < next_s) {
            next_s = each->deadline_s;
        }
    }
    return next_s;
}

void tcp_greet_close(tcp_hub *hub)
{
    if (hub->listener != hub->haven)
        tcp_drop(hub->listener);
    hub->listener = -1;
    for (size_t i = 0; i < TCP_STRANGERS; i++)
        forget(&hub->strangers[i]);
}

/* ---- Greetings ---- */

/*
 * Null: no objection. Otherwise the reason to refuse; if not *is_ours, the stranger may belong to
 * another job.
 */
static const char *doubt(const tcp_hub *hub, const tcp_hello *hello, bool *is_ours)
{
    uint32_t own = tcp_flags(&hub->party);
    if (hello->protocol != TCP_PROTOCOL)
        return "it has another version of libmgwfbp, with another protocol";
    *is_ours = strcmp(hello->job, hub->party.job) == 0;
    if (!*is_ours)
        return "it belongs to another job (MGWFBP_JOB)";
    if ((hello->flags ^ own) & TCP_HAS_SECRET)
        return own & TCP_HAS_SECRET ? "it has no secret, and rank 0 has one (MGWFBP_SECRET)"
                                    : "it has a secret, and rank 0 has none (MGWFBP_SECRET)";
    return NULL;
}

static void hear_hello(tcp_hub *hub, tcp_peer *stranger)
{
    unsigned char data[TCP_CHALLENGE_SIZE];
    if (!tcp_hello_read(stranger->in, stranger->header.bytes, &stranger->hello)) {
        stranger->broken = true;
        return;
    }
    bool is_ours = true;
    const char *why = doubt(hub, &stranger->hello, &is_ours);
    if (why) {
        if (is_ours)
            refuse_rank(hub, stranger, why);
        else
            refuse(hub, stranger, why, why);
        return;
    }
    stranger->challenge =
        (tcp_challenge){.protocol = TCP_PROTOCOL, .flags = tcp_flags(&hub->party)};
    snprintf(stranger->challenge.version, TCP_VERSION, "%s", mgw_version());
    if (tcp_secret_nonce(stranger->challenge.nonce, NULL)) {
        stranger->broken = true;
        return;
    }
    size_t bytes = tcp_challenge_write(&stranger->challenge, data);
    tcp_peer_send(stranger, &(tcp_header){.kind = TCP_CHALLENGE, .bytes = (uint32_t)bytes}, data);
    stranger->phase = TCP_PROVING;
}

/* The reason to refuse a stranger that belongs to this job. */
static bool misfits(const tcp_hub *hub, const tcp_hello *hello, char text[TCP_TEXT])
{
    bool taken = hello->rank < hub->size && hub->ranks[hello->rank].phase != TCP_ABSENT;
    text[0] = '\0';
    if (strcmp(hello->version, mgw_version()) != 0)
        snprintf(text, TCP_TEXT, "rank %u has libmgwfbp %s, rank 0 has %s: all need the same",
                 hello->rank, hello->version, mgw_version());
    else if ((hello->flags ^ tcp_flags(&hub->party)) & TCP_IS_BIG)
        snprintf(text, TCP_TEXT, "rank %u has numbers in another order of bytes than rank 0",
                 hello->rank);
    else if (hello->size != hub->size || hello->rank >= hub->size || taken)
        snprintf(text, TCP_TEXT, "rank %u of %u has come, but this is a job of %u%s", hello->rank,
                 hello->size, hub->size, taken ? " and has that rank already" : "");
    return text[0];
}

static void let_in(tcp_hub *hub, tcp_peer *stranger)
{
    unsigned char mac[TCP_MAC];
    tcp_peer *rank = &hub->ranks[stranger->hello.rank];
    tcp_secret_prove(hub->party.secret, "mgwfbp hub", &stranger->hello, &stranger->challenge, mac);
    tcp_peer_send(stranger, &(tcp_header){.kind = TCP_WELCOME, .bytes = TCP_MAC}, mac);
    *rank = *stranger;
    rank->phase = TCP_PRESENT;
    hub->doubted_s = mgw_awake_s();
    *stranger = (tcp_peer){.fd = -1};
    if (++hub->present == hub->size && !hub->decides)
        tcp_greet_close(hub);
}

static void hear_proof(tcp_hub *hub, tcp_peer *stranger)
{
    unsigned char expected[TCP_MAC];
    char text[TCP_TEXT];
    tcp_secret_prove(hub->party.secret, "mgwfbp rank", &stranger->hello, &stranger->challenge,
                     expected);
    if (stranger->header.bytes != TCP_MAC || !tcp_secret_equal(stranger->in, expected)) {
        refuse_rank(hub, stranger, "it has another secret than rank 0 (MGWFBP_SECRET)");
    } else if (hub->ended[0] && !hub->decides) {
        refuse(hub, stranger, hub->ended, "the job has failed");
    } else if (misfits(hub, &stranger->hello, text)) {
        refuse(hub, stranger, text, text);
        if (!hub->decides)
            tcp_hub_give_up(hub, "%s", text);
    } else {
        let_in(hub, stranger);
    }
}

void tcp_greet_read(tcp_hub *hub, tcp_peer *stranger)
{
    if (stranger->phase == TCP_GREETING && tcp_peer_next(stranger, TCP_HELLO))
        hear_hello(hub, stranger);
    if (stranger->phase == TCP_PROVING && tcp_peer_next(stranger, TCP_PROOF))
        hear_proof(hub, stranger);
    if (stranger->broken) {
        note(hub, stranger, "what it said made no sense, or it went away");
        forget(stranger);
    }
}
