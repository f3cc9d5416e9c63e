"""One worker of test_cuda: the same weights as stock DDP on a GPU, which all workers share where there is only one.

usage: worker_cuda.py BACKEND. Rank 0 prints a JSON object.
"""

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


def make_model():
    layers = [nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU()]
    for _ in range(6):
        layers += [nn.Conv2d(32, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(32 * 256, 10)).to(DEVICE)


def train(wrapped, amp, steps=30):
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.02, momentum=0.9)
    scaler = torch.cuda.amp.GradScaler(enabled=amp)
    for step in range(steps):
        generator = torch.Generator().manual_seed(100 * step + RANK)
        x = torch.randn(16, 3, 16, 16, generator=generator).to(DEVICE)
        y = torch.randint(10, (16,), generator=generator).to(DEVICE)
        optimizer.zero_grad(set_to_none=step % 2 == 0)
        with torch.autocast("cuda", dtype=torch.float16, enabled=amp):
            loss = F.cross_entropy(wrapped(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(wrapped.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
    return {name: tensor.double() for name, tensor in wrapped.module.state_dict().items()}


def main(backend):
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False
    torch.cuda.set_device(DEVICE)
    dist.init_process_group(backend)
    results = {}
    for amp in (False, True):
        torch.manual_seed(RANK)
        model = make_model()
        expected = train(nn.parallel.DistributedDataParallel(copy.deepcopy(model), device_ids=[DEVICE.index]), amp)
        ours = mgwfbp.torch.DistributedDataParallel(copy.deepcopy(model), device_ids=[DEVICE.index], profile_steps=4)
        state = train(ours, amp)
        results["fp16" if amp else "fp32"] = max(float((state[n] - expected[n]).abs().max()) for n in expected)
    report = ours.report()
    results.update(messages=report.statistics["messages"], plans=report.statistics["plans"], text=str(report),
                   compute_s=report.compute_s, iteration_s=report.iteration_s,
                   parameters=len(list(model.parameters())))
    if RANK == 0:
        print(json.dumps(results))


if __name__ == "__main__":
    main(sys.argv[1])
