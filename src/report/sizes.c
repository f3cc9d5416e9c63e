/* The distribution of a trace's tensor sizes. */
#include <stdio.h>
#include <string.h>

#include <mgwfbp/report.h>

#include "report/svg.h"

/* Bin k holds sizes from 4^k to below 4^(k+1) bytes; empty tensors go into the first. */
enum { BINS = 32 };

typedef struct histogram {
    size_t tensors[BINS];
    uint64_t bytes[BINS];
    int first, last; /* nonempty bins */
    size_t most;     /* tensors in one bin */
} histogram;

static int bin_of(uint64_t bytes)
{
    int bin = 0;
    while (bytes >= 4 && bin < BINS - 1) {
        bytes /= 4;
        bin++;
    }
    return bin;
}

static uint64_t bin_start(int bin)
{
    return bin < BINS ? (uint64_t)1 << 2 * bin : UINT64_MAX;
}

static histogram count_sizes(const mgw_trace *trace)
{
    histogram h = {.first = BINS - 1, .last = 0};
    uint64_t element_bytes = mgw_dtype_bytes(trace->gradient_dtype);
    for (size_t i = 0; i < trace->tensor_count; i++) {
        uint64_t bytes = trace->tensors[i].count * element_bytes;
        int bin = bin_of(bytes);
        h.tensors[bin]++;
        h.bytes[bin] += bytes;
        h.first = bin < h.first ? bin : h.first;
        h.last = bin > h.last ? bin : h.last;
        h.most = h.tensors[bin] > h.most ? h.tensors[bin] : h.most;
    }
    return h;
}

void mgw_draw_sizes_text(const mgw_trace *trace, mgw_text *text)
{
    static const char bar[] = "########################################";
    histogram h = count_sizes(trace);
    uint64_t total = mgw_trace_bytes(trace);
    mgw_table *table = mgw_table_create("<size of a tensor|tensors|bytes|share of bytes|<");
    for (int bin = h.first; bin <= h.last; bin++) {
        char low[MGW_UNITS_MAX];
        char high[MGW_UNITS_MAX];
        char bytes[MGW_UNITS_MAX];
        mgw_table_cell(table, "%s - %s", mgw_format_bytes(bin_start(bin), low),
                       mgw_format_bytes(bin_start(bin + 1), high));
        mgw_table_cell(table, "%zu", h.tensors[bin]);
        mgw_table_cell(table, "%s", mgw_format_bytes(h.bytes[bin], bytes));
        mgw_table_cell(table, "%.1f%%", total ? 100.0 * (double)h.bytes[bin] / (double)total : 0);
        int length = (int)((sizeof bar - 1) * h.tensors[bin] / h.most);
        mgw_table_cell(table, "%s", bar + sizeof bar - 1 - length);
    }
    mgw_table_write(table, text);
    mgw_table_destroy(table);
}

void mgw_draw_sizes_svg(const mgw_trace *trace, mgw_text *text)
{
    histogram h = count_sizes(trace);
    double x[BINS];
    double tensors[BINS];
    size_t count = 0;
    for (int bin = h.first; bin <= h.last; bin++, count++) {
        x[count] = (double)bin_start(bin);
        tensors[count] = (double)h.tensors[bin];
    }
    mgw_text title;
    mgw_text_init(&title);
    char bytes[MGW_UNITS_MAX];
    mgw_text_printf(&title, "%s: %zu tensors, %s", trace->model, trace->tensor_count,
                    mgw_format_bytes(mgw_trace_bytes(trace), bytes));
    mgw_series series = {.name = "tensors",
                         .mark = MGW_MARK_BARS,
                         .color = "#5b84b1",
                         .count = count,
                         .x = x,
                         .y = tensors};
    mgw_plot plot = {.title = title.data ? title.data : "",
                     .x = {"size of a tensor", MGW_UNIT_BYTES, 4},
                     .y = {"number of tensors", MGW_UNIT_PLAIN, 0},
                     .series = &series,
                     .series_count = 1};
    mgw_svg_plot(text, &plot);
    text->failed |= title.failed;
    mgw_text_fini(&title);
}
