/* Reads output of nccl-tests: tables of all_reduce_perf, reduce_scatter_perf and all_gather_perf,
 * and the JSON of -J. Times are in microseconds. Sizes are those of the whole message, as in our
 * files. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/status.h"
#include "cluster/import.h"

/* Which collective a benchmark measures. */
static mgw_status find_kind(const char *benchmark, size_t line, mgw_measurements *measured,
                            mgw_error *error)
{
    static const struct {
        const char *name;
        mgw_collective kind;
    } known[] = {{"all_reduce_perf", MGW_ALL_REDUCE},
                 {"reduce_scatter_perf", MGW_REDUCE_SCATTER},
                 {"all_gather_perf", MGW_ALL_GATHER}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (!strcmp(benchmark, known[i].name)) {
            measured->kind = known[i].kind;
            return MGW_OK;
        }
    return mgw_fail(error, MGW_ERR_INPUT,
                    "%s:%zu: '%.40s' is not all_reduce_perf, reduce_scatter_perf or "
                    "all_gather_perf",
                    measured->origin, line, benchmark);
}

/* ---- Tables ---- */

/* The current table. Columns differ between versions. */
typedef struct table {
    bool titled;      /* its benchmark is named */
    unsigned workers; /* listed above it */
    int time;         /* column of the last time, in-place; -1: no header so far */
    int redop;        /* -1: none */
} table;

static bool is_time_column(const char *word)
{
    return !strcmp(word, "time") || !strcmp(word, "cputime");
}

/* "#   size  count  type  redop  root  time  algbw  busbw  #wrong  time …" */
static void find_columns(char *line, table *t)
{
    char *rest = NULL;
    int index = 0;
    t->time = t->redop = -1;
    for (char *word = strtok_r(line + 1, " \t", &rest); word;
         word = strtok_r(NULL, " \t", &rest), index++) {
        if (is_time_column(word))
            t->time = index;
        if (!strcmp(word, "redop"))
            t->redop = index;
    }
}

/*
 * Checks tables that do not name their benchmark, as in older versions: an all-reduce has a
 * reduction operation, and its bus bandwidth is 2(N-1)/N of the algorithm bandwidth; for the halves
 * it is (N-1)/N.
 */
static mgw_status check_bandwidth(const table *t, const char *algorithm, const char *bus,
                                  size_t line, const mgw_measurements *measured, mgw_error *error)
{
    double over_all = 0;
    double over_bus = 0;
    if (t->titled || !algorithm || !bus || !mgw_word_number(algorithm, &over_all) ||
        !mgw_word_number(bus, &over_bus) || over_all < 1 || over_bus <= 0 ||
        over_bus > 0.99 * over_all)
        return MGW_OK;
    return mgw_fail(
        error, MGW_ERR_INPUT,
        "%s:%zu: busbw: %s is below algbw, so this is not a table of all_reduce_perf; put the line "
        "'# Collective test starting: reduce_scatter_perf' before the table, if it is that",
        measured->origin, line, bus);
}

static mgw_status check_sum(const table *t, const char *redop, size_t line,
                            const mgw_measurements *measured, mgw_error *error)
{
    if (t->titled || strcmp(redop, "none") != 0)
        return MGW_OK;
    return mgw_fail(
        error, MGW_ERR_INPUT,
        "%s:%zu: redop: 'none', so this is not a table of all_reduce_perf; put the line '# "
        "Collective test starting: all_gather_perf' before the table, if it is that",
        measured->origin, line);
}

static mgw_status read_row(char *line, size_t number, const table *t, mgw_measurements *measured,
                           mgw_error *error)
{
    char *rest = NULL;
    char *word = strtok_r(line, " \t", &rest);
    uint64_t bytes = 0;
    mgw_status status = MGW_OK;
    if (!mgw_word_count(word, &bytes))
        return mgw_fail(error, MGW_ERR_INPUT, "%s:%zu: size: '%.40s' is not a whole number",
                        measured->origin, number, word);
    for (int i = 0; !status && i < t->time && word; i++) {
        word = strtok_r(NULL, " \t", &rest);
        if (word && i + 1 == t->redop)
            status = check_sum(t, word, number, measured, error);
    }
    if (status)
        return status;
    double microseconds = 0;
    if (!word || !mgw_word_number(word, &microseconds))
        return mgw_fail(error, MGW_ERR_INPUT, "%s:%zu: time: '%.40s' in column %d is not a number",
                        measured->origin, number, word ? word : "", t->time + 1);
    char *algorithm = strtok_r(NULL, " \t", &rest);
    char *bus = strtok_r(NULL, " \t", &rest);
    char *wrong = strtok_r(NULL, " \t", &rest);
    double wrong_count = 0;
    status = check_bandwidth(t, algorithm, bus, number, measured, error);
    if (status)
        return status;
    if (wrong && mgw_word_number(wrong, &wrong_count) && wrong_count > 0)
        return mgw_fail(error, MGW_ERR_INPUT,
                        "%s:%zu: #wrong: %s results were wrong, so its times cannot be trusted",
                        measured->origin, number, wrong);
    return mgw_measurements_add(measured, number, bytes, microseconds * 1e-6, error);
}

static mgw_status begin_table(const char *benchmark, size_t line, table *t,
                              mgw_measurements *measured, mgw_error *error)
{
    *t = (table){.titled = true, .time = -1, .redop = -1};
    return find_kind(benchmark, line, measured, error);
}

/* Checks that all tables have the same number of workers. */
static mgw_status end_table(const table *t, mgw_measurements *measured, mgw_error *error)
{
    if (t->workers && measured->workers && t->workers != measured->workers)
        return mgw_fail(error, MGW_ERR_INPUT, "%s: tables of %u and of %u workers",
                        measured->origin, measured->workers, t->workers);
    measured->workers = t->workers ? t->workers : measured->workers;
    return MGW_OK;
}

/* Older versions do not name the benchmark: a list of ranks below rows begins the next table. */
static mgw_status count_rank(table *t, mgw_measurements *measured, mgw_error *error)
{
    mgw_status status = MGW_OK;
    if (t->time >= 0) {
        status = end_table(t, measured, error);
        *t = (table){.time = -1, .redop = -1};
        measured->kind = MGW_ALL_REDUCE;
    }
    t->workers++;
    return status;
}

static bool is_rank_line(const char *line)
{
    line++;
    while (isspace((unsigned char)*line))
        line++;
    return !strncmp(line, "Rank ", 5) && strstr(line, " device ");
}

mgw_status mgw_import_nccl_text(const char *text, size_t size, mgw_measurements *out,
                                mgw_error *error)
{
    static const char title[] = "# Collective test starting: ";
    mgw_lines lines = {.next = text, .end = text + size};
    mgw_status status = MGW_OK;
    table t = {.time = -1, .redop = -1};
    while (!status && mgw_lines_next(&lines)) {
        char *line = lines.line;
        while (isspace((unsigned char)*line))
            line++;
        if (!strncmp(line, title, strlen(title))) {
            status = end_table(&t, out, error);
            if (!status)
                status = begin_table(line + strlen(title), lines.number, &t, out, error);
        } else if (*line == '#' && is_rank_line(line)) {
            status = count_rank(&t, out, error);
        } else if (*line == '#' && strstr(line, "busbw")) {
            find_columns(line, &t);
        } else if (t.time >= 0 && isdigit((unsigned char)*line)) {
            status = read_row(line, lines.number, &t, out, error);
        }
    }
    if (!status)
        status = end_table(&t, out, error);
    return mgw_lines_end(&lines, status, error);
}

/* ---- JSON ---- */

static mgw_status read_result(void *context, size_t index, json_t *element,
                              const mgw_json_place *place, mgw_error *error)
{
    (void)index;
    mgw_measurements *measured = context;
    uint64_t bytes = 0;
    double microseconds = 0;
    mgw_status status = mgw_json_check_object(element, place, error);
    if (!status)
        status = mgw_json_get_count(element, "size", place, &bytes, error);
    const char *benchmark = json_string_value(json_object_get(element, "experiment_name"));
    if (!status && benchmark)
        status = find_kind(benchmark, place->line, measured, error);
    if (status)
        return status;
    const char *side =
        json_is_object(json_object_get(element, "in_place")) ? "in_place" : "out_of_place";
    json_t *numbers = json_object_get(element, side);
    if (!json_is_object(numbers))
        return mgw_json_fail(place, "in_place", error, "missing; it must be an object");
    mgw_json_place inside = *place;
    snprintf(inside.path, sizeof inside.path, "%.100s.%s", place->path, side);
    json_t *wrong = json_object_get(numbers, "nwrong"); /* null if not checked */
    if (json_number_value(wrong) > 0)
        return mgw_json_fail(&inside, "nwrong", error,
                             "%.0f results were wrong, so its times cannot be trusted",
                             json_number_value(wrong));
    const char *member = json_object_get(numbers, "cpu_time") ? "cpu_time" : "time";
    status = mgw_json_get_number(numbers, member, &inside, &microseconds, error);
    if (status)
        return status;
    return mgw_measurements_add(measured, place->line, bytes, microseconds * 1e-6, error);
}

/* One device is listed per process; each process drives nthreads * ngpus devices. */
static unsigned count_workers(json_t *root)
{
    json_t *config = json_object_get(root, "config");
    json_int_t processes = (json_int_t)json_array_size(json_object_get(config, "devices"));
    json_int_t threads = json_integer_value(json_object_get(config, "nthreads"));
    json_int_t gpus = json_integer_value(json_object_get(config, "ngpus"));
    if (processes < 1 || threads < 1 || gpus < 1 || processes > 1 << 20 || threads > 1 << 10 ||
        gpus > 1 << 10)
        return 0;
    json_int_t workers = processes * threads * gpus;
    return workers <= 1 << 30 ? (unsigned)workers : 0;
}

mgw_status mgw_import_nccl_json(const char *text, size_t size, mgw_measurements *out,
                                mgw_error *error)
{
    mgw_json_document document;
    mgw_status status =
        mgw_json_read(out->origin, text, size, NULL, "results", read_result, out, &document, error);
    out->workers = count_workers(document.root);
    mgw_json_document_fini(&document);
    return status;
}
