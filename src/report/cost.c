/* T(M) of a cluster: samples and line, as a table and as a plot. */
#include <stdio.h>
#include <stdlib.h>

#include <mgwfbp/report.h>

#include "report/svg.h"

/* Where a cluster without samples is shown: 1 KiB to 256 MiB. */
enum { POINTS = 10 };

static uint64_t shown_size(size_t index)
{
    return (uint64_t)1024 << 2 * index;
}

void mgw_draw_cost_text(const mgw_cluster *cluster, mgw_text *text)
{
    bool measured = cluster->sample_count > 0;
    size_t count = measured ? cluster->sample_count : POINTS;
    mgw_table *table =
        mgw_table_create(measured ? "bytes|measured|a + b*M|error|rate" : "bytes|T|rate");
    for (size_t i = 0; i < count; i++) {
        uint64_t bytes = measured ? cluster->samples[i].bytes : shown_size(i);
        double line = cluster->cost.a_s + cluster->cost.b_s_per_byte * (double)bytes;
        double seconds = measured ? cluster->samples[i].seconds : line;
        char units[MGW_UNITS_MAX];
        mgw_table_cell(table, "%llu", (unsigned long long)bytes);
        mgw_table_cell(table, "%s", mgw_format_seconds(seconds, units));
        if (measured) {
            mgw_table_cell(table, "%s", mgw_format_seconds(line, units));
            mgw_table_cell(table, "%+.1f%%", 100 * (line - seconds) / seconds);
        }
        double rate = seconds > 0 ? (double)bytes / seconds / 1e6 : 0;
        mgw_table_cell(table, "%.*f MB/s", rate < 9.995 ? 2 : rate < 99.95 ? 1 : 0, rate);
    }
    mgw_table_write(table, text);
    mgw_table_destroy(table);
}

/* The line bends on logarithmic axes, so it is drawn through many points. */
enum { LINE_POINTS = 65 };

static void draw_plot(const mgw_cluster *cluster, double low, double high, const mgw_series *points,
                      mgw_text *text)
{
    double x[LINE_POINTS];
    double y[LINE_POINTS];
    double factor = 1;
    for (int i = 0; i < LINE_POINTS; i++) {
        factor = (double)i / (LINE_POINTS - 1);
        x[i] = low + (high - low) * factor * factor * factor * factor;
        y[i] = cluster->cost.a_s + cluster->cost.b_s_per_byte * x[i];
    }
    mgw_text title;
    mgw_text_init(&title);
    mgw_text_printf(&title, "%s: one collective among %u workers", cluster->name, cluster->workers);
    mgw_series series[2] = {{.name = points ? "fit a + b*M" : "a + b*M",
                             .mark = MGW_MARK_LINE,
                             .color = "#d1495b",
                             .count = LINE_POINTS,
                             .x = x,
                             .y = y}};
    if (points)
        series[1] = *points;
    mgw_plot plot = {.title = title.data ? title.data : "",
                     .x = {"message size M", MGW_UNIT_BYTES, 4},
                     .y = {"time T(M)", MGW_UNIT_SECONDS, 10},
                     .series = series,
                     .series_count = points ? 2 : 1};
    mgw_svg_plot(text, &plot);
    mgw_text_fini(&title);
}

void mgw_draw_cost_svg(const mgw_cluster *cluster, mgw_text *text)
{
    size_t count = cluster->sample_count;
    if (count == 0) {
        draw_plot(cluster, (double)shown_size(0), (double)shown_size(POINTS - 1), NULL, text);
        return;
    }
    double *x = malloc(2 * count * sizeof *x);
    if (!x) {
        text->failed = true;
        return;
    }
    size_t kept = 0;
    for (size_t i = 0; i < count; i++) {
        if (cluster->samples[i].bytes == 0)
            continue; /* has no place on a logarithmic axis */
        x[kept] = (double)cluster->samples[i].bytes;
        x[count + kept++] = cluster->samples[i].seconds;
    }
    mgw_series points = {.name = "measured",
                         .mark = MGW_MARK_POINTS,
                         .color = "#2f4858",
                         .count = kept,
                         .x = x,
                         .y = x + count};
    if (kept)
        draw_plot(cluster, x[0], x[kept - 1], &points, text);
    free(x);
}
