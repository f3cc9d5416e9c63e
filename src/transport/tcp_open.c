/* How a rank of the transport over TCP joins the job and leaves it. */
#include <netdb.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "base/status.h"
#include "transport/tcp_rank.h"

enum { ALIGNMENT = 64 };

static mgw_status tcp_allocate(void *state, size_t bytes, void **out, mgw_error *error)
{
    tcp *t = state;
    if (bytes > SIZE_MAX - 2 * ALIGNMENT)
        return mgw_fail_memory(error, "tcp");
    size_t size = ALIGNMENT + (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    tcp_block *made = aligned_alloc(ALIGNMENT, size);
    if (!made)
        return mgw_fail_memory(error, "tcp");
    memset(made, 0, size);
    made->next = t->blocks;
    t->blocks = made;
    *out = (char *)made + ALIGNMENT;
    return MGW_OK;
}

static void tcp_close(void *state)
{
    tcp *t = state;
    tcp_rank_leave(t, t->gone_on);
    tcp_hub_end(t->hub);
    tcp_drop(t->listener);
    if (!t->gone_on)
        tcp_drop(t->haven);
    for (tcp_block *b = t->blocks, *next = NULL; b; b = next) {
        next = b->next;
        free(b);
    }
    free((void *)t->party.job);
    free((void *)t->party.secret);
    free(t->havens);
    free(t);
}

/* ---- Joining ---- */

/* A host name may resolve differently on this host and on others. */
static bool is_numeric(const char *host)
{
    struct addrinfo hints = {.ai_flags = AI_NUMERICHOST};
    struct addrinfo *found = NULL;
    if (!strcmp(host, "localhost"))
        return true;
    if (getaddrinfo(host, NULL, &hints, &found))
        return false;
    freeaddrinfo(found);
    return true;
}

static mgw_status fail_haven(mgw_error *error)
{
    return mgw_fail(error, MGW_ERR_IO, "tcp: no port is left to listen at");
}

static mgw_status start_hub(tcp *t, const tcp_address *address, mgw_error *error)
{
    tcp_footing footing = {
        .listener = -1, .haven = -1, .coming_s = tcp_coming_s(t), .joining_s = tcp_joining_s(t)};
    mgw_status status = t->size > 1 ? tcp_listen(address, &footing.listener, error) : MGW_OK;
    if (!status && t->size > 1) {
        t->here = tcp_place_here(footing.listener);
        footing.haven = t->haven = tcp_rank_listen(t, &t->port);
        if (t->haven < 0) {
            tcp_drop(footing.listener);
            return fail_haven(error);
        }
    }
    return status ? status : tcp_hub_start(&t->party, &footing, &t->hub, &t->fd, error);
}

static mgw_status connect_to_hub(tcp *t, const mgw_transport_setup *setup, mgw_error *error)
{
    tcp_address address = {.fd = -1};
    mgw_status status =
        t->size > 1 ? tcp_address_read(setup->options.address, &address, error) : MGW_OK;
    if (!status && t->rank > 0 && address.fd >= 0)
        status = mgw_fail(error, MGW_ERR_ARGUMENT, "tcp: only rank 0 can be given a socket");
    if (status)
        return status;
    if (t->rank == 0)
        return start_hub(t, &address, error);
    status = tcp_join(&t->party, &address, setup->join_s, &t->fd, error);
    if (status)
        return status;
    t->here = tcp_place_here(t->fd);
    t->anywhere = !is_numeric(address.host);
    t->haven = tcp_rank_listen(t, &t->port);
    return t->haven < 0 ? fail_haven(error) : MGW_OK;
}

/* Ranks on the hub's host have the hub's address. */
static void read_places(tcp *t, const unsigned char *data)
{
    tcp_place hub = t->rank > 0 ? tcp_place_there(t->fd) : (tcp_place){0};
    for (unsigned r = 0; r < t->size; r++) {
        tcp_place place = tcp_place_read(data + (size_t)r * TCP_PLACE);
        uint16_t port = place.port;
        if (hub.family && (!place.family || tcp_place_is_loop(&place)))
            place = hub;
        place.port = port;
        t->havens[r] = place;
    }
}

/* All ranks meet, and learn each other's addresses. */
static mgw_status meet_first(tcp *t, double join_s, mgw_error *error)
{
    const tcp_header header = {.call = tcp_call_make(TCP_JOINING, 0, 0, 0, 0)};
    const unsigned char port[TCP_PORT] = {(unsigned char)t->port, (unsigned char)(t->port >> 8)};
    size_t bytes = (size_t)t->size * TCP_PLACE;
    unsigned char *data = malloc(bytes);
    t->havens = calloc(t->size, sizeof *t->havens);
    mgw_status status = data && t->havens ? MGW_OK : mgw_fail_memory(error, "tcp");
    if (!status)
        status =
            tcp_rank_meet(t, &header, port, sizeof port, (tcp_awaited){data, bytes}, join_s, error);
    if (!status)
        read_places(t, data);
    free(data);
    return status;
}

static mgw_status take_party(tcp *t, const mgw_transport_options *options, mgw_error *error)
{
    const char *secret = getenv("MGWFBP_SECRET");
    const char *job = options->job ? options->job : "";
    bool has_secret = secret && *secret;
    if (t->size > TCP_RANKS_MAX)
        return mgw_fail(error, MGW_ERR_ARGUMENT, "tcp: at most %d workers, not %u", TCP_RANKS_MAX,
                        t->size);
    if (strlen(job) > TCP_JOB)
        return mgw_fail(error, MGW_ERR_ARGUMENT,
                        "tcp: the name of the job has more than %d bytes: '%.60s…'", TCP_JOB, job);
    t->party = (tcp_party){.rank = t->rank,
                           .size = t->size,
                           .job = strdup(job),
                           .secret = has_secret ? strdup(secret) : NULL};
    if (!t->party.job || (has_secret && !t->party.secret))
        return mgw_fail_memory(error, "tcp");
    return has_secret ? tcp_secret_prepare(error) : MGW_OK;
}

static mgw_status tcp_open(const mgw_transport_setup *setup, void **state, mgw_error *error)
{
    tcp *t = calloc(1, sizeof *t);
    if (!t)
        return mgw_fail_memory(error, "tcp");
    t->rank = setup->options.rank;
    t->size = setup->options.size;
    t->timeout_s = setup->options.timeout_s;
    t->fd = t->haven = t->listener = -1;
    t->died = t->left = t->has_failed = -1;
    mgw_status status = take_party(t, &setup->options, error);
    if (!status)
        status = connect_to_hub(t, setup, error);
    if (!status)
        status = meet_first(t, setup->join_s, error);
    if (status)
        tcp_close(t);
    else
        *state = t;
    return status;
}

const mgw_transport_table mgw_transport_tcp = {
    .capabilities = MGW_NAMES_LATE | MGW_WAITS_ASLEEP,
    .open = tcp_open,
    .close = tcp_close,
    .check = tcp_rank_check,
    .say = tcp_rank_say,
    .survive = tcp_survive,
    .allocate = tcp_allocate,
    .meet = tcp_rank_meet_in_buffer,
    .post = tcp_rank_post,
    .barrier = tcp_rank_barrier,
};
