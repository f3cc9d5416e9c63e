#!/usr/bin/env python3
"""Whole steps with an optimizer, on one GPU that several workers share as a cluster: every variant in turn, round after
round. PyTorch's DDP with the same optimizer, its ZeroRedundancyOptimizer and FSDP2 (a unit per block, parameters kept after the
forward pass), beside ours with whole all-reduces and with forward overlap.

    bench/gpu BUILD LOGS zero                                          # with MPS, all models, 2 and 4 workers
    bench/gpu_zero.py --model vit-b-16 --workers 2 -o results.jsonl
    bench/gpu_zero.py --model gpt2 --precision bf16                    # DDP under autocast, FSDP2's mixed precision, ours
    bench/gpu_zero.py --model gpt2 --precision bf16 --loss 200         # not times, but how the loss falls
    bench/gpu_zero.py --model tiny --device cpu                        # the same on gloo and shared memory, to try it out

The time of a step is forward, backward and optimizer, gradients set to None after it. Ours runs until its trials have ended
(--learn steps at most), then blocks of steps are timed, and the host waits for the GPU at their ends only. f32 matrices are multiplied as TF32. Memory is the most that PyTorch held for a variant beyond what was there before it, and
the arenas of ours. The result is a line of JSON; results go to docs/evidence/forward.md.
"""

import argparse
import contextlib
import copy
import json
import os
import random
import signal
import statistics
import sys
import time

import ddp as bench
import gpu_ddp
from gpu_models import MODELS, blocks_of

DDP = "DDP"
OURS = "mgwfbp native, overlap"
RATE = {"sgd": 0.01, "adamw": 1e-4}


def optimizer_of(name):
    import torch
    return {"sgd": (torch.optim.SGD, {"lr": RATE["sgd"], "momentum": 0.9}),
            "adamw": (torch.optim.AdamW, {"lr": RATE["adamw"]})}[name]


# ---- Variants: of a model, what is called and what steps ----


def plain(wrap):
    def make(model, kind, options, arguments):
        wrapped = wrap(model)
        return wrapped, kind(wrapped.parameters(), **options)
    return make


def stock(model):
    return bench.stock_ddp(model, bench.DEFAULT_CAP)


def stock_zero(model, kind, options, arguments):
    from torch.distributed.optim import ZeroRedundancyOptimizer
    wrapped = stock(model)
    return wrapped, ZeroRedundancyOptimizer(wrapped.parameters(), optimizer_class=kind, **options)


def fsdp(model, kind, options, arguments):
    """FSDP2; the units are the blocks, and what is left."""
    import torch
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    narrow = arguments.precision == "bf16"
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32) if narrow else MixedPrecisionPolicy()
    for unit in (*blocks_of(arguments.model, model), model):
        fully_shard(unit, reshard_after_forward=False, mp_policy=policy)
    return model, kind(model.parameters(), **options)


def ours(transport):
    def make(model, kind, options, arguments):
        import mgwfbp.torch
        wrapped = mgwfbp.torch.DistributedDataParallel(model, transport=transport, timeout_s=60, trials=arguments.trials)
        return wrapped, kind(wrapped.parameters(), **options)
    return make


def ours_zero(transport):
    def make(model, kind, options, arguments):
        import torch

        import mgwfbp.torch
        narrow = {"parameter_dtype": torch.bfloat16} if arguments.precision == "bf16" else {}
        wrapped = mgwfbp.torch.DistributedDataParallel(model, transport=transport, timeout_s=60, trials=arguments.trials)
        return wrapped, mgwfbp.torch.ZeroRedundancyOptimizer(wrapped, kind, **narrow, **options)
    return make


VARIANTS = {"compute alone": plain(lambda model: model), DDP: plain(stock), "DDP, ZeroRedundancyOptimizer": stock_zero,
            "FSDP2": fsdp, "mgwfbp native, optimal": ours("native"), OURS: ours_zero("native"),
            "mgwfbp torch, overlap": ours_zero("torch")}


def chosen(arguments):
    names = arguments.variants.split(";") if arguments.variants else VARIANTS
    return {name: VARIANTS[name] for name in names if arguments.device == "cuda" or name != "FSDP2"}


