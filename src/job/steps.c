/* Collects the steps of all workers at rank 0, on one clock, and writes them. */
#include "job/steps.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <mgwfbp/sim.h>
#include <mgwfbp/transport.h>

#include "base/clock.h"
#include "base/median.h"
#include "base/status.h"

/* Number of barriers for comparing clocks: workers leave a barrier at almost the same time. */
enum { BARRIERS = 33 };

/* A separate transport, only for this exchange. */
static mgw_status open_transport(mgw_transport **out, mgw_error *error)
{
    char job[128];
    const char *engine_job = getenv("MGWFBP_JOB");
    snprintf(job, sizeof job, "%s.timelines", engine_job ? engine_job : "");
    return mgw_transport_open(&(mgw_transport_options){.job = engine_job ? job : NULL}, out, error);
}

/* A worker's clock. */
typedef struct clock_note {
    char boot[40]; /* boot id: workers with the same one share a clock */
    double ends_s[BARRIERS];
} clock_note;

static void read_boot(char boot[40])
{
    memset(boot, 0, 40);
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "r");
    if (file && !fgets(boot, 40, file))
        boot[0] = '\0';
    if (file)
        fclose(file);
}

/*
 * How far each worker's clock is ahead of rank 0's: 0 on the same host, otherwise the median over
 * the ends of the barriers.
 */
static mgw_status compare_clocks(mgw_transport *transport, double *ahead_s, mgw_error *error)
{
    clock_note own;
    clock_note first = {0};
    mgw_status status = MGW_OK;
    read_boot(own.boot);
    for (int i = 0; !status && i < BARRIERS; i++) {
        status = mgw_transport_barrier(transport, error);
        own.ends_s[i] = mgw_now_s();
    }
    for (unsigned r = 0; !status && r < mgw_transport_size(transport); r++) {
        clock_note theirs = own;
        status = mgw_transport_broadcast(transport, &theirs, sizeof theirs, r, error);
        if (r == 0)
            first = theirs;
        for (int i = 0; i < BARRIERS; i++)
            theirs.ends_s[i] -= first.ends_s[i];
        bool same_host = *first.boot && !memcmp(first.boot, theirs.boot, sizeof first.boot);
        ahead_s[r] = same_host ? 0 : mgw_median(theirs.ends_s, BARRIERS);
    }
    return status;
}

/* Timelines of `count` steps of all workers, on rank 0; those of rank r begin at r * count. */
typedef struct gathered {
    unsigned size;
    size_t count;
    double *begins_s;
    mgw_timeline **timelines;
} gathered;

/* Rank r sends the start times and, as text, the timelines of its steps. Collective. */
static mgw_status collect(mgw_transport *transport, unsigned r, const mgw_text *own,
                          const job_step *steps, gathered *all, mgw_error *error)
{
    bool tells = mgw_transport_rank(transport) == r;
    double *begins_s = all->begins_s + r * all->count;
    for (size_t i = 0; i < all->count; i++)
        begins_s[i] = steps[i].begin_s;
    uint64_t size = own->size;
    mgw_status status = mgw_transport_broadcast(transport, &size, sizeof size, r, error);
    if (!status)
        status =
            mgw_transport_broadcast(transport, begins_s, all->count * sizeof *begins_s, r, error);
    if (status)
        return status;
    char *text = malloc(size + 1);
    if (!text)
        return mgw_fail_memory(error, "timelines");
    if (tells)
        memcpy(text, own->data, size);
    status = mgw_transport_broadcast(transport, text, size, r, error);
    mgw_timeline **read = NULL;
    size_t count = 0;
    if (!status && mgw_transport_rank(transport) == 0)
        status = mgw_timelines_parse("timelines", text, size, &read, &count, error);
    for (size_t i = 0; i < count && i < all->count; i++)
        all->timelines[r * all->count + i] = read[i];
    free((void *)read);
    free(text);
    return status;
}

