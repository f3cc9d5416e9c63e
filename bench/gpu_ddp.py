#!/usr/bin/env python3
"""Against PyTorch's own DDP on one GPU that several workers share as a cluster, in one run: every variant in turn, round
after round. Ours over both transports, with four policies each; DDP with seven bucket sizes, and as tune_ddp sets it.

    bench/gpu BUILD LOGS ddp                                    # with MPS, all models, 2 and 4 workers
    bench/gpu_ddp.py --model resnet50 --workers 2 -o results.jsonl
    bench/gpu_ddp.py --model resnet50 --workers 2 --weights 20  # not times, but how far weights are from DDP's
    bench/gpu_ddp.py --model resnet50 --workers 2 --trace 10    # nor times, but how often the host waits for the GPU
    bench/gpu_ddp.py --model tiny --device cpu                  # the same on gloo and shared memory, to try it out

Every worker has a host id of its own, so that NCCL goes over sockets. A step is forward and backward pass, gradients set to
None before and averaged after; blocks of steps are timed, and the host waits for the GPU at their ends only. The result is
a line of JSON; there are two rounds, and more if they end within --limit seconds. Results go to docs/gpu.md.
"""

import argparse
import collections
import copy
import json
import os
import random
import signal
import statistics
import sys
import threading
import time
from typing import NamedTuple, Optional

import ddp as bench
from gpu_models import MODELS

STOCK = {"DDP per tensor": 1e-6, "DDP 1 MB": 1.0, "DDP 5 MB": 5.0, "DDP 10 MB": 10.0, "DDP 25 MB (default)": bench.DEFAULT_CAP,
         "DDP 50 MB": 50.0, "DDP one bucket": 1000.0}
TUNED = "DDP tuned by tune_ddp"
POLICIES = ("wfbp", "single", "mgwfbp", "optimal")
OURS = "mgwfbp native, optimal"
NEVER = 10 ** 6  # steps until a plan is looked at again: the policies of a run shall not learn from each other


# ---- A model and its step ----


def make_model(arguments, device):
    import torch
    torch.manual_seed(0)
    model, loss = MODELS[arguments.model].make(arguments.batch, device)

    def step(wrapped):
        for parameter in bench.model_of(wrapped).parameters():
            parameter.grad = None
        loss(wrapped).backward()

    return model, step


# ---- One worker ----


class Variant(NamedTuple):
    wrapped: object
    policy: Optional[str] = None  # to be set before its steps: those of one transport share a model


def wrap(model, transport):
    import mgwfbp.torch
    return mgwfbp.torch.DistributedDataParallel(model, transport=transport, policy="optimal", profile_steps=16,
                                                replan_steps=NEVER, timeout_s=60)


def learn(wrapped, step, device, until):
    """The transport torch plans after 16 steps, and finds out by looking again what messages cost beside computation: as
    often as it would, if there is time. Policies that are set bring looks, too; then there are no more."""
    from mgwfbp.torch.reducer import EARLY_LOOKS
    step(wrapped)  # the survey
    for look in range(1 + EARLY_LOOKS):
        if look > 1 and bench.slowest(time.perf_counter() - until, device) > 0:  # all the same
            break
        for _ in range(16):
            step(wrapped)
    step(wrapped)  # with which the last look comes


def make_variants(model, step, device, until):
    import mgwfbp.torch
    variants = {"compute alone": Variant(copy.deepcopy(model))}
    for name, cap in STOCK.items():
        variants[name] = Variant(bench.stock_ddp(copy.deepcopy(model), cap))
    tuned = mgwfbp.torch.tune_ddp(copy.deepcopy(model), step, verbose=False)
    variants[TUNED] = Variant(tuned)
    for variant in variants.values():
        for _ in range(2):  # DDP makes its buckets after the first
            step(variant.wrapped)
    ours = {transport: wrap(copy.deepcopy(model), transport) for transport in ("torch", "native")}
    for _ in range(1 + 16 + 1):  # the survey, what the engine measures before it plans, and a step with that
        step(ours["native"])
    learn(ours["torch"], step, device, until)
    for transport, wrapped in ours.items():
        for policy in POLICIES:
            variants[f"mgwfbp {transport}, {policy}"] = Variant(wrapped, policy)
    return variants, tuned.mgwfbp_tuning


def run_block(step, variant, steps, device):
    """Seconds per step; the first after a change does not count."""
    if variant.policy:
        variant.wrapped.set_policy(variant.policy)
    step(variant.wrapped)
    return bench.time_block(step, variant.wrapped, steps, device)


def predict(variants):
    """DDP's steps by what the transport torch has measured; ours, each by its own."""
    predicted, cost = {}, {}
    for transport in ("torch", "native"):
        reducer = variants[f"mgwfbp {transport}, optimal"].wrapped._sync.reducer
        policies = {f"mgwfbp {transport}, {policy}": policy for policy in reversed(POLICIES)}
        if transport == "torch":
            policies.update({name: "ddp:{},{}".format(*bench.limits(cap, variants[name].wrapped))
                             for name, cap in STOCK.items()})
        made, cost[transport] = bench.predictions(reducer, reducer.measured(), policies)
        predicted.update(made)
    return predicted, cost


