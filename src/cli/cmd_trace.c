/* mgwfbp trace: what a network's step takes on this machine, as a trace file. */
#include "cli/run.h"

static const cli_option options[] = {
    {"model", 'm', "MODEL", "the same as MODEL alone"},
    {"batch", 'b', "N", "images per step (default 64; 8 for ImageNet models)"},
    {"size", 0, "N", "height and width of the images (default: the model's usual)"},
    {"steps", 's', "N", "steps that are measured, behind two that are not (default 10)"},
    {"threads", 0, "N", "threads of computation (default 1)"},
    {"output", 'o', "FILE", "save the trace here; else it is printed"},
};

const cli_command cli_trace = {
    .name = "trace",
    .arguments = "MODEL",
    .least = 0, /* with --model */
    .most = 1,
    .summary = "measure a network's step on this machine, as a trace for plan and simulate",
    .details =
        "MODEL is one of those of train. Runs it on made-up images on one worker, and takes down "
        "when each gradient is ready and when the forward pass needs each parameter: the median "
        "of all steps.",
    .examples = "mgwfbp trace resnet20 -o resnet20.json\n"
                "mgwfbp trace --model resnet50 --batch 8 --steps 5 -o resnet50.json\n",
    .options = options,
    .option_count = sizeof options / sizeof *options,
    .run = cli_trace_run,
};
