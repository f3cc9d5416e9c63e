/* The channel over TCP: what workers on any hosts agree through. Rank 0 has a thread, the hub, that
 * every rank is connected to (rank 0 by a pair of sockets); all that is said goes through it. */
#ifndef MGW_TRANSPORT_TCP_H
#define MGW_TRANSPORT_TCP_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "transport/tcp_frame.h"
#include "transport/transport.h"

/* What both sides of a connection know before it is made. */
typedef struct tcp_party {
    unsigned rank;
    unsigned size;
    const char *job;
    const char *secret; /* or null */
} tcp_party;

static inline uint32_t tcp_flags(const tcp_party *party)
{
    bool big = *(const unsigned char *)&(const uint16_t){1} == 0;
    return (party->secret ? TCP_HAS_SECRET : 0) | (big ? TCP_IS_BIG : 0);
}

/* ---- tcp_secret.c ---- */

/* Whether a secret can be used here: finds the library that makes its MACs. */
MGW_CHECKED mgw_status tcp_secret_prepare(mgw_error *error);

/* What proves, for a party's `label`, that it has the secret; of what both have said. Zeros without
 * a secret. Behind tcp_secret_prepare. */
void tcp_secret_prove(const char *secret, const char *label, const tcp_hello *hello,
                      const tcp_challenge *challenge, unsigned char out[TCP_MAC]);

/* In a time that does not tell where they differ. */
bool tcp_secret_equal(const unsigned char *x, const unsigned char *y);

MGW_CHECKED mgw_status tcp_secret_nonce(unsigned char out[TCP_NONCE], mgw_error *error);

/* ---- tcp_socket.c ---- */

/*
 * Sockets of ours. A fork must not have them: it would keep a connection open whose worker has
 * died. So they are written down, and closed there.
 */
void tcp_keep(int fd);
void tcp_drop(int fd); /* closes it, too */

typedef struct tcp_address {
    char host[256];
    char port[8];
    int fd;    /* -1, or a socket that listens already; then there is no host, */
    bool kept; /*   and it stays with who has it: a copy is taken */
} tcp_address;

/* Before the number of such a socket. Only this process says it, after a failure. */
#define TCP_KEPT "kept:"

/* "HOST:PORT", "[HOST]:PORT", "fd:N" or "kept:N"; null: MGWFBP_ADDRESS, else MASTER_ADDR and the
 * port behind MASTER_PORT, which is PyTorch's. */
MGW_CHECKED mgw_status tcp_address_read(const char *given, tcp_address *out, mgw_error *error);

/* A socket that listens there, for rank 0. */
MGW_CHECKED mgw_status tcp_listen(const tcp_address *address, int *out, mgw_error *error);

/* A connection to whoever listens there, tried again until the deadline; -1: nobody did, and *why
 * says what came last. */
int tcp_connect(const tcp_address *address, double deadline_s, mgw_error *why);

/* What every connection is: never waits, sends at once, and breaks when the other host is gone. */
void tcp_set_up(int fd, bool network);

/* One poll until a deadline; false: nothing came. Takes interruptions. */
bool tcp_wait(int fd, short events, double deadline_s);

/* As send and recv, but -1 is a broken connection, for the reason in errno (0: it was ended), and 0
 * not now. */
ptrdiff_t tcp_send(int fd, const void *data, size_t bytes);
ptrdiff_t tcp_receive(int fd, void *data, size_t bytes);

/* All of it by the deadline, or false. Then errno says why: for sending, EAGAIN if time was up. */
bool tcp_send_all(int fd, const void *data, size_t bytes, double deadline_s);
bool tcp_receive_all(int fd, void *data, size_t bytes, double deadline_s);

/* Whether a connection broke because nothing was heard any more: the other may be alive. */
bool tcp_is_silence(int code);

/* ---- tcp_place.c: where each rank can be reached when rank 0 cannot ---- */

