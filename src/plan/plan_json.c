/* Plan files: "mgwfbp-plan-2", and "mgwfbp-plan-1" for reading. */
#include <limits.h>
#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <mgwfbp/plan.h>

#include "base/dtype.h"
#include "base/json.h"
#include "base/names.h"
#include "data/source.h"
#include "plan/policy.h"

/* Predicted times have 12 significant digits; more would depend on the order of additions. */
static void write_seconds(mgw_text *text, const char *before, double seconds)
{
    mgw_text_printf(text, "%s%.12g", before, seconds);
}

static void write_operation(const mgw_plan *plan, const mgw_operation *operation, mgw_text *text)
{
    mgw_text_printf(text,
                    "    {\"kind\": \"%s\", \"release\": \"%s\",\n"
                    "     \"tensors\": [",
                    mgw_collective_name(operation->kind), mgw_release_name(operation->release));
    for (size_t i = 0; i < operation->count; i++) {
        mgw_text_append(text, ", ", i ? 2 : 0);
        mgw_text_json_string(text, mgw_names_get(plan->names, operation->first + i));
    }
    mgw_text_printf(text, "],\n     \"bytes\": %llu", (unsigned long long)operation->bytes);
    if (operation->wire != MGW_F32)
        mgw_text_printf(text, ", \"wire\": \"%s\"", mgw_dtype_name(operation->wire));
    if (operation->lanes)
        mgw_text_printf(text, ", \"lanes\": %u", operation->lanes);
    write_seconds(text, ", \"ready_s\": ", operation->ready_s);
    write_seconds(text, ", \"start_s\": ", operation->start_s);
    write_seconds(text, ", \"end_s\": ", operation->end_s);
    mgw_text_printf(text, "}");
}

static void write_stalls(const mgw_plan *plan, mgw_text *text)
{
    mgw_text_printf(text, ",\n  \"stalls\": [\n");
    for (size_t i = 0; i < plan->stall_count; i++) {
        const mgw_stall *stall = &plan->stalls[i];
        mgw_text_printf(text, "    {\"tensor\": ");
        mgw_text_json_string(text, mgw_names_get(plan->names, stall->tensor));
        write_seconds(text, ", \"start_s\": ", stall->start_s);
        write_seconds(text, ", \"end_s\": ", stall->end_s);
        mgw_text_printf(text, i + 1 < plan->stall_count ? "},\n" : "}\n");
    }
    mgw_text_printf(text, "  ]");
}

void mgw_plan_write(const mgw_plan *plan, mgw_text *text)
{
    mgw_text_printf(text, "{\n  \"format\": \"mgwfbp-plan-2\",\n  \"policy\": ");
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
    if (plan->overlaps_forward != mgw_plan_has_gathers(plan))
        mgw_text_printf(text, ",\n  \"overlaps_forward\": %s",
                        plan->overlaps_forward ? "true" : "false");
    if (plan->stall_count)
        write_stalls(plan, text);
    mgw_text_printf(text, ",\n  \"operations\": [\n");
    for (size_t m = 0; m < plan->operation_count; m++) {
        write_operation(plan, &plan->operations[m], text);
        mgw_text_printf(text, m + 1 < plan->operation_count ? ",\n" : "\n");
    }
    mgw_text_printf(text, "  ]\n}\n");
}

/* A version of the format: its name, and the name of its array. */
typedef struct version {
    const char *format;
    const char *array;
} version;

static const version messages = {"mgwfbp-plan-1", "messages"}; /* all are all-reduces */
static const version operations = {"mgwfbp-plan-2", "operations"};

typedef struct loading {
    mgw_plan *plan;
    size_t capacity;
    const version *version;
    size_t gathered; /* the first tensor of the previous gather: the next one is often adjacent */
} loading;

/* Tensors appear in ready order, in the operations that average them. */
static mgw_status add_tensors(json_t *tensors, mgw_plan *plan, mgw_operation *operation,
                              const mgw_json_place *place, mgw_error *error)
{
    mgw_status status = MGW_OK;
    operation->first = mgw_names_count(plan->names);
    for (size_t i = 0; !status && i < operation->count; i++) {
        const char *name = json_string_value(json_array_get(tensors, i));
        status = name ? mgw_names_add(plan->names, name, error)
                      : mgw_json_fail(place, "tensors", error, "element %zu must be a string", i);
    }
    return status;
}

static bool is_run(json_t *tensors, const mgw_plan *plan, size_t first)
{
    size_t count = json_array_size(tensors);
    for (size_t i = 0; i < count; i++) {
        const char *name = json_string_value(json_array_get(tensors, i));
        if (!name || strcmp(name, mgw_names_get(plan->names, first + i)) != 0)
            return false;
    }
    return true;
}

