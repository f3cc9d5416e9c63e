"""One worker of test_cuda where there is no GPU: the transport native as on one, with the fake driver and the fake NCCL of
tests/fake, whose device memory is the host's, so that PyTorch's own tensors can be there.

Rank 0 prints a JSON object.
"""

import copy
import json
import os

import torch
import torch.distributed as dist
import torch.nn as nn

import mgwfbp.torch
import models
from mgwfbp.torch import batch, groups, native, sync

RANK = int(os.environ["RANK"])


class Stream:
    """The default one, or another that has to wait for it."""

    def __init__(self, number=0):
        self.cuda_stream, self.waited = number, []

    def wait_stream(self, other):
        self.waited.append(other)


class FakeReducer(native.CudaReducer):
    _show = native.NativeReducer._show

    def __init__(self, group, slots, *others):
        self.strides = [slot.stride for slot in slots]
        self.current = lambda: torch.cuda.current_stream().cuda_stream
        native.NativeReducer.__init__(self, group, slots, *others)


def count_fused_copies():
    """What PyTorch copies for the engine, many tensors at once; nothing in versions that cannot."""
    counted, copy = [0], batch.fused_copy

    def fused_copy(views, gradients):
        counted[0] += sum(view.numel() * view.element_size() for view in views)
        copy(views, gradients)

    if copy:
        batch.fused_copy = fused_copy
    return counted


def install():
    default = Stream()
    torch.cuda.current_stream = lambda device=None: default
    groups._split = lambda name, device: (None, True)
    sync.make_reducer = FakeReducer
    return default


def train(wrapped, steps=30, accumulate=2):
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.02, momentum=0.9)
    for step in range(steps):
        optimizer.zero_grad(set_to_none=step % 3 == 0)
        parts = accumulate if step % 4 == 0 else 1
        for part in range(parts):
            generator = torch.Generator().manual_seed(100 * step + 10 * part + RANK)
            if part < parts - 1:
                with wrapped.no_sync():
                    wrapped.module.loss(wrapped, generator).backward()
            else:
                wrapped.module.loss(wrapped, generator).backward()
        optimizer.step()
    return {name: tensor.clone() for name, tensor in wrapped.module.state_dict().items()}


def main():
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    default = install()
    results, fused = {}, count_fused_copies()
    for make, options, accumulate in ((models.Cnn, {}, 2), (models.Mixed, {}, 2),
                                      (models.Branches, {"find_unused_parameters": True}, 1)):  # DDP's ranks drift apart
        torch.manual_seed(RANK)
        model = make()
        expected = train(nn.parallel.DistributedDataParallel(copy.deepcopy(model), **options), accumulate=accumulate)
        fused[0] = 0
        ours = mgwfbp.torch.DistributedDataParallel(copy.deepcopy(model), transport="native", replan_steps=12, **options)
        state = train(ours, accumulate=accumulate)
        results[make.__name__] = all(torch.equal(state[name], expected[name]) for name in expected)
        for policy in ("wfbp", "single", "mgwfbp", "optimal"):
            ours.set_policy(policy)
            train(ours, 2, accumulate)
        if make is models.Cnn:
            results["copied by the engine"] = ours._sync.reducer.engine.statistics()["copied_bytes"]
            results["copied at once"] = fused[0] if batch.fused_copy else None
            results.update(statistics=ours.statistics(), text=str(ours.report()), waited=len(default.waited))
            other = Stream(0)
            ours._sync.reducer.stream = other  # backward was called where another stream was current
            ours._sync.reducer.engine.begin()
            for k in range(len(ours._sync.parameters)):
                ours._sync.reducer.ready(k)
            ours._sync.reducer.wait()
            results["waited for the other"] = default.waited == [other]
        ours.close()
    if RANK == 0:
        print(json.dumps(results))


if __name__ == "__main__":
    main()
    dist.destroy_process_group()  # gloo has threads, which must not outlive the interpreter
