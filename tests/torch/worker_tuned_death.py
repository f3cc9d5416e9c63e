"""One worker of test_tuned: the last rank ends, or stops, while candidates are tried. The others tell what they see.

usage: worker_tuned_death.py die|hang STEP      of tune_ddp's steps, counted from 1
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


def main(what, at):
    dist.init_process_group("gloo")
    group = dist.new_group(timeout=datetime.timedelta(seconds=TIMEOUT_S))
    dist.barrier()
    torch.manual_seed(1)
    model = models.Cnn()
    generator = torch.Generator().manual_seed(RANK)
    steps, begun = 0, time.monotonic()

    def step(wrapped):
        nonlocal steps, begun
        steps += 1
        if steps == int(at):
            begun = time.monotonic()
            if RANK == SIZE - 1 and what == "die":
                os._exit(0)  # not a failure to the launcher, which would end the others
            if RANK == SIZE - 1:
                time.sleep(1.5 * TIMEOUT_S)
        model.loss(wrapped, generator).backward()

    cluster = mgwfbp.Cluster.line("slow", SIZE, 1e-5, 5e-8)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    try:
        mgwfbp.torch.tune_ddp(model, step, cluster=cluster, process_group=group)
        print("tune_ddp returned", flush=True)
    except (RuntimeError, mgwfbp.Error) as error:
        same = all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
        print(f"after {time.monotonic() - begun:.1f} s, {'same' if same else 'other'} state: {error}"
              .replace("\n", " "), flush=True)
    os._exit(0)  # gloo's threads may wait for the others


if __name__ == "__main__":
    main(*sys.argv[1:])
