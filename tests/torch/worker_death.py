"""One worker of test_faults: the last rank ends, or stops, in the middle of a backward pass. The others tell what they see.

usage: worker_death.py TRANSPORT die|hang
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


def main(transport, what):
    dist.init_process_group("gloo")
    group = dist.new_group(timeout=datetime.timedelta(seconds=TIMEOUT_S)) if transport == "torch" else None
    dist.barrier()
    model = mgwfbp.torch.DistributedDataParallel(models.Cnn(), transport=transport, process_group=group, policy="wfbp",
                                                 profile_steps=2, timeout_s=TIMEOUT_S)
    generator = torch.Generator().manual_seed(RANK)
    for _ in range(5):
        model.module.loss(model, generator).backward()

    def strike(gradient):
        if what == "die":
            os._exit(0)  # not a failure to the launcher, which would end the others
        time.sleep(1.5 * TIMEOUT_S)

    if RANK == SIZE - 1:
        model.module.body[3].weight.register_hook(strike)
    begun = time.monotonic()
    try:
        model.module.loss(model, generator).backward()
    except (RuntimeError, mgwfbp.Error) as error:
        print(f"after {time.monotonic() - begun:.1f} s: {error}".replace("\n", " "), flush=True)
    os._exit(0)  # gloo's threads may wait for the others


if __name__ == "__main__":
    main(*sys.argv[1:])