/* The tensors of gathers are neighbours among those; searched backwards, since gathers mostly go
 * that way. */
static mgw_status find_tensors(json_t *tensors, loading *load, mgw_operation *operation,
                               const mgw_json_place *place, mgw_error *error)
{
    size_t known = mgw_names_count(load->plan->names);
    size_t places = known < operation->count ? 0 : known - operation->count + 1;
    size_t at = load->gathered && load->gathered <= known ? load->gathered : known;
    at = at < operation->count ? 0 : at - operation->count;
    for (size_t tried = 0; tried < places; tried++) {
        if (is_run(tensors, load->plan, at)) {
            operation->first = load->gathered = at;
            return MGW_OK;
        }
        at = at ? at - 1 : places - 1;
    }
    return mgw_json_fail(place, "tensors", error,
                         "must be neighbours, in ready order, that earlier operations average");
}

static mgw_status read_tensors(json_t *element, loading *load, mgw_operation *operation,
                               const mgw_json_place *place, mgw_error *error)
{
    json_t *tensors = NULL;
    mgw_status status = mgw_json_get_array(element, "tensors", place, &tensors, error);
    if (status)
        return status;
    operation->count = json_array_size(tensors);
    if (operation->count == 0)
        return mgw_json_fail(place, "tensors", error, "must not be empty");
    return mgw_collective_averages(operation->kind)
               ? add_tensors(tensors, load->plan, operation, place, error)
               : find_tensors(tensors, load, operation, place, error);
}

static mgw_status read_kind(json_t *element, mgw_operation *operation, const mgw_json_place *place,
                            mgw_error *error)
{
    const char *kind = NULL;
    const char *release = NULL;
    mgw_error inner;
    mgw_status status = mgw_json_get_string(element, "kind", place, &kind, error);
    if (!status)
        status = mgw_json_get_string(element, "release", place, &release, error);
    if (!status && mgw_collective_parse(kind, &operation->kind, &inner))
        status = mgw_json_fail(place, "kind", error, "%s", inner.message);
    if (!status && mgw_release_parse(release, &operation->release, &inner))
        status = mgw_json_fail(place, "release", error, "%s", inner.message);
    if (!status && operation->release == MGW_AFTER_UPDATE &&
        mgw_collective_averages(operation->kind))
        status =
            mgw_json_fail(place, "release", error, "must not be \"after-update\" for %s", kind);
    return status;
}

/* If absent, tensors are sent unchanged. */
static mgw_status read_wire(json_t *element, mgw_operation *operation, const mgw_json_place *place,
                            mgw_error *error)
{
    const char *wire = NULL;
    if (!json_object_get(element, "wire"))
        return MGW_OK;
    mgw_status status = mgw_json_get_string(element, "wire", place, &wire, error);
    if (!status && !(mgw_dtype_parse(wire, &operation->wire) && mgw_wire_is_known(operation->wire)))
        status = mgw_json_fail(place, "wire", error,
                               "must be \"f32\", \"bf16\", \"f16\", \"fp8\" or \"fp8-e5m2\", not "
                               "\"%.40s\"",
                               wire);
    if (!status && operation->wire != MGW_F32 && !mgw_collective_averages(operation->kind))
        status = mgw_json_fail(place, "wire", error,
                               "is only allowed for operations that average, not for %s",
                               mgw_collective_name(operation->kind));
    return status;
}

/* If absent, there is no limit. */
static mgw_status read_lanes(json_t *element, mgw_operation *operation, const mgw_json_place *place,
                             mgw_error *error)
{
    uint64_t lanes = 0;
    if (!json_object_get(element, "lanes"))
        return MGW_OK;
    mgw_status status = mgw_json_get_count(element, "lanes", place, &lanes, error);
    if (!status && (lanes < 1 || lanes > MGW_LANES_MAX))
        status = mgw_json_fail(place, "lanes", error, "must be between 1 and %d", MGW_LANES_MAX);
    operation->lanes = (unsigned)lanes;
    return status;
}

static mgw_status read_times(json_t *element, double free_s, mgw_operation *operation,
                             const mgw_json_place *place, mgw_error *error)
{
    mgw_status status = mgw_json_get_count(element, "bytes", place, &operation->bytes, error);
    if (!status)
        status = mgw_json_get_number(element, "start_s", place, &operation->start_s, error);
    if (!status)
        status = mgw_json_get_number(element, "end_s", place, &operation->end_s, error);
    operation->ready_s = operation->start_s;
    if (!status && json_object_get(element, "ready_s"))
        status = mgw_json_get_number(element, "ready_s", place, &operation->ready_s, error);
    if (!status && operation->ready_s > operation->start_s * (1 + 1e-9))
        status = mgw_json_fail(place, "ready_s", error, "must not be after start_s");
    if (!status && operation->end_s < operation->start_s)
        status = mgw_json_fail(place, "end_s", error, "must not be before start_s");
    if (!status && operation->start_s < free_s * (1 - 1e-9))
        status = mgw_json_fail(place, "start_s", error,
                               "must not be before the end of the previous operation");
    return status;
}

