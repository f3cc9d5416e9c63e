/*
 * Checkpoint files: writes them on a thread, rotates them, and removes leftovers.
 */
#include "train/saver.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/status.h"
#include "base/thread.h"

struct train_saver {
    char *path;
    unsigned keep;
    pthread_t thread;
    bool begun;        /* there is a thread to join */
    atomic_bool ended; /* the thread is done */
    nn_state state;    /* the state to write */
    float *row;
    mgw_status status; /* its result */
    mgw_error error;
};

char *train_saver_name(const char *path, unsigned k)
{
    char *name = NULL;
    int length = k ? asprintf(&name, "%s.%u", path, k) : asprintf(&name, "%s", path);
    return length < 0 ? NULL : name;
}

/* The temporary name of the next checkpoint. */
static char *next_name(const char *path)
{
    char *name = NULL;
    return asprintf(&name, "%s.next", path) < 0 ? NULL : name;
}

/* ---- The folder ---- */

static char *folder_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    return !slash          ? strdup(".")
           : slash == path ? strdup("/")
                           : strndup(path, (size_t)(slash - path));
}

mgw_status train_saver_check(const char *path, mgw_error *error)
{
    struct stat info;
    if (!stat(path, &info)) {
        if (S_ISDIR(info.st_mode))
            return mgw_fail(error, MGW_ERR_ARGUMENT, "--checkpoint: %s is a folder", path);
        if (!S_ISREG(info.st_mode))
            return MGW_OK;
    }
    char *folder = folder_of(path);
    if (!folder)
        return mgw_fail_memory(error, path);
    mgw_status status = MGW_OK;
    if (stat(folder, &info))
        status = mgw_fail(error, MGW_ERR_ARGUMENT, "--checkpoint: folder %s: %s", folder,
                          strerror(errno));
    else if (!S_ISDIR(info.st_mode) || access(folder, W_OK | X_OK))
        status = mgw_fail(error, MGW_ERR_ARGUMENT, "--checkpoint: folder %s: %s", folder,
                          S_ISDIR(info.st_mode) ? strerror(errno) : "not a folder");
    free(folder);
    return status;
}

/* Whether this is a temporary file of base/file.c whose process is gone, on this host and on
 * others, where it would hold the lock. */
static bool is_left_behind(int folder, const char *name)
{
    long pid = 0;
    int end = 0;
    if (sscanf(name, ".mgwfbp-%ld-%*u.tmp%n", &pid, &end) != 1 || !end || name[end] || pid <= 0)
        return false;
    if (!kill((pid_t)pid, 0) || errno != ESRCH)
        return false;
    int fd = openat(folder, name, O_WRONLY | O_CLOEXEC);
    bool alone = fd >= 0 && !flock(fd, LOCK_EX | LOCK_NB);
    if (fd >= 0)
        close(fd);
    return alone;
}

/* Cleans the folder of the real file: a symbolic link stays, and its target is replaced. */
static void clean(const char *given)
{
    char *real = realpath(given, NULL);
    const char *path = real ? real : given;
    char *folder = folder_of(path);
    DIR *all = folder ? opendir(folder) : NULL;
    const struct dirent *entry = NULL;
    while (all && (entry = readdir(all)))
        if (is_left_behind(dirfd(all), entry->d_name))
            unlinkat(dirfd(all), entry->d_name, 0);
    if (all)
        closedir(all);
    free(folder);
    char *next = next_name(path);
    if (next)
        (void)unlink(next);
    free(next);
    free(real);
}

/* ---- Writing ---- */

static bool is_regular(const char *path)
{
    struct stat info;
    return stat(path, &info) ? errno == ENOENT : S_ISREG(info.st_mode);
}

/* Rotates the existing checkpoints by one; the newest also keeps its name until it is replaced. */
static void move_up(const char *path, unsigned keep)
{
    for (unsigned k = keep - 1; k > 0; k--) {
        char *from = train_saver_name(path, k - 1);
        char *to = train_saver_name(path, k);
        if (from && to && k > 1) {
            (void)rename(from, to);
        } else if (from && to && !access(from, F_OK)) {
            (void)unlink(to);
            if (link(from, to)) /* not supported by every file system */
                (void)rename(from, to);
        }
        free(from);
        free(to);
    }
}

/* Writes under another name first, so that a failure changes nothing. */
static mgw_status replace(const train_saver *s, mgw_error *error)
{
    if (s->keep < 2 || !is_regular(s->path))
        return nn_checkpoint_save(&s->state, s->row, s->path, error);
    char *real = realpath(s->path, NULL); /* a symbolic link stays */
    const char *path = real ? real : s->path;
    char *next = next_name(path);
    mgw_status status =
        next ? nn_checkpoint_save(&s->state, s->row, next, error) : mgw_fail_memory(error, s->path);
    if (!status) {
        move_up(path, s->keep);
        if (rename(next, path)) {
            status = mgw_fail(error, MGW_ERR_IO, "%s: cannot write: %s", path, strerror(errno));
            (void)unlink(next);
        }
    }
    free(next);
    free(real);
    return status;
}

static void *write_row(void *context)
{
    train_saver *s = context;
    if (nn_are_finite(s->row, nn_state_count(&s->state)))
        s->status = replace(s, &s->error);
    else
        s->status = mgw_fail(&s->error, MGW_ERR_UNSUPPORTED,
                             "the weights are no longer finite, so %s is not written: try a "
                             "smaller --rate or a longer --warmup",
                             s->path);
    atomic_store(&s->ended, true);
    return NULL;
}

mgw_status train_saver_begin(train_saver *s, const nn_state *state, float *row, mgw_error *error)
{
    free(s->row);
    s->row = row;
    s->state = *state;
    s->status = MGW_OK;
    atomic_store(&s->ended, false);
    s->begun = !mgw_thread_start(&s->thread, write_row, s);
    return s->begun ? MGW_OK : mgw_fail(error, MGW_ERR_IO, "cannot start a thread");
}

bool train_saver_is_busy(train_saver *s)
{
    return s->begun && !atomic_load(&s->ended);
}

mgw_status train_saver_wait(train_saver *s, mgw_error *error)
{
    if (s->begun)
        pthread_join(s->thread, NULL);
    s->begun = false;
    free(s->row);
    s->row = NULL;
    return s->status ? mgw_fail(error, s->status, "%s", s->error.message) : MGW_OK;
}

mgw_status train_saver_open(const char *path, unsigned keep, train_saver **out, mgw_error *error)
{
    train_saver *s = calloc(1, sizeof *s);
    if (s)
        s->path = strdup(path);
    if (!s || !s->path) {
        free(s);
        return mgw_fail_memory(error, path);
    }
    s->keep = keep;
    clean(path);
    *out = s;
    return MGW_OK;
}

void train_saver_close(train_saver *s)
{
    mgw_error unused;
    if (!s)
        return;
    (void)!train_saver_wait(s, &unused);
    free(s->path);
    free(s);
}
