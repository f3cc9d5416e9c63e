/* Imports measurements of other programs: detects the format, and has the helpers of all readers.
 */
#include "cluster/import.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/locale.h"
#include "base/status.h"
#include "data/source.h"

const char *mgw_import_format_name(mgw_import_format format)
{
    static const char *const names[] = {[MGW_IMPORT_CLUSTER] = "mgwfbp cluster",
                                        [MGW_IMPORT_CSV] = "bytes,seconds CSV",
                                        [MGW_IMPORT_OSU] = "OSU micro-benchmarks",
                                        [MGW_IMPORT_NCCL_TEXT] = "nccl-tests table",
                                        [MGW_IMPORT_NCCL_JSON] = "nccl-tests JSON"};
    return names[format];
}

mgw_status mgw_measurements_add(mgw_measurements *measured, size_t line, uint64_t bytes,
                                double seconds, mgw_error *error)
{
    if (!(seconds > 0) || !isfinite(seconds))
        return mgw_fail(error, MGW_ERR_INPUT, "%s:%zu: the time for %llu bytes must be above 0",
                        measured->origin, line, (unsigned long long)bytes);
    mgw_sample_list *list = &measured->of[measured->kind];
    if (list->count == list->capacity) {
        size_t capacity = list->capacity ? 2 * list->capacity : 64;
        mgw_sample *samples = realloc(list->samples, capacity * sizeof *samples);
        if (!samples)
            return mgw_fail_memory(error, measured->origin);
        list->samples = samples;
        list->capacity = capacity;
    }
    list->samples[list->count++] = (mgw_sample){bytes, seconds};
    return MGW_OK;
}

bool mgw_lines_next(mgw_lines *lines)
{
    if (lines->next == lines->end)
        return false;
    const char *stop = memchr(lines->next, '\n', (size_t)(lines->end - lines->next));
    size_t length = (size_t)((stop ? stop : lines->end) - lines->next);
    if (length >= lines->capacity) {
        char *line = realloc(lines->line, 2 * length + 80);
        if (!line) {
            lines->failed = true;
            return false;
        }
        lines->line = line;
        lines->capacity = 2 * length + 80;
    }
    memcpy(lines->line, lines->next, length);
    while (length > 0 && isspace((unsigned char)lines->line[length - 1]))
        length--;
    lines->line[length] = '\0';
    lines->next = stop ? stop + 1 : lines->end;
    lines->number++;
    return true;
}

mgw_status mgw_lines_end(mgw_lines *lines, mgw_status status, mgw_error *error)
{
    free(lines->line);
    return !status && lines->failed ? mgw_fail_memory(error, "measurements") : status;
}

static size_t digits(const char *at)
{
    return strspn(at, "0123456789");
}

/* Whether it is a JSON number, in every locale: not "nan", "0x10" or "1,5". */
static bool is_number(const char *word, bool *whole)
{
    const char *at = word + (*word == '-');
    size_t first = digits(at);
    if (!first || (*at == '0' && first > 1))
        return false;
    at += first;
    *whole = !*at;
    if (*at == '.') {
        if (!digits(++at))
            return false;
        at += digits(at);
    }
    if (*at == 'e' || *at == 'E') {
        at += 1 + (at[1] == '+' || at[1] == '-');
        if (!digits(at))
            return false;
        at += digits(at);
    }
    return !*at;
}

bool mgw_word_number(const char *word, double *out)
{
    bool whole = false;
    if (!is_number(word, &whole))
        return false;
    *out = strtod_l(word, NULL, mgw_c_locale());
    return isfinite(*out);
}

bool mgw_word_count(const char *word, uint64_t *out)
{
    bool whole = false;
    if (!is_number(word, &whole) || !whole)
        return false;
    errno = 0;
    long long value = strtoll(word, NULL, 10);
    *out = (uint64_t)value;
    return !errno && value >= 0;
}

/* Like strstr, for text without a terminating zero. */
static bool contains(const char *text, size_t size, const char *word)
{
    size_t length = strlen(word);
    for (const char *at = text; (size_t)(at - text) + length <= size; at++) {
        at = memchr(at, word[0], size - (size_t)(at - text) - length + 1);
        if (!at)
            return false;
        if (!memcmp(at, word, length))
            return true;
    }
    return false;
}

static mgw_import_format detect(const char *text, size_t size)
{
    size_t first = 0;
    while (first < size && isspace((unsigned char)text[first]))
        first++;
    if (first < size && text[first] == '{') {
        char *format = mgw_json_format(text, size);
        bool ours = format != NULL;
        free(format);
        return ours ? MGW_IMPORT_CLUSTER : MGW_IMPORT_NCCL_JSON;
    }
    if (contains(text, size, "# OSU "))
        return MGW_IMPORT_OSU;
    if (contains(text, size, "busbw"))
        return MGW_IMPORT_NCCL_TEXT;
    return MGW_IMPORT_CSV;
}

