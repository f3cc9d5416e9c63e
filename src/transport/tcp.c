/*
 * The rank's side of the transport over TCP: it joins meetings at the hub, and the hub reports
 * which ranks have died, left or failed. Workers use it for control messages; gradients are too
 * large for it.
 */
#include "transport/tcp_rank.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/status.h"
#include "transport/blocks.h"

enum { TOGETHER = 4096 /* bytes sent together with their header */ };

/* How long the hub has to name the missing rank. */
static const double answer_s = 2;
static const double parting_s = 1;

/* ---- Frames ---- */

bool tcp_rank_send(tcp *t, const tcp_header *header, const void *data, double deadline_s)
{
    unsigned char small[TCP_HEADER + TOGETHER];
    size_t with = header->bytes <= TOGETHER ? header->bytes : 0;
    tcp_header_write(header, small);
    if (with)
        memcpy(small + TCP_HEADER, data, with);
    errno = 0;
    bool sent = tcp_send_all(t->fd, small, TCP_HEADER + with, deadline_s) &&
                (with == header->bytes || tcp_send_all(t->fd, data, header->bytes, deadline_s));
    if (!sent) /* the system reports the reason once */
        t->is_silence |= tcp_is_silence(errno);
    return sent;
}

/* Returns the number of bytes received; -1: the connection is broken. */
static ptrdiff_t take(tcp *t, unsigned char *at, size_t bytes)
{
    ptrdiff_t got = tcp_receive(t->fd, at, bytes);
    if (got < 0) {
        t->is_silence |= tcp_is_silence(errno);
        t->cut = true;
    } else
        t->heard_s = mgw_now_s();
    return got;
}

bool tcp_rank_next(tcp *t, tcp_awaited result)
{
    if (t->cut || t->fd < 0)
        return false;
    if (t->head_got < TCP_HEADER) {
        ptrdiff_t got = take(t, t->head + t->head_got, TCP_HEADER - t->head_got);
        t->head_got += got > 0 ? (size_t)got : 0;
        if (t->head_got < TCP_HEADER)
            return false;
        t->got = 0;
        t->cut = !tcp_header_read(t->head, &t->header) ||
                 (t->header.kind != TCP_RESULT ? t->header.bytes > sizeof t->text
                                               : t->header.bytes != result.bytes && !t->failed);
        if (t->cut)
            return false;
    }
    size_t left = t->header.bytes - t->got;
    unsigned char *at = t->text + t->got;
    if (t->header.kind == TCP_RESULT && !t->failed) {
        at = result.data + t->got;
    } else if (t->header.kind == TCP_RESULT) { /* nobody waits for it any more */
        at = t->text;
        left = left < sizeof t->text ? left : sizeof t->text;
    }
    if (left) {
        ptrdiff_t got = take(t, at, left);
        t->got += got > 0 ? (size_t)got : 0;
    }
    if (t->got < t->header.bytes)
        return false;
    t->head_got = 0;
    return true;
}

/* Records a notice that the hub sends to all ranks. The first of each kind counts. */
void tcp_rank_hear(tcp *t)
{
    int about = (int)(t->header.rank % TCP_RANKS_MAX);
    switch (t->header.kind) {
    case TCP_DIED:
        t->died = t->died < 0 ? about : t->died;
        break;
    case TCP_LEFT:
        t->left = t->left < 0 ? about : t->left;
        break;
    case TCP_FAILED:
        t->blamed = t->has_failed < 0 ? (unsigned)t->header.number : t->blamed;
        t->has_failed = t->has_failed < 0 ? about : t->has_failed;
        break;
    case TCP_ENDED:
        tcp_text_read(t->text, t->header.bytes, t->ended);
        break;
    case TCP_STAY:
        tcp_text_read(t->text, t->header.bytes, t->stays);
        break;
    default:
        break;
    }
}

/* ---- Failure ---- */

/*
 * Fails if a notice about another rank rules out further meetings; *culprit is the rank to blame.
 */
