/* A command as a table of its options and texts. Parsing, help, man page and completion all use it.
 */
#ifndef MGW_CLI_COMMAND_H
#define MGW_CLI_COMMAND_H

#include <stdbool.h>
#include <stddef.h>

#include <mgwfbp/mgwfbp.h>

typedef struct cli_option {
    const char *name;
    char letter;          /* or 0 */
    const char *argument; /* null: a flag; "LIST": may be given several times */
    const char *help;
} cli_option;

typedef struct cli_args cli_args;

typedef struct cli_command {
    const char *name;
    const char *arguments; /* as shown in the usage line */
    int least, most;       /* number of arguments */
    bool runs_program;     /* a program follows, which has its own options: ours end there */
    const char *summary;
    const char *details;
    const char *examples; /* one command per line */
    const cli_option *options;
    size_t option_count;
    mgw_status (*run)(const cli_args *args, mgw_error *error);
} cli_command;

enum { CLI_OPTIONS_MAX = 48 };

struct cli_args {
    const cli_command *command;
    char **argv; /* the command's name and everything after it, null-terminated */
    char **positional;
    int count;
    char *values[CLI_OPTIONS_MAX]; /* by option; lists given several times are joined by commas */
};

/* All commands, in the order of the help text. */
extern const cli_command *const cli_commands[];
extern const size_t cli_command_count;

extern const cli_command cli_plan, cli_simulate, cli_show, cli_fit, cli_replay, cli_launch,
    cli_calibrate, cli_train, cli_trace, cli_list, cli_report, cli_serve, cli_advise;

/* The value of an option, or null; "" for a flag that is set. */
const char *cli_value(const cli_args *args, const char *name);

/* Whether the command has that option at all. */
bool cli_takes_option(const cli_command *command, const char *name);

/* Records a usage error; its value is MGW_ERR_ARGUMENT. */
#define cli_fail(error, ...)                                                                       \
    (mgw_error_record(error, MGW_ERR_ARGUMENT, __VA_ARGS__), MGW_ERR_ARGUMENT)

/* Parses and runs; returns the exit status. */
int cli_run(const cli_command *command, int argc, char **argv);

/* ---- stack.c ---- */

/* Runs a function, on a larger stack if the limit (ulimit -s) is too small. */
int cli_run_on_stack(int (*run)(int argc, char **argv), int argc, char **argv);

/* ---- Values of options ---- */

MGW_CHECKED mgw_status cli_number(const cli_args *args, const char *name, double fallback,
                                  double *out, mgw_error *error);
MGW_CHECKED mgw_status cli_workers(const cli_args *args, unsigned fallback, unsigned *out,
                                   mgw_error *error);

/* A whole number from 1 to `most`, or the fallback. */
MGW_CHECKED mgw_status cli_count(const cli_args *args, const char *name, unsigned fallback,
                                 unsigned most, unsigned *out, mgw_error *error);

/* "25MB", "25MiB", or a number below 1024 without a unit, which counts MiB. Or the fallback. */
MGW_CHECKED mgw_status cli_bytes(const cli_args *args, const char *name, uint64_t fallback,
                                 uint64_t *out, mgw_error *error);

/* Whether --device is cuda. */
MGW_CHECKED mgw_status cli_device(const cli_args *args, bool *cuda, mgw_error *error);

/*
 * The network to emulate: --cluster, --network, or null; and the transport that does it, appended
 * to an empty text. Ownership: the caller destroys *out.
 */
MGW_CHECKED mgw_status cli_network(const cli_args *args, mgw_cluster **out, mgw_text *transport,
                                   mgw_error *error);

/* Lists: "4:2048" or "4,8,16"; "ring,double-binary-trees"; "wfbp,ddp:1M,25M". Ownership: the caller
 * frees *out. */
MGW_CHECKED mgw_status cli_worker_list(const char *value, unsigned **out, size_t *count,
                                       mgw_error *error);
MGW_CHECKED mgw_status cli_algorithm_list(const char *value, mgw_algorithm **out, size_t *count,
                                          mgw_error *error);
MGW_CHECKED mgw_status cli_policy_list(const char *value, mgw_policy **out, size_t *count,
                                       mgw_error *error);

/* The same for predictions: "all" includes those that overlap the next forward pass. */
MGW_CHECKED mgw_status cli_any_policy_list(const char *value, mgw_policy **out, size_t *count,
                                           mgw_error *error);

/* The median, and the spread of the values relative to it (or null). Sorts them. */
double cli_median(double *values, size_t count, double *spread);

