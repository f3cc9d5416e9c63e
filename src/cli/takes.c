/* The values of options and arguments, for completion and for checks of output files. */
#include "cli/takes.h"

#include <stddef.h>
#include <string.h>

#define NAMES(topic) "$(mgwfbp list " topic " --names)"

#define DATA NAMES("traces") " " NAMES("clusters") " " NAMES("networks")

static const cli_takes options[] = {
    {.name = "algorithm", .words = NAMES("algorithms"), .lists = true},
    {.name = "as", .words = "cost samples " NAMES("algorithms")},
    {.name = "checkpoint", .files = true, .writes = true, .keeps = true},
    {.name = "chrome-trace", .files = true, .writes = true},
    {.name = "cluster", .words = NAMES("clusters") " " NAMES("networks"), .files = true},
    {.name = "cluster-out", .files = true, .writes = true},
    {.name = "data", .words = "synthetic", .files = true},
    {.name = "device", .words = "host cuda"},
    {.name = "from", .files = true},
    {.name = "inside", .words = NAMES("networks")},
    {.name = "model", .words = NAMES("models")},
    {.name = "optimizer", .words = "sgd adamw"},
    {.name = "output", .files = true, .writes = true},
    {.name = "parameters", .words = "f32 f16 bf16 f64"},
    {.name = "policy", .words = NAMES("policies"), .lists = true},
    {.name = "precision", .words = "f32 bf16-comm"},
    {.name = "resume", .files = true},
    {.name = "svg", .files = true, .writes = true},
    {.name = "tensors", .files = true},
    {.name = "transport", .words = "shm mpi tcp nccl self emulated:"},
    {.name = "wire", .words = "auto f32 bf16 f16 fp8 fp8-e5m2", .lists = true},
};

static const cli_takes arguments[] = {
    {.name = "TRACE", .words = NAMES("traces"), .files = true},
    {.name = "CLUSTER", .words = NAMES("clusters") " " NAMES("networks"), .files = true},
    {.name = "NETWORK", .words = NAMES("networks") " " NAMES("clusters"), .files = true},
    {.name = "TRACE|CLUSTER|PLAN", .words = DATA, .files = true},
    {.name = "FILE", .words = NAMES("clusters"), .files = true},
    {.name = "INPUT...", .words = DATA, .files = true},
    {.name = "MODEL", .words = NAMES("models")},
    {.name = "PROGRAM", .words = "$(compgen -c -- \"$current\")", .files = true},
    {.name = "ARGUMENT...", .files = true},
};

static const cli_takes *find(const cli_takes *list, size_t count, const char *name)
{
    for (size_t i = 0; i < count; i++)
        if (!strcmp(list[i].name, name))
            return &list[i];
    return NULL;
}

const cli_takes *cli_option_takes(const cli_option *option)
{
    const cli_takes *takes =
        option->argument ? find(options, sizeof options / sizeof *options, option->name) : NULL;
    bool is_file = option->argument && !strcmp(option->argument, "FILE");
    return takes && takes->writes && !is_file ? NULL
                                              : takes; /* simulate's --checkpoint is a time */
}

const cli_takes *cli_argument_takes(const char *argument)
{
    return find(arguments, sizeof arguments / sizeof *arguments, argument);
}
