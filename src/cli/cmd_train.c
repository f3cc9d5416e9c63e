/* mgwfbp train: a network trained by several workers, and what merging its gradients did. */
#include "cli/run.h"

static const cli_option options[] = {
    {"workers", 'n', "N", "number of workers on this host (default 4); not under another launcher"},
    {"batch", 'b', "N", "images per worker and step (default 64; 8 for ImageNet models)"},
    {"epochs", 'e', "N", "times through the data (default 5); the learning rate ends there"},
    {"steps", 's', "N",
     "end after so many steps; with --compare: per policy and round (default 5), behind as many "
     "to plan from"},
    {"optimizer", 0, "O", "sgd, with momentum, or adamw (default sgd)"},
    {"rate", 0, "X", "learning rate (default 0.05; adamw: 1e-3)"},
    {"momentum", 0, "X", "sgd: momentum (default 0.9)"},
    {"decay", 0, "X", "weight decay (default 5e-4; adamw: 1e-2)"},
    {"betas", 0, "X,Y",
     "adamw: what the means of gradients and of their squares keep in a step "
     "(default 0.9,0.999)"},
    {"epsilon", 0, "X", "adamw: added to the root of the mean square (default 1e-8)"},
    {"warmup", 0, "X", "epochs in which the rate grows to its value (default 0.5)"},
    {"seed", 0, "N", "of weights, order and augmentation (default 1)"},
    {"augment", 0, NULL, "shift and mirror images at random"},
    {"data", 'd', "DIR",
     "folder of IDX files, or synthetic (default: Fashion-MNIST, or synthetic "
     "for ImageNet models)"},
    {"size", 0, "N", "height and width of synthetic images (default: the model's usual)"},
    {"precision", 0, "P", "f32, or bf16-comm: gradients travel as bf16 (default f32)"},
    {"policy", 'p', "LIST",
     "how gradients are merged (default optimal); with --compare: those to "
     "compare (default all,overlap: all of whole messages, and that)"},
    {"cluster", 'c', "C", "emulate this cluster's network (a file or built-in name)"},
    {"network", 0, "A,B", "emulate a network on which M bytes take A + B*M seconds"},
    {"servers", 0, "K", "parameter-server aggregation: each message is summed by one of K workers"},
    {"threads", 0, "N", "threads of computation per worker (default 1, which is reproducible)"},
    {"checkpoint", 0, "FILE", "save the state here after every epoch, and at the end"},
    {"checkpoint-steps", 0, "N", "save it every so many steps, too"},
    {"resume", 0, "FILE", "go on from this checkpoint; the number of workers may be another"},
    {"compare", 0, NULL, "the same steps under every policy in turn, and a table"},
    {"rounds", 0, "N", "with --compare: rounds over all policies (default 3)"},
    {"chrome-trace", 0, "FILE", "save the last step of all workers, for Perfetto and report"},
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
        "inception_v4. Every worker computes gradients of its own images with oneDNN; the engine "
        "averages them in merged messages while the backward pass goes on, and calls the optimizer "
        "as averages come. The first steps are "
        "measured, then the plan is made; the summary shows what it predicted beside what came of "
        "it. Ctrl-C ends training after the step, with a checkpoint if --checkpoint is given; a "
        "comparison shows the rounds that are done.\n"
        "Under the policies overlap, zero, dear and fsdp each worker updates its share of the "
        "weights, "
        "and remembers the optimizer's state of that share alone; what was updated is gathered "
        "while "
        "the next forward pass goes on, which waits for weights as it comes to them. A checkpoint "
        "holds the whole state, and is resumed by any number of workers under any policy.\n"
        "The network between workers is shared memory here, and as fast as that; --cluster or "
        "--network make it as slow as a real one. Under mpirun it is MPI.\n"
        "With --compare, all policies train from the same weights on the same images, round after "
        "round, each round in another order; equal checksums of the weights show that merging "
        "changes when gradients travel, and nothing else. A step counts from its begin to the "
        "begin "
        "of the next, with the optimizer's part of it. Times are medians over rounds of the "
        "median step, of which the slowest worker counts. The ratio is that of a policy's time to "
        "that of optimal (or of the first policy) in the same round: the median over rounds, and "
        "in brackets what holds it with 95%; of fewer than six rounds, all ratios.",
    .examples =
        "mgwfbp train lenet5 --epochs 2\n"
        "mgwfbp train resnet20 --cluster paper-2-10gbe --compare\n"
        "mgwfbp train resnet50 --batch 1 --size 64 --optimizer adamw --policy overlap --cluster "
        "paper-2-10gbe --steps 50\n"
        "mgwfbp train resnet20 -n 2 --checkpoint r20.ckpt --epochs 10 --augment\n"
        "mpirun -n 4 --bind-to none mgwfbp train resnet50 --batch 4 --steps 20\n",
    .options = options,
    .option_count = sizeof options / sizeof *options,
    .run = cli_train_run,
};
