"""One worker of test_parity: trains with PyTorch's DDP and with ours, on both transports, and tells how weights differ.

Rank 0 prints a JSON object: case -> transport -> the largest difference of any element of the model's state, and
whether all bits are the same, on any rank.
"""

import contextlib
import copy
import functools
import json
import os
import sys

import torch
import torch.distributed as dist
import torch.nn as nn

import mgwfbp.torch
import models

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
STEPS = 50
DIVERGING_STEPS = 12  # if sums are in another order and computation is in bf16; several plans are used meanwhile


def generator(step, rank=RANK):
    return torch.Generator().manual_seed(1000 * step + rank)


def train(wrap, model, steps=range(STEPS), accumulate=1, autocast=False, set_to_none=False, scale=None, clip=None,
          optimizer=None, state=None):
    """Trains a copy of the model, and returns its state and the optimizer's."""
    wrapped = wrap(copy.deepcopy(model))
    inner = wrapped.module
    if optimizer == "adam":
        weights = [p for p in inner.parameters() if p.dim() > 1 and p.requires_grad]
        rest = [p for p in inner.parameters() if p.dim() <= 1 and p.requires_grad]
        updates = torch.optim.AdamW([{"params": weights, "weight_decay": 0.1}, {"params": rest, "lr": 1e-2}], lr=3e-3)
    else:
        updates = torch.optim.SGD(inner.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3)
    if state:
        updates.load_state_dict(state)
    for step in steps:
        updates.zero_grad(set_to_none=set_to_none)
        for part in range(accumulate):
            last = part == accumulate - 1
            with contextlib.nullcontext() if last else wrapped.no_sync():
                with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
                    loss = inner.loss(wrapped, generator(step * accumulate + part))
                (loss * (scale or 1.0)).backward()
        for parameter in inner.parameters():
            if scale and parameter.grad is not None:
                parameter.grad.div_(scale)
        if hasattr(wrapped, "average"):
            wrapped.average()
        if clip:
            nn.utils.clip_grad_norm_(inner.parameters(), clip)
        updates.step()
    result = {name: tensor.clone() for name, tensor in inner.state_dict().items()}, updates.state_dict()
    if hasattr(wrapped, "close"):
        wrapped.close()
    return result


CASES = {
    "cnn": (models.Cnn, {}, {}),
    "cnn, gradients set to None": (models.Cnn, {}, {"set_to_none": True}),
    "cnn, accumulated": (models.Cnn, {}, {"accumulate": 3}),
    "cnn, accumulated, set to None": (models.Cnn, {}, {"accumulate": 2, "set_to_none": True}),
    "cnn, channels last": (models.ChannelsLast, {}, {}),
    "cnn, bf16 autocast": (models.Cnn, {}, {"autocast": True}),
    "cnn, scaled and clipped": (models.Cnn, {}, {"scale": 1024.0, "clip": 0.5}),
    "transformer": (models.Transformer, {}, {"optimizer": "adam"}),
    "transformer, bf16 autocast": (models.Transformer, {}, {"autocast": True}),
    "unused and frozen": (models.Branches, {"find_unused_parameters": True}, {}),
    "unused and frozen, set to None": (models.Branches, {"find_unused_parameters": True}, {"set_to_none": True}),
    "two dtypes": (models.Mixed, {}, {}),
    "no broadcast of buffers": (models.Cnn, {"broadcast_buffers": False}, {}),
}


def difference(state, expected):
    """The largest difference, and whether all bits are equal, over all ranks."""
    worst = max(float((state[name].double() - expected[name].double()).abs().max()) for name in expected)
    equal = all(torch.equal(state[name], expected[name]) for name in expected)
    row = torch.tensor([worst, 0.0 if equal else 1.0], dtype=torch.float64)
    dist.all_reduce(row, op=dist.ReduceOp.MAX)
    return {"difference": float(row[0]), "bits": float(row[1]) == 0.0}


def ours(transport, **options):
    return lambda model: mgwfbp.torch.DistributedDataParallel(model, transport=transport, profile_steps=3,
                                                              replan_steps=7, replan_percent=0, **options)


def stock(**options):
    return lambda model: nn.parallel.DistributedDataParallel(model, **options)


