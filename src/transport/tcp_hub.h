/* Internals of the hub, used by one thread only. */
#ifndef MGW_TRANSPORT_TCP_HUB_H
#define MGW_TRANSPORT_TCP_HUB_H

#include "transport/tcp.h"

/* The number of strangers at a time, and how long each has to identify itself. */
enum { TCP_STRANGERS = 128 };
static const double tcp_greeting_s = 5;
/* How long replacements may come for ranks that were refused. */
static const double tcp_grace_s = 10;

typedef enum tcp_phase { TCP_ABSENT, TCP_GREETING, TCP_PROVING, TCP_PRESENT, TCP_GONE } tcp_phase;

/* The other end of a connection. */
typedef struct tcp_peer {
    int fd; /* -1: none */
    tcp_phase phase;
    bool refused;      /* for an absent rank: a stranger that claimed to be it was refused */
    bool broken;       /* not handled yet, */
    int code;          /* and why: errno, or 0 if it was closed */
    bool deaf;         /* it accepts no more data */
    double deadline_s; /* for a stranger */
    char from[64];     /* its address */
    tcp_hello hello;
    tcp_challenge challenge;

    unsigned char head[TCP_HEADER]; /* of the incoming frame, */
    size_t head_got;
    tcp_header header;
    unsigned char *in; /* and its payload */
    size_t in_got;
    size_t in_room;

    unsigned char *out; /* data not sent yet: from … to */
    size_t out_from;
    size_t out_to;
    size_t out_room;

    tcp_part part; /* its part of the meeting `come`, and the buffer of that */
    size_t part_room;
    uint64_t come; /* the last meeting it came to */
    char doing[TCP_TEXT];
} tcp_peer;

/* The state of a rank that is not connected, or has not come, after a failure. */
typedef enum tcp_fate {
    TCP_UNKNOWN,
    TCP_DEAD,   /* its process has ended, according to its host, or it has left the job */
    TCP_TOLD,   /* it is connected, and has been told that it does not continue */
    TCP_AWAY,   /* it continues elsewhere, or wants to */
    TCP_SILENT, /* it has been silent for long */
} tcp_fate;

typedef struct tcp_return {
    tcp_fate fate;
    bool came;     /* wants to continue, */
    uint16_t port; /* and listens there if it becomes rank 0 */
    int probe;     /* a pending connection attempt, or -1 */
    double next_s; /* time of the next attempt */
} tcp_return;

struct tcp_hub {
    unsigned size;
    tcp_party party; /* its strings are copies */
    pthread_t thread;
    int listener; /* -1 once all ranks have joined */
    tcp_peer strangers[TCP_STRANGERS];
    tcp_peer *ranks;
    tcp_part *parts;      /* for a meeting */
    unsigned char *room;  /* for one piece */
    struct pollfd *polls; /* room for all connections and the listener */
    tcp_peer **polled;
    unsigned present;       /* ranks that have ever joined */
    uint64_t meetings;      /* completed so far */
    unsigned refused;       /* strangers, */
    char last_refused[200]; /* and the reason of the last one */
    unsigned unknown;       /* refused, may be ranks of this job, but not known which; */
    double doubted_s;       /*   when a rank was last refused or let in, */
    char doubted[200];      /*   and why */
    char ended[TCP_TEXT];   /* why the job is over, or empty */
    bool leaving;           /* the hub's own rank has left */

    int haven;           /* where ranks come after a failure */
    tcp_place *havens;   /* of all ranks */
    tcp_return *returns; /* of all ranks, after a failure */
    bool out_of_touch;
    bool decides;   /* a rank wants to continue, */
    double since_s; /*   since then */
    double coming_s;
    double joining_s;
    unsigned decisions; /* so far */
};

/* ---- tcp_peer.c: frames to and from one connection ---- */

void tcp_peer_close(tcp_peer *peer);

/* Sends as much as possible now, and keeps the rest. */
void tcp_peer_send(tcp_peer *peer, const tcp_header *header, const void *data);
void tcp_peer_say(tcp_peer *peer, tcp_kind kind, unsigned rank, const char *text);
void tcp_peer_flush(tcp_peer *peer);

/*
 * Whether a whole frame is in `header` and `in`. Never waits. `only` is the one kind accepted, or 0
 * for any. Sets broken.
 */
bool tcp_peer_next(tcp_peer *peer, tcp_kind only);

/* ---- tcp_greet.c: strangers become ranks ---- */

/* Accepts connections, and reads strangers' greetings. */
void tcp_greet_accept(tcp_hub *hub);
void tcp_greet_read(tcp_hub *hub, tcp_peer *stranger);

/*
 * Disconnects strangers whose time is up, and gives up if only refused ranks are missing. Returns
 * the next deadline, or 0.
 */
double tcp_greet_expire(tcp_hub *hub);

/* No more ranks are expected. */
void tcp_greet_close(tcp_hub *hub);

/* ---- tcp_decide.c: who goes on after a failure ---- */

/* A rank wants to continue. */
void tcp_decide_come(tcp_hub *hub, unsigned rank);

/* Records why a rank is no longer connected. */
void tcp_decide_note(tcp_hub *hub, unsigned rank, tcp_kind kind, bool away);

/*
 * Probes missing ranks, and decides when it is time. `quiet`: there is nothing left to read,
 * including data that arrived while this process was stopped.
 */
void tcp_decide_step(tcp_hub *hub, bool quiet);

/* The job is over: tells all ranks why. */
void tcp_hub_give_up(tcp_hub *hub, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
