/*
 * The control channel over TCP, for workers on any hosts. Rank 0 runs a thread, the hub, that every
 * rank is connected to (rank 0 by a socket pair). All messages go through the hub.
 */
#ifndef MGW_TRANSPORT_TCP_H
#define MGW_TRANSPORT_TCP_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "transport/tcp_frame.h"
#include "transport/transport.h"

/* What a side knows before the connection is made. */
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

/* Checks that a secret can be used here: loads the library that computes its MACs. */
MGW_CHECKED mgw_status tcp_secret_prepare(mgw_error *error);

/*
 * Computes the MAC that proves, for a party's `label`, that it has the secret. The MAC covers both
 * sides' greetings. All zeros without a secret. Call tcp_secret_prepare first.
 */
void tcp_secret_prove(const char *secret, const char *label, const tcp_hello *hello,
                      const tcp_challenge *challenge, unsigned char out[TCP_MAC]);

/* Constant-time comparison. */
bool tcp_secret_equal(const unsigned char *x, const unsigned char *y);

MGW_CHECKED mgw_status tcp_secret_nonce(unsigned char out[TCP_NONCE], mgw_error *error);

/* ---- tcp_socket.c ---- */

/*
 * Registers a socket of ours. A forked child must not keep it: the connection would stay open after
 * the worker has died. The registered sockets are closed in the child.
 */
void tcp_keep(int fd);
void tcp_drop(int fd); /* closes it, too */

typedef struct tcp_address {
    char host[256];
    char port[8];
    int fd;    /* -1, or a socket that is already listening; then host is unused, */
    bool kept; /* and the socket stays with its owner: it is duplicated */
} tcp_address;

/* Prefix of such a socket's number. Only this process sets it, after a failure. */
#define TCP_KEPT "kept:"

/*
 * Accepts "HOST:PORT", "[HOST]:PORT", "fd:N" or "kept:N". Null: MGWFBP_ADDRESS, otherwise
 * MASTER_ADDR and the port after MASTER_PORT, which is PyTorch's.
 */
MGW_CHECKED mgw_status tcp_address_read(const char *given, tcp_address *out, mgw_error *error);

/* Opens a listening socket at the address, for rank 0. */
MGW_CHECKED mgw_status tcp_listen(const tcp_address *address, int *out, mgw_error *error);

/*
 * Connects to the address and retries until the deadline. Returns -1 if nobody listened; *why is
 * then the last reason.
 */
int tcp_connect(const tcp_address *address, double deadline_s, mgw_error *why);

/*
 * Sets the options of every connection: non-blocking, no delay, and broken once the other host is
 * gone.
 */
void tcp_set_up(int fd, bool network);

/* Waits for an event until a deadline; false: none came. Retries after EINTR. */
bool tcp_wait(int fd, short events, double deadline_s);

/*
 * Like send and recv, but -1 means a broken connection, with the reason in errno (0: it was
 * closed), and 0 means not now.
 */
ptrdiff_t tcp_send(int fd, const void *data, size_t bytes);
ptrdiff_t tcp_receive(int fd, void *data, size_t bytes);

/*
 * Transfers all bytes by the deadline, otherwise returns false with the reason in errno. When
 * sending, EAGAIN means that time was up.
 */
bool tcp_send_all(int fd, const void *data, size_t bytes, double deadline_s);
bool tcp_receive_all(int fd, void *data, size_t bytes, double deadline_s);

/* Whether a connection broke because the peer stopped responding: the peer may still be alive. */
bool tcp_is_silence(int code);

/* ---- tcp_place.c: where each rank can be reached when rank 0 cannot ---- */

/* The address of this end of a connection, or of the other end. */
tcp_place tcp_place_here(int fd);
tcp_place tcp_place_there(int fd);

/* A loopback address. */
bool tcp_place_is_loop(const tcp_place *place);

