/* mgwfbp calibrate: what a collective costs here, measured. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "cli/launch.h"

static const cli_option options[] = {
    {"workers", 'n', "N", "number of workers on this host (default 4); not under another launcher"},
    {"transport", 't', "T", "what they talk through (default: shm, or mpi under mpirun)"},
    {"device", 'd', "D", "host, or cuda: messages in the memory of GPUs (default transport: nccl)"},
    {"largest", 0, "BYTES", "the largest message (default 64MiB)"},
    {"name", 0, "NAME", "name of the cluster (default: the transport and the number of workers)"},
    {"output", 'o', "FILE", "write the cluster, with all samples, to FILE"},
    {"svg", 0, "FILE", "draw the samples and the fit into FILE"},
    {"json", 0, NULL, "print the cluster as JSON"},
};

enum { SIZES_MAX = 40, REPEATS = 9 };

/* Small messages are repeated, so that the clock does not matter. */
static mgw_status time_size(mgw_transport *t, void *data, size_t bytes, double *median_s,
                            mgw_error *error)
{
    size_t repeats = bytes <= 65536 ? 20 : bytes <= 1 << 20 ? 4 : 1;
    double times[REPEATS];
    mgw_status status = MGW_OK;
    for (int i = -1; !status && i < REPEATS; i++) { /* the first warms up */
        status = mgw_transport_barrier(t, error);
        double begin_s = mgw_now_s();
        mgw_transport_defer(t, true); /* on a GPU one follows the other without the host */
        for (size_t k = 0; !status && k < repeats; k++)
            status = mgw_transport_all_reduce(t, data, bytes / 4, MGW_F32, MGW_SUM, error);
        mgw_transport_defer(t, false);
        if (!status)
            status = mgw_transport_settle(t, error);
        if (i >= 0)
            times[i] = (mgw_now_s() - begin_s) / (double)repeats;
    }
    if (!status)
        *median_s = cli_median(times, REPEATS, NULL);
    return status;
}

/* The slowest worker's time counts. */
static mgw_status slowest(mgw_transport *t, double own_s, double *out_s, mgw_error *error)
{
    unsigned size = mgw_transport_size(t);
    double *all = calloc(size, sizeof *all);
    if (!all)
        return cli_fail(error, "out of memory");
    all[mgw_transport_rank(t)] = own_s;
    mgw_status status = mgw_transport_all_reduce(t, all, size, MGW_F64, MGW_SUM, error);
    *out_s = 0;
    for (unsigned r = 0; r < size; r++)
        *out_s = all[r] > *out_s ? all[r] : *out_s;
    free(all);
    return status;
}

static mgw_status sweep(mgw_transport *t, uint64_t largest, mgw_sample *samples, size_t *count,
                        mgw_error *error)
{
    void *data = NULL;
    mgw_status status = mgw_transport_allocate(t, largest, &data, error);
    *count = 0;
    for (uint64_t bytes = 1024; !status && *count < SIZES_MAX; bytes *= 2) {
        double own_s = 0;
        double seconds = 0;
        bytes = bytes < largest ? bytes : largest;
        status = time_size(t, data, bytes, &own_s, error);
        if (!status)
            status = slowest(t, own_s, &seconds, error);
        samples[(*count)++] = (mgw_sample){bytes, seconds};
        if (bytes == largest)
            break;
    }
    return status;
}

static mgw_status output(const cli_args *args, const mgw_cluster *cluster, mgw_error *error)
{
    mgw_text text;
    mgw_text_init(&text);
    mgw_status status = MGW_OK;
    if (cli_value(args, "output")) {
        mgw_cluster_write(cluster, &text);
        status = cli_save(args, "output", &text, error);
        mgw_text_fini(&text);
    }
    if (!status && cli_value(args, "svg")) {
        mgw_draw_cost_svg(cluster, &text);
        status = cli_save(args, "svg", &text, error);
        mgw_text_fini(&text);
    }
    if (cli_value(args, "json")) {
        mgw_cluster_write(cluster, &text);
    } else {
        cli_describe_cluster(cluster, &text);
        mgw_text_printf(&text, "\n");
        mgw_draw_cost_text(cluster, &text);
    }
    if (!status)
        status = cli_print(&text, error);
    mgw_text_fini(&text);
    return status;
}

static mgw_status be_worker(const cli_args *args, uint64_t largest, mgw_error *error)
{
    mgw_transport *transport = NULL;
    mgw_transport_options transport_options = {.name = cli_value(args, "transport")};
    mgw_sample samples[SIZES_MAX];
    size_t count = 0;
    mgw_cluster *cluster = NULL;
    bool cuda = false;
    mgw_status status = cli_device(args, &cuda, error);
    transport_options.on_device = cuda;
    if (!status)
        status = mgw_transport_open(&transport_options, &transport, error);
    if (!status && mgw_transport_size(transport) < 2)
        status = cli_fail(error, "it takes at least 2 workers to communicate");
    if (!status)
        status = sweep(transport, largest, samples, &count, error);
    if (!status && mgw_transport_rank(transport) == 0) {
        char name[128];
        snprintf(name, sizeof name, "%s-%u", mgw_transport_name(transport),
                 mgw_transport_size(transport));
        status = mgw_cluster_from_samples(cli_value(args, "name") ? cli_value(args, "name") : name,
                                          mgw_transport_size(transport), samples, count, &cluster,
                                          error);
        if (!status)
            status = output(args, cluster, error);
    }
    mgw_cluster_destroy(cluster);
    mgw_transport_close(transport);
    return status;
}

static mgw_status run(const cli_args *args, mgw_error *error)
{
    unsigned workers = 0;
    uint64_t largest = (uint64_t)64 << 20;
    mgw_status status = cli_workers(args, 4, &workers, error);
    if (!status && cli_value(args, "largest"))
        status = mgw_parse_bytes(cli_value(args, "largest"), &largest, error);
    if (!status && (largest < 2048 || largest > (uint64_t)1 << 34))
        status = cli_fail(error, "--largest: between 2048 bytes and 16 GiB");
    if (status)
        return status;
    return cli_in_job() ? be_worker(args, largest, error) : cli_launch_self(args, workers, error);
}

const cli_command cli_calibrate = {
    .name = "calibrate",
    .arguments = "",
    .least = 0,
    .most = 0,
    .summary = "measure what an all-reduce costs here, and make a cluster of it",
    .details =
        "Measures all-reduces of 1 KiB to 64 MiB among workers on this host, or among those that "
        "mpirun or srun started; the slowest worker's time counts, the median of nine. Prints the "
        "samples beside the line a + b*M that fits them best.",
    .examples = "mgwfbp calibrate -n 4 -o here.json --svg here.svg\n"
                "mgwfbp calibrate --device cuda -n 8 -o gpus.json\n"
                "mpirun -n 16 --bind-to none --hostfile hosts mgwfbp calibrate -o cluster.json\n",
    .options = options,
    .option_count = sizeof options / sizeof *options,
    .run = run,
};
