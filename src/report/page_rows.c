/* Reads the JSON rows of `replay`, `simulate` and `train`, strictly. */
#include <string.h>

#include "base/json.h"
#include "report/page.h"

enum { MEMBERS_MAX = 20, ROWS_MAX = 100000 };

typedef enum member_type {
    STRING = 1,
    COUNT,
    NUMBER,
    MAYBE /* an optional number */
} member_type;

typedef struct member {
    const char *name;
    member_type type;
} member;

/* A row has the first kind whose `mark` is one of its members. */
static const struct {
    const char *mark;
    mgw_page_kind kind;
    member members[MEMBERS_MAX];
} kinds[] = {
    {"measured_iteration_s",
     MGW_PAGE_REPLAY,
     {{"policy", STRING},
      {"workers", COUNT},
      {"messages", COUNT},
      {"predicted_iteration_s", NUMBER},
      {"measured_iteration_s", NUMBER},
      {"spread", NUMBER},
      {"predicted_exposed_s", NUMBER},
      {"measured_compute_s", NUMBER}}},
    {"speedup",
     MGW_PAGE_SIMULATION,
     {{"policy", STRING},
      {"algorithm", STRING},
      {"workers", COUNT},
      {"messages", COUNT},
      {"iteration_s", NUMBER},
      {"exposed_s", NUMBER},
      {"speedup", NUMBER},
      {"efficiency", NUMBER},
      {"slowest", MAYBE},
      {"expected_s", MAYBE},
      {"failure_s", MAYBE},
      {"interval_s", MAYBE},
      {"trains", MAYBE},
      {"expected_speedup", MAYBE},
      {"expected_efficiency", MAYBE},
      {"samples_per_s", MAYBE},
      {"epoch_s", MAYBE},
      {"epoch_cost", MAYBE}}},
};

/* The events of `train`, one object per line. */
static const struct {
    const char *event;
    member members[MEMBERS_MAX];
} events[] = {
    {"progress",
     {{"epoch", COUNT},
      {"step", COUNT},
      {"loss", NUMBER},
      {"images_per_s", NUMBER},
      {"exposed_share", NUMBER}}},
    {"epoch",
     {{"epoch", COUNT}, {"step", COUNT}, {"test_loss", NUMBER}, {"test_accuracy", NUMBER}}},
    {"summary",
     {{"model", STRING},
      {"workers", COUNT},
      {"batch", COUNT},
      {"steps", COUNT},
      {"policy", STRING},
      {"messages", COUNT},
      {"iteration_s", NUMBER},
      {"compute_s", NUMBER},
      {"predicted_s", NUMBER},
      {"images_per_s", NUMBER}}},
    {"compare",
     {{"policy", STRING},
      {"workers", COUNT},
      {"messages", COUNT},
      {"iteration_s", NUMBER},
      {"spread", NUMBER},
      {"compute_s", NUMBER},
      {"predicted_s", NUMBER}}},
};

static mgw_status check_member(json_t *row, const member *m, const mgw_json_place *place,
                               mgw_error *error)
{
    const char *string = NULL;
    uint64_t count = 0;
    double number = 0;
    switch (m->type) {
    case STRING:
        return mgw_json_get_string(row, m->name, place, &string, error);
    case COUNT:
        return mgw_json_get_count(row, m->name, place, &count, error);
    case MAYBE:
    case NUMBER:
        return mgw_json_get_number(row, m->name, place, &number, error);
    }
    return MGW_OK;
}

/* Appends a copy of a row with only the known members. */
static mgw_status copy_row(json_t *row, const member *members, const mgw_json_place *place,
                           json_t *out, mgw_error *error)
{
    mgw_status status = mgw_json_check_object(row, place, error);
    json_t *copy = json_object();
    for (size_t i = 0; !status && i < MEMBERS_MAX && members[i].name; i++) {
        if (members[i].type == MAYBE && !json_object_get(row, members[i].name))
            continue;
        status = check_member(row, &members[i], place, error);
        if (!status &&
            json_object_set(copy, members[i].name, json_object_get(row, members[i].name)))
            status = mgw_fail_memory(error, place->origin);
    }
    if (status)
        json_decref(copy);
    else if (json_array_append_new(out, copy))
        status = mgw_fail_memory(error, place->origin);
    return status;
}

