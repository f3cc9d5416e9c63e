/* All-reduce, and its two halves, as messages grow, beside the limit: copying as many bytes as it
 * must move. Through shared memory processes are forked here, so no launcher is needed; under
 * mpirun, "bench_all_reduce mpi" measures that. */
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench.h"

enum { SIZES = 9, ROUNDS = 15, KINDS = MGW_ALL_GATHER + 1 };

static size_t size_at(int index)
{
    return (size_t)1024 << 2 * index; /* 1 KiB … 64 MiB */
}

typedef struct shared_times {
    double seconds[KINDS][SIZES][ROUNDS];
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

/* With BENCH_ASKS in the environment workers make sure each time that they are in the same one. */
static double time_calls(mgw_transport *transport, mgw_collective kind, void *data, size_t bytes,
                         bool follows)
{
    size_t repeats = repeats_of(bytes);
    mgw_call call = {
        .kind = kind, .data = data, .count = bytes / 4, .dtype = MGW_F32, .follows = follows};
    mgw_request request;
    mgw_error error;
    bench_must(mgw_transport_barrier(transport, &error), &error);
    double start = bench_now_s();
    for (size_t i = 0; i < repeats; i++) {
        bench_must(mgw_transport_post(transport, &call, &request, &error), &error);
        bench_must(mgw_request_wait(transport, &request, &error), &error);
    }
    return (bench_now_s() - start) / (double)repeats;
}

static unsigned work(const mgw_transport_options *options, shared_times *times)
{
    mgw_transport *transport = NULL;
    mgw_error error;
    void *data = NULL;
    size_t most = size_at(SIZES - 1);
    bench_must(mgw_transport_open(options, &transport, &error), &error);
    bench_must(mgw_transport_allocate(transport, most, &data, &error), &error);
    bool tells = mgw_transport_rank(transport) == 0;
    unsigned size = mgw_transport_size(transport);
    char *copy = calloc(1, most);
    memset(data, 0, most);
    for (int s = 0; s < SIZES; s++)
        for (int round = 0; round < ROUNDS; round++) {
            for (int kind = 0; kind < KINDS; kind++) {
                double took_s = time_calls(transport, (mgw_collective)kind, data, size_at(s),
                                           !getenv("BENCH_ASKS"));
                if (tells)
                    times->seconds[kind][s][round] = took_s;
            }
            bench_must(mgw_transport_barrier(transport, &error), &error);
            double copy_s = time_copies(size_at(s), data, copy); /* all ranks at once */
            if (tells)
                times->copy_s[s] = copy_s;
        }
    free(copy);
    mgw_transport_close(transport);
    return tells ? size : 0;
}

static void print_plain(const shared_times *times, unsigned size)
{
    for (int s = 0; s < SIZES; s++) {
        bench_times sorted = {.count = ROUNDS};
        memcpy(sorted.values, times->seconds[MGW_ALL_REDUCE][s], sizeof times->seconds[0][s]);
        printf("%u %zu %.9g %.9g\n", size, size_at(s), bench_median(&sorted), times->copy_s[s]);
    }
}

static void print_table(const shared_times *times, unsigned size)
{
    mgw_table *table = mgw_table_create(
        "workers|bytes|all-reduce|spread|MB/s|copy of M bytes|all-reduce / copy|reduce-scatter / "
        "all-reduce|all-gather / all-reduce");
    for (int s = 0; s < SIZES; s++) {
        char units[MGW_UNITS_MAX];
        double median[KINDS];
        double spread = 0;
        for (int kind = 0; kind < KINDS; kind++) {
            bench_times sorted = {.count = ROUNDS};
            memcpy(sorted.values, times->seconds[kind][s], sizeof times->seconds[kind][s]);
            median[kind] = bench_median(&sorted);
            spread = kind == MGW_ALL_REDUCE ? bench_spread(&sorted) : spread;
        }
        double whole_s = median[MGW_ALL_REDUCE];
        mgw_table_cell(table, "%u", size);
        mgw_table_cell(table, "%zu", size_at(s));
        mgw_table_cell(table, "%s", mgw_format_seconds(whole_s, units));
        mgw_table_cell(table, "%.0f%%", 100 * spread);
        mgw_table_cell(table, "%.0f", (double)size_at(s) / whole_s / 1e6);
        mgw_table_cell(table, "%s", mgw_format_seconds(times->copy_s[s], units));
        mgw_table_cell(table, "%.2f", whole_s / times->copy_s[s]);
        mgw_table_cell(table, "%.2f", median[MGW_REDUCE_SCATTER] / whole_s);
        mgw_table_cell(table, "%.2f", median[MGW_ALL_GATHER] / whole_s);
    }
    mgw_text text;
    mgw_text_init(&text);
    mgw_table_write(table, &text);
    puts(text.data);
    mgw_text_fini(&text);
    mgw_table_destroy(table);
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
    bool plain = !strcmp(what, "--plain"); /* for bench/all_reduce */
    shared_times *times =
        mmap(NULL, sizeof *times, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (times == MAP_FAILED)
        return 1;
    if (!strcmp(what, "mpi")) {
        unsigned size = work(&(mgw_transport_options){.name = "mpi"}, times);
        if (size)
            print_table(times, size);
        return 0;
    }
    for (unsigned size = 2; size <= 4; size *= 2) {
        char job[64];
        snprintf(job, sizeof job, "bench-%ld-%u", (long)getpid(), size);
        for (unsigned rank = 0; rank < size; rank++)
            if (fork() == 0) {
                work(
                    &(mgw_transport_options){.name = "shm", .rank = rank, .size = size, .job = job},
                    times);
                _exit(0);
            }
        while (wait(NULL) > 0)
            continue;
        (plain ? print_plain : print_table)(times, size);
    }
    return 0;
}
