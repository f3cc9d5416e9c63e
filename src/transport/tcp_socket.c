/* Sockets: addresses, listening, connecting, and bounded reads and writes. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/status.h"
#include "transport/tcp.h"

/* ---- Sockets that a forked child closes ---- */

enum { FDS = 65536 };
static unsigned char kept[FDS];
static int highest = -1;
static pthread_mutex_t keeping = PTHREAD_MUTEX_INITIALIZER;

static void lock_kept(void)
{
    pthread_mutex_lock(&keeping);
}

static void unlock_kept(void)
{
    pthread_mutex_unlock(&keeping);
}

static void close_kept(void)
{
    for (int fd = 0; fd <= highest; fd++) {
        if (kept[fd])
            close(fd);
        kept[fd] = 0;
    }
    highest = -1;
    unlock_kept();
}

static void watch_forks(void)
{
    pthread_atfork(lock_kept, unlock_kept, close_kept);
}

void tcp_keep(int fd)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, watch_forks);
    if (fd < 0 || fd >= FDS)
        return;
    lock_kept();
    kept[fd] = 1;
    highest = fd > highest ? fd : highest;
    unlock_kept();
}

void tcp_drop(int fd)
{
    if (fd < 0)
        return;
    lock_kept();
    if (fd < FDS)
        kept[fd] = 0;
    close(fd);
    unlock_kept();
}

/* ---- Addresses ---- */

static bool read_port(const char *text, unsigned long least, unsigned long *out)
{
    char *end = NULL;
    errno = 0;
    *out = strtoul(text, &end, 10);
    return *text >= '0' && *text <= '9' && !*end && !errno && *out >= least && *out <= 65535;
}

static mgw_status fail_address(const char *source, const char *given, mgw_error *error)
{
    return mgw_fail(error, MGW_ERR_ARGUMENT, "%s: '%.100s' is not HOST:PORT or [HOST]:PORT", source,
                    given);
}

/* "HOST:PORT", split at the last colon, so that IPv6 addresses also work without brackets. */
static mgw_status parse_address(const char *source, const char *given, tcp_address *out,
                                mgw_error *error)
{
    const char *colon = strrchr(given, ':');
    unsigned long port = 0;
    if (!colon || !read_port(colon + 1, 1, &port))
        return fail_address(source, given, error);
    size_t length = (size_t)(colon - given);
    if (length > 2 && given[0] == '[' && given[length - 1] == ']') {
        given++;
        length -= 2;
    }
    if (!length || length >= sizeof out->host)
        return fail_address(source, given, error);
    memcpy(out->host, given, length);
    snprintf(out->port, sizeof out->port, "%lu", port);
    return MGW_OK;
}

/* PyTorch's store uses MASTER_PORT; the channel uses the next port. */
static mgw_status read_master(tcp_address *out, mgw_error *error)
{
    const char *host = getenv("MASTER_ADDR");
    const char *behind = getenv("MASTER_PORT");
    unsigned long port = 0;
    if (!host || !*host || !behind)
        return mgw_fail(error, MGW_ERR_ARGUMENT,
                        "tcp: the address of rank 0 is unknown; set MGWFBP_ADDRESS to its "
                        "HOST:PORT, or MASTER_ADDR and MASTER_PORT, on every worker");
    if (!read_port(behind, 1, &port) || port == 65535)
        return mgw_fail(error, MGW_ERR_ARGUMENT,
                        "MASTER_PORT: '%.40s' is not a port from 1 to 65534", behind);
    if (strlen(host) >= sizeof out->host)
        return mgw_fail(error, MGW_ERR_ARGUMENT, "MASTER_ADDR: '%.60s…' is too long", host);
    snprintf(out->host, sizeof out->host, "%s", host);
    snprintf(out->port, sizeof out->port, "%lu", port + 1);
    return MGW_OK;
}

mgw_status tcp_address_read(const char *given, tcp_address *out, mgw_error *error)
{
    const char *source = given ? "address" : "MGWFBP_ADDRESS";
    *out = (tcp_address){.fd = -1};
    given = given ? given : getenv("MGWFBP_ADDRESS");
    if (!given)
        return read_master(out, error);
    out->kept = strncmp(given, TCP_KEPT, strlen(TCP_KEPT)) == 0;
    if (!out->kept && strncmp(given, "fd:", 3) != 0)
        return parse_address(source, given, out, error);
    unsigned long fd = 0;
    int listens = 0;
    socklen_t length = sizeof listens;
    if (!read_port(strchr(given, ':') + 1, 0, &fd) ||
        getsockopt((int)fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &length) || !listens)
        return mgw_fail(error, MGW_ERR_ARGUMENT, "%s: '%.40s' is not a socket that listens", source,
                        given);
    out->fd = (int)fd;
    return MGW_OK;
}