bool mgw_is_foreign(const char *text, size_t size)
{
    mgw_import_format format = detect(text, size);
    return format == MGW_IMPORT_NCCL_JSON ? contains(text, size, "_perf")
                                          : format != MGW_IMPORT_CLUSTER;
}

/* "results/two-nodes.txt" becomes the cluster "two-nodes". */
static void name_from(const char *origin, char *name, size_t size)
{
    const char *slash = strrchr(origin, '/');
    snprintf(name, size, "%s", slash ? slash + 1 : origin);
    char *dot = strrchr(name, '.');
    if (dot && dot != name)
        *dot = '\0';
}

/* Times of all-reduces are required; other kinds are optional. */
static mgw_status check_kinds(const mgw_measurements *measured, mgw_import_format format,
                              mgw_error *error)
{
    if (measured->of[MGW_ALL_REDUCE].count)
        return MGW_OK;
    for (int k = 0; k < MGW_COLLECTIVE_COUNT; k++)
        if (measured->of[k].count)
            return mgw_fail(error, MGW_ERR_INPUT,
                            "%s: has only times of %s; a cluster also needs times of all-reduces, "
                            "in the same file",
                            measured->origin, mgw_collective_name((mgw_collective)k));
    return mgw_fail(error, MGW_ERR_INPUT, "%s: contains no measurement (read as %s)",
                    measured->origin, mgw_import_format_name(format));
}

static mgw_status make_cluster(const mgw_measurements *measured, unsigned workers,
                               mgw_cluster **out, mgw_error *error)
{
    char name[256];
    mgw_error inner;
    mgw_cluster *cluster = NULL;
    const mgw_sample_list *of = measured->of;
    name_from(measured->origin, name, sizeof name);
    mgw_status status = mgw_cluster_from_samples(name, workers, of[MGW_ALL_REDUCE].samples,
                                                 of[MGW_ALL_REDUCE].count, &cluster, &inner);
    for (int k = 0; !status && k < MGW_COLLECTIVE_COUNT; k++)
        if (k != MGW_ALL_REDUCE && of[k].count)
            status = mgw_cluster_set_samples(cluster, (mgw_collective)k, of[k].samples, of[k].count,
                                             &inner);
    if (status) {
        mgw_cluster_destroy(cluster);
        return mgw_fail(error, inner.status, "%s: %s", measured->origin, inner.message);
    }
    *out = cluster;
    return MGW_OK;
}

static mgw_status import_foreign(const char *origin, const char *text, size_t size,
                                 unsigned workers, mgw_import *about, mgw_cluster **out,
                                 mgw_error *error)
{
    static mgw_status (*const readers[])(const char *, size_t, mgw_measurements *, mgw_error *) = {
        [MGW_IMPORT_CSV] = mgw_import_csv,
        [MGW_IMPORT_OSU] = mgw_import_osu,
        [MGW_IMPORT_NCCL_TEXT] = mgw_import_nccl_text,
        [MGW_IMPORT_NCCL_JSON] = mgw_import_nccl_json,
    };
    mgw_measurements measured = {.origin = origin, .kind = MGW_ALL_REDUCE};
    mgw_status status = readers[about->format](text, size, &measured, error);
    if (!status)
        status = check_kinds(&measured, about->format, error);
    if (!status) {
        about->workers = measured.workers >= 2 ? measured.workers : 0;
        unsigned known = workers ? workers : about->workers;
        status = make_cluster(&measured, known ? known : 2, out, error);
        if (!status)
            (*out)->assumes_workers = !known;
    }
    for (int k = 0; k < MGW_COLLECTIVE_COUNT; k++)
        free(measured.of[k].samples);
    return status;
}

mgw_status mgw_cluster_import(const char *origin, const char *text, size_t size, unsigned workers,
                              mgw_import *about, mgw_cluster **out, mgw_error *error)
{
    *about = (mgw_import){.format = detect(text, size)};
    if (about->format != MGW_IMPORT_CLUSTER)
        return import_foreign(origin, text, size, workers, about, out, error);
    mgw_status status = mgw_cluster_parse(origin, text, size, out, error);
    if (status)
        return status;
    about->workers = (*out)->workers;
    bool scales = (*out)->kind == MGW_CLUSTER_LINK || (*out)->kind == MGW_CLUSTER_LEVELS;
    if (workers && scales)
        status = mgw_cluster_rescale(*out, workers, NULL, error);
    else if (workers)
        (*out)->workers = workers; /* the caller's number takes precedence */
    if (status) {
        mgw_cluster_destroy(*out);
        *out = NULL;
    }
    return status;
}

mgw_status mgw_cluster_import_file(const char *path_or_name, unsigned workers, mgw_import *about,
                                   mgw_cluster **out, mgw_error *error)
{
    mgw_source source;
    mgw_status status = mgw_source_open(path_or_name, &source, error);
    if (!status)
        status =
            mgw_cluster_import(path_or_name, source.text, source.size, workers, about, out, error);
    mgw_source_close(&source);
    return status;
}
