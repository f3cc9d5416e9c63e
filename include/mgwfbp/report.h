/*
 * Tables and pictures for people: aligned text, and SVG that stands alone.
 *
 * Threads: any, on objects that no other thread is changing; reading one from several is fine.
 * Ownership: tables are the caller's; drawings go into the caller's text.
 */
#ifndef MGWFBP_REPORT_H
#define MGWFBP_REPORT_H

#include <stddef.h>

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

/* Speed-up over workers, a curve for each algorithm and policy. */
void mgw_draw_scaling_svg(const char *title, const mgw_scaling_row *rows, size_t count,
                          mgw_text *text);

MGW_END_DECLS
#pragma GCC visibility pop

#endif