static mgw_status resolve(const tcp_address *address, int flags, struct addrinfo **out,
                          mgw_error *error)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = flags | AI_NUMERICSERV};
    int code = getaddrinfo(address->host, address->port, &hints, out);
    return code ? mgw_fail(error, MGW_ERR_IO, "tcp: '%.100s' cannot be resolved: %s", address->host,
                           code == EAI_SYSTEM ? strerror(errno) : gai_strerror(code))
                : MGW_OK;
}

/* ---- Listening ---- */

static int listen_at(const struct sockaddr *at, socklen_t length)
{
    int fd = socket(at->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &(int){1}, sizeof(int));
    if (at->sa_family == AF_INET6) /* `::` also accepts IPv4 */
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &(int){0}, sizeof(int));
    if (!bind(fd, at, length) && !listen(fd, SOMAXCONN))
        return fd;
    int code = errno;
    close(fd);
    errno = code;
    return -1;
}

static int listen_anywhere(const char *port)
{
    uint16_t number = htons((uint16_t)strtoul(port, NULL, 10));
    struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_port = number};
    struct sockaddr_in four = {.sin_family = AF_INET, .sin_port = number};
    int fd = listen_at((struct sockaddr *)&six, sizeof six);
    return fd >= 0 || errno == EADDRINUSE ? fd : listen_at((struct sockaddr *)&four, sizeof four);
}

/*
 * Listens at exactly the given address if it is numeric and belongs to this host. A name may
 * resolve differently here and on other hosts (on Debian a host's own name is 127.0.1.1), so for a
 * name it listens at any address.
 */
static int listen_by_address(const tcp_address *address)
{
    struct addrinfo *found = NULL;
    const char *host = strcmp(address->host, "localhost") ? address->host : "127.0.0.1";
    tcp_address exact = *address;
    snprintf(exact.host, sizeof exact.host, "%s", host);
    if (resolve(&exact, AI_NUMERICHOST, &found, NULL))
        return listen_anywhere(address->port);
    int fd = listen_at(found->ai_addr, found->ai_addrlen);
    int code = errno;
    freeaddrinfo(found);
    errno = code;
    return fd < 0 && code == EADDRNOTAVAIL ? listen_anywhere(address->port) : fd;
}

mgw_status tcp_listen(const tcp_address *address, int *out, mgw_error *error)
{
    *out = address->fd < 0 ? listen_by_address(address)
           : address->kept ? fcntl(address->fd, F_DUPFD_CLOEXEC, 0)
                           : address->fd;
    if (*out >= 0)
        return MGW_OK;
    if (address->fd >= 0)
        return mgw_fail(error, MGW_ERR_IO, "tcp: rank 0 cannot listen: %s", strerror(errno));
    if (errno == EADDRINUSE)
        return mgw_fail(error, MGW_ERR_IO,
                        "tcp: rank 0 cannot listen at %s:%s: the port is in use; set "
                        "MGWFBP_ADDRESS to another HOST:PORT on every worker",
                        address->host, address->port);
    return mgw_fail(error, MGW_ERR_IO, "tcp: rank 0 cannot listen at %s:%s: %s", address->host,
                    address->port, strerror(errno));
}

/* ---- Connecting ---- */

static const double one_address_s = 3; /* before the next is tried */

