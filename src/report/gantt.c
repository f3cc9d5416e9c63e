/* A timeline as a Gantt chart: computation above, operations below, exposed communication in red.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <mgwfbp/report.h>

#include "base/names.h"
#include "report/svg.h"

/* ---- Text ---- */

enum { TEXT_WIDTH = 72 };

/* The letters of text lanes; operations alternate between two letters. */
static const char letters[MGW_SPAN_COUNT][2] = {
    [MGW_SPAN_FORWARD] = {'F'},         [MGW_SPAN_BACKWARD] = {'B'},
    [MGW_SPAN_MESSAGE] = {'#', '='},    [MGW_SPAN_REDUCE_SCATTER] = {'R', 'r'},
    [MGW_SPAN_ALL_GATHER] = {'G', 'g'}, [MGW_SPAN_PUSH] = {'P', 'p'},
    [MGW_SPAN_PULL] = {'L', 'l'},       [MGW_SPAN_STALL] = {'.'},
    [MGW_SPAN_NEXT_FORWARD] = {'f'},
};

typedef char text_lane[TEXT_WIDTH + 1];

static void clear_lane(text_lane lane)
{
    memset(lane, ' ', TEXT_WIDTH);
    lane[TEXT_WIDTH] = '\0';
}

/* Every span covers at least one column, so that short ones are visible. */
static void fill(text_lane lane, double total_s, double start_s, double end_s, char mark)
{
    int from = (int)fmin(start_s / total_s * TEXT_WIDTH, TEXT_WIDTH - 1);
    int to = (int)fmin(ceil(end_s / total_s * TEXT_WIDTH - 1e-9), TEXT_WIDTH);
    for (int i = from; i < (to > from ? to : from + 1); i++)
        lane[i] = mark;
}

/* From the end of one forward pass to the end of the next: <------ 24 ms ------> */
static void draw_period(double total_s, double period_s, mgw_text *text)
{
    char length[MGW_UNITS_MAX];
    text_lane lane;
    clear_lane(lane);
    mgw_format_seconds(period_s, length);
    fill(lane, total_s, fmax(total_s - period_s, 0), total_s, '-');
    int from = (int)strspn(lane, " ");
    int size = (int)strlen(length);
    int room = TEXT_WIDTH - from;
    lane[from] = '<';
    lane[TEXT_WIDTH - 1] = '>';
    if (room > size + 4) {
        char *at = lane + from + (room - size) / 2;
        memcpy(at, length, (size_t)size);
        at[-1] = at[size] = ' ';
    }
    mgw_text_printf(text, "a step    |%s|\n", lane);
}

static void describe_letters(const size_t *seen, mgw_text *text)
{
    if (!seen[MGW_SPAN_REDUCE_SCATTER] && !seen[MGW_SPAN_ALL_GATHER] && !seen[MGW_SPAN_PUSH] &&
        !seen[MGW_SPAN_PULL] && !seen[MGW_SPAN_NEXT_FORWARD]) {
        mgw_text_printf(text, "          F forward, B backward, # and = alternate messages; what "
                              "extends past B is exposed\n");
        return;
    }
    mgw_text_printf(text, "          F forward, B backward%s%s;\n         ",
                    seen[MGW_SPAN_NEXT_FORWARD] ? ", f the next forward pass" : "",
                    seen[MGW_SPAN_STALL] ? ", . where it waits" : "");
    for (size_t kind = MGW_SPAN_MESSAGE; kind <= MGW_SPAN_PULL; kind++)
        if (seen[kind])
            mgw_text_printf(text, " %c and %c %s,", letters[kind][0], letters[kind][1],
                            kind == MGW_SPAN_MESSAGE ? "all-reduces"
                                                     : mgw_span_name((mgw_span_kind)kind));
    mgw_text_printf(text, " in turn\n");
}

