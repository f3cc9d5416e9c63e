/* The part of SVG that our pictures use, and a plot with axes. */
#ifndef MGW_REPORT_SVG_H
#define MGW_REPORT_SVG_H

#include <stdbool.h>

#include <mgwfbp/text.h>

/* Starts a picture: white background, font, and a title for screen readers. */
void mgw_svg_open(mgw_text *text, int width, int height, const char *title);
void mgw_svg_close(mgw_text *text);

/* Appends text with markup escaped and control characters replaced. */
void mgw_svg_escape(mgw_text *text, const char *string);

/* anchor: "start", "middle" or "end". */
void mgw_svg_label(mgw_text *text, double x, double y, const char *anchor, const char *style,
                   const char *label);

/* A round step (1, 2 or 5 times a power of ten) such that about five steps make up the range. */
double mgw_svg_step(double range);

typedef enum mgw_unit { MGW_UNIT_PLAIN, MGW_UNIT_BYTES, MGW_UNIT_SECONDS } mgw_unit;

/* Ticks are at powers of `log_base`, or at round steps if it is 0. */
typedef struct mgw_axis {
    const char *label;
    mgw_unit unit;
    int log_base;
} mgw_axis;

typedef enum mgw_mark { MGW_MARK_LINE, MGW_MARK_POINTS, MGW_MARK_BARS } mgw_mark;

/* Bars extend from x to x * log_base of the x axis. */
typedef struct mgw_series {
    const char *name;
    mgw_mark mark;
    const char *color;
    const char *dash; /* SVG dash pattern, or null */
    size_t count;
    const double *x;
    const double *y;
} mgw_series;

typedef struct mgw_plot {
    const char *title;
    mgw_axis x;
    mgw_axis y;
    const mgw_series *series;
    size_t series_count;
} mgw_plot;

void mgw_svg_plot(mgw_text *text, const mgw_plot *plot);

#endif
