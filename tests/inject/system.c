/* What the system is asked for: files, sockets, processes, threads. Each call may fail, be
 * interrupted, or be cut. */
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <pty.h>
#include <semaphore.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "inside.h"

#define SYSTEM(name, code)                                                                         \
    NEXT(name);                                                                                    \
    if (inject_fails(INJECT_SYSTEM, #name, CALLER)) {                                              \
        errno = code;                                                                              \
        return -1;                                                                                 \
    }

#define INTERRUPTED(name, code)                                                                    \
    SYSTEM(name, code)                                                                             \
    if (inject_fails(INJECT_INTERRUPT, #name, CALLER)) {                                           \
        errno = EINTR;                                                                             \
        return -1;                                                                                 \
    }

/* Calls that return what went wrong. */
#define REFUSED(name, code)                                                                        \
    NEXT(name);                                                                                    \
    if (inject_fails(INJECT_SYSTEM, #name, CALLER))                                                \
        return code;

#define CUT(name, bytes)                                                                           \
    if (bytes > 1 && inject_fails(INJECT_SHORT, #name, CALLER))                                    \
        bytes = 1;

ssize_t read(int fd, void *data, size_t bytes)
{
    INTERRUPTED(read, EIO)
    CUT(read, bytes)
    return next(fd, data, bytes);
}

ssize_t write(int fd, const void *data, size_t bytes)
{
    INTERRUPTED(write, ENOSPC)
    CUT(write, bytes)
    return next(fd, data, bytes);
}

/* The system never cuts a message that fits one page between processes of one host. */
static bool is_local(int fd)
{
    int domain = 0;
    socklen_t length = sizeof domain;
    return !getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &length) && domain == AF_UNIX;
}

ssize_t send(int fd, const void *data, size_t bytes, int flags)
{
    INTERRUPTED(send, ECONNRESET)
    if (!is_local(fd))
        CUT(send, bytes)
    return next(fd, data, bytes, flags);
}

ssize_t recv(int fd, void *data, size_t bytes, int flags)
{
    INTERRUPTED(recv, ECONNRESET)
    if (!is_local(fd))
        CUT(recv, bytes)
    return next(fd, data, bytes, flags);
}

ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
    INTERRUPTED(sendmsg, ECONNRESET)
    return next(fd, message, flags);
}

ssize_t recvmsg(int fd, struct msghdr *message, int flags)
{
    INTERRUPTED(recvmsg, ECONNRESET)
    return next(fd, message, flags);
}

int open(const char *path, int flags, ...)
{
    va_list arguments;
    va_start(arguments, flags);
    mode_t mode = flags & O_CREAT ? va_arg(arguments, mode_t) : 0;
    va_end(arguments);
    INTERRUPTED(open, EMFILE)
    return next(path, flags, mode);
}

/* It closes all the same: who would close again could close another's. */
int close(int fd)
{
    NEXT(close);
    int result = next(fd);
    if (inject_fails(INJECT_SYSTEM, "close", CALLER)) {
        errno = EIO;
        return -1;
    }
    return result;
}

int fsync(int fd)
{
    SYSTEM(fsync, EIO)
    return next(fd);
}

int fstat(int fd, struct stat *out)
{
    SYSTEM(fstat, EIO)
    return next(fd, out);
}

int stat(const char *path, struct stat *out)
{
    SYSTEM(stat, EACCES)
    return next(path, out);
}

int rename(const char *from, const char *to)
{
    SYSTEM(rename, EACCES)
    return next(from, to);
}

int fchmod(int fd, mode_t mode)
{
    SYSTEM(fchmod, EPERM)
    return next(fd, mode);
}

int ftruncate(int fd, off_t size)
{
    SYSTEM(ftruncate, ENOSPC)
    return next(fd, size);
}

int memfd_create(const char *name, unsigned flags)
{
    SYSTEM(memfd_create, EMFILE)
    return next(name, flags);
}

void *mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset)
{
    NEXT(mmap);
    if (inject_fails(INJECT_SYSTEM, "mmap", CALLER)) {
        errno = ENOMEM;
        return MAP_FAILED;
    }
    return next(at, bytes, protection, flags, fd, offset);
}

pid_t fork(void)
{
    SYSTEM(fork, EAGAIN)
    return next();
}

int pipe2(int ends[2], int flags)
{
    SYSTEM(pipe2, EMFILE)
    return next(ends, flags);
}

int openpty(int *here, int *there, char *name, const struct termios *how,
            const struct winsize *size)
{
    SYSTEM(openpty, ENOENT)
    return next(here, there, name, how, size);
}

int signalfd(int fd, const sigset_t *mask, int flags)
{
    SYSTEM(signalfd, EMFILE)
    return next(fd, mask, flags);
}

int link(const char *from, const char *to)
{
    SYSTEM(link, EPERM)
    return next(from, to);
}

int socket(int domain, int type, int protocol)
{
    SYSTEM(socket, EMFILE)
    return next(domain, type, protocol);
}

int socketpair(int domain, int type, int protocol, int fds[2])
{
    SYSTEM(socketpair, EMFILE)
    return next(domain, type, protocol, fds);
}

int bind(int fd, const struct sockaddr *address, socklen_t length)
{
    SYSTEM(bind, EADDRINUSE)
    return next(fd, address, length);
}

int listen(int fd, int backlog)
{
    SYSTEM(listen, EADDRINUSE)
    return next(fd, backlog);
}

int accept4(int fd, struct sockaddr *address, socklen_t *length, int flags)
{
    INTERRUPTED(accept4, EMFILE)
    return next(fd, address, length, flags);
}

int connect(int fd, const struct sockaddr *address, socklen_t length)
{
    SYSTEM(connect, ECONNREFUSED)
    return next(fd, address, length);
}

int getsockopt(int fd, int level, int option, void *value, socklen_t *length)
{
    SYSTEM(getsockopt, ENOBUFS)
    return next(fd, level, option, value, length);
}

int setsockopt(int fd, int level, int option, const void *value, socklen_t length)
{
    SYSTEM(setsockopt, ENOBUFS)
    return next(fd, level, option, value, length);
}

int shutdown(int fd, int how)
{
    SYSTEM(shutdown, ENOTCONN)
    return next(fd, how);
}

int poll(struct pollfd *all, nfds_t count, int timeout_ms)
{
    INTERRUPTED(poll, ENOMEM)
    return next(all, count, timeout_ms);
}

int getaddrinfo(const char *host, const char *port, const struct addrinfo *hints,
                struct addrinfo **out)
{
    REFUSED(getaddrinfo, EAI_MEMORY)
    return next(host, port, hints, out);
}

ssize_t getrandom(void *data, size_t bytes, unsigned flags)
{
    INTERRUPTED(getrandom, EIO)
    if (bytes > 256) /* fewer are never cut */
        CUT(getrandom, bytes)
    return next(data, bytes, flags);
}

#define STREAM(name, result)                                                                       \
    NEXT(name);                                                                                    \
    if (inject_fails(INJECT_SYSTEM, #name, CALLER)) {                                              \
        errno = EIO;                                                                               \
        return result;                                                                             \
    }

FILE *fopen(const char *path, const char *mode)
{
    STREAM(fopen, NULL)
    return next(path, mode);
}

FILE *fdopen(int fd, const char *mode)
{
    STREAM(fdopen, NULL)
    return next(fd, mode);
}

size_t fwrite(const void *data, size_t size, size_t count, FILE *file)
{
    if (file == stderr) { /* what went wrong is told there, if that works */
        NEXT(fwrite);
        return next(data, size, count, file);
    }
    STREAM(fwrite, 0)
    return next(data, size, count, file);
}

int fflush(FILE *file)
{
    STREAM(fflush, EOF)
    return next(file);
}

/* Waiting on a futex. */
long syscall(long number, ...)
{
    long a[6];
    va_list arguments;
    va_start(arguments, number);
    for (int i = 0; i < 6; i++)
        a[i] = va_arg(arguments, long);
    va_end(arguments);
    INTERRUPTED(syscall, EINVAL)
    return next(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

int sem_wait(sem_t *semaphore)
{
    NEXT(sem_wait);
    if (inject_fails(INJECT_INTERRUPT, "sem_wait", CALLER)) {
        errno = EINTR;
        return -1;
    }
    return next(semaphore);
}

int sem_clockwait(sem_t *semaphore, clockid_t clock, const struct timespec *until)
{
    NEXT(sem_clockwait);
    if (inject_fails(INJECT_INTERRUPT, "sem_clockwait", CALLER)) {
        errno = EINTR;
        return -1;
    }
    return next(semaphore, clock, until);
}

int sem_init(sem_t *semaphore, int shared, unsigned value)
{
    SYSTEM(sem_init, ENOSPC)
    return next(semaphore, shared, value);
}

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *),
                   void *argument)
{
    REFUSED(pthread_create, EAGAIN)
    return next(thread, attributes, run, argument);
}

int pthread_mutex_init(pthread_mutex_t *mutex, const pthread_mutexattr_t *attributes)
{
    REFUSED(pthread_mutex_init, ENOMEM)
    return next(mutex, attributes);
}

int pthread_cond_init(pthread_cond_t *condition, const pthread_condattr_t *attributes)
{
    REFUSED(pthread_cond_init, ENOMEM)
    return next(condition, attributes);
}
