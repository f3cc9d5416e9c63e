/* Reads the rows of a profile: Kineto's JSON object, or the array of a PyTorch without Kineto. */
#include "trace/profile_rows.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS_MAX = 5000000, LABEL_MAX = 60 };

static const char node_prefix[] = "autograd::engine::evaluate_function: ";
static const char gradient_name[] = "torch::autograd::AccumulateGrad";

static bool begins(const char *name, const char *with)
{
    return !strncmp(name, with, strlen(with));
}

/* ---- The `args` of rows ---- */

static int64_t number_of(json_t *args, const char *member)
{
    json_t *value = json_object_get(args, member);
    return json_is_integer(value) && json_integer_value(value) >= 0 ? json_integer_value(value)
                                                                    : -1;
}

/* The product of a shape; 0 if it is not a shape, or too large. */
static uint64_t product(json_t *shape)
{
    uint64_t count = json_is_array(shape) ? 1 : 0;
    for (size_t i = 0; count && i < json_array_size(shape); i++) {
        json_int_t length = json_integer_value(json_array_get(shape, i));
        if (length <= 0 || count > (uint64_t)INT64_MAX / 16 / (uint64_t)length)
            return 0;
        count *= (uint64_t)length;
    }
    return count;
}

static uint64_t first_count(json_t *args)
{
    json_t *shape = json_array_get(json_object_get(args, "Input Dims"), 0);
    if (json_is_array(json_array_get(shape, 0))) /* a list with one tensor */
        shape = json_array_size(shape) == 1 ? json_array_get(shape, 0) : NULL;
    return product(shape);
}

static int dtype_named(const char *name)
{
    static const struct {
        const char *name;
        mgw_dtype dtype;
    } names[] = {{"float", MGW_F32},         {"Float", MGW_F32},     {"c10::Half", MGW_F16},
                 {"Half", MGW_F16},          {"at::Half", MGW_F16},  {"c10::BFloat16", MGW_BF16},
                 {"at::BFloat16", MGW_BF16}, {"BFloat16", MGW_BF16}, {"double", MGW_F64},
                 {"Double", MGW_F64}};
    for (size_t i = 0; name && i < sizeof names / sizeof *names; i++)
        if (!strcmp(names[i].name, name))
            return (int)names[i].dtype;
    return -1;
}

static int first_dtype(json_t *args)
{
    return dtype_named(json_string_value(json_array_get(json_object_get(args, "Input type"), 0)));
}

/* ---- Classifying rows ---- */

/* Whether the row is relevant; fills in everything but the times. */
static bool classify_device(const char *category, const char *name, json_t *args, mgw_row *row)
{
    static const char *const works[] = {"kernel", "gpu_memcpy", "gpu_memset",
                                        "Kernel", "Memcpy",     "Memset"};
    static const char *const calls[] = {"cuda_runtime", "cuda_driver", "Runtime"};
    row->number = number_of(args, "correlation");
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
        if (!strcmp(category, calls[i])) {
            row->kind = MGW_ROW_LAUNCH;
            return row->number >= 0;
        }
    bool found = false;
    for (size_t i = 0; i < sizeof works / sizeof *works; i++)
        found = found || !strcmp(category, works[i]);
    row->kind = MGW_ROW_KERNEL;
    if (!found || !begins(name, "nccl"))
        return found && row->number >= 0;
    row->kind = strstr(name, "AllReduce") ? MGW_ROW_MESSAGE : MGW_ROW_SETUP;
    row->on_device = true;
    int64_t count = number_of(args, "In msg nelems");
    int64_t workers = number_of(args, "Group size");
    row->count = count > 0 && count < INT64_MAX / 16 ? (uint64_t)count : 0;
    row->workers = workers > 1 && workers < 1 << 30 ? (unsigned)workers : 0;
    row->dtype = dtype_named(json_string_value(json_object_get(args, "dtype")));
    return true;
}

static bool classify_node(const char *name, json_t *args, mgw_row *row)
{
    row->kind = MGW_ROW_NODE;
    row->number = number_of(args, "Sequence number");
    const char *function = name + strlen(node_prefix);
    if (!strcmp(function, gradient_name)) /* the row inside it counts */
        return false;
    row->label = strndup(function, LABEL_MAX);
    return true;
}

static bool classify_host(const char *name, json_t *args, mgw_row *row)
{
    row->number = -1;
    if (begins(name, node_prefix))
        return classify_node(name, args, row);
    row->count = first_count(args);
    row->dtype = first_dtype(args);
    if (begins(name, "ProfilerStep#"))
        row->kind = MGW_ROW_STEP;
    else if (begins(name, "Optimizer."))
        row->kind = MGW_ROW_OPTIMIZER;
    else if (!strcmp(name, gradient_name))
        row->kind = MGW_ROW_GRADIENT;
    else if (!strcmp(name, "gloo:all_reduce") || !strcmp(name, "mpi:all_reduce"))
        row->kind = MGW_ROW_MESSAGE;
    else if (!strcmp(name, "nccl:all_reduce"))
        row->kind = MGW_ROW_SENT;
    else if (begins(name, "gloo:") || begins(name, "c10d::broadcast"))
        row->kind = MGW_ROW_SETUP;
    else if (begins(name, "aten::") || number_of(args, "Sequence number") >= 0) {
        /* an embedding's first input is its parameter */
        size_t input = !strcmp(name, "aten::embedding");
        json_t *shape = json_array_get(json_object_get(args, "Input Dims"), input);
        json_int_t samples = json_integer_value(json_array_get(shape, 0));
        row->kind = MGW_ROW_OPERATION;
        row->number = number_of(args, "Sequence number");
        row->count = samples > 0 ? (uint64_t)samples : 0;
    } else
        return false;
    return true;
}

