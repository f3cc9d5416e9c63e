"""One worker of test_lanes: long messages over several lanes (MGWFBP_LANES), with every kind of message, beside stock DDP.

usage: worker_lanes.py DEVICE CASE...   A case is a transport, a kind (plain, wire or zero) and a policy. Rank 0 prints a JSON
object: by case, the largest difference of any weight from DDP's, how many lanes there were, and a hash of all weights.
"""

import hashlib
import json
import os
import sys

import torch
import torch.distributed as dist

import mgwfbp.torch

STEPS = 8
RANK = int(os.environ["RANK"])
DEVICE = torch.device(sys.argv[1])
if DEVICE.type == "cuda":  # NCCL lets workers share a GPU if it takes them for several hosts
    os.environ.update(NCCL_HOSTID=f"host{RANK}", NCCL_NET="Socket", NCCL_SOCKET_IFNAME="lo")
    torch.cuda.set_device(0)


def make_model():
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(512, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 1024, bias=False),
                               torch.nn.ReLU(), torch.nn.Linear(1024, 700)).to(DEVICE)


def train(model, optimizer):
    torch.manual_seed(10 + RANK)
    for _ in range(STEPS):
        loss = model(torch.randint(-2, 3, (4, 512)).float().to(DEVICE)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def weights_of(model):
    return [parameter.detach().cpu().clone() for parameter in model.parameters()]


def run(transport, kind, policy):
    """Weights, and lanes."""
    model = make_model()
    if transport == "ddp":
        wrapped = torch.nn.parallel.DistributedDataParallel(model)
        train(wrapped, torch.optim.SGD(wrapped.parameters(), lr=0.05, momentum=0.9))
        return weights_of(model), 1
    options = {"wire": "bf16"} if kind == "wire" else {}
    wrapped = mgwfbp.torch.DistributedDataParallel(model, transport=transport, policy=policy, profile_steps=2, trials=0, **options)
    if kind == "zero":
        optimizer = mgwfbp.torch.ZeroRedundancyOptimizer(wrapped, torch.optim.SGD, lr=0.05, momentum=0.9)
        train(wrapped, optimizer)
        optimizer.consolidate_state_dict()
    else:
        train(wrapped, torch.optim.SGD(wrapped.parameters(), lr=0.05, momentum=0.9))
    lanes = wrapped.statistics()["lanes"]
    found = weights_of(model)
    wrapped.close()
    return found, lanes


dist.init_process_group("nccl" if DEVICE.type == "cuda" else "gloo")
results, expected = {}, run("ddp", "plain", "ddp")[0]
for case in sys.argv[2:]:
    weights, lanes = run(*case.split())
    worst = torch.tensor(max(float((a - b).abs().max()) for a, b in zip(weights, expected)), device=DEVICE)
    dist.all_reduce(worst, dist.ReduceOp.MAX)
    bits = hashlib.sha256(b"".join(weight.numpy().tobytes() for weight in weights)).hexdigest()[:16]
    results[case] = {"difference": float(worst), "lanes": lanes, "bits": bits}
if RANK == 0:
    print(json.dumps(results), flush=True)
dist.barrier()
if DEVICE.type == "cuda":
    torch.cuda.synchronize()
    sys.stdout.flush()
    os._exit(0)
dist.destroy_process_group()
