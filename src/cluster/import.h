/* Helpers of the readers of foreign measurements. */
#ifndef MGW_CLUSTER_IMPORT_H
#define MGW_CLUSTER_IMPORT_H

#include <stdbool.h>

#include <mgwfbp/cluster.h>

typedef struct mgw_sample_list {
    size_t count;
    size_t capacity;
    mgw_sample *samples;
} mgw_sample_list;

/* Measurements that are being read. */
typedef struct mgw_measurements {
    const char *origin;
    unsigned workers;    /* 0: unknown */
    mgw_collective kind; /* of the current table */
    mgw_sample_list of[MGW_COLLECTIVE_COUNT];
} mgw_measurements;

/* Adds a sample; a time that is not positive and finite is an error at `line` (0: unknown). */
MGW_CHECKED mgw_status mgw_measurements_add(mgw_measurements *measured, size_t line, uint64_t bytes,
                                            double seconds, mgw_error *error);

/* Iterates over the lines of a text. */
typedef struct mgw_lines {
    const char *next;
    const char *end;
    size_t number; /* of the current line, from 1 */
    char *line;    /* zero-terminated copy without the newline */
    size_t capacity;
    bool failed; /* out of memory */
} mgw_lines;

/* Reads the next line into `lines->line`; false at the end, or if out of memory. */
bool mgw_lines_next(mgw_lines *lines);

/* Ends the iteration; returns the reader's status, or that memory ran out. */
MGW_CHECKED mgw_status mgw_lines_end(mgw_lines *lines, mgw_status status, mgw_error *error);

/* Parses a word that is a number, with a decimal point in every locale. */
bool mgw_word_number(const char *word, double *out);
bool mgw_word_count(const char *word, uint64_t *out);

mgw_status mgw_import_csv(const char *text, size_t size, mgw_measurements *out, mgw_error *error);
mgw_status mgw_import_osu(const char *text, size_t size, mgw_measurements *out, mgw_error *error);
mgw_status mgw_import_nccl_text(const char *text, size_t size, mgw_measurements *out,
                                mgw_error *error);
/* Whether it is not one of our cluster files: output of nccl-tests, of the OSU benchmarks, or CSV.
 */
bool mgw_is_foreign(const char *text, size_t size);

mgw_status mgw_import_nccl_json(const char *text, size_t size, mgw_measurements *out,
                                mgw_error *error);

#endif
