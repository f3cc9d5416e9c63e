/* A growing piece of text: what every writer of the library (JSON, SVG, tables) writes into. */
#ifndef MGWFBP_TEXT_H
#define MGWFBP_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <mgwfbp/status.h>

#pragma GCC visibility push(default)
MGW_BEGIN_DECLS

/*
 * `data` is null or ends in a zero byte that `size` does not count. Running out of memory sets
 * `failed`, after which appending does nothing; mgw_text_status and mgw_text_save report it, so
 * that writers need not check every line.
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

/* Like printf, always with a decimal point, whatever the locale. */
void mgw_text_printf(mgw_text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* A name from outside, for a terminal: control characters become '?'. */
void mgw_text_plain(mgw_text *text, const char *string);

/* A JSON string, quoted and escaped. Bytes that are not UTF-8 become '?'. */
void mgw_text_json_string(mgw_text *text, const char *string);

/* A JSON number with as many digits as it takes to read the same value back. */
void mgw_text_json_number(mgw_text *text, double value);

MGW_CHECKED mgw_status mgw_text_status(const mgw_text *text, mgw_error *error);

/*
 * Writes the text to a file, all or nothing: under a temporary name beside it first, renamed when
 * complete. What is not a regular file (a pipe, /dev/stdout) is written directly.
 */
MGW_CHECKED mgw_status mgw_text_save(const mgw_text *text, const char *path, mgw_error *error);

/* Sizes and times for people: "97.5 MiB", "17.9 ms". */
#define MGW_UNITS_MAX 32
const char *mgw_format_bytes(uint64_t bytes, char out[MGW_UNITS_MAX]);
const char *mgw_format_seconds(double seconds, char out[MGW_UNITS_MAX]);

/* Reads "1048576", "1024K", "25MB", "2.5MiB", "2G": all units are powers of 1024, as in PyTorch's
 * bucket_cap_mb. */
MGW_CHECKED mgw_status mgw_parse_bytes(const char *string, uint64_t *bytes, mgw_error *error);

/* The same for what people write: a number alone that is below 1024 counts MiB, as PyTorch's
 * bucket_cap_mb; nobody means so few bytes. */
MGW_CHECKED mgw_status mgw_parse_size(const char *string, uint64_t *bytes, mgw_error *error);

MGW_END_DECLS
#pragma GCC visibility pop

#endif
