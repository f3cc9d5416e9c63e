/* The data of a page, as JSON. docs/guide/report.md describes it. */
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/names.h"
#include "report/page.h"

/* Numbers are written as columns instead of objects: a tenth of the size, and as easy to parse. */
typedef struct writer {
    mgw_text *text;
    const mgw_names **names; /* each list of names is written only once */
    size_t name_count;
} writer;

static void write_string(const writer *w, const char *member, const char *value)
{
    mgw_text_printf(w->text, "\"%s\":", member);
    mgw_text_json_string(w->text, value);
    mgw_text_append(w->text, ",", 1);
}

static void write_number(const writer *w, const char *member, double value)
{
    mgw_text_printf(w->text, "\"%s\":", member);
    mgw_text_json_number(w->text, value);
    mgw_text_append(w->text, ",", 1);
}

/* Removes the comma after the last member or element, and closes the bracket. */
static void close_with(const writer *w, const char *bracket)
{
    mgw_text *text = w->text;
    if (text->size && text->data[text->size - 1] == ',')
        text->size--;
    mgw_text_append(text, bracket, strlen(bracket));
}

/* Writes value(of, i) for each index i. */
static void write_column(const writer *w, const char *member, size_t count,
                         double (*value)(const void *of, size_t index), const void *of)
{
    mgw_text_printf(w->text, "\"%s\":[", member);
    for (size_t i = 0; i < count; i++) {
        mgw_text_json_number(w->text, value(of, i));
        mgw_text_append(w->text, ",", 1);
    }
    close_with(w, "],");
}

/* ---- Names ---- */

static size_t names_index(const writer *w, const mgw_names *names)
{
    size_t i = 0;
    while (i < w->name_count && !mgw_names_equal(w->names[i], names))
        i++;
    return i;
}

static void collect_names(writer *w, const mgw_names *names)
{
    if (names_index(w, names) == w->name_count)
        w->names[w->name_count++] = names;
}

static bool collect_all_names(const mgw_page *page, writer *w)
{
    size_t most = 0;
    for (size_t i = 0; i < page->item_count; i++)
        most += 1 + page->items[i].timeline_count;
    w->names = calloc(most ? most : 1, sizeof *w->names);
    for (size_t i = 0; w->names && i < page->item_count; i++) {
        const mgw_page_item *item = &page->items[i];
        if (item->trace)
            collect_names(w, item->trace->names);
        if (item->plan)
            collect_names(w, item->plan->names);
        for (size_t t = 0; t < item->timeline_count; t++)
            collect_names(w, item->timelines[t]->names);
    }
    return w->names != NULL;
}

static void write_names(const writer *w)
{
    mgw_text_printf(w->text, "\"names\":[");
    for (size_t i = 0; i < w->name_count; i++) {
        mgw_text_append(w->text, "[", 1);
        for (size_t k = 0; k < mgw_names_count(w->names[i]); k++) {
            mgw_text_json_string(w->text, mgw_names_get(w->names[i], k));
            mgw_text_append(w->text, ",", 1);
        }
        close_with(w, "],");
    }
    close_with(w, "],\n");
}

/* ---- Traces ---- */

static double tensor_count(const void *of, size_t index)
{
    return (double)((const mgw_tensor *)of)[index].count;
}

static double tensor_backward(const void *of, size_t index)
{
    return ((const mgw_tensor *)of)[index].backward_s;
}

static double tensor_forward(const void *of, size_t index)
{
    return ((const mgw_tensor *)of)[index].forward_start_s;
}

static void write_trace(const writer *w, const mgw_page_item *item)
{
    const mgw_trace *trace = item->trace;
    write_string(w, "model", trace->model);
    write_string(w, "device", trace->device);
    write_string(w, "precision", trace->precision);
    write_string(w, "gradient_dtype", mgw_dtype_name(trace->gradient_dtype));
    write_string(w, "parameter_dtype", mgw_dtype_name(trace->parameter_dtype));
    write_number(w, "batch", (double)trace->batch);
    write_number(w, "forward_s", trace->forward_s);
    write_number(w, "names", (double)names_index(w, trace->names));
    write_column(w, "counts", trace->tensor_count, tensor_count, trace->tensors);
    write_column(w, "backward_s", trace->tensor_count, tensor_backward, trace->tensors);
    write_column(w, "forward_start_s", trace->tensor_count, tensor_forward, trace->tensors);
}

/* ---- Clusters ---- */

static double sample_bytes(const void *of, size_t index)
{
    return (double)((const mgw_sample *)of)[index].bytes;
}

static double sample_seconds(const void *of, size_t index)
{
    return ((const mgw_sample *)of)[index].seconds;
}

