/* What goes over a connection of the channel over TCP: frames, each a header and so many bytes.
 * Numbers are little-endian; what comes from outside is checked here, and nowhere else. */
#ifndef MGW_TRANSPORT_TCP_FRAME_H
#define MGW_TRANSPORT_TCP_FRAME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    TCP_PROTOCOL = 2,
    TCP_HEADER = 48,
    TCP_PIECE = 256 * 1024, /* the most bytes of numbers in a frame */
    TCP_JOB = 512,          /* of the name of a job */
    TCP_TEXT = 320,         /* of what is said in words, with its end */
    TCP_VERSION = 24,
    TCP_NONCE = 32,
    TCP_MAC = 32,
    TCP_PLACE = 24,
    TCP_RANKS_MAX = 4096,
    TCP_MEMBERS_MOST = TCP_RANKS_MAX / 8,
};

typedef enum tcp_kind {
    TCP_HELLO = 1, /* joining: a rank, */
    TCP_CHALLENGE, /*   the hub, */
    TCP_PROOF,     /*   the rank, */
    TCP_WELCOME,   /*   the hub again; */
    TCP_REFUSED,   /*   or this, with the reason in words */
    TCP_CALL,      /* a rank has come to a meeting, with its part */
    TCP_RESULT,    /* all have: this is what comes of it */
    TCP_ASK,       /* a rank: who is missing at my meeting? */
    TCP_MISSING,   /* the hub: that rank; and in words what is known of it */
    TCP_SAY,       /* a rank: what it is doing, in words */
    TCP_DIED,      /* the hub: that rank's connection has broken; */
    TCP_LEFT,    /*   it has left (from a rank: I leave; `number` is 1 if it goes on elsewhere); */
    TCP_FAILED,  /*   it has failed, `number` is the rank it blames (from a rank: I have) */
    TCP_ENDED,   /* the hub: nothing more will come of this job, with the reason in words */
    TCP_COME,    /* after a failure, a rank: I want to go on, and would listen at port `number` */
    TCP_MEMBERS, /* the hub: these do, a bit for each; `rank` listens at port `number` */
    TCP_STAY,    /* the hub: you do not, for the reason in words */
    TCP_KINDS,
} tcp_kind;

typedef struct tcp_header {
    tcp_kind kind;
    uint32_t rank;
    uint32_t bytes;    /* that follow */
    uint64_t number;   /* of the meeting */
    uint64_t call;     /* what the meeting is for: as tcp_call_make has it, */
    uint64_t purpose;  /*   as transport.h has it, */
    uint64_t segments; /*   and a hash of how it is cut, or 0 */
} tcp_header;

/* Flags of a greeting. */
enum { TCP_HAS_SECRET = 1, TCP_IS_BIG = 2 /* its numbers begin with the largest byte */ };

typedef struct tcp_hello {
    uint32_t protocol;
    uint32_t flags;
    uint32_t size;
    uint32_t rank;
    char version[TCP_VERSION]; /* of the library, ended */
    unsigned char nonce[TCP_NONCE];
    char job[TCP_JOB + 1]; /* ended */
} tcp_hello;

typedef struct tcp_challenge {
    uint32_t protocol;
    uint32_t flags;
    char version[TCP_VERSION];
    unsigned char nonce[TCP_NONCE];
} tcp_challenge;

/* Where a rank can be reached. */
typedef struct tcp_place {
    uint8_t family; /* 4 or 6; 0: on the host of who says this */
    uint16_t port;
    uint32_t scope;
    unsigned char address[16];
} tcp_place;

enum {
    TCP_HELLO_LEAST = 16 + TCP_VERSION + TCP_NONCE,
    TCP_HELLO_MOST = TCP_HELLO_LEAST + TCP_JOB,
    TCP_CHALLENGE_SIZE = 8 + TCP_VERSION + TCP_NONCE,
};

/* What a call is, in one number that must be the same on all ranks. */
uint64_t tcp_call_make(unsigned kind, unsigned dtype, unsigned op, unsigned root, uint64_t count);
typedef struct tcp_call {
    unsigned kind;
    unsigned dtype;
    unsigned op;
    unsigned root;
    uint64_t count;
} tcp_call;
tcp_call tcp_call_read(uint64_t call);

void tcp_header_write(const tcp_header *header, unsigned char out[TCP_HEADER]);

/* False: it is none, or says that more follows than its kind may have. */
bool tcp_header_read(const unsigned char *data, tcp_header *out);

/* Return how many bytes they wrote. */
size_t tcp_hello_write(const tcp_hello *hello, unsigned char out[TCP_HELLO_MOST]);
size_t tcp_challenge_write(const tcp_challenge *challenge, unsigned char out[TCP_CHALLENGE_SIZE]);

/* False: it is none. Of another protocol only that and the flags are read. */
bool tcp_hello_read(const unsigned char *data, size_t bytes, tcp_hello *out);
bool tcp_challenge_read(const unsigned char *data, size_t bytes, tcp_challenge *out);

void tcp_place_write(const tcp_place *place, unsigned char out[TCP_PLACE]);
tcp_place tcp_place_read(const unsigned char *data);

/* Words from outside, for an error: printable, ended, cut if need be. */
void tcp_text_read(const unsigned char *data, size_t bytes, char out[TCP_TEXT]);

#endif
