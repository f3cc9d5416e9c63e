/* One plot: two axes, ticks, lines, points or bars, and a legend. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/locale.h"
#include "report/svg.h"

enum { WIDTH = 860, HEIGHT = 440, LEFT = 80, RIGHT = 260, TOP = 48, BOTTOM = 56, LEGEND = 20 };

/* One axis with its range, and the positions of its ends in the picture. */
typedef struct scale {
    mgw_axis axis;
    double low, high;
    double from, to;
} scale;

static double place(const scale *s, double value)
{
    double low = s->low;
    double high = s->high;
    if (s->axis.log_base) {
        value = log(value > 0 ? value : low);
        low = log(low);
        high = log(high);
    }
    return s->from + (s->to - s->from) * (value - low) / (high - low);
}

/* 1, 2 or 5 times a power of ten, such that there are about five steps. */
double mgw_svg_step(double range)
{
    if (!(range > 1e-290 && range < 1e290)) /* no power of ten is close enough */
        return range > 0 ? range : 1;
    double power = pow(10, floor(log10(range / 5)));
    double factor = range / 5 / power;
    return power * (factor <= 1 ? 1 : factor <= 2 ? 2 : factor <= 5 ? 5 : 10);
}

/* Widens the range of the data to whole ticks. */
static void fit_range(scale *s)
{
    if (s->axis.log_base) {
        double base = log(s->axis.log_base);
        s->low = exp(base * floor(log(s->low) / base + 1e-9));
        s->high = exp(base * ceil(log(s->high) / base - 1e-9));
        if (s->high <= s->low * 1.001)
            s->high = s->low * s->axis.log_base;
    } else {
        s->low = 0;
        if (s->high <= 0)
            s->high = 1;
        double step = mgw_svg_step(s->high);
        s->high = step * ceil(s->high / step - 1e-9);
    }
}

static void find_range(const mgw_plot *plot, bool vertical, scale *s)
{
    s->low = INFINITY;
    s->high = -INFINITY;
    for (size_t i = 0; i < plot->series_count; i++) {
        const mgw_series *series = &plot->series[i];
        for (size_t k = 0; k < series->count; k++) {
            double value = vertical ? series->y[k] : series->x[k];
            if (!isfinite(value) || (s->axis.log_base && value <= 0))
                continue;
            s->low = fmin(s->low, value);
            s->high = fmax(s->high, value);
            if (!vertical && series->mark == MGW_MARK_BARS)
                s->high = fmax(s->high, value * s->axis.log_base);
        }
    }
    if (!isfinite(s->low))
        s->low = s->high = 1;
    fit_range(s);
}

static void tick_label(const scale *s, double value, char out[MGW_UNITS_MAX])
{
    if (s->axis.unit == MGW_UNIT_BYTES)
        mgw_format_bytes((uint64_t)llround(value), out);
    else if (s->axis.unit == MGW_UNIT_SECONDS)
        mgw_format_seconds(value, out);
    else
        mgw_snprintf(out, MGW_UNITS_MAX, "%.6g", value);
    /* Ticks are round: "1 ms", not "1.00 ms". */
    char *zeros = strstr(out, ".0");
    if (zeros) {
        size_t length = 1 + strspn(zeros + 1, "0");
        if (zeros[length] == ' ')
            memmove(zeros, zeros + length, strlen(zeros + length) + 1);
    }
}

static void draw_tick(mgw_text *text, const scale *s, double value, bool vertical)
{
    char label[MGW_UNITS_MAX];
    tick_label(s, value, label);
    double at = place(s, value);
    if (vertical) {
        mgw_text_printf(text, "<path d=\"M%d %.1fH%d\" stroke=\"#ddd\"/>\n", LEFT, at,
                        WIDTH - RIGHT);
        mgw_svg_label(text, LEFT - 8, at + 4, "end", "", label);
    } else {
        mgw_text_printf(text, "<path d=\"M%.1f %dV%d\" stroke=\"#ddd\"/>\n", at, TOP,
                        HEIGHT - BOTTOM);
        mgw_svg_label(text, at, HEIGHT - BOTTOM + 18, "middle", "", label);
    }
}

