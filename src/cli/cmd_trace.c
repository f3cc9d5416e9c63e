/* mgwfbp trace: measures the step of a network on this machine, and writes a trace file. */
#include "cli/run.h"
#include "cli/terminal.h"

static const cli_option options[] = {
    {"model", 'm', "MODEL", "same as the argument MODEL"},
    {"batch", 'b', "N", "images per step (default 64; 8 for ImageNet models)"},
    {"size", 0, "N", "height and width of the images (default: the model's usual)"},
    {"steps", 's', "N", "number of steps to measure, after two that are not counted (default 10)"},
    {"threads", 0, "N", "threads of computation (default 1)"},
    {"output", 'o', "FILE", "save the trace to FILE (default: print it)"},
    CLI_PROGRESS,
    {"from", 0, "PROFILE", "convert this PyTorch profile instead of measuring"},
    {"tensors", 0, "FILE",
     "with --from: the model's parameters, as JSON {\"name\": elements, ...} in its own order"},
    {"cluster-out", 0, "FILE", "with --from: save the times of its all-reduces as a cluster"},
    {"workers", 'n', "N", "with --cluster-out: number of workers, if the profile does not say"},
};

static mgw_status run(const cli_args *args, mgw_error *error)
{
    static const char *const needs_profile[] = {"tensors", "cluster-out", "workers"};
    if (cli_value(args, "from"))
        return cli_trace_from(args, error);
    for (size_t i = 0; i < sizeof needs_profile / sizeof *needs_profile; i++)
        if (cli_value(args, needs_profile[i]))
            return cli_fail(error, "--%s: only with --from", needs_profile[i]);
    return cli_trace_run(args, error);
}

const cli_command cli_trace = {
    .name = "trace",
    .arguments = "MODEL",
    .least = 0, /* with --model */
    .most = 1,
    .summary = "measure a network's step on this machine, or convert a PyTorch profile to a trace",
    .details =
        "MODEL is one of the models of train. Runs it on synthetic images with one worker, and "
        "records when each gradient is ready and when the forward pass needs each parameter, as "
        "the median of all steps.\n"
        "With --from, MODEL is only a name. PROFILE is a file written by export_chrome_trace of "
        "torch.profiler: one or more steps, plain or with DDP, preferably with record_shapes=True, "
        "and on a GPU with ProfilerActivity.CPU and CUDA. Times are those of the profile, and "
        "recording makes steps longer. Notes say what was not found in the profile.",
    .examples = "mgwfbp trace resnet20 -o resnet20.json\n"
                "mgwfbp trace --model resnet50 --batch 8 --steps 5 -o resnet50.json\n"
                "mgwfbp trace --from profile.json --tensors parameters.json -o mine.json "
                "--cluster-out network.json\n",
    .options = options,
    .option_count = sizeof options / sizeof *options,
    .run = run,
};