void mgw_draw_timeline_text(const mgw_timeline *timeline, mgw_text *text)
{
    mgw_timeline_stats stats = mgw_timeline_measure(timeline);
    double total_s = stats.end_s > 0 ? stats.end_s : 1;
    text_lane compute;
    text_lane messages;
    clear_lane(compute);
    clear_lane(messages);
    size_t seen[MGW_SPAN_COUNT] = {0};
    for (size_t i = 0; i < timeline->span_count; i++) {
        const mgw_span *span = &timeline->spans[i];
        char letter =
            letters[span->kind][mgw_span_is_operation(span->kind) && seen[span->kind] % 2];
        seen[span->kind]++;
        if (mgw_span_is_operation(span->kind))
            fill(messages, total_s, span->start_s, span->end_s, letter);
        else if (span->end_s > span->start_s)
            fill(compute, total_s, span->start_s, span->end_s, letter);
    }
    char end[MGW_UNITS_MAX];
    mgw_text_printf(text, "compute   |%s|\nmessages  |%s|\n", compute, messages);
    if (seen[MGW_SPAN_NEXT_FORWARD])
        draw_period(total_s, stats.iteration_s, text);
    mgw_text_printf(text, "          0%*s\n", TEXT_WIDTH + 1, mgw_format_seconds(stats.end_s, end));
    describe_letters(seen, text);
}

/* ---- SVG ---- */

enum {
    WIDTH = 960,
    BLOCK = 158, /* height of one timeline */
    KEY = 32,
    LEFT = 90,
    RIGHT = 24,
    LANE = 34,
    COMPUTE_Y = 52,
    MESSAGE_Y = 98
};

/* An all-reduce fills its lane. Its halves are drawn in the upper and the lower part, so that they
 * can be distinguished without colours. */
typedef enum part { WHOLE, UPPER, LOWER } part;

static const struct {
    const char *color;
    const char *name;
    part part;
} marks[] = {[MGW_SPAN_FORWARD] = {"#a9c1dc", "forward", WHOLE},
             [MGW_SPAN_BACKWARD] = {"#5b84b1", "backward", WHOLE},
             [MGW_SPAN_MESSAGE] = {"#edae49", "all-reduce", WHOLE},
             [MGW_SPAN_REDUCE_SCATTER] = {"#3f8f7b", "reduce-scatter", UPPER},
             [MGW_SPAN_ALL_GATHER] = {"#9d7fc4", "all-gather", LOWER},
             [MGW_SPAN_PUSH] = {"#3f8f7b", "push", UPPER},
             [MGW_SPAN_PULL] = {"#9d7fc4", "pull", LOWER},
             [MGW_SPAN_STALL] = {"#eeb0a6", "stall", WHOLE},
             [MGW_SPAN_NEXT_FORWARD] = {"#a9c1dc", "next forward", WHOLE},
             [MGW_SPAN_COUNT] = {"#d1495b", "exposed communication", WHOLE}};

/* Spans narrower than this are merged with their neighbours, since they would be less than a pixel.
 */
static const double least_px = 0.3;

