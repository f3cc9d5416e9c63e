/* The output of a job's workers, in whole lines, so that those of several workers do not mix. */
#include "job/output.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/status.h"

enum { LINE_BYTES = 4096, LINE_MAX_BYTES = 1 << 20, SINK_FULL_BYTES = 1 << 20 };

static const double drain_s = 1;

/* ---- Writing, without blocking on slow readers ---- */

static bool is_full(const job_sink *s)
{
    return s->used >= SINK_FULL_BYTES;
}

/* A pipe that polls as writable accepts PIPE_BUF bytes without blocking. A terminal may not: it is
 * opened again in non-blocking mode, which does not affect other users of the terminal. */
static void sink_open(job_sink *s, int fd)
{
    char path[32];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    int own = isatty(fd) ? open(path, O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC) : -1;
    s->fd = own >= 0 ? own : fd;
    s->is_own = own >= 0;
}

static void sink_write(job_sink *s)
{
    size_t done = 0;
    struct pollfd one = {.fd = s->fd, .events = POLLOUT};
    while (done < s->used && poll(&one, 1, 0) > 0) {
        size_t left = s->used - done;
        ssize_t wrote = write(s->fd, s->data + done, left < PIPE_BUF ? left : PIPE_BUF);
        if (wrote > 0) {
            done += (size_t)wrote;
        } else if (errno == EAGAIN) {
            break;
        } else if (errno != EINTR) {                    /* workers continue */
            s->lost = errno == EPIPE ? s->lost : errno; /* a closed reader is not a failure */
            done = s->used;
        }
    }
    memmove(s->data, s->data + done, s->used - done);
    s->used -= done;
}

static void sink_put(job_output *o, job_sink *s, const char *data, size_t size)
{
    if (size == 0 || (o->hurries && is_full(s)))
        return;
    if (s->used + size > s->size) {
        size_t larger = 2 * (s->used + size);
        char *moved = realloc(s->data, larger);
        if (!moved) {
            o->unread = ENOMEM;
            return;
        }
        s->data = moved;
        s->size = larger;
    }
    memcpy(s->data + s->used, data, size);
    s->used += size;
}

/* ---- From the workers ---- */

/* If the workers form one command, equal error lines of several workers are printed once. */
static bool was_said(job_output *o, unsigned index, const char *line, size_t length)
{
    if (o->prefix || index % 2 == 0)
        return false;
    if (o->said_by != index && o->said_length == length && o->said &&
        !memcmp(o->said, line, length))
        return true;
    char *copy = realloc(o->said, length);
    if (copy) {
        memcpy(copy, line, length);
        o->said = copy;
        o->said_length = length;
        o->said_by = index;
    }
    return false;
}

/* ---- Why a job ends: the cause first, and only once ---- */

static bool is_last_word(const job_output *o, unsigned index, const char *line)
{
    return !o->prefix && index % 2 && (*line == *JOB_LAST_WORD || *line == *JOB_FOLLOWS);
}

static void say_word(job_output *o, const char *word)
{
    if (o->overwritten)
        sink_put(o, &o->sinks[1], "\033[K", 3);
    o->overwritten = false;
    sink_put(o, &o->sinks[1], word, strlen(word));
}

/* Keeps a worker's last message until it is known who failed first. If that worker could not report
 * anything, another one's message is printed. */
static void take_word(job_output *o, unsigned worker, const char *line, size_t length)
{
    job_word *word = &o->words[worker];
    free(word->text);
    *word = (job_word){strndup(line + 1, length - 1), *line == *JOB_FOLLOWS};
    if (!word->text)
        return;
    if (o->settled && o->wants_word) {
        say_word(o, word->text);
        o->wants_word = false;
    } else if (o->waits && !o->settled && !word->follows) {
        say_word(o, word->text);
        o->settled = true;
    }
}

/* The message of a worker that failed by itself, or else of one that failed because of another;
 * null: none. */
static const char *best_word(const job_output *o)
{
    const char *best = NULL;
    for (unsigned i = o->workers; i-- > 0;)
        if (o->words[i].text && (!best || !o->words[i].follows))
            best = o->words[i].text;
    return best;
}

bool job_output_follows(const job_output *o, unsigned worker)
{
    return o->words[worker].text && o->words[worker].follows;
}

void job_output_blame(job_output *o, unsigned worker, const char *otherwise)
{
    if (o->prefix) {
        job_output_say(o, otherwise);
        return;
    }
    if (o->settled)
        return;
    const char *own = o->words[worker].text;
    const char *seen = best_word(o);
    o->waits = job_output_follows(o, worker);
    if (o->waits) {
        for (unsigned i = 0; i < o->workers; i++)
            if (o->words[i].text && !o->words[i].follows)
                job_output_settle(o);
        return;
    }
    o->settled = true;
    say_word(o, own ? own : otherwise);
    o->wants_word = !own && !seen;
    if (!own && seen)
        say_word(o, seen);
    sink_write(&o->sinks[1]);
}