/*
 * Writes the cost of the other kinds. Those of a parameter server count as given, since the page
 * only knows a and b of both directions together.
 */
/* Whether halves differ from half of the all-reduce although they were not given. */
static bool settles_kinds(const mgw_cluster *cluster)
{
    return cluster->kind == MGW_CLUSTER_PUSH_PULL || cluster->kind == MGW_CLUSTER_LEVELS;
}

static void write_collectives(const writer *w, const mgw_cluster *cluster)
{
    mgw_text_printf(w->text, "\"collectives\":[");
    for (size_t k = MGW_ALL_REDUCE + 1; k < MGW_COLLECTIVE_COUNT; k++) {
        const mgw_measured *given = &cluster->given[k];
        mgw_text_append(w->text, "{", 1);
        write_string(w, "kind", mgw_collective_name((mgw_collective)k));
        mgw_text_printf(w->text, "\"given\":%s,",
                        given->given || settles_kinds(cluster) ? "true" : "false");
        write_number(w, "a_s", cluster->of[k].a_s);
        write_number(w, "b_s_per_byte", cluster->of[k].b_s_per_byte);
        write_column(w, "sample_bytes", given->sample_count, sample_bytes, given->samples);
        write_column(w, "sample_seconds", given->sample_count, sample_seconds, given->samples);
        close_with(w, "},");
    }
    close_with(w, "],");
}

static void write_cluster(const writer *w, const mgw_page_item *item)
{
    static const char *const kinds[] = {[MGW_CLUSTER_COST] = "cost",
                                        [MGW_CLUSTER_PUSH_PULL] = "cost",
                                        [MGW_CLUSTER_LINK] = "link",
                                        [MGW_CLUSTER_SAMPLES] = "samples",
                                        [MGW_CLUSTER_LEVELS] = "cost"};
    const mgw_cluster *cluster = item->cluster;
    write_string(w, "name", cluster->name);
    write_number(w, "workers", cluster->workers);
    write_string(w, "kind", kinds[cluster->kind]);
    write_number(w, "a_s", cluster->cost.a_s);
    write_number(w, "b_s_per_byte", cluster->cost.b_s_per_byte);
    if (cluster->kind == MGW_CLUSTER_LINK) {
        write_number(w, "alpha_s", cluster->link.alpha_s);
        write_number(w, "beta_s_per_byte", cluster->link.beta_s_per_byte);
        write_number(w, "gamma_s_per_byte", cluster->link.gamma_s_per_byte);
        write_string(w, "algorithm", mgw_algorithm_name(cluster->algorithm));
    }
    write_number(w, "servers", cluster->servers);
    write_column(w, "sample_bytes", cluster->sample_count, sample_bytes, cluster->samples);
    write_column(w, "sample_seconds", cluster->sample_count, sample_seconds, cluster->samples);
    write_collectives(w, cluster);
    write_number(w, "beside_message", cluster->beside.message);
    write_number(w, "beside_compute", cluster->beside.compute);
    mgw_fit fit;
    if (cluster->sample_count &&
        !mgw_fit_line(cluster->samples, cluster->sample_count, &fit, NULL)) {
        write_number(w, "r2", fit.r2);
        write_number(w, "max_relative_error", fit.max_relative_error);
    }
}

/* ---- Plans ---- */

/* The columns of operations; kinds have the numbers of spans. */
static double message_kind(const void *of, size_t index)
{
    return MGW_SPAN_MESSAGE + (double)((const mgw_operation *)of)[index].kind;
}

static double message_first(const void *of, size_t index)
{
    return (double)((const mgw_operation *)of)[index].first;
}

static double message_count(const void *of, size_t index)
{
    return (double)((const mgw_operation *)of)[index].count;
}

static double message_bytes(const void *of, size_t index)
{
    return (double)((const mgw_operation *)of)[index].bytes;
}

static double message_ready(const void *of, size_t index)
{
    return ((const mgw_operation *)of)[index].ready_s;
}

static double message_start(const void *of, size_t index)
{
    return ((const mgw_operation *)of)[index].start_s;
}

static double message_end(const void *of, size_t index)
{
    return ((const mgw_operation *)of)[index].end_s;
}

static double stall_tensor(const void *of, size_t index)
{
    return (double)((const mgw_stall *)of)[index].tensor;
}

static double stall_start(const void *of, size_t index)
{
    return ((const mgw_stall *)of)[index].start_s;
}

static double stall_end(const void *of, size_t index)
{
    return ((const mgw_stall *)of)[index].end_s;
}