/* Of a connection: this end, or the other one. */
tcp_place tcp_place_here(int fd);
tcp_place tcp_place_there(int fd);

/* This host, to itself. */
bool tcp_place_is_loop(const tcp_place *place);

/* "HOST:PORT". */
void tcp_place_name(const tcp_place *place, char *out, size_t size);

/* A socket that listens at the address of a place, or at all of this host's, at a port of the
 * system's choice. -1: none. */
int tcp_place_listen(const tcp_place *at, bool anywhere, uint16_t *port);

/* Begins a connection: *code is 0, EINPROGRESS or why there is none. */
int tcp_place_connect(const tcp_place *place, int *code);

/* ---- tcp_join.c ---- */

/* What comes of knocking at a hub. */
typedef enum tcp_outcome {
    TCP_IN,
    TCP_AGAIN, /* cut off, or answered by somebody who is not the hub */
    TCP_OUT,   /* refused */
} tcp_outcome;

/* Knocking, over a connection that stands: what was said so far. */
typedef struct tcp_visit {
    const tcp_party *party;
    int fd;
    double deadline_s;
    tcp_hello hello;
    tcp_challenge challenge;
    unsigned char mac[TCP_MAC];
} tcp_visit;

/* Says who it is, by the deadline. */
tcp_outcome tcp_visit_begin(const tcp_party *party, int fd, double deadline_s, tcp_visit *out,
                            mgw_error *why);

/* Then: is let in, by the deadline. */
tcp_outcome tcp_visit_end(tcp_visit *visit, double deadline_s, mgw_error *why);

/* As a rank other than 0: connects to the hub, and is let in. */
MGW_CHECKED mgw_status tcp_join(const tcp_party *party, const tcp_address *address,
                                double timeout_s, int *out, mgw_error *error);

/* ---- tcp_hub.c ---- */

typedef struct tcp_hub tcp_hub;

/* What a hub is started with. */
typedef struct tcp_footing {
    int listener; /* where ranks join, or -1: they come after a failure only. The hub's */
    int haven;    /* where they come after a failure; not the hub's */
    const tcp_place *havens; /* of all ranks, or null: they say it when they join */
    double coming_s;         /* how long to wait for those who have not come after a failure; */
    double joining_s;        /*   and for those who may be joining what another hub decided */
    bool out_of_touch;       /* nothing was heard of the hub before, which may be alive */
} tcp_footing;

/*
 * Starts the hub of a job. *own is this rank's connection to it.
 * Ownership: the caller ends it; the listener is the hub's, also after a failure.
 */
MGW_CHECKED mgw_status tcp_hub_start(const tcp_party *party, const tcp_footing *footing,
                                     tcp_hub **out, int *own, mgw_error *error);

/* After its rank has left: waits for what is still to be sent, at most 2 s. Null is fine. */
void tcp_hub_end(tcp_hub *hub);

/* ---- tcp_meet.c: what the ranks have come to, and what they take away ---- */

/* Beyond mgw_collective. To joining each rank brings the port of its haven, and takes all places.
 */
enum { TCP_BARRIER = 8, TCP_JOINING = 9, TCP_PORT = 2 };

/* For people. */
const char *tcp_call_name(uint64_t call);

/* What a rank has brought to a meeting. */
typedef struct tcp_part {
    uint64_t call;
    uint64_t purpose;
    uint64_t segments;
    size_t bytes;
    unsigned char *data;
} tcp_part;

/*
 * All ranks' parts are there: where what comes of it is, `room` of a piece or one of the parts; and
 * how many bytes. False: they are not in the same call, or do not fit.
 */
bool tcp_meet(const tcp_part *parts, unsigned size, unsigned char *room, const unsigned char **out,
              size_t *bytes);

/* Then what a rank is told of it. */
void tcp_meet_explain(const tcp_part *parts, unsigned size, unsigned rank, char text[TCP_TEXT]);

/* Whether a rank gets it. */
bool tcp_takes(uint64_t call, unsigned rank);

#endif