static mgw_status read_operation(void *context, size_t index, json_t *element,
                                 const mgw_json_place *place, mgw_error *error)
{
    loading *load = context;
    mgw_plan *plan = load->plan;
    if (index == load->capacity) {
        size_t capacity = load->capacity ? 2 * load->capacity : 64;
        mgw_operation *grown = realloc(plan->operations, capacity * sizeof *grown);
        if (!grown)
            return mgw_fail_memory(error, place->origin);
        plan->operations = grown;
        load->capacity = capacity;
    }
    mgw_operation *operation = &plan->operations[index];
    double free_s = index ? plan->operations[index - 1].end_s : 0;
    *operation = (mgw_operation){.kind = MGW_ALL_REDUCE, .release = MGW_WHEN_READY};
    mgw_status status = mgw_json_check_object(element, place, error);
    if (!status && load->version == &operations)
        status = read_kind(element, operation, place, error);
    if (!status && load->version == &operations)
        status = read_wire(element, operation, place, error);
    if (!status && load->version == &operations)
        status = read_lanes(element, operation, place, error);
    if (!status)
        status = read_tensors(element, load, operation, place, error);
    if (!status)
        status = read_times(element, free_s, operation, place, error);
    plan->operation_count = index + 1;
    return status;
}

static mgw_status find_tensor(const mgw_plan *plan, const char *name, const mgw_json_place *place,
                              size_t *out, mgw_error *error)
{
    for (*out = 0; *out < mgw_names_count(plan->names); ++*out)
        if (!strcmp(mgw_names_get(plan->names, *out), name))
            return MGW_OK;
    return mgw_json_fail(place, "tensor", error, "'%.80s' is not a tensor of the plan", name);
}

/* Stalls are in order, and none begins before the pass. */
static mgw_status read_stall(json_t *element, mgw_plan *plan, const mgw_json_place *place,
                             mgw_error *error)
{
    mgw_stall *stall = &plan->stalls[plan->stall_count];
    double before_s = plan->stall_count ? stall[-1].end_s : plan->compute_s;
    const char *name = NULL;
    mgw_status status = mgw_json_check_object(element, place, error);
    if (!status)
        status = mgw_json_get_string(element, "tensor", place, &name, error);
    if (!status)
        status = mgw_json_get_number(element, "start_s", place, &stall->start_s, error);
    if (!status)
        status = mgw_json_get_number(element, "end_s", place, &stall->end_s, error);
    if (!status && stall->start_s < before_s * (1 - 1e-9))
        status = mgw_json_fail(place, "start_s", error, "must not be before %s",
                               plan->stall_count ? "the end of the previous stall" : "compute_s");
    if (!status && stall->end_s < stall->start_s)
        status = mgw_json_fail(place, "end_s", error, "must not be before start_s");
    if (!status)
        status = find_tensor(plan, name, place, &stall->tensor, error);
    return status;
}

static mgw_status read_overlap(const mgw_json_document *document, mgw_plan *plan, mgw_error *error)
{
    json_t *flag = json_object_get(document->root, "overlaps_forward");
    json_t *stalls = json_object_get(document->root, "stalls");
    mgw_json_place place = mgw_json_top(document, "overlaps_forward");
    if (flag && !json_is_boolean(flag))
        return mgw_json_fail(&place, "overlaps_forward", error, "must be true or false");
    plan->overlaps_forward = flag ? json_is_true(flag) : mgw_plan_has_gathers(plan);
    if (!stalls)
        return MGW_OK;
    place = mgw_json_top(document, "stalls");
    mgw_json_place inside = mgw_json_inside(document, "stalls");
    size_t count = json_array_size(stalls);
    if (!json_is_array(stalls) || (count && !plan->overlaps_forward))
        return mgw_json_fail(&place, "stalls", error,
                             "must be an array, and only in a plan that overlaps the forward pass");
    plan->stalls = malloc((count ? count : 1) * sizeof *plan->stalls);
    mgw_status status = plan->stalls ? MGW_OK : mgw_fail_memory(error, "plan");
    for (size_t i = 0; !status && i < count; i++) {
        place = mgw_json_index(&inside, i);
        status = read_stall(json_array_get(stalls, i), plan, &place, error);
        plan->stall_count += !status;
    }
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
        status = mgw_json_member_count(document, "workers", 1, INT_MAX, &workers, error);
    for (size_t i = 0; !status && i < sizeof times / sizeof *times; i++)
        status = mgw_json_member_number(document, times[i].member,
                                        (double *)((char *)plan + times[i].offset), error);
    plan->alone_s = plan->compute_s;
    plan->forward_s = MGW_TIME_UNKNOWN;
    if (!status && json_object_get(document->root, "forward_s"))
        status = mgw_json_member_number(document, "forward_s", &plan->forward_s, error);
    plan->workers = (unsigned)workers;
    if (!status)
        status = read_overlap(document, plan, error);
    return status;
}