static void write_plan_members(const writer *w, const mgw_plan *plan)
{
    write_string(w, "policy", plan->policy);
    write_number(w, "forward_s", plan->forward_s == MGW_TIME_UNKNOWN ? 0 : plan->forward_s);
    write_number(w, "compute_s", plan->compute_s);
    write_number(w, "iteration_s", plan->iteration_s);
    write_number(w, "exposed_s", plan->exposed_s);
    write_number(w, "lower_bound_s", plan->lower_bound_s);
    mgw_text_printf(w->text, "\"overlaps_forward\":%s,", plan->overlaps_forward ? "true" : "false");
    write_column(w, "stall_tensor", plan->stall_count, stall_tensor, plan->stalls);
    write_column(w, "stall_start_s", plan->stall_count, stall_start, plan->stalls);
    write_column(w, "stall_end_s", plan->stall_count, stall_end, plan->stalls);
    write_column(w, "kind", plan->operation_count, message_kind, plan->operations);
    write_column(w, "first", plan->operation_count, message_first, plan->operations);
    write_column(w, "count", plan->operation_count, message_count, plan->operations);
    write_column(w, "bytes", plan->operation_count, message_bytes, plan->operations);
    write_column(w, "ready_s", plan->operation_count, message_ready, plan->operations);
    write_column(w, "start_s", plan->operation_count, message_start, plan->operations);
    write_column(w, "end_s", plan->operation_count, message_end, plan->operations);
}

static void write_plan(const writer *w, const mgw_page_item *item)
{
    write_string(w, "model", item->plan->model);
    write_string(w, "cluster", item->plan->cluster);
    write_number(w, "workers", item->plan->workers);
    write_number(w, "names", (double)names_index(w, item->plan->names));
    write_plan_members(w, item->plan);
}

/* ---- Timelines ---- */

static double span_kind(const void *of, size_t index)
{
    return ((const mgw_span *)of)[index].kind;
}

static double span_start(const void *of, size_t index)
{
    return ((const mgw_span *)of)[index].start_s;
}

static double span_end(const void *of, size_t index)
{
    return ((const mgw_span *)of)[index].end_s;
}

static double span_ready(const void *of, size_t index)
{
    return ((const mgw_span *)of)[index].ready_s;
}

static double span_first(const void *of, size_t index)
{
    return (double)((const mgw_span *)of)[index].first;
}

static double span_count(const void *of, size_t index)
{
    return (double)((const mgw_span *)of)[index].count;
}

static double span_bytes(const void *of, size_t index)
{
    return (double)((const mgw_span *)of)[index].bytes;
}

static void write_timelines(const writer *w, const mgw_page_item *item)
{
    static const struct {
        const char *member;
        double (*value)(const void *of, size_t index);
    } columns[] = {{"kind", span_kind},     {"start_s", span_start}, {"end_s", span_end},
                   {"ready_s", span_ready}, {"first", span_first},   {"count", span_count},
                   {"bytes", span_bytes}};
    mgw_text_printf(w->text, "\"timelines\":[");
    for (size_t t = 0; t < item->timeline_count; t++) {
        const mgw_timeline *timeline = item->timelines[t];
        mgw_text_append(w->text, "{", 1);
        write_string(w, "title", timeline->title);
        write_number(w, "names", (double)names_index(w, timeline->names));
        write_number(w, "period_s", timeline->period_s);
        for (size_t c = 0; c < sizeof columns / sizeof *columns; c++)
            write_column(w, columns[c].member, timeline->span_count, columns[c].value,
                         timeline->spans);
        close_with(w, "},");
    }
    close_with(w, "],");
}

/* ---- Rows, cases and the page ---- */

static void write_rows(const writer *w, const mgw_page_item *item)
{
    mgw_text_printf(w->text, "\"rows\":");
    mgw_json_dump(item->rows, JSON_COMPACT | JSON_REAL_PRECISION(17), w->text);
    mgw_text_printf(w->text, ",");
}

static const struct {
    const char *member;
    void (*write)(const writer *w, const mgw_page_item *item);
} kinds[MGW_PAGE_KINDS] = {
    [MGW_PAGE_TRACE] = {"traces", write_trace},
    [MGW_PAGE_CLUSTER] = {"clusters", write_cluster},
    [MGW_PAGE_PLAN] = {"plans", write_plan},
    [MGW_PAGE_TIMELINES] = {"runs", write_timelines},
    [MGW_PAGE_REPLAY] = {"replays", write_rows},
    [MGW_PAGE_SIMULATION] = {"simulations", write_rows},
    [MGW_PAGE_TRAINING] = {"trainings", write_rows},
};

static void write_items(const writer *w, const mgw_page *page, mgw_page_kind kind)
{
    mgw_text_printf(w->text, "\"%s\":[", kinds[kind].member);
    for (size_t i = 0; i < page->item_count; i++) {
        if (page->items[i].kind != kind)
            continue;
        mgw_text_append(w->text, "{", 1);
        write_string(w, "origin", page->items[i].origin);
        kinds[kind].write(w, &page->items[i]);
        close_with(w, "},");
    }
    close_with(w, "],\n");
}

