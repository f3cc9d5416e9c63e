/*
 * How ranks other than 0 join: a rank identifies itself, proves that it has the secret, and expects
 * the same proof from the hub.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/status.h"
#include "transport/tcp.h"

/* For one attempt. */
static const double try_s = 5;

static bool send_frame(const tcp_visit *v, tcp_kind kind, const void *data, size_t bytes)
{
    unsigned char frame[TCP_HEADER + TCP_HELLO_MOST];
    tcp_header header = {.kind = kind, .rank = v->party->rank, .bytes = (uint32_t)bytes};
    tcp_header_write(&header, frame);
    memcpy(frame + TCP_HEADER, data, bytes);
    return tcp_send_all(v->fd, frame, TCP_HEADER + bytes, v->deadline_s);
}

/* Receives a frame of the given kind; after a refusal, the error is its reason. */
static tcp_outcome receive_frame(const tcp_visit *v, tcp_kind kind, unsigned char data[TCP_TEXT],
                                 size_t *bytes, mgw_error *error)
{
    unsigned char head[TCP_HEADER];
    tcp_header header;
    char text[TCP_TEXT];
    mgw_error_record(error, MGW_ERR_PEER, "the connection was cut off");
    if (!tcp_receive_all(v->fd, head, sizeof head, v->deadline_s))
        return TCP_AGAIN;
    bool good = tcp_header_read(head, &header);
    if (!good || (header.kind != kind && header.kind != TCP_REFUSED)) {
        mgw_error_record(error, MGW_ERR_PEER, "what answers is not libmgwfbp");
        return TCP_AGAIN;
    }
    if (!tcp_receive_all(v->fd, data, header.bytes, v->deadline_s))
        return TCP_AGAIN;
    *bytes = header.bytes;
    if (header.kind == kind)
        return TCP_IN;
    tcp_text_read(data, header.bytes, text);
    mgw_error_record(error, MGW_ERR_PEER, "rank 0 did not take rank %u of %u in: %s",
                     v->party->rank, v->party->size, text);
    return TCP_OUT;
}

static tcp_outcome fail_cut(mgw_error *error)
{
    mgw_error_record(error, MGW_ERR_PEER, "the connection was cut off");
    return TCP_AGAIN;
}

static tcp_outcome hear_challenge(tcp_visit *v, mgw_error *error)
{
    unsigned char answer[TCP_TEXT];
    size_t bytes = 0;
    tcp_outcome got = receive_frame(v, TCP_CHALLENGE, answer, &bytes, error);
    if (got != TCP_IN)
        return got;
    if (tcp_challenge_read(answer, bytes, &v->challenge) && v->challenge.protocol == TCP_PROTOCOL)
        return TCP_IN;
    mgw_error_record(error, MGW_ERR_PEER, "what answers is not libmgwfbp %s", mgw_version());
    return TCP_AGAIN;
}

static tcp_outcome prove(tcp_visit *v, mgw_error *error)
{
    unsigned char answer[TCP_TEXT];
    unsigned char expected[TCP_MAC];
    size_t bytes = 0;
    const char *secret = v->party->secret;
    tcp_secret_prove(secret, "mgwfbp rank", &v->hello, &v->challenge, v->mac);
    if (!send_frame(v, TCP_PROOF, v->mac, TCP_MAC))
        return fail_cut(error);
    tcp_outcome got = receive_frame(v, TCP_WELCOME, answer, &bytes, error);
    if (got != TCP_IN)
        return got;
    tcp_secret_prove(secret, "mgwfbp hub", &v->hello, &v->challenge, expected);
    if (bytes == TCP_MAC && tcp_secret_equal(answer, expected))
        return TCP_IN;
    mgw_error_record(error, MGW_ERR_PEER, "what answers does not have our secret (MGWFBP_SECRET)");
    return TCP_AGAIN;
}

tcp_outcome tcp_visit_begin(const tcp_party *party, int fd, double deadline_s, tcp_visit *out,
                            mgw_error *why)
{
    unsigned char data[TCP_HELLO_MOST];
    *out = (tcp_visit){.party = party, .fd = fd, .deadline_s = deadline_s};
    out->hello = (tcp_hello){.protocol = TCP_PROTOCOL,
                             .flags = tcp_flags(party),
                             .size = party->size,
                             .rank = party->rank};
    snprintf(out->hello.version, sizeof out->hello.version, "%s", mgw_version());
    snprintf(out->hello.job, sizeof out->hello.job, "%s", party->job);
    if (tcp_secret_nonce(out->hello.nonce, why))
        return TCP_OUT;
    size_t bytes = tcp_hello_write(&out->hello, data);
    return send_frame(out, TCP_HELLO, data, bytes) ? TCP_IN : fail_cut(why);
}

tcp_outcome tcp_visit_end(tcp_visit *visit, double deadline_s, mgw_error *why)
{
    visit->deadline_s = deadline_s;
    tcp_outcome came = hear_challenge(visit, why);
    return came == TCP_IN ? prove(visit, why) : came;
}

static tcp_outcome knock(const tcp_party *party, int fd, double deadline_s, mgw_error *why)
{
    tcp_visit visit;
    tcp_outcome came = tcp_visit_begin(party, fd, deadline_s, &visit, why);
    return came == TCP_IN ? tcp_visit_end(&visit, deadline_s, why) : came;
}

mgw_status tcp_join(const tcp_party *party, const tcp_address *address, double timeout_s, int *out,
                    mgw_error *error)
{
    double deadline_s = mgw_awake_s() + timeout_s;
    mgw_error why = {0};
    tcp_outcome came = TCP_AGAIN;
    *out = -1;
    while (came == TCP_AGAIN && mgw_awake_s() < deadline_s) {
        int fd = tcp_connect(address, deadline_s, &why);
        if (fd >= 0)
            came = knock(party, fd, fmin(deadline_s, mgw_awake_s() + try_s), &why);
        if (came == TCP_IN)
            *out = fd;
        else
            tcp_drop(fd);
        if (came == TCP_AGAIN)
            nanosleep(&(struct timespec){.tv_nsec = 50 * 1000 * 1000}, NULL);
    }
    if (came == TCP_IN)
        return MGW_OK;
    if (came == TCP_OUT)
        return mgw_fail(error, why.status ? why.status : MGW_ERR_PEER, "tcp: %s", why.message);
    return mgw_fail(error, MGW_ERR_TIMEOUT,
                    "tcp: rank 0 was not reached at %s:%s within %.3g s (%s)", address->host,
                    address->port, timeout_s, why.message);
}