static mgw_status look_around(const tcp *t, const char *what, bool also_left, unsigned *culprit,
                              mgw_error *error)
{
    if (t->ended[0])
        return mgw_fail(error, MGW_ERR_PEER, "%s%s",
                        strncmp(t->ended, "workers disagree", 16) ? "tcp: " : "", t->ended);
    if (t->stays[0])
        return mgw_fail(error, MGW_ERR_PEER, "%s%s", what, t->stays);
    if (t->died >= 0) {
        *culprit = (unsigned)t->died;
        return mgw_fail(error, MGW_ERR_PEER, "%srank %d has died", what, t->died);
    }
    if (t->has_failed >= 0) {
        *culprit = t->blamed;
        return mgw_fail(error, MGW_ERR_PEER, "%srank %d has failed, for rank %u", what,
                        t->has_failed, t->blamed);
    }
    if (t->left >= 0 && also_left) {
        *culprit = (unsigned)t->left;
        return mgw_fail(error, MGW_ERR_PEER, "%srank %d has left", what, t->left);
    }
    if (!t->cut || (t->left == 0 && !also_left))
        return MGW_OK;
    *culprit = 0;
    return mgw_fail(error, MGW_ERR_PEER, "%srank 0 has died", what);
}

void tcp_rank_give_up(tcp *t, unsigned culprit)
{
    const tcp_header header = {.kind = TCP_FAILED, .rank = t->rank, .number = culprit};
    t->failed = true;
    tcp_rank_send(t, &header, NULL, mgw_awake_s() + parting_s);
}

mgw_status tcp_rank_check(void *state, mgw_error *error)
{
    tcp *t = state;
    unsigned culprit = 0;
    while (tcp_rank_next(t, (tcp_awaited){0}))
        tcp_rank_hear(t);
    return look_around(t, "", false, &culprit, error);
}

void tcp_rank_say(void *state, const char *doing)
{
    tcp *t = state;
    size_t bytes = strnlen(doing, TCP_TEXT - 1);
    const tcp_header header = {.kind = TCP_SAY, .rank = t->rank, .bytes = (uint32_t)bytes};
    if (!t->failed && !t->cut && t->fd >= 0)
        tcp_rank_send(t, &header, doing, mgw_awake_s() + parting_s); /* the hub reads it at once */
}

/* ---- Meetings ---- */

/* A rank is overdue: the hub names it, or does not answer. */
static mgw_status name_missing(tcp *t, const char *what, double timeout_s, tcp_awaited result,
                               bool *over, unsigned *culprit, mgw_error *error)
{
    const tcp_header ask = {.kind = TCP_ASK, .rank = t->rank, .number = t->meetings};
    double deadline_s = mgw_awake_s() + answer_s;
    char text[TCP_TEXT];
    tcp_rank_send(t, &ask, NULL, deadline_s);
    do {
        bool heard = tcp_rank_next(t, result);
        if (heard)
            tcp_rank_hear(t);
        *over = heard && t->header.kind == TCP_RESULT;
        mgw_status status = *over ? MGW_OK : look_around(t, what, true, culprit, error);
        if (*over || status)
            return status;
        if (heard && t->header.kind == TCP_MISSING) {
            *culprit = t->header.rank;
            tcp_text_read(t->text, t->header.bytes, text);
            return mgw_fail(error, MGW_ERR_TIMEOUT, "%srank %u did not come within %.3g s%s%s%s",
                            what, *culprit, timeout_s, *text ? " (" : "", text, *text ? ")" : "");
        }
    } while (tcp_wait(t->fd, POLLIN, deadline_s));
    *culprit = 0;
    return mgw_fail(error, MGW_ERR_TIMEOUT, "%srank 0 did not answer within %.3g s", what,
                    timeout_s + answer_s);
}

static mgw_status await_result(tcp *t, const char *what, double timeout_s, tcp_awaited result,
                               unsigned *culprit, mgw_error *error)
{
    double deadline_s = mgw_awake_s() + timeout_s;
    mgw_status status = MGW_OK;
    bool over = false;
    while (!status && !over) {
        while (!over && tcp_rank_next(t, result)) {
            tcp_rank_hear(t);
            over = t->header.kind == TCP_RESULT;
        }
        if (!over)
            status = look_around(t, what, true, culprit, error);
        if (!status && !over && !tcp_wait(t->fd, POLLIN, deadline_s))
            status = name_missing(t, what, timeout_s, result, &over, culprit, error);
    }
    return status;
}

/* Sending to the hub failed for good. The hub may have reported a reason before it went away. */
static mgw_status name_deaf(tcp *t, const char *what, double timeout_s, int code, unsigned *culprit,
                            mgw_error *error)
{
    while (tcp_rank_next(t, (tcp_awaited){0}))
        tcp_rank_hear(t);
    mgw_status status = look_around(t, what, true, culprit, error);
    if (status)
        return status;
    *culprit = 0;
    if (code == EAGAIN)
        return mgw_fail(error, MGW_ERR_TIMEOUT, "%srank 0 took nothing within %.3g s", what,
                        timeout_s);
    *culprit = t->rank;
    return mgw_fail(error, MGW_ERR_IO, "%srank %u cannot send to rank 0: %s", what, t->rank,
                    strerror(code));
}

