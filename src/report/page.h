/* The content of a page. */
#ifndef MGW_REPORT_PAGE_H
#define MGW_REPORT_PAGE_H

#include <jansson.h>
#include <mgwfbp/report.h>

#include "report/case.h"

typedef enum mgw_page_kind {
    MGW_PAGE_TRACE,
    MGW_PAGE_CLUSTER,
    MGW_PAGE_PLAN,
    MGW_PAGE_TIMELINES,
    MGW_PAGE_REPLAY,
    MGW_PAGE_SIMULATION,
    MGW_PAGE_TRAINING,
    MGW_PAGE_KINDS,
} mgw_page_kind;

/* One input. Only the pointer for its kind is set. */
typedef struct mgw_page_item {
    mgw_page_kind kind;
    char *origin;
    mgw_trace *trace;
    mgw_cluster *cluster;
    mgw_plan *plan;
    mgw_timeline **timelines;
    size_t timeline_count;
    json_t *rows; /* REPLAY, SIMULATION; TRAINING: by event. Only with known members */
} mgw_page_item;

typedef struct mgw_page_case {
    size_t trace; /* index of the item */
    size_t cluster;
    mgw_case what;
    bool advised; /* whether there is advice */
    mgw_advice advice;
} mgw_page_case;

struct mgw_page {
    bool parameters_given;
    mgw_dtype parameters;
    mgw_page_item *items;
    size_t item_count;
    mgw_page_case *cases; /* every trace on every cluster */
    size_t case_count;
};

/* Reads an input of any kind. Ownership: the caller calls mgw_page_item_fini on *out, also after a
 * failure. */
MGW_CHECKED mgw_status mgw_page_item_read(mgw_page_item *out, const char *origin, const char *text,
                                          size_t size, mgw_error *error);
void mgw_page_item_fini(mgw_page_item *item);

/* Reads the rows of `replay` or `simulate`; *kind says which. */
MGW_CHECKED mgw_status mgw_page_rows_read(const char *origin, const char *text, size_t size,
                                          mgw_page_kind *kind, json_t **out, mgw_error *error);

/* The JSON output of `train`, with one object per line: whether the text is such a log, and its
 * rows by event. */
bool mgw_page_is_log(const char *text, size_t size);
MGW_CHECKED mgw_status mgw_page_log_read(const char *origin, const char *text, size_t size,
                                         json_t **out, mgw_error *error);

#endif
