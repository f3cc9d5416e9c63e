#!/usr/bin/env python3
"""`mgwfbp advise` against PyTorch's own DDP: is the bucket_cap_mb that it names the best of a sweep on a real network?

    bench/ddp_advice.py --model resnet18 --network 1gbit      # root: namespaces shaped with tbf
    bench/ddp_advice.py --model resnet18 --network loopback

A few steps of our own wrapper give a trace and the network's cost, as files. `mgwfbp advise TRACE CLUSTER` reads them and
names a size. Then DDP runs with that size and with all those of the sweep, in turn, round after round; computation alone
runs beside them. A size is a limit for all buckets, the first one included, as PyTorch 2.4 and later mean it.
"""

import argparse
import copy
import json
import math
import random
import signal
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import ddp

SWEEP = [0.5, 1, 2, 4, 8, 16, 32, 64, 1000]
DEFAULT = "default"
COMMAND = ddp.ROOT / "build" / "release" / "bin" / "mgwfbp"
LEARN = 26  # steps until the wrapper has a plan, and has seen how computation and messages slow each other down


# ---- One worker ----


def ddp_of_size(model, cap):
    """Stock DDP. Earlier versions have a smaller first bucket even where a size was asked for."""
    import torch
    import torch.distributed as dist
    first = dist._DEFAULT_FIRST_BUCKET_BYTES
    if cap != DEFAULT:
        dist._DEFAULT_FIRST_BUCKET_BYTES = int(cap * ddp.MIB)
    wrapped = torch.nn.parallel.DistributedDataParallel(model, **({} if cap == DEFAULT else {"bucket_cap_mb": cap}))
    dist._DEFAULT_FIRST_BUCKET_BYTES = first
    return wrapped


def policy_of(cap):
    if cap == DEFAULT:
        return f"ddp:{ddp.MIB},{int(ddp.DEFAULT_CAP * ddp.MIB)}"
    return "ddp:{0},{0}".format(int(cap * ddp.MIB))


def describe(model, step, folder):
    """Writes what advise is given, a trace and a cluster, after a few steps with our wrapper."""
    import mgwfbp.torch
    wrapped = mgwfbp.torch.DistributedDataParallel(copy.deepcopy(model), transport="torch", profile_steps=6, trials=False)
    for _ in range(LEARN):
        step(wrapped)
    files = [Path(folder) / "trace.json", Path(folder) / "cluster.json"]
    wrapped.save_measurements(*files)
    wrapped.close()
    return files


def ask(files):
    """The answer as a line, all of it, and what it is the answer to."""
    command = [COMMAND, "advise", *files]
    line = subprocess.run(command, check=True, stdout=subprocess.PIPE, encoding="utf-8").stdout.splitlines()[0]
    answer = subprocess.run([*command, "--json"], check=True, stdout=subprocess.PIPE, encoding="utf-8").stdout
    return line, json.loads(answer), {file.stem: json.loads(file.read_text()) for file in files}


def work(arguments):
    import mgwfbp
    import torch
    import torch.distributed as dist
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model, step = ddp.make_model(arguments.model, arguments.batch, arguments.size)
    with tempfile.TemporaryDirectory() as folder:
        files = describe(model, step, folder)
        said = [ask(files) if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(said)
    line, answer, asked = said[0]
    advised = answer["bucket_cap_mb"] or DEFAULT
    caps = [DEFAULT] + sorted({*SWEEP, *([] if advised == DEFAULT else [advised])})
    variants = {"compute alone": copy.deepcopy(model)}
    variants.update({str(cap): ddp_of_size(copy.deepcopy(model), cap) for cap in caps})
    for wrapped in variants.values():  # buckets are rebuilt
        for _ in range(2):
            step(wrapped)
    rounds = {name: [] for name in variants}
    order = list(variants)
    for number in range(arguments.rounds):
        random.Random(number).shuffle(order)
        for name in order:
            rounds[name].append(ddp.time_block(step, variants[name], arguments.steps))
    predicted = {str(cap): mgwfbp.plan(asked["trace"], asked["cluster"], policy_of(cap)).iteration_s for cap in caps}
    if dist.get_rank() == 0:
        print(json.dumps({"model": arguments.model, "batch": arguments.batch, "workers": dist.get_world_size(),
                          "network": arguments.network, "steps": arguments.steps, "torch": torch.__version__,
                          "line": line, "advised": str(advised), "answer": answer, **asked,
                          "rounds": rounds, "predicted": predicted}), flush=True)
    dist.barrier()


# ---- The driver ----


def against_others(rounds, advised):
    """Time with the advised size over that with the size that is best in all other rounds, which no noise of this round has
    chosen: the geometric mean, and half its 95% confidence interval."""
    sizes = [name for name in rounds if name != "compute alone"]
    logs = []
    for i, own in enumerate(rounds[advised]):
        best = min(sizes, key=lambda name: statistics.median(rounds[name][:i] + rounds[name][i + 1:]))
        logs.append(math.log(own / rounds[best][i]))
    return math.exp(statistics.mean(logs)), 2 * statistics.stdev(logs) / math.sqrt(len(logs))


def table(result):
    rounds, advised = result["rounds"], result["advised"]
    medians = {name: statistics.median(times) for name, times in rounds.items()}
    best = min((name for name in rounds if name != "compute alone"), key=medians.get)
    lines = [f"{result['model']}, batch {result['batch']}, {result['workers']} workers, {result['network']}, PyTorch "
             f"{result['torch']}; {len(rounds[best])} rounds of {result['steps']} steps", result["line"], "",
             "| bucket_cap_mb | ms per step | spread | predicted ms | time / advised | spread |", "|---|---|---|---|---|---|"]
    for name, times in rounds.items():
        ratios = [time / own for time, own in zip(times, rounds[advised])]
        mark = " (advised)" if name == advised else " (best)" if name == best else ""
        lines.append(f"| {name}{mark} | {ddp.milliseconds(medians[name])} | {ddp.spread(times):.1%} | "
                     f"{ddp.milliseconds(result['predicted'].get(name))} | {statistics.median(ratios):.3f} | "
                     f"{ddp.spread(ratios):.1%} |")
    ratios = [own / other for own, other in zip(rounds[advised], rounds[best])]
    lines.append(f"\nadvised {advised}: {statistics.median(ratios):.3f} of the best of the sweep ({best}), spread "
                 f"{ddp.spread(ratios):.1%}; {{:.3f}} ± {{:.3f}} of the best of other rounds"
                 .format(*against_others(rounds, advised)))
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="resnet18", help="a name of torchvision.models")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--network", default="1gbit", help="loopback, or a rate of tc: 1gbit")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--steps", type=int, default=2, help="steps of a variant in a round")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--timeout", type=float, default=900)
    parser.add_argument("-o", "--output", help="append the result as a line of JSON")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        return work(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("bench/ddp_advice.py: ended"))  # not without its workers
    result = ddp.measure(arguments, __file__)
    print(table(result))
    if arguments.output:
        with open(arguments.output, "a") as file:
            file.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