void job_output_settle(job_output *o)
{
    const char *best = o->settled ? NULL : best_word(o);
    if (!best)
        return;
    say_word(o, best);
    o->settled = true;
    sink_write(&o->sinks[1]);
}

/* ---- Lines ---- */

/* Whether a line is a progress line, which the next line overwrites. */
static bool is_overwritten(const job_output *o, unsigned index, const char *line, size_t length)
{
    return !o->prefix && index % 2 && line[length - 1] == '\r';
}

static void put_line(job_output *o, unsigned index, const char *line, size_t length)
{
    job_sink *sink = &o->sinks[index % 2];
    bool shown = o->prefix || o->whole || index < 2 || index % 2;
    if (is_last_word(o, index, line)) {
        take_word(o, index / 2, line, length);
        return;
    }
    bool overwritten = is_overwritten(o, index, line, length);
    if (!shown || (!overwritten && was_said(o, index, line, length)))
        return;
    if (o->overwritten && !overwritten)
        sink_put(o, &o->sinks[1], "\033[K", 3);
    o->overwritten = overwritten;
    char prefix[16] = "";
    if (o->prefix)
        snprintf(prefix, sizeof prefix, "[%u] ", o->first + index / 2);
    sink_put(o, sink, prefix, strlen(prefix));
    sink_put(o, sink, line, length);
    sink_put(o, sink, "\n", line[length - 1] != '\n' && !overwritten);
}

/* Makes room for more of a line; lines that are too long are split. */
static void make_room(job_output *o, unsigned index)
{
    job_stream *s = &o->streams[index];
    if (s->used < s->size)
        return;
    char *larger = s->size < LINE_MAX_BYTES ? realloc(s->line, 2 * s->size) : NULL;
    if (larger) {
        s->line = larger;
        s->size *= 2;
    } else {
        put_line(o, index, s->line, s->used);
        s->used = 0;
    }
}

static const char *find_end(const job_output *o, unsigned index, size_t begin)
{
    const job_stream *s = &o->streams[index];
    const char *line = memchr(s->line + begin, '\n', s->used - begin);
    bool may = !o->prefix && index % 2;
    const char *back = may ? memchr(s->line + begin, '\r', s->used - begin) : NULL;
    return back && (!line || back < line) ? back : line;
}

static void put_lines(job_output *o, unsigned index)
{
    job_stream *s = &o->streams[index];
    size_t begin = 0;
    const char *end = NULL;
    while (begin < s->used && (end = find_end(o, index, begin))) {
        size_t length = (size_t)(end - s->line) + 1 - begin;
        put_line(o, index, s->line + begin, length);
        begin += length;
    }
    memmove(s->line, s->line + begin, s->used - begin);
    s->used -= begin;
}

static void end_stream(job_output *o, unsigned index)
{
    job_stream *s = &o->streams[index];
    if (s->used)
        put_line(o, index, s->line, s->used);
    s->used = 0;
    close(s->fd);
    s->fd = -1;
}

/* How many bytes came. */
static size_t read_stream(job_output *o, unsigned index)
{
    job_stream *s = &o->streams[index];
    make_room(o, index);
    ssize_t got = read(s->fd, s->line + s->used, s->size - s->used);
    if (got < 0 && errno == EINTR)
        return 0;
    if (got > 0)
        s->used += (size_t)got;
    int code = got < 0 ? errno : 0;
    put_lines(o, index);
    struct pollfd more = {.fd = s->fd, .events = POLLIN};
    bool left = code && poll(&more, 1, 0) > 0 && more.revents & POLLIN;
    if (left && !s->stumbled) { /* once more: a closed pipe would kill the worker */
        s->stumbled = true;
        return 0;
    }
    if (left)
        o->unread = code;
    if (got <= 0) /* a terminal reports its end as an error */
        end_stream(o, index);
    return got > 0 ? (size_t)got : 0;
}

void job_output_hear(job_output *o, unsigned worker)
{
    unsigned index = 2 * worker + 1;
    const job_stream *s = &o->streams[index];
    struct pollfd one = {.fd = s->fd, .events = POLLIN};
    int room = s->fd >= 0 ? fcntl(s->fd, F_GETPIPE_SZ) : 0;
    size_t most = room > 0 ? (size_t)room : LINE_MAX_BYTES;
    for (size_t heard = 0; heard < most && s->fd >= 0 && poll(&one, 1, 0) > 0;)
        heard += read_stream(o, index);
}

