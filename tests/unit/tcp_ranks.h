/* Jobs over TCP for tests: ports that nobody has, and workers in children. */
#ifndef MGW_TEST_TCP_RANKS_H
#define MGW_TEST_TCP_RANKS_H

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>

#include "ranks.h"

/* ---- Ports ---- */

/* A socket at this port, on this host alone; -1: somebody has it. */
static inline int bind_port(unsigned port)
{
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = htons((uint16_t)port),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (!bind(fd, (struct sockaddr *)&address, sizeof address))
        return fd;
    close(fd);
    return -1;
}

/* Below those that the system gives to who asks for any: it and the next one stay free until they
 * are needed, whatever else runs. */
static inline int open_port(unsigned *port)
{
    enum { FIRST = 20000, PAIRS = 6000 };
    static unsigned asked;
    for (int i = 0; i < PAIRS; i++) {
        *port = FIRST + 2 * (((unsigned)getpid() * 53 + asked++) % PAIRS);
        int fd = bind_port(*port);
        int next = bind_port(*port + 1);
        if (next >= 0)
            close(next);
        if (fd >= 0 && next >= 0)
            return fd;
        if (fd >= 0)
            close(fd);
    }
    fail_msg("no port is free");
    return -1;
}

/* One that nobody has, said to the job's workers. */
static inline unsigned set_port(const char *host)
{
    char text[64];
    unsigned port = 0;
    close(open_port(&port));
    snprintf(text, sizeof text, "%s:%u", host, port);
    setenv("MGWFBP_ADDRESS", text, 1);
    return port;
}

/* As this host calls itself: what that says to it need not be what it says to others. False: it has
 * no address by that name. */
static inline bool own_name(char *out, size_t size)
{
    struct addrinfo *found = NULL;
    if (gethostname(out, size) || getaddrinfo(out, "1", NULL, &found))
        return false;
    freeaddrinfo(found);
    return true;
}

static inline int connect_to(unsigned port)
{
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = htons((uint16_t)port),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    for (int i = 0; i < 5000; i++) {
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (!connect(fd, (struct sockaddr *)&address, sizeof address))
            return fd;
        close(fd);
        usleep(1000);
    }
    return -1;
}

/* ---- Workers ---- */

static inline void meet_often(mgw_transport *t, rank_result *result)
{
    for (int i = 0; !result->status && i < 20; i++)
        result->status = mgw_transport_barrier(t, &result->error);
}

/* In a child: a worker, with an own secret if one is given ("" for none). */
static inline pid_t start_worker(job *j, unsigned rank, const char *secret)
{
    pid_t child = fork();
    if (child == 0) {
        rank_start start = {j, rank};
        if (secret)
            setenv("MGWFBP_SECRET", secret, 1);
        run_rank(&start);
        _exit(0);
    }
    return child;
}

static inline void await(pid_t child)
{
    waitpid(child, NULL, 0);
}

static inline job make_job(unsigned size, double timeout_s)
{
    job j = {.transport = "tcp", .size = size, .timeout_s = timeout_s, .body = meet_often};
    start_job(&j);
    return j;
}

#endif
