/* Reads the Chrome trace event format: timelines of several ranks or policies. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/names.h"
#include "timeline/chrome.h"

typedef struct loading {
    mgw_timeline **timelines;
    size_t count;
    size_t capacity;                /* of timelines */
    size_t span_capacity;           /* of the last one */
    double started[MGW_SPAN_COUNT]; /* in that one, the start of the last span of each kind */
} loading;

static mgw_status read_names(json_t *tensors, const mgw_json_place *place, mgw_names *names,
                             mgw_error *error)
{
    mgw_status status = MGW_OK;
    for (size_t i = 0; !status && i < json_array_size(tensors); i++) {
        const char *name = json_string_value(json_array_get(tensors, i));
        status = name ? mgw_names_add(names, name, error)
                      : mgw_json_fail(place, "args.tensors", error, "must hold strings");
    }
    return status;
}

/* Appends an empty timeline, with the previous one's names if it has none. */
static mgw_status add_timeline(loading *load, const char *title, json_t *tensors,
                               const mgw_json_place *place, mgw_error *error)
{
    if (load->count == load->capacity) {
        size_t capacity = load->capacity ? 2 * load->capacity : 8;
        mgw_timeline **timelines = realloc(load->timelines, capacity * sizeof *timelines);
        if (!timelines)
            return mgw_fail_memory(error, place->origin);
        load->timelines = timelines;
        load->capacity = capacity;
    }
    mgw_timeline *timeline = calloc(1, sizeof *timeline);
    if (!timeline || !(timeline->title = strdup(title))) {
        mgw_timeline_destroy(timeline);
        return mgw_fail_memory(error, place->origin);
    }
    mgw_timeline *before = load->count ? load->timelines[load->count - 1] : NULL;
    load->timelines[load->count++] = timeline;
    load->span_capacity = 0;
    memset(load->started, 0, sizeof load->started);
    if (!tensors && before) {
        timeline->names = mgw_names_share(before->names);
        return MGW_OK;
    }
    if (!json_is_array(tensors))
        return mgw_json_fail(place, "args.tensors", error, "missing; it must be an array");
    mgw_status status = mgw_names_create(&timeline->names, error);
    return status ? status : read_names(tensors, place, timeline->names, error);
}

/* Metadata: "process_name" begins the next timeline; other metadata is for viewers. */
static mgw_status read_metadata(loading *load, json_t *event, uint64_t process,
                                const mgw_json_place *place, mgw_error *error)
{
    const char *what = NULL;
    mgw_status status = mgw_json_get_string(event, "name", place, &what, error);
    if (status || strcmp(what, "process_name") != 0)
        return status;
    if (process != load->count + 1)
        return mgw_json_fail(place, "pid", error, "processes must be numbered 1, 2, 3 ...");
    json_t *arguments = json_object_get(event, "args");
    const char *title = NULL;
    double period_us = 0;
    status = mgw_json_get_string(arguments, "name", place, &title, error);
    if (!status && json_object_get(arguments, "period_us"))
        status = mgw_json_get_number(arguments, "period_us", place, &period_us, error);
    if (!status)
        status = add_timeline(load, title, json_object_get(arguments, "tensors"), place, error);
    if (!status)
        load->timelines[load->count - 1]->period_s = period_us / 1e6;
    return status;
}

static mgw_status read_kind(json_t *event, const mgw_json_place *place, mgw_span_kind *out,
                            mgw_error *error)
{
    const char *category = NULL;
    mgw_status status = mgw_json_get_string(event, "cat", place, &category, error);
    if (status)
        return status;
    char known[160] = "";
    for (size_t kind = 0; kind < MGW_SPAN_COUNT; kind++) {
        const char *name = mgw_span_name((mgw_span_kind)kind);
        if (!strcmp(category, name)) {
            *out = (mgw_span_kind)kind;
            return MGW_OK;
        }
        strcat(strcat(known, kind ? ", " : ""), name);
    }
    return mgw_json_fail(place, "cat", error, "must be one of %s, not \"%.40s\"", known, category);
}

