"""One worker of test_hosts: the transport native over several hosts, with the fake GPU of worker_fake_cuda; or, with `cpu`,
what is said of gradients in the memory of hosts. Prints a JSON object."""

import json
import os
import sys

import torch

import mgwfbp.torch
import worker_fake_cuda

torch.manual_seed(1 + int(os.environ["RANK"]))  # rank 0's weights go to everybody
model = torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.ReLU(), torch.nn.Linear(30, 3))
if sys.argv[1:] == ["cpu"]:
    try:
        mgwfbp.torch.DistributedDataParallel(model)
    except RuntimeError as error:
        print(json.dumps({"error": str(error)}), flush=True)
    sys.exit()
worker_fake_cuda.install()
wrapped = mgwfbp.torch.DistributedDataParallel(model, transport="native")
optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
for step in range(12):
    optimizer.zero_grad()
    wrapped(torch.randn(8, 20)).square().mean().backward()
    optimizer.step()
weights = torch.cat([each.detach().flatten() for each in model.parameters()])
print(json.dumps({"about": str(wrapped.report().transport), "sum": weights.double().sum().item()}), flush=True)
