/* Pages in memory: inputs of all kinds, and every trace planned on every cluster. */
#include "report/page.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "data/source.h"

/* Larger pages would not be readable. */
enum { ITEMS_MAX = 64, CASES_MAX = 64 };

mgw_status mgw_page_create(mgw_page **out, mgw_error *error)
{
    mgw_page *page = calloc(1, sizeof *page);
    if (page)
        page->items = calloc(ITEMS_MAX, sizeof *page->items);
    if (page)
        page->cases = calloc(CASES_MAX, sizeof *page->cases);
    if (!page || !page->items || !page->cases) {
        mgw_page_destroy(page);
        return mgw_fail_memory(error, "page");
    }
    *out = page;
    return MGW_OK;
}

void mgw_page_destroy(mgw_page *page)
{
    if (!page)
        return;
    for (size_t i = 0; i < page->case_count; i++)
        mgw_case_fini(&page->cases[i].what);
    for (size_t i = 0; i < page->item_count; i++)
        mgw_page_item_fini(&page->items[i]);
    free(page->cases);
    free(page->items);
    free(page);
}

void mgw_page_set_parameters(mgw_page *page, mgw_dtype dtype)
{
    page->parameters_given = true;
    page->parameters = dtype;
}

void mgw_page_item_fini(mgw_page_item *item)
{
    mgw_trace_destroy(item->trace);
    mgw_cluster_destroy(item->cluster);
    mgw_plan_destroy(item->plan);
    mgw_timelines_destroy(item->timelines, item->timeline_count);
    json_decref(item->rows);
    free(item->origin);
    *item = (mgw_page_item){0};
}

/* ---- Detecting inputs ---- */

static mgw_status read_trace(mgw_page_item *out, const char *text, size_t size, mgw_error *error)
{
    return mgw_trace_parse(out->origin, text, size, &out->trace, error);
}

static mgw_status read_cluster(mgw_page_item *out, const char *text, size_t size, mgw_error *error)
{
    mgw_import about;
    return mgw_cluster_import(out->origin, text, size, 0, &about, &out->cluster, error);
}

static mgw_status read_plan(mgw_page_item *out, const char *text, size_t size, mgw_error *error)
{
    return mgw_plan_parse(out->origin, text, size, &out->plan, error);
}

static mgw_status read_timelines(mgw_page_item *out, const char *text, size_t size,
                                 mgw_error *error)
{
    return mgw_timelines_parse(out->origin, text, size, &out->timelines, &out->timeline_count,
                               error);
}

static const struct {
    const char *format;
    mgw_page_kind kind;
    mgw_status (*read)(mgw_page_item *, const char *, size_t, mgw_error *);
} formats[] = {{"mgwfbp-trace-1", MGW_PAGE_TRACE, read_trace},
               {"mgwfbp-cluster-1", MGW_PAGE_CLUSTER, read_cluster},
               {"mgwfbp-plan-1", MGW_PAGE_PLAN, read_plan},
               {"mgwfbp-plan-2", MGW_PAGE_PLAN, read_plan},
               {"mgwfbp-timelines-1", MGW_PAGE_TIMELINES, read_timelines}};

static mgw_status read_format(mgw_page_item *out, const char *format, const char *text, size_t size,
                              mgw_error *error)
{
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
        if (!strcmp(formats[i].format, format)) {
            out->kind = formats[i].kind;
            return formats[i].read(out, text, size, error);
        }
    return mgw_fail(error, MGW_ERR_INPUT,
                    "%s: format: unknown format %.60s; expected mgwfbp-trace-1, mgwfbp-cluster-1, "
                    "mgwfbp-plan-1, mgwfbp-plan-2 or mgwfbp-timelines-1",
                    out->origin, format);
}

/* The outputs of `plan --json` and `fit --json` contain a plan and a cluster, which are used. */
static mgw_status read_inner(mgw_page_item *out, const char *text, size_t size, bool *found,
                             mgw_error *error)
{
    static const char *const members[] = {"plan", "cluster"};
    mgw_json_fault where;
    json_t *root = NULL;
    *found = false;
    mgw_status status = mgw_json_parse(text, size, NULL, &root, &where);
    if (status)
        return mgw_fail(error, status, "%s:%zu: %s", out->origin, where.line, where.text);
    for (size_t i = 0; i < 2 && !*found; i++) {
        json_t *inner = json_object_get(root, members[i]);
        const char *format = json_string_value(json_object_get(inner, "format"));
        if (!format)
            continue;
        mgw_text dump;
        mgw_text_init(&dump);
        mgw_json_dump(inner, JSON_REAL_PRECISION(17), &dump);
        *found = true;
        status = mgw_text_status(&dump, error);
        if (!status)
            status = read_format(out, format, dump.data, dump.size, error);
        mgw_text_fini(&dump);
    }
    json_decref(root);
    return status;
}

