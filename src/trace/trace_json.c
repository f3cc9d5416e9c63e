/* Trace files: "mgwfbp-trace-1". */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/dtype.h"
#include "base/json.h"
#include "base/names.h"
#include "data/source.h"
#include "trace/trace.h"

/* Unknown members of the file and of tensors, which are kept for writing. */
struct mgw_trace_extra {
    json_t *file;
    json_t *tensors; /* index as a decimal string -> object */
};

void mgw_trace_extra_destroy(struct mgw_trace_extra *extra)
{
    if (!extra)
        return;
    json_decref(extra->file);
    json_decref(extra->tensors);
    free(extra);
}

typedef struct loading {
    mgw_trace *trace;
    size_t capacity;
} loading;

static mgw_status keep_unknown(mgw_trace *trace, size_t index, json_t *element, mgw_error *error)
{
    static const char *const known[] = {"name", "count", "backward_s", "forward_start_s"};
    size_t left = json_object_size(element);
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        left -= json_object_get(element, known[i]) != NULL;
    if (left == 0)
        return MGW_OK;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        json_object_del(element, known[i]);
    char key[24];
    snprintf(key, sizeof key, "%zu", index);
    if (json_object_set(trace->extra->tensors, key, element))
        return mgw_fail_memory(error, "trace");
    return MGW_OK;
}

static mgw_status read_tensor(void *context, size_t index, json_t *element,
                              const mgw_json_place *place, mgw_error *error)
{
    loading *load = context;
    mgw_trace *trace = load->trace;
    if (index == load->capacity) {
        size_t capacity = load->capacity ? load->capacity + load->capacity / 2 : 64;
        mgw_tensor *tensors = realloc(trace->tensors, capacity * sizeof *tensors);
        if (!tensors)
            return mgw_fail_memory(error, place->origin);
        trace->tensors = tensors;
        load->capacity = capacity;
    }
    mgw_tensor *tensor = &trace->tensors[index];
    *tensor = (mgw_tensor){.forward_start_s = MGW_TIME_UNKNOWN};
    const char *name = NULL;
    mgw_status status = mgw_json_check_object(element, place, error);
    if (!status)
        status = mgw_json_get_string(element, "name", place, &name, error);
    if (!status)
        status = mgw_json_get_count(element, "count", place, &tensor->count, error);
    if (!status)
        status = mgw_json_get_number(element, "backward_s", place, &tensor->backward_s, error);
    json_t *needed = json_object_get(element, "forward_start_s");
    if (json_is_null(needed))
        tensor->forward_start_s = MGW_NEVER_NEEDED;
    else if (!status && needed)
        status =
            mgw_json_get_number(element, "forward_start_s", place, &tensor->forward_start_s, error);
    if (!status)
        status = mgw_names_add(trace->names, name, error);
    trace->tensor_count = index + 1;
    return status ? status : keep_unknown(trace, index, element, error);
}

static mgw_status read_dtype(const mgw_json_document *document, const char *member, mgw_dtype *out,
                             mgw_error *error)
{
    char *dtype = NULL;
    mgw_status status = mgw_json_member_string(document, member, &dtype, error);
    mgw_json_place place = mgw_json_top(document, member);
    if (!status && !(mgw_dtype_parse(dtype, out) && *out <= MGW_F64))
        status =
            mgw_json_fail(&place, member, error,
                          "must be \"f32\", \"f16\", \"bf16\" or \"f64\", not \"%.40s\"", dtype);
    free(dtype);
    return status;
}

