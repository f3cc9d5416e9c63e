"""One worker of test_tuned: tune_ddp where it is known which buckets are slow, and what it leaves behind.

usage: worker_tuned.py CASE ...     default or another, which is the one that does not sleep, and after commas options of
                                    DDP that are true
"""

import contextlib
import io
import json
import os
import sys
import time

import torch
import torch.distributed as dist

import mgwfbp
import mgwfbp.torch
import models

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
SLEEP_S = 0.015
DEFAULT_BYTES = 25 << 20


def averaged(model, ddp):
    """How far DDP's gradients are from the mean over workers of what each computes, relative to the largest."""
    generators = [torch.Generator().manual_seed(99 + RANK) for _ in range(2)]
    model.zero_grad(set_to_none=True)
    model.loss(model, generators[0]).backward()
    expected = {}
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad)
            expected[name] = parameter.grad / SIZE
    model.zero_grad(set_to_none=True)
    model.loss(ddp, generators[1]).backward()
    worst = max((parameter.grad - expected[name]).abs().max().item() for name, parameter in model.named_parameters()
                if name in expected)
    return worst / max(gradient.abs().max().item() for gradient in expected.values())


def run(quick, *options):
    torch.manual_seed(1)
    model = models.Cnn()
    generator = torch.Generator().manual_seed(RANK)
    steps = 0

    def step(wrapped):
        nonlocal steps
        steps += 1
        is_default = getattr(wrapped, "bucket_bytes_cap", None) == DEFAULT_BYTES
        if wrapped is not model and is_default != (quick == "default"):
            time.sleep(SLEEP_S * (1 + RANK))  # who waits longest says how long it takes; the numbers differ
        torch.rand(3)
        model.loss(wrapped, generator).backward()

    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    random = torch.get_rng_state()
    cluster = mgwfbp.Cluster.line("slow", SIZE, 1e-5, 5e-8)
    told = io.StringIO()
    with contextlib.redirect_stdout(told):
        ddp = mgwfbp.torch.tune_ddp(model, step, cluster=cluster, most_rounds=10,
                                    **{option: True for option in options})
    after = model.state_dict()
    return {"won": [each.name for each in ddp.mgwfbp_tried if each.won],
            "tried": [each.name for each in ddp.mgwfbp_tried],
            "rounds": [each.rounds for each in ddp.mgwfbp_tried],
            "ratios": [each.ratio for each in ddp.mgwfbp_tried],
            "cap": ddp.bucket_bytes_cap, "steps": ddp.mgwfbp_steps, "ran": steps, "told": told.getvalue(),
            "text": ddp.mgwfbp_tuning,
            "same_state": all(torch.equal(before[name], after[name]) for name in before),
            "same_random": torch.equal(random, torch.get_rng_state()),
            "no_gradients": all(parameter.grad is None for parameter in model.parameters()),
            "off": averaged(model, ddp), "again": averaged(model, ddp)}


def main(*cases):
    dist.init_process_group("gloo")
    print(json.dumps({case: run(*case.split(",")) for case in cases}))


if __name__ == "__main__":
    main(*sys.argv[1:])
    dist.destroy_process_group()
