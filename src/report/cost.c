/* T(M) of a cluster: samples and line, as a table and as a plot. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <mgwfbp/report.h>

#include "report/svg.h"

/* Sizes shown for a cluster without samples: 1 KiB to 256 MiB. */
enum { POINTS = 10 };

static uint64_t shown_size(size_t index)
{
    return (uint64_t)1024 << 2 * index;
}

static const mgw_collective halves[] = {MGW_REDUCE_SCATTER, MGW_ALL_GATHER};

enum { HALVES = sizeof halves / sizeof *halves };

void mgw_draw_cost_text(const mgw_cluster *cluster, mgw_text *text)
{
    bool measured = cluster->sample_count > 0;
    size_t count = measured ? cluster->sample_count : POINTS;
    mgw_cost cost;
    mgw_cluster_cost(cluster, &cost);
    const double *within = cluster->within;
    mgw_table *table = mgw_table_create(
        within     ? "bytes|measured|within|a + b*M|error|rate|reduce-scatter|all-gather"
        : measured ? "bytes|measured|a + b*M|error|rate|reduce-scatter|all-gather"
                   : "bytes|T|rate|reduce-scatter|all-gather");
    for (size_t i = 0; i < count; i++) {
        uint64_t bytes = measured ? cluster->samples[i].bytes : shown_size(i);
        double line = cluster->cost.a_s + cluster->cost.b_s_per_byte * (double)bytes;
        double seconds = measured ? cluster->samples[i].seconds : line;
        char units[MGW_UNITS_MAX];
        mgw_table_cell(table, "%llu", (unsigned long long)bytes);
        mgw_table_cell(table, "%s", mgw_format_seconds(seconds, units));
        if (within)
            mgw_table_cell(table, "%.1f%%", 100 * fmin(within[i], 9.99));
        if (measured) {
            mgw_table_cell(table, "%s", mgw_format_seconds(line, units));
            mgw_table_cell(table, "%+.1f%%", 100 * (line - seconds) / seconds);
        }
        double rate = seconds > 0 ? (double)bytes / seconds / 1e6 : 0;
        mgw_table_cell(table, "%.*f MB/s", rate < 9.995 ? 2 : rate < 99.95 ? 1 : 0, rate);
        for (size_t k = 0; k < HALVES; k++)
            mgw_table_cell(table, "%s",
                           mgw_format_seconds(mgw_cost_seconds(&cost, halves[k], bytes), units));
    }
    mgw_table_write(table, text);
    mgw_table_destroy(table);
}

/* Lines bend on logarithmic axes, so they are drawn through many points. */
enum { LINE_POINTS = 65 };

typedef double line_points[LINE_POINTS];

static void draw_plot(const mgw_cluster *cluster, double low, double high, const mgw_series *points,
                      mgw_text *text)
{
    static const char *const names[] = {[MGW_ALL_REDUCE] = "all-reduce",
                                        [MGW_REDUCE_SCATTER] = "reduce-scatter",
                                        [MGW_ALL_GATHER] = "all-gather"};
    static const char *const colors[] = {"#d1495b", "#3f8f7b", "#9d7fc4"};
    static const char *const dashes[] = {NULL, "7 4", "2 3"};
    line_points x;
    line_points y[HALVES + 1];
    mgw_series series[HALVES + 2];
    for (int i = 0; i < LINE_POINTS; i++) {
        double factor = (double)i / (LINE_POINTS - 1);
        x[i] = low + (high - low) * factor * factor * factor * factor;
    }
    for (size_t k = 0; k <= HALVES; k++) {
        for (int i = 0; i < LINE_POINTS; i++)
            y[k][i] = cluster->of[k].a_s + cluster->of[k].b_s_per_byte * x[i];
        series[k] = (mgw_series){.name = names[k],
                                 .mark = MGW_MARK_LINE,
                                 .color = colors[k],
                                 .dash = dashes[k],
                                 .count = LINE_POINTS,
                                 .x = x,
                                 .y = y[k]};
    }
    if (points)
        series[HALVES + 1] = *points;
    mgw_text title;
    mgw_text_init(&title);
    mgw_text_printf(&title, "%s: one collective among %u workers, %sa + b*M", cluster->name,
                    cluster->workers, points ? "fitted: " : "");
    mgw_plot plot = {.title = title.data ? title.data : "",
                     .x = {"message size M", MGW_UNIT_BYTES, 4},
                     .y = {"time T(M)", MGW_UNIT_SECONDS, 10},
                     .series = series,
                     .series_count = points ? HALVES + 2 : HALVES + 1};
    mgw_svg_plot(text, &plot);
    text->failed |= title.failed;
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
            continue; /* cannot be shown on a logarithmic axis */
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
