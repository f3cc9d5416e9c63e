/* Encodes and decodes frames. */
#include "transport/tcp_frame.h"

#include <string.h>

static const unsigned char magic[4] = {'m', 'g', 'w', 't'};

static unsigned char *put(unsigned char *at, uint64_t value, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        at[i] = (unsigned char)(value >> 8 * i);
    return at + bytes;
}

static uint64_t get(const unsigned char **at, size_t bytes)
{
    uint64_t value = 0;
    for (size_t i = 0; i < bytes; i++)
        value |= (uint64_t)(*at)[i] << 8 * i;
    *at += bytes;
    return value;
}

static unsigned char *put_bytes(unsigned char *at, const void *data, size_t bytes)
{
    memcpy(at, data, bytes);
    return at + bytes;
}

static void get_bytes(const unsigned char **at, void *out, size_t bytes)
{
    memcpy(out, *at, bytes);
    *at += bytes;
}

/* ---- Headers ---- */

static size_t most_bytes(tcp_kind kind)
{
    switch (kind) {
    case TCP_HELLO:
        return TCP_HELLO_MOST;
    case TCP_CHALLENGE:
        return TCP_CHALLENGE_SIZE;
    case TCP_PROOF:
    case TCP_WELCOME:
        return TCP_MAC;
    case TCP_CALL:
    case TCP_RESULT:
        return TCP_PIECE;
    case TCP_REFUSED:
    case TCP_MISSING:
    case TCP_STAY:
    case TCP_SAY:
    case TCP_ENDED:
        return TCP_TEXT - 1;
    case TCP_MEMBERS:
        return TCP_MEMBERS_MOST;
    default:
        return 0;
    }
}

void tcp_header_write(const tcp_header *header, unsigned char out[TCP_HEADER])
{
    unsigned char *at = put_bytes(out, magic, sizeof magic);
    at = put(at, header->kind, 4);
    at = put(at, header->rank, 4);
    at = put(at, header->bytes, 4);
    at = put(at, header->number, 8);
    at = put(at, header->call, 8);
    at = put(at, header->purpose, 8);
    put(at, header->segments, 8);
}

bool tcp_header_read(const unsigned char *data, tcp_header *out)
{
    const unsigned char *at = data + sizeof magic;
    if (memcmp(data, magic, sizeof magic) != 0)
        return false;
    uint64_t kind = get(&at, 4);
    if (kind < TCP_HELLO || kind >= TCP_KINDS)
        return false;
    out->kind = (tcp_kind)kind;
    out->rank = (uint32_t)get(&at, 4);
    out->bytes = (uint32_t)get(&at, 4);
    out->number = get(&at, 8);
    out->call = get(&at, 8);
    out->purpose = get(&at, 8);
    out->segments = get(&at, 8);
    return out->bytes <= most_bytes(out->kind);
}

/* ---- Greetings ---- */

size_t tcp_hello_write(const tcp_hello *hello, unsigned char out[TCP_HELLO_MOST])
{
    unsigned char *at = put(out, hello->protocol, 4);
    at = put(at, hello->flags, 4);
    at = put(at, hello->size, 4);
    at = put(at, hello->rank, 4);
    at = put_bytes(at, hello->version, TCP_VERSION);
    at = put_bytes(at, hello->nonce, TCP_NONCE);
    at = put_bytes(at, hello->job, strnlen(hello->job, TCP_JOB));
    return (size_t)(at - out);
}

size_t tcp_challenge_write(const tcp_challenge *challenge, unsigned char out[TCP_CHALLENGE_SIZE])
{
    unsigned char *at = put(out, challenge->protocol, 4);
    at = put(at, challenge->flags, 4);
    at = put_bytes(at, challenge->version, TCP_VERSION);
    put_bytes(at, challenge->nonce, TCP_NONCE);
    return TCP_CHALLENGE_SIZE;
}

/* A version is null-terminated and has only the characters of versions. */
static bool is_version(const char version[TCP_VERSION])
{
    size_t length = strnlen(version, TCP_VERSION);
    for (size_t i = 0; i < length; i++)
        if (version[i] <= ' ' || version[i] > '~')
            return false;
    return length < TCP_VERSION;
}

bool tcp_hello_read(const unsigned char *data, size_t bytes, tcp_hello *out)
{
    const unsigned char *at = data;
    memset(out, 0, sizeof *out);
    if (bytes < 8)
        return false;
    out->protocol = (uint32_t)get(&at, 4);
    out->flags = (uint32_t)get(&at, 4);
    if (out->protocol != TCP_PROTOCOL)
        return true;
    if (bytes < TCP_HELLO_LEAST || bytes > TCP_HELLO_MOST)
        return false;
    out->size = (uint32_t)get(&at, 4);
    out->rank = (uint32_t)get(&at, 4);
    get_bytes(&at, out->version, TCP_VERSION);
    get_bytes(&at, out->nonce, TCP_NONCE);
    get_bytes(&at, out->job, bytes - TCP_HELLO_LEAST);
    return is_version(out->version) && strlen(out->job) == bytes - TCP_HELLO_LEAST;
}

bool tcp_challenge_read(const unsigned char *data, size_t bytes, tcp_challenge *out)
{
    const unsigned char *at = data;
    memset(out, 0, sizeof *out);
    if (bytes < 8)
        return false;
    out->protocol = (uint32_t)get(&at, 4);
    out->flags = (uint32_t)get(&at, 4);
    if (out->protocol != TCP_PROTOCOL)
        return true;
    if (bytes != TCP_CHALLENGE_SIZE)
        return false;
    get_bytes(&at, out->version, TCP_VERSION);
    get_bytes(&at, out->nonce, TCP_NONCE);
    return is_version(out->version);
}

/* ---- Places ---- */

void tcp_place_write(const tcp_place *place, unsigned char out[TCP_PLACE])
{
    unsigned char *at = put(out, place->family, 2);
    at = put(at, place->port, 2);
    at = put(at, place->scope, 4);
    put_bytes(at, place->address, sizeof place->address);
}

tcp_place tcp_place_read(const unsigned char *data)
{
    tcp_place place = {0};
    const unsigned char *at = data;
    uint64_t family = get(&at, 2);
    place.family = family == 4 || family == 6 ? (uint8_t)family : 0;
    place.port = (uint16_t)get(&at, 2);
    place.scope = (uint32_t)get(&at, 4);
    get_bytes(&at, place.address, sizeof place.address);
    return place;
}

void tcp_text_read(const unsigned char *data, size_t bytes, char out[TCP_TEXT])
{
    size_t length = bytes < TCP_TEXT - 1 ? bytes : TCP_TEXT - 1;
    for (size_t i = 0; i < length; i++)
        out[i] = data[i] >= ' ' && data[i] != 0x7f ? (char)data[i] : '?';
    out[length] = '\0';
}

/* ---- Calls ---- */

uint64_t tcp_call_make(unsigned kind, unsigned dtype, unsigned op, unsigned root, uint64_t count)
{
    return kind | (uint64_t)dtype << 4 | (uint64_t)op << 8 | (uint64_t)root << 12 | count << 24;
}

tcp_call tcp_call_read(uint64_t call)
{
    return (tcp_call){(unsigned)(call & 15), (unsigned)(call >> 4 & 15), (unsigned)(call >> 8 & 15),
                      (unsigned)(call >> 12 & 4095), call >> 24};
}
