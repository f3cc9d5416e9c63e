/* A growing string, which all writers of the library (JSON, SVG, tables) append to. */
#ifndef MGWFBP_TEXT_H
#define MGWFBP_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <mgwfbp/status.h>

#pragma GCC visibility push(default)
MGW_BEGIN_DECLS

/*
 * `data` is null or ends in a zero byte that `size` does not count. If memory runs out, `failed` is
 * set and appending does nothing from then on. mgw_text_status and mgw_text_save report the
 * failure, so that writers need not check every call.
 *
 * Threads: one at a time. Ownership: the text owns `data` until mgw_text_fini.
 */
typedef struct mgw_text {
    char *data;
    size_t size;
    size_t capacity;
    bool failed;
} mgw_text;

void mgw_text_init(mgw_text *text);
void mgw_text_fini(mgw_text *text);

void mgw_text_append(mgw_text *text, const char *bytes, size_t size);

/* Like printf, but with a decimal point in every locale. */
void mgw_text_printf(mgw_text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Appends an untrusted name for a terminal: control characters become '?'. */
void mgw_text_plain(mgw_text *text, const char *string);

/* Appends a JSON string, quoted and escaped. Invalid UTF-8 becomes '?'. */
void mgw_text_json_string(mgw_text *text, const char *string);

/* Appends a JSON number with enough digits to read the same value back. */
void mgw_text_json_number(mgw_text *text, double value);

MGW_CHECKED mgw_status mgw_text_status(const mgw_text *text, mgw_error *error);

/*
 * Writes the text to a file atomically: to a temporary file beside it, which is renamed when
 * complete. Anything but a regular file (a pipe, /dev/stdout) is written directly.
 */
MGW_CHECKED mgw_status mgw_text_save(const mgw_text *text, const char *path, mgw_error *error);

/* Human-readable sizes and times: "97.5 MiB", "17.9 ms". */
#define MGW_UNITS_MAX 32
const char *mgw_format_bytes(uint64_t bytes, char out[MGW_UNITS_MAX]);
const char *mgw_format_seconds(double seconds, char out[MGW_UNITS_MAX]);

/* Reads "1048576", "1024K", "25MB", "2.5MiB", "2G": all units are powers of 1024, as in PyTorch's
 * bucket_cap_mb. */
MGW_CHECKED mgw_status mgw_parse_bytes(const char *string, uint64_t *bytes, mgw_error *error);

/* The same for options: a number below 1024 without a unit counts MiB, as in PyTorch's
 * bucket_cap_mb. */
MGW_CHECKED mgw_status mgw_parse_size(const char *string, uint64_t *bytes, mgw_error *error);

MGW_END_DECLS
#pragma GCC visibility pop

#endif
