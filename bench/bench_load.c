/* How fast a trace is loaded as it grows, and how much memory that takes, beside the limit: jansson
 * parsing the same text, and that into a tree. */
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <jansson.h>

#include "bench.h"

enum { ROUNDS = 5 };

typedef struct result {
    double seconds;
    double peak_bytes; /* of the process, above what it had before */
} result;

static double peak_bytes(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)usage.ru_maxrss * 1024;
}

static void load_trace(const char *path)
{
    mgw_trace *trace = NULL;
    mgw_error error;
    bench_must(mgw_trace_load(path, &trace, &error), &error);
    mgw_trace_destroy(trace);
}

static void load_tree(const char *path)
{
    json_error_t error;
    json_t *tree = json_load_file(path, 0, &error);
    if (!tree)
        exit(1);
    json_decref(tree);
}

/* In a process of its own, so that its peak of memory is its own. */
static result in_child(void (*load)(const char *path), const char *path)
{
    int ends[2];
    result measured = {0};
    if (pipe(ends))
        exit(1);
    pid_t child = fork();
    if (child == 0) {
        double before = peak_bytes();
        double start = bench_now_s();
        load(path);
        measured.seconds = bench_now_s() - start;
        measured.peak_bytes = peak_bytes() - before;
        _exit(write(ends[1], &measured, sizeof measured) != sizeof measured);
    }
    close(ends[1]);
    if (child < 0 || read(ends[0], &measured, sizeof measured) != sizeof measured)
        exit(1);
    close(ends[0]);
    waitpid(child, NULL, 0);
    return measured;
}

static double write_trace(size_t count, const char *path)
{
    mgw_trace *trace = bench_trace(count);
    mgw_text text;
    mgw_error error;
    mgw_text_init(&text);
    mgw_trace_write(trace, &text);
    bench_must(mgw_text_save(&text, path, &error), &error);
    double size = (double)text.size;
    mgw_text_fini(&text);
    mgw_trace_destroy(trace);
    return size;
}

int main(void)
{
    static const size_t counts[] = {1000, 10000, 100000, 1000000};
    mgw_table *table = mgw_table_create("tensors|file|load|spread|MB/s|memory / file|jansson tree|"
                                        "MB/s|memory / file|load / tree");
    char path[] = "/tmp/mgwfbp-bench.XXXXXX";
    int fd = mkstemp(path);
    if (fd < 0)
        return 1;
    close(fd);
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        /* A child writes it, so that this process stays small. */
        pid_t child = fork();
        if (child == 0)
            _exit(write_trace(counts[i], path) <= 0);
        waitpid(child, NULL, 0);
        FILE *file = fopen(path, "r");
        fseek(file, 0, SEEK_END);
        double size = (double)ftell(file);
        fclose(file);
        bench_times load = {0};
        bench_times tree = {0};
        result load_last = {0};
        result tree_last = {0};
        for (int round = 0; round < ROUNDS; round++) {
            load_last = in_child(load_trace, path);
            tree_last = in_child(load_tree, path);
            load.values[load.count++] = load_last.seconds;
            tree.values[tree.count++] = tree_last.seconds;
        }
        char units[MGW_UNITS_MAX];
        double load_s = bench_median(&load);
        double tree_s = bench_median(&tree);
        mgw_table_cell(table, "%zu", counts[i]);
        mgw_table_cell(table, "%s", mgw_format_bytes((uint64_t)size, units));
        mgw_table_cell(table, "%s", mgw_format_seconds(load_s, units));
        mgw_table_cell(table, "%.0f%%", 100 * bench_spread(&load));
        mgw_table_cell(table, "%.0f", size / load_s / 1e6);
        mgw_table_cell(table, "%.1f", load_last.peak_bytes / size);
        mgw_table_cell(table, "%s", mgw_format_seconds(tree_s, units));
        mgw_table_cell(table, "%.0f", size / tree_s / 1e6);
        mgw_table_cell(table, "%.1f", tree_last.peak_bytes / size);
        mgw_table_cell(table, "%.2f", load_s / tree_s);
    }
    unlink(path);
    mgw_text text;
    mgw_text_init(&text);
    mgw_table_write(table, &text);
    fputs(text.data, stdout);
    mgw_text_fini(&text);
    mgw_table_destroy(table);
    return 0;
}