/* ---- All streams ---- */

typedef struct watched {
    struct pollfd polls[3 + JOB_STREAMS_MAX]; /* of the caller, the sinks and the streams */
    unsigned index[JOB_STREAMS_MAX];
    nfds_t count;
} watched;

static void watch(const job_output *o, const struct pollfd *other, watched *w)
{
    w->count = 3;
    w->polls[0] = other ? *other : (struct pollfd){.fd = -1};
    for (unsigned i = 0; i < 2; i++)
        w->polls[1 + i] =
            (struct pollfd){.fd = o->sinks[i].used ? o->sinks[i].fd : -1, .events = POLLOUT};
    for (unsigned i = 0; i < 2 * o->workers; i++)
        if (o->streams[i].fd >= 0 && (o->hurries || !is_full(&o->sinks[i % 2]))) {
            w->index[w->count - 3] = i;
            w->polls[w->count++] = (struct pollfd){.fd = o->streams[i].fd, .events = POLLIN};
        }
}

bool job_output_step(job_output *o, struct pollfd *other, int timeout_ms)
{
    watched w;
    watch(o, other, &w);
    int ready = poll(w.polls, w.count, timeout_ms);
    for (nfds_t i = 3; ready > 0 && i < w.count; i++)
        if (w.polls[i].revents)
            read_stream(o, w.index[i - 3]);
    for (unsigned i = 0; i < 2; i++)
        if (o->sinks[i].used)
            sink_write(&o->sinks[i]);
    if (other)
        other->revents = ready > 0 ? w.polls[0].revents : 0;
    return ready > 0;
}

void job_output_say(job_output *o, const char *line)
{
    if (o->overwritten)
        sink_put(o, &o->sinks[1], "\033[K", 3);
    o->overwritten = false;
    sink_put(o, &o->sinks[1], line, strlen(line));
    sink_write(&o->sinks[1]);
}

/* Workers have ended, so anything that writes without end is not ours. */
void job_output_drain(job_output *o)
{
    double until_s = mgw_now_s() + drain_s;
    bool more = true;
    while (more && mgw_now_s() < until_s) {
        watched w;
        watch(o, NULL, &w);
        for (nfds_t i = 0; i < 3; i++)
            w.polls[i].fd = -1;
        more = w.count > 3 && poll(w.polls, w.count, 0) > 0;
        for (nfds_t i = 3; more && i < w.count; i++)
            if (w.polls[i].revents)
                read_stream(o, w.index[i - 3]);
    }
    for (unsigned i = 0; i < 2 * o->workers; i++)
        if (o->streams[i].fd >= 0 && (o->hurries || !is_full(&o->sinks[i % 2])))
            end_stream(o, i);
    job_output_settle(o);
}

bool job_output_is_written(const job_output *o)
{
    bool open = false;
    for (unsigned i = 0; i < 2 * o->workers; i++)
        open = open || o->streams[i].fd >= 0;
    return !open && !o->sinks[0].used && !o->sinks[1].used;
}

int job_output_lost(const job_output *o)
{
    return o->sinks[0].lost ? o->sinks[0].lost : o->sinks[1].lost ? o->sinks[1].lost : o->unread;
}

void job_output_open(job_output *o, unsigned rank, int out, int err)
{
    o->streams[2 * rank].fd = out;
    o->streams[2 * rank + 1].fd = err;
}

mgw_status job_output_init(job_output *o, unsigned workers, bool prefix, mgw_error *error)
{
    *o = (job_output){.prefix = prefix, .workers = workers};
    sink_open(&o->sinks[0], STDOUT_FILENO);
    sink_open(&o->sinks[1], STDERR_FILENO);
    bool whole = true;
    for (unsigned i = 0; i < 2 * workers; i++) {
        job_stream *s = &o->streams[i];
        *s = (job_stream){.fd = -1, .size = LINE_BYTES, .line = malloc(LINE_BYTES)};
        whole = whole && s->line;
    }
    return whole ? MGW_OK : mgw_fail_memory(error, "output of workers");
}

void job_output_fini(job_output *o)
{
    for (unsigned i = 0; i < 2 * o->workers; i++)
        free(o->streams[i].line);
    for (unsigned i = 0; i < 2; i++) {
        free(o->sinks[i].data);
        if (o->sinks[i].is_own)
            close(o->sinks[i].fd);
    }
    for (unsigned i = 0; i < o->workers; i++)
        free(o->words[i].text);
    free(o->said);
}
