#!/usr/bin/env python3
"""Against PyTorch's own DDP on one GPU that several workers share as a cluster, in one run: every variant in turn, round
after round. Ours over both transports as one gets it without an option, DDP with seven bucket sizes and, with --tuned, as
tune_ddp sets it.

    bench/gpu BUILD LOGS ddp                                    # with MPS, all models, 2 and 4 workers
    bench/gpu_ddp.py --model resnet50,vgg16 --workers 2 --starts 3 -o results.jsonl
    bench/gpu_ddp.py --model resnet50 --workers 2 --weights 20  # not times, but how far weights are from DDP's
    bench/gpu_ddp.py --model resnet50 --workers 2 --trace 10    # nor times, but how often the host waits for the GPU
    bench/gpu_ddp.py --model resnet50 --workers 2 --wire --variants "DDP 25 MB (default);mgwfbp native"   # bf16 beside f32
    bench/gpu_ddp.py --model tiny --device cpu                  # the same on gloo and shared memory, to try it out

Every worker has a host id of its own, so that NCCL goes over sockets. A step is whole: forward, backward, SGD with momentum,
gradients set to None. Ours runs until its trials have ended (--learn steps at most), then blocks of steps of all variants are timed in
turn, and the host waits for the GPU at their ends only. Two NCCL communicators may differ by a quarter for as long as they live,
and each of ours has its own where DDP's share one: so there are several starts, each with all processes and communicators anew.
A start measures one model after the other. Of DDP's sizes, starts after the first have the default and the best of the first.
The result of a start is a line of JSON for each model; there are two rounds, and more if they end within --limit seconds.
"""

import argparse
import collections
import copy
import gc
import json
import os
import random
import signal
import statistics
import sys
import threading
import time
import ddp as bench
from gpu_models import MODELS

STOCK = {"DDP per tensor": 1e-6, "DDP 1 MB": 1.0, "DDP 5 MB": 5.0, "DDP 10 MB": 10.0, "DDP 25 MB (default)": bench.DEFAULT_CAP,
         "DDP 50 MB": 50.0, "DDP one bucket": 1000.0}
TUNED = "DDP tuned by tune_ddp"
DEFAULT = "DDP 25 MB (default)"
OURS = "mgwfbp native"
HOOKED, NARROW = "DDP, bf16 hook", "mgwfbp native, bf16 wire"  # with --wire
TRANSPORTS = ("native", "torch")


# ---- A model and its step ----


def make_model(arguments, device):
    import torch
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    return MODELS[arguments.model].make(arguments.batch or MODELS[arguments.model].batch, device)


# ---- One worker ----


class Variant:
    """A copy of the model, what averages its gradients, and its optimizer."""

    def __init__(self, model, loss, wrap):
        import torch
        self.wrapped, self.loss = wrap(copy.deepcopy(model)), loss
        self.optimizer = torch.optim.SGD(self.wrapped.parameters(), lr=1e-3, momentum=0.9)

    def step(self, *_):
        self.loss(self.wrapped).backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def close(self):
        if isinstance(self.wrapped, mgwfbp_class()):
            self.wrapped.close()


def mgwfbp_class():
    import mgwfbp.torch
    return mgwfbp.torch.DistributedDataParallel


def wrap(model, transport, **options):
    import mgwfbp.torch
    return mgwfbp.torch.DistributedDataParallel(model, transport=transport, timeout_s=60, **options)


def hooked_ddp(model):
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
    wrapped = bench.stock_ddp(model, bench.DEFAULT_CAP)
    wrapped.register_comm_hook(None, bf16_compress_hook)
    return wrapped


def settle(step, statistics_of, most, until, device):
    """Until trials have ended; how many steps that took."""
    for count in range(1, most + 1):
        step()
        if count % 8 == 0:
            found = statistics_of()
            late = bench.slowest(time.perf_counter() - until, device) > 0
            if (found["trials"] and not found["trying"]) or late:  # the same on all workers
                break
    return count


def make_variants(arguments, model, loss, device, until):
    """And how many steps ours have learned from."""
    import mgwfbp.torch
    variants = {"compute alone": Variant(model, loss, lambda model: model)}
    for name, cap in STOCK.items():
        if not arguments.variants or name in arguments.variants:
            variants[name] = Variant(model, loss, lambda model, cap=cap: bench.stock_ddp(model, cap))
    if arguments.wire and arguments.device == "cuda":  # gloo adds up no bf16
        variants[HOOKED] = Variant(model, loss, hooked_ddp)
    if arguments.tuned:
        variants[TUNED] = Variant(model, loss, lambda model: mgwfbp.torch.tune_ddp(
            model, lambda wrapped: loss(wrapped).backward(), verbose=False))
    for variant in variants.values():
        for _ in range(3):  # DDP makes its buckets after the first
            variant.step()
    learned = {}
    ours = {f"mgwfbp {transport}": {"transport": transport} for transport in TRANSPORTS}
    if arguments.wire:
        ours[NARROW] = {"transport": "native", "wire": "bf16"}
    if arguments.variants:
        ours = {name: options for name, options in ours.items() if name in arguments.variants or name == NARROW}
    for number, (name, options) in enumerate(ours.items()):
        variants[name] = Variant(model, loss, lambda model: wrap(model, trials=arguments.trials, **options))
        now = time.perf_counter()
        own = variants[name]
        learned[name] = settle(own.step, own.wrapped.statistics, arguments.learn, now + (until - now) / (len(ours) - number), device)
    return variants, learned