static void draw_axis(mgw_text *text, const scale *s, bool vertical)
{
    if (s->axis.log_base) {
        int ticks = (int)lround(log(s->high / s->low) / log(s->axis.log_base));
        int stride = 1 + ticks / 11; /* labels must not overlap */
        for (int i = 0; i <= ticks; i += stride)
            draw_tick(text, s, s->low * pow(s->axis.log_base, i), vertical);
    } else {
        double step = mgw_svg_step(s->high);
        for (int i = 0; i * step <= s->high * (1 + 1e-9); i++)
            draw_tick(text, s, i * step, vertical);
    }
    if (vertical)
        mgw_svg_label(text, -(TOP + HEIGHT - BOTTOM) / 2.0, 16, "middle",
                      "transform=\"rotate(-90)\" fill=\"#555\"", s->axis.label);
    else
        mgw_svg_label(text, (LEFT + WIDTH - RIGHT) / 2.0, HEIGHT - 12, "middle", "fill=\"#555\"",
                      s->axis.label);
}

static void draw_line(mgw_text *text, const mgw_series *series, const scale *x, const scale *y)
{
    mgw_text_printf(text, "<path fill=\"none\" stroke=\"%s\" stroke-width=\"2\"", series->color);
    if (series->dash)
        mgw_text_printf(text, " stroke-dasharray=\"%s\"", series->dash);
    mgw_text_printf(text, " d=\"");
    for (size_t i = 0; i < series->count; i++)
        mgw_text_printf(text, "%c%.1f %.1f", i ? 'L' : 'M', place(x, series->x[i]),
                        place(y, series->y[i]));
    mgw_text_printf(text, "\"/>\n");
}

static void draw_series(mgw_text *text, const mgw_series *series, const scale *x, const scale *y)
{
    if (series->mark == MGW_MARK_LINE) {
        draw_line(text, series, x, y);
        return;
    }
    for (size_t i = 0; i < series->count; i++) {
        double px = place(x, series->x[i]);
        double py = place(y, series->y[i]);
        if (series->mark == MGW_MARK_POINTS) {
            mgw_text_printf(text, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3.5\" fill=\"%s\"/>\n", px,
                            py, series->color);
            continue;
        }
        double right = place(x, series->x[i] * x->axis.log_base);
        mgw_text_printf(text,
                        "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" "
                        "fill=\"%s\"><title>%g</title></rect>\n",
                        px + 1, py, right - px - 2, y->from - py, series->color, series->y[i]);
    }
}

static void draw_legend(mgw_text *text, const mgw_plot *plot)
{
    for (size_t i = 0; i < plot->series_count; i++) {
        const mgw_series *series = &plot->series[i];
        double y = TOP + 8 + LEGEND * (double)i;
        double x = WIDTH - RIGHT + 14;
        if (series->mark == MGW_MARK_LINE)
            mgw_text_printf(text,
                            "<path d=\"M%.1f %.1fh22\" stroke=\"%s\" stroke-width=\"2\" "
                            "stroke-dasharray=\"%s\"/>\n",
                            x, y, series->color, series->dash ? series->dash : "none");
        else
            mgw_text_printf(text, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"4\" fill=\"%s\"/>\n", x + 11,
                            y, series->color);
        mgw_svg_label(text, x + 30, y + 4, "start", "", series->name);
    }
}

void mgw_svg_plot(mgw_text *text, const mgw_plot *plot)
{
    scale x = {.axis = plot->x, .from = LEFT, .to = WIDTH - RIGHT};
    scale y = {.axis = plot->y, .from = HEIGHT - BOTTOM, .to = TOP};
    find_range(plot, false, &x);
    find_range(plot, true, &y);
    int legend = TOP + LEGEND * ((int)plot->series_count + 1);
    mgw_svg_open(text, WIDTH, legend > HEIGHT ? legend : HEIGHT, plot->title);
    mgw_svg_label(text, LEFT, 26, "start", "font-size=\"15\" font-weight=\"600\"", plot->title);
    draw_axis(text, &x, false);
    draw_axis(text, &y, true);
    for (size_t i = 0; i < plot->series_count; i++)
        draw_series(text, &plot->series[i], &x, &y);
    draw_legend(text, plot);
    mgw_svg_close(text);
}
