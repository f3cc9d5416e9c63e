"""One worker of test_zero_use where there is no GPU: ZeroRedundancyOptimizer over the engine as on one, with the fake driver and
the fake NCCL of tests/fake, whose device memory is the host's.

Rank 0 prints a JSON object: model -> whether all weights are those of stock DDP with a plain optimizer, bit for bit.
"""

import copy
import json
import os

import torch
import torch.distributed as dist
import torch.nn as nn

import mgwfbp.torch
import models
from mgwfbp.torch import groups, native, sharded_native
from worker_fake_cuda import Stream

RANK = int(os.environ["RANK"])


class FakeReducer(sharded_native.ShardedCudaReducer):
    _show = native.NativeReducer._show

    def __init__(self, group, slots, *others):
        self.stream, self.strides = None, [slot.stride for slot in slots]
        self.current = lambda: torch.cuda.current_stream().cuda_stream
        sharded_native.ShardedNativeReducer.__init__(self, group, slots, *others)


def on_a_gpu(self, group, slots, options, device, **more):
    native.NativeReducer.__init__(self, group, slots, options, device, **more)


def train(wrapped, optimizer, other=None):
    gathers = 0
    for step in range(48):
        optimizer.zero_grad(set_to_none=step % 3 == 0)
        wrapped.module.loss(wrapped, torch.Generator().manual_seed(100 * step + RANK)).backward()
        optimizer.step()
        if hasattr(wrapped, "set_policy"):
            gathers = max(gathers, wrapped.statistics()["gathers"])
            if step % 12 == 11:
                wrapped.set_policy(("overlap", "zero:4KiB", "optimal")[step // 12 % 3])
        if other and step == 16:  # another stream waits for the step's, where it uses a parameter first
            before, torch.cuda.current_stream = torch.cuda.current_stream, lambda device=None: other
            next(iter(wrapped.module.parameters())).sum()
            torch.cuda.current_stream = before
    return gathers


def main():
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    default, other, results = Stream(), Stream(1), {}
    torch.cuda.current_stream = lambda device=None: default
    groups._split = lambda name, device: (None, True)
    native.CudaReducer.__init__ = on_a_gpu
    sharded_native.make_sharded = FakeReducer
    for make in (models.Cnn, models.Transformer, models.Mixed):
        torch.manual_seed(2)
        model = make()
        plain = nn.parallel.DistributedDataParallel(copy.deepcopy(model))
        train(plain, torch.optim.AdamW(plain.parameters(), lr=1e-3))
        for buffer in plain.module.buffers():  # as the next forward pass would begin: ours are rank 0's by now
            dist.broadcast(buffer, 0)
        wrapped = mgwfbp.torch.DistributedDataParallel(model, transport="native", policy="zero:2KiB", profile_steps=3)
        optimizer = mgwfbp.torch.ZeroRedundancyOptimizer(wrapped, torch.optim.AdamW, lr=1e-3)
        results["gathers"] = max(results.get("gathers", 0), train(wrapped, optimizer, other))
        results[make.__name__] = all(torch.equal(a, b) for a, b in zip(model.state_dict().values(),
                                                                       plain.module.state_dict().values()))
        results["waits"] = wrapped.statistics()["device_waits"]
        wrapped.close()
    results["other stream waited"] = len(other.waited) > 0
    if RANK == 0:
        print(json.dumps(results))


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