/* The index of an item among those of its kind. */
static size_t rank_of(const mgw_page *page, size_t item)
{
    size_t rank = 0;
    for (size_t i = 0; i < item; i++)
        rank += page->items[i].kind == page->items[item].kind;
    return rank;
}

static void write_scaling(const writer *w, const mgw_case *one)
{
    mgw_text_printf(w->text, "\"scaling\":[");
    for (size_t i = 0; i < one->row_count; i++) {
        const mgw_scaling_row *row = &one->rows[i];
        char name[MGW_POLICY_NAME_MAX];
        mgw_text_append(w->text, "{", 1);
        write_number(w, "workers", row->workers);
        write_string(w, "algorithm", row->algorithm);
        write_string(w, "policy", mgw_policy_name(&row->policy, name));
        write_number(w, "messages", (double)row->messages);
        write_number(w, "iteration_s", row->iteration_s);
        write_number(w, "exposed_s", row->exposed_s);
        write_number(w, "speedup", row->speedup);
        write_number(w, "efficiency", row->efficiency);
        close_with(w, "},");
    }
    close_with(w, "],");
}

/* Writes text as a JSON string, without its last newline, and frees it. */
static void write_words(const writer *w, const char *member, mgw_text *words)
{
    if (words->size && words->data[words->size - 1] == '\n')
        words->data[--words->size] = '\0';
    write_string(w, member, words->data ? words->data : "");
    w->text->failed = w->text->failed || words->failed;
    mgw_text_fini(words);
}

/* The output of `mgwfbp advise`, with the same digits. */
static void write_advice(const writer *w, const mgw_page *page, const mgw_page_case *one)
{
    const mgw_trace *trace = page->items[one->trace].trace;
    const mgw_cluster *cluster = page->items[one->cluster].cluster;
    mgw_advice_line lines[MGW_ADVICE_LINES_MAX];
    size_t count = mgw_advice_lines(&one->advice, lines);
    mgw_text words;
    mgw_text_init(&words);
    mgw_text_printf(w->text, "\"advice\":{\"numbers\":");
    mgw_advice_write_json(trace, cluster, &one->advice, w->text);
    mgw_text_append(w->text, ",", 1);
    mgw_advice_write_answer(&one->advice, &words);
    write_words(w, "answer", &words);
    mgw_advice_write_limit(&one->advice, &words);
    write_words(w, "limit", &words);
    mgw_text_printf(w->text, "\"lines\":[");
    for (size_t i = 0; i < count; i++) {
        mgw_text_append(w->text, "{", 1);
        write_string(w, "line", lines[i].line);
        write_number(w, "iteration_s", lines[i].iteration_s);
        write_number(w, "saved", mgw_advice_saved(&one->advice, lines[i].iteration_s) / 100);
        close_with(w, "},");
    }
    close_with(w, "]},");
}

static void write_case(const writer *w, const mgw_page *page, const mgw_page_case *one)
{
    mgw_text_append(w->text, "{", 1);
    write_number(w, "trace", (double)rank_of(page, one->trace));
    write_number(w, "cluster", (double)rank_of(page, one->cluster));
    mgw_text_printf(w->text, "\"policies\":[");
    for (size_t i = 0; i < one->what.plan_count; i++) {
        mgw_text_append(w->text, "{", 1);
        write_plan_members(w, one->what.plans[i]);
        close_with(w, "},");
    }
    close_with(w, "],");
    write_scaling(w, &one->what);
    if (one->advised)
        write_advice(w, page, one);
    close_with(w, "},");
}

/* What each policy does, in the words of `mgwfbp list policies`. */
static void write_policies(writer *w)
{
    mgw_text_printf(w->text, "\"about\":{");
#define X(constant, name, about) write_string(w, name, about);
    MGW_POLICY_LIST(X)
#undef X
    close_with(w, "},");
}

void mgw_page_write_data(const mgw_page *page, mgw_text *text)
{
    writer w = {.text = text};
    if (!collect_all_names(page, &w)) {
        text->failed = true;
        return;
    }
    mgw_text_append(text, "{", 1);
    write_string(&w, "version", mgw_version());
    write_policies(&w);
    write_names(&w);
    for (mgw_page_kind kind = MGW_PAGE_TRACE; kind < MGW_PAGE_KINDS; kind++)
        write_items(&w, page, kind);
    mgw_text_printf(text, "\"cases\":[");
    for (size_t i = 0; i < page->case_count; i++)
        write_case(&w, page, &page->cases[i]);
    close_with(&w, "]");
    mgw_text_printf(text, "}\n");
    free(w.names);
}
