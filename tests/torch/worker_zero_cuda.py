"""One worker of test_zero_use on a GPU, which all workers share where there is only one: ZeroRedundancyOptimizer beside stock DDP
with a plain optimizer.

usage: worker_zero_cuda.py TRANSPORT...   Rank 0 prints a JSON object: by transport and case, the largest difference of any
element of the model's state, how many gathers there were, steps that were held, and waits of the host for the GPU.
"""

import contextlib
import copy
import json
import sys

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

import mgwfbp.torch
from worker_cuda import DEVICE, RANK, batch, make_model

POLICIES = ("zero:64KiB", "overlap", "zero:256KiB", "optimal")


def train(wrapped, optimizer, amp=False, accumulate=1, side=False, clip=False, steps=60):
    scaler = torch.cuda.amp.GradScaler(enabled=amp)
    home = torch.cuda.current_stream(DEVICE)
    aside = torch.cuda.Stream(DEVICE) if side else home
    gathers = 0
    for step in range(steps):
        optimizer.zero_grad(set_to_none=step % 2 == 0)
        for part in range(accumulate):
            x, y = batch(step, part)
            with contextlib.nullcontext() if part == accumulate - 1 else wrapped.no_sync():
                aside.wait_stream(home)
                with torch.cuda.stream(aside):
                    with torch.autocast("cuda", dtype=torch.float16, enabled=amp):
                        loss = F.cross_entropy(wrapped(x), y)
                    scaler.scale(loss).backward()
                home.wait_stream(aside)
        scaler.unscale_(optimizer)
        if clip:
            nn.utils.clip_grad_norm_(wrapped.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        if hasattr(wrapped, "set_policy"):
            gathers = max(gathers, wrapped.statistics()["gathers"])
            if step % 15 == 14:
                wrapped.set_policy(POLICIES[step // 15 % len(POLICIES)])
    if not hasattr(wrapped, "set_policy"):  # as the next forward pass would begin: ours are rank 0's by now
        for buffer in wrapped.module.buffers():
            dist.broadcast(buffer, 0)
    return {name: tensor.double() for name, tensor in wrapped.module.state_dict().items()}, gathers


# Clipped in 20 steps only: in 60 of them DDP itself ends 0.04 away if the norm that it clips to is changed by 1e-7.
CASES = {
    "sgd": (torch.optim.SGD, {"lr": 0.02, "momentum": 0.9}, {}),
    "adamw": (torch.optim.AdamW, {"lr": 1e-3}, {}),
    "adamw, fused": (torch.optim.AdamW, {"lr": 1e-3, "fused": True}, {}),
    "accumulated": (torch.optim.SGD, {"lr": 0.02, "momentum": 0.9}, {"accumulate": 2}),
    "side stream": (torch.optim.SGD, {"lr": 0.02, "momentum": 0.9}, {"side": True}),
    "clipped": (torch.optim.SGD, {"lr": 0.02, "momentum": 0.9}, {"clip": True, "steps": 20}),
    "scaled and clipped, autocast": (torch.optim.SGD, {"lr": 0.02, "momentum": 0.9}, {"amp": True, "clip": True, "steps": 20}),
}


def masters(transport):
    """bf16 parameters: rounded masters, on all ranks the same, and the loss falls."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Flatten(), nn.Linear(768, 300), nn.GELU(), nn.Linear(300, 10)).to(DEVICE)
    wrapped = mgwfbp.torch.DistributedDataParallel(model, transport=transport, policy="zero:128KiB", profile_steps=4)
    optimizer = mgwfbp.torch.ZeroRedundancyOptimizer(wrapped, lr=1e-3, parameter_dtype=torch.bfloat16)
    losses = []
    for step in range(30):
        optimizer.zero_grad()
        x, y = batch(step % 2, 0)
        loss = F.cross_entropy(wrapped(x.bfloat16()).float(), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(float(loss))
    optimizer.consolidate_state_dict()
    exact = True
    if RANK == 0:
        state = optimizer.state_dict()["state"]
        exact = all(torch.equal(state[i]["master"].bfloat16(), p.detach().cpu()) for i, p in enumerate(model.parameters()))
    result = {"rounded": exact, "first": losses[0], "last": losses[-1], "gathers": wrapped.statistics()["gathers"]}
    wrapped.close()
    return result


def main(*transports):
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False
    torch.cuda.set_device(DEVICE)
    dist.init_process_group("nccl")
    results = {transport: {} for transport in transports}
    for case, (kind, options, how) in CASES.items():
        torch.manual_seed(RANK)
        model = make_model()
        stock = nn.parallel.DistributedDataParallel(copy.deepcopy(model), device_ids=[DEVICE.index])
        expected, _ = train(stock, kind(stock.parameters(), **options), **how)
        for transport in transports:
            ours = mgwfbp.torch.DistributedDataParallel(copy.deepcopy(model), device_ids=[DEVICE.index],
                                                        transport=transport, policy=POLICIES[0], profile_steps=4)
            optimizer = mgwfbp.torch.ZeroRedundancyOptimizer(ours, kind, **options)
            state, gathers = train(ours, optimizer, **how)
            worst = torch.stack([(state[n] - expected[n]).abs().max() for n in expected]).max()
            dist.all_reduce(worst, op=dist.ReduceOp.MAX)
            results[transport][case] = {"difference": float(worst), "gathers": gathers,
                                        "held": optimizer.statistics()["held"]}
            ours.close()
    for transport in transports:
        results[transport]["masters"] = masters(transport)
    if RANK == 0:
        print(json.dumps(results))


if __name__ == "__main__":
    main(*sys.argv[1:])
    dist.destroy_process_group()
