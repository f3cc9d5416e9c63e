/* All-reduce through shared memory as messages grow, beside the limit: copying as many bytes as it
 * must move. Processes are forked here, so no launcher is needed. */
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench.h"

enum { SIZES = 9, ROUNDS = 15 };

static size_t size_at(int index)
{
    return (size_t)1024 << 2 * index; /* 1 KiB … 64 MiB */
}

typedef struct shared_times {
    double seconds[SIZES][ROUNDS];
    double copy_s[SIZES];
} shared_times;

static size_t repeats_of(size_t bytes)
{
    return bytes <= 65536 ? 200 : bytes <= (4 << 20) ? 10 : 1;
}

/* The least that a rank must do: read its share of all ranks' elements, write it to all. */
static double time_copies(size_t bytes, char *from, char *to)
{
    size_t repeats = repeats_of(bytes);
    memcpy(to, from, bytes);
    double start = bench_now_s();
    for (size_t i = 0; i < repeats; i++) {
        memcpy(to, from, bytes);
        __asm__ volatile("" ::: "memory");
    }
    return (bench_now_s() - start) / (double)repeats;
}

static void work(unsigned rank, unsigned size, const char *job, shared_times *times)
{
    mgw_transport_options options = {.name = "shm", .rank = rank, .size = size, .job = job};
    mgw_transport *transport = NULL;
    mgw_error error;
    void *data = NULL;
    size_t most = size_at(SIZES - 1);
    bench_must(mgw_transport_open(&options, &transport, &error), &error);
    bench_must(mgw_transport_allocate(transport, most, &data, &error), &error);
    char *copy = calloc(1, most);
    memset(data, 0, most);
    for (int s = 0; s < SIZES; s++)
        for (int round = 0; round < ROUNDS; round++) {
            size_t repeats = repeats_of(size_at(s));
            bench_must(mgw_transport_barrier(transport, &error), &error);
            double start = bench_now_s();
            for (size_t i = 0; i < repeats; i++)
                bench_must(mgw_transport_all_reduce(transport, data, size_at(s) / 4, MGW_F32,
                                                    MGW_AVERAGE, &error),
                           &error);
            if (rank == 0)
                times->seconds[s][round] = (bench_now_s() - start) / (double)repeats;
            bench_must(mgw_transport_barrier(transport, &error), &error);
            double copy_s = time_copies(size_at(s), data, copy); /* all ranks at once */
            if (rank == 0)
                times->copy_s[s] = copy_s;
        }
    free(copy);
    mgw_transport_close(transport);
}

int main(int argc, char **argv)
{
    bool plain = argc > 1 && !strcmp(argv[1], "--plain"); /* for bench/all_reduce */
    shared_times *times =
        mmap(NULL, sizeof *times, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (times == MAP_FAILED)
        return 1;
    for (unsigned size = 2; size <= 4; size *= 2) {
        char job[64];
        snprintf(job, sizeof job, "bench-%ld-%u", (long)getpid(), size);
        for (unsigned rank = 0; rank < size; rank++)
            if (fork() == 0) {
                work(rank, size, job, times);
                _exit(0);
            }
        while (wait(NULL) > 0)
            continue;
        mgw_table *table = mgw_table_create(
            "workers|bytes|all-reduce|spread|MB/s|copy of M bytes|all-reduce / copy");
        for (int s = 0; s < SIZES; s++) {
            char units[MGW_UNITS_MAX];
            bench_times sorted = {.count = ROUNDS};
            memcpy(sorted.values, times->seconds[s], sizeof times->seconds[s]);
            double median = bench_median(&sorted);
            if (plain)
                printf("%u %zu %.9g %.9g\n", size, size_at(s), median, times->copy_s[s]);
            mgw_table_cell(table, "%u", size);
            mgw_table_cell(table, "%zu", size_at(s));
            mgw_table_cell(table, "%s", mgw_format_seconds(median, units));
            mgw_table_cell(table, "%.0f%%", 100 * bench_spread(&sorted));
            mgw_table_cell(table, "%.0f", (double)size_at(s) / median / 1e6);
            mgw_table_cell(table, "%s", mgw_format_seconds(times->copy_s[s], units));
            mgw_table_cell(table, "%.2f", median / times->copy_s[s]);
        }
        mgw_text text;
        mgw_text_init(&text);
        mgw_table_write(table, &text);
        if (!plain)
            puts(text.data);
        mgw_text_fini(&text);
        mgw_table_destroy(table);
    }
    return 0;
}
