"""One worker of test_lanes: a group without rank 2, while that rank does something else. Each rank prints the lanes of the group,
and by how much gradients differ from the average of ranks 0 and 1."""

import json

import torch
import torch.distributed as dist

import mgwfbp.torch

dist.init_process_group("gloo")
rank = dist.get_rank()
group = dist.new_group([0, 1])
lanes, difference = 1, 0.0
if rank < 2:
    model = torch.nn.Linear(1024, 1024)
    wrapped = mgwfbp.torch.DistributedDataParallel(model, process_group=group, transport="torch")
    for _ in range(4):
        wrapped(torch.full((1, 1024), float(rank + 1))).sum().backward()
        difference = max(difference, float((model.weight.grad - 1.5).abs().max()))
        model.zero_grad()
    lanes = wrapped.statistics()["lanes"]
    wrapped.close()
print(json.dumps([lanes, difference]))
dist.barrier()
dist.destroy_process_group()
