/* Speed-up over the number of workers: one curve per algorithm and policy, and the ideal. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <mgwfbp/report.h>

#include "report/svg.h"

/* By kind of policy. */
static const char *const colors[] = {
    [MGW_NAIVE] = "#999999",  [MGW_WFBP] = "#2e86ab",    [MGW_SINGLE] = "#8a5a9e",
    [MGW_GREEDY] = "#edae49", [MGW_OPTIMAL] = "#d1495b", [MGW_THRESHOLD] = "#6a994e",
    [MGW_DDP] = "#4f5d75",    [MGW_FSDP] = "#b08968",    [MGW_ZERO] = "#e07a5f",
    [MGW_DEAR] = "#3d9970",   [MGW_SHARDED] = "#0e7c86", [MGW_OVERLAP] = "#111827",
};

/* By algorithm, in the order in which they appear. */
static const char *const dashes[] = {NULL, "7 4", "2 3", "9 3 2 3", "12 3", "4 8"};

typedef char curve_name[MGW_POLICY_NAME_MAX + 40];

static void name_curve(const mgw_scaling_row *row, curve_name out)
{
    char policy[MGW_POLICY_NAME_MAX];
    snprintf(out, sizeof(curve_name), "%s, %s", mgw_policy_name(&row->policy, policy),
             row->algorithm);
}

/* The points of the curve that begins with row `first`: all rows with the same name. */
static void collect_points(const mgw_scaling_row *rows, size_t first, size_t count, bool expected,
                           const curve_name *names, double *x, double *y, mgw_series *series)
{
    for (size_t i = first; i < count; i++)
        if (!strcmp(names[first], names[i])) {
            x[series->count] = rows[i].workers;
            y[series->count++] = expected ? rows[i].outlook.speedup : rows[i].speedup;
        }
    series->x = x;
    series->y = y;
}

/* Rows are grouped by algorithm; each algorithm has its own dash pattern. */
static size_t collect_curves(const mgw_scaling_row *rows, size_t count, bool expected,
                             const curve_name *names, double *x, double *y, mgw_series *series)
{
    size_t made = 0;
    size_t algorithms = 0;
    for (size_t i = 0, used = 0; i < count; i++) {
        bool seen = false;
        for (size_t k = 0; k < i && !seen; k++)
            seen = !strcmp(names[k], names[i]);
        if (seen)
            continue;
        algorithms += i == 0 || strcmp(rows[i - 1].algorithm, rows[i].algorithm) != 0;
        series[made] = (mgw_series){
            .name = names[i],
            .mark = MGW_MARK_LINE,
            .color = colors[rows[i].policy.kind],
            .dash = dashes[(algorithms - 1) % (sizeof dashes / sizeof *dashes)],
        };
        collect_points(rows, i, count, expected, names, x + used, y + used, &series[made]);
        used += series[made++].count;
    }
    return made;
}

void mgw_draw_scaling_svg(const char *title, const mgw_scaling_row *rows, size_t count,
                          bool expected, mgw_text *text)
{
    mgw_series *series = calloc(count + 1, sizeof *series);
    curve_name *names = calloc(count + 1, sizeof *names);
    double *points = calloc(count + 1, 2 * sizeof *points);
    if (series && names && points) {
        for (size_t i = 0; i < count; i++)
            name_curve(&rows[i], names[i]);
        size_t curves = collect_curves(rows, count, expected, (const curve_name *)names, points,
                                       points + count, series);
        series[curves] = series[0]; /* the ideal: the speed-up equals the number of workers */
        series[curves].name = "ideal";
        series[curves].color = "#bbbbbb";
        series[curves].dash = "1 4";
        series[curves].y = series[0].x;
        mgw_plot plot = {.title = title,
                         .x = {"workers", MGW_UNIT_PLAIN, 2},
                         .y = {"speed-up over one worker", MGW_UNIT_PLAIN, 2},
                         .series = series,
                         .series_count = curves + 1};
        mgw_svg_plot(text, &plot);
    } else {
        text->failed = true;
    }
    free(points);
    free(names);
    free(series);
}
