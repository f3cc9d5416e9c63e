/* What the readers of foreign measurements share. */
#ifndef MGW_CLUSTER_IMPORT_H
#define MGW_CLUSTER_IMPORT_H

#include <stdbool.h>

#include <mgwfbp/cluster.h>

typedef struct mgw_sample_list {
    size_t count;
    size_t capacity;
    mgw_sample *samples;
} mgw_sample_list;

/* Measurements while they are read. */
typedef struct mgw_measurements {
    const char *origin;
    unsigned workers;    /* 0: not said */
    mgw_collective kind; /* of what is read now */
    mgw_sample_list of[MGW_COLLECTIVE_COUNT];
} mgw_measurements;

/* Adds a sample; a time that is not positive and finite is an error at `line` (0: not known). */
MGW_CHECKED mgw_status mgw_measurements_add(mgw_measurements *measured, size_t line, uint64_t bytes,
                                            double seconds, mgw_error *error);

/* A walk through the lines of a text. */
typedef struct mgw_lines {
    const char *next;
    const char *end;
    size_t number; /* of the current line, from 1 */
    char *line;    /* zero-ended copy without the line end */
    size_t capacity;
    bool failed; /* memory ran out */
} mgw_lines;

/* The next line into `lines->line`; false at the end, or when memory ran out. */
bool mgw_lines_next(mgw_lines *lines);

/* Ends the walk; the status is the reader's, or that memory ran out. */
MGW_CHECKED mgw_status mgw_lines_end(mgw_lines *lines, mgw_status status, mgw_error *error);

/* Reads a number that fills the whole word, always with a decimal point. */
bool mgw_word_number(const char *word, double *out);
bool mgw_word_count(const char *word, uint64_t *out);

mgw_status mgw_import_csv(const char *text, size_t size, mgw_measurements *out, mgw_error *error);
mgw_status mgw_import_osu(const char *text, size_t size, mgw_measurements *out, mgw_error *error);
mgw_status mgw_import_nccl_text(const char *text, size_t size, mgw_measurements *out,
                                mgw_error *error);
/* Whether it is not a cluster file of ours: measurements of nccl-tests, the OSU benchmarks, CSV. */
bool mgw_is_foreign(const char *text, size_t size);

mgw_status mgw_import_nccl_json(const char *text, size_t size, mgw_measurements *out,
                                mgw_error *error);

#endif
