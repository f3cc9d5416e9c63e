/* nccl-tests: all_reduce_perf's table, and the JSON that -J writes. Times are in microseconds. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/status.h"
#include "cluster/import.h"

static bool is_time_column(const char *word)
{
    return !strcmp(word, "time") || !strcmp(word, "cputime");
}

/*
 * "#   size  count  type  redop  root  time  algbw  busbw  #wrong  time …": the columns differ
 * between versions, so the header says where the last time (in-place) stands.
 */
static int find_column(char *line)
{
    int column = -1;
    char *rest = NULL;
    int index = 0;
    for (char *word = strtok_r(line + 1, " \t", &rest); word;
         word = strtok_r(NULL, " \t", &rest), index++)
        if (is_time_column(word))
            column = index;
    return column;
}

static mgw_status read_row(char *line, size_t number, int column, mgw_measurements *measured,
                           mgw_error *error)
{
    char *rest = NULL;
    char *word = strtok_r(line, " \t", &rest);
    uint64_t bytes = 0;
    if (!mgw_word_count(word, &bytes))
        return mgw_fail(error, MGW_ERR_INPUT, "%s:%zu: size: '%.40s' is not a whole number",
                        measured->origin, number, word);
    for (int i = 0; i < column && word; i++)
        word = strtok_r(NULL, " \t", &rest);
    double microseconds = 0;
    if (!word || !mgw_word_number(word, &microseconds))
        return mgw_fail(error, MGW_ERR_INPUT, "%s:%zu: time: '%.40s' in column %d is not a number",
                        measured->origin, number, word ? word : "", column + 1);
    return mgw_measurements_add(measured, number, bytes, microseconds * 1e-6, error);
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
    mgw_lines lines = {.next = text, .end = text + size};
    mgw_status status = MGW_OK;
    int column = -1;
    while (!status && mgw_lines_next(&lines)) {
        char *line = lines.line;
        while (isspace((unsigned char)*line))
            line++;
        if (*line == '#' && is_rank_line(line))
            out->workers++;
        else if (*line == '#' && column < 0 && strstr(line, "busbw"))
            column = find_column(line);
        else if (column >= 0 && isdigit((unsigned char)*line))
            status = read_row(line, lines.number, column, out, error);
    }
    return mgw_lines_end(&lines, status, error);
}

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
    if (status)
        return status;
    const char *side =
        json_is_object(json_object_get(element, "in_place")) ? "in_place" : "out_of_place";
    json_t *numbers = json_object_get(element, side);
    if (!json_is_object(numbers))
        return mgw_json_fail(place, "in_place", error, "missing; it must be an object");
    mgw_json_place inside = *place;
    snprintf(inside.path, sizeof inside.path, "%.100s.%s", place->path, side);
    const char *member = json_object_get(numbers, "cpu_time") ? "cpu_time" : "time";
    status = mgw_json_get_number(numbers, member, &inside, &microseconds, error);
    if (status)
        return status;
    return mgw_measurements_add(measured, place->line, bytes, microseconds * 1e-6, error);
}

/* One device is listed per process, which drives nthreads * ngpus of them. */
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
