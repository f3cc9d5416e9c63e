"""One worker of test_buckets: a stock DDP with our buckets, by its own account."""

import json
import os

import torch
import torch.distributed as dist

import mgwfbp.torch
import models
from mgwfbp.torch import buckets

RANK = int(os.environ["RANK"])


def sizes_with(model, step, megabytes):
    """What DDP makes of one limit."""
    ddp = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=megabytes)
    for _ in range(3):
        step(ddp)
    return buckets.bucket_sizes(ddp)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    model = models.Transformer(words=400, width=64, layers=4)
    generator = torch.Generator().manual_seed(RANK)

    def step(wrapped):
        model.loss(wrapped, generator).backward()

    cluster = mgwfbp.Cluster.line("slow", 2, 1e-4, 5e-8)
    found = mgwfbp.torch.ddp_buckets(model, step, cluster=cluster)
    ddp = mgwfbp.torch.tune_ddp(model, step, cluster=cluster, verbose=False)
    plan = buckets.best(buckets.two_limits(found.trace, found.cluster))
    cap = int(found.bucket_cap_mb * buckets.MIB)
    single = mgwfbp.plan(found.trace, found.cluster, f"ddp:{cap if buckets.NAMES_FIRST else buckets.MIB}B,{cap}B")
    swept = buckets.best(each for each in buckets.one_limits(found.trace, found.cluster)
                         if buckets.limits_of(each)[1] >= buckets.MIB // 32)
    default = mgwfbp.plan(found.trace, found.cluster, "ddp")
    measured = mgwfbp.torch.ddp_buckets(model, step)  # calibrates on the group
    step(ddp)
    result = {"bytes": found.bytes, "groups": [len(group) for group in found.groups_of(model)],
              "total": sum(p.numel() for p in model.parameters()) * 4, "stock": isinstance(
                  ddp, torch.nn.parallel.DistributedDataParallel), "got": buckets.bucket_sizes(ddp),
              "told": ddp.mgwfbp_tuning, "two_limits_s": plan.iteration_s, "one_limit_s": single.iteration_s,
              "swept_s": swept.iteration_s,
              "one_limit": found.bucket_cap_mb, "one_limit_gives": [o.bytes for o in single.operations],
              "one_limit_got": sizes_with(model, step, found.bucket_cap_mb), "default_s": default.iteration_s,
              "optimal_s": found.plan.iteration_s, "cluster": measured.cluster.name}
    print(json.dumps(result))


if __name__ == "__main__":
    main()
    dist.destroy_process_group()  # gloo has threads, which must not outlive the interpreter
