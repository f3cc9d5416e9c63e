#!/usr/bin/env python3
"""Against PyTorch's own DDP, in one run: every variant in turn, round after round; times, ratios with their spread, and
what the planner predicts beside what was measured.

    bench/ddp.py --model resnet18 --workers 2 --network 1gbit       # root: namespaces shaped with tbf
    bench/ddp.py --model resnet18 --workers 2 --network loopback

One rank per worker, one thread each, gloo. The time of a step is forward and backward pass with gradients averaged, the
slowest worker's. Results go to docs/guide/pytorch.md.
"""

import argparse
import contextlib
import copy
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "python"))
sys.path.insert(0, str(ROOT / "bench"))

MIB = 1 << 20
OURS = "mgwfbp, torch (gloo)"
DEFAULT_CAP = 25.0
# Stock DDP's bucket_cap_mb. The first bucket is 1 MiB at most, as it is by default; "tiny" is one tensor per bucket.
STOCK = {"DDP tiny": 1e-6, "DDP 1 MB": 1.0, "DDP 4 MB": 4.0, "DDP 25 MB (default)": DEFAULT_CAP, "DDP huge": 1000.0}


def limits(cap, wrapped=None):
    """DDP's limits in bytes: of the first bucket, and of the others. Later versions have a smaller first one only where
    nobody has asked for a size. "huge" is one bucket."""
    rest = max(1, int(cap * MIB))
    smaller = cap < 1000 and getattr(wrapped, "bucket_bytes_cap_default", True)
    return (min(MIB, rest) if smaller else rest), rest


# ---- One worker ----


def make_model(name, batch, size):
    import torch
    import torchvision
    options = {"init_weights": False, "aux_logits": False} if name == "googlenet" else {}
    torch.manual_seed(0)
    model = getattr(torchvision.models, name)(**options)
    inputs, targets = torch.randn(batch, 3, size, size), torch.randint(1000, (batch,))

    def step(wrapped):
        for parameter in model_of(wrapped).parameters():
            parameter.grad = None
        torch.nn.functional.cross_entropy(wrapped(inputs), targets).backward()

    return model, step


def model_of(wrapped):
    return getattr(wrapped, "module", wrapped)


def stock_ddp(model, cap):
    """PyTorch's own, with such buckets."""
    import torch
    import torch.distributed as dist
    first = dist._DEFAULT_FIRST_BUCKET_BYTES
    dist._DEFAULT_FIRST_BUCKET_BYTES = limits(cap)[0]
    asked = {} if cap == DEFAULT_CAP else {"bucket_cap_mb": cap}
    wrapped = torch.nn.parallel.DistributedDataParallel(model, **asked)
    dist._DEFAULT_FIRST_BUCKET_BYTES = first
    return wrapped


def make_variants(arguments, model, step):
    import mgwfbp.torch
    ours = mgwfbp.torch.DistributedDataParallel
    variants = {"compute alone": copy.deepcopy(model)}
    for name, cap in STOCK.items():
        variants[name] = stock_ddp(copy.deepcopy(model), cap)
    variants["DDP tuned by tune_ddp"] = mgwfbp.torch.tune_ddp(copy.deepcopy(model), step, verbose=False, steps=4)
    variants[OURS] = ours(copy.deepcopy(model), transport="torch", profile_steps=4)
    if arguments.network == "loopback":
        variants["mgwfbp, native (shm)"] = ours(copy.deepcopy(model), transport="native", profile_steps=4)
    return variants


def slowest(seconds, device):
    """The slowest worker's."""
    import torch
    import torch.distributed as dist
    found = torch.tensor(seconds, dtype=torch.float64, device=device)
    dist.all_reduce(found, op=dist.ReduceOp.MAX)
    return float(found)


def time_block(step, wrapped, steps, device="cpu"):
    """Seconds per step, the slowest worker's."""
    import torch
    import torch.distributed as dist
    finish = torch.cuda.synchronize if torch.device(device).type == "cuda" else lambda: None
    finish()
    dist.barrier()
    begun = time.perf_counter()
    for _ in range(steps):
        step(wrapped)
    finish()
    return slowest((time.perf_counter() - begun) / steps, device)


def predictions(reducer, times, policies):
    """Of policies by the name of their variant, by what was measured in the steps of our own, on this network."""
    import mgwfbp
    from mgwfbp.torch.slots import trace_of
    trace, cluster = trace_of(reducer.slots, times.ready_s, times.forward_s), times.cluster
    plans = {name: mgwfbp.plan(trace, cluster, policy) for name, policy in policies.items()}
    predicted = {name: plan.iteration_s for name, plan in plans.items()}
    predicted["lower bound"] = next(iter(plans.values())).lower_bound_s
    slowdown, stretch = cluster.beside
    return predicted, {"a_s": cluster.a_s, "b_s_per_byte": cluster.b_s_per_byte, "slowdown": slowdown, "stretch": stretch}


def messages_of(wrapped):
    """How many a step has; None where there are none."""
    from mgwfbp.torch.buckets import bucket_sizes
    if hasattr(wrapped, "_get_ddp_logging_data"):
        return len(bucket_sizes(wrapped))
    return wrapped.statistics()["messages"] if hasattr(wrapped, "statistics") else None


