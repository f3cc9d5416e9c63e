/* Strict JSON reading: the top-level members one by one, and typed access to fields. */
#include "base/json.h"

#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/locale.h"

/* This reads the punctuation of the top level (and of one long array in it); mgw_json_parse reads
 * every value. */
typedef struct reader {
    const char *origin;
    const char *text;
    size_t size;
    size_t at;
    size_t line;
    mgw_error *error;
} reader;

static mgw_status fail_syntax(const reader *r, const char *what)
{
    return mgw_fail(r->error, MGW_ERR_INPUT, "%s:%zu: %s", r->origin, r->line, what);
}

static void advance(reader *r, size_t to)
{
    for (; r->at < to; r->at++)
        r->line += r->text[r->at] == '\n';
}

static void skip_space(reader *r)
{
    while (r->at < r->size && strchr(" \t\r\n", r->text[r->at]) && r->text[r->at])
        advance(r, r->at + 1);
}

/* The next non-space character, or 0 at the end. */
static char peek(reader *r)
{
    skip_space(r);
    return r->at < r->size ? r->text[r->at] : '\0';
}

static bool take(reader *r, char wanted)
{
    if (peek(r) != wanted)
        return false;
    advance(r, r->at + 1);
    return true;
}

static mgw_status read_value(reader *r, json_t **out)
{
    skip_space(r);
    if (r->at == r->size)
        return fail_syntax(r, "the file ends in the middle of a JSON value");
    mgw_json_fault fault;
    size_t used = 0;
    mgw_status status = mgw_json_parse(r->text + r->at, r->size - r->at, &used, out, &fault);
    if (status)
        return mgw_fail(r->error, status, "%s:%zu: %s", r->origin, r->line + fault.line - 1,
                        fault.text);
    advance(r, r->at + used);
    return MGW_OK;
}

static mgw_status read_array(reader *r, const char *name, mgw_json_element *element, void *context)
{
    mgw_json_place place = {.origin = r->origin, .line = r->line};
    snprintf(place.path, sizeof place.path, "%s", name);
    if (!take(r, '['))
        return mgw_json_fail(&place, NULL, r->error, "must be an array");
    if (take(r, ']'))
        return MGW_OK;
    for (size_t index = 0;; index++) {
        skip_space(r);
        place = (mgw_json_place){.origin = r->origin, .line = r->line};
        snprintf(place.path, sizeof place.path, "%s[%zu]", name, index);
        json_t *value = NULL;
        mgw_status status = read_value(r, &value);
        if (!status)
            status = element(context, index, value, &place, r->error);
        json_decref(value);
        if (status)
            return status;
        if (take(r, ']'))
            return MGW_OK;
        if (!take(r, ','))
            return fail_syntax(r, "',' or ']' expected");
    }
}

static mgw_status check_format(const mgw_json_document *document, const char *wanted,
                               mgw_error *error)
{
    const char *found = NULL;
    mgw_json_place place = mgw_json_top(document, "format");
    mgw_status status = mgw_json_get_string(document->root, "format", &place, &found, error);
    if (!status && strcmp(found, wanted) != 0)
        status =
            mgw_json_fail(&place, "format", error, "must be \"%s\", not \"%.60s\"", wanted, found);
    return status;
}

/* How to handle one top-level member. */
typedef struct member_rules {
    const char *format;
    const char *array;
    mgw_json_element *element;
    void *context;
    bool seen_array;
    bool format_only;
} member_rules;

static mgw_status read_member(reader *r, member_rules *rules, mgw_json_document *document)
{
    json_t *key = NULL;
    if (peek(r) != '"')
        return fail_syntax(r, "a member name in quotes expected");
    size_t line = r->line;
    mgw_status status = read_value(r, &key);
    if (status)
        return status;
    const char *name = json_string_value(key);
    bool streamed = rules->array && !strcmp(name, rules->array);
    json_t *value = NULL;
    if (!take(r, ':'))
        status = fail_syntax(r, "':' expected");
    else if (json_object_get(document->root, name) || (streamed && rules->seen_array))
        status =
            mgw_fail(r->error, MGW_ERR_INPUT, "%s:%zu: %.60s: given twice", r->origin, line, name);
    else if (streamed)
        status = read_array(r, name, rules->element, rules->context);
    else
        status = read_value(r, &value);
    rules->seen_array |= streamed;
    if (!status && value &&
        (json_object_set(document->root, name, value) ||
         json_object_set_new(document->lines, name, json_integer((json_int_t)line))))
        status = mgw_fail_memory(r->error, r->origin);
    if (!status && value && rules->format && !strcmp(name, "format"))
        status = check_format(document, rules->format, r->error);
    json_decref(value);
    json_decref(key);
    return status;
}