def make_variant(name, model, arguments, device):
    """What runs a step, and what was wrapped."""
    import torch
    kind, options = optimizer_of(arguments.optimizer)
    wrapped, optimizer = VARIANTS[name](copy.deepcopy(model), kind, options, arguments)
    narrow = arguments.precision == "bf16" and name != "FSDP2"
    context = lambda: (torch.autocast(device.type, torch.bfloat16) if narrow else contextlib.nullcontext())  # noqa: E731

    def step(loss):
        with context():
            value = loss(wrapped)
        value.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return value

    return step, wrapped, optimizer


# ---- Times and memory ----


def held(wrapped, optimizer):
    """Bytes of the arenas of ours, which PyTorch does not count."""
    for owner in (optimizer, wrapped):
        if hasattr(owner, "statistics"):
            found = owner.statistics()
            return sum(found.get(name, 0) for name in ("arena_bytes", "parameter_bytes"))
    return 0


def memory_of(run, wrapped, optimizer, device):
    """While that runs, bytes at most."""
    import torch
    if device.type != "cuda":
        run()
        return 0
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    run()
    torch.cuda.synchronize()
    is_native = hasattr(wrapped, "_group") and hasattr(wrapped._group, "engine_transport")
    return torch.cuda.max_memory_allocated() + (held(wrapped, optimizer) if is_native else 0)


def time_all(arguments, device, begun):
    """Prints the result so far after every round: who runs out of time still has that."""
    import torch
    torch.manual_seed(0)
    model, loss = MODELS[arguments.model].make(arguments.batch, device)
    steps_of, result = {}, {"memory": {}, "memory while trying": {}, "messages": {}, "reports": {}, "learned": {}}
    until = begun + 0.6 * arguments.limit
    for name in chosen(arguments):
        before = torch.cuda.memory_allocated() if device.type == "cuda" else 0
        step, wrapped, optimizer = make_variant(name, model, arguments, device)
        ours_too = name.startswith("mgwfbp")
        reporter = optimizer if hasattr(optimizer, "report") else wrapped
        if ours_too:
            now = time.perf_counter()
            left = sum(each.startswith("mgwfbp") for each in chosen(arguments)) - len(result["learned"])

            def settle():
                result["learned"][name] = gpu_ddp.settle(lambda: step(loss), reporter.statistics, arguments.learn,
                                                         now + max(0, until - now) / left, device)

            result["memory while trying"][name] = memory_of(settle, wrapped, optimizer, device) - before
        else:
            for _ in range(4):
                step(loss)
        result["memory"][name] = memory_of(lambda: step(loss), wrapped, optimizer, device) - before
        if ours_too:
            result["reports"][name] = str(reporter.report())
            result["messages"][name] = reporter.statistics().get("messages")
        steps_of[name] = step
    one = bench.time_block(lambda step: step(loss), steps_of[next(iter(steps_of))], 2, device)
    steps = min(arguments.steps, max(3, round(gpu_ddp.BLOCK_S / one)))
    result.update(model=arguments.model, batch=arguments.batch, workers=arguments.workers, network=gpu_ddp.network_of(arguments),
                  inputs=MODELS[arguments.model].inputs, optimizer=arguments.optimizer, precision=arguments.precision,
                  steps=steps, torch=torch.__version__, rounds={name: [] for name in steps_of},
                  gpu=torch.cuda.get_device_name() if device.type == "cuda" else "cpu")
    order = list(steps_of)
    for number in range(arguments.rounds):
        random.Random(number).shuffle(order)
        round_begun = time.perf_counter()
        for name in order:
            steps_of[name](loss)  # the first after a change does not count
            result["rounds"][name].append(bench.time_block(lambda step: step(loss), steps_of[name], steps, device))
        now = time.perf_counter()
        result["wall_s"] = now - begun
        if os.environ["RANK"] == "0":
            print(json.dumps(result), flush=True)
        if number > 0 and bench.slowest(2 * now - round_begun - begun, device) > arguments.limit:
            break


# ---- How the loss falls ----


def sentences(words, length, batch, steps, device):
    """Text with structure: sentences of a small made-up grammar, other ones on every worker. What follows a word depends
    on the word and on the one before it."""
    import torch
    generator = torch.Generator().manual_seed(100 + int(os.environ["RANK"]))
    rules = torch.Generator().manual_seed(1)
    known = min(words, 512)
    follows = torch.randint(known, (known, 16, 4), generator=rules)
    for _ in range(steps):
        text = torch.randint(known, (batch, length + 1), generator=generator)
        for i in range(2, length + 1):
            choice = torch.randint(4, (batch,), generator=generator)
            text[:, i] = follows[text[:, i - 1], text[:, i - 2] % 16, choice]
        text = text.to(device)
        yield text[:, :-1], text[:, 1:]


