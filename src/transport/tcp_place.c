/* The addresses of ranks, as the system reports them, and sockets bound to them. */
#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "transport/tcp.h"

/* An IPv4-mapped IPv6 address counts as IPv4: the other host may not have IPv6. */
static tcp_place read_address(const struct sockaddr_storage *from)
{
    tcp_place place = {0};
    if (from->ss_family == AF_INET) {
        const struct sockaddr_in *four = (const struct sockaddr_in *)from;
        place.family = 4;
        place.port = ntohs(four->sin_port);
        memcpy(place.address, &four->sin_addr, 4);
    } else if (from->ss_family == AF_INET6) {
        const struct sockaddr_in6 *six = (const struct sockaddr_in6 *)from;
        bool mapped = IN6_IS_ADDR_V4MAPPED(&six->sin6_addr);
        place.family = mapped ? 4 : 6;
        place.port = ntohs(six->sin6_port);
        place.scope = six->sin6_scope_id;
        memcpy(place.address, six->sin6_addr.s6_addr + (mapped ? 12 : 0), mapped ? 4 : 16);
    }
    return place;
}

static socklen_t write_address(const tcp_place *place, struct sockaddr_storage *out)
{
    memset(out, 0, sizeof *out);
    if (place->family == 4) {
        struct sockaddr_in *four = (struct sockaddr_in *)out;
        four->sin_family = AF_INET;
        four->sin_port = htons(place->port);
        memcpy(&four->sin_addr, place->address, 4);
        return sizeof *four;
    }
    struct sockaddr_in6 *six = (struct sockaddr_in6 *)out;
    six->sin6_family = AF_INET6;
    six->sin6_port = htons(place->port);
    six->sin6_scope_id = place->scope;
    memcpy(six->sin6_addr.s6_addr, place->address, 16);
    return sizeof *six;
}

tcp_place tcp_place_here(int fd)
{
    struct sockaddr_storage address = {0};
    socklen_t length = sizeof address;
    return getsockname(fd, (struct sockaddr *)&address, &length) ? (tcp_place){0}
                                                                 : read_address(&address);
}

tcp_place tcp_place_there(int fd)
{
    struct sockaddr_storage address = {0};
    socklen_t length = sizeof address;
    return getpeername(fd, (struct sockaddr *)&address, &length) ? (tcp_place){0}
                                                                 : read_address(&address);
}

bool tcp_place_is_loop(const tcp_place *place)
{
    static const unsigned char six[16] = {[15] = 1};
    return place->family == 4 ? place->address[0] == 127
                              : place->family == 6 && !memcmp(place->address, six, 16);
}

void tcp_place_name(const tcp_place *place, char *out, size_t size)
{
    struct sockaddr_storage address;
    char host[128] = "?";
    socklen_t length = write_address(place, &address);
    getnameinfo((struct sockaddr *)&address, length, host, sizeof host, NULL, 0, NI_NUMERICHOST);
    snprintf(out, size, place->family == 6 ? "[%s]:%u" : "%s:%u", host, place->port);
}

static int listen_at(const tcp_place *at)
{
    struct sockaddr_storage address;
    socklen_t length = write_address(at, &address);
    int fd = socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -1;
    if (at->family == 6)
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &(int){0}, sizeof(int));
    if (!bind(fd, (struct sockaddr *)&address, length) && !listen(fd, SOMAXCONN))
        return fd;
    close(fd);
    return -1;
}

int tcp_place_listen(const tcp_place *at, bool anywhere, uint16_t *port)
{
    tcp_place exact = *at;
    exact.port = 0;
    int fd = anywhere ? listen_at(&(tcp_place){.family = 6}) : listen_at(&exact);
    if (fd < 0 && anywhere)
        fd = listen_at(&(tcp_place){.family = 4});
    if (fd < 0)
        return -1;
    *port = tcp_place_here(fd).port;
    tcp_keep(fd);
    return fd;
}

int tcp_place_connect(const tcp_place *place, int *code)
{
    struct sockaddr_storage address;
    socklen_t length = write_address(place, &address);
    int fd = socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    *code = fd < 0 ? errno : 0;
    if (fd >= 0 && connect(fd, (struct sockaddr *)&address, length))
        *code = errno == EINTR ? EINPROGRESS : errno;
    if (fd >= 0 && (!*code || *code == EINPROGRESS)) {
        tcp_set_up(fd, true);
        return fd;
    }
    if (fd >= 0)
        close(fd);
    return -1;
}
