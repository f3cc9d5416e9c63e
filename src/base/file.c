/* Whole files: read at once, written atomically. */
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <mgwfbp/text.h>

static mgw_status fail_errno(mgw_error *error, const char *path, const char *verb)
{
    int code = errno;
    return mgw_fail(error, code == ENOENT ? MGW_ERR_NOT_FOUND : MGW_ERR_IO, "%s: cannot %s: %s",
                    path, verb, strerror(code));
}

/* A larger file is no valid input, and an endless one must not use up all memory. */
static const size_t input_most = (size_t)1 << 30;

static mgw_status fail_large(const char *path, mgw_error *error)
{
    return mgw_fail(error, MGW_ERR_INPUT, "%s: too large: more than %zu bytes", path, input_most);
}

static int open_file(const char *path, int flags)
{
    int fd = -1;
    do
        fd = open(path, flags | O_CLOEXEC, 0666);
    while (fd < 0 && errno == EINTR);
    return fd;
}

static mgw_status read_all(int fd, const char *path, size_t expected, char **data, size_t *size,
                           mgw_error *error)
{
    size_t capacity = expected + 2; /* one to detect the end of file, one for the terminator */
    size_t used = 0;
    char *buffer = malloc(capacity);
    for (;;) {
        if (!buffer)
            return mgw_fail_memory(error, path);
        ssize_t got = read(fd, buffer + used, capacity - used - 1);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0) {
            free(buffer);
            return fail_errno(error, path, "read");
        }
        if (got == 0)
            break;
        used += (size_t)got;
        if (used > input_most) {
            free(buffer);
            return fail_large(path, error);
        }
        if (used + 1 == capacity) {
            char *larger = realloc(buffer, capacity *= 2);
            if (!larger)
                free(buffer);
            buffer = larger;
        }
    }
    buffer[used] = '\0';
    *data = buffer;
    *size = used;
    return MGW_OK;
}

mgw_status mgw_file_read(const char *path, char **data, size_t *size, mgw_error *error)
{
    int fd = open_file(path, O_RDONLY);
    if (fd < 0)
        return fail_errno(error, path, "open");
    struct stat info;
    mgw_status status = MGW_OK;
    if (fstat(fd, &info))
        status = fail_errno(error, path, "read");
    else if (S_ISREG(info.st_mode) && (uintmax_t)info.st_size > input_most)
        status = fail_large(path, error);
    else
        status = read_all(fd, path, S_ISREG(info.st_mode) ? (size_t)info.st_size : 65536, data,
                          size, error);
    close(fd);
    return status;
}

static int write_all(int fd, const char *data, size_t size)
{
    while (size > 0) {
        ssize_t done = write(fd, data, size);
        if (done < 0 && errno == EINTR)
            continue;
        if (done < 0)
            return -1;
        data += done;
        size -= (size_t)done;
    }
    return 0;
}

/* A path that is not a regular file cannot be replaced: the bytes are written to it directly. */
static mgw_status write_directly(const char *path, const char *data, size_t size, mgw_error *error)
{
    int fd = open_file(path, O_WRONLY);
    if (fd < 0)
        return fail_errno(error, path, "open for writing");
    mgw_status status = MGW_OK;
    if (write_all(fd, data, size))
        status = fail_errno(error, path, "write");
    if (close(fd) && !status)
        status = fail_errno(error, path, "write");
    return status;
}

/* Creates a file of our own beside `path`; `name` receives its name. Not mkstemp: its mode ignores
 * umask. */
static int create_beside(const char *path, char *name, size_t size)
{
    for (unsigned attempt = 0; attempt < 100; attempt++) {
        const char *slash = strrchr(path, '/');
        int folder = slash ? (int)(slash - path) + 1 : 0;
        snprintf(name, size, "%.*s.mgwfbp-%ld-%u.tmp", folder, path, (long)getpid(), attempt);
        int fd = open_file(name, O_WRONLY | O_CREAT | O_EXCL);
        if (fd >= 0)
            (void)flock(fd, LOCK_EX | LOCK_NB); /* a file without this lock was left behind */
        if (fd >= 0 || errno != EEXIST)
            return fd;
    }
    return -1;
}

/* `mode` is that of the replaced file, or 0 for a new one. */
static mgw_status write_and_rename(const char *path, const char *data, size_t size, mode_t mode,
                                   mgw_error *error)
{
    size_t length = strlen(path) + 48;
    char *temporary = malloc(length);
    if (!temporary)
        return mgw_fail_memory(error, path);
    int fd = create_beside(path, temporary, length);
    if (fd < 0) {
        free(temporary);
        return fail_errno(error, path, "create");
    }
    int failed = write_all(fd, data, size) || (mode && fchmod(fd, mode)) || fsync(fd);
    int code = errno;
    if (close(fd) && !failed) {
        failed = 1;
        code = errno;
    }
    if (!failed && rename(temporary, path)) {
        failed = 1;
        code = errno;
    }
    if (failed)
        unlink(temporary);
    free(temporary);
    errno = code;
    return failed ? fail_errno(error, path, "write") : MGW_OK;
}

/* /dev/stdout and similar names refer to an open descriptor, not to a file that can be replaced. */
static int open_descriptor(const char *path)
{
    static const struct {
        const char *name;
        int fd;
    } known[] = {{"/dev/stdout", STDOUT_FILENO}, {"/dev/stderr", STDERR_FILENO}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (!strcmp(path, known[i].name))
            return known[i].fd;
    int fd = -1;
    int end = 0;
    if (sscanf(path, "/dev/fd/%d%n", &fd, &end) == 1 && !path[end])
        return fd;
    return -1;
}

static bool is_link(const char *path)
{
    struct stat info;
    return !lstat(path, &info) && S_ISLNK(info.st_mode);
}

/* Creates the target of a link if it does not exist: then it can be replaced like any file. */
static bool make_target(const char *path)
{
    int fd = open_file(path, O_WRONLY | O_CREAT);
    return fd >= 0 && !close(fd);
}

static mgw_status replace(const char *path, bool made, const char *data, size_t size, mode_t mode,
                          mgw_error *error)
{
    /* Renaming over a symbolic link would replace the link, not its target. */
    char *real = realpath(path, NULL);
    if (!real)
        return errno == ENOMEM ? mgw_fail_memory(error, path) : fail_errno(error, path, "write");
    mgw_status status = write_and_rename(real, data, size, mode, error);
    if (status && made)
        unlink(real);
    free(real);
    return status;
}

mgw_status mgw_file_write(const char *path, const char *data, size_t size, mgw_error *error)
{
    int fd = open_descriptor(path);
    if (fd >= 0)
        return write_all(fd, data, size) ? fail_errno(error, path, "write") : MGW_OK;
    struct stat info;
    bool missing = stat(path, &info);
    if (missing && !is_link(path))
        return write_and_rename(path, data, size, 0, error);
    if (missing && (!make_target(path) || stat(path, &info)))
        return fail_errno(error, path, "write");
    if (!S_ISREG(info.st_mode))
        return write_directly(path, data, size, error);
    if (access(path, W_OK))
        return fail_errno(error, path, "write");
    return replace(path, missing, data, size, info.st_mode & 07777, error);
}

mgw_status mgw_text_save(const mgw_text *text, const char *path, mgw_error *error)
{
    mgw_status status = mgw_text_status(text, error);
    return status ? status : mgw_file_write(path, text->data, text->size, error);
}
