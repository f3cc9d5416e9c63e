/* mgwfbp train: trains a network with several workers, and reports communication. */
#include "cli/job.h"
#include "cli/run.h"
#include "cli/terminal.h"

static const cli_option options[] = {
    {"workers", 'n', "N", "number of workers on this host (default 4); not under another launcher"},
    {"batch", 'b', "N", "images per worker and step (default 64; 8 for ImageNet models)"},
    {"epochs", 'e', "N",
     "number of passes over the data (default 5); the learning-rate schedule ends there"},
    {"steps", 's', "N",
     "stop after N steps; with --compare: steps per policy and round (default 5), after as many "
     "steps for planning"},
    {"optimizer", 0, "O", "sgd, with momentum, or adamw (default sgd)"},
    {"rate", 0, "X", "learning rate (default 0.05; adamw: 1e-3)"},
    {"momentum", 0, "X", "sgd: momentum (default 0.9)"},
    {"decay", 0, "X", "weight decay (default 5e-4; adamw: 1e-2)"},
    {"betas", 0, "X,Y",
     "adamw: decay rates of the means of gradients and of their squares (default 0.9,0.999)"},
    {"epsilon", 0, "X", "adamw: added to the root of the mean square (default 1e-8)"},
    {"warmup", 0, "X", "epochs in which the rate grows to its value (default 0.5)"},
    {"seed", 0, "N", "random seed of weights, image order and augmentation (default 1)"},
    {"augment", 0, NULL, "shift and mirror images at random"},
    {"data", 0, "DIR",
     "folder of IDX files, or synthetic (default: Fashion-MNIST, or synthetic "
     "for ImageNet models)"},
    {"size", 0, "N", "height and width of synthetic images (default: the model's usual)"},
    {"precision", 0, "P", "f32, or bf16-comm: send gradients as bf16 (default f32)"},
    {"policy", 'p', "LIST",
     "how gradients are merged (default optimal); with --compare: the policies to compare (default "
     "all,overlap; all means those with whole all-reduces)"},
    {"cluster", 'c', "C", "emulate this cluster's network (a file or built-in name)"},
    {"network", 0, "A,B", "emulate a network on which M bytes take A + B*M seconds"},
    {"servers", 0, "K", "parameter-server aggregation: one of K workers sums each message"},
    {"threads", 0, "N", "compute threads per worker (default 1, which gives reproducible results)"},
    {"checkpoint", 0, "FILE", "save the state here after every epoch, and at the end"},
    {"checkpoint-steps", 0, "N", "also save it every N steps"},
    {"checkpoint-seconds", 0, "S", "also save it every S seconds"},
    {"keep", 0, "K", "checkpoints to keep: FILE, FILE.1, FILE.2 … (default 2)"},
    {"resume", 0, "FILE",
     "continue from this checkpoint, or from the newest intact one of FILE.1 …; the number of "
     "workers may differ"},
    CLI_JOB_OPTIONS,
    {"log-steps", 0, "N", "report progress every N steps (default: every two seconds)"},
    {"compare", 0, NULL, "run the same steps under every policy in turn, and print a table"},
    {"rounds", 0, "N", "with --compare: rounds over all policies (default 3)"},
    {"chrome-trace", 0, "FILE", "save the last step of all workers, for Perfetto and report"},
    CLI_PROGRESS,
    {"json", 0, NULL, "print JSON, an object per line"},
};

const cli_command cli_train = {
    .name = "train",
    .arguments = "MODEL",
    .least = 1,
    .most = 1,
    .summary = "train a network with several workers on this host or under mpirun",
    .details =
        "MODEL is lenet5, resnet20, resnet50, resnet152, googlenet, densenet161, densenet201 or "
        "inception_v4. Every worker computes the gradients of its own images with oneDNN. The "
        "engine averages them in merged messages during the backward pass, and calls the optimizer "
        "as averages arrive. The first steps are measured, then the plan is made; the summary "
        "compares its prediction with the measured step. Ctrl-C ends training after the current "
        "step, with a checkpoint if --checkpoint is given; the exit status is 128 + the signal. A "
        "comparison shows the rounds that are done.\n"
        "Checkpoints are written in the background; training only waits while the state is copied. "
        "A periodic checkpoint is skipped while the previous one is being written. With "
        "--restarts, training continues from --checkpoint if that file exists, also when you give "
        "the same command again, and --steps counts all steps; with the same number of workers, "
        "losses and weights are bit for bit those of an uninterrupted training. With --elastic, "
        "the remaining workers continue without a restart where they can, that is, over shared "
        "memory.\n" CLI_JOB_DETAILS
        "Under the policies overlap, sharded, zero, dear and fsdp, each worker updates its share "
        "of the weights and keeps the optimizer state of this share only. Updated weights are "
        "gathered during the next forward pass, which waits for weights where it needs them. A "
        "checkpoint holds the whole state; any number of workers can resume it under any policy.\n"
        "On one host, workers communicate through shared memory, at its full speed; --cluster or "
        "--network emulate a real network. Under mpirun they use MPI.\n"
        "With --compare, all policies train from the same weights on the same images, in several "
        "rounds, each in another order. Equal checksums of the weights show that merging changes "
        "only when gradients are sent. A step lasts from its start to the start of the next, "
        "including the optimizer. Times are medians over rounds of the slowest worker's median "
        "step. The ratio compares a policy's time with that of optimal (or of the first policy) in "
        "the same round: the median over rounds, and in brackets the 95% confidence interval, or "
        "the range of all ratios if there are fewer than six rounds.",
    .examples =
        "mgwfbp train lenet5 --epochs 2\n"
        "mgwfbp train resnet20 --cluster paper-2-10gbe --compare\n"
        "mgwfbp train resnet50 --batch 1 --size 64 --optimizer adamw --policy overlap --cluster "
        "paper-2-10gbe --steps 50\n"
        "mgwfbp train lenet5 --checkpoint lenet5.ckpt --checkpoint-seconds 30 --restarts 5\n"
        "mgwfbp train resnet20 -n 2 --checkpoint r20.ckpt --epochs 10 --augment\n"
        "mpirun -n 4 --bind-to none mgwfbp train resnet50 --batch 4 --steps 20\n",
    .options = options,
    .option_count = sizeof options / sizeof *options,
    .run = cli_train_run,
};
