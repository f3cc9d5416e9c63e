/* Writes the Chrome trace event format, for Perfetto and chrome://tracing. */
#include <mgwfbp/timeline.h>

#include "base/names.h"
#include "timeline/chrome.h"

/* Before each event but the first: a comma. */
static void separate(mgw_text *text)
{
    bool first = text->size && text->data[text->size - 1] == '[';
    mgw_text_printf(text, first ? "\n  " : ",\n  ");
}

static void write_metadata(mgw_text *text, size_t process, int lane, const char *what)
{
    separate(text);
    mgw_text_printf(text,
                    "{\"name\": \"%s\", \"ph\": \"M\", \"pid\": %zu, \"tid\": %d, \"args\": {",
                    what, process, lane);
}

static void write_lane(mgw_text *text, size_t process, int lane, const char *name)
{
    write_metadata(text, process, lane, "thread_name");
    mgw_text_printf(text, "\"name\": \"%s\"}}", name);
    write_metadata(text, process, lane, "thread_sort_index");
    mgw_text_printf(text, "\"sort_index\": %d}}", lane);
}

/* The names of all tensors; readers refer to them by number. */
static void write_tensors(const mgw_names *names, mgw_text *text)
{
    mgw_text_printf(text, ", \"tensors\": [");
    for (size_t i = 0; i < mgw_names_count(names); i++) {
        mgw_text_append(text, ", ", i ? 2 : 0);
        mgw_text_json_string(text, mgw_names_get(names, i));
    }
    mgw_text_printf(text, "]");
}

/* "layer4.2.conv3.weight", or "layer4.2.conv3.weight ... fc.bias" for several. */
static void write_names(const mgw_timeline *timeline, const mgw_span *span, mgw_text *text)
{
    mgw_text_json_string(text, mgw_names_get(timeline->names, span->first));
    if (span->count > 1) {
        mgw_text_printf(text, ", \"last\": ");
        mgw_text_json_string(text, mgw_names_get(timeline->names, span->first + span->count - 1));
    }
}

static void write_arguments(const mgw_timeline *timeline, const mgw_span *span, mgw_text *text)
{
    mgw_text_printf(text, ", \"args\": {\"index\": %zu, \"tensors\": %zu", span->first,
                    span->count);
    if (mgw_span_is_operation(span->kind)) {
        double waited_s = span->start_s - span->ready_s;
        mgw_text_printf(text, ", \"bytes\": %llu, \"waited_us\": %.3f, \"first\": ",
                        (unsigned long long)span->bytes, waited_s > 0 ? waited_s * 1e6 : 0);
        write_names(timeline, span, text);
    }
    mgw_text_printf(text, "}");
}

/* "forward", "message 3", "all-gather 7", "wait for fc.weight", or the tensor's own name. */
static void write_title(const mgw_timeline *timeline, const mgw_span *span, size_t number,
                        mgw_text *text)
{
    const char *tensor = span->count == 1 ? mgw_names_get(timeline->names, span->first) : NULL;
    mgw_text title;
    mgw_text_init(&title);
    if (span->kind == MGW_SPAN_MESSAGE)
        mgw_text_printf(&title, "message %zu", number);
    else if (mgw_span_is_operation(span->kind))
        mgw_text_printf(&title, "%s %zu", mgw_span_name(span->kind), number);
    else if (span->kind == MGW_SPAN_STALL && tensor)
        mgw_text_printf(&title, "wait for %s", tensor);
    else
        mgw_text_printf(&title, "%s",
                        span->kind == MGW_SPAN_BACKWARD && tensor ? tensor
                                                                  : mgw_span_name(span->kind));
    text->failed |= title.failed;
    mgw_text_json_string(text, title.data ? title.data : "");
    mgw_text_fini(&title);
}

static void write_span(const mgw_timeline *timeline, const mgw_span *span, size_t process,
                       size_t number, mgw_text *text)
{
    separate(text);
    mgw_text_printf(text, "{\"name\": ");
    write_title(timeline, span, number, text);
    mgw_text_printf(text,
                    ", \"cat\": \"%s\", \"ph\": \"X\", \"pid\": %zu, \"tid\": %d, \"ts\": %.3f, "
                    "\"dur\": %.3f",
                    mgw_span_name(span->kind), process,
                    mgw_span_is_operation(span->kind) ? LANE_MESSAGES : LANE_COMPUTE,
                    span->start_s * 1e6, (span->end_s - span->start_s) * 1e6);
    if (!mgw_chrome_bare(span->kind))
        write_arguments(timeline, span, text);
    mgw_text_printf(text, "}");
}

/* The names are omitted if they are the same as in the previous process. */
static void write_process(const mgw_timeline *timeline, const mgw_timeline *before, size_t process,
                          mgw_text *text)
{
    write_metadata(text, process, 0, "process_name");
    mgw_text_printf(text, "\"name\": ");
    mgw_text_json_string(text, timeline->title);
    if (timeline->period_s > 0)
        mgw_text_printf(text, ", \"period_us\": %.3f", timeline->period_s * 1e6);
    if (!before || !mgw_names_equal(before->names, timeline->names))
        write_tensors(timeline->names, text);
    mgw_text_printf(text, "}}");
    write_metadata(text, process, 0, "process_sort_index");
    mgw_text_printf(text, "\"sort_index\": %zu}}", process);
    write_lane(text, process, LANE_COMPUTE, "compute");
    write_lane(text, process, LANE_MESSAGES, "messages");
    size_t messages = 0;
    for (size_t i = 0; i < timeline->span_count; i++) {
        messages += mgw_span_is_operation(timeline->spans[i].kind);
        write_span(timeline, &timeline->spans[i], process, messages, text);
    }
}

void mgw_timelines_write(const mgw_timeline *const *timelines, size_t count, mgw_text *text)
{
    mgw_text_printf(text, "{\"format\": \"%s\", \"displayTimeUnit\": \"ms\", \"traceEvents\": [",
                    MGW_TIMELINES_FORMAT);
    for (size_t i = 0; i < count; i++)
        write_process(timelines[i], i ? timelines[i - 1] : NULL, i + 1, text);
    mgw_text_printf(text, "\n]}\n");
}

void mgw_timeline_write_chrome(const mgw_timeline *timeline, mgw_text *text)
{
    mgw_timelines_write(&timeline, 1, text);
}