mgw_status mgw_page_item_read(mgw_page_item *out, const char *origin, const char *text, size_t size,
                              mgw_error *error)
{
    *out = (mgw_page_item){.origin = strdup(origin)};
    if (!out->origin)
        return mgw_fail_memory(error, origin);
    if (size >= 3 && !memcmp(text, "\xef\xbb\xbf", 3)) { /* a byte order mark */
        text += 3;
        size -= 3;
    }
    size_t first = 0;
    while (first < size && isspace((unsigned char)text[first]))
        first++;
    if (first < size && text[first] == '[')
        return mgw_page_rows_read(origin, text, size, &out->kind, &out->rows, error);
    if (mgw_page_is_log(text, size)) {
        out->kind = MGW_PAGE_TRAINING;
        return mgw_page_log_read(origin, text, size, &out->rows, error);
    }
    char *format = mgw_json_format(text, size);
    bool found = format != NULL;
    mgw_status status = MGW_OK;
    if (format)
        status = read_format(out, format, text, size, error);
    else if (first < size && text[first] == '{')
        status = read_inner(out, text, size, &found, error);
    free(format);
    if (found || status)
        return status;
    out->kind = MGW_PAGE_CLUSTER; /* measurements of other programs */
    return read_cluster(out, text, size, error);
}

/* ---- Adding ---- */

static mgw_status add_case(mgw_page *page, size_t trace, size_t cluster, mgw_error *error)
{
    if (page->case_count == CASES_MAX)
        return mgw_fail(error, MGW_ERR_UNSUPPORTED,
                        "%s: too much for one page: at most %d pairs of a trace and a cluster",
                        page->items[page->item_count - 1].origin, CASES_MAX);
    mgw_page_case *one = &page->cases[page->case_count++];
    one->trace = trace;
    one->cluster = cluster;
    const mgw_trace *model = page->items[trace].trace;
    const mgw_cluster *network = page->items[cluster].cluster;
    mgw_status status = mgw_case_init(&one->what, model, network, error);
    if (!status)
        status = mgw_case_scale(&one->what, model, network, error);
    if (status)
        return status;
    status = mgw_advise(model, network, 0, &one->advice, error);
    one->advised = !status;
    return status == MGW_ERR_UNSUPPORTED ? MGW_OK : status; /* a curve with very many tensors */
}

/* Plans the newest input with all inputs of the other kind. */
static mgw_status add_cases(mgw_page *page, mgw_error *error)
{
    size_t last = page->item_count - 1;
    mgw_page_kind kind = page->items[last].kind;
    mgw_status status = MGW_OK;
    for (size_t i = 0; !status && i < last; i++) {
        if (kind == MGW_PAGE_CLUSTER && page->items[i].kind == MGW_PAGE_TRACE)
            status = add_case(page, i, last, error);
        if (kind == MGW_PAGE_TRACE && page->items[i].kind == MGW_PAGE_CLUSTER)
            status = add_case(page, last, i, error);
    }
    return status;
}

mgw_status mgw_page_add(mgw_page *page, const char *origin, const char *text, size_t size,
                        mgw_error *error)
{
    if (page->item_count == ITEMS_MAX)
        return mgw_fail(error, MGW_ERR_UNSUPPORTED, "%s: too much for one page: at most %d inputs",
                        origin, ITEMS_MAX);
    size_t cases = page->case_count;
    mgw_page_item *item = &page->items[page->item_count];
    mgw_status status = mgw_page_item_read(item, origin, text, size, error);
    page->item_count++;
    if (!status && item->trace && page->parameters_given)
        item->trace->parameter_dtype = page->parameters;
    if (!status)
        status = add_cases(page, error);
    if (status) {
        while (page->case_count > cases)
            mgw_case_fini(&page->cases[--page->case_count].what);
        mgw_page_item_fini(&page->items[--page->item_count]);
    }
    return status;
}

/* A name that is neither a file nor built in may be a network. */
static mgw_status add_network(mgw_page *page, const char *name, mgw_error *error)
{
    mgw_cluster *cluster = NULL;
    mgw_text text;
    mgw_text_init(&text);
    mgw_status status = mgw_cluster_load(name, &cluster, error);
    if (!status)
        mgw_cluster_write(cluster, &text);
    if (!status)
        status = mgw_text_status(&text, error);
    if (!status)
        status = mgw_page_add(page, name, text.data, text.size, error);
    mgw_text_fini(&text);
    mgw_cluster_destroy(cluster);
    return status;
}

mgw_status mgw_page_add_file(mgw_page *page, const char *path_or_name, mgw_error *error)
{
    mgw_source source;
    mgw_status status = mgw_source_open(path_or_name, &source, error);
    if (!status)
        status = mgw_page_add(page, path_or_name, source.text, source.size, error);
    mgw_source_close(&source);
    return status == MGW_ERR_NOT_FOUND ? add_network(page, path_or_name, error) : status;
}