def describe(arguments, variants, learned):
    """What does not change from round to round."""
    import torch
    ours = {name: variants[name].wrapped for name in learned}
    kept = {name: [each for each in wrapped.report().tried if each.kept] for name, wrapped in ours.items()}
    return {"model": arguments.model, "batch": arguments.batch or MODELS[arguments.model].batch, "workers": arguments.workers,
            "inputs": MODELS[arguments.model].inputs, "network": network_of(arguments), "torch": torch.__version__,
            "gpu": torch.cuda.get_device_name() if arguments.device == "cuda" else "cpu", "learned": learned,
            "kept": {name: each[0].name for name, each in kept.items() if each},
            "predicted": {name: each[0].predicted_s for name, each in kept.items() if each},
            "reports": {name: str(wrapped.report()) for name, wrapped in ours.items()},
            "tuning": str(getattr(variants[TUNED].wrapped, "mgwfbp_tuning", "")) if TUNED in variants else ""}


BLOCK_S = 0.35  # of a variant in a round


def time_all(arguments, device, begun):
    """Prints the result so far after every round: who runs out of time still has that."""
    model, loss = make_model(arguments, device)
    variants, learned = make_variants(arguments, model, loss, device, begun + 0.6 * arguments.limit)
    del model
    step_s = bench.time_block(lambda variant: variant.step(), variants[DEFAULT], 2, device)
    steps = min(arguments.steps, max(2, round(BLOCK_S / step_s)))
    result = describe(arguments, variants, learned)
    result.update(steps=steps, rounds={name: [] for name in variants}, messages={},
                  setup_s=time.perf_counter() - begun)
    order = list(variants)
    for number in range(arguments.rounds):
        random.Random(number).shuffle(order)
        round_begun = time.perf_counter()
        for name in order:
            variants[name].step()  # the first after a change does not count
            result["rounds"][name].append(bench.time_block(lambda variant: variant.step(), variants[name], steps, device))
            result["messages"][name] = bench.messages_of(variants[name].wrapped)
        now = time.perf_counter()
        result["wall_s"] = now - begun
        if os.environ["RANK"] == "0":
            print(json.dumps(result), flush=True)
        if number > 0 and bench.slowest(2 * now - round_begun - begun, device) > arguments.limit:
            break  # the next would end too late
    for variant in variants.values():
        variant.close()


def time_models(arguments, device, begun):
    import torch
    for name in arguments.model.split(","):
        time_all(argparse.Namespace(**{**vars(arguments), "model": name}), device, begun)
        gc.collect()
        if arguments.device == "cuda":
            torch.cuda.empty_cache()
        begun = time.perf_counter()


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
    torch.manual_seed(0)
    model, _ = MODELS[arguments.model].make(arguments.batch or MODELS[arguments.model].batch, device)
    torch.manual_seed(1000 + int(os.environ["RANK"]))
    _, loss = MODELS[arguments.model].make(arguments.batch or MODELS[arguments.model].batch, device)  # each worker its own inputs

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
        print(json.dumps({"model": arguments.model, "batch": arguments.batch or MODELS[arguments.model].batch, "workers": arguments.workers,
                          "weights_after": arguments.weights, "difference": found, "torch": torch.__version__}),
              flush=True)


# ---- Does the host wait for the GPU? ----


def trace_calls(arguments, device):
    """What PyTorch's profiler sees of CUDA's calls in steps of the steady state: those in which the host waits."""
    import torch
    from torch.profiler import ProfilerActivity, profile, record_function
    model, loss = make_model(arguments, device)

    def step(wrapped):
        for parameter in bench.model_of(wrapped).parameters():
            parameter.grad = None
        loss(wrapped).backward()

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


def network_of(arguments):
    """Its name, with how many queues to the GPU this process asked for."""
    queues = os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS") if arguments.device == "cuda" else None
    return f"{arguments.network}, {queues} queues" if queues else arguments.network


def as_worker(arguments, measure):
    """Joins the job, measures on the worker's device, with when that began, and leaves."""
    begun = time.perf_counter()
    import mgwfbp.torch  # noqa: F401  before CUDA starts: it asks for queues, which all variants have then
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
        time_models(arguments, device, begun)


# ---- The driver ----


def last_lines(lines):
    """By model: the last whole result among what a worker has printed."""
    found = {}
    for line in lines:
        try:
            result = json.loads(line)
            found[result["model"]] = result
        except ValueError:
            continue
    return found


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


