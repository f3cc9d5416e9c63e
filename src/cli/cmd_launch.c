/* mgwfbp launch: workers on this host. */
#include <stdlib.h>

#include "cli/job.h"

static const cli_option options[] = {
    {"workers", 'n', "N", "number of workers (default 2)"},
    {"transport", 't', "T",
     "what the workers talk through: shm (the default), or emulated:A,B for a network on which M "
     "bytes take A + B*M seconds"},
    {"nodes", 0, "N", "hosts with as many workers each (default 1); launch runs on each of them"},
    {"node", 0, "K", "which of them this is, from 0 on"},
    {"address", 0, "HOST:PORT", "of host 0, the same on all hosts"},
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

static mgw_status run(const cli_args *args, mgw_error *error)
{
    unsigned workers = 2;
    const char *value = cli_value(args, "workers");
    if (value) {
        char *end = NULL;
        unsigned long number = strtoul(value, &end, 10);
        if (*value < '1' || *value > '9' || *end || number > 64)
            return cli_fail(error, "-n: '%s' is not a number of workers from 1 to 64", value);
        workers = (unsigned)number;
    }
    job_options job = {.command = "launch",
                       .workers = workers,
                       .transport = cli_value(args, "transport"),
                       .address = cli_value(args, "address"),
                       .program = args->positional,
                       .prefix = true};
    mgw_status status = read_number(args, "nodes", 1, 4096, &job.nodes, error);
    if (!status)
        status = read_number(args, "node", 0, job.nodes ? job.nodes - 1 : 0, &job.node, error);
    if (!status && job.nodes > 1 && (!job.address || !cli_value(args, "node")))
        status = cli_fail(error, "--nodes: say --node and --address, too");
    return status ? status : cli_run_job(&job, error);
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
        "as PyTorch expects them. Lines of output begin with the rank. Signals are passed on. When "
        "a worker fails, the others are ended two seconds later, and the exit status is that of "
        "the first failure (128 + the signal, if one killed it).\n"
        "On several hosts launch runs once on each, with --nodes, --node and --address. Workers on "
        "GPUs then average over NCCL, and agree over TCP with rank 0, at the port behind that of "
        "--address; MGWFBP_SECRET, if it is set, keeps strangers out. Two jobs that may come to "
        "the same port need names (MGWFBP_JOB). In the memory of hosts gradients go over MPI, "
        "which has launchers of its own.\n"
        "Options of launch stand before PROGRAM; what follows it is the program's.",
    .examples =
        "mgwfbp launch -n 4 ./train\n"
        "mgwfbp launch -n 2 --transport emulated:9.08e-4,7.4e-10 -- python3 train.py --lr 0.1\n"
        "mgwfbp launch -n 8 --nodes 2 --node 1 --address node0:29500 -- python3 train.py\n",
    .options = options,
    .option_count = sizeof options / sizeof *options,
    .run = run,
};