/* "HOST:PORT". */
void tcp_place_name(const tcp_place *place, char *out, size_t size);

/*
 * Opens a socket that listens at the place's address, or at all addresses of this host, on a port
 * that the system chooses. -1: none.
 */
int tcp_place_listen(const tcp_place *at, bool anywhere, uint16_t *port);

/* Starts a connection: *code is 0, EINPROGRESS or the reason for the failure. */
int tcp_place_connect(const tcp_place *place, int *code);

/* ---- tcp_join.c ---- */

/* The outcome of an attempt to join a hub. */
typedef enum tcp_outcome {
    TCP_IN,
    TCP_AGAIN, /* disconnected, or answered by something that is not the hub */
    TCP_OUT,   /* refused */
} tcp_outcome;

/* An attempt to join over an established connection: what has been sent so far. */
typedef struct tcp_visit {
    const tcp_party *party;
    int fd;
    double deadline_s;
    tcp_hello hello;
    tcp_challenge challenge;
    unsigned char mac[TCP_MAC];
} tcp_visit;

/* Sends the greeting, by the deadline. */
tcp_outcome tcp_visit_begin(const tcp_party *party, int fd, double deadline_s, tcp_visit *out,
                            mgw_error *why);

/* Completes the handshake, by the deadline. */
tcp_outcome tcp_visit_end(tcp_visit *visit, double deadline_s, mgw_error *why);

/* For every rank but 0: connects to the hub and completes the handshake. */
MGW_CHECKED mgw_status tcp_join(const tcp_party *party, const tcp_address *address,
                                double timeout_s, int *out, mgw_error *error);

/* ---- tcp_hub.c ---- */

typedef struct tcp_hub tcp_hub;

/* What a hub starts with. */
typedef struct tcp_footing {
    int listener; /* where ranks join, or -1: they only come after a failure. Owned by the hub */
    int haven;    /* where ranks come after a failure; not owned by the hub */
    const tcp_place *havens; /* of all ranks, or null: each rank sends its own when it joins */
    double coming_s;         /* how long to wait for missing ranks after a failure; */
    double joining_s;  /* and for ranks that may be joining the group of another hub's decision */
    bool out_of_touch; /* the previous hub went silent, and may be alive */
} tcp_footing;

/*
 * Starts the hub of a job. *own is this rank's connection to it. Ownership: the caller ends it; the
 * hub owns the listener, even if this call fails.
 */
MGW_CHECKED mgw_status tcp_hub_start(const tcp_party *party, const tcp_footing *footing,
                                     tcp_hub **out, int *own, mgw_error *error);

/* Call after the hub's own rank has left. Waits for pending sends, at most 2 s. Null is fine. */
void tcp_hub_end(tcp_hub *hub);

/* ---- tcp_meet.c: the calls and results of meetings ---- */

/*
 * Kinds besides mgw_collective. When joining, each rank sends the port of its haven and receives
 * all places.
 */
enum { TCP_BARRIER = 8, TCP_JOINING = 9, TCP_PORT = 2 };

/* For error messages. */
const char *tcp_call_name(uint64_t call);

/* A rank's contribution to a meeting. */
typedef struct tcp_part {
    uint64_t call;
    uint64_t purpose;
    uint64_t segments;
    size_t bytes;
    unsigned char *data;
} tcp_part;

/*
 * Combines the parts of all ranks. *out is the result, in `room` (one piece) or in one of the
 * parts, and *bytes its size. False: the ranks are not in the same call, or the sizes do not match.
 */
bool tcp_meet(const tcp_part *parts, unsigned size, unsigned char *room, const unsigned char **out,
              size_t *bytes);

/* After a mismatch: the error text for one rank. */
void tcp_meet_explain(const tcp_part *parts, unsigned size, unsigned rank, char text[TCP_TEXT]);

/* Whether a rank receives the result. */
bool tcp_takes(uint64_t call, unsigned rank);

#endif
