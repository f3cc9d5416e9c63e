/* The inside of a rank's side. */
#ifndef MGW_TRANSPORT_TCP_RANK_H
#define MGW_TRANSPORT_TCP_RANK_H

#include "transport/tcp.h"

/* What was allocated, to be freed at the end; the memory begins ALIGNMENT behind it. */
typedef struct tcp_block {
    struct tcp_block *next;
} tcp_block;

typedef struct tcp {
    unsigned rank;
    unsigned size;
    double timeout_s;
    int fd;
    tcp_hub *hub;      /* rank 0's, or after a failure who has taken its place */
    uint64_t meetings; /* that this rank has come to */
    bool failed;       /* only closing is left */
    tcp_block *blocks;

    unsigned char head[TCP_HEADER]; /* of the frame that is coming, */
    size_t head_got;
    tcp_header header;
    unsigned char text[TCP_MEMBERS_MOST]; /*   and what follows it, if these are words */
    size_t got;

    int died; /* a rank, or -1 */
    int left;
    int has_failed;
    unsigned blamed;
    bool cut;        /* the connection has broken: the hub is gone, and rank 0 with it; */
    bool is_silence; /*   or nothing is heard of it */
    double heard_s;  /* when the connection was last seen to stand, stopped or not */
    char ended[TCP_TEXT];
    char stays[TCP_TEXT]; /* why this rank does not go on after a failure, or empty */

    tcp_party party;   /* its strings are copies */
    unsigned hub_rank; /* who has the hub */
    tcp_place here;    /* where others can reach this rank, */
    bool anywhere;     /*   which listens at all addresses of its host */
    uint16_t port;     /* of the haven */
    int haven;         /* where others come after a failure, if this rank is the lowest; or -1 */
    tcp_place *havens;
    int listener; /* where those join who go on with this rank, if it is their first; or -1 */
    bool gone_on; /* with others: the haven stays, until the process ends */
} tcp;

/* What somebody waits for; nothing of the kind: null, 0. */
typedef struct tcp_awaited {
    unsigned char *data;
    size_t bytes;
} tcp_awaited;

/* ---- tcp.c ---- */

bool tcp_rank_send(tcp *t, const tcp_header *header, const void *data, double deadline_s);

/* Whether a frame is there, whole. Does not wait. */
bool tcp_rank_next(tcp *t, tcp_awaited result);

/* Takes it down, if it is something that everybody is told. */
void tcp_rank_hear(tcp *t);

/* Nothing more comes of this job, for which this rank blames that one: others hear of it. */
void tcp_rank_give_up(tcp *t, unsigned culprit);

/* Brings a part to the next meeting, and takes what comes of it. `call` has what it is for. */
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

/* How long those who are alive have to come after a failure. */
double tcp_coming_s(const tcp *t);

/* And to join again, when it is said who goes on. */
double tcp_joining_s(const tcp *t);

/* A socket that listens where this rank can be reached. */
int tcp_rank_listen(const tcp *t, uint16_t *port);

mgw_status tcp_survive(void *state, unsigned round, mgw_survivors *out, mgw_error *error);

/* Leaves the hub; `away`: to go on elsewhere. */
void tcp_rank_leave(tcp *t, bool away);

#endif
