#!/usr/bin/env python3
"""torch.compile beside DDP and ours, on one GPU that several workers share as a cluster: every variant in turn, round after
round. Computation alone, eager and compiled; DDP eager, around a compiled module and compiled as a whole; ours in both
orders over both transports, and with the model's blocks compiled one by one.

    bench/gpu BUILD LOGS compile                                # with MPS, all models, 2 workers
    bench/gpu_compile.py --model vit-b-16 --workers 2 -o results.jsonl
    bench/gpu_compile.py --model vit-b-16 --weights 10          # not times, but how far weights are from eager DDP's
    bench/gpu_compile.py --model gpt2 --mode reduce-overhead    # CUDA graphs
    bench/gpu_compile.py --model tiny --device cpu              # the same on gloo and shared memory, to try it out

The time of a step is forward, backward and SGD with momentum, gradients set to None after it; blocks of steps are timed, and
the host waits for the GPU at their ends only. f32 matrices are multiplied as TF32. Compiling takes a minute or more for a model
the first time, and seconds later: what is compiled is kept in $TORCHINDUCTOR_CACHE_DIR, else in /tmp/mgwfbp-inductor. The
result is a line of JSON; results go to docs/guide/pytorch.md.
"""

import argparse
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

EAGER, ALONE, INSIDE = "DDP, eager", "compute alone, eager", "native(compile(model))"
VARIANTS = (ALONE, "compute alone, compiled", EAGER, "DDP(compile(model))", "compile(DDP(model))", INSIDE,
            "compile(native(model))", "torch(compile(model))", "compile(torch(model))", "native(each block compiled)")


def compiler(mode):
    """Inductor, as torch.compile has it, but by another name each time: Dynamo would use what it has compiled for one variant
    for all others, too, whether it was cut for them or not."""
    import torch._inductor
    from torch._inductor.compile_fx import compile_fx
    patches = {"config_patches": torch._inductor.list_mode_options(mode)} if mode != "default" else {}

    def compile_with(graph, inputs, **more):
        return compile_fx(graph, inputs, **patches, **more)

    return compile_with


def wrap(model, transport, trials):
    import mgwfbp.torch
    if transport == "DDP":
        return bench.stock_ddp(model, bench.DEFAULT_CAP)
    return mgwfbp.torch.DistributedDataParallel(model, transport=transport, timeout_s=100, trials=trials)


def make_variant(name, model, arguments):
    """What is called, and what was wrapped."""
    import torch
    backend = compiler(arguments.mode)
    transport = next((word for word in ("DDP", "native", "torch") if word in name), None)
    if "each block" in name:
        for block in blocks_of(arguments.model, model):
            block.compile(backend=backend)
    if "(compile" in name or name == "compute alone, compiled":
        model = torch.compile(model, backend=backend)
    wrapped = wrap(model, transport, arguments.trials) if transport else model
    return torch.compile(wrapped, backend=backend) if name.startswith("compile(") else wrapped, wrapped


def make_all(arguments, model, loss):
    """By name: what runs a step, and what was wrapped. All are wrapped before one runs."""
    import torch

    def step_of(called, wrapped):
        optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.01, momentum=0.9)

        def step():
            loss(called).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return step

    found = {}
    for name in arguments.variants.split(";") if arguments.variants else VARIANTS:
        called, wrapped = make_variant(name, copy.deepcopy(model), arguments)
        found[name] = step_of(called, wrapped), wrapped
    return found


def learn(step, wrapped, arguments, begun, device):
    """Ours plans, and tries plans until one is kept, if that does not take too long."""
    if not hasattr(wrapped, "statistics"):
        return [step() for _ in range(3)]
    until, done = time.perf_counter() + arguments.limit * 0.1, 0
    while done < arguments.learn or wrapped.statistics().get("trying"):
        for _ in range(8):
            step()
        done += 8
        if done >= arguments.learn and bench.slowest(time.perf_counter() - until, device) > 0:  # all the same
            break


def time_all(arguments, device, begun):
    """Prints the result so far after every round: who runs out of time still has that."""
    import torch
    torch.manual_seed(0)
    model, loss = MODELS[arguments.model].make(arguments.batch, device)
    variants = make_all(arguments, model, loss)
    compiling = {}
    for name, (step, wrapped) in variants.items():
        before = time.perf_counter()
        step()
        compiling[name] = time.perf_counter() - before
        learn(step, wrapped, arguments, begun, device)
        if os.environ["RANK"] == "0":
            print(f"{name}: first step {compiling[name]:.1f} s, ready after {time.perf_counter() - begun:.0f} s",
                  file=sys.stderr, flush=True)
    one = bench.time_block(lambda variant: variant[0](), next(iter(variants.values())), 2, device)
    steps = min(arguments.steps, max(3, round(gpu_ddp.BLOCK_S / one)))
    result = {"model": arguments.model, "batch": arguments.batch, "workers": arguments.workers, "network": gpu_ddp.network_of(arguments),
              "inputs": MODELS[arguments.model].inputs, "mode": arguments.mode, "steps": steps, "torch": torch.__version__,
              "first_step_s": compiling, "setup_s": time.perf_counter() - begun,
              "gpu": torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
              "messages": {name: bench.messages_of(wrapped) for name, (_, wrapped) in variants.items()},
              "reports": {name: str(wrapped.report()) for name, (_, wrapped) in variants.items() if hasattr(wrapped, "report")},
              "rounds": {name: [] for name in variants}}
    order = list(variants)
    for number in range(arguments.rounds):
        random.Random(number).shuffle(order)
        round_begun = time.perf_counter()
        for name in order:
            variants[name][0]()  # the first after a change does not count
            result["rounds"][name].append(bench.time_block(lambda variant: variant[0](), variants[name], steps, device))
        now = time.perf_counter()
        result["wall_s"] = now - begun
        if os.environ["RANK"] == "0":
            print(json.dumps(result), flush=True)
        if number > 0 and bench.slowest(2 * now - round_begun - begun, device) > arguments.limit:
            break


