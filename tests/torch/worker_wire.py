"""One worker of test_cuda: f32 gradients on a GPU that travel as 16 bits, bit for bit what the rule says.

usage: worker_wire.py cuda|fake   `fake` with the driver and the NCCL of tests/fake. Rank 0 prints a JSON object.
"""

import json
import os
import sys

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

import mgwfbp.torch

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
NARROW = {"bf16": torch.bfloat16, "f16": torch.float16}
SHAPES = [(7,), (300, 200), (1,), (129, 65), (1000, 33), (31,), (2, 3, 5)]


class Direct(nn.Module):
    """Gradients are what it is called with."""

    def __init__(self):
        super().__init__()
        self.parts = nn.ParameterList(nn.Parameter(torch.zeros(shape)) for shape in SHAPES)

    def forward(self, gradients):
        return sum((part * gradient).sum() for part, gradient in zip(self.parts, gradients))


def gradients_of(rank, step, device):
    """Of many sizes; the first is too large for f16, and infinite on its way."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    made = [torch.randn(shape, generator=generator) * 10.0 ** torch.randint(-6, 2, shape, generator=generator)
            for shape in SHAPES]
    made[0][0] = 1e6
    return [gradient.to(device) for gradient in made]


def average(rows, dtype):
    """Each rounded, added up in f32 in the order of ranks, divided, and rounded once."""
    total = rows[0].to(dtype).float()
    for row in rows[1:]:
        total = total + row.to(dtype).float()
    return (total / SIZE).to(dtype).float()


def check(expected_wire, device, prepare=lambda wrapped: wrapped, **options):
    """How many numbers are not as they must be, of how many; and what the report says."""
    torch.manual_seed(0)
    model = prepare(mgwfbp.torch.DistributedDataParallel(Direct().to(device), transport="native", timeout_s=60,
                                                         profile_steps=2, **options))
    wrong = count = 0
    for step in range(16):
        if step == 12:
            model.set_policy("wfbp")
        model.zero_grad()
        model(gradients_of(RANK, step, device)).backward()
        if step == 0:  # nothing is known of gradients yet: they travel as they are
            continue
        rows = [gradients_of(rank, step, device) for rank in range(SIZE)]
        for k, part in enumerate(model.module.parts):
            expected = average([row[k] for row in rows], NARROW[expected_wire])
            wrong += int((part.grad != expected).sum())
            count += part.numel()
    text, statistics = str(model.report()), model.statistics()
    used = model._sync.options.wire
    model.close()
    return {"wrong": wrong, "of": count, "text": text, "wire": used, "messages": statistics["messages"],
            "parameters": sum(part.numel() for part in Direct().parts)}


def hooked(hook):
    def prepare(wrapped):
        wrapped.register_comm_hook(None, hook)
        return wrapped

    return prepare


def main(where):
    if where == "fake":
        import worker_fake_cuda
        dist.init_process_group("gloo")
        worker_fake_cuda.install()
        torch.set_num_threads(1)
        device = torch.device("cpu")
    else:
        device = torch.device("cuda", RANK % torch.cuda.device_count())
        if SIZE > torch.cuda.device_count():  # NCCL lets workers share a GPU if it takes them for several hosts
            os.environ.update(NCCL_HOSTID=f"host{RANK}", NCCL_NET="Socket", NCCL_SOCKET_IFNAME="lo")
        torch.cuda.set_device(device)
        dist.init_process_group("nccl")
    results = {"bf16": check("bf16", device, wire="bf16")}
    if where == "cuda":
        results["f16"] = check("f16", device, wire="f16")
        results["bf16 hook"] = check("bf16", device, hooked(default_hooks.bf16_compress_hook))
    results["f16 hook"] = check("f16", device, hooked(default_hooks.fp16_compress_hook))
    os.environ["MGWFBP_WIRE"] = "bf16"
    results["environment"] = check("bf16", device)
    worst = torch.tensor(float(sum(result["wrong"] for result in results.values())), device=device)
    dist.all_reduce(worst)
    results["wrong on all ranks"] = int(worst)
    if RANK == 0:
        print(json.dumps(results), flush=True)
    if worst:
        sys.exit(1)


if __name__ == "__main__":
    main(sys.argv[1])
    dist.destroy_process_group()  # gloo has threads, which must not outlive the interpreter
