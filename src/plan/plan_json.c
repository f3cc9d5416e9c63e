/* Plan files: "mgwfbp-plan-1". */
#include <limits.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <mgwfbp/plan.h>

#include "base/json.h"
#include "base/names.h"
#include "data/source.h"

/* Predicted times are worth 12 digits; more would only show the order of additions. */
static void write_seconds(mgw_text *text, const char *before, double seconds)
{
    mgw_text_printf(text, "%s%.12g", before, seconds);
}

static void write_message(const mgw_plan *plan, const mgw_operation *message, mgw_text *text)
{
    mgw_text_printf(text, "    {\"tensors\": [");
    for (size_t i = 0; i < message->count; i++) {
        mgw_text_append(text, ", ", i ? 2 : 0);
        mgw_text_json_string(text, mgw_names_get(plan->names, message->first + i));
    }
    mgw_text_printf(text, "],\n     \"bytes\": %llu", (unsigned long long)message->bytes);
    write_seconds(text, ", \"ready_s\": ", message->ready_s);
    write_seconds(text, ", \"start_s\": ", message->start_s);
    write_seconds(text, ", \"end_s\": ", message->end_s);
    mgw_text_printf(text, "}");
}

void mgw_plan_write(const mgw_plan *plan, mgw_text *text)
{
    mgw_text_printf(text, "{\n  \"format\": \"mgwfbp-plan-1\",\n  \"policy\": ");
    mgw_text_json_string(text, plan->policy);
    mgw_text_printf(text, ",\n  \"model\": ");
    mgw_text_json_string(text, plan->model);
    mgw_text_printf(text, ",\n  \"cluster\": ");
    mgw_text_json_string(text, plan->cluster);
    mgw_text_printf(text, ",\n  \"workers\": %u", plan->workers);
    if (plan->forward_s != MGW_TIME_UNKNOWN)
        write_seconds(text, ",\n  \"forward_s\": ", plan->forward_s);
    write_seconds(text, ",\n  \"compute_s\": ", plan->compute_s);
    write_seconds(text, ",\n  \"iteration_s\": ", plan->iteration_s);
    write_seconds(text, ",\n  \"exposed_s\": ", plan->exposed_s);
    write_seconds(text, ",\n  \"lower_bound_s\": ", plan->lower_bound_s);
    mgw_text_printf(text, ",\n  \"messages\": [\n");
    for (size_t m = 0; m < plan->operation_count; m++) {
        write_message(plan, &plan->operations[m], text);
        mgw_text_printf(text, m + 1 < plan->operation_count ? ",\n" : "\n");
    }
    mgw_text_printf(text, "  ]\n}\n");
}

typedef struct loading {
    mgw_plan *plan;
    size_t capacity;
} loading;

static mgw_status read_tensors(json_t *element, mgw_plan *plan, mgw_operation *message,
                               const mgw_json_place *place, mgw_error *error)
{
    json_t *tensors = NULL;
    mgw_status status = mgw_json_get_array(element, "tensors", place, &tensors, error);
    if (status)
        return status;
    message->first = mgw_names_count(plan->names);
    message->count = json_array_size(tensors);
    if (message->count == 0)
        return mgw_json_fail(place, "tensors", error, "must hold at least one name");
    for (size_t i = 0; !status && i < message->count; i++) {
        const char *name = json_string_value(json_array_get(tensors, i));
        status = name ? mgw_names_add(plan->names, name, error)
                      : mgw_json_fail(place, "tensors", error, "element %zu must be a string", i);
    }
    return status;
}

static mgw_status read_message(void *context, size_t index, json_t *element,
                               const mgw_json_place *place, mgw_error *error)
{
    loading *load = context;
    mgw_plan *plan = load->plan;
    if (index == load->capacity) {
        size_t capacity = load->capacity ? 2 * load->capacity : 64;
        mgw_operation *messages = realloc(plan->operations, capacity * sizeof *messages);
        if (!messages)
            return mgw_fail_memory(error, place->origin);
        plan->operations = messages;
        load->capacity = capacity;
    }
    mgw_operation *message = &plan->operations[index];
    double free_s = index ? plan->operations[index - 1].end_s : 0;
    *message = (mgw_operation){0};
    mgw_status status = mgw_json_check_object(element, place, error);
    if (!status)
        status = read_tensors(element, plan, message, place, error);
    if (!status)
        status = mgw_json_get_count(element, "bytes", place, &message->bytes, error);
    if (!status)
        status = mgw_json_get_number(element, "start_s", place, &message->start_s, error);
    if (!status)
        status = mgw_json_get_number(element, "end_s", place, &message->end_s, error);
    message->ready_s = message->start_s;
    if (!status && json_object_get(element, "ready_s"))
        status = mgw_json_get_number(element, "ready_s", place, &message->ready_s, error);
    if (!status && message->ready_s > message->start_s * (1 + 1e-9))
        status = mgw_json_fail(place, "ready_s", error, "must not be after start_s");
    if (!status && message->end_s < message->start_s)
        status = mgw_json_fail(place, "end_s", error, "must not be before start_s");
    if (!status && message->start_s < free_s * (1 - 1e-9))
        status = mgw_json_fail(place, "start_s", error,
                               "must not be before the end of the message before it");
    plan->operation_count = index + 1;
    return status;
}

