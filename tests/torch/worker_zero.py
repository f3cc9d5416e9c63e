"""One worker of test_zero: trains with PyTorch's DDP and a plain optimizer, and with ours and ZeroRedundancyOptimizer; tells
how weights and the optimizer's state differ.

usage: worker_zero.py TRANSPORT [CASE ...]

Rank 0 prints a JSON object: case -> the largest difference of any element of the model's or the optimizer's state on any
rank, whether all bits are the same, how many gathers and held steps there were, and how often shards moved in trials.
"""

import contextlib
import copy
import json
import os
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

import mgwfbp.torch
import models

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
STEPS = 50
POLICIES = ("zero:2KiB", "overlap", "zero:6KiB", "optimal", "fsdp:1KiB", "single")  # in turn, in one run


class Elsewhere(nn.Module):
    """Weights that are used outside of the module that has them, before it, and not at all in its own forward."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
        self.store = nn.Linear(8, 8)
        self.free = nn.Parameter(torch.randn(8))
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        x = F.linear(x, self.head.weight.t()[:, :3].new_zeros(8, 8) + self.second.weight, self.store.bias)
        x = self.second(torch.tanh(self.first(x))) * self.free
        return self.head(x @ self.store.weight)

    def loss(self, call, generator):
        x, y = models._normal(self, (5, 8), generator), torch.randint(3, (5,), generator=generator)
        return F.cross_entropy(call(x), y)


def cheap_network():
    """The model thinks that messages cost next to nothing: it cuts everywhere, so that plans differ."""
    path = os.path.join(tempfile.gettempdir(), f"mgwfbp-zero-{os.environ['MASTER_PORT']}.json")
    if RANK == 0:
        with open(path, "w") as file:
            json.dump({"format": "mgwfbp-cluster-1", "name": "cheap", "workers": max(2, SIZE),
                       "cost": {"a_s": 1e-5, "b_s_per_byte": 2e-6}}, file)
    dist.barrier()
    return path


def generator(step, rank=RANK):
    return torch.Generator().manual_seed(1000 * step + rank)


def make_optimizer(inner, wraps, kind, how):
    weights = [p for p in inner.parameters() if p.dim() > 1 and p.requires_grad]
    rest = [p for p in inner.parameters() if p.dim() <= 1 and p.requires_grad]
    make = (lambda p, **o: mgwfbp.torch.ZeroRedundancyOptimizer(p, kind, **o)) if wraps else kind
    if how.get("groups") == "added":
        optimizer = make(weights, **how["options"])
        optimizer.add_param_group({"params": rest, "lr": 1e-2})
        return optimizer
    if how.get("groups"):
        return make([{"params": weights, "weight_decay": 0.1}, {"params": rest, "lr": 1e-2}], **how["options"])
    return make([p for p in inner.parameters() if p.requires_grad], **how["options"])


def one_step(wrapped, optimizer, step, how, scaler=None):
    inner, accumulate = wrapped.module, how.get("accumulate", 1)
    optimizer.zero_grad(set_to_none=how.get("set_to_none", True))
    for part in range(accumulate):
        with contextlib.nullcontext() if part == accumulate - 1 else wrapped.no_sync():
            loss = inner.loss(wrapped, generator(step * accumulate + part))
            if scaler and step == 9 and RANK == 0:
                loss = loss * float("inf")  # one worker's gradients overflow: nobody steps
            (scaler.scale(loss) if scaler else loss).backward()
    if scaler:
        scaler.unscale_(optimizer)
    if how.get("clip"):
        nn.utils.clip_grad_norm_(inner.parameters(), how["clip"], how.get("norm", 2.0))
    if how.get("clip_value"):
        nn.utils.clip_grad_value_(inner.parameters(), how["clip_value"])
    if scaler:
        scaler.step(optimizer)
        scaler.update()
    else:
        optimizer.step()


def train(model, transport, how, steps=None, state=None, replans=True):
    """With stock PyTorch where there is no transport. Returns the model's state, the optimizer's on rank 0, and counts."""
    options, steps = how.get("ddp", {}), steps or range(how.get("steps", STEPS))
    inner = copy.deepcopy(model)
    if transport:
        options = {**options, **({"cluster": cheap_network()} if how.get("cheap") else {})}
        wrapped = mgwfbp.torch.DistributedDataParallel(inner, transport=transport, policy=how.get("policy", POLICIES[0]),
                                                       profile_steps=3, replan_steps=7, replan_percent=0, **options)
    else:
        wrapped = nn.parallel.DistributedDataParallel(inner, **options)
    optimizer = make_optimizer(inner, transport, how["kind"], how)
    scaler = torch.amp.GradScaler("cpu", init_scale=4096.0, growth_interval=4) if how.get("scaled") else None
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 7, 0.8) if how.get("schedule") else None
    if state:
        optimizer.load_state_dict(state)
    gathers = moves = 0
    owned = None
    for step in steps:
        one_step(wrapped, optimizer, step, how, scaler)
        if schedule:
            schedule.step()
        if transport:
            gathers = max(gathers, wrapped.statistics().get("gathers", 0))
            before, owned = owned, [shard[:3] for shard in optimizer._sharding.reducer.shards.own]
            moves += wrapped.statistics()["trying"] > 0 and before not in (None, owned)
            if replans and not how.get("policy") and step % 8 == 7:
                wrapped.set_policy(POLICIES[step // 8 % len(POLICIES)])
    if not transport:  # as the next forward pass would begin: ours are rank 0's by now
        for buffer in inner.buffers():
            dist.broadcast(buffer, 0)
    result = {name: tensor.clone() for name, tensor in inner.state_dict().items()}
    if not transport:
        return result, optimizer.state_dict(), {}
    optimizer.consolidate_state_dict()
    whole = optimizer.state_dict() if RANK == 0 else None
    counts = {"gathers": gathers, "held": optimizer.statistics()["held"], "moves": moves}
    wrapped.close()
    if RANK == 0 and "cluster" in options:
        os.remove(options["cluster"])
    return result, whole, counts


SGD = {"kind": torch.optim.SGD, "options": {"lr": 0.05, "momentum": 0.9, "weight_decay": 1e-3}}
ADAMW = {"kind": torch.optim.AdamW, "options": {"lr": 3e-3}}
CASES = {
    "cnn": (models.Cnn, SGD),
    "cnn, overlap": (models.Cnn, {**SGD, "policy": "overlap"}),
    "cnn, trials": (models.Cnn, {**ADAMW, "policy": "overlap", "cheap": True, "steps": 130}),
    "cnn, gradients zeroed": (models.Cnn, {**SGD, "set_to_none": False}),
    "cnn, accumulated": (models.Cnn, {**SGD, "accumulate": 3, "set_to_none": False}),
    "cnn, channels last": (models.ChannelsLast, SGD),
    "transformer, groups": (models.Transformer, {**ADAMW, "groups": True, "schedule": True}),
    "transformer, group added": (models.Transformer, {**ADAMW, "groups": "added"}),
    "checkpoints": (models.Checkpointed, ADAMW),
    "used elsewhere": (Elsewhere, ADAMW),
    "unused and frozen": (models.Branches, {**ADAMW, "ddp": {"find_unused_parameters": True}}),
    "unused, sgd, zeroed": (models.Branches, {**SGD, "set_to_none": False, "ddp": {"find_unused_parameters": True}}),
    "two dtypes": (models.Mixed, ADAMW),
    "clipped": (models.Cnn, {**SGD, "clip": 0.5}),
    "clipped by the largest": (models.Cnn, {**SGD, "clip": 0.05, "norm": float("inf")}),
    "clipped by value": (models.Cnn, {**SGD, "clip_value": 0.01}),
    "adam": (models.Mixed, {"kind": torch.optim.Adam, "options": {"lr": 3e-3, "amsgrad": True}}),
    "rmsprop": (models.Mixed, {"kind": torch.optim.RMSprop, "options": {"lr": 1e-3, "momentum": 0.9, "centered": True}}),
    "adagrad": (models.Mixed, {"kind": torch.optim.Adagrad, "options": {"lr": 1e-2}}),
    "adadelta": (models.Mixed, {"kind": torch.optim.Adadelta, "options": {"lr": 1.0}}),
    "adamax": (models.Mixed, {"kind": torch.optim.Adamax, "options": {"lr": 1e-3}}),
    "nadam": (models.Mixed, {"kind": torch.optim.NAdam, "options": {"lr": 1e-3}}),
    "radam": (models.Mixed, {"kind": torch.optim.RAdam, "options": {"lr": 1e-3}}),
    "asgd": (models.Mixed, {"kind": torch.optim.ASGD, "options": {"lr": 1e-2}}),
    "rprop": (models.Mixed, {"kind": torch.optim.Rprop, "options": {"lr": 1e-3}}),
}
if hasattr(torch, "amp") and hasattr(torch.amp, "GradScaler"):  # of the host: from PyTorch 2.3 on
    CASES["scaled and clipped"] = models.Cnn, {**SGD, "scaled": True, "clip": 0.5}


def flat(states, what):
    """The tensors and numbers of an optimizer's state, with names."""
    found = {}
    for index, state in states["state"].items():
        for name, value in state.items():
            if value is not None:
                found[f"{what} {index} {name}"] = torch.as_tensor(value)
    return found