def describe(arguments, variants, tuning):
    """What does not change from round to round."""
    import torch
    predicted, cost = predict(variants)
    reports = {t: str(variants[f"mgwfbp {t}, optimal"].wrapped.report()) for t in ("torch", "native")}
    name = torch.cuda.get_device_name() if arguments.device == "cuda" else "cpu"
    return {"model": arguments.model, "batch": arguments.batch, "workers": arguments.workers,
            "inputs": MODELS[arguments.model].inputs,
            "network": arguments.network, "predicted": predicted, "cost": cost["native"],
            "costs": cost, "torch": torch.__version__, "gpu": name, "tuning": tuning, "reports": reports}


BLOCK_S = 0.35  # of a variant in a round


def time_all(arguments, device, begun):
    """Prints the result so far after every round: who runs out of time still has that."""
    model, step = make_model(arguments, device)
    variants, tuning = make_variants(model, step, device, begun + arguments.limit / 3)
    del model
    step_s = run_block(step, variants["DDP 25 MB (default)"], 2, device)
    steps = min(arguments.steps, max(2, round(BLOCK_S / step_s)))
    result = describe(arguments, variants, tuning)
    result.update(steps=steps, rounds={name: [] for name in variants}, messages={},
                  setup_s=time.perf_counter() - begun)
    native = variants[OURS].wrapped
    order = list(variants)
    for number in range(arguments.rounds):
        random.Random(number).shuffle(order)
        waits, round_begun = native.statistics().get("device_waits", 0), time.perf_counter()
        for name in order:
            result["rounds"][name].append(run_block(step, variants[name], steps, device))
            result["messages"][name] = bench.messages_of(variants[name].wrapped)
        now = time.perf_counter()
        # One wait for each change of policy is planning; more would be a host that runs too far ahead.
        result["device_waits_per_round"] = native.statistics().get("device_waits", 0) - waits
        result["wall_s"] = now - begun
        if os.environ["RANK"] == "0":
            print(json.dumps(result), flush=True)
        if number > 0 and bench.slowest(2 * now - round_begun - begun, device) > arguments.limit:
            break  # the next would end too late


# ---- Weights ----


def train(wrapped, step, steps):
    import torch
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.01, momentum=0.9)
    for _ in range(steps):
        step(wrapped)
        optimizer.step()
    return {name: tensor.double() for name, tensor in bench.model_of(wrapped).state_dict().items()}


def compare_weights(arguments, device):
    """After so many steps on different inputs: the largest difference from DDP's, of any element on any rank."""
    import torch
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False
    model, _ = make_model(arguments, device)
    torch.manual_seed(1000 + int(os.environ["RANK"]))
    _, loss = MODELS[arguments.model].make(arguments.batch, device)  # each worker its own inputs

    def step(wrapped):
        for parameter in bench.model_of(wrapped).parameters():
            parameter.grad = None
        torch.manual_seed(7)  # dropout
        loss(wrapped).backward()

    expected = train(bench.stock_ddp(copy.deepcopy(model), bench.DEFAULT_CAP), step, arguments.weights)
    moved = max(float((expected[name] - tensor.double()).abs().max()) for name, tensor in model.named_parameters())
    found = {"how far weights have moved": moved}
    for name in ("DDP again", "torch", "native"):
        copied = copy.deepcopy(model)
        wrapped = bench.stock_ddp(copied, bench.DEFAULT_CAP) if name == "DDP again" else wrap(copied, name)
        state = train(wrapped, step, arguments.weights)
        worst = max(float((state[key] - expected[key]).abs().max()) for key in expected)
        found[name] = bench.slowest(worst, device)
    if os.environ["RANK"] == "0":
        print(json.dumps({"model": arguments.model, "batch": arguments.batch, "workers": arguments.workers,
                          "weights_after": arguments.weights, "difference": found, "torch": torch.__version__}),
              flush=True)


# ---- Does the host wait for the GPU? ----


def trace_calls(arguments, device):
    """What PyTorch's profiler sees of CUDA's calls in steps of the steady state: those in which the host waits."""
    import torch
    from torch.profiler import ProfilerActivity, profile, record_function
    model, step = make_model(arguments, device)
    found = {}
    for name in ("DDP", "torch", "native"):
        wrapped = bench.stock_ddp(copy.deepcopy(model), bench.DEFAULT_CAP) if name == "DDP" else wrap(copy.deepcopy(model), name)
        for _ in range(20):
            step(wrapped)
        torch.cuda.synchronize()
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
            with record_function("all steps"):
                for _ in range(arguments.trace):
                    step(wrapped)
            torch.cuda.synchronize()
        events = profiler.events()
        steps = next(event.time_range for event in events if event.name == "all steps")
        calls = collections.Counter(event.name for event in events if event.name.startswith("cu") and
                                    steps.start <= event.time_range.start < steps.end)
        waits = {call: count for call, count in calls.items() if "Synchronize" in call}
        found[name] = {"steps": arguments.trace, "calls": sum(calls.values()), "waits": waits}
        if arguments.output and os.environ["RANK"] == "0":
            profiler.export_chrome_trace(f"{arguments.output}.{name}.trace.json")
    if os.environ["RANK"] == "0":
        print(json.dumps({"model": arguments.model, "workers": arguments.workers, "trace": found}), flush=True)


