/* Reads CSV with bytes,seconds: an optional header, '#' comments, blank lines. */
#include <ctype.h>
#include <string.h>
#include <strings.h>

#include "base/status.h"
#include "cluster/import.h"

/* Removes spaces at both ends. */
static char *trim(char *word)
{
    while (isspace((unsigned char)*word))
        word++;
    for (size_t n = strlen(word); n > 0 && isspace((unsigned char)word[n - 1]); n--)
        word[n - 1] = '\0';
    return word;
}

static mgw_status read_row(char *line, size_t number, bool may_be_header,
                           mgw_measurements *measured, mgw_error *error)
{
    char *comma = strchr(line, ',');
    if (!comma)
        return mgw_fail(error, MGW_ERR_INPUT,
                        "%s:%zu: 'bytes,seconds' expected (neither JSON nor OSU nor nccl-tests "
                        "output was recognised)",
                        measured->origin, number);
    *comma = '\0';
    char *bytes_word = trim(line);
    char *seconds_word = trim(comma + 1);
    if (may_be_header && !strcasecmp(bytes_word, "bytes") && !strcasecmp(seconds_word, "seconds"))
        return MGW_OK;
    uint64_t bytes = 0;
    double seconds = 0;
    bool is_header =
        !mgw_word_count(bytes_word, &bytes) && !mgw_word_number(seconds_word, &seconds);
    if (may_be_header && is_header)
        return mgw_fail(error, MGW_ERR_INPUT,
                        "%s:%zu: header: must be 'bytes,seconds', not '%.40s,%.40s'",
                        measured->origin, number, bytes_word, seconds_word);
    if (!mgw_word_count(bytes_word, &bytes))
        return mgw_fail(error, MGW_ERR_INPUT, "%s:%zu: bytes: '%.40s' is not a whole number >= 0",
                        measured->origin, number, bytes_word);
    if (!mgw_word_number(seconds_word, &seconds))
        return mgw_fail(error, MGW_ERR_INPUT, "%s:%zu: seconds: '%.40s' is not a number",
                        measured->origin, number, seconds_word);
    return mgw_measurements_add(measured, number, bytes, seconds, error);
}

mgw_status mgw_import_csv(const char *text, size_t size, mgw_measurements *out, mgw_error *error)
{
    mgw_lines lines = {.next = text, .end = text + size};
    mgw_status status = MGW_OK;
    bool seen = false;
    while (!status && mgw_lines_next(&lines)) {
        if (!lines.line[0] || lines.line[0] == '#')
            continue;
        status = read_row(lines.line, lines.number, !seen, out, error);
        seen = true;
    }
    return mgw_lines_end(&lines, status, error);
}