static mgw_status read_rows(const char *origin, json_t *rows, mgw_page_kind *kind, json_t *out,
                            mgw_error *error)
{
    size_t count = json_array_size(rows);
    json_t *first = json_array_get(rows, 0);
    size_t k = 0;
    while (k < sizeof kinds / sizeof *kinds && !json_object_get(first, kinds[k].mark))
        k++;
    if (k == sizeof kinds / sizeof *kinds)
        return mgw_fail(error, MGW_ERR_INPUT,
                        "%s: an array, but not of rows that 'mgwfbp replay --json' or 'mgwfbp "
                        "simulate --json' print",
                        origin);
    if (count > ROWS_MAX)
        return mgw_fail(error, MGW_ERR_INPUT, "%s: more than %d rows", origin, ROWS_MAX);
    *kind = kinds[k].kind;
    mgw_json_place top = {.origin = origin};
    mgw_status status = MGW_OK;
    for (size_t i = 0; !status && i < count; i++) {
        mgw_json_place place = mgw_json_index(&top, i);
        status = copy_row(json_array_get(rows, i), kinds[k].members, &place, out, error);
    }
    return status;
}

mgw_status mgw_page_rows_read(const char *origin, const char *text, size_t size,
                              mgw_page_kind *kind, json_t **out, mgw_error *error)
{
    mgw_json_fault where;
    json_t *rows = NULL;
    mgw_status status = mgw_json_parse(text, size, NULL, &rows, &where);
    if (status)
        return mgw_fail(error, status, "%s:%zu: %s", origin, where.line, where.text);
    json_t *copies = json_array();
    status = read_rows(origin, rows, kind, copies, error);
    json_decref(rows);
    if (status)
        json_decref(copies);
    else
        *out = copies;
    return status;
}

/* ---- Logs of training ---- */

/* Reads the object on a line that begins at `text`; lines count from 1. */
static mgw_status read_line(const char *origin, const char *text, size_t size, size_t line,
                            json_t **out, mgw_error *error)
{
    mgw_json_fault where;
    mgw_status status = mgw_json_parse(text, size, NULL, out, &where);
    return status ? mgw_fail(error, status, "%s:%zu: %s", origin, line, where.text) : MGW_OK;
}

bool mgw_page_is_log(const char *text, size_t size)
{
    const char *end = memchr(text, '\n', size);
    mgw_json_fault where;
    json_t *first = NULL;
    mgw_status status =
        mgw_json_parse(text, end ? (size_t)(end - text) : size, NULL, &first, &where);
    bool found = !status && json_is_string(json_object_get(first, "event"));
    json_decref(first);
    return found;
}

/* Adds a line to the list of its event; events that a page does not show are skipped. */
static mgw_status add_event(const char *origin, json_t *row, size_t line, json_t *out,
                            mgw_error *error)
{
    const char *event = NULL;
    mgw_json_place place = {.origin = origin, .line = line};
    mgw_status status = mgw_json_get_string(row, "event", &place, &event, error);
    for (size_t i = 0; !status && i < sizeof events / sizeof *events; i++)
        if (!strcmp(events[i].event, event))
            status = copy_row(row, events[i].members, &place, json_object_get(out, event), error);
    return status;
}

mgw_status mgw_page_log_read(const char *origin, const char *text, size_t size, json_t **out,
                             mgw_error *error)
{
    json_t *lists = json_object();
    mgw_status status = MGW_OK;
    for (size_t i = 0; !status && i < sizeof events / sizeof *events; i++)
        if (json_object_set_new(lists, events[i].event, json_array()))
            status = mgw_fail_memory(error, origin);
    size_t line = 0;
    for (const char *at = text, *end = text + size; !status && at < end;) {
        const char *stop = memchr(at, '\n', (size_t)(end - at));
        size_t length = (size_t)((stop ? stop : end) - at);
        json_t *row = NULL;
        if (++line > ROWS_MAX)
            status = mgw_fail(error, MGW_ERR_INPUT, "%s: more than %d lines", origin, ROWS_MAX);
        else if (length > 0)
            status = read_line(origin, at, length, line, &row, error);
        if (!status && row)
            status = add_event(origin, row, line, lists, error);
        json_decref(row);
        at += length + (stop != NULL);
    }
    if (status)
        json_decref(lists);
    else
        *out = lists;
    return status;
}
