"""Shared by tests of the command: running it, and an independent implementation of the model."""

import json
import math
import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("MGWFBP_BUILD", ROOT / "build" / "release"))
MGWFBP = BUILD / "bin" / "mgwfbp"
FIXTURES = ROOT / "tests" / "fixtures"


def run(*arguments, cwd=None, stdin=None, environment=None):
    """Runs the command; never raises."""
    return subprocess.run(
        [str(MGWFBP), *map(str, arguments)], cwd=cwd, stdin=stdin, env=environment, timeout=300,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8")


def children(pid):
    """Process ids, in the order in which they were started."""
    shown = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], stdout=subprocess.PIPE, encoding="utf-8")
    return [int(child) for child in shown.stdout.split()]


def workers(job):
    """Process ids by rank: children of the process that the launcher has for them."""
    return [worker for keeper in children(job.pid) for worker in children(keeper)]


def run_json(*arguments):
    done = run(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout, parse_constant=lambda name: 1 / 0)


def builtin_trace(name):
    return json.loads((ROOT / "data" / "traces" / f"{name}.json").read_text())


# ---- The model of docs/explanation/model.md, as plainly as it can be said ----

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


def needed(trace):
    """When an unstalled forward pass needs each tensor."""
    times = [tensor.get("forward_start_s", 0.0) for tensor in trace["tensors"]]
    return [trace["forward_s"] if time is None else min(time, trace["forward_s"]) for time in times]


def period(trace, operations, cost):
    """Of operations (kind, first, last + 1, bytes per element) on one channel, with the next forward pass behind."""
    ready, _ = problem(trace)
    need, free, back = needed(trace), 0.0, {}
    counts = [tensor["count"] for tensor in trace["tensors"]]
    for kind, first, stop, width in operations:
        start = max(free, ready[-1] if kind == "all-gather" else ready[stop - 1])
        free = start + cost[kind](width * sum(counts[first:stop]))
        back.update(dict.fromkeys(range(first, stop), free))
    return max([ready[-1]] + [back[i] - need[i] for i in back])


def pairs(trace, groups, width):
    """A reduce-scatter for each group, and gathers in the order of need."""
    need = needed(trace)
    order = sorted(groups, key=lambda group: (min(need[group[0]:group[1]]), -group[0]))
    return [("reduce-scatter", *group, BYTES[trace["gradient_dtype"]]) for group in groups] + \
           [("all-gather", *group, width) for group in order]


def chain(ready, sizes, first, free, a, b):
    """The earliest end of all from `first` on, in order, for a + b*M; the release of a message is its latest."""
    ends, held, done, latest = [free], [0], 0, -math.inf
    for j in range(first, len(sizes)):
        latest = max(latest, ready[j])
        held.append(held[-1] + sizes[j])
        while done + 1 < len(ends) and ends[done + 1] <= latest:
            done += 1
        ends.append(min(max(latest, ends[i]) + a + b * (held[-1] - held[i])
                        for i in (done, done + 1) if i < len(ends)))
    return ends[-1], ends


def hybrid(trace, line, gather_line, width):
    """The best period of all-reduces 1..k and halves for the rest, over all k; all-reduces must not decide."""
    ready, sizes = problem(trace)
    gathered = [tensor["count"] * width for tensor in trace["tensors"]]
    due = [-time for time in needed(trace)]
    whole = chain(ready, sizes, 0, 0.0, *line)[1]
    half = (line[0] / 2, line[1] / 2)
    best = max(ready[-1], whole[-1] + due[-1])
    for k in range(len(sizes)):
        end = chain(ready, sizes, k, whole[k], *half)[0]
        lead = chain(due, gathered, k, -math.inf, *gather_line)[0]
        best = min(best, max(ready[-1], end + lead))
    return best


# ---- Operations of several kinds, and the next forward pass ----


def walk(trace, operations, cost, parameters=None):
    """Start and end of each operation, and where the next forward pass waits, tensor by tensor: (name, from, to).

    Operations are (kind, release, names); cost(kind, bytes) is in seconds."""
    ready, sizes = problem(trace)
    names = [tensor["name"] for tensor in trace["tensors"]]
    ready, sizes = dict(zip(names, ready)), dict(zip(names, sizes))
    element, end, free, times, back = BYTES[trace["gradient_dtype"]], max(ready.values()), 0.0, [], {}
    for kind, release, tensors in operations:
        size = sum(sizes[name] for name in tensors)
        if release == "after-update":
            size = size // element * BYTES[parameters or trace["gradient_dtype"]]
        there = max((back if kind == "all-gather" else ready)[name] for name in tensors)
        start = max(free, there, end if release != "when-ready" else 0)
        free = start + cost(kind, size)
        times.append((start, free))
        back.update(dict.fromkeys(tensors, free))
    first_use = lambda tensor: min(tensor.get("forward_start_s", 0), trace["forward_s"])
    now, at, stalls = end, 0.0, []
    for needed, came, name in sorted((first_use(t), -back[t["name"]], t["name"]) for t in trace["tensors"]):
        now, at = now + needed - at, needed
        if -came > now:
            stalls.append((name, now, -came))
            now = -came
    return times, stalls, now + trace["forward_s"] - at