static int connect_to(const struct addrinfo *to, double deadline_s)
{
    int fd = socket(to->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    int code = fd < 0 ? errno : 0;
    socklen_t length = sizeof code;
    if (fd >= 0 && connect(fd, to->ai_addr, to->ai_addrlen)) {
        code = errno;
        if (code == EINPROGRESS || code == EINTR)
            code = !tcp_wait(fd, POLLOUT, deadline_s)                     ? ETIMEDOUT
                   : getsockopt(fd, SOL_SOCKET, SO_ERROR, &code, &length) ? errno
                                                                          : code;
    }
    if (!code)
        return fd;
    if (fd >= 0)
        close(fd);
    errno = code;
    return -1;
}

static int connect_once(const tcp_address *address, double deadline_s, mgw_error *why)
{
    struct addrinfo *found = NULL;
    int fd = -1;
    if (resolve(address, 0, &found, why))
        return -1;
    for (const struct addrinfo *each = found; fd < 0 && each; each = each->ai_next) {
        double until_s = mgw_awake_s() + one_address_s;
        fd = connect_to(each, until_s < deadline_s ? until_s : deadline_s);
    }
    if (fd < 0)
        mgw_error_record(why, MGW_ERR_IO, "%s", strerror(errno));
    freeaddrinfo(found);
    return fd;
}

int tcp_connect(const tcp_address *address, double deadline_s, mgw_error *why)
{
    long pause_ns = 5 * 1000 * 1000;
    do {
        int fd = connect_once(address, deadline_s, why);
        if (fd >= 0) {
            tcp_set_up(fd, true);
            return fd;
        }
        nanosleep(&(struct timespec){.tv_nsec = pause_ns}, NULL);
        pause_ns = pause_ns < 200 * 1000 * 1000 ? 2 * pause_ns : pause_ns;
    } while (mgw_awake_s() < deadline_s);
    return -1;
}

/*
 * A host that is down or unreachable does not answer: the connection counts as broken after 10 s. A
 * stopped or busy worker is unaffected: its system answers.
 */
void tcp_set_up(int fd, bool network)
{
    static const struct {
        int level, option, value;
    } options[] = {
        {SOL_SOCKET, SO_KEEPALIVE, 1},  {IPPROTO_TCP, TCP_NODELAY, 1},
        {IPPROTO_TCP, TCP_KEEPIDLE, 2}, {IPPROTO_TCP, TCP_KEEPINTVL, 2},
        {IPPROTO_TCP, TCP_KEEPCNT, 4},  {IPPROTO_TCP, TCP_USER_TIMEOUT, 10000},
    };
    for (size_t i = 0; network && i < sizeof options / sizeof *options; i++)
        setsockopt(fd, options[i].level, options[i].option, &options[i].value, sizeof(int));
    tcp_keep(fd);
}

/* ---- Reading and writing ---- */

bool tcp_wait(int fd, short events, double deadline_s)
{
    for (;;) {
        double left_s = deadline_s - mgw_awake_s();
        struct pollfd one = {.fd = fd, .events = events};
        int ready = poll(&one, 1, left_s > 1 ? 1000 : left_s > 0 ? (int)(left_s * 1e3) + 1 : 0);
        if (ready > 0)
            return true;
        if ((ready == 0 && left_s <= 0) || (ready < 0 && errno != EINTR))
            return false;
    }
}

/* Also when the system is out of memory: that may pass in a moment, and poll does not report it. */
static bool is_not_now(void)
{
    if (errno == ENOBUFS || errno == ENOMEM) {
        nanosleep(&(struct timespec){.tv_nsec = 1000 * 1000}, NULL);
        errno = EAGAIN;
    }
    return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
}

ptrdiff_t tcp_send(int fd, const void *data, size_t bytes)
{
    ssize_t sent = send(fd, data, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
    return sent < 0 ? (is_not_now() ? 0 : -1) : sent;
}

ptrdiff_t tcp_receive(int fd, void *data, size_t bytes)
{
    ssize_t got = recv(fd, data, bytes, MSG_DONTWAIT);
    if (got == 0)
        errno = 0;
    return got < 0 ? (is_not_now() ? 0 : -1) : got == 0 ? -1 : got;
}

/*
 * For an established connection. After a timeout the system reports what a router or firewall
 * replied meanwhile. That may be ECONNREFUSED, too, which the end of a process never causes.
 */
bool tcp_is_silence(int code)
{
    static const int silences[] = {ETIMEDOUT, EHOSTUNREACH, ENETUNREACH, EHOSTDOWN,
                                   ENETDOWN,  ECONNREFUSED, ENOPROTOOPT, ENONET};
    for (size_t i = 0; i < sizeof silences / sizeof *silences; i++)
        if (code == silences[i])
            return true;
    return false;
}

bool tcp_send_all(int fd, const void *data, size_t bytes, double deadline_s)
{
    const char *at = data;
    while (bytes) {
        ptrdiff_t sent = tcp_send(fd, at, bytes);
        if (sent < 0)
            return false;
        if (sent == 0 && (!tcp_wait(fd, POLLOUT, deadline_s) || mgw_awake_s() >= deadline_s)) {
            errno = EAGAIN;
            return false;
        }
        at += sent;
        bytes -= (size_t)sent;
    }
    return true;
}

bool tcp_receive_all(int fd, void *data, size_t bytes, double deadline_s)
{
    char *at = data;
    while (bytes) {
        ptrdiff_t got = tcp_receive(fd, at, bytes);
        if (got < 0 || (got == 0 && !tcp_wait(fd, POLLIN, deadline_s)))
            return false;
        at += got;
        bytes -= (size_t)got;
    }
    return true;
}