static mgw_status read_document(reader *r, member_rules *rules, mgw_json_document *out)
{
    *out = (mgw_json_document){r->origin, json_object(), json_object()};
    if (!out->root || !out->lines)
        return mgw_fail_memory(r->error, r->origin);
    if (!take(r, '{'))
        return fail_syntax(r, r->size ? "not a JSON object ('{' expected)" : "the file is empty");
    if (!take(r, '}')) {
        do {
            mgw_status status = read_member(r, rules, out);
            if (status || (rules->format_only && json_object_get(out->root, "format")))
                return status;
        } while (take(r, ','));
        if (!take(r, '}'))
            return fail_syntax(r, peek(r) ? "',' or '}' expected" : "the file ends too early");
    }
    skip_space(r);
    if (r->at < r->size)
        return fail_syntax(r, "more text after the end of the JSON object");
    return MGW_OK;
}

mgw_status mgw_json_read(const char *origin, const char *text, size_t size, const char *format,
                         const char *array, mgw_json_element *element, void *context,
                         mgw_json_document *out, mgw_error *error)
{
    reader r = {.origin = origin, .text = text, .size = size, .line = 1, .error = error};
    member_rules rules = {.format = format, .array = array, .element = element, .context = context};
    mgw_status status = read_document(&r, &rules, out);
    if (!status && format)
        status = check_format(out, format, error);
    if (!status && array && !rules.seen_array)
        status = mgw_fail(error, MGW_ERR_INPUT, "%s: %s: missing", origin, array);
    return status;
}

void mgw_json_document_fini(mgw_json_document *document)
{
    json_decref(document->root);
    json_decref(document->lines);
    *document = (mgw_json_document){0};
}

static mgw_status ignore_element(void *context, size_t index, json_t *element,
                                 const mgw_json_place *place, mgw_error *error)
{
    (void)context, (void)index, (void)element, (void)place, (void)error;
    return MGW_OK;
}

static int append_dumped(const char *bytes, size_t size, void *text)
{
    mgw_text_append(text, bytes, size);
    return 0;
}

/* Not json_dumps, which drops data when it is out of memory. */
void mgw_json_dump(json_t *value, size_t flags, mgw_text *text)
{
    if (json_dump_callback(value, append_dumped, text, flags))
        text->failed = true;
}

char *mgw_json_format(const char *text, size_t size)
{
    mgw_json_document document;
    char *format = NULL;
    reader r = {.origin = "", .text = text, .size = size, .line = 1};
    member_rules rules = {.array = "tensors", .element = ignore_element, .format_only = true};
    /* A broken document still has a format if that was read before the error. */
    mgw_status status = read_document(&r, &rules, &document);
    (void)status;
    const char *found = json_string_value(json_object_get(document.root, "format"));
    if (found)
        format = strdup(found);
    mgw_json_document_fini(&document);
    return format;
}

mgw_json_place mgw_json_top(const mgw_json_document *document, const char *member)
{
    mgw_json_place place = {.origin = document->origin};
    place.line = (size_t)json_integer_value(json_object_get(document->lines, member));
    return place;
}

mgw_json_place mgw_json_inside(const mgw_json_document *document, const char *member)
{
    mgw_json_place place = mgw_json_top(document, member);
    snprintf(place.path, sizeof place.path, "%s", member);
    return place;
}

mgw_json_place mgw_json_index(const mgw_json_place *place, size_t index)
{
    mgw_json_place inner = {.origin = place->origin, .line = place->line};
    snprintf(inner.path, sizeof inner.path, "%.100s[%zu]", place->path, index);
    return inner;
}

void mgw_json_enter(mgw_json_place *place, const char *member)
{
    size_t length = strlen(place->path);
    snprintf(place->path + length, sizeof place->path - length, "%s%s", length ? "." : "", member);
}

void mgw_json_record(const mgw_json_place *place, const char *member, mgw_error *error,
                     const char *format, ...)
{
    char what[300];
    va_list arguments;
    va_start(arguments, format);
    locale_t before = uselocale(mgw_c_locale());
    vsnprintf(what, sizeof what, format, arguments);
    uselocale(before);
    va_end(arguments);
    char line[32] = "";
    if (place->line)
        snprintf(line, sizeof line, ":%zu", place->line);
    const char *dot = member && place->path[0] ? "." : "";
    mgw_error_record(error, MGW_ERR_INPUT, "%s%s: %s%s%s: %s", place->origin, line, place->path,
                     dot, member ? member : "", what);
}

