/* The hub of the channel over TCP under libFuzzer: whatever bytes come, from strangers or from
 * ranks that have been let in, it goes on or lets the connection go. The first byte says who speaks
 * which part: each part is a byte for the speaker, two for its length, and so many bytes. */
#include "transport/tcp_hub.c" /* its inside */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { RANKS = 3, SPEAKERS = RANKS + 2 /* strangers */ };

/* The other end of a connection of the hub's. */
static int connect_peer(tcp_peer *peer, tcp_phase phase)
{
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair))
        abort();
    *peer = (tcp_peer){.fd = pair[0], .phase = phase, .deadline_s = mgw_now_s() + 100};
    tcp_keep(pair[0]);
    return pair[1];
}

/* What it says must be frames. */
static void check_answers(int fd)
{
    unsigned char data[TCP_HEADER + TCP_PIECE];
    tcp_header header;
    while (fd >= 0 && recv(fd, data, TCP_HEADER, MSG_DONTWAIT) == TCP_HEADER) {
        if (!tcp_header_read(data, &header))
            abort();
        if (header.bytes && recv(fd, data, header.bytes, MSG_DONTWAIT) != (ssize_t)header.bytes)
            break; /* the rest had no room there */
    }
}

static void speak(tcp_hub *hub, unsigned speaker)
{
    if (speaker < RANKS && hub->ranks[speaker].phase == TCP_PRESENT)
        read_rank(hub, speaker);
    else if (speaker >= RANKS && hub->strangers[speaker - RANKS].phase != TCP_ABSENT)
        tcp_greet_read(hub, &hub->strangers[speaker - RANKS]);
    see_to_the_broken(hub);
    if (hub->decides)
        tcp_decide_step(hub, true);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const tcp_party party = {.size = RANKS, .job = "j"};
    int ends[SPEAKERS];
    tcp_hub *hub = size ? make_hub(&party) : NULL;
    if (!hub)
        return 0;
    unsigned present = 1 + data[0] % RANKS;
    set_down(hub, &(tcp_footing){.listener = -1, .haven = -1, .coming_s = 1e9});
    for (unsigned r = 0; r < RANKS; r++) {
        ends[r] = r < present ? connect_peer(&hub->ranks[r], TCP_PRESENT) : -1;
    }
    hub->present = present;
    for (unsigned i = 0; i < SPEAKERS - RANKS; i++)
        ends[RANKS + i] = connect_peer(&hub->strangers[i], TCP_GREETING);
    for (size_t at = 1; at + 3 <= size;) {
        unsigned speaker = data[at] % SPEAKERS;
        size_t bytes = data[at + 1] | (size_t)data[at + 2] << 8;
        at += 3;
        bytes = bytes < size - at ? bytes : size - at;
        if (ends[speaker] >= 0 && bytes)
            (void)!send(ends[speaker], data + at, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
        at += bytes;
        speak(hub, speaker);
    }
    tcp_greet_close(hub);
    for (unsigned s = 0; s < SPEAKERS; s++) {
        check_answers(ends[s]);
        if (ends[s] >= 0)
            close(ends[s]);
    }
    for (unsigned r = 0; r < RANKS; r++)
        tcp_peer_close(&hub->ranks[r]);
    free_hub(hub);
    return 0;
}