/* The optional "steps_s": times of single steps. */
static mgw_status read_steps(const mgw_json_document *document, mgw_trace *trace, mgw_error *error)
{
    json_t *list = json_object_get(document->root, "steps_s");
    mgw_json_place place = mgw_json_top(document, "steps_s");
    if (!list)
        return MGW_OK;
    if (!json_is_array(list))
        return mgw_json_fail(&place, "steps_s", error, "must be an array of seconds");
    size_t count = json_array_size(list);
    double *steps_s = malloc(count ? count * sizeof *steps_s : 1);
    if (!steps_s)
        return mgw_fail_memory(error, document->origin);
    mgw_status status = MGW_OK;
    for (size_t i = 0; !status && i < count; i++) {
        steps_s[i] = json_number_value(json_array_get(list, i));
        if (!json_is_number(json_array_get(list, i)) || !isfinite(steps_s[i]) || steps_s[i] < 0)
            status = mgw_json_fail(&place, "steps_s", error,
                                   "[%zu] must be a number that is finite and not negative", i);
    }
    if (!status)
        status = mgw_trace_set_steps(trace, steps_s, count, error);
    free(steps_s);
    return status;
}

static mgw_status read_header(const mgw_json_document *document, mgw_trace *trace, mgw_error *error)
{
    mgw_status status = mgw_json_member_string(document, "model", &trace->model, error);
    if (!status)
        status = mgw_json_member_string(document, "device", &trace->device, error);
    if (!status)
        status = mgw_json_member_string(document, "precision", &trace->precision, error);
    if (!status)
        status = mgw_json_member_count(document, "batch", 1, INT64_MAX, &trace->batch, error);
    if (!status)
        status = mgw_json_member_number(document, "forward_s", &trace->forward_s, error);
    if (!status)
        status = read_dtype(document, "gradient_dtype", &trace->gradient_dtype, error);
    trace->parameter_dtype = trace->gradient_dtype;
    if (!status && json_object_get(document->root, "parameter_dtype"))
        status = read_dtype(document, "parameter_dtype", &trace->parameter_dtype, error);
    return status ? status : read_steps(document, trace, error);
}

/* Keeps the document without the known members. */
static void keep_header(const mgw_json_document *document, mgw_trace *trace)
{
    static const char *const known[] = {"format",          "model",     "device",
                                        "batch",           "precision", "gradient_dtype",
                                        "parameter_dtype", "forward_s", "steps_s"};
    trace->extra->file = json_incref(document->root);
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        json_object_del(trace->extra->file, known[i]);
}

mgw_status mgw_trace_parse(const char *origin, const char *text, size_t size, mgw_trace **out,
                           mgw_error *error)
{
    mgw_trace *trace = calloc(1, sizeof *trace);
    if (!trace || !(trace->extra = calloc(1, sizeof *trace->extra)) ||
        !(trace->extra->tensors = json_object())) {
        mgw_trace_destroy(trace);
        return mgw_fail_memory(error, origin);
    }
    loading load = {.trace = trace};
    mgw_json_document document = {0};
    mgw_status status = mgw_names_create(&trace->names, error);
    if (!status)
        status = mgw_json_read(origin, text, size, "mgwfbp-trace-1", "tensors", read_tensor, &load,
                               &document, error);
    if (!status)
        status = read_header(&document, trace, error);
    if (!status)
        status = mgw_trace_check(trace, origin, error);
    if (!status)
        keep_header(&document, trace);
    mgw_json_document_fini(&document);
    if (status)
        mgw_trace_destroy(trace);
    else
        *out = trace;
    return status;
}

mgw_status mgw_trace_load(const char *path_or_name, mgw_trace **out, mgw_error *error)
{
    mgw_source source;
    mgw_status status = mgw_source_open(path_or_name, &source, error);
    if (!status)
        status = mgw_trace_parse(path_or_name, source.text, source.size, out, error);
    mgw_source_close(&source);
    return status;
}

static void write_member(mgw_text *text, const char *name, const char *value)
{
    mgw_text_printf(text, "  \"%s\": ", name);
    mgw_text_json_string(text, value);
    mgw_text_append(text, ",\n", 2);
}

/* With 15 digits, which are more readable, if that gives the same value; otherwise with all digits.
 */
