/* A timeline as a Gantt chart: computation above, messages below, what is exposed in red. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <mgwfbp/report.h>

#include "base/names.h"
#include "report/svg.h"

/* ---- Text ---- */

enum { TEXT_WIDTH = 72 };

/* Every span covers at least one column, so that a short one is seen. */
static void fill(char *lane, double total_s, double start_s, double end_s, char mark)
{
    int from = (int)fmin(start_s / total_s * TEXT_WIDTH, TEXT_WIDTH - 1);
    int to = (int)fmin(ceil(end_s / total_s * TEXT_WIDTH - 1e-9), TEXT_WIDTH);
    for (int i = from; i < (to > from ? to : from + 1); i++)
        lane[i] = mark;
}

void mgw_draw_timeline_text(const mgw_timeline *timeline, mgw_text *text)
{
    mgw_timeline_stats stats = mgw_timeline_measure(timeline);
    double total_s = stats.iteration_s > 0 ? stats.iteration_s : 1;
    char compute[TEXT_WIDTH + 1];
    char messages[TEXT_WIDTH + 1];
    memset(compute, ' ', TEXT_WIDTH);
    memset(messages, ' ', TEXT_WIDTH);
    compute[TEXT_WIDTH] = messages[TEXT_WIDTH] = '\0';
    size_t number = 0;
    for (size_t i = 0; i < timeline->span_count; i++) {
        const mgw_span *span = &timeline->spans[i];
        if (span->kind == MGW_SPAN_MESSAGE)
            fill(messages, total_s, span->start_s, span->end_s, number++ % 2 ? '=' : '#');
        else if (span->end_s > span->start_s)
            fill(compute, total_s, span->start_s, span->end_s,
                 span->kind == MGW_SPAN_FORWARD ? 'F' : 'B');
    }
    char end[MGW_UNITS_MAX];
    mgw_text_printf(text, "compute   |%s|\nmessages  |%s|\n          0%*s\n", compute, messages,
                    TEXT_WIDTH + 1, mgw_format_seconds(stats.iteration_s, end));
    mgw_text_printf(text, "          F forward, B backward, # and = messages in turn; what reaches "
                          "past B is exposed\n");
}

/* ---- SVG ---- */

enum {
    WIDTH = 960,
    HEIGHT = 190,
    LEFT = 90,
    RIGHT = 24,
    LANE = 34,
    COMPUTE_Y = 52,
    MESSAGE_Y = 98
};

static const struct {
    const char *color;
    const char *name;
} marks[] = {[MGW_SPAN_FORWARD] = {"#a9c1dc", "forward"},
             [MGW_SPAN_BACKWARD] = {"#5b84b1", "backward"},
             [MGW_SPAN_MESSAGE] = {"#edae49", "communication"},
             [MGW_SPAN_MESSAGE + 1] = {"#d1495b", "exposed communication"}};

/* Spans narrower than this are drawn with their neighbours: a pixel shows no more. */
static const double least_px = 0.3;

typedef struct canvas {
    mgw_text *text;
    const mgw_timeline *timeline;
    double end_s;                          /* of the picture */
    double drawn_to[MGW_SPAN_MESSAGE + 1]; /* by kind */
} canvas;

static double px(const canvas *c, double seconds)
{
    return seconds / c->end_s * (WIDTH - LEFT - RIGHT);
}

static void describe(const canvas *c, const mgw_span *span, size_t number)
{
    char time[MGW_UNITS_MAX];
    char bytes[MGW_UNITS_MAX];
    mgw_format_seconds(span->end_s - span->start_s, time);
    if (span->kind == MGW_SPAN_MESSAGE) {
        mgw_text_printf(c->text, "message %zu: %zu tensor%s, %s, %s", number, span->count,
                        span->count == 1 ? "" : "s", mgw_format_bytes(span->bytes, bytes), time);
        mgw_text_printf(c->text, ", waited %s\n",
                        mgw_format_seconds(span->start_s - span->ready_s, time));
    } else {
        mgw_text_printf(c->text, "%s, %s\n", marks[span->kind].name, time);
    }
    if (span->count) {
        mgw_svg_escape(c->text, mgw_names_get(c->timeline->names, span->first));
        if (span->count > 1) {
            mgw_text_printf(c->text, " \xe2\x80\xa6 ");
            mgw_svg_escape(c->text,
                           mgw_names_get(c->timeline->names, span->first + span->count - 1));
        }
    }
}