/* ---- Input and output ---- */

/* An option of plan, simulate and report. */
#define CLI_PARAMETERS                                                                             \
    {                                                                                              \
        "parameters", 0, "TYPE",                                                                   \
            "type of the parameters in all-gathers: f32, f16, bf16 or f64 (default: as in "        \
            "the trace, or that of the gradients)"                                                 \
    }

/* An option of plan, simulate and advise. */
#define CLI_WIRE                                                                                   \
    {                                                                                              \
        "wire", 0, "LIST",                                                                         \
            "format in which f32 gradients are sent: f32 (the default), bf16, f16, fp8 or "        \
            "fp8-e5m2; of several, the fastest for each message, including casts; auto means "     \
            "f32,bf16,fp8"                                                                         \
    }

/* Bits for mgw_cost; 0 if the option is not given. Fails if the trace's gradients are not f32. */
MGW_CHECKED mgw_status cli_wires(const cli_args *args, const mgw_trace *trace, unsigned *out,
                                 mgw_error *error);

/* Options of plan, simulate and advise: the shape of the cluster. */
#define CLI_SHAPE                                                                                  \
    {"nodes", 0, "N", "number of nodes linked by the network (default: as in the cluster)"},       \
        {"gpus", 0, "N", "workers in a node (default: as in the cluster, or 1)"},                  \
        {"inside", 0, "NETWORK",                                                                   \
         "what links the workers of a node (default: as in the cluster, or nvlink4)"},             \
        {"ports", 0, "N",                                                                          \
         "network ports shared by the workers of a node (default: as in the cluster, or 1)"},      \
    {                                                                                              \
        "measured-on", 0, "NxG",                                                                   \
            "nodes and workers per node on which CLUSTER was measured, needed to scale it to "     \
            "--nodes and --gpus"                                                                   \
    }

/* *given: whether the option is given; *out: its value. */
MGW_CHECKED mgw_status cli_parameters(const cli_args *args, bool *given, mgw_dtype *out,
                                      mgw_error *error);

/* "operations": {"all-reduce": 2, "reduce-scatter": 1, "all-gather": 2}, for the kinds that occur.
 */
void cli_count_kinds(const mgw_plan *plan, mgw_text *text);

/* The cluster of that name, in the shape of --nodes and --gpus if they are given. The caller
 * destroys *out. */
MGW_CHECKED mgw_status cli_cluster(const cli_args *args, const char *name, mgw_cluster **out,
                                   mgw_error *error);

/* Loads what plan and simulate need; --scale-compute and --parameters are applied. The caller
 * destroys both. */
MGW_CHECKED mgw_status cli_load(const cli_args *args, mgw_trace **trace, mgw_cluster **cluster,
                                mgw_error *error);

/* Removes the last newline, if JSON continues after it. */
void cli_chomp(mgw_text *text);

MGW_CHECKED mgw_status cli_print(const mgw_text *text, mgw_error *error);

/* Writes the table for the terminal: not wider than it, with bold heads. */
void cli_write_table(mgw_table *table, mgw_text *text);

/*
 * Checks, before a command does its work, that all its output files can be written. One of them may
 * be "-", standard output, which then has nothing else: cli_print does nothing.
 */
MGW_CHECKED mgw_status cli_check_outputs(const cli_args *args, mgw_error *error);

/* Saves the text to the file of the option, and reports that on stderr. */
MGW_CHECKED mgw_status cli_save(const cli_args *args, const char *option, const mgw_text *text,
                                mgw_error *error);

/* The same for a path, or the default one if it is null. */
MGW_CHECKED mgw_status cli_save_to(const char *given, const char *usual, const mgw_text *text,
                                   mgw_error *error);

/* "resnet50 (batch 32, fp32, NVIDIA H200): 161 tensors, 97.5 MiB; compute 17.9 ms" and the like. */
void cli_describe_trace(const mgw_trace *trace, mgw_text *text);
void cli_describe_cluster(const mgw_cluster *cluster, mgw_text *text);

/* ---- Documentation from the tables ---- */

extern const char cli_about[];

/* The option at an index up to and including the count: --help comes last. */
const cli_option *cli_option_at(const cli_command *command, size_t index);

/* "-o, --output FILE" */
void cli_option_label(const cli_option *option, char *out, size_t size);

void cli_write_help(const cli_command *command, mgw_text *text);
void cli_write_usage(mgw_text *text);
void cli_write_man(mgw_text *text);
void cli_write_completion(mgw_text *text);

#endif