def in_order():
    """Stock DDP which adds up in the order of ranks, as native does."""
    def average(_, bucket):
        parts = [torch.empty_like(bucket.buffer()) for _ in range(SIZE)]
        dist.all_gather(parts, bucket.buffer())
        future = torch.futures.Future()
        future.set_result(functools.reduce(torch.add, parts) / SIZE)
        return future

    def wrap(model):
        wrapped = nn.parallel.DistributedDataParallel(model)
        wrapped.register_comm_hook(None, average)
        return wrapped

    return wrap


def optimizer_wrapped(transport):
    """DistributedOptimizer in the clothes of a wrapper, to be trained by the same loop."""

    class Wrapped(nn.Module):
        def __init__(self, module):
            super().__init__()
            self.module = module
            self.distributed = mgwfbp.torch.DistributedOptimizer(
                torch.optim.SGD(module.parameters(), lr=1.0), module, transport=transport, profile_steps=3)
            self.close = self.distributed.close

        def forward(self, *inputs):
            return self.module(*inputs)

    return Wrapped


class ByHand(nn.Module):
    """The definition of averaging: a worker without a gradient adds zero; if no worker has one, there is none."""

    def __init__(self, module):
        super().__init__()
        self.module, self.no_sync = module, contextlib.nullcontext
        for parameter in module.parameters():
            dist.broadcast(parameter.data, 0)

    def forward(self, *inputs):
        return self.module(*inputs)

    def average(self):
        for parameter in self.module.parameters():
            have = torch.tensor(0.0 if parameter.grad is None else 1.0)
            dist.all_reduce(have)
            if have > 0:
                parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                dist.all_reduce(parameter.grad)
                parameter.grad /= SIZE


def make_model(make, how):
    """Sums of two numbers do not depend on their order: bits must be equal. Of four they do: with doubles, a difference
    that is not rounding stands out."""
    model = make()
    return model.double() if SIZE > 2 and not how.get("autocast") else model


def main():
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    results = {}
    for case, (make, options, how) in CASES.items():
        torch.manual_seed(5 + RANK)  # parameters differ at first: rank 0's are everybody's
        model = make_model(make, how)
        for transport in ("torch", "native"):
            diverges = SIZE > 2 and how.get("autocast")
            reference = in_order() if diverges and transport == "native" else stock(**options)
            steps = range(DIVERGING_STEPS if diverges and transport == "torch" else STEPS)
            if transport == "torch" or diverges:
                expected, _ = train(reference, model, steps=steps, **how)
            state, _ = train(ours(transport, **options), model, steps=steps, **how)
            results.setdefault(case, {})[transport] = difference(state, expected)
    results.update(more())
    if RANK == 0:
        print(json.dumps(results))


def more():
    """What stock DDP does not do, or not in this way: against one that does the same by other means."""
    torch.manual_seed(7)
    model, checkpointed = make_model(models.Transformer, {}), make_model(models.Checkpointed, {})
    checkpointed.load_state_dict(model.state_dict())
    expected, _ = train(stock(), model)
    cnn = make_model(models.Cnn, {})
    branches = make_model(models.Branches, {})
    accumulated = {"accumulate": 2, "set_to_none": True}  # where DDP's ranks drift apart
    by_hand, _ = train(ByHand, branches, **accumulated)
    whole, _ = train(stock(broadcast_buffers=False), cnn)
    results = {}
    for transport in ("torch", "native"):
        state, _ = train(ours(transport), checkpointed)
        results.setdefault("reentrant checkpoints", {})[transport] = difference(state, expected)
        state, _ = train(optimizer_wrapped(transport), cnn)
        results.setdefault("DistributedOptimizer", {})[transport] = difference(state, whole)
        state, _ = train(ours(transport, find_unused_parameters=True), branches, **accumulated)
        results.setdefault("unused and frozen, accumulated", {})[transport] = difference(state, by_hand)
        half, updates = train(ours(transport, broadcast_buffers=False), cnn, steps=range(STEPS // 2))
        resumed = copy.deepcopy(cnn)
        resumed.load_state_dict(half)
        # Batch norm's statistics are each worker's own here, and wrapping makes them rank 0's: compare weights.
        state, _ = train(ours(transport, broadcast_buffers=False), resumed, steps=range(STEPS // 2, STEPS), state=updates)
        weights = {name for name, _ in cnn.named_parameters()}
        results.setdefault("checkpoint and resume", {})[transport] = difference(
            {n: t for n, t in state.items() if n in weights}, {n: t for n, t in whole.items() if n in weights})
    return results


if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    main()
    dist.destroy_process_group()  # gloo has threads, which must not outlive the interpreter