def difference(got, expected):
    """The largest difference, and whether all bits are equal, over all ranks; of the optimizer's state too, on rank 0."""
    mine, theirs = dict(got[0]), dict(expected[0])
    if RANK == 0:
        mine.update(flat(got[1], "state"))
        theirs.update(flat(expected[1], "state"))
    same = set(mine) == set(theirs)
    worst = max(float((mine[name].double() - theirs[name].double()).abs().max()) for name in set(mine) & set(theirs)
                if mine[name].numel())
    equal = same and all(torch.equal(mine[name], theirs[name]) for name in theirs)
    row = torch.tensor([worst if same else float("inf"), 0.0 if equal else 1.0], dtype=torch.float64)
    dist.all_reduce(row, op=dist.ReduceOp.MAX)
    return {"difference": float(row[0]), "bits": float(row[1]) == 0.0, **got[2]}


def make_model(make):
    """With four workers sums are in another order: in doubles what is not rounding stands out."""
    model = make()
    return model.double() if SIZE > 2 else model


def main(transport, *only):
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    results = {}
    for case, (make, how) in CASES.items():
        if only and case not in only:
            continue
        torch.manual_seed(5 + RANK)  # parameters differ at first: rank 0's are everybody's
        model = make_model(make)
        results[case] = difference(train(model, transport, how), train(model, None, how))
    if RANK == 0:
        print(json.dumps(results))


if __name__ == "__main__":
    main(*sys.argv[1:])
    dist.destroy_process_group()
