/* When a wait fails: writes what this worker was doing to a file; and reports missing tensors to
 * workers that wait for it. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/status.h"
#include "engine/parameters.h"
#include "transport/transport.h"

/* ---- The last operations ---- */

/* The flow's step number may be one higher than that of a gather. */
void engine_history_begin(mgw_engine *engine, size_t index)
{
    engine_history *h = &engine->history;
    const engine_parameters *p = engine->parameters;
    size_t count = 0;
    const mgw_operation *o = &mgw_flow_operations(engine->flow, &count)[index];
    pthread_mutex_lock(&h->lock);
    h->done[h->count++ % ENGINE_HISTORY] =
        (engine_deed){.step = p ? p->step : mgw_flow_step(engine->flow),
                      .index = index,
                      .kind = o->kind,
                      .first = o->first,
                      .tensors = o->count,
                      .begun_s = mgw_now_s()};
    pthread_mutex_unlock(&h->lock);
}

void engine_history_end(mgw_engine *engine)
{
    engine_history *h = &engine->history;
    pthread_mutex_lock(&h->lock);
    h->done[(h->count - 1) % ENGINE_HISTORY].ended_s = mgw_now_s();
    pthread_mutex_unlock(&h->lock);
}

static void write_deeds(mgw_engine *engine, double now_s, FILE *file)
{
    engine_history *h = &engine->history;
    fprintf(file, "\nlast operations, with the host's times of start and end:\n");
    pthread_mutex_lock(&h->lock);
    for (uint64_t i = h->count > ENGINE_HISTORY ? h->count - ENGINE_HISTORY : 0; i < h->count;
         i++) {
        const engine_deed *d = &h->done[i % ENGINE_HISTORY];
        fprintf(file, "  step %llu, %s %zu (%zu tensors from '%.80s'): begun %.6f s ago, ",
                (unsigned long long)d->step, mgw_collective_name(d->kind), d->index + 1, d->tensors,
                mgw_names_get(engine->arena.names, d->first), now_s - d->begun_s);
        if (d->ended_s > 0)
            fprintf(file, "took %.6f s\n", d->ended_s - d->begun_s);
        else
            fprintf(file, "not done\n");
    }
    pthread_mutex_unlock(&h->lock);
}

/* ---- Missing tensors ---- */

static void write_missing(const mgw_engine *engine, const mgw_operation *o, FILE *file)
{
    size_t missing = 0;
    for (size_t i = o->first; i < o->first + o->count; i++)
        missing += !mgw_flow_has(engine->flow, (unsigned)i);
    if (!missing || o->kind == MGW_ALL_GATHER)
        return;
    fprintf(file, ", %zu not ready:", missing);
    for (size_t i = o->first; i < o->first + o->count; i++)
        if (!mgw_flow_has(engine->flow, (unsigned)i))
            fprintf(file, " '%.80s'", mgw_names_get(engine->arena.names, i));
}

static void write_step(const mgw_engine *engine, double now_s, FILE *file)
{
    size_t count = 0;
    const mgw_operation *operations = mgw_flow_operations(engine->flow, &count);
    fprintf(file, "\nstep %llu, begun %.3f s ago; its operations, in order (the turn is %zu's):\n",
            (unsigned long long)mgw_flow_step(engine->flow), now_s - mgw_flow_begun_s(engine->flow),
            mgw_flow_turn(engine->flow) + 1);
    for (size_t i = 0; i < count; i++) {
        const mgw_operation *o = &operations[i];
        fprintf(file, "  %zu: %s, %zu tensors from '%.80s'", i + 1, mgw_collective_name(o->kind),
                o->count, mgw_names_get(engine->arena.names, o->first));
        write_missing(engine, o, file);
        fputc('\n', file);
    }
}

/* ---- The file ---- */

static void write_all(mgw_engine *engine, const mgw_error *error, FILE *file)
{
    char host[256] = "?";
    char date[32] = "?";
    time_t now = time(NULL);
    struct tm utc;
    double now_s = mgw_now_s();
    gethostname(host, sizeof host - 1);
    if (gmtime_r(&now, &utc))
        strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", &utc);
    fprintf(file,
            "libmgwfbp %s, rank %u of %u, process %ld on %s, %s\ntransport %s, timeout %g s\n%s\n",
            mgw_version(), engine->rank, engine->size, (long)getpid(), host, date,
            mgw_transport_name(engine->transport), engine->options.transport.timeout_s,
            error->message);
    if (mgw_flow_step(engine->flow))
        write_step(engine, now_s, file);
    write_deeds(engine, now_s, file);
}

/* Creates a new file; -1: failed. */
static int make_file(unsigned rank, char *path, size_t size)
{
    const char *folder = getenv("MGWFBP_DUMP");
    if (!folder)
        folder = getenv("TMPDIR");
    if (!folder)
        folder = "/tmp";
    for (unsigned i = 0; *folder && i < 100; i++) {
        int length =
            snprintf(path, size, "%s/mgwfbp-%ld-%u-rank-%u.txt", folder, (long)getpid(), i, rank);
        if (length >= (int)size)
            return -1;
        int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
        if (fd >= 0 || errno != EEXIST)
            return fd;
    }
    return -1;
}

void engine_explain(mgw_engine *engine, mgw_error *error)
{
    char path[MGW_ERROR_MAX / 2];
    bool waited = error->status == MGW_ERR_TIMEOUT || error->status == MGW_ERR_PEER;
    if (!waited || !engine->history.open || engine->history.explained)
        return;
    engine->history.explained = true;
    int fd = make_file(engine->rank, path, sizeof path);
    FILE *file = fd >= 0 ? fdopen(fd, "w") : NULL;
    if (!file) {
        if (fd >= 0)
            close(fd);
        return;
    }
    write_all(engine, error, file);
    fclose(file);
    char message[MGW_ERROR_MAX];
    snprintf(message, sizeof message, "%.*s", (int)(sizeof message - strlen(path) - 16),
             error->message);
    mgw_error_record(error, error->status, "%s (more in %s)", message, path);
}

/* ---- Reports to other workers ---- */

const char *engine_missing_tensor(const mgw_engine *engine, size_t turn)
{
    size_t count = 0;
    const mgw_operation *operations = mgw_flow_operations(engine->flow, &count);
    for (size_t i = turn < count ? operations[turn].first : 0; i < engine->arena.count; i++)
        if (!mgw_flow_has(engine->flow, (unsigned)i))
            return mgw_names_get(engine->arena.names, i);
    return NULL;
}

void engine_say_missing(mgw_engine *engine)
{
    char text[120];
    size_t turn = mgw_flow_turn(engine->flow);
    const char *name = engine_missing_tensor(engine, turn);
    if (!name || mgw_flow_averaged(engine->flow) || engine->history.said == name)
        return;
    engine->history.said = name;
    snprintf(text, sizeof text, "it waits for its tensor '%.60s'", name);
    mgw_transport_say(engine->transport, text);
}
