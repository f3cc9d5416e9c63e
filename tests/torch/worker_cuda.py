"""One worker of test_cuda: the same weights as stock DDP on a GPU, which all workers share where there is only one.

usage: worker_cuda.py BACKEND TRANSPORT...   Rank 0 prints a JSON object: by transport, the largest difference of any
element of the model's state in each case, and what the last of them reports.
"""

import contextlib
import copy
import json
import os
import sys

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

import mgwfbp.torch

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
DEVICE = torch.device("cuda", RANK % torch.cuda.device_count())
if SIZE > torch.cuda.device_count():  # NCCL lets workers share a GPU if it takes them for several hosts
    os.environ.update(NCCL_HOSTID=f"host{RANK}", NCCL_NET="Socket", NCCL_SOCKET_IFNAME="lo")


def make_model():
    layers = [nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU()]
    for _ in range(6):
        layers += [nn.Conv2d(32, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(32 * 256, 10)).to(DEVICE)


def with_graph(model):
    """All but the last two layers as CUDA graphs, of the forward and of the backward pass."""
    body = nn.Sequential(*list(model)[:-2])
    sample, _ = batch(0, 0)  # the same for all: capturing runs it, and batch normalisation remembers
    return nn.Sequential(torch.cuda.make_graphed_callables(body, (sample,)), *list(model)[-2:])


class Mixed(nn.Module):
    """Gradients of four dtypes."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(768, 768 if k < 7 else 10).to(dtype) for k, dtype in enumerate(
            2 * [torch.float32, torch.float64, torch.bfloat16, torch.float16]))

    def forward(self, x):
        x = x.flatten(1)
        for layer in self.layers:
            x = torch.tanh(layer(x.to(layer.weight.dtype)))
        return x.float()


def batch(step, part):
    generator = torch.Generator().manual_seed(1000 * step + 100 * part + RANK)
    return (torch.randn(16, 3, 16, 16, generator=generator).to(DEVICE),
            torch.randint(10, (16,), generator=generator).to(DEVICE))


def train(wrapped, amp=False, accumulate=1, side=False, clip=True, keep=True, steps=30):
    """Gradients are set to None in every other step, and without `keep` in every one. `side`: on a stream of its own, every
    third step's forward pass and backward pass on different ones."""
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.02, momentum=0.9)
    scaler = torch.cuda.amp.GradScaler(enabled=amp)
    home = torch.cuda.current_stream(DEVICE)
    aside = torch.cuda.Stream(DEVICE) if side else home
    for step in range(steps):
        optimizer.zero_grad(set_to_none=not keep or step % 2 == 0)
        for part in range(accumulate):
            x, y = batch(step, part)
            with contextlib.nullcontext() if part == accumulate - 1 else wrapped.no_sync():
                aside.wait_stream(home)
                with torch.cuda.stream(aside), torch.autocast("cuda", dtype=torch.float16, enabled=amp):
                    loss = F.cross_entropy(wrapped(x), y)
                if step % 3 == 0:  # backward from home: what hooks do is still aside
                    home.wait_stream(aside)
                    scaler.scale(loss).backward()
                else:
                    with torch.cuda.stream(aside):
                        scaler.scale(loss).backward()
                    home.wait_stream(aside)
        scaler.unscale_(optimizer)
        if clip:
            nn.utils.clip_grad_norm_(wrapped.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
    return {name: tensor.double() for name, tensor in wrapped.module.state_dict().items()}


def as_it_is(model):
    return model


# With DDP, or without, .grad becomes the memory that a graph writes its gradient to: unless it is None before every
# backward pass, the gradient is added to itself. Ours are in the arena.
NOT_KEPT = {"keep": False}

CASES = {  # how to make the model, what to do to each copy of it, how to train, and what DDP needs besides
    "fp32": (make_model, as_it_is, {}, {}),
    "fp32, accumulated": (make_model, as_it_is, {"accumulate": 2}, {}),
    "fp32, side stream": (make_model, as_it_is, {"side": True}, {}),
    "fp32, CUDA graphs": (make_model, with_graph, NOT_KEPT, NOT_KEPT),
    "fp32, CUDA graphs, kept gradients": (make_model, with_graph, {}, NOT_KEPT),
    "fp16, four dtypes": (Mixed, as_it_is, {"clip": False}, {}),
    "fp16, autocast": (make_model, as_it_is, {"amp": True}, {}),
}


def steady_waits(wrapped, how):
    """How often the host waits for the GPU in steps without planning; None: not counted."""
    before = wrapped.statistics().get("device_waits")
    train(wrapped, **dict(how, steps=4))
    return None if before is None else wrapped.statistics()["device_waits"] - before


def main(backend, transports):
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False
    torch.cuda.set_device(DEVICE)
    dist.init_process_group(backend)
    results = {transport: {"differences": {}} for transport in transports}
    for case, (make, prepare, how, stock_needs) in CASES.items():
        torch.manual_seed(RANK)
        model = make().to(DEVICE)
        stock = nn.parallel.DistributedDataParallel(prepare(copy.deepcopy(model)), device_ids=[DEVICE.index])
        expected = train(stock, **{**how, **stock_needs})
        for transport in transports:
            ours = mgwfbp.torch.DistributedDataParallel(prepare(copy.deepcopy(model)), device_ids=[DEVICE.index],
                                                        transport=transport, profile_steps=4)
            state = train(ours, **how)
            worst = torch.stack([(state[n] - expected[n]).abs().max() for n in expected]).max()
            dist.all_reduce(worst, op=dist.ReduceOp.MAX)
            report = ours.report()
            results[transport]["differences"][case] = float(worst)
            results[transport].update(
                messages=report.statistics["messages"], plans=report.statistics["plans"], text=str(report),
                compute_s=report.compute_s, iteration_s=report.iteration_s, parameters=len(list(model.parameters())))
            waits = steady_waits(ours, how)
            if waits is not None:
                results[transport]["waits in steps"] = waits
            ours.close()
    if RANK == 0:
        print(json.dumps(results))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
    dist.destroy_process_group()  # gloo has threads, which must not outlive the interpreter
