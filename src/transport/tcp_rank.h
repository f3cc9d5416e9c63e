/* Internals of a rank's side. */
#ifndef MGW_TRANSPORT_TCP_RANK_H
#define MGW_TRANSPORT_TCP_RANK_H

#include "transport/tcp.h"

/* An allocation, freed on close; the memory begins ALIGNMENT bytes after it. */
typedef struct tcp_block {
    struct tcp_block *next;
} tcp_block;

typedef struct tcp {
    unsigned rank;
    unsigned size;
    double timeout_s;
    int fd;
    tcp_hub *hub;      /* on rank 0, or after a failure on the rank that replaced it */
    uint64_t meetings; /* that this rank has joined */
    bool failed;       /* it can only be closed */
    tcp_block *blocks;

    unsigned char head[TCP_HEADER]; /* of the incoming frame, */
    size_t head_got;
    tcp_header header;
    unsigned char text[TCP_MEMBERS_MOST]; /* and its payload, if that is text */
    size_t got;

    int died; /* a rank, or -1 */
    int left;
    int has_failed;
    unsigned blamed;
    bool cut;        /* the connection broke: the hub is gone, and rank 0 with it; */
    bool is_silence; /* or the hub went silent */
    double heard_s;  /* last time the connection worked; counts time stopped, too */
    char ended[TCP_TEXT];
    char stays[TCP_TEXT]; /* why this rank does not continue after a failure, or empty */

    tcp_party party;   /* its strings are copies */
    unsigned hub_rank; /* the hub's rank */
    tcp_place here;    /* where others can reach this rank, */
    bool anywhere;     /* which listens at all addresses of its host */
    uint16_t port;     /* of the haven */
    int haven;         /* where others come after a failure, if this rank is the lowest; or -1 */
    tcp_place *havens;
    int listener; /* where the group joins after a failure, if this rank is its first; or -1 */
    bool gone_on; /* with others: the haven stays open until the process ends */
} tcp;

/* The result a caller waits for; if none: null, 0. */
typedef struct tcp_awaited {
    unsigned char *data;
    size_t bytes;
} tcp_awaited;

/* ---- tcp.c ---- */

bool tcp_rank_send(tcp *t, const tcp_header *header, const void *data, double deadline_s);

/* Whether a complete frame has arrived. Never waits. */
bool tcp_rank_next(tcp *t, tcp_awaited result);

/* Records the frame if it is a notice to all ranks. */
void tcp_rank_hear(tcp *t);

/* The job is over for this rank, which blames `culprit`: tells the others. */
void tcp_rank_give_up(tcp *t, unsigned culprit);

/* Sends a part to the next meeting, and receives the result. `call` is the call's header. */
MGW_CHECKED mgw_status tcp_rank_meet(tcp *t, const tcp_header *call, const void *data, size_t bytes,
                                     tcp_awaited result, double timeout_s, mgw_error *error);

mgw_status tcp_rank_check(void *state, mgw_error *error);
void tcp_rank_say(void *state, const char *doing);
mgw_status tcp_rank_meet_in_buffer(void *state, const mgw_transport_call *call, unsigned buffer,
                                   mgw_error *error);
mgw_status tcp_rank_post(void *state, const mgw_transport_call *call, mgw_request *out,
                         mgw_error *error);
mgw_status tcp_rank_barrier(void *state, mgw_error *error);

/* ---- tcp_survive.c ---- */

/* How long ranks that are alive have to come after a failure. */
double tcp_coming_s(const tcp *t);

/* And to join again once the group is decided. */
double tcp_joining_s(const tcp *t);

/* Opens a socket that listens at this rank's address. */
int tcp_rank_listen(const tcp *t, uint16_t *port);

mgw_status tcp_survive(void *state, unsigned round, mgw_survivors *out, mgw_error *error);

/* Leaves the hub; `away`: to continue elsewhere. */
void tcp_rank_leave(tcp *t, bool away);

#endif