typedef struct canvas {
    mgw_text *text;
    int top; /* top of this timeline in the picture */
    const mgw_timeline *timeline;
    double end_s;     /* end of the picture */
    double compute_s; /* where the backward pass ends */
    double next_s;    /* start of the next forward pass if it is not shown, otherwise 0 */
    size_t stall;     /* the first span that may be a stall during the next operation */
    double drawn_to[MGW_SPAN_COUNT];
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
    if (mgw_span_is_operation(span->kind)) {
        mgw_text_printf(c->text, "%s %zu: %zu tensor%s, %s, %s",
                        span->kind == MGW_SPAN_MESSAGE ? "message" : marks[span->kind].name, number,
                        span->count, span->count == 1 ? "" : "s",
                        mgw_format_bytes(span->bytes, bytes), time);
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

static void draw_rect(const canvas *c, double start_s, double end_s, mgw_span_kind kind,
                      const char *color)
{
    if (end_s <= start_s)
        return;
    double y = c->top + (mgw_span_is_operation(kind) ? MESSAGE_Y : COMPUTE_Y);
    part where = marks[kind].part;
    mgw_text_printf(c->text,
                    "<rect x=\"%.2f\" y=\"%.0f\" width=\"%.2f\" height=\"%d\" fill=\"%s\" "
                    "stroke=\"#fff\" stroke-width=\"0.4\"/>",
                    LEFT + px(c, start_s), where == LOWER ? y + LANE / 2.0 : y,
                    px(c, end_s - start_s), where == WHOLE ? LANE : LANE / 2, color);
}

/*
 * The next interval from `from_s` on without computation. Calls must be in order of time.
 */
static void find_exposed(canvas *c, double from_s, double *start_s, double *end_s)
{
    const mgw_timeline *timeline = c->timeline;
    bool overlaps = timeline->period_s > 0;
    for (; overlaps && c->stall < timeline->span_count; c->stall++) {
        const mgw_span *span = &timeline->spans[c->stall];
        if (span->kind != MGW_SPAN_STALL || span->end_s <= from_s)
            continue;
        *start_s = fmax(from_s, span->start_s);
        *end_s = span->end_s;
        return;
    }
    *start_s = fmax(from_s, c->compute_s);
    *end_s = overlaps ? c->next_s : INFINITY;
    if (*start_s >= *end_s)
        *start_s = *end_s = INFINITY;
}

/* Draws the parts of an operation without concurrent computation in red. */
static void draw_operation(canvas *c, double start_s, const mgw_span *span)
{
    for (double now = start_s; now < span->end_s;) {
        double exposed_s = 0;
        double end_s = 0;
        find_exposed(c, now, &exposed_s, &end_s);
        end_s = fmin(end_s, span->end_s);
        draw_rect(c, now, fmin(exposed_s, span->end_s), span->kind, marks[span->kind].color);
        draw_rect(c, exposed_s, end_s, span->kind, marks[MGW_SPAN_COUNT].color);
        now = end_s;
    }
}

/* Finds whether the next forward pass is shown. The step's own stalls come before the end of its
 * backward pass. */
static void find_ends(canvas *c, const mgw_timeline_stats *stats)
{
    bool shown = false; /* whether the next forward pass is shown */
    for (size_t i = 0; i < c->timeline->span_count; i++) {
        const mgw_span *span = &c->timeline->spans[i];
        bool after =
            span->kind == MGW_SPAN_STALL && span->end_s > stats->compute_s + stats->stalled_s;
        shown |= span->kind == MGW_SPAN_NEXT_FORWARD || after;
    }
    c->compute_s = stats->compute_s + (shown ? 0 : stats->stalled_s);
    c->next_s = shown ? 0 : c->timeline->period_s;
}

static void draw_span(canvas *c, const mgw_span *span, size_t number)
{
    double start_s = span->start_s;
    double *drawn_to = &c->drawn_to[span->kind];
    if (px(c, span->end_s - start_s) < least_px) {
        if (px(c, span->end_s - *drawn_to) < least_px)
            return;
        start_s = fmin(start_s, span->end_s - least_px * c->end_s / (WIDTH - LEFT - RIGHT));
    }
    *drawn_to = span->end_s;
    mgw_text_printf(c->text, "<g><title>");
    describe(c, span, number);
    mgw_text_printf(c->text, "</title>");
    if (mgw_span_is_operation(span->kind))
        draw_operation(c, start_s, span);
    else
        draw_rect(c, start_s, span->end_s, span->kind, marks[span->kind].color);
    mgw_text_printf(c->text, "</g>\n");
}

static void draw_ruler(const canvas *c)
{
    double step = mgw_svg_step(c->end_s);
    for (int i = 0; i <= 10 && i * step <= c->end_s; i++) {
        char label[MGW_UNITS_MAX];
        double x = LEFT + px(c, i * step);
        mgw_text_printf(c->text, "<path d=\"M%.1f %dV%d\" stroke=\"#ccc\"/>\n", x,
                        c->top + COMPUTE_Y - 6, c->top + MESSAGE_Y + LANE + 6);
        mgw_svg_label(c->text, x, c->top + MESSAGE_Y + LANE + 20, "middle",
                      "fill=\"#555\" font-size=\"11\"", mgw_format_seconds(i * step, label));
    }
}

/* Draws the legend, for the kinds that appear. */
static void draw_key(const bool *seen, int y, mgw_text *text)
{
    double x = LEFT;
    for (size_t i = 0; i < sizeof marks / sizeof *marks; i++) {
        if (!seen[i] || i == MGW_SPAN_NEXT_FORWARD)
            continue;
        mgw_text_printf(
            text, "<rect x=\"%.0f\" y=\"%d\" width=\"12\" height=\"%d\" fill=\"%s\"/>\n", x,
            marks[i].part == LOWER ? y + 6 : y, marks[i].part == WHOLE ? 12 : 6, marks[i].color);
        mgw_svg_label(text, x + 17, y + 10, "start", "font-size=\"11\"", marks[i].name);
        x += 40 + 6.5 * (double)strlen(marks[i].name);
    }
}

static void draw_block(canvas *c, bool *seen)
{
    const mgw_timeline *timeline = c->timeline;
    mgw_timeline_stats stats = mgw_timeline_measure(timeline);
    find_ends(c, &stats);
    char summary[200];
    char total[MGW_UNITS_MAX];
    char exposed[MGW_UNITS_MAX];
    snprintf(
        summary, sizeof summary, "%s per step, %s of it exposed communication, %zu message%s%s",
        mgw_format_seconds(stats.iteration_s, total), mgw_format_seconds(stats.exposed_s, exposed),
        stats.messages, stats.messages == 1 ? "" : "s",
        timeline->period_s > 0
            ? "; a step is from the end of one forward pass to the end of the next"
            : "");
    mgw_svg_label(c->text, LEFT, c->top + 20, "start", "font-size=\"15\" font-weight=\"600\"",
                  timeline->title);
    mgw_svg_label(c->text, LEFT, c->top + 38, "start", "fill=\"#555\"", summary);
    mgw_svg_label(c->text, LEFT - 10, c->top + COMPUTE_Y + 21, "end", "", "compute");
    mgw_svg_label(c->text, LEFT - 10, c->top + MESSAGE_Y + 21, "end", "", "messages");
    draw_ruler(c);
    size_t number = 0;
    for (size_t i = 0; i < timeline->span_count; i++) {
        const mgw_span *span = &timeline->spans[i];
        number += mgw_span_is_operation(span->kind);
        seen[span->kind] = true;
        draw_span(c, span, number);
    }
}

void mgw_draw_timelines_svg(const mgw_timeline *const *timelines, size_t count, mgw_text *text)
{
    double end_s = 0;
    for (size_t i = 0; i < count; i++)
        end_s = fmax(end_s, mgw_timeline_measure(timelines[i]).end_s);
    bool seen[MGW_SPAN_COUNT + 1] = {[MGW_SPAN_COUNT] = true};
    int height = BLOCK * (int)count;
    mgw_svg_open(text, WIDTH, height + KEY, count ? timelines[0]->title : "");
    for (size_t i = 0; i < count; i++) {
        canvas c = {.text = text,
                    .top = BLOCK * (int)i,
                    .timeline = timelines[i],
                    .end_s = end_s > 0 ? end_s : 1};
        draw_block(&c, seen);
    }
    draw_key(seen, height + 10, text);
    mgw_svg_close(text);
}

void mgw_draw_timeline_svg(const mgw_timeline *timeline, mgw_text *text)
{
    mgw_draw_timelines_svg(&timeline, 1, text);
}
