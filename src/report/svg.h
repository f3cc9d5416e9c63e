/* The small part of SVG that our pictures use, and one plot with axes. */
#ifndef MGW_REPORT_SVG_H
#define MGW_REPORT_SVG_H

#include <stdbool.h>

#include <mgwfbp/text.h>

/* The start of a picture: white ground, a font, a title that screen readers read. */
void mgw_svg_open(mgw_text *text, int width, int height, const char *title);
void mgw_svg_close(mgw_text *text);

/* Text with markup made harmless and control characters replaced. */
void mgw_svg_escape(mgw_text *text, const char *string);

/* anchor: "start", "middle" or "end". */
void mgw_svg_label(mgw_text *text, double x, double y, const char *anchor, const char *style,
                   const char *label);

/* A round step (1, 2 or 5 times a power of ten) of which about five make the range. */
double mgw_svg_step(double range);

typedef enum mgw_unit { MGW_UNIT_PLAIN, MGW_UNIT_BYTES, MGW_UNIT_SECONDS } mgw_unit;

/* A tick for every power of `log_base`, or for round steps if it is 0. */
typedef struct mgw_axis {
    const char *label;
    mgw_unit unit;
    int log_base;
} mgw_axis;

typedef enum mgw_mark { MGW_MARK_LINE, MGW_MARK_POINTS, MGW_MARK_BARS } mgw_mark;

/* Bars reach from x to x * log_base of the x axis. */
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
