"""One worker of test_zero: goes on from a checkpoint, whoever wrote it, and leaves another.

usage: worker_zero_resume.py TRANSPORT FOLDER NUMBER [bf16]

Every worker has the same data, so that how many there are makes no difference but in rounding. Each rank prints how far
the weights are from those of a plain optimizer that went on from the same file; -1: the state was not loaded bit for bit.
"""

import copy
import json
import os
import sys

import torch
import torch.distributed as dist

import mgwfbp.torch
import models

RANK = int(os.environ["RANK"])
STEPS = 6


def batch(model, number):
    return lambda call: model.loss(call, torch.Generator().manual_seed(number))


def main(transport, folder, number, *narrow):
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(1)
    path, number = os.path.join(folder, "checkpoint"), int(number)
    model = models.Transformer().double() if not narrow else models.Transformer()
    saved = torch.load(path) if os.path.exists(path) else None
    if saved:
        model.load_state_dict(saved["model"])
    plain = copy.deepcopy(model)
    wrapped = mgwfbp.torch.DistributedDataParallel(model, transport=transport, policy=f"zero:{number + 1}KiB",
                                                   profile_steps=1)
    dtype = {"parameter_dtype": torch.bfloat16} if narrow else {}
    optimizer = mgwfbp.torch.ZeroRedundancyOptimizer(wrapped, torch.optim.AdamW, lr=3e-3, **dtype)
    expected, exact = torch.optim.AdamW(plain.parameters(), lr=3e-3), True
    if saved:
        optimizer.load_state_dict(saved["optimizer"])
        if not narrow:
            expected.load_state_dict(saved["optimizer"])
    for step in range(STEPS):
        seed = 100 * number + step
        if not narrow:
            expected.zero_grad()
            batch(plain, seed)(plain).backward()
            expected.step()
        optimizer.zero_grad()
        batch(model, seed)(wrapped).backward()
        optimizer.step()
        if step == 0 and saved:  # a plan is in force, and another one follows
            wrapped.set_policy("zero:2KiB")
    optimizer.consolidate_state_dict()
    worst = 0.0 if narrow else max(float((p.detach() - q.detach()).abs().max())
                                   for p, q in zip(model.parameters(), plain.parameters()))
    if RANK == 0:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
        masters = [state.get("master") for state in optimizer.state_dict()["state"].values()]
        if narrow:
            exact = all(torch.equal(m.bfloat16(), p.detach()) for m, p in zip(masters, model.parameters()))
    # What is loaded and told again is the same, bit for bit, before any step and under another number of workers.
    wrapped.close()
    again = mgwfbp.torch.DistributedDataParallel(model, transport=transport, policy="zero:3KiB", profile_steps=1)
    optimizer = mgwfbp.torch.ZeroRedundancyOptimizer(again, torch.optim.AdamW, **dtype)
    dist.barrier()
    told = torch.load(path)["optimizer"]
    optimizer.load_state_dict(told)
    optimizer.consolidate_state_dict()
    if RANK == 0:
        same = optimizer.state_dict()["state"]
        exact = exact and all(torch.equal(torch.as_tensor(same[i][name]), torch.as_tensor(value))
                              for i, state in told["state"].items() for name, value in state.items())
    print(json.dumps(worst if exact else -1.0))


if __name__ == "__main__":
    main(*sys.argv[1:])
    dist.destroy_process_group()