def compare_weights(arguments, device):
    """After so many steps on different inputs: the largest difference from eager DDP's, of any element on any rank."""
    import torch
    torch.manual_seed(0)
    model, _ = MODELS[arguments.model].make(arguments.batch, device)
    start = {name: tensor.double().clone() for name, tensor in model.named_parameters()}
    torch.manual_seed(1000 + int(os.environ["RANK"]))
    _, loss = MODELS[arguments.model].make(arguments.batch, device)  # each worker its own inputs
    states = {}
    for name, (step, wrapped) in make_all(arguments, model.eval(), loss).items():  # without dropout
        if not name.startswith("compute"):
            for _ in range(arguments.weights):
                step()
            states[name] = {key.replace("_orig_mod.", "").replace("module.", "", 1): tensor.detach().double().clone()
                            for key, tensor in wrapped.named_parameters()}
    expected = states[EAGER]
    found = {"how far weights have moved": max(float((expected[n] - t).abs().max()) for n, t in start.items())}
    for name, state in states.items():
        found[name] = bench.slowest(max(float((state[key] - expected[key]).abs().max()) for key in expected), device)
    if os.environ["RANK"] == "0":
        print(json.dumps({"model": arguments.model, "batch": arguments.batch, "workers": arguments.workers,
                          "weights_after": arguments.weights, "difference": found, "torch": torch.__version__}), flush=True)


def measure_here(arguments, device, begun):
    import torch
    import torch._dynamo
    for limit in ("recompile_limit", "cache_size_limit"):
        if hasattr(torch._dynamo.config, limit):
            setattr(torch._dynamo.config, limit, 64)  # all variants share the model's code
    torch.set_float32_matmul_precision("highest" if arguments.weights else "high")
    if arguments.weights:
        compare_weights(arguments, device)
    else:
        time_all(arguments, device, begun)


# ---- The driver ----


def table(result):
    alone = statistics.median(result["rounds"]["compute alone, compiled"]) if "compute alone, compiled" in result["rounds"] else 0
    base = EAGER if EAGER in result["rounds"] else next(iter(result["rounds"]))
    lines = [f"{result['model']}, batch {result['batch']} ({result['inputs']}), {result['workers']} workers, "
             f"{result['network']}, {result['gpu']}, PyTorch {result['torch']}, mode {result['mode']}; "
             f"{len(result['rounds'][base])} rounds of {result['steps']} steps; set up in {result['setup_s']:.0f} s", "",
             f"| | messages | ms per step | spread | {base} / this | spread | beyond compiled computation ms | first step s |",
             "|---|---|---|---|---|---|---|---|"]
    for name, times in result["rounds"].items():
        ratios = [other / own for other, own in zip(result["rounds"][base], times)]
        median = statistics.median(times)
        cells = [name, result["messages"].get(name) or "", bench.milliseconds(median), f"{bench.spread(times):.1%}",
                 f"{statistics.median(ratios):.3f}", f"{bench.spread(ratios):.1%}", bench.milliseconds(median - alone),
                 f"{result['first_step_s'][name]:.1f}"]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="vit-b-16", choices=list(MODELS))
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batch", type=int, default=0)
    parser.add_argument("--variants", help="some of them, with ; between")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--mode", default="default", help="torch.compile's: default, reduce-overhead (CUDA graphs), max-autotune")
    parser.add_argument("--network", default="loopback", help="what to call the network in the result")
    parser.add_argument("--learn", type=int, default=40, help="steps of ours before it is timed, at least")
    parser.add_argument("--trials", type=int, help="steps of a trial of ours, at most")
    parser.add_argument("--steps", type=int, default=6, help="steps of a variant in a round, at most")
    parser.add_argument("--rounds", type=int, default=8, help="at most")
    parser.add_argument("--weights", type=int, default=0, metavar="STEPS", help="compare weights after so many steps")
    parser.add_argument("--limit", type=float, default=100, help="seconds within which rounds shall end")
    parser.add_argument("--timeout", type=float, default=240, help="seconds after which workers are killed")
    parser.add_argument("-o", "--output", help="append the result as a line of JSON")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.batch = arguments.batch or MODELS[arguments.model].batch
    if arguments.worker:
        return gpu_ddp.as_worker(arguments, measure_here)
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", "/tmp/mgwfbp-inductor")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("bench/gpu_compile.py: ended"))  # not without workers
    found, trouble = gpu_ddp.measure(arguments, __file__)
    result = next(iter(found.values()), None)
    if result and arguments.output:
        with open(arguments.output, "a") as file:
            file.write(json.dumps(dict(result, trouble=trouble)) + "\n")
    if result and "rounds" in result:
        reports = {name: text for name, text in result["reports"].items() if name == INSIDE}
        print(table(result), *reports.values(), json.dumps({k: v for k, v in result.items() if k != "reports"}), sep="\n\n")
    elif result:
        print(json.dumps(result, indent=2))
    if trouble:
        sys.exit(f"bench/gpu_compile.py: {trouble}")


if __name__ == "__main__":
    main()