def as_worker(arguments, measure):
    """Joins the job, measures on the worker's device, with when that began, and leaves."""
    begun = time.perf_counter()
    import torch
    import torch.distributed as dist
    device = torch.device("cpu")
    if arguments.device == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(1)
    dist.init_process_group("nccl" if arguments.device == "cuda" else "gloo")
    measure(arguments, device, begun)
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)  # leaving a dozen communicators in order would take longer than a round


def measure_here(arguments, device, begun):
    if arguments.trace:
        trace_calls(arguments, device)
    elif arguments.weights:
        compare_weights(arguments, device)
    else:
        time_all(arguments, device, begun)


# ---- The driver ----


def last_line(lines):
    """The last whole result among what a worker has printed."""
    for line in reversed(lines):
        try:
            return json.loads(line)
        except ValueError:
            continue
    return None


def wait_for(workers, until):
    """Until all have ended, or one has failed and the others had time to say why. Returns their exit codes."""
    while time.monotonic() < until:
        codes = [worker.poll() for worker in workers]
        if None not in codes:
            break
        if any(codes):
            until = min(until, time.monotonic() + 10)
        time.sleep(0.1)
    return [worker.poll() for worker in workers]


def measure(arguments, file=__file__):
    """The result of the workers that run this file, and why it is not whole, if it is not."""
    program = [sys.executable, os.path.abspath(file), "--worker", *sys.argv[1:]]
    share = {"NCCL_NET": "Socket", "NCCL_SOCKET_IFNAME": "lo", "GLOO_SOCKET_IFNAME": "lo"}
    workers = [bench.start(program, rank, arguments.workers, "127.0.0.1", 21000 + os.getpid() % 9000,
                           f"bench-{os.getpid()}", NCCL_HOSTID=f"host{rank}", **share)
               for rank in range(arguments.workers)]
    lines = []
    reader = threading.Thread(target=lambda: lines.extend(workers[0].stdout), daemon=True)
    reader.start()
    try:
        codes = wait_for(workers, time.monotonic() + arguments.timeout)
    finally:
        for worker in workers:
            worker.kill()
    reader.join(timeout=10)
    late = [rank for rank, code in enumerate(codes) if code is None]
    failed = [rank for rank, code in enumerate(codes) if code]
    trouble = f"worker {failed[0]} failed" if failed else f"worker {late[0]} ran out of time" if late else None
    return last_line(lines), trouble


def verdict(result):
    """Ours against DDP as it is, and as well as it can be tuned by trying."""
    medians = {name: statistics.median(times) for name, times in result["rounds"].items()}
    best = min(STOCK, key=medians.get)
    default = next(name for name in STOCK if "default" in name)
    lines = [f"DDP's best bucket size is '{best}'. Below 1 ours is faster:"]
    for name in (OURS, "mgwfbp torch, optimal"):
        lines.append(f"{name} takes " + ", ".join(f"{medians[name] / medians[other]:.3f} of '{other}'"
                                                  for other in (best, default, TUNED)))
    lines.append(f"set up in {result['setup_s']:.0f} s, all in {result['wall_s']:.0f} s")
    if result["gpu"] != "cpu":
        lines.append(f"the host waited for the GPU {result['device_waits_per_round']} times in the last round; once for "
                     f"each of {len(POLICIES)} policies is planning")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="resnet50", choices=list(MODELS))
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batch", type=int, default=0)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--network", default="loopback", help="what to call the network in the result")
    parser.add_argument("--steps", type=int, default=6, help="steps of a variant in a round, at most")
    parser.add_argument("--rounds", type=int, default=6, help="at most")
    parser.add_argument("--weights", type=int, default=0, metavar="STEPS", help="compare weights after so many steps")
    parser.add_argument("--trace", type=int, default=0, metavar="STEPS", help="count the calls that wait for the GPU")
    parser.add_argument("--limit", type=float, default=60, help="seconds within which rounds shall end")
    parser.add_argument("--timeout", type=float, default=110, help="seconds after which workers are killed")
    parser.add_argument("-o", "--output", help="append the result as a line of JSON")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.batch = arguments.batch or MODELS[arguments.model].batch
    if arguments.worker:
        return as_worker(arguments, measure_here)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("bench/gpu_ddp.py: ended"))  # not without workers
    result, trouble = measure(arguments)
    if result and arguments.output:
        with open(arguments.output, "a") as file:
            file.write(json.dumps(dict(result, trouble=trouble)) + "\n")
    if result and "rounds" in result:
        print(bench.table(result, OURS), verdict(result), *result["reports"].values(), result["tuning"], sep="\n\n")
    elif result:
        print(json.dumps(result, indent=2))
    if trouble:
        sys.exit(f"bench/gpu_ddp.py: {trouble}")


if __name__ == "__main__":
    main()