/* Shifts the timelines such that every step begins at 0 with the first worker. */
static void align(gathered *all, const double *ahead_s)
{
    for (size_t i = 0; i < all->count; i++) {
        double earliest_s = all->begins_s[i] - ahead_s[0];
        for (unsigned r = 1; r < all->size; r++)
            earliest_s = fmin(earliest_s, all->begins_s[r * all->count + i] - ahead_s[r]);
        for (unsigned r = 0; r < all->size; r++)
            mgw_timeline_shift(all->timelines[r * all->count + i],
                               all->begins_s[r * all->count + i] - ahead_s[r] - earliest_s);
    }
}

static mgw_status exchange(mgw_transport *transport, const mgw_text *own, const job_step *steps,
                           gathered *all, mgw_error *error)
{
    size_t total = all->size * all->count;
    double *ahead_s = calloc(all->size, sizeof *ahead_s);
    all->begins_s = calloc(total, sizeof *all->begins_s);
    all->timelines = calloc(total, sizeof(mgw_timeline *));
    mgw_status status =
        ahead_s && all->begins_s && all->timelines ? MGW_OK : mgw_fail_memory(error, "timelines");
    if (!status)
        status = compare_clocks(transport, ahead_s, error);
    for (unsigned r = 0; !status && r < all->size; r++)
        status = collect(transport, r, own, steps, all, error);
    if (!status && mgw_transport_rank(transport) == 0)
        align(all, ahead_s);
    free(ahead_s);
    return status;
}

/* ---- Writing ---- */

static mgw_status simulate(const job_step *step, const mgw_trace *trace, mgw_timeline **out,
                           mgw_error *error)
{
    mgw_status status = mgw_simulate(step->predicted, trace, out, error);
    mgw_text title;
    mgw_text_init(&title);
    mgw_text_printf(&title, "%s, predicted", step->predicted->policy);
    if (!status)
        status = mgw_text_status(&title, error);
    if (status) {
        mgw_text_fini(&title);
        return status;
    }
    free((*out)->title);
    (*out)->title = title.data;
    return MGW_OK;
}

static mgw_status write_all(const mgw_trace *trace, const job_step *steps, const gathered *all,
                            mgw_text *text, mgw_error *error)
{
    size_t each = all->size + 1;
    const mgw_timeline **list = calloc(all->count * each, sizeof(mgw_timeline *));
    mgw_timeline **predicted = calloc(all->count, sizeof(mgw_timeline *));
    mgw_status status = list && predicted ? MGW_OK : mgw_fail_memory(error, "timelines");
    for (size_t i = 0; !status && i < all->count; i++) {
        status = simulate(&steps[i], trace, &predicted[i], error);
        list[i * each] = predicted[i];
        for (unsigned r = 0; r < all->size; r++)
            list[i * each + 1 + r] = all->timelines[r * all->count + i];
    }
    if (!status)
        mgw_timelines_write(list, all->count * each, text);
    mgw_timelines_destroy(predicted, all->count);
    free((void *)list);
    return status;
}

static void write_own(const job_step *steps, size_t count, mgw_text *text)
{
    const mgw_timeline **own = calloc(count, sizeof(mgw_timeline *));
    for (size_t i = 0; own && i < count; i++)
        own[i] = steps[i].measured;
    if (own)
        mgw_timelines_write(own, count, text);
    else
        text->failed = true;
    free((void *)own);
}

mgw_status job_gather_steps(const mgw_trace *trace, const job_step *steps, size_t count,
                            mgw_text *text, mgw_error *error)
{
    mgw_text own;
    mgw_text_init(&own);
    write_own(steps, count, &own);
    mgw_transport *transport = NULL;
    gathered all = {.count = count};
    mgw_status status = mgw_text_status(&own, error);
    if (!status)
        status = open_transport(&transport, error);
    if (!status) {
        all.size = mgw_transport_size(transport);
        status = exchange(transport, &own, steps, &all, error);
    }
    if (!status && mgw_transport_rank(transport) == 0)
        status = write_all(trace, steps, &all, text, error);
    mgw_transport_close(transport);
    mgw_timelines_destroy(all.timelines, all.size * count);
    free(all.begins_s);
    mgw_text_fini(&own);
    return status;
}