/* Checks that redundant members agree. */
static mgw_status check(const mgw_plan *plan, const char *origin, const char *array,
                        mgw_error *error)
{
    if (plan->operation_count == 0)
        return mgw_fail(error, MGW_ERR_INPUT, "%s: %s: must not be empty", origin, array);
    double end_s = plan->operations[plan->operation_count - 1].end_s;
    double early_s = end_s - plan->iteration_s;
    double rounding_s = 1e-9 * (end_s + plan->iteration_s);
    if (early_s < -rounding_s || (early_s > rounding_s && !plan->overlaps_forward))
        return mgw_fail(error, MGW_ERR_INPUT,
                        "%s: iteration_s: must %s the end of the last operation", origin,
                        plan->overlaps_forward ? "not be after" : "be");
    if (plan->iteration_s < plan->compute_s * (1 - 1e-9))
        return mgw_fail(error, MGW_ERR_INPUT, "%s: iteration_s: must not be below compute_s",
                        origin);
    if (fabs(plan->iteration_s - plan->compute_s - plan->exposed_s) > 1e-9 * plan->iteration_s)
        return mgw_fail(error, MGW_ERR_INPUT, "%s: exposed_s: must be iteration_s minus compute_s",
                        origin);
    double waited_s = 0;
    for (size_t i = 0; i < plan->stall_count; i++)
        waited_s += plan->stalls[i].end_s - plan->stalls[i].start_s;
    if (plan->stall_count && fabs(waited_s - plan->exposed_s) > 1e-9 * plan->iteration_s)
        return mgw_fail(error, MGW_ERR_INPUT, "%s: stalls: must add up to exposed_s", origin);
    if (plan->forward_s > plan->compute_s)
        return mgw_fail(error, MGW_ERR_INPUT, "%s: forward_s: must not exceed compute_s", origin);
    uint64_t room = INT64_MAX;
    for (size_t m = 0; m < plan->operation_count; room -= plan->operations[m++].bytes)
        if (plan->operations[m].bytes > room)
            return mgw_fail(error, MGW_ERR_INPUT,
                            "%s: %s[%zu].bytes: the sum of all sizes exceeds 2^63", origin, array,
                            m);
    size_t first = 0;
    size_t second = 0;
    mgw_status status = mgw_names_distinct(plan->names, &first, &second, error);
    if (!status && first != second)
        status = mgw_fail(error, MGW_ERR_INPUT, "%s: %s: tensor '%.80s' is averaged twice", origin,
                          array, mgw_names_get(plan->names, second));
    return status;
}

static const version *find_version(const char *text, size_t size)
{
    char *format = mgw_json_format(text, size);
    bool old = format && !strcmp(format, messages.format);
    free(format);
    return old ? &messages : &operations;
}

/* In version 1, only the messages of `naive` wait for more than their gradients. */
static void complete_old(mgw_plan *plan)
{
    if (!strcmp(plan->policy, "naive"))
        for (size_t m = 0; m < plan->operation_count; m++)
            plan->operations[m].release = MGW_AFTER_BACKWARD;
}

mgw_status mgw_plan_parse(const char *origin, const char *text, size_t size, mgw_plan **out,
                          mgw_error *error)
{
    mgw_plan *plan = calloc(1, sizeof *plan);
    if (!plan)
        return mgw_fail_memory(error, origin);
    loading load = {.plan = plan, .version = find_version(text, size)};
    const char *array = load.version->array;
    mgw_json_document document = {0};
    mgw_status status = mgw_names_create(&plan->names, error);
    if (!status)
        status = mgw_json_read(origin, text, size, load.version->format, array, read_operation,
                               &load, &document, error);
    if (!status)
        status = read_header(&document, plan, error);
    if (!status)
        status = check(plan, origin, array, error);
    if (!status && load.version == &messages)
        complete_old(plan);
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
