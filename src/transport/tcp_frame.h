/*
 * The wire format of the TCP channel: frames, each a header and a payload. Numbers are
 * little-endian. Input from outside is validated here and nowhere else.
 */
#ifndef MGW_TRANSPORT_TCP_FRAME_H
#define MGW_TRANSPORT_TCP_FRAME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    TCP_PROTOCOL = 2,
    TCP_HEADER = 48,
    TCP_PIECE = 256 * 1024, /* the largest payload of numbers in a frame */
    TCP_JOB = 512,          /* of a job's name */
    TCP_TEXT = 320,         /* of a text message, with its terminator */
    TCP_VERSION = 24,
    TCP_NONCE = 32,
    TCP_MAC = 32,
    TCP_PLACE = 24,
    TCP_RANKS_MAX = 4096,
    TCP_MEMBERS_MOST = TCP_RANKS_MAX / 8,
};

typedef enum tcp_kind {
    TCP_HELLO = 1, /* handshake: from a rank, */
    TCP_CHALLENGE, /* from the hub, */
    TCP_PROOF,     /* from the rank, */
    TCP_WELCOME,   /* from the hub; */
    TCP_REFUSED,   /* or a refusal, with the reason as text */
    TCP_CALL,      /* a rank joins a meeting, with its part */
    TCP_RESULT,    /* all ranks have: the result */
    TCP_ASK,       /* from a rank: who is missing at my meeting? */
    TCP_MISSING,   /* from the hub: that rank; and as text what is known of it */
    TCP_SAY,       /* from a rank: what it is doing, as text */
    TCP_DIED,      /* from the hub: that rank's connection broke; */
    TCP_LEFT,      /* it left (from a rank: I leave; `number` is 1 if it continues elsewhere); */
    TCP_FAILED,    /* it failed, `number` is the rank it blames (from a rank: I failed) */
    TCP_ENDED,     /* from the hub: the job is over, with the reason as text */
    TCP_COME,    /* after a failure, from a rank: I want to continue, and can listen at `number` */
    TCP_MEMBERS, /* from the hub: these continue, one bit each; `rank` listens at port `number` */
    TCP_STAY,    /* from the hub: you do not continue, with the reason as text */
    TCP_KINDS,
} tcp_kind;

typedef struct tcp_header {
    tcp_kind kind;
    uint32_t rank;
    uint32_t bytes;    /* of the payload */
    uint64_t number;   /* of the meeting */
    uint64_t call;     /* the meeting's call, from tcp_call_make, */
    uint64_t purpose;  /* as in transport.h, */
    uint64_t segments; /* and a hash of the segments, or 0 */
} tcp_header;

/* Flags of a greeting. */
enum { TCP_HAS_SECRET = 1, TCP_IS_BIG = 2 /* it is big-endian */ };

typedef struct tcp_hello {
    uint32_t protocol;
    uint32_t flags;
    uint32_t size;
    uint32_t rank;
    char version[TCP_VERSION]; /* of the library, null-terminated */
    unsigned char nonce[TCP_NONCE];
    char job[TCP_JOB + 1]; /* null-terminated */
} tcp_hello;

typedef struct tcp_challenge {
    uint32_t protocol;
    uint32_t flags;
    char version[TCP_VERSION];
    unsigned char nonce[TCP_NONCE];
} tcp_challenge;

/* The address at which a rank can be reached. */
typedef struct tcp_place {
    uint8_t family; /* 4 or 6; 0: on the sender's host */
    uint16_t port;
    uint32_t scope;
    unsigned char address[16];
} tcp_place;

enum {
    TCP_HELLO_LEAST = 16 + TCP_VERSION + TCP_NONCE,
    TCP_HELLO_MOST = TCP_HELLO_LEAST + TCP_JOB,
    TCP_CHALLENGE_SIZE = 8 + TCP_VERSION + TCP_NONCE,
};

/* Encodes a call as one number, which must be the same on all ranks. */
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

/* False: it is no header, or its payload is larger than its kind allows. */
bool tcp_header_read(const unsigned char *data, tcp_header *out);

/* Return the number of bytes written. */
size_t tcp_hello_write(const tcp_hello *hello, unsigned char out[TCP_HELLO_MOST]);
size_t tcp_challenge_write(const tcp_challenge *challenge, unsigned char out[TCP_CHALLENGE_SIZE]);

/* False: it is not one. For another protocol version only that version and the flags are read. */
bool tcp_hello_read(const unsigned char *data, size_t bytes, tcp_hello *out);
bool tcp_challenge_read(const unsigned char *data, size_t bytes, tcp_challenge *out);

void tcp_place_write(const tcp_place *place, unsigned char out[TCP_PLACE]);
tcp_place tcp_place_read(const unsigned char *data);

/* Sanitizes text from outside for an error: printable, null-terminated, truncated if necessary. */
void tcp_text_read(const unsigned char *data, size_t bytes, char out[TCP_TEXT]);

#endif
