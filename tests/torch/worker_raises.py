"""One worker of test_faults: its program does not handle the error that it gets in the middle of a backward pass."""

import datetime

import torch
import torch.distributed as dist

import mgwfbp.torch

dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
torch.manual_seed(0)
model = torch.nn.Sequential(*[torch.nn.Linear(8, 8) for _ in range(4)])
wrapped = mgwfbp.torch.DistributedDataParallel(model, transport="native", policy="fsdp:64B", profile_steps=2)
optimizer = mgwfbp.torch.ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)
for number in range(8):
    if number != 6:
        optimizer.zero_grad()
    wrapped(torch.ones(2, 8)).sum().backward()
    optimizer.step()