static const char *type_name(const json_t *value)
{
    static const char *const names[] = {"an object", "an array", "a string", "a number",
                                        "a number",  "true",     "false",    "null"};
    return names[json_typeof(value)];
}

static mgw_status find(json_t *object, const char *member, const mgw_json_place *place,
                       const char *wanted, bool (*is_type)(const json_t *), json_t **out,
                       mgw_error *error)
{
    json_t *value = json_object_get(object, member);
    if (!value)
        return mgw_json_fail(place, member, error, "missing; it must be %s", wanted);
    if (!is_type(value))
        return mgw_json_fail(place, member, error, "must be %s, not %s", wanted,
                             json_is_real(value) ? "a fraction" : type_name(value));
    *out = value;
    return MGW_OK;
}

static bool is_number(const json_t *value)
{
    return json_is_number(value);
}

static bool is_integer(const json_t *value)
{
    return json_is_integer(value);
}

static bool is_string(const json_t *value)
{
    return json_is_string(value);
}

static bool is_array(const json_t *value)
{
    return json_is_array(value);
}

mgw_status mgw_json_get_number(json_t *object, const char *member, const mgw_json_place *place,
                               double *out, mgw_error *error)
{
    json_t *value = NULL;
    mgw_status status = find(object, member, place, "a number", is_number, &value, error);
    if (status)
        return status;
    double number = json_number_value(value);
    if (!isfinite(number) || number < 0)
        return mgw_json_fail(place, member, error, "must not be negative (%.9g)", number);
    *out = number + 0.0; /* "-0" is 0 */
    return MGW_OK;
}

mgw_status mgw_json_get_count(json_t *object, const char *member, const mgw_json_place *place,
                              uint64_t *out, mgw_error *error)
{
    json_t *value = NULL;
    mgw_status status = find(object, member, place, "a whole number", is_integer, &value, error);
    if (status)
        return status;
    json_int_t number = json_integer_value(value);
    if (number < 0)
        return mgw_json_fail(place, member, error, "must not be negative (%lld)",
                             (long long)number);
    *out = (uint64_t)number;
    return MGW_OK;
}

mgw_status mgw_json_get_string(json_t *object, const char *member, const mgw_json_place *place,
                               const char **out, mgw_error *error)
{
    json_t *value = NULL;
    mgw_status status = find(object, member, place, "a string", is_string, &value, error);
    if (!status)
        *out = json_string_value(value);
    return status;
}

mgw_status mgw_json_get_array(json_t *object, const char *member, const mgw_json_place *place,
                              json_t **out, mgw_error *error)
{
    return find(object, member, place, "an array", is_array, out, error);
}

mgw_status mgw_json_member_number(const mgw_json_document *document, const char *member,
                                  double *out, mgw_error *error)
{
    mgw_json_place place = mgw_json_top(document, member);
    return mgw_json_get_number(document->root, member, &place, out, error);
}

mgw_status mgw_json_member_count(const mgw_json_document *document, const char *member,
                                 uint64_t least, uint64_t most, uint64_t *out, mgw_error *error)
{
    uint64_t value = 0;
    mgw_json_place place = mgw_json_top(document, member);
    mgw_status status = mgw_json_get_count(document->root, member, &place, &value, error);
    if (!status && (value < least || value > most))
        status = mgw_json_fail(&place, member, error, "must be between %llu and %llu, not %llu",
                               (unsigned long long)least, (unsigned long long)most,
                               (unsigned long long)value);
    if (!status)
        *out = value;
    return status;
}

mgw_status mgw_json_member_string(const mgw_json_document *document, const char *member, char **out,
                                  mgw_error *error)
{
    const char *found = NULL;
    mgw_json_place place = mgw_json_top(document, member);
    mgw_status status = mgw_json_get_string(document->root, member, &place, &found, error);
    if (!status && !(*out = strdup(found)))
        status = mgw_fail_memory(error, document->origin);
    return status;
}

mgw_status mgw_json_check_object(json_t *value, const mgw_json_place *place, mgw_error *error)
{
    if (json_is_object(value))
        return MGW_OK;
    return mgw_json_fail(place, NULL, error, "must be an object, not %s", type_name(value));
}