static mgw_status read_arguments(json_t *arguments, const mgw_json_place *place, size_t names,
                                 mgw_span *span, mgw_error *error)
{
    uint64_t index = 0;
    uint64_t count = 0;
    double waited_us = 0;
    mgw_status status = mgw_json_get_count(arguments, "index", place, &index, error);
    if (!status)
        status = mgw_json_get_count(arguments, "tensors", place, &count, error);
    if (!status && (count > names || index > names - count))
        status = mgw_json_fail(place, "args", error, "there are only %zu tensors", names);
    bool operation = mgw_span_is_operation(span->kind);
    if (!status && operation)
        status = mgw_json_get_count(arguments, "bytes", place, &span->bytes, error);
    if (!status && operation)
        status = mgw_json_get_number(arguments, "waited_us", place, &waited_us, error);
    if (!status && operation && count == 0)
        status = mgw_json_fail(place, "args.tensors", error, "a message has at least one tensor");
    span->first = (size_t)index;
    span->count = (size_t)count;
    span->ready_s = span->start_s - waited_us / 1e6;
    return status;
}

static mgw_status add_span(loading *load, const mgw_span *span, const mgw_json_place *place,
                           mgw_error *error)
{
    mgw_timeline *timeline = load->timelines[load->count - 1];
    if (timeline->span_count == load->span_capacity) {
        size_t capacity = load->span_capacity ? 2 * load->span_capacity : 64;
        mgw_span *spans = realloc(timeline->spans, capacity * sizeof *spans);
        if (!spans)
            return mgw_fail_memory(error, place->origin);
        timeline->spans = spans;
        load->span_capacity = capacity;
    }
    if (load->started[span->kind] > span->start_s)
        return mgw_json_fail(place, "ts", error, "spans of a kind must be in order");
    load->started[span->kind] = span->start_s;
    timeline->spans[timeline->span_count++] = *span;
    return MGW_OK;
}

static mgw_status read_span(loading *load, json_t *event, uint64_t process,
                            const mgw_json_place *place, mgw_error *error)
{
    if (load->count == 0 || process != load->count)
        return mgw_json_fail(place, "pid", error,
                             "is not that of the process_name before the event");
    mgw_span span = {0};
    double start_us = 0;
    double length_us = 0;
    mgw_status status = read_kind(event, place, &span.kind, error);
    if (!status)
        status = mgw_json_get_number(event, "ts", place, &start_us, error);
    if (!status)
        status = mgw_json_get_number(event, "dur", place, &length_us, error);
    if (!status && !isfinite(start_us + length_us))
        status = mgw_json_fail(place, "dur", error, "the end is not finite");
    span.start_s = start_us / 1e6;
    span.end_s = (start_us + length_us) / 1e6;
    if (!status && !mgw_chrome_bare(span.kind))
        status =
            read_arguments(json_object_get(event, "args"), place,
                           mgw_names_count(load->timelines[load->count - 1]->names), &span, error);
    return status ? status : add_span(load, &span, place, error);
}

static mgw_status read_event(void *context, size_t index, json_t *event,
                             const mgw_json_place *place, mgw_error *error)
{
    (void)index;
    const char *phase = NULL;
    uint64_t process = 0;
    mgw_status status = mgw_json_check_object(event, place, error);
    if (!status)
        status = mgw_json_get_string(event, "ph", place, &phase, error);
    if (!status)
        status = mgw_json_get_count(event, "pid", place, &process, error);
    if (status)
        return status;
    if (!strcmp(phase, "M"))
        return read_metadata(context, event, process, place, error);
    if (!strcmp(phase, "X"))
        return read_span(context, event, process, place, error);
    return mgw_json_fail(place, "ph", error, "must be \"M\" or \"X\", not \"%.10s\"", phase);
}

mgw_status mgw_timelines_parse(const char *origin, const char *text, size_t size,
                               mgw_timeline ***out, size_t *count, mgw_error *error)
{
    loading load = {0};
    mgw_json_document document;
    mgw_status status = mgw_json_read(origin, text, size, MGW_TIMELINES_FORMAT, "traceEvents",
                                      read_event, &load, &document, error);
    mgw_json_document_fini(&document);
    if (!status && load.count == 0)
        status = mgw_fail(error, MGW_ERR_INPUT, "%s: traceEvents: contains no timeline", origin);
    if (status) {
        mgw_timelines_destroy(load.timelines, load.count);
        return status;
    }
    *out = load.timelines;
    *count = load.count;
    return MGW_OK;
}
