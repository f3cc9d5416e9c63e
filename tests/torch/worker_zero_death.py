"""One worker of test_zero_use: the last rank is gone while gathers are under way. The others tell what they see.

usage: worker_zero_death.py TRANSPORT update|forward|move
"""

import datetime
import os
import sys
import time

import torch
import torch.distributed as dist

import mgwfbp
import mgwfbp.torch
import models

TIMEOUT_S = 8
RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def main(transport, when):
    dist.init_process_group("gloo")
    group = dist.new_group(timeout=datetime.timedelta(seconds=TIMEOUT_S)) if transport == "torch" else None
    dist.barrier()
    model = mgwfbp.torch.DistributedDataParallel(models.Cnn(), transport=transport, process_group=group,
                                                 broadcast_buffers=False, policy="zero:2KiB", profile_steps=2,
                                                 timeout_s=TIMEOUT_S)
    optimizer = mgwfbp.torch.ZeroRedundancyOptimizer(model, torch.optim.AdamW, lr=1e-3)
    generator = torch.Generator().manual_seed(RANK)

    def train():
        optimizer.zero_grad()
        model.module.loss(model, generator).backward()
        optimizer.step()

    for _ in range(6):
        train()
    assert model.statistics()["gathers"] > 1

    def strike(*_):
        os._exit(0)  # at once, and not a failure to the launcher, which would end the others

    if RANK == SIZE - 1 and when == "update":
        optimizer._sharding.reducer.update = strike
    elif RANK == SIZE - 1 and when == "move":  # of state, to the owners of a new plan
        optimizer._runs.take = strike
    elif RANK == SIZE - 1:
        model.module.body[3].register_forward_pre_hook(strike)
    begun = time.monotonic()
    try:
        for _ in range(3):
            train()
            if when == "move":
                model.set_policy("single")
    except (RuntimeError, mgwfbp.Error) as error:
        print(f"after {time.monotonic() - begun:.1f} s: {error}".replace("\n", " "), flush=True)
    os._exit(0)  # gloo's threads may wait for the others


if __name__ == "__main__":
    main(*sys.argv[1:])
