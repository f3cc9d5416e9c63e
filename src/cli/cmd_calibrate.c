/* mgwfbp calibrate: measures the cost of collectives. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "cli/job.h"
#include "cli/terminal.h"
#include "job/interrupt.h"

static const cli_option options[] = {
    {"workers", 'n', "N", "number of workers on this host (default 4); not under another launcher"},
    {"transport", 't', "T", "how the workers communicate (default: shm, or mpi under mpirun)"},
    {"device", 'd', "D", "host, or cuda: messages in GPU memory (default transport: nccl)"},
    {"largest", 0, "SIZE", "the largest message (default 64MB; 64 means 64MB)"},
    {"name", 0, "NAME", "name of the cluster (default: the transport and the number of workers)"},
    {"output", 'o', "FILE", "write the cluster, with all samples, to FILE"},
    {"svg", 0, "FILE", "draw the samples and the fit to FILE"},
    CLI_PROGRESS,
    {"json", 0, NULL, "print the cluster as JSON"},
};

/* The workers, and memory for the largest message. */
typedef struct job {
    mgw_transport *transport;
    void *data;
    uint64_t largest;
    uint64_t size; /* current size */
    unsigned more; /* number of sizes since the largest was measured */
    cli_progress progress;
} job;

enum { LEAST_BYTES = 1024, MORE_SIZES = 8 };

/* The work for all sizes up to this one, in units of a small message; sizes double each time. */
static double work_of(uint64_t bytes)
{
    double work = 0;
    for (uint64_t size = LEAST_BYTES; size <= bytes; size *= 2)
        work += 1 + (double)size / (1 << 20);
    return work;
}

/* Sizes grow to the largest; then more follow in between, as needed. */
static void show_progress(job *j, uint64_t bytes)
{
    char what[64];
    char units[MGW_UNITS_MAX];
    if (bytes == j->size)
        return;
    if (j->size)
        job_end_in_order(); /* there are results to keep */
    j->more += j->size == j->largest || j->more > 0;
    j->size = bytes;
    double share = 0.75 * work_of(bytes / 2) / work_of(j->largest);
    if (j->more)
        share = 0.75 + 0.25 * fmin((double)j->more / (MORE_SIZES + 1), 1);
    snprintf(what, sizeof what, "messages of %s", mgw_format_bytes(bytes, units));
    cli_progress_show(&j->progress, share, what);
}

static bool is_interrupted(void *unused)
{
    (void)unused;
    return job_interrupted() != 0;
}

/* Repeats small messages, so that the resolution of the clock does not matter. */
static mgw_status time_once(void *context, mgw_collective kind, uint64_t bytes, double *seconds,
                            mgw_error *error)
{
    job *j = context;
    show_progress(j, bytes);
    size_t repeats = bytes <= 65536 ? 20 : bytes <= 1 << 20 ? 4 : 1;
    mgw_call call = {.kind = kind,
                     .data = j->data,
                     .count = bytes / 4,
                     .dtype = MGW_F32,
                     .op = MGW_SUM,
                     .follows = true};
    mgw_request last = {0};
    mgw_status status = mgw_transport_barrier(j->transport, error);
    double begin_s = mgw_now_s();
    for (size_t k = 0; !status && k < repeats; k++) /* on a GPU, without the host in between */
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
                           .least_bytes = LEAST_BYTES,
                           .most_bytes = largest,
                           .factor = 2,
                           .more_sizes = MORE_SIZES,
                           .repeats = 9,
                           .most_repeats = 15,
                           .enough_s = 20,
                           .kinds = 1u << MGW_ALL_REDUCE | 1u << MGW_REDUCE_SCATTER |
                                    1u << MGW_ALL_GATHER,
                           .keeps_samples = true,
                           .context = j,
                           .time = time_once,
                           .stops = is_interrupted};
    j->largest = largest;
    mgw_status status = mgw_transport_allocate(j->transport, largest, &j->data, error);
    if (!status)
        status = mgw_calibrate(&how, &exchange, out, error);
    return status ? status : mgw_measure_casts(j->transport, *out, error);
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
    pthread_t watch;
    if (job_watch(&watch, error))
        return MGW_ERR_IO;
    cli_progress_begin(args, &j.progress);
    j.progress.shows = j.progress.shows && cli_is_first();
    mgw_transport_options transport_options = {.name = cli_value(args, "transport")};
    mgw_cluster *cluster = NULL;
    bool cuda = false;
    mgw_status status = cli_device(args, &cuda, error);
    transport_options.on_device = cuda;
    if (!status)
        status = mgw_transport_open(&transport_options, &j.transport, error);
    if (!status && mgw_transport_size(j.transport) < 2)
        status = cli_fail(error, "at least 2 workers are needed");
    if (!status) {
        char name[128];
        unsigned lanes = mgw_transport_lanes(j.transport);
        int end = snprintf(name, sizeof name, "%s-%u", mgw_transport_name(j.transport),
                           mgw_transport_size(j.transport));
        if (lanes > 1)
            snprintf(name + end, sizeof name - (size_t)end, "-with-%u-lanes", lanes);
        const char *wanted = cli_value(args, "name");
        status = measure(&j, wanted ? wanted : name, largest, &cluster, error);
    }
    cli_progress_end(&j.progress);
    bool first = !status && mgw_transport_rank(j.transport) == 0;
    if (first)
        status = output(args, cluster, error);
    if (!status && first && job_interrupted())
        fprintf(stderr, "mgwfbp calibrate: interrupted: larger messages were not measured\n");
    mgw_cluster_destroy(cluster);
    mgw_transport_close(j.transport);
    job_unwatch(watch);
    return status;
}

static mgw_status run(const cli_args *args, mgw_error *error)
{
    unsigned workers = 0;
    uint64_t largest = (uint64_t)64 << 20;
    mgw_status status = cli_workers(args, 4, &workers, error);
    if (!status)
        status = cli_bytes(args, "largest", largest, &largest, error);
    if (!status && (largest < 2048 || largest > (uint64_t)1 << 34))
        status = cli_fail(error, "--largest: must be between 2048 bytes and 16 GiB");
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
    .summary = "measure what collectives cost here, and write a cluster",
    .details = "Measures all-reduces, reduce-scatters and all-gathers of 1 KiB to 64 MiB among "
               "workers on this host, or among those started by mpirun or srun. The slowest "
               "worker's time counts; a sample is the median of nine runs, or of up to fifteen if "
               "they differ. Sizes double, with up to eight more where the curve bends. Prints the "
               "samples of all-reduces and how far off each may be, the line a + b*M that fits "
               "them best, and the lines of the other two collectives. The cluster also has the "
               "time to cast gradients to each wire format here, for --wire.",
    .examples = "mgwfbp calibrate -n 4 -o here.json --svg here.svg\n"
                "mgwfbp calibrate --device cuda -n 8 -o gpus.json\n"
                "mpirun -n 16 --bind-to none --hostfile hosts mgwfbp calibrate -o cluster.json\n",
    .options = options,
    .option_count = sizeof options / sizeof *options,
    .run = run,
};
