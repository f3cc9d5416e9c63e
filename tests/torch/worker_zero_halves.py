"""One worker of test_zero: halves over a process group against exact sums of integers, cut in many ways.

Each rank prints how many cases there were, in gloo's way and in that of groups that have a reduce-scatter, which gloo can do
from PyTorch 2 on.
"""

import json
import random

import torch
import torch.distributed as dist

from mgwfbp import core
from mgwfbp.torch.groups import ProcessGroup
from mgwfbp.torch.halves import AllGather, ReduceScatter

CASES = 40


def spans_of(cuts, workers):
    return [[(begin + first, length) for begin, end in zip(cuts, cuts[1:])
             for first, length in [core.block(end - begin, workers, rank)]] for rank in range(workers)]


def try_one(group, case, dtype, cuts):
    spans = spans_of(cuts, group.size)
    inputs = [torch.randint(-50, 50, (420 + 64 * group.size,), generator=torch.Generator().manual_seed(10 * case + rank))
              for rank in range(group.size)]
    total, memory = sum(inputs), inputs[group.rank].to(dtype)
    scatter = ReduceScatter(group, memory, spans, dist.ReduceOp.SUM)
    scatter.start()
    scatter.wait()
    for first, length in spans[group.rank]:
        assert torch.equal(memory[first:first + length].long(), total[first:first + length]), (case, "scatter")
    gather = AllGather(group, memory, spans)
    gather.start()
    gather.wait()
    assert torch.equal(memory[cuts[0]:cuts[-1]].long(), total[cuts[0]:cuts[-1]]), (case, "gather")
    for rest in (slice(cuts[0]), slice(cuts[-1], None)):  # nothing else was touched
        assert torch.equal(memory[rest].long(), inputs[group.rank][rest]), (case, "around")


def main():
    dist.init_process_group("gloo")
    group, done = ProcessGroup(None, torch.device("cpu")), 0
    for backend in ("gloo", "as nccl") if hasattr(torch, "compile") else ("gloo",):
        group.backend, chance = backend, random.Random(1)
        for case in range(CASES):
            dtype = (torch.float32, torch.float64, torch.bfloat16 if backend == "gloo" else torch.float32)[case % 3]
            inner = sorted(chance.sample(range(6, 400), chance.randint(0, 3)))
            cuts = [5, *inner, 405] if case % 4 else [0, 64 * group.size]  # else parts of one length, in place
            try_one(group, case, dtype, cuts)
            done += 1
    print(json.dumps(done))


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
