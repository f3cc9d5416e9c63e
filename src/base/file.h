/* Whole files: read at once, written atomically. */
#ifndef MGW_BASE_FILE_H
#define MGW_BASE_FILE_H

#include <stddef.h>

#include "base/status.h"

/* Reads a whole file or pipe. Ownership: the caller frees *data, which ends in a zero byte. */
MGW_CHECKED mgw_status mgw_file_read(const char *path, char **data, size_t *size, mgw_error *error);

/* Contract: see mgw_text_save. */
MGW_CHECKED mgw_status mgw_file_write(const char *path, const char *data, size_t size,
                                      mgw_error *error);

#endif