static mgw_status read_header(const mgw_json_document *document, mgw_plan *plan, mgw_error *error)
{
    static const struct {
        const char *member;
        size_t offset;
    } times[] = {{"compute_s", offsetof(mgw_plan, compute_s)},
                 {"iteration_s", offsetof(mgw_plan, iteration_s)},
                 {"exposed_s", offsetof(mgw_plan, exposed_s)},
                 {"lower_bound_s", offsetof(mgw_plan, lower_bound_s)}};
    uint64_t workers = 0;
    mgw_status status = mgw_json_member_string(document, "policy", &plan->policy, error);
    if (!status)
        status = mgw_json_member_string(document, "model", &plan->model, error);
    if (!status)
        status = mgw_json_member_string(document, "cluster", &plan->cluster, error);
    if (!status)
        status = mgw_json_member_count(document, "workers", 2, INT_MAX, &workers, error);
    for (size_t i = 0; !status && i < sizeof times / sizeof *times; i++)
        status = mgw_json_member_number(document, times[i].member,
                                        (double *)((char *)plan + times[i].offset), error);
    plan->forward_s = MGW_TIME_UNKNOWN;
    if (!status && json_object_get(document->root, "forward_s"))
        status = mgw_json_member_number(document, "forward_s", &plan->forward_s, error);
    plan->workers = (unsigned)workers;
    return status;
}

/* What the file says twice must agree. */
static mgw_status check(const mgw_plan *plan, const char *origin, mgw_error *error)
{
    if (plan->operation_count == 0)
        return mgw_fail(error, MGW_ERR_INPUT, "%s: messages: must hold at least one message",
                        origin);
    double end_s = plan->operations[plan->operation_count - 1].end_s;
    if (fabs(end_s - plan->iteration_s) > 1e-9 * (end_s + plan->iteration_s))
        return mgw_fail(error, MGW_ERR_INPUT,
                        "%s: iteration_s: must be the end of the last message", origin);
    if (plan->iteration_s < plan->compute_s * (1 - 1e-9))
        return mgw_fail(error, MGW_ERR_INPUT, "%s: iteration_s: must not be below compute_s",
                        origin);
    if (fabs(plan->iteration_s - plan->compute_s - plan->exposed_s) > 1e-9 * plan->iteration_s)
        return mgw_fail(error, MGW_ERR_INPUT, "%s: exposed_s: must be iteration_s less compute_s",
                        origin);
    if (plan->forward_s > plan->compute_s)
        return mgw_fail(error, MGW_ERR_INPUT, "%s: forward_s: must not exceed compute_s", origin);
    uint64_t room = INT64_MAX;
    for (size_t m = 0; m < plan->operation_count; room -= plan->operations[m++].bytes)
        if (plan->operations[m].bytes > room)
            return mgw_fail(error, MGW_ERR_INPUT,
                            "%s: messages[%zu].bytes: the sum of all sizes exceeds 2^63", origin,
                            m);
    size_t first = 0;
    size_t second = 0;
    mgw_status status = mgw_names_distinct(plan->names, &first, &second, error);
    if (!status && first != second)
        status = mgw_fail(error, MGW_ERR_INPUT, "%s: messages: tensor '%.80s' is in it twice",
                          origin, mgw_names_get(plan->names, second));
    return status;
}

mgw_status mgw_plan_parse(const char *origin, const char *text, size_t size, mgw_plan **out,
                          mgw_error *error)
{
    mgw_plan *plan = calloc(1, sizeof *plan);
    if (!plan)
        return mgw_fail_memory(error, origin);
    loading load = {.plan = plan};
    mgw_json_document document = {0};
    mgw_status status = mgw_names_create(&plan->names, error);
    if (!status)
        status = mgw_json_read(origin, text, size, "mgwfbp-plan-1", "messages", read_message, &load,
                               &document, error);
    if (!status)
        status = read_header(&document, plan, error);
    if (!status)
        status = check(plan, origin, error);
    for (size_t m = 0; !status && !strcmp(plan->policy, "naive") && m < plan->operation_count; m++)
        plan->operations[m].release = MGW_AFTER_BACKWARD;
    mgw_json_document_fini(&document);
    if (status)
        mgw_plan_destroy(plan);
    else
        *out = plan;
    return status;
}

mgw_status mgw_plan_load(const char *path, mgw_plan **out, mgw_error *error)
{
    mgw_source source;
    mgw_status status = mgw_source_open(path, &source, error);
    if (!status)
        status = mgw_plan_parse(path, source.text, source.size, out, error);
    mgw_source_close(&source);
    return status;
}
