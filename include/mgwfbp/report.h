/*
 * Tables and pictures for people: aligned text, SVG that stands alone, and a page that shows it
 * all.
 *
 * Threads: any, on objects that no other thread is changing; reading one from several is fine.
 * Ownership: tables are the caller's; drawings go into the caller's text.
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
 * A table of at most 16 columns is filled cell by cell, row after row. Running out of memory shows
 * when it is written, in the text's `failed`.
 * Ownership: the caller destroys it; null if there is no memory, which all calls take.
 */
typedef struct mgw_table mgw_table;

/* The heads of the columns are separated by '|'; a column is aligned left if its head begins with
 * '<'. */
mgw_table *mgw_table_create(const char *heads);
void mgw_table_destroy(mgw_table *table);
void mgw_table_cell(mgw_table *table, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
void mgw_table_write(const mgw_table *table, mgw_text *text);

/*
 * For a terminal of so many columns (0: any). Where the table is wider, heads are broken between
 * words, then texts are cut, and what does not fit then stands below, behind the first column once
 * more. Heads are bold if it shows that.
 */
void mgw_table_fit(mgw_table *table, size_t width, bool bold);

/* ---- Pictures ---- */

/* How the sizes of a trace's tensors are distributed. */
void mgw_draw_sizes_text(const mgw_trace *trace, mgw_text *text);
void mgw_draw_sizes_svg(const mgw_trace *trace, mgw_text *text);

/* T(M) of a cluster: its samples, and the line fitted to them. */
void mgw_draw_cost_text(const mgw_cluster *cluster, mgw_text *text);
void mgw_draw_cost_svg(const mgw_cluster *cluster, mgw_text *text);

/* A timeline as a Gantt chart: a lane for computation and one for messages. */
void mgw_draw_timeline_text(const mgw_timeline *timeline, mgw_text *text);
void mgw_draw_timeline_svg(const mgw_timeline *timeline, mgw_text *text);

/* Several of them, one below the other on the same scale of time. */
void mgw_draw_timelines_svg(const mgw_timeline *const *timelines, size_t count, mgw_text *text);

/* Speed-up over workers, a curve for each algorithm and policy: of steps as they are planned, or of
 * a job, with what is expected under the conditions that the rows were made for. */
void mgw_draw_scaling_svg(const char *title, const mgw_scaling_row *rows, size_t count,
                          bool expected, mgw_text *text);

/* ---- Advice ---- */

/* Of DDP's step, the percents that another one saves. */
double mgw_advice_saved(const mgw_advice *advice, double iteration_s);

/* A line of a training script, and how long a step takes with it. */
typedef struct mgw_advice_line {
    char line[96];
    double iteration_s;
} mgw_advice_line;

enum { MGW_ADVICE_LINES_MAX = 4 };

/* DDP's own line first, then what to write instead. Returns how many. */
size_t mgw_advice_lines(const mgw_advice *advice, mgw_advice_line out[MGW_ADVICE_LINES_MAX]);

/* The answer in one line; what limits the rest; and all numbers as a JSON object. */
void mgw_advice_write_answer(const mgw_advice *advice, mgw_text *text);
void mgw_advice_write_limit(const mgw_advice *advice, mgw_text *text);
void mgw_advice_write_json(const mgw_trace *trace, const mgw_cluster *cluster,
                           const mgw_advice *advice, mgw_text *text);

/* ---- The page: everything at once, in a browser ---- */

/*
 * Collects inputs and writes them as one HTML file that needs nothing else: traces, clusters (each
 * trace is planned on each cluster), plans, timelines, what `replay`, `simulate` and `train` print
 * as JSON, and measurements that mgw_cluster_import reads. What each input is, it says itself.
 */
typedef struct mgw_page mgw_page;

MGW_CHECKED mgw_status mgw_page_create(mgw_page **out, mgw_error *error);
void mgw_page_destroy(mgw_page *page);

/* Takes parameters for this type in all traces that are added from now on, whatever these say. */
void mgw_page_set_parameters(mgw_page *page, mgw_dtype dtype);

/* Adds a file, or the built-in of that name. After a failure the page is as it was. */
MGW_CHECKED mgw_status mgw_page_add_file(mgw_page *page, const char *path_or_name,
                                         mgw_error *error);
MGW_CHECKED mgw_status mgw_page_add(mgw_page *page, const char *origin, const char *text,
                                    size_t size, mgw_error *error);

/* Appends what the page shows as JSON. */
void mgw_page_write_data(const mgw_page *page, mgw_text *text);

/*
 * Appends the page. One that is `served` takes files that are dropped on it and sends them back to
 * where it came from; any other makes no requests at all.
 */
void mgw_page_write(const mgw_page *page, bool served, mgw_text *text);

/* Whether pages can plan by themselves: whether the planner was built for browsers, too. */
bool mgw_page_plans(void);

MGW_END_DECLS
#pragma GCC visibility pop

#endif
