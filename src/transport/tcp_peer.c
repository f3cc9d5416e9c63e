/* Frames on one connection of the hub, which never blocks on any. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "transport/tcp_hub.h"

void tcp_peer_close(tcp_peer *peer)
{
    tcp_drop(peer->fd);
    peer->fd = -1;
    free(peer->in);
    free(peer->out);
    free(peer->part.data);
    peer->in = peer->out = peer->part.data = NULL;
    peer->in_room = peer->out_room = peer->part_room = 0;
    peer->in_got = peer->head_got = peer->out_from = peer->out_to = 0;
}

void tcp_peer_flush(tcp_peer *peer)
{
    while (peer->fd >= 0 && !peer->broken && peer->out_from < peer->out_to) {
        ptrdiff_t sent =
            tcp_send(peer->fd, peer->out + peer->out_from, peer->out_to - peer->out_from);
        if (sent == 0)
            return;
        if (sent < 0) { /* data that it sent before it went away is still to be read */
            peer->code = errno;
            peer->deaf = true;
            peer->out_from = peer->out_to;
        } else {
            peer->out_from += (size_t)sent;
        }
    }
    if (peer->out_from == peer->out_to)
        peer->out_from = peer->out_to = 0;
}

static bool make_room(unsigned char **at, size_t *room, size_t wanted)
{
    if (wanted <= *room)
        return true;
    unsigned char *more = realloc(*at, wanted);
    if (!more)
        return false;
    *at = more;
    *room = wanted;
    return true;
}

static void keep(tcp_peer *peer, const void *data, size_t bytes)
{
    if (peer->deaf)
        return;
    if (peer->broken || !make_room(&peer->out, &peer->out_room, peer->out_to + bytes)) {
        peer->broken = true;
        return;
    }
    if (bytes)
        memcpy(peer->out + peer->out_to, data, bytes);
    peer->out_to += bytes;
}

void tcp_peer_send(tcp_peer *peer, const tcp_header *header, const void *data)
{
    unsigned char head[TCP_HEADER];
    if (peer->fd < 0)
        return;
    tcp_header_write(header, head);
    keep(peer, head, sizeof head);
    keep(peer, data, header->bytes);
    tcp_peer_flush(peer);
}

void tcp_peer_say(tcp_peer *peer, tcp_kind kind, unsigned rank, const char *text)
{
    size_t bytes = strnlen(text, TCP_TEXT - 1);
    tcp_peer_send(peer, &(tcp_header){.kind = kind, .rank = rank, .bytes = (uint32_t)bytes}, text);
}

/* Returns how many of the bytes arrived; 0 also if the connection broke. */
static size_t take(tcp_peer *peer, unsigned char *at, size_t bytes)
{
    ptrdiff_t got = tcp_receive(peer->fd, at, bytes);
    if (got < 0) {
        peer->code = peer->deaf ? peer->code : errno; /* the system reports the reason once */
        peer->broken = true;
    }
    return got > 0 ? (size_t)got : 0;
}

bool tcp_peer_next(tcp_peer *peer, tcp_kind only)
{
    if (peer->fd < 0 || peer->broken)
        return false;
    if (peer->head_got < TCP_HEADER) {
        peer->head_got += take(peer, peer->head + peer->head_got, TCP_HEADER - peer->head_got);
        if (peer->head_got < TCP_HEADER)
            return false;
        if (!tcp_header_read(peer->head, &peer->header) || (only && peer->header.kind != only) ||
            !make_room(&peer->in, &peer->in_room, peer->header.bytes)) {
            peer->broken = true;
            return false;
        }
        peer->in_got = 0;
    }
    if (peer->in_got < peer->header.bytes)
        peer->in_got += take(peer, peer->in + peer->in_got, peer->header.bytes - peer->in_got);
    if (peer->in_got < peer->header.bytes)
        return false;
    peer->head_got = 0;
    return true;
}
