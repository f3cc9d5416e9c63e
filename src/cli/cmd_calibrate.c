/* mgwfbp calibrate: what a collective costs here, measured. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "cli/job.h"

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

/* The workers, and memory for the largest message. */
typedef struct job {
    mgw_transport *transport;
    void *data;
} job;

/* Small messages are repeated, so that the clock does not matter. */
static mgw_status time_once(void *context, mgw_collective kind, uint64_t bytes, double *seconds,
                            mgw_error *error)
{
    const job *j = context;
    size_t repeats = bytes <= 65536 ? 20 : bytes <= 1 << 20 ? 4 : 1;
    mgw_call call = {
        .kind = kind, .data = j->data, .count = bytes / 4, .dtype = MGW_F32, .op = MGW_SUM};
    mgw_request last = {0};
    mgw_status status = mgw_transport_barrier(j->transport, error);
    double begin_s = mgw_now_s();
    for (size_t k = 0; !status && k < repeats; k++) /* on a GPU without the host in between */
        status = mgw_transport_post(j->transport, &call, &last, error);
    if (!status)
        status = mgw_request_wait(j->transport, &last, error);
    *seconds = (mgw_now_s() - begin_s) / (double)repeats;
    return status;
}

static mgw_status measure(job *j, const char *name, uint64_t largest, mgw_cluster **out,
                          mgw_error *error)
{
    mgw_exchange exchange = mgw_transport_exchange(j->transport);
    mgw_calibration how = {.name = name,
                           .least_bytes = 1024,
                           .most_bytes = largest,
                           .factor = 2,
                           .more_sizes = 8,
                           .repeats = 9,
                           .most_repeats = 15,
                           .enough_s = 20,
                           .kinds = 1u << MGW_ALL_REDUCE | 1u << MGW_REDUCE_SCATTER |
                                    1u << MGW_ALL_GATHER,
                           .keeps_samples = true,
                           .context = j,
                           .time = time_once};
    mgw_status status = mgw_transport_allocate(j->transport, largest, &j->data, error);
    return status ? status : mgw_calibrate(&how, &exchange, out, error);
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
    job j = {0};
    mgw_transport_options transport_options = {.name = cli_value(args, "transport")};
    mgw_cluster *cluster = NULL;
    bool cuda = false;
    mgw_status status = cli_device(args, &cuda, error);
    transport_options.on_device = cuda;
    if (!status)
        status = mgw_transport_open(&transport_options, &j.transport, error);
    if (!status && mgw_transport_size(j.transport) < 2)
        status = cli_fail(error, "it takes at least 2 workers to communicate");
    if (!status) {
        char name[128];
        snprintf(name, sizeof name, "%s-%u", mgw_transport_name(j.transport),
                 mgw_transport_size(j.transport));
        const char *wanted = cli_value(args, "name");
        status = measure(&j, wanted ? wanted : name, largest, &cluster, error);
    }
    if (!status && mgw_transport_rank(j.transport) == 0)
        status = output(args, cluster, error);
    mgw_cluster_destroy(cluster);
    mgw_transport_close(j.transport);
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
    return job_is_joined() ? be_worker(args, largest, error)
                           : cli_run_workers(args, workers, error);
}

const cli_command cli_calibrate = {
    .name = "calibrate",
    .arguments = "",
    .least = 0,
    .most = 0,
    .summary = "measure what collectives cost here, and make a cluster of it",
    .details =
        "Measures all-reduces, reduce-scatters and all-gathers of 1 KiB to 64 MiB among workers on "
        "this host, or among those that mpirun or srun started; the slowest worker's time counts, "
        "the median of nine, or of up to fifteen where they differ. Sizes double, and there are up "
        "to eight more where the curve bends. Prints the samples of all-reduces, the share within "
        "which each is known, the line a + b*M that fits them best, and the lines of the other "
        "two.",
    .examples = "mgwfbp calibrate -n 4 -o here.json --svg here.svg\n"
                "mgwfbp calibrate --device cuda -n 8 -o gpus.json\n"
                "mpirun -n 16 --bind-to none --hostfile hosts mgwfbp calibrate -o cluster.json\n",
    .options = options,
    .option_count = sizeof options / sizeof *options,
    .run = run,
};