static void draw_rect(const canvas *c, double start_s, double end_s, double y, const char *color)
{
    mgw_text_printf(c->text,
                    "<rect x=\"%.2f\" y=\"%.0f\" width=\"%.2f\" height=\"%d\" fill=\"%s\" "
                    "stroke=\"#fff\" stroke-width=\"0.4\"/>",
                    LEFT + px(c, start_s), y, px(c, end_s - start_s), LANE, color);
}

static void draw_span(canvas *c, const mgw_span *span, size_t number, double compute_s)
{
    double start_s = span->start_s;
    double *drawn_to = &c->drawn_to[span->kind];
    if (px(c, span->end_s - start_s) < least_px) {
        if (px(c, span->end_s - *drawn_to) < least_px)
            return;
        start_s = fmin(start_s, span->end_s - least_px * c->end_s / (WIDTH - LEFT - RIGHT));
    }
    *drawn_to = span->end_s;
    double y = span->kind == MGW_SPAN_MESSAGE ? MESSAGE_Y : COMPUTE_Y;
    mgw_text_printf(c->text, "<g><title>");
    describe(c, span, number);
    mgw_text_printf(c->text, "</title>");
    /* A message that begins under the backward pass is red only from its end on. */
    double hidden_s = span->kind == MGW_SPAN_MESSAGE ? fmin(span->end_s, compute_s) : span->end_s;
    if (hidden_s > start_s)
        draw_rect(c, start_s, hidden_s, y, marks[span->kind].color);
    if (span->end_s > hidden_s)
        draw_rect(c, fmax(start_s, hidden_s), span->end_s, y, marks[span->kind + 1].color);
    mgw_text_printf(c->text, "</g>\n");
}

static void draw_ruler(const canvas *c, double end_s)
{
    double step = mgw_svg_step(end_s);
    for (int i = 0; i <= 10 && i * step <= end_s; i++) {
        char label[MGW_UNITS_MAX];
        double x = LEFT + px(c, i * step);
        mgw_text_printf(c->text, "<path d=\"M%.1f %dV%d\" stroke=\"#ccc\"/>\n", x, COMPUTE_Y - 6,
                        MESSAGE_Y + LANE + 6);
        mgw_svg_label(c->text, x, MESSAGE_Y + LANE + 20, "middle", "fill=\"#555\" font-size=\"11\"",
                      mgw_format_seconds(i * step, label));
    }
}

static void draw_key(mgw_text *text)
{
    double x = LEFT;
    for (size_t i = 0; i < sizeof marks / sizeof *marks; i++) {
        mgw_text_printf(text,
                        "<rect x=\"%.0f\" y=\"168\" width=\"12\" height=\"12\" fill=\"%s\"/>\n", x,
                        marks[i].color);
        mgw_svg_label(text, x + 17, 178, "start", "font-size=\"11\"", marks[i].name);
        x += 40 + 6.5 * (double)strlen(marks[i].name);
    }
}

void mgw_draw_timeline_svg(const mgw_timeline *timeline, mgw_text *text)
{
    mgw_timeline_stats stats = mgw_timeline_measure(timeline);
    double end_s = stats.iteration_s > 0 ? stats.iteration_s : 1;
    canvas c = {.text = text, .timeline = timeline, .end_s = end_s};
    char summary[160];
    char total[MGW_UNITS_MAX];
    char exposed[MGW_UNITS_MAX];
    snprintf(summary, sizeof summary, "%s per step, %s of it exposed communication, %zu message%s",
             mgw_format_seconds(stats.iteration_s, total),
             mgw_format_seconds(stats.exposed_s, exposed), stats.messages,
             stats.messages == 1 ? "" : "s");
    mgw_svg_open(text, WIDTH, HEIGHT, timeline->title);
    mgw_svg_label(text, LEFT, 20, "start", "font-size=\"15\" font-weight=\"600\"", timeline->title);
    mgw_svg_label(text, LEFT, 38, "start", "fill=\"#555\"", summary);
    mgw_svg_label(text, LEFT - 10, COMPUTE_Y + 21, "end", "", "compute");
    mgw_svg_label(text, LEFT - 10, MESSAGE_Y + 21, "end", "", "messages");
    draw_ruler(&c, end_s);
    size_t number = 0;
    for (size_t i = 0; i < timeline->span_count; i++) {
        number += timeline->spans[i].kind == MGW_SPAN_MESSAGE;
        draw_span(&c, &timeline->spans[i], number, stats.compute_s);
    }
    draw_key(text);
    mgw_svg_close(text);
}
