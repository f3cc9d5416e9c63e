/* What the workers of a job write: whole lines, so that those of several workers do not mix. */
#include "job/output.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/status.h"

enum { LINE_BYTES = 4096, LINE_MAX_BYTES = 1 << 20 };

static void write_out(job_stream *s, const char *data, size_t size)
{
    while (size > 0) {
        ssize_t done = write(s->to, data, size);
        if (done < 0 && errno != EINTR) {               /* the workers go on */
            s->lost = errno == EPIPE ? s->lost : errno; /* that nobody reads it is no failure */
            return;
        }
        if (done > 0) {
            data += done;
            size -= (size_t)done;
        }
    }
}

/* Where the workers are one command, what several of them have to say is said once. */
static bool was_said(job_output *o, unsigned rank, const job_stream *s, size_t length)
{
    if (o->prefix || s->to != STDERR_FILENO)
        return false;
    bool again = o->said_by != rank && o->said_length == length && o->said &&
                 !memcmp(o->said, s->line, length);
    if (again)
        return true;
    char *copy = realloc(o->said, length);
    if (copy) {
        memcpy(copy, s->line, length);
        o->said = copy;
        o->said_length = length;
        o->said_by = rank;
    }
    return false;
}

static void flush_line(job_output *o, unsigned rank, job_stream *s, size_t length)
{
    bool shown = o->prefix || rank == 0 || s->to == STDERR_FILENO;
    if (shown && !was_said(o, rank, s, length)) {
        char prefix[16] = "";
        if (o->prefix)
            snprintf(prefix, sizeof prefix, "[%u] ", o->first + rank);
        write_out(s, prefix, strlen(prefix));
        write_out(s, s->line, length);
        write_out(s, "\n", s->line[length - 1] != '\n');
    }
    memmove(s->line, s->line + length, s->used - length);
    s->used -= length;
}

/* For more of a line; one that is too long is cut. */
static void make_room(job_output *o, unsigned rank, job_stream *s)
{
    if (s->used < s->size)
        return;
    char *larger = s->size < LINE_MAX_BYTES ? realloc(s->line, 2 * s->size) : NULL;
    if (larger) {
        s->line = larger;
        s->size *= 2;
    } else {
        flush_line(o, rank, s, s->used);
    }
}

void job_output_read(job_output *o, unsigned index)
{
    unsigned rank = index / 2;
    job_stream *s = &o->streams[index];
    make_room(o, rank, s);
    ssize_t got = read(s->fd, s->line + s->used, s->size - s->used);
    if (got < 0 && errno == EINTR)
        return;
    if (got > 0)
        s->used += (size_t)got;
    char *end = NULL;
    while (s->used && (end = memchr(s->line, '\n', s->used)))
        flush_line(o, rank, s, (size_t)(end - s->line) + 1);
    if (got <= 0 && s->used)
        flush_line(o, rank, s, s->used);
    if (got <= 0) {
        close(s->fd);
        s->fd = -1;
    }
}

nfds_t job_output_poll(const job_output *o, struct pollfd *polls, unsigned *index)
{
    nfds_t count = 0;
    for (unsigned i = 0; i < 2 * o->workers; i++)
        if (o->streams[i].fd >= 0) {
            index[count] = i;
            polls[count++] = (struct pollfd){.fd = o->streams[i].fd, .events = POLLIN};
        }
    return count;
}

int job_output_lost(const job_output *o)
{
    for (unsigned r = 0; r < o->workers; r++)
        if (o->streams[2 * r].lost)
            return o->streams[2 * r].lost;
    return 0;
}

void job_output_open(job_output *o, unsigned rank, int out, int err)
{
    o->streams[2 * rank].fd = out;
    o->streams[2 * rank + 1].fd = err;
}

mgw_status job_output_init(job_output *o, unsigned workers, bool prefix, mgw_error *error)
{
    *o = (job_output){.prefix = prefix, .workers = workers};
    for (unsigned i = 0; i < 2 * workers; i++) {
        job_stream *s = &o->streams[i];
        *s = (job_stream){.fd = -1, .to = i % 2 ? STDERR_FILENO : STDOUT_FILENO};
        s->size = LINE_BYTES;
        s->line = malloc(LINE_BYTES);
        if (!s->line)
            return mgw_fail_memory(error, "output of workers");
    }
    return MGW_OK;
}

void job_output_fini(job_output *o)
{
    for (unsigned i = 0; i < 2 * o->workers; i++)
        free(o->streams[i].line);
    free(o->said);
}