def measure(arguments, file=__file__, *more):
    """The results of the workers that run this file, by model, and why these are not whole, if they are not."""
    program = [sys.executable, os.path.abspath(file), "--worker", *sys.argv[1:], *more]
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
    return last_lines(lines), trouble


def table(results):
    """Of all starts together: medians over rounds, and for each start how it stands to DDP's default."""
    first = results[0]
    lines = [f"{first['model']}, batch {first['batch']} ({first['inputs']}), {first['workers']} workers, {first['network']}; "
             f"{len(results)} starts, {', '.join(str(len(r['rounds'][DEFAULT])) for r in results)} rounds of {first['steps']} steps", "",
             "| | messages | ms per step | spread | of DDP's default, by start | of the best DDP, by start |",
             "|---|---|---|---|---|---|"]

    def ratios(name, other):
        return ", ".join(f"{statistics.median(a / b for a, b in zip(r['rounds'][name], r['rounds'][other(r)])):.3f}"
                         for r in results if name in r["rounds"])

    for name in first["rounds"]:
        times = [time_s for r in results for time_s in r["rounds"].get(name, [])]
        lines.append(f"| {name} | {', '.join(str(r['messages'].get(name) or '') for r in results)} | "
                     f"{bench.milliseconds(statistics.median(times))} | {bench.spread(times):.1%} | "
                     f"{ratios(name, lambda r: DEFAULT)} | {ratios(name, best_stock)} |")
    return "\n".join(lines)


def best_stock(result):
    return min((name for name in STOCK if name in result["rounds"]), key=lambda name: statistics.median(result["rounds"][name]))


def verdict(results):
    lines = []
    for result in results:
        medians = {name: statistics.median(times) for name, times in result["rounds"].items()}
        for name, predicted_s in result["predicted"].items():
            lines.append(f"{name}: '{result['kept'][name]}' after {result['learned'][name]} steps; predicted "
                         f"{bench.milliseconds(predicted_s)} ms, measured {bench.milliseconds(medians[name])} "
                         f"({predicted_s / medians[name] - 1:+.1%})")
        lines.append(f"set up in {result['setup_s']:.0f} s, all in {result['wall_s']:.0f} s")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="resnet50", help="one or several, with commas between: " + ", ".join(MODELS))
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batch", type=int, default=0)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--network", default="loopback", help="what to call the network in the result")
    parser.add_argument("--starts", type=int, default=1, help="how often all processes are started anew")
    parser.add_argument("--learn", type=int, default=600, help="steps of ours before it is timed, at most")
    parser.add_argument("--trials", type=int, help="steps of a trial of ours, at most")
    parser.add_argument("--variants", help="some of them, with ; between; DDP's default must be among them")
    parser.add_argument("--wire", action="store_true", help="gradients as bf16, too: DDP with its hook, and ours")
    parser.add_argument("--tuned", action="store_true", help="DDP as tune_ddp sets it, too")
    parser.add_argument("--steps", type=int, default=6, help="steps of a variant in a round, at most")
    parser.add_argument("--rounds", type=int, default=6, help="at most")
    parser.add_argument("--weights", type=int, default=0, metavar="STEPS", help="compare weights after so many steps")
    parser.add_argument("--trace", type=int, default=0, metavar="STEPS", help="count the calls that wait for the GPU")
    parser.add_argument("--limit", type=float, default=60, help="seconds within which rounds shall end")
    parser.add_argument("--timeout", type=float, default=110, help="seconds after which workers are killed")
    parser.add_argument("-o", "--output", help="append the result as a line of JSON")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    unknown = [name for name in arguments.model.split(",") if name not in MODELS]
    if unknown:
        parser.error(f"--model: unknown model '{unknown[0]}'")
    if arguments.worker:
        return as_worker(arguments, measure_here)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("bench/gpu_ddp.py: ended"))  # not without workers
    results, trouble = {}, None
    for start in range(arguments.starts):
        sizes = {best_stock(all_of[0]) for all_of in results.values() if "rounds" in all_of[0]} | {DEFAULT}
        fewer = ["--variants", ";".join([*sizes, *(f"mgwfbp {name}" for name in TRANSPORTS)])] if start and not arguments.variants else []
        found, trouble = measure(arguments, __file__, *fewer)
        for result in found.values():
            results.setdefault(result["model"], []).append(result)
            if arguments.output:
                with open(arguments.output, "a") as file:
                    file.write(json.dumps(dict(result, trouble=trouble)) + "\n")
        if trouble:
            break
    for all_of in results.values():
        timed = [result for result in all_of if "rounds" in result]
        if timed:
            print(table(timed), verdict(timed), *timed[-1]["reports"].values(), timed[-1]["tuning"], "", sep="\n\n")
        else:
            print(json.dumps(all_of[0], indent=2))
    if trouble:
        sys.exit(f"bench/gpu_ddp.py: {trouble}")


if __name__ == "__main__":
    main()
