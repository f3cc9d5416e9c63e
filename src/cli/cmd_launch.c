/* mgwfbp launch: starts workers on this host. */
#include <stdlib.h>

#include "cli/job.h"

static const cli_option options[] = {
    {"workers", 'n', "N", "number of workers (default 2)"},
    {"transport", 't', "T",
     "how the workers communicate: shm (the default), or emulated:A,B for a network on which M "
     "bytes take A + B*M seconds"},
    {"cluster", 'c', "C", "emulate this cluster's network (a file or built-in name)"},
    {"network", 0, "A,B", "emulate a network on which M bytes take A + B*M seconds"},
    CLI_JOB_OPTIONS,
    {"nodes", 0, "N",
     "number of hosts, each with N workers (default 1); run launch on each of them"},
    {"node", 0, "K", "the number of this host, counted from 0"},
    {"address", 0, "HOST:PORT", "address of host 0, the same on all hosts"},
};

static mgw_status read_number(const cli_args *args, const char *name, unsigned long least,
                              unsigned long most, unsigned *out, mgw_error *error)
{
    const char *value = cli_value(args, name);
    char *end = NULL;
    if (!value)
        return MGW_OK;
    unsigned long number = strtoul(value, &end, 10);
    if (*value < '0' || *value > '9' || *end || number < least || number > most)
        return cli_fail(error, "--%s: '%s' is not a number from %lu to %lu", name, value, least,
                        most);
    *out = (unsigned)number;
    return MGW_OK;
}

static mgw_status read_nodes(const cli_args *args, job_options *job, mgw_error *error)
{
    mgw_status status = read_number(args, "nodes", 1, 4096, &job->nodes, error);
    if (!status)
        status = read_number(args, "node", 0, job->nodes ? job->nodes - 1 : 0, &job->node, error);
    if (!status && job->nodes > 1 && (!job->address || !cli_value(args, "node")))
        status = cli_fail(error, "--nodes: also give --node and --address");
    if (!status && job->nodes > 1 && job->least)
        status = cli_fail(error, "--elastic works on one host only; leave out --nodes");
    return status;
}

static mgw_status read_transport(const cli_args *args, mgw_text *emulated, job_options *job,
                                 mgw_error *error)
{
    mgw_cluster *network = NULL;
    job->transport = cli_value(args, "transport");
    mgw_status status = cli_network(args, &network, emulated, error);
    if (!status && network && job->transport)
        status = cli_fail(
            error,
            "--transport: leave it out with --cluster or --network, which emulate a network");
    if (!status && network)
        job->transport = emulated->data;
    mgw_cluster_destroy(network);
    return status;
}

static mgw_status run(const cli_args *args, mgw_error *error)
{
    mgw_text emulated;
    mgw_text_init(&emulated);
    job_options job = {.command = "launch",
                       .workers = 2,
                       .address = cli_value(args, "address"),
                       .program = args->positional,
                       .prefix = true};
    const char *value = cli_value(args, "workers");
    char *end = NULL;
    unsigned long number = value ? strtoul(value, &end, 10) : job.workers;
    mgw_status status = MGW_OK;
    if (value && (*value < '1' || *value > '9' || *end || number > 64))
        status = cli_fail(error, "-n: '%s' is not a number of workers from 1 to 64", value);
    job.workers = (unsigned)number;
    if (!status)
        status = cli_job_options(args, &job, error);
    if (!status)
        status = read_nodes(args, &job, error);
    if (!status)
        status = read_transport(args, &emulated, &job, error);
    if (!status)
        status = cli_run_job(&job, error);
    mgw_text_fini(&emulated);
    return status;
}

const cli_command cli_launch = {
    .name = "launch",
    .arguments = "PROGRAM [ARGUMENT...]",
    .least = 1,
    .most = 10000,
    .runs_program = true,
    .summary = "start a program as several workers on this host",
    .details =
        "Starts N workers, each with its rank in the environment: MGWFBP_RANK, MGWFBP_SIZE and "
        "MGWFBP_JOB for our engine, and RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT "
        "as PyTorch expects them. Lines of output begin with the rank and appear as they are "
        "written: the workers' standard output is a terminal. Signals are passed on. When a worker "
        "fails, the others are ended two seconds later, and the exit status is that of the first "
        "failure (128 + the signal, if one killed it). When the last worker ends, all processes "
        "that the workers started are ended as well.\n" CLI_JOB_DETAILS
        "For several hosts, run launch once on each, with --nodes, --node and --address. Workers "
        "on GPUs then average over NCCL, and agree over TCP with rank 0, at the port after that of "
        "--address; MGWFBP_SECRET, if it is set, keeps strangers out. Two jobs that may use the "
        "same port need different names (MGWFBP_JOB). Gradients in host memory go over MPI, which "
        "has launchers of its own.\n"
        "Options of launch come before PROGRAM; whatever follows is passed to the program.",
    .examples =
        "mgwfbp launch -n 4 ./train\n"
        "mgwfbp launch -n 2 --transport emulated:9.08e-4,7.4e-10 -- python3 train.py --lr 0.1\n"
        "mgwfbp launch -n 2 --cluster paper-2-10gbe ./train\n"
        "mgwfbp launch -n 4 --restarts 5 --elastic 2:4 -- python3 train.py --go-on\n"
        "mgwfbp launch -n 8 --nodes 2 --node 1 --address node0:29500 -- python3 train.py\n",
    .options = options,
    .option_count = sizeof options / sizeof *options,
    .run = run,
};
