/* The Chrome trace event format: what Perfetto and chrome://tracing open. */
#include <mgwfbp/timeline.h>

#include "base/names.h"

enum { LANE_COMPUTE = 1, LANE_MESSAGES = 2 };

static void write_lane(mgw_text *text, int lane, const char *name)
{
    mgw_text_printf(text,
                    "  {\"name\": \"thread_name\", \"ph\": \"M\", \"pid\": 1, \"tid\": %d, "
                    "\"args\": {\"name\": \"%s\"}},\n"
                    "  {\"name\": \"thread_sort_index\", \"ph\": \"M\", \"pid\": 1, \"tid\": %d, "
                    "\"args\": {\"sort_index\": %d}},\n",
                    lane, name, lane, lane);
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

static void write_span(const mgw_timeline *timeline, const mgw_span *span, size_t number,
                       mgw_text *text)
{
    mgw_text_printf(text, "  {\"name\": ");
    if (span->kind == MGW_SPAN_FORWARD)
        mgw_text_printf(text, "\"forward\"");
    else if (span->kind == MGW_SPAN_MESSAGE)
        mgw_text_printf(text, "\"message %zu\"", number);
    else if (span->count == 1)
        mgw_text_json_string(text, mgw_names_get(timeline->names, span->first));
    else
        mgw_text_printf(text, "\"backward\"");
    mgw_text_printf(text,
                    ", \"cat\": \"%s\", \"ph\": \"X\", \"pid\": 1, \"tid\": %d, \"ts\": %.3f, "
                    "\"dur\": %.3f",
                    span->kind == MGW_SPAN_MESSAGE ? "communication" : "compute",
                    span->kind == MGW_SPAN_MESSAGE ? LANE_MESSAGES : LANE_COMPUTE,
                    span->start_s * 1e6, (span->end_s - span->start_s) * 1e6);
    if (span->kind == MGW_SPAN_MESSAGE) {
        mgw_text_printf(text,
                        ", \"args\": {\"bytes\": %llu, \"tensors\": %zu, \"waited_us\": %.3f, "
                        "\"first\": ",
                        (unsigned long long)span->bytes, span->count,
                        (span->start_s - span->ready_s) * 1e6);
        write_names(timeline, span, text);
        mgw_text_printf(text, "}");
    }
    mgw_text_printf(text, "}");
}

void mgw_timeline_write_chrome(const mgw_timeline *timeline, mgw_text *text)
{
    mgw_text_printf(text, "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n"
                          "  {\"name\": \"process_name\", \"ph\": \"M\", \"pid\": 1, \"tid\": 0, "
                          "\"args\": {\"name\": ");
    mgw_text_json_string(text, timeline->title);
    mgw_text_printf(text, "}},\n");
    write_lane(text, LANE_COMPUTE, "compute");
    write_lane(text, LANE_MESSAGES, "messages");
    size_t messages = 0;
    for (size_t i = 0; i < timeline->span_count; i++) {
        messages += timeline->spans[i].kind == MGW_SPAN_MESSAGE;
        write_span(timeline, &timeline->spans[i], messages, text);
        mgw_text_printf(text, i + 1 < timeline->span_count ? ",\n" : "\n");
    }
    mgw_text_printf(text, "]}\n");
}
