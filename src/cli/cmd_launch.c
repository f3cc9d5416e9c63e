/* mgwfbp launch: workers on this host. */
#include <stdlib.h>

#include "cli/job.h"

static const cli_option options[] = {
    {"workers", 'n', "N", "number of workers (default 2)"},
    {"transport", 't', "T",
     "what the workers talk through: shm (the default), or emulated:A,B for a network on which M "
     "bytes take A + B*M seconds"},
};

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
                       .program = args->positional,
                       .prefix = true};
    return cli_run_job(&job, error);
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
        "Options of launch stand before PROGRAM; what follows it is the program's.",
    .examples =
        "mgwfbp launch -n 4 ./train\n"
        "mgwfbp launch -n 2 --transport emulated:9.08e-4,7.4e-10 -- python3 train.py --lr 0.1\n",
    .options = options,
    .option_count = sizeof options / sizeof *options,
    .run = run,
};
