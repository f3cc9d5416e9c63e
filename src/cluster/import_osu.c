/* Reads OSU micro-benchmarks: the table of osu_allreduce, possibly between other output of a job.
 */
#include <ctype.h>
#include <string.h>

#include "base/status.h"
#include "cluster/import.h"

/* "4096   24.42 …": size and mean latency in microseconds; with -f, more columns follow. */
static mgw_status read_row(char *line, size_t number, mgw_measurements *measured, mgw_error *error)
{
    char *rest = NULL;
    char *size_word = strtok_r(line, " \t", &rest);
    char *latency_word = strtok_r(NULL, " \t", &rest);
    uint64_t bytes = 0;
    double microseconds = 0;
    if (!mgw_word_count(size_word, &bytes) || !latency_word ||
        !mgw_word_number(latency_word, &microseconds))
        return mgw_fail(error, MGW_ERR_INPUT,
                        "%s:%zu: a size and a latency in microseconds expected", measured->origin,
                        number);
    return mgw_measurements_add(measured, number, bytes, microseconds * 1e-6, error);
}

/* "# OSU MPI Allreduce Latency Test v7.3": MPI-CUDA, NCCL-CUDA and others if buffers are a GPU's.
 */
static bool is_title(const char *line)
{
    static const char test[] = " Allreduce Latency";
    const char *library = line + strlen("# OSU ");
    return !strncmp(library + strcspn(library, " "), test, strlen(test));
}

mgw_status mgw_import_osu(const char *text, size_t size, mgw_measurements *out, mgw_error *error)
{
    mgw_lines lines = {.next = text, .end = text + size};
    mgw_status status = MGW_OK;
    char other[64] = "";
    bool in_table = false;
    while (!status && mgw_lines_next(&lines)) {
        char *line = lines.line;
        while (isspace((unsigned char)*line))
            line++;
        if (!strncmp(line, "# OSU ", 6)) {
            in_table = is_title(line);
            if (!in_table)
                strncpy(other, line, sizeof other - 1);
        } else if (in_table && isdigit((unsigned char)*line)) {
            status = read_row(line, lines.number, out, error);
        }
    }
    status = mgw_lines_end(&lines, status, error);
    if (!status && out->of[MGW_ALL_REDUCE].count == 0 && other[0])
        status = mgw_fail(error, MGW_ERR_INPUT, "%s: '%s' is not the table of osu_allreduce",
                          out->origin, other);
    return status;
}