static void write_exactly(json_t *value, mgw_text *text)
{
    json_t *again = NULL;
    mgw_json_fault fault;
    size_t begin = text->size;
    mgw_json_dump(value, JSON_ENCODE_ANY | JSON_REAL_PRECISION(15), text);
    if (text->failed)
        return;
    mgw_status status =
        mgw_json_parse(text->data + begin, text->size - begin, NULL, &again, &fault);
    text->failed = status == MGW_ERR_NO_MEMORY;
    if (!text->failed && !json_equal(value, again)) {
        text->size = begin;
        mgw_json_dump(value, JSON_ENCODE_ANY | JSON_REAL_PRECISION(17), text);
    }
    json_decref(again);
}

/* Writes the members of `kept`, each between `before` and `after`. */
static void write_kept(mgw_text *text, json_t *kept, const char *before, const char *after)
{
    const char *key = NULL;
    json_t *value = NULL;
    json_object_foreach(kept, key, value)
    {
        mgw_text_append(text, before, strlen(before));
        mgw_text_json_string(text, key);
        mgw_text_append(text, ": ", 2);
        write_exactly(value, text);
        mgw_text_append(text, after, strlen(after));
    }
}

static void write_tensor(const mgw_trace *trace, size_t index, mgw_text *text)
{
    const mgw_tensor *tensor = &trace->tensors[index];
    mgw_text_append(text, "    {\"name\": ", 13);
    mgw_text_json_string(text, mgw_names_get(trace->names, index));
    mgw_text_printf(text, ", \"count\": %llu, \"backward_s\": ", (unsigned long long)tensor->count);
    mgw_text_json_number(text, tensor->backward_s);
    if (tensor->forward_start_s == MGW_NEVER_NEEDED) {
        mgw_text_printf(text, ", \"forward_start_s\": null");
    } else if (tensor->forward_start_s != MGW_TIME_UNKNOWN) {
        mgw_text_printf(text, ", \"forward_start_s\": ");
        mgw_text_json_number(text, tensor->forward_start_s);
    }
    if (trace->extra && json_object_size(trace->extra->tensors)) {
        char key[24];
        snprintf(key, sizeof key, "%zu", index);
        write_kept(text, json_object_get(trace->extra->tensors, key), ", ", "");
    }
    mgw_text_append(text, "}", 1);
}

static void write_steps(const mgw_trace *trace, mgw_text *text)
{
    mgw_text_printf(text, "  \"steps_s\": [");
    for (size_t i = 0; i < trace->step_count; i++) {
        mgw_text_printf(text, i ? ", " : "");
        mgw_text_json_number(text, trace->steps_s[i]);
    }
    mgw_text_printf(text, "],\n");
}

void mgw_trace_write(const mgw_trace *trace, mgw_text *text)
{
    mgw_text_printf(text, "{\n");
    write_member(text, "format", "mgwfbp-trace-1");
    write_member(text, "model", trace->model);
    write_member(text, "device", trace->device);
    mgw_text_printf(text, "  \"batch\": %llu,\n", (unsigned long long)trace->batch);
    write_member(text, "precision", trace->precision);
    write_member(text, "gradient_dtype", mgw_dtype_name(trace->gradient_dtype));
    if (trace->parameter_dtype != trace->gradient_dtype)
        write_member(text, "parameter_dtype", mgw_dtype_name(trace->parameter_dtype));
    mgw_text_printf(text, "  \"forward_s\": ");
    mgw_text_json_number(text, trace->forward_s);
    mgw_text_printf(text, ",\n");
    if (trace->step_count)
        write_steps(trace, text);
    if (trace->extra)
        write_kept(text, trace->extra->file, "  ", ",\n");
    mgw_text_printf(text, "  \"tensors\": [\n");
    for (size_t i = 0; i < trace->tensor_count; i++) {
        write_tensor(trace, i, text);
        mgw_text_printf(text, i + 1 < trace->tensor_count ? ",\n" : "\n");
    }
    mgw_text_printf(text, "  ]\n}\n");
}
