/* Strict JSON reading: every error names the file, the line and the field. */
#ifndef MGW_BASE_JSON_H
#define MGW_BASE_JSON_H

#include <stddef.h>
#include <stdint.h>

#include <jansson.h>
#include <mgwfbp/text.h>

#include "base/status.h"

/* The position of a value, for error messages. */
typedef struct mgw_json_place {
    const char *origin; /* file or built-in name */
    size_t line;        /* 0: unknown */
    char path[160];     /* "samples[3]", or empty for the top level */
} mgw_json_place;

/* A document, without the elements of its one long array. */
typedef struct mgw_json_document {
    const char *origin;
    json_t *root;
    json_t *lines; /* line of each member of root */
} mgw_json_document;

/*
 * Called for each element of the long array, in order. An array of a million objects is never held
 * as JSON: each is parsed, passed on and freed.
 */
typedef mgw_status mgw_json_element(void *context, size_t index, json_t *element,
                                    const mgw_json_place *place, mgw_error *error);

/*
 * Reads an object whose "format" member must be `format`. The member `array` must be an array; its
 * elements are passed to `element` and not stored in the document (null: there is no such array).
 * Ownership: the caller ends *out with mgw_json_document_fini, also after a failure.
 */
MGW_CHECKED mgw_status mgw_json_read(const char *origin, const char *text, size_t size,
                                     const char *format, const char *array,
                                     mgw_json_element *element, void *context,
                                     mgw_json_document *out, mgw_error *error);
void mgw_json_document_fini(mgw_json_document *document);

/* An error in a text, with its line, counted from 1. */
typedef struct mgw_json_fault {
    size_t line;
    char text[120];
} mgw_json_fault;

/*
 * Reads one value; no object may have a member twice. *used is the number of bytes read; null: only
 * space may follow. MGW_ERR_INPUT or MGW_ERR_NO_MEMORY. Ownership: the caller releases *out, which
 * is null after a failure.
 */
MGW_CHECKED mgw_status mgw_json_parse(const char *text, size_t size, size_t *used, json_t **out,
                                      mgw_json_fault *fault);

/* Appends a value, with jansson's flags; failures are recorded in the text. */
void mgw_json_dump(json_t *value, size_t flags, mgw_text *text);

/* The value of "format" in a document, or null; the caller frees it. */
char *mgw_json_format(const char *text, size_t size);

/* Places: the document with the line of its member `member`; that member; and an element of it. */
mgw_json_place mgw_json_top(const mgw_json_document *document, const char *member);
mgw_json_place mgw_json_inside(const mgw_json_document *document, const char *member);
mgw_json_place mgw_json_index(const mgw_json_place *place, size_t index);

/* Changes the place to that of its member. */
void mgw_json_enter(mgw_json_place *place, const char *member);

void mgw_json_record(const mgw_json_place *place, const char *member, mgw_error *error,
                     const char *format, ...) __attribute__((format(printf, 4, 5)));

/* Records an error at a member (or null: at the place itself); evaluates to MGW_ERR_INPUT. */
#define mgw_json_fail(place, member, error, ...)                                                   \
    (mgw_json_record(place, member, error, __VA_ARGS__), MGW_ERR_INPUT)

/*
 * Required members of an object. Numbers are finite and not negative; counts are integers of at
 * most 2^63-1; strings belong to the object.
 */
MGW_CHECKED mgw_status mgw_json_get_number(json_t *object, const char *member,
                                           const mgw_json_place *place, double *out,
                                           mgw_error *error);
MGW_CHECKED mgw_status mgw_json_get_count(json_t *object, const char *member,
                                          const mgw_json_place *place, uint64_t *out,
                                          mgw_error *error);
MGW_CHECKED mgw_status mgw_json_get_string(json_t *object, const char *member,
                                           const mgw_json_place *place, const char **out,
                                           mgw_error *error);
MGW_CHECKED mgw_status mgw_json_get_array(json_t *object, const char *member,
                                          const mgw_json_place *place, json_t **out,
                                          mgw_error *error);

/* Required top-level members; the string is a copy that the caller frees. */
MGW_CHECKED mgw_status mgw_json_member_number(const mgw_json_document *document, const char *member,
                                              double *out, mgw_error *error);
MGW_CHECKED mgw_status mgw_json_member_count(const mgw_json_document *document, const char *member,
                                             uint64_t least, uint64_t most, uint64_t *out,
                                             mgw_error *error);
MGW_CHECKED mgw_status mgw_json_member_string(const mgw_json_document *document, const char *member,
                                              char **out, mgw_error *error);

MGW_CHECKED mgw_status mgw_json_check_object(json_t *value, const mgw_json_place *place,
                                             mgw_error *error);

#endif
