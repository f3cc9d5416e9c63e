#!/usr/bin/env python3
"""Profiles of PyTorch, as fixtures for `mgwfbp trace --from`, and what our own tracer measures of the same model.

    bench/gpu_profile.py OUT                                   # ResNet-50 on the GPU; two workers of DDP over NCCL share it
    bench/gpu_profile.py OUT --model tiny --device cpu         # the same on gloo, to try it out

Writes into OUT, of MODEL:

    MODEL-plain.json.gz   some steps of one worker alone, as torch.profiler exports them with record_shapes
    MODEL-ddp.json.gz     rank 0 of two workers of DistributedDataParallel
    MODEL-own.json        mgwfbp.torch.profile of one worker alone
    MODEL-tensors.json    the parameters in the order in which the model names them, with their elements
    about.json            versions, and what was dropped

Workers of DDP have a host id each, so that NCCL goes over sockets though they share a GPU; they run side by side where MPS does
(bench/gpu starts it). What no reader of ours looks at is dropped from the profiles, which about.json says: rows of Python, of the
garbage collector, flows, and members of `args` beside those in KEPT.
"""

import argparse
import gzip
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
KEPT = ("Sequence number", "Fwd thread id", "Input Dims", "Input type", "correlation", "stream", "External id", "Ev Idx",
        "Collective name", "In msg nelems", "Out msg nelems", "Group size", "dtype", "Process Group Name")
DROPPED_KINDS = ("python_function", "ac2g", "fwdbwd", "Trace", "overhead")
ROWS = ("torch::autograd::AccumulateGrad", "record_param_comms", "gloo:", "c10d::", "nccl:", "Optimizer.", "ProfilerStep")


def is_kept(event):
    """Whether a row says something of gradients, of messages, of the two passes or of the device."""
    if event.get("ph") != "X" or event.get("cat") in DROPPED_KINDS:
        return False
    if event.get("cat") != "cpu_op" and event.get("cat") is not None:
        return True
    name = event["name"]
    return "Sequence number" in event.get("args", {}) or name.startswith("autograd::engine") or any(
        name.startswith(row) for row in ROWS)


def slim(profile):
    if isinstance(profile, list):  # a PyTorch without Kineto
        return [{**event, "args": {}} for event in profile if event.get("ph") == "X"]
    events = []
    for event in profile["traceEvents"]:
        if is_kept(event):
            args = {key: value for key, value in event.get("args", {}).items() if key in KEPT}
            events.append({**{key: event[key] for key in ("ph", "cat", "name", "pid", "tid", "ts", "dur") if key in event},
                           "args": args})
    kept = {key: value for key, value in profile.items() if key not in ("traceEvents", "traceName", "host_name", "trace_id")}
    return {**kept, "traceEvents": events}


def save(profiler, path):
    raw, twice = path.with_suffix(".raw"), set()

    def members(pairs):
        names = [name for name, _ in pairs]
        twice.update(name for name in names if names.count(name) > 1)
        return dict(pairs)

    profiler.export_chrome_trace(str(raw))
    profile = json.loads(raw.read_text(), object_pairs_hook=members)
    found = {"rows": len(profile if isinstance(profile, list) else profile["traceEvents"]), "bytes": raw.stat().st_size, "members given twice": sorted(twice)}
    raw.unlink()
    text = json.dumps(slim(profile), separators=(",", ":"))
    path.write_bytes(gzip.compress(text.encode(), 9, mtime=0))
    return {**found, "kept_rows": text.count('"ph":"X"'), "compressed_bytes": path.stat().st_size}


def record(step, steps, device, path):
    """Profiles some steps behind some others; only who has a path saves it."""
    import torch
    from torch.profiler import ProfilerActivity, profile, schedule
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if device == "cuda" else [])
    for _ in range(8):
        step()
    if device == "cuda":
        torch.cuda.synchronize()
    saved = []
    keep = lambda profiler: saved.append(save(profiler, path) if path else None)
    with profile(activities=activities, record_shapes=True, on_trace_ready=keep,
                 schedule=schedule(wait=0, warmup=2, active=steps, repeat=1)) as profiler:
        for _ in range(2 + steps):
            step()
            if device == "cuda":
                torch.cuda.synchronize()
            profiler.step()
    return saved[0]


