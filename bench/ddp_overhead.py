#!/usr/bin/env python3
"""What averaging costs beyond communication: one worker alone, models of very many tiny tensors.

Every gradient costs its hook, every step its beginning and end. CPU time, since the clock would count whoever shares the
machine. Variants take turns; the slope over the number of tensors is
the cost per tensor, the rest the cost per step, both beyond a model that is not wrapped. Results go to docs/pytorch.md.
"""

import os
import statistics
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "python"))
os.environ.setdefault("MGWFBP_LIBRARY", str(ROOT / "build" / "release" / "src" / "libmgwfbp.so"))
os.environ.update(RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(21000 + os.getpid() % 9000))

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

import mgwfbp.torch  # noqa: E402

COUNTS = (100, 600)
ROUNDS, STEPS = 15, 10


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


def block(model, x, set_to_none):
    begun = time.process_time()
    for _ in range(STEPS):
        model.zero_grad(set_to_none=set_to_none)
        model(x).sum().backward()
    return (time.process_time() - begun) / STEPS


def measure(count, set_to_none):
    x, models = torch.ones(16), variants(count)
    for model in models.values():
        block(model, x, set_to_none)
    rounds = {name: [] for name in models}
    for _ in range(ROUNDS):
        for name, model in models.items():
            rounds[name].append(block(model, x, set_to_none))
    return {name: [t - p for t, p in zip(times, rounds["not wrapped"])] for name, times in rounds.items()}


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    print("| | gradients | us per tensor | spread | us per step |\n|---|---|---|---|---|")
    for set_to_none in (False, True):
        few, many = (measure(count, set_to_none) for count in COUNTS)
        for name in list(few)[1:]:
            slopes = [(m - f) / (COUNTS[1] - COUNTS[0]) * 1e6 for f, m in zip(few[name], many[name])]
            slope = statistics.median(slopes)
            low, _, high = statistics.quantiles(slopes, n=4)
            rest = statistics.median(few[name]) * 1e6 - slope * COUNTS[0]
            print(f"| {name} | {'set to None' if set_to_none else 'set to zero'} | {slope:.2f} | "
                  f"{(high - low) / 2:.2f} | {rest:.0f} |")


if __name__ == "__main__":
    main()
