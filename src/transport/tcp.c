/* The transport over TCP, a rank's side: it comes to meetings at the hub, and hears from there who
 * has died, left or failed. For what workers have to agree on; gradients are too large for it. */
#include "transport/tcp.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "base/status.h"
#include "transport/blocks.h"

enum { ALIGNMENT = 64, TOGETHER = 4096 /* bytes that are sent with their header */ };

/* How long the hub has to say who is missing. */
static const double answer_s = 2;
static const double parting_s = 1;

/* What was allocated, to be freed at the end; the memory begins ALIGNMENT behind it. */
typedef struct tcp_block {
    struct tcp_block *next;
} tcp_block;

typedef struct tcp {
    unsigned rank;
    unsigned size;
    double timeout_s;
    int fd;
    tcp_hub *hub;      /* rank 0's */
    uint64_t meetings; /* that this rank has come to */
    bool failed;       /* only closing is left */
    tcp_block *blocks;

    unsigned char head[TCP_HEADER]; /* of the frame that is coming, */
    size_t head_got;
    tcp_header header;
    unsigned char text[TCP_TEXT]; /*   and what follows it, if these are words */
    size_t got;

    int died; /* a rank, or -1 */
    int left;
    int has_failed;
    unsigned blamed;
    bool cut; /* the connection has broken: the hub is gone, and rank 0 with it */
    char ended[TCP_TEXT];
} tcp;

/* ---- Frames ---- */

static bool send_frame(tcp *t, const tcp_header *header, const void *data, double deadline_s)
{
    unsigned char small[TCP_HEADER + TOGETHER];
    size_t with = header->bytes <= TOGETHER ? header->bytes : 0;
    tcp_header_write(header, small);
    if (with)
        memcpy(small + TCP_HEADER, data, with);
    return tcp_send_all(t->fd, small, TCP_HEADER + with, deadline_s) &&
           (with == header->bytes || tcp_send_all(t->fd, data, header->bytes, deadline_s));
}

/* What somebody waits for; nothing of the kind: null, 0. */
typedef struct awaited {
    unsigned char *data;
    size_t bytes;
} awaited;

/* How many bytes came; -1: the connection has broken. */
static ptrdiff_t take(tcp *t, unsigned char *at, size_t bytes)
{
    ptrdiff_t got = tcp_receive(t->fd, at, bytes);
    t->cut |= got < 0;
    return got;
}

static bool next_frame(tcp *t, awaited result)
{
    if (t->cut)
        return false;
    if (t->head_got < TCP_HEADER) {
        ptrdiff_t got = take(t, t->head + t->head_got, TCP_HEADER - t->head_got);
        t->head_got += got > 0 ? (size_t)got : 0;
        if (t->head_got < TCP_HEADER)
            return false;
        t->got = 0;
        t->cut = !tcp_header_read(t->head, &t->header) ||
                 (t->header.kind == TCP_RESULT ? t->header.bytes != result.bytes
                                               : t->header.bytes >= TCP_TEXT);
        if (t->cut)
            return false;
    }
    unsigned char *at = t->header.kind == TCP_RESULT ? result.data : t->text;
    if (t->got < t->header.bytes) {
        ptrdiff_t got = take(t, at + t->got, t->header.bytes - t->got);
        t->got += got > 0 ? (size_t)got : 0;
    }
    if (t->got < t->header.bytes)
        return false;
    t->head_got = 0;
    return true;
}

/* What the hub tells everybody. The first of each kind counts. */
static void hear(tcp *t)
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
    default:
        break;
    }
}

/* ---- Failure ---- */

