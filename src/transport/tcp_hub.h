/* The inside of the hub, which is one thread's. */
#ifndef MGW_TRANSPORT_TCP_HUB_H
#define MGW_TRANSPORT_TCP_HUB_H

#include "transport/tcp.h"

/* At most so many strangers at once, each with so long to say who it is. */
enum { TCP_STRANGERS = 128 };
static const double tcp_greeting_s = 5;
/* How long others may come for ranks that were refused. */
static const double tcp_grace_s = 10;

typedef enum tcp_phase { TCP_ABSENT, TCP_GREETING, TCP_PROVING, TCP_PRESENT, TCP_GONE } tcp_phase;

/* The other end of a connection. */
typedef struct tcp_peer {
    int fd; /* -1: none */
    tcp_phase phase;
    bool refused;      /* of a rank that is absent: who came for it was */
    bool broken;       /* to be seen to, */
    int code;          /*   and why: errno, or 0 if it was ended */
    bool deaf;         /* it takes nothing any more */
    double deadline_s; /* of a stranger */
    char from[64];     /* its address */
    tcp_hello hello;
    tcp_challenge challenge;

    unsigned char head[TCP_HEADER]; /* of the frame that is coming, */
    size_t head_got;
    tcp_header header;
    unsigned char *in; /*   and what follows it */
    size_t in_got;
    size_t in_room;

    unsigned char *out; /* what it has not taken yet: from … to */
    size_t out_from;
    size_t out_to;
    size_t out_room;

    tcp_part part; /* what it has brought to the meeting `come`, and room for that */
    size_t part_room;
    uint64_t come; /* the last meeting it has come to */
    char doing[TCP_TEXT];
} tcp_peer;

/* What is known of a rank that is not there, or has not come, after a failure. */
typedef enum tcp_fate {
    TCP_UNKNOWN,
    TCP_DEAD,   /* its process has ended, or it has left the job: its host says so */
    TCP_TOLD,   /* it is there, and has been told that it does not go on */
    TCP_AWAY,   /* it goes on elsewhere, or wants to */
    TCP_SILENT, /* nothing was heard of it for long */
} tcp_fate;

typedef struct tcp_return {
    tcp_fate fate;
    bool came;     /* wants to go on, */
    uint16_t port; /*   and listens there, if it is to be rank 0 */
    int probe;     /* a connection that is being tried, or -1 */
    double next_s; /* when to try another */
} tcp_return;

struct tcp_hub {
    unsigned size;
    tcp_party party; /* its strings are copies */
    pthread_t thread;
    int listener; /* -1 once all are in */
    tcp_peer strangers[TCP_STRANGERS];
    tcp_peer *ranks;
    tcp_part *parts;      /* for a meeting */
    unsigned char *room;  /* of a piece */
    struct pollfd *polls; /* as many as there can be connections, and the listener */
    tcp_peer **polled;
    unsigned present;       /* ranks that have ever been in */
    uint64_t meetings;      /* that are over */
    unsigned refused;       /* strangers, */
    char last_refused[200]; /*   and why the last one */
    unsigned unknown;       /* refused who may be ranks of this job, but nobody knows which; */
    double doubted_s;       /*   when a rank was last refused or let in, */
    char doubted[200];      /*   and why */
    char ended[TCP_TEXT];   /* why nothing more will come of this, or empty */
    bool leaving;           /* the hub's own rank has left */

    int haven;           /* where ranks come after a failure */
    tcp_place *havens;   /* of all ranks */
    tcp_return *returns; /* of all ranks, after a failure */
    bool out_of_touch;
    bool decides;   /* somebody wants to go on, */
    double since_s; /*   since then */
    double coming_s;
    double joining_s;
    unsigned decisions; /* so far */
};

/* ---- tcp_peer.c: frames to and from one connection ---- */

void tcp_peer_close(tcp_peer *peer);

/* Sends what can be sent now, and keeps the rest. */
void tcp_peer_send(tcp_peer *peer, const tcp_header *header, const void *data);
void tcp_peer_say(tcp_peer *peer, tcp_kind kind, unsigned rank, const char *text);
void tcp_peer_flush(tcp_peer *peer);

/* Whether a whole frame is in header and in. Does not wait. `most` is the one kind that is taken,
 * or 0 for any. Sets broken. */
bool tcp_peer_next(tcp_peer *peer, tcp_kind only);

/* ---- tcp_greet.c: strangers become ranks ---- */

/* Takes who is there, and listens to strangers. */
void tcp_greet_accept(tcp_hub *hub);
void tcp_greet_read(tcp_hub *hub, tcp_peer *stranger);

/* Sends those away who have had their time, and gives up if only refused ranks are missing; until
 * when the next has, or 0. */
double tcp_greet_expire(tcp_hub *hub);

/* Nobody more is expected. */
void tcp_greet_close(tcp_hub *hub);

/* ---- tcp_decide.c: who goes on after a failure ---- */

/* A rank wants to. */
void tcp_decide_come(tcp_hub *hub, unsigned rank);

/* A rank is not connected any more: why. */
void tcp_decide_note(tcp_hub *hub, unsigned rank, tcp_kind kind, bool away);

/* Looks after those who are missing, and decides if it is time. `quiet`: nothing is there to be
 * read: also what came while this process was stopped has been. */
void tcp_decide_step(tcp_hub *hub, bool quiet);

/* Nothing more will come of this job: everybody hears why. */
void tcp_hub_give_up(tcp_hub *hub, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