mgw_status tcp_rank_meet(tcp *t, const tcp_header *call, const void *data, size_t bytes,
                         tcp_awaited result, double timeout_s, mgw_error *error)
{
    char what[64];
    unsigned culprit = 0;
    snprintf(what, sizeof what, "%s: ", tcp_call_name(call->call));
    if (t->failed)
        return mgw_fail(error, MGW_ERR_PEER, "%sthe transport failed before; close it", what);
    tcp_header header = *call;
    header.kind = TCP_CALL;
    header.rank = t->rank;
    header.bytes = (uint32_t)bytes;
    header.number = ++t->meetings;
    /* Before sending: if the hub is gone, the send resets the connection and unread data is lost.
     */
    while (tcp_rank_next(t, (tcp_awaited){0}))
        tcp_rank_hear(t);
    mgw_status status = look_around(t, what, true, &culprit, error);
    if (!status)
        status = tcp_rank_send(t, &header, data, mgw_awake_s() + timeout_s)
                     ? await_result(t, what, timeout_s, result, &culprit, error)
                     : name_deaf(t, what, timeout_s, errno, &culprit, error);
    if (status)
        tcp_rank_give_up(t, culprit);
    return status;
}

/* ---- Collectives ---- */

/* The header of a call, without the count and the root of its parts. */
static tcp_header header_of(const mgw_transport_call *call, unsigned root)
{
    bool sums = call->kind != MGW_PULL && call->kind != MGW_ALL_GATHER;
    tcp_header header = {.call = tcp_call_make(call->kind, sums ? call->dtype : 0,
                                               sums ? call->op : 0, root, call->count),
                         .purpose = call->purpose};
    if (call->segments)
        header.segments = mgw_hash(call->segments, call->segment_count * sizeof *call->segments);
    return header;
}

static mgw_status meet_for(tcp *t, const mgw_transport_call *call, unsigned root, size_t first,
                           size_t length, mgw_error *error)
{
    bool sums = call->kind != MGW_PULL && call->kind != MGW_ALL_GATHER;
    size_t most = TCP_PIECE / call->element;
    const tcp_header header = header_of(call, root);
    mgw_status status = MGW_OK;
    for (size_t end = first + length; !status && first < end; first += most) {
        size_t bytes = (end - first < most ? end - first : most) * call->element;
        char *data = call->data + first * call->element;
        tcp_awaited result = {(unsigned char *)data, tcp_takes(header.call, t->rank) ? bytes : 0};
        bool brings = sums || t->rank == root;
        status = tcp_rank_meet(t, &header, data, brings ? bytes : 0, result, t->timeout_s, error);
    }
    return status;
}

/* Each rank in turn broadcasts its blocks. */
static mgw_status gather(tcp *t, const mgw_transport_call *call, mgw_error *error)
{
    mgw_status status = MGW_OK;
    size_t first = 0;
    size_t length = 0;
    for (unsigned r = 0; r < t->size; r++)
        for (mgw_blocks blocks = mgw_blocks_of(call, t->size, r);
             !status && mgw_blocks_take(&blocks, SIZE_MAX, &first, &length);)
            status = meet_for(t, call, r, first, length, error);
    return status;
}

mgw_status tcp_rank_post(void *state, const mgw_transport_call *call, mgw_request *out,
                         mgw_error *error)
{
    (void)out; /* the collective is over on return */
    return call->kind == MGW_ALL_GATHER ? gather(state, call, error)
                                        : meet_for(state, call, call->root, 0, call->count, error);
}

/* The same meeting as for the call, but without data. */
mgw_status tcp_rank_meet_in_buffer(void *state, const mgw_transport_call *call, unsigned buffer,
                                   mgw_error *error)
{
    tcp *t = state;
    tcp_header header = header_of(call, 0);
    header.call =
        tcp_call_make(call->kind, call->dtype, call->op, call->root ^ buffer, call->count);
    return tcp_rank_meet(t, &header, NULL, 0, (tcp_awaited){0}, t->timeout_s, error);
}

mgw_status tcp_rank_barrier(void *state, mgw_error *error)
{
    tcp *t = state;
    const tcp_header header = {.call = tcp_call_make(TCP_BARRIER, 0, 0, 0, 0)};
    return tcp_rank_meet(t, &header, NULL, 0, (tcp_awaited){0}, t->timeout_s, error);
}