static bool classify(json_t *element, const char *name, mgw_row *row)
{
    const char *category = json_string_value(json_object_get(element, "cat"));
    json_t *args = json_object_get(element, "args");
    *row = (mgw_row){.number = -1, .dtype = -1};
    bool on_host = !category || !strcmp(category, "cpu_op") || !strcmp(category, "Operator") ||
                   !strcmp(category, "user_annotation");
    return on_host ? classify_host(name, args, row) : classify_device(category, name, args, row);
}

static mgw_status add_row(mgw_rows *rows, const mgw_row *row, const mgw_json_place *place,
                          mgw_error *error)
{
    if (rows->count == ROWS_MAX)
        return mgw_json_fail(place, NULL, error, "more than %d relevant rows: profile fewer steps",
                             ROWS_MAX);
    if (rows->count == rows->capacity) {
        size_t capacity = rows->capacity ? rows->capacity + rows->capacity / 2 : 256;
        mgw_row *list = realloc(rows->list, capacity * sizeof *list);
        if (!list)
            return mgw_fail_memory(error, place->origin);
        rows->list = list;
        rows->capacity = capacity;
    }
    rows->list[rows->count++] = *row;
    rows->numbered |= row->kind == MGW_ROW_OPERATION && row->number >= 0;
    return MGW_OK;
}

static mgw_status read_row(void *context, size_t index, json_t *element,
                           const mgw_json_place *place, mgw_error *error)
{
    (void)index;
    mgw_rows *rows = context;
    mgw_row row;
    mgw_status status = mgw_json_check_object(element, place, error);
    const char *phase = json_string_value(json_object_get(element, "ph"));
    const char *name = json_string_value(json_object_get(element, "name"));
    if (status || !phase || strcmp(phase, "X") != 0 || !name || !classify(element, name, &row))
        return status;
    if (row.kind == MGW_ROW_NODE && !row.label)
        return mgw_fail_memory(error, place->origin);
    row.start_us = json_number_value(json_object_get(element, "ts"));
    row.end_us = row.start_us + json_number_value(json_object_get(element, "dur"));
    if (!json_is_number(json_object_get(element, "ts")) || !isfinite(row.end_us) ||
        fabs(row.end_us) > 1e18 || row.end_us < row.start_us) {
        rows->broken++;
        free(row.label);
        return MGW_OK;
    }
    status = add_row(rows, &row, place, error);
    if (status)
        free(row.label);
    return status;
}

/* ---- Reading all rows ---- */

static mgw_status read_header(const char *origin, json_t *root, mgw_rows *rows, mgw_error *error)
{
    json_t *device = json_array_get(json_object_get(root, "deviceProperties"), 0);
    const char *name = json_string_value(json_object_get(device, "name"));
    rows->device = name ? strdup(name) : NULL;
    int64_t workers = number_of(json_object_get(root, "distributedInfo"), "world_size");
    rows->workers = workers > 1 && workers < 1 << 30 ? (unsigned)workers : 0;
    return name && !rows->device ? mgw_fail_memory(error, origin) : MGW_OK;
}

/* By start; an enclosing row comes first. */
static int compare(const void *left, const void *right)
{
    const mgw_row *a = left;
    const mgw_row *b = right;
    if (a->start_us != b->start_us)
        return a->start_us < b->start_us ? -1 : 1;
    if (a->end_us != b->end_us)
        return a->end_us > b->end_us ? -1 : 1;
    return (a->kind > b->kind) - (a->kind < b->kind);
}

mgw_status mgw_rows_read(const char *origin, const char *text, size_t size, mgw_rows *out,
                         mgw_error *error)
{
    *out = (mgw_rows){0};
    if (size >= 2 && !memcmp(text, "\x1f\x8b", 2))
        return mgw_fail(error, MGW_ERR_INPUT, "%s: is compressed: unpack it with gunzip first",
                        origin);
    size_t first = 0;
    while (first < size && text[first] && strchr(" \t\r\n", text[first]))
        first++;
    mgw_text whole;
    mgw_text_init(&whole);
    mgw_json_document document = {0};
    mgw_status status = MGW_OK;
    if (first < size && text[first] == '[') { /* written by a PyTorch without Kineto */
        mgw_text_printf(&whole, "{\"traceEvents\": ");
        mgw_text_append(&whole, text, size);
        mgw_text_printf(&whole, "}");
        status = mgw_text_status(&whole, error);
        text = whole.data;
        size = whole.size;
    }
    if (!status)
        status =
            mgw_json_read(origin, text, size, NULL, "traceEvents", read_row, out, &document, error);
    if (!status)
        status = read_header(origin, document.root, out, error);
    if (!status && out->count)
        qsort(out->list, out->count, sizeof *out->list, compare);
    mgw_json_document_fini(&document);
    mgw_text_fini(&whole);
    return status;
}

void mgw_rows_fini(mgw_rows *rows)
{
    for (size_t i = 0; i < rows->count; i++)
        free(rows->list[i].label);
    free(rows->list);
    free(rows->device);
    *rows = (mgw_rows){0};
}