def compare_losses(arguments, device):
    import torch
    torch.manual_seed(0)
    model, _ = MODELS[arguments.model].make(arguments.batch, device)
    words, length = model.words.num_embeddings, min(256, model.places.num_embeddings)
    found = {}
    for name in chosen(arguments):
        if name == "compute alone":
            continue
        step, wrapped, optimizer = make_variant(name, model, arguments, device)
        losses = []
        for tokens, targets in sentences(words, length, arguments.batch, arguments.loss, device):
            value = step(lambda wrapped: torch.nn.functional.cross_entropy(
                wrapped(tokens).flatten(0, 1).float(), targets.flatten()))
            losses.append(value.detach())
        losses = torch.stack(losses).double()
        torch.distributed.all_reduce(losses)
        losses = (losses / arguments.workers).tolist()
        found[name] = {"first": losses[0], "half": statistics.mean(losses[len(losses) // 2 - 5:len(losses) // 2 + 5]),
                       "last": statistics.mean(losses[-10:])}
    if os.environ["RANK"] == "0":
        print(json.dumps({"model": arguments.model, "workers": arguments.workers, "precision": arguments.precision,
                          "optimizer": arguments.optimizer, "loss_after": arguments.loss, "losses": found}), flush=True)


def measure_here(arguments, device, begun):
    import torch
    torch.set_float32_matmul_precision("high")
    if arguments.loss:
        compare_losses(arguments, device)
    else:
        time_all(arguments, device, begun)


# ---- The driver ----


def table(result):
    alone = statistics.median(result["rounds"]["compute alone"]) if "compute alone" in result["rounds"] else 0
    lines = [f"{result['model']}, batch {result['batch']} ({result['inputs']}), {result['workers']} workers, "
             f"{result['network']}, {result['optimizer']}, {result['precision']}; "
             f"{len(result['rounds'][DDP])} rounds of {result['steps']} steps", "",
             "| | messages | ms per step | spread | DDP / this | spread | beyond computation ms | memory MiB |",
             "|---|---|---|---|---|---|---|---|"]
    for name, times in result["rounds"].items():
        ratios = [base / own for base, own in zip(result["rounds"][DDP], times)]
        median = statistics.median(times)
        cells = [name, result["messages"].get(name) or "", bench.milliseconds(median), f"{bench.spread(times):.1%}",
                 f"{statistics.median(ratios):.3f}", f"{bench.spread(ratios):.1%}", bench.milliseconds(median - alone),
                 f"{result['memory'][name] / (1 << 20):.0f}"]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="vit-b-16", choices=list(MODELS))
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batch", type=int, default=0)
    parser.add_argument("--optimizer", default="adamw", choices=list(RATE))
    parser.add_argument("--precision", default="f32", choices=("f32", "bf16"))
    parser.add_argument("--variants", help="some of them, with ; between")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--network", default="loopback", help="what to call the network in the result")
    parser.add_argument("--learn", type=int, default=600, help="steps for trials, at most")
    parser.add_argument("--trials", type=int, help="steps of a trial of ours, at most")
    parser.add_argument("--steps", type=int, default=6, help="steps of a variant in a round, at most")
    parser.add_argument("--rounds", type=int, default=8, help="at most")
    parser.add_argument("--loss", type=int, default=0, metavar="STEPS", help="compare losses after so many steps")
    parser.add_argument("--limit", type=float, default=90, help="seconds within which rounds shall end")
    parser.add_argument("--timeout", type=float, default=140, help="seconds after which workers are killed")
    parser.add_argument("-o", "--output", help="append the result as a line of JSON")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.batch = arguments.batch or MODELS[arguments.model].batch
    if arguments.worker:
        return gpu_ddp.as_worker(arguments, measure_here)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("bench/gpu_zero.py: ended"))  # not without workers
    found, trouble = gpu_ddp.measure(arguments, __file__)
    result = next(iter(found.values()), None)
    if result and arguments.output:
        with open(arguments.output, "a") as file:
            file.write(json.dumps(dict(result, trouble=trouble)) + "\n")
    if result and "rounds" in result:
        print(table(result), *result["reports"].values(), sep="\n\n")
    elif result:
        print(json.dumps(result, indent=2))
    if trouble:
        sys.exit(f"bench/gpu_zero.py: {trouble}")


if __name__ == "__main__":
    main()
