"""One worker of test_lanes: long messages over several lanes (MGWFBP_LANES), with every kind of message, beside stock DDP.

usage: worker_lanes.py DEVICE CASE...   A case is a transport, a kind (plain, wire, hook, trials or zero) and a policy. Rank 0 prints a JSON
object: by case, the largest difference of any weight from DDP's, how many lanes there were, how many carried data, which
plans were tried, and a hash of all weights.
"""

import hashlib
import json
import os
import sys

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

import mgwfbp.torch

STEPS = 8
TRIALS = 100  # steps, so that every plan has had a turn
RANK = int(os.environ["RANK"])
DEVICE = torch.device(sys.argv[1])
if DEVICE.type == "cuda":  # NCCL lets workers share a GPU if it takes them for several hosts
    os.environ.update(NCCL_HOSTID=f"host{RANK}", NCCL_NET="Socket", NCCL_SOCKET_IFNAME="lo")
    torch.cuda.set_device(0)


carrying = set()  # process groups, by which messages of a step went


def watch(collective):
    send = getattr(dist, collective)

    def watched(*arguments, **named):
        if named.get("async_op"):
            given = [each for each in (*arguments, named.get("group")) if isinstance(each, dist.ProcessGroup)]
            carrying.add(given[0] if given else dist.group.WORLD)
        return send(*arguments, **named)

    setattr(dist, collective, watched)


for name in "all_reduce", "all_to_all_single", "all_gather", "all_gather_into_tensor", "reduce_scatter_tensor":
    if hasattr(dist, name):
        watch(name)


def make_model():
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(512, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 1024, bias=False),
                               torch.nn.ReLU(), torch.nn.Linear(1024, 700)).to(DEVICE)


def train(model, optimizer, steps=STEPS):
    torch.manual_seed(10 + RANK)
    for _ in range(steps):
        loss = model(torch.randint(-2, 3, (4, 512)).float().to(DEVICE)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def weights_of(model):
    return [parameter.detach().cpu().clone() for parameter in model.parameters()]


def run(transport, kind, policy):
    """Weights, and what the wrapper says."""
    steps = TRIALS if kind == "trials" else STEPS
    model = make_model()
    if transport == "ddp":
        wrapped = torch.nn.parallel.DistributedDataParallel(model)
        train(wrapped, torch.optim.SGD(wrapped.parameters(), lr=0.05, momentum=0.9), steps)
        return weights_of(model), {}
    # In a trial, the model's best plan must differ from DDP's buckets: a message takes long, so that it is one.
    options = {"wire": {"wire": "bf16"}, "trials": {"cluster": "100ms,1Gbit/s"}}.get(kind, {})
    wrapped = mgwfbp.torch.DistributedDataParallel(model, transport=transport, policy=policy, profile_steps=2,
                                                   trials=kind == "trials", **options)
    if kind == "hook":
        wrapped.register_comm_hook(None, default_hooks.allreduce_hook)
    carrying.clear()
    if kind == "zero":
        optimizer = mgwfbp.torch.ZeroRedundancyOptimizer(wrapped, torch.optim.SGD, lr=0.05, momentum=0.9)
        train(wrapped, optimizer)
        optimizer.consolidate_state_dict()
    else:
        train(wrapped, torch.optim.SGD(wrapped.parameters(), lr=0.05, momentum=0.9), steps)
    found = {"lanes": wrapped.statistics()["lanes"], "carrying": len(carrying), "tried": [each.name for each in wrapped.report().tried]}
    weights = weights_of(model)
    wrapped.close()
    return weights, found


dist.init_process_group("nccl" if DEVICE.type == "cuda" else "gloo")
results, expected = {}, {}
for case in sys.argv[2:]:
    transport, kind, policy = case.split()
    steps = "trials" if kind == "trials" else "plain"
    if steps not in expected:
        expected[steps] = run("ddp", steps, "ddp")[0]
    weights, found = run(transport, kind, policy)
    worst = torch.tensor(max(float((a - b).abs().max()) for a, b in zip(weights, expected[steps])), device=DEVICE)
    dist.all_reduce(worst, dist.ReduceOp.MAX)
    bits = hashlib.sha256(b"".join(weight.numpy().tobytes() for weight in weights)).hexdigest()[:16]
    results[case] = {"difference": float(worst), "bits": bits, **found}
if RANK == 0:
    print(json.dumps(results), flush=True)
dist.barrier()
if DEVICE.type == "cuda":
    torch.cuda.synchronize()
    sys.stdout.flush()
    os._exit(0)
dist.destroy_process_group()
