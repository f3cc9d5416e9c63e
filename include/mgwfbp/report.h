/*
 * Tables and pictures for people: aligned text, standalone SVG, and an HTML page with everything.
 *
 * Threads: any, on objects that no other thread is changing; reading one from several is fine.
 * Ownership: the caller owns tables; drawings are appended to the caller's text.
 */
#ifndef MGWFBP_REPORT_H
#define MGWFBP_REPORT_H

#include <stdbool.h>
#include <stddef.h>

#include <mgwfbp/advise.h>
#include <mgwfbp/cluster.h>
#include <mgwfbp/sim.h>
#include <mgwfbp/status.h>
#include <mgwfbp/text.h>
#include <mgwfbp/timeline.h>
#include <mgwfbp/trace.h>

#pragma GCC visibility push(default)
MGW_BEGIN_DECLS

/* ---- Tables ---- */

/*
 * A table of at most 16 columns, filled cell by cell and row by row. If memory runs out,
 * mgw_table_write sets the text's `failed`. Ownership: the caller destroys it. mgw_table_create
 * returns null if memory runs out; all calls accept null.
 */
typedef struct mgw_table mgw_table;

/* Column heads are separated by '|'. A column is left-aligned if its head begins with '<'. */
mgw_table *mgw_table_create(const char *heads);
void mgw_table_destroy(mgw_table *table);
void mgw_table_cell(mgw_table *table, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
void mgw_table_write(const mgw_table *table, mgw_text *text);

/*
 * Fits the table to a terminal of `width` columns (0: no limit). If the table is wider, heads are
 * broken between words, then text is cut, and columns that still do not fit are printed below, with
 * the first column repeated. `bold`: print heads in bold.
 */
void mgw_table_fit(mgw_table *table, size_t width, bool bold);

/* ---- Pictures ---- */

/* The distribution of a trace's tensor sizes. */
void mgw_draw_sizes_text(const mgw_trace *trace, mgw_text *text);
void mgw_draw_sizes_svg(const mgw_trace *trace, mgw_text *text);

/* T(M) of a cluster: its samples, and the line fitted to them. */
void mgw_draw_cost_text(const mgw_cluster *cluster, mgw_text *text);
void mgw_draw_cost_svg(const mgw_cluster *cluster, mgw_text *text);

/* A timeline as a Gantt chart: a lane for computation and one for messages. */
void mgw_draw_timeline_text(const mgw_timeline *timeline, mgw_text *text);
void mgw_draw_timeline_svg(const mgw_timeline *timeline, mgw_text *text);

/* Several timelines, one below the other, on the same time scale. */
void mgw_draw_timelines_svg(const mgw_timeline *const *timelines, size_t count, mgw_text *text);

/* Speed-up over the number of workers, one curve per algorithm and policy. `expected`: the speed-up
 * of a job under the conditions of the rows; otherwise that of the steps as planned. */
void mgw_draw_scaling_svg(const char *title, const mgw_scaling_row *rows, size_t count,
                          bool expected, mgw_text *text);

/* ---- Advice ---- */

/* Percentage of DDP's step time that a step of `iteration_s` saves. */
double mgw_advice_saved(const mgw_advice *advice, double iteration_s);

/* A line of a training script, and how long a step takes with it. */
typedef struct mgw_advice_line {
    char line[96];
    double iteration_s;
} mgw_advice_line;

enum { MGW_ADVICE_LINES_MAX = 4 };

/* DDP's own line first, then its replacements. Returns the number of lines. */
size_t mgw_advice_lines(const mgw_advice *advice, mgw_advice_line out[MGW_ADVICE_LINES_MAX]);

/* The answer in one line; what limits further gains; and all numbers as a JSON object. */
void mgw_advice_write_answer(const mgw_advice *advice, mgw_text *text);
void mgw_advice_write_limit(const mgw_advice *advice, mgw_text *text);
void mgw_advice_write_json(const mgw_trace *trace, const mgw_cluster *cluster,
                           const mgw_advice *advice, mgw_text *text);

/* ---- The page: everything at once, in a browser ---- */

/*
 * Collects inputs and writes them as one self-contained HTML file. Inputs are traces, clusters
 * (each trace is planned on each cluster), plans, timelines, the JSON output of `replay`,
 * `simulate` and `train`, and measurements that mgw_cluster_import reads. The kind of each input is
 * detected from its content.
 */
typedef struct mgw_page mgw_page;

MGW_CHECKED mgw_status mgw_page_create(mgw_page **out, mgw_error *error);
void mgw_page_destroy(mgw_page *page);

/* Sets the parameter type of all traces that are added from now on, overriding theirs. */
void mgw_page_set_parameters(mgw_page *page, mgw_dtype dtype);

/* Adds a file, or the built-in of that name. A failure leaves the page unchanged. */
MGW_CHECKED mgw_status mgw_page_add_file(mgw_page *page, const char *path_or_name,
                                         mgw_error *error);
MGW_CHECKED mgw_status mgw_page_add(mgw_page *page, const char *origin, const char *text,
                                    size_t size, mgw_error *error);

/* Appends the data of the page as JSON. */
void mgw_page_write_data(const mgw_page *page, mgw_text *text);

/*
 * Appends the page. If `served`, it accepts dropped files and uploads them to its server; otherwise
 * it makes no requests at all.
 */
void mgw_page_write(const mgw_page *page, bool served, mgw_text *text);

/* Whether pages can plan in the browser, which needs a build with the planner for browsers. */
bool mgw_page_plans(void);

MGW_END_DECLS
#pragma GCC visibility pop

#endif