def stepper(wrapped, loss):
    import torch
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=1e-3, momentum=0.9)

    def step():
        loss(wrapped).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def make(arguments):
    import torch
    from gpu_models import MODELS
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    if arguments.device == "cpu":
        torch.set_num_threads(1)
    batch = arguments.batch or MODELS[arguments.model].batch
    return *MODELS[arguments.model].make(batch, arguments.device), batch


def alone(arguments):
    """One worker: the profile of plain steps, and our own tracer's numbers before and behind it."""
    import torch
    import mgwfbp.torch
    out, (model, loss, batch) = Path(arguments.out), make(arguments)
    device = torch.cuda.get_device_name() if arguments.device == "cuda" else "CPU"
    measure = lambda: mgwfbp.torch.profile(model, lambda model: loss(model).backward(), steps=24, warm_up=8,
                                           name=arguments.model, batch=batch, precision="fp32", device=device)
    measure().save(str(out / f"{arguments.model}-own.json"))
    tensors = {name: p.numel() for name, p in model.named_parameters() if p.requires_grad}
    (out / f"{arguments.model}-tensors.json").write_text(json.dumps(tensors, indent=0))
    found = record(stepper(model, loss), arguments.steps, arguments.device, out / f"{arguments.model}-plain.json.gz")
    measure().save(str(out / f"{arguments.model}-own-again.json"))
    return {"torch": torch.__version__, "device": device, "model": arguments.model, "batch": batch, "steps": arguments.steps,
            "kept": KEPT, "dropped kinds": DROPPED_KINDS, "plain": found}


def together(arguments):
    import torch
    model, loss, _ = make(arguments)
    torch.distributed.init_process_group("nccl" if arguments.device == "cuda" else "gloo")
    wrapped = torch.nn.parallel.DistributedDataParallel(model)
    first = torch.distributed.get_rank() == 0
    path = Path(arguments.out) / f"{arguments.model}-ddp.json.gz"
    found = record(stepper(wrapped, loss), arguments.steps, arguments.device, path if first else None)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
    return {"ddp": found} if first else None


def spawn(arguments, part, rank=0, workers=1, port=0):
    environment = dict(os.environ, RANK=str(rank), LOCAL_RANK="0", WORLD_SIZE=str(workers), MASTER_ADDR="127.0.0.1",
                       MASTER_PORT=str(port), NCCL_HOSTID=f"host{rank}", NCCL_NET="Socket", NCCL_SOCKET_IFNAME="lo")
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT / "python"), str(ROOT / "bench"), os.environ.get("PYTHONPATH", "")])
    environment.setdefault("MGWFBP_LIBRARY", str(ROOT / "build" / "release" / "src" / "libmgwfbp.so"))
    return subprocess.Popen([sys.executable, __file__, *sys.argv[1:], "--part", part], env=environment,
                            stdout=subprocess.PIPE, encoding="utf-8")


def results(processes, limit_s):
    said = []
    try:
        said = [process.communicate(timeout=limit_s)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    if any(process.returncode for process in processes):
        raise SystemExit(f"gpu_profile: a worker failed: exit {[process.returncode for process in processes]}")
    return {key: value for text in said for line in text.splitlines() if line.startswith("{")
            for key, value in json.loads(line).items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out")
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--batch", type=int, default=0)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--part", choices=("alone", "together"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.part:
        print(json.dumps({"alone": alone, "together": together}[arguments.part](arguments) or {}), flush=True)
        return
    out = Path(arguments.out)
    out.mkdir(parents=True, exist_ok=True)
    about = results([spawn(arguments, "alone")], 240)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    about.update(results([spawn(arguments, "together", rank, 2, port) for rank in range(2)], 240))
    (out / "about.json").write_text(json.dumps(about, indent=1) + "\n")
    print(json.dumps(about, indent=1))


if __name__ == "__main__":
    main()
