#!/usr/bin/env python3
"""What averaging costs beyond communication: models of very many tiny tensors; one worker alone, or as many as launch it.

Every gradient costs its hook, every step its beginning and end. CPU time, since the clock would count whoever shares the
machine, and the quickest steps. Variants take turns; the slope over the number of tensors is the cost per tensor, the rest
the cost per step, both beyond a model that is not wrapped. Results go to docs/guide/pytorch.md.
"""

import os
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "python"))
os.environ.setdefault("MGWFBP_LIBRARY", str(ROOT / "build" / "release" / "src" / "libmgwfbp.so"))
for name, value in dict(RANK=0, WORLD_SIZE=1, MASTER_ADDR="127.0.0.1", MASTER_PORT=21000 + os.getpid() % 9000).items():
    os.environ.setdefault(name, str(value))

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

import mgwfbp.torch  # noqa: E402

COUNTS = (100, 600)
WARM_UP, STEPS = 15, 100


class Many(torch.nn.Module):
    def __init__(self, count):
        super().__init__()
        self.scales = torch.nn.ParameterList(torch.nn.Parameter(torch.ones(16)) for _ in range(count))

    def forward(self, x):
        for scale in self.scales:
            x = x * scale
        return x


def variants(count):
    stock, ours = torch.nn.parallel.DistributedDataParallel, mgwfbp.torch.DistributedDataParallel
    return {
        "not wrapped": Many(count),
        "DDP": stock(Many(count)),
        "DDP, gradient_as_bucket_view": stock(Many(count), gradient_as_bucket_view=True),
        "mgwfbp, torch (gloo)": ours(Many(count), transport="torch", policy="single"),
        "mgwfbp, native": ours(Many(count), transport="native", policy="single"),
    }


def step(model, x, set_to_none):
    begun = time.process_time()
    model.zero_grad(set_to_none=set_to_none)
    model(x).sum().backward()
    return time.process_time() - begun


def measure(count, set_to_none):
    """The quickest of many steps, by variant: others on the machine only make them slower."""
    x, models = torch.ones(16), variants(count)
    times = {name: [] for name in models}
    for number in range(WARM_UP + STEPS):
        for name, model in models.items():
            times[name].append(step(model, x, set_to_none))
    return {name: sorted(some[WARM_UP:]) for name, some in times.items()}


def cost(few, many, name, share):
    """Per tensor and per step, beyond a model that is not wrapped; at this share of the sorted steps."""
    at = [some[which][int(share * (STEPS - 1))] for which in (name, "not wrapped") for some in (few, many)]
    slope = (at[1] - at[0] - at[3] + at[2]) / (COUNTS[1] - COUNTS[0]) * 1e6
    return slope, (at[0] - at[2]) * 1e6 - slope * COUNTS[0]


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    if dist.get_rank() == 0:
        print(f"PyTorch {torch.__version__}, workers: {dist.get_world_size()}\n")
        print("| | gradients | us per tensor | at the 10th percentile | us per step |\n|---|---|---|---|---|")
    for set_to_none in (False, True):
        few, many = (measure(count, set_to_none) for count in COUNTS)
        for name in list(few)[1:] if dist.get_rank() == 0 else ():
            slope, rest = cost(few, many, name, 0)
            print(f"| {name} | {'set to None' if set_to_none else 'set to zero'} | {slope:.2f} | "
                  f"{cost(few, many, name, 0.1)[0]:.2f} | {rest:.0f} |")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
