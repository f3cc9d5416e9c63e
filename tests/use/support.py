"""What the tests of the command share: running it, and the model written down once more."""

import json
import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("MGWFBP_BUILD", ROOT / "build" / "release"))
MGWFBP = BUILD / "bin" / "mgwfbp"
FIXTURES = ROOT / "tests" / "fixtures"


def run(*arguments, cwd=None, stdin=None):
    """Runs the command; never raises."""
    return subprocess.run(
        [str(MGWFBP), *map(str, arguments)], cwd=cwd, stdin=stdin, timeout=300,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8")


def run_json(*arguments):
    done = run(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout, parse_constant=lambda name: 1 / 0)


def builtin_trace(name):
    return json.loads((ROOT / "data" / "traces" / f"{name}.json").read_text())


# ---- The model of docs/model.md, as plainly as it can be said ----

BYTES = {"f32": 4, "f16": 2, "bf16": 2}


def problem(trace, scale=1.0):
    """Ready times and sizes in bytes."""
    now, ready, sizes = trace["forward_s"] * scale, [], []
    for tensor in trace["tensors"]:
        now += tensor["backward_s"] * scale
        ready.append(now)
        sizes.append(tensor["count"] * BYTES[trace["gradient_dtype"]])
    return ready, sizes


def end_of(ready, sizes, messages, cost, start=0.0):
    """When the last of the messages ends; each is (first, last + 1)."""
    free = start
    for first, stop in messages:
        free = max(free, ready[stop - 1]) + cost(sum(sizes[first:stop]))
    return free


def each(count):
    return [(i, i + 1) for i in range(count)]


def by_size(sizes, first_limit, limit):
    messages, begin, held = [], 0, 0
    for i, size in enumerate(sizes):
        held += size
        if held >= (limit if messages else first_limit) or i + 1 == len(sizes):
            messages.append((begin, i + 1))
            begin, held = i + 1, 0
    return messages


def greedy(ready, sizes, a, cost):
    messages, begin, free = [], 0, 0.0
    for i in range(len(sizes)):
        start = max(ready[i], free)
        if i + 1 < len(sizes) and ready[i + 1] < start + a:
            continue
        messages.append((begin, i + 1))
        free = start + cost(sum(sizes[begin:i + 1]))
        begin = i + 1
    return messages


def optimum(ready, sizes, cost):
    earliest, prefix = [0.0], [0]
    for size in sizes:
        prefix.append(prefix[-1] + size)
    for j in range(1, len(sizes) + 1):
        earliest.append(min(max(ready[j - 1], earliest[i]) + cost(prefix[j] - prefix[i])
                            for i in range(j)))
    return earliest[-1]