/* What is known of others that ends all meetings; *culprit is whom to blame. */
static mgw_status look_around(const tcp *t, const char *what, bool also_left, unsigned *culprit,
                              mgw_error *error)
{
    if (t->ended[0])
        return mgw_fail(error, MGW_ERR_PEER, "tcp: %s", t->ended);
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

static void give_up(tcp *t, unsigned culprit)
{
    const tcp_header header = {.kind = TCP_FAILED, .rank = t->rank, .number = culprit};
    t->failed = true;
    send_frame(t, &header, NULL, mgw_now_s() + parting_s);
}

static mgw_status tcp_check(void *state, mgw_error *error)
{
    tcp *t = state;
    unsigned culprit = 0;
    while (next_frame(t, (awaited){0}))
        hear(t);
    return look_around(t, "", false, &culprit, error);
}

static void tcp_say(void *state, const char *doing)
{
    tcp *t = state;
    size_t bytes = strnlen(doing, TCP_TEXT - 1);
    const tcp_header header = {.kind = TCP_SAY, .rank = t->rank, .bytes = (uint32_t)bytes};
    if (!t->failed && !t->cut)
        send_frame(t, &header, doing, mgw_now_s() + parting_s); /* the hub reads at once */
}

/* ---- Meetings ---- */

/* Somebody is overdue: the hub knows who, or does not answer. */
static mgw_status name_missing(tcp *t, const char *what, double timeout_s, awaited result,
                               bool *over, unsigned *culprit, mgw_error *error)
{
    const tcp_header ask = {.kind = TCP_ASK, .rank = t->rank, .number = t->meetings};
    double deadline_s = mgw_now_s() + answer_s;
    char text[TCP_TEXT];
    send_frame(t, &ask, NULL, deadline_s);
    do {
        bool heard = next_frame(t, result);
        if (heard)
            hear(t);
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

static mgw_status await_result(tcp *t, const char *what, double timeout_s, awaited result,
                               unsigned *culprit, mgw_error *error)
{
    double deadline_s = mgw_now_s() + timeout_s;
    mgw_status status = MGW_OK;
    bool over = false;
    while (!status && !over) {
        while (!over && next_frame(t, result)) {
            hear(t);
            over = t->header.kind == TCP_RESULT;
        }
        if (!over)
            status = look_around(t, what, true, culprit, error);
        if (!status && !over && !tcp_wait(t->fd, POLLIN, deadline_s))
            status = name_missing(t, what, timeout_s, result, &over, culprit, error);
    }
    return status;
}

/* Brings a part to the next meeting, and takes what comes of it. */
static mgw_status meet(tcp *t, uint64_t call, const void *data, size_t bytes, awaited result,
                       double timeout_s, mgw_error *error)
{
    char what[64];
    unsigned culprit = 0;
    snprintf(what, sizeof what, "%s: ", tcp_call_name(call));
    if (t->failed)
        return mgw_fail(error, MGW_ERR_PEER, "%sthe transport failed before; close it", what);
    const tcp_header header = {.kind = TCP_CALL,
                               .rank = t->rank,
                               .bytes = (uint32_t)bytes,
                               .number = ++t->meetings,
                               .call = call};
    while (next_frame(t, (awaited){0})) /* before sending: a hub that is gone would take it back */
        hear(t);
    mgw_status status = look_around(t, what, true, &culprit, error);
    if (!status) {
        send_frame(t, &header, data, mgw_now_s() + timeout_s); /* why it fails is read now */
        status = await_result(t, what, timeout_s, result, &culprit, error);
    }
    if (status)
        give_up(t, culprit);
    return status;
}

/* ---- Collectives ---- */

static mgw_status meet_for(tcp *t, const mgw_transport_call *call, unsigned root, size_t first,
                           size_t length, mgw_error *error)
{
    bool sums = call->kind != MGW_PULL && call->kind != MGW_ALL_GATHER;
    size_t most = TCP_PIECE / call->element;
    uint64_t number = tcp_call_make(call->kind, sums ? call->dtype : 0, sums ? call->op : 0, root,
                                    sums || call->kind == MGW_PULL ? call->count : length);
    mgw_status status = MGW_OK;
    for (size_t end = first + length; !status && first < end; first += most) {
        size_t bytes = (end - first < most ? end - first : most) * call->element;
        char *data = call->data + first * call->element;
        awaited result = {(unsigned char *)data, tcp_takes(number, t->rank) ? bytes : 0};
        bool brings = sums || t->rank == root;
        status = meet(t, number, data, brings ? bytes : 0, result, t->timeout_s, error);
    }
    return status;
}

/* Each rank in turn hands out its blocks. */
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

static mgw_status tcp_post(void *state, const mgw_transport_call *call, mgw_request *out,
                           mgw_error *error)
{
    (void)out; /* it is over on return */
    return call->kind == MGW_ALL_GATHER ? gather(state, call, error)
                                        : meet_for(state, call, call->root, 0, call->count, error);
}

static mgw_status tcp_barrier(void *state, mgw_error *error)
{
    tcp *t = state;
    return meet(t, tcp_call_make(TCP_BARRIER, 0, 0, 0, 0), NULL, 0, (awaited){0}, t->timeout_s,
                error);
}

/* ---- Life ---- */

static mgw_status tcp_allocate(void *state, size_t bytes, void **out, mgw_error *error)
{
    tcp *t = state;
    if (bytes > SIZE_MAX - 2 * ALIGNMENT)
        return mgw_fail_memory(error, "tcp");
    size_t size = ALIGNMENT + (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    tcp_block *made = aligned_alloc(ALIGNMENT, size);
    if (!made)
        return mgw_fail_memory(error, "tcp");
    memset(made, 0, size);
    made->next = t->blocks;
    t->blocks = made;
    *out = (char *)made + ALIGNMENT;
    return MGW_OK;
}

static void tcp_close(void *state)
{
    tcp *t = state;
    const tcp_header leave = {.kind = TCP_LEFT, .rank = t->rank};
    if (t->fd >= 0) { /* then until the hub hangs up: what was not read would take this back */
        double deadline_s = mgw_now_s() + parting_s;
        send_frame(t, &leave, NULL, deadline_s);
        shutdown(t->fd, SHUT_WR);
        while (next_frame(t, (awaited){0}) ||
               (!t->cut && tcp_wait(t->fd, POLLIN, deadline_s) && mgw_now_s() < deadline_s))
            continue;
        tcp_drop(t->fd);
    }
    tcp_hub_end(t->hub);
    for (tcp_block *b = t->blocks, *next = NULL; b; b = next) {
        next = b->next;
        free(b);
    }
    free(t);
}

static mgw_status connect_to_hub(tcp *t, const mgw_transport_setup *setup, const tcp_party *party,
                                 mgw_error *error)
{
    tcp_address address = {.fd = -1};
    int listener = -1;
    mgw_status status =
        party->size > 1 ? tcp_address_read(setup->options.address, &address, error) : MGW_OK;
    if (!status && party->rank > 0 && address.fd >= 0)
        status = mgw_fail(error, MGW_ERR_ARGUMENT, "tcp: only rank 0 can be given a socket");
    if (status)
        return status;
    if (party->rank > 0)
        return tcp_join(party, &address, setup->join_s, &t->fd, error);
    if (party->size > 1)
        status = tcp_listen(&address, &listener, error);
    return status ? status : tcp_hub_start(party, listener, &t->hub, &t->fd, error);
}

static mgw_status join(tcp *t, const mgw_transport_setup *setup, mgw_error *error)
{
    const mgw_transport_options *options = &setup->options;
    const char *secret = getenv("MGWFBP_SECRET");
    tcp_party party = {.rank = options->rank,
                       .size = options->size,
                       .job = options->job ? options->job : "",
                       .secret = secret && *secret ? secret : NULL};
    if (party.size > TCP_RANKS_MAX)
        return mgw_fail(error, MGW_ERR_ARGUMENT, "tcp: at most %d workers, not %u", TCP_RANKS_MAX,
                        party.size);
    if (strlen(party.job) > TCP_JOB)
        return mgw_fail(error, MGW_ERR_ARGUMENT,
                        "tcp: the name of the job has more than %d bytes: '%.60s…'", TCP_JOB,
                        party.job);
    mgw_status status = party.secret ? tcp_secret_prepare(error) : MGW_OK;
    if (!status)
        status = connect_to_hub(t, setup, &party, error);
    if (status)
        return status;
    return meet(t, tcp_call_make(TCP_JOINING, 0, 0, 0, 0), NULL, 0, (awaited){0}, setup->join_s,
                error);
}

static mgw_status tcp_open(const mgw_transport_setup *setup, void **state, mgw_error *error)
{
    tcp *t = calloc(1, sizeof *t);
    if (!t)
        return mgw_fail_memory(error, "tcp");
    t->rank = setup->options.rank;
    t->size = setup->options.size;
    t->timeout_s = setup->options.timeout_s;
    t->fd = -1;
    t->died = t->left = t->has_failed = -1;
    mgw_status status = join(t, setup, error);
    if (status)
        tcp_close(t);
    else
        *state = t;
    return status;
}

const mgw_transport_table mgw_transport_tcp = {
    .capabilities = MGW_NAMES_LATE | MGW_WAITS_ASLEEP,
    .open = tcp_open,
    .close = tcp_close,
    .check = tcp_check,
    .say = tcp_say,
    .allocate = tcp_allocate,
    .post = tcp_post,
    .barrier = tcp_barrier,
};
