"""What the situations of worker_use.py share: a rank, its transport, a wrapped model and a step."""

import copy
import datetime
import json
import os
import pickle
import sys
import tempfile
import warnings

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

import mgwfbp
import mgwfbp.torch
import models
from mgwfbp.torch import groups

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
TRANSPORT = sys.argv[1]


def generator(step):
    return torch.Generator().manual_seed(100 * step + RANK)


def wrap(model, **options):
    return mgwfbp.torch.DistributedDataParallel(model, transport=TRANSPORT, **{"profile_steps": 2, **options})


def step(model, number, optimizer=None, **how):
    inner = getattr(model, "module", model)
    if optimizer:
        optimizer.zero_grad(set_to_none=how.get("set_to_none", False))
    inner.loss(model, generator(number)).backward()
    if optimizer:
        optimizer.step()


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


def assert_same_on_all_ranks(model):
    for name, tensor in model.module.named_parameters():
        high, low = tensor.detach().clone(), tensor.detach().clone()
        dist.all_reduce(high, op=dist.ReduceOp.MAX)
        dist.all_reduce(low, op=dist.ReduceOp.MIN)
        assert torch.equal(high, low), f"{name} differs between ranks"


def assert_raises(kind, part, call):
    try:
        call()
    except kind as error:
        assert part in str(error), f"'{part}' is not in '{error}'"
    else:
        raise AssertionError(f"{kind.__name__} with '{part}' was not raised")


def averages(model):
    """All gradients, compared among all workers."""
    gradients = [p.grad.detach().clone() for p in model.parameters()]
    for gradient in gradients:
        high, low = gradient.clone(), gradient.clone()
        dist.all_reduce(high, op=dist.ReduceOp.MAX)
        dist.all_reduce(low, op=dist.ReduceOp.MIN)
        assert torch.equal(high, low), "not averaged"
    return gradients