def work(arguments):
    import torch
    import torch.distributed as dist
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model, step = make_model(arguments.model, arguments.batch, arguments.size)
    variants = make_variants(arguments, model, step)
    for name, wrapped in variants.items():  # buckets are rebuilt, plans are made
        for _ in range(18 if name.startswith("mgwfbp") else 2):
            step(wrapped)
    rounds = {name: [] for name in variants}
    order = list(variants)
    for number in range(arguments.rounds):
        random.Random(number).shuffle(order)
        for name in order:
            rounds[name].append(time_block(step, variants[name], arguments.steps))
    reducer = variants[OURS]._sync.reducer
    policies = {OURS: "optimal"}
    policies.update({name: "ddp:{}B,{}B".format(*limits(cap, variants[name])) for name, cap in STOCK.items()})
    predicted, cost = predictions(reducer, reducer.measured(), policies)
    messages = {name: messages_of(wrapped) for name, wrapped in variants.items()}
    if dist.get_rank() == 0:
        print(json.dumps({"model": arguments.model, "batch": arguments.batch, "inputs": f"{arguments.size}²",
                          "workers": dist.get_world_size(), "network": arguments.network, "steps": arguments.steps,
                          "rounds": rounds, "predicted": predicted, "cost": cost, "messages": messages,
                          "torch": torch.__version__, "report": str(variants[OURS].report())}),
              flush=True)
    dist.barrier()


# ---- The driver ----


def start(command, rank, workers, address, port, job, **more):
    environment = dict(os.environ, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(workers),
                       LOCAL_WORLD_SIZE=str(workers), MASTER_ADDR=address, MASTER_PORT=str(port), OMP_NUM_THREADS="1",
                       MGWFBP_JOB=job, PYTHONWARNINGS="ignore", **more)
    environment.setdefault("MGWFBP_LIBRARY", str(ROOT / "build" / "release" / "src" / "libmgwfbp.so"))
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
                            encoding="utf-8")


def measure(arguments, program=__file__):
    """What rank 0 of the program prints, started with --worker on every rank."""
    from network import Star
    program = ["chrt", "-b", "0", sys.executable, program, "--worker", *sys.argv[1:]]
    star = None if arguments.network == "loopback" else Star(arguments.workers, arguments.network)
    with star or contextlib.nullcontext():
        workers = [start(star.inside(rank, program) if star else program, rank, arguments.workers,
                         star.address(0) if star else "127.0.0.1", 21000 + os.getpid() % 9000, f"bench-{os.getpid()}",
                         GLOO_SOCKET_IFNAME="net0" if star else "lo") for rank in range(arguments.workers)]
        try:
            output = workers[0].communicate(timeout=arguments.timeout)[0]
            failed = [rank for rank, worker in enumerate(workers) if worker.wait(timeout=60)]
        finally:
            for worker in workers:
                worker.kill()
    if failed:
        sys.exit(f"{sys.argv[0]}: worker {failed[0]} failed")
    return json.loads(output)


def heading(result):
    rounds = next(iter(result["rounds"].values()))
    return (f"{result['model']}, batch {result['batch']} at {result['inputs']}, {result['workers']} workers, "
            f"{result['network']}; T(M) = {result['cost']['a_s'] * 1e3:.2f} ms + M * "
            f"{result['cost']['b_s_per_byte'] * 1e9:.2f} ns; while both run, messages take {result['cost']['slowdown']:.2f} "
            f"and computation {result['cost']['stretch']:.2f} times as long; {len(rounds)} rounds of {result['steps']} steps")


def milliseconds(seconds):
    return f"{seconds * 1e3:.{0 if seconds >= 0.1 else 1}f}" if seconds else ""


def table(result, ours=OURS):
    """Median step, spread (half the distance between quartiles), ratio to ours in the same round, exposed communication
    (what the step takes beyond computation alone), prediction."""
    alone = statistics.median(result["rounds"]["compute alone"])
    lines = [heading(result), "",
             "| | messages | ms per step | spread | time / ours | spread | exposed ms | predicted ms |",
             "|---|---|---|---|---|---|---|---|"]
    for name, times in result["rounds"].items():
        ratios = [time / own for time, own in zip(times, result["rounds"][ours])]
        median = statistics.median(times)
        cells = [name, result["messages"].get(name) or "", milliseconds(median), f"{spread(times):.1%}",
                 f"{statistics.median(ratios):.3f}", f"{spread(ratios):.1%}", milliseconds(median - alone),
                 milliseconds(result["predicted"].get(name))]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    lines.append(f"| lower bound of any plan | | | | | | | {milliseconds(result['predicted']['lower bound'])} |")
    return "\n".join(lines)


def spread(values):
    if len(values) < 3:
        return (max(values) - min(values)) / 2 / statistics.median(values)
    low, _, high = statistics.quantiles(values, n=4)
    return (high - low) / 2 / statistics.median(values)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="resnet18", help="a name of torchvision.models")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--network", default="loopback", help="loopback, or a rate of tc: 1gbit")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--steps", type=int, default=3, help="steps of a variant in a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--timeout", type=float, default=900)
    parser.add_argument("-o", "--output", help="append the result as a line of JSON")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        return work(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("bench/ddp.py: ended"))  # not without workers and namespaces
    result = measure(arguments)
    print(table(result))
    print(result["report"])
    if arguments.output:
        with open(arguments.output, "a") as file:
            file.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
