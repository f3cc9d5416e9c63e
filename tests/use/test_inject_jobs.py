"""System calls of jobs fail: of workers over MPI and NCCL, of launchers, of training, and of the server.

Each scenario is run as it is, which counts the calls that one of its processes makes; and then again, each time with one
of these calls that fails. MGWFBP_INJECT_TRIES=k: k random ones of each kind; 0: all; "first": of the calls that the same
chain of functions makes the first, so each place where a call can fail, but not each turn of a loop; "ends": the first and
the last of these. MGWFBP_INJECT_SECONDS: how long scenarios are begun, in a random order. MGWFBP_INJECT_ONLY: those with
this in their name. MGWFBP_INJECT_AT_ONCE: how many runs at a time."""

import json
import os
import random
import re
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import test_mpi
from folder import small_cluster, small_trace
from support import BUILD, MGWFBP, run

TRIES = os.environ.get("MGWFBP_INJECT_TRIES", "1")
BY_STACK = TRIES in ("first", "ends")
SECONDS = float(os.environ.get("MGWFBP_INJECT_SECONDS", "inf"))
ONLY = os.environ.get("MGWFBP_INJECT_ONLY", "")
AT_ONCE = int(os.environ.get("MGWFBP_INJECT_AT_ONCE", "2"))
LIBRARY = BUILD / "inject" / "libinject.so"
MODES = {"memory": False, "system": False, "interrupt": True, "short": True}  # whether all must go well
STACK = struct.Struct("2Q")
RECORD = struct.Struct("5Ql128s128s65536s")  # inject_record of tests/inject/inside.h
HANGS_S = 90
# What a worker says of another: no cause.
FOLLOWS = re.compile(r"rank \d+ has (died|left|failed)|the transport failed before")


class Run:
    """How one run ended."""

    def __init__(self, code, out, err, files, record, processes):
        counts = RECORD.unpack(record.ljust(RECORD.size, b"\0"))
        self.code, self.out, self.err, self.files, self.processes = code, out, err, files, processes
        self.points = dict(zip(MODES, counts[1:5]))
        self.live = counts[5]
        self.where, self.leak = (text.split(b"\0")[0].decode() for text in counts[6:8])
        self.stacks = {key: count for key, count in STACK.iter_unpack(counts[8]) if key}

    def calls(self, number, mode):
        """Those of the mode, which is the one of this number: each with its stack (None: of any), and how many there are."""
        if not BY_STACK:
            points, tries = range(1, self.points[mode] + 1), int(TRIES)
            return [(at, None) for at in (random.sample(points, min(tries, len(points))) if tries else points)]
        stacks = sorted((key, count) for key, count in self.stacks.items() if key % 8 == number)
        return [(at, key) for key, count in stacks for at in sorted({1, count if TRIES == "ends" else 1})]

    def errors(self):
        return [line for line in self.err.splitlines() if line.startswith("mgwfbp ") and "warning" not in line]


def processes_in(session):
    shown = subprocess.run(["ps", "-o", "pid=,stat=,args=", "-s", str(session)], stdout=subprocess.PIPE, encoding="utf-8")
    return [line for line in shown.stdout.splitlines() if " Z" not in line]


def end_session(session):
    for line in processes_in(session):
        try:
            os.kill(int(line.split()[0]), signal.SIGKILL)
        except ProcessLookupError:
            pass


class Scenario:
    """A command in its own folder, and the check of its results."""

    def __init__(self, name, command, rank, result, environment=None, codes=(2,), library=False, through=(), drive=None):
        self.name, self.command, self.rank, self.result = name, command, rank, result
        self.environment, self.codes, self.through, self.drive = environment or {}, codes, through, drive
        self.library = library

    def run(self, mode, at, stack=0 if BY_STACK else None):
        with tempfile.TemporaryDirectory() as name:
            folder, record = Path(name), Path(name) / "record"
            record.write_bytes(b"")
            (folder / "in").mkdir()
            ours = {"LD_PRELOAD": str(LIBRARY), "MGWFBP_INJECT_ONE": f"{mode}:{at}:{self.rank}:{record}",
                    **({"MGWFBP_INJECT_LIBRARY": "1"} if self.library else {}),
                    **({} if stack is None else {"MGWFBP_INJECT_STACK": str(stack)})}
            env = dict(os.environ, MGWFBP_TIMEOUT="20" if MODES[mode] or not at else "3", MGWFBP_DUMP="",
                       ASAN_OPTIONS="verify_asan_link_order=0:allocator_may_return_null=1:detect_leaks=0",
                       **self.environment)
            front = [*self.through, "env", *(f"{key}={value}" for key, value in ours.items())] if self.through else []
            with (folder / "out").open("wb") as out, (folder / "err").open("wb") as err:
                job = subprocess.Popen([*map(str, front), *map(str, self.command)], cwd=folder / "in",
                                       env=env if self.through else dict(env, **ours), stdin=subprocess.DEVNULL,
                                       stdout=out, stderr=err, start_new_session=True)
            driven = self.drive(job, folder / "out") if self.drive else None
            try:
                code = job.wait(HANGS_S)
            except subprocess.TimeoutExpired:
                code = "hangs"
            end = time.monotonic() + 3  # mpirun's helpers take a moment
            while processes_in(job.pid) and code != "hangs" and time.monotonic() < end:
                time.sleep(0.02)
            left = processes_in(job.pid)
            end_session(job.pid)
            job.wait()
            files = sorted(path.name for path in (folder / "in").iterdir())
            done = Run(code, (folder / "out").read_text(), (folder / "err").read_text(), files, record.read_bytes(), left)
            done.result = driven if self.drive else self.result(done, folder / "in") if code == 0 else None
            return done

    def judge(self, mode, done, good):
        """What is wrong, or None."""
        if done.code == "hangs" or done.processes:
            return f"it hangs, or leaves {done.processes}"
        if [name for name in done.files if name not in good.files]:
            return f"files are left: {done.files}"
        # Without freeing what it has: a program of its own, a launcher that gives up, what MPI may still use.
        ends_here = self.library or (done.code and (self.rank == "-" or self.through))
        if done.live > good.live and not ends_here:
            return f"{done.live - good.live} allocations are left, as {done.leak}"
        if done.code == 0:
            return None if done.result == good.result else f"another result: {done.result!r}"
        if MODES[mode] or done.code not in self.codes:
            return f"exit status {done.code}"
        said = done.err.strip()
        if 2 in self.codes and not done.errors():
            return "no error is told"
        return None if said else "nothing is said"


def lines_of(text):
    """Without what is measured."""
    return sorted(re.sub(r"[\d.]+", "", line) for line in text.splitlines())


def trained(done, folder):
    last = json.loads(done.out.splitlines()[-1])
    return last["weights"], sorted(path.name for path in folder.iterdir())


def exact(done, folder):
    return done.out.count("exact")


def rows(done, folder):
    return [re.sub(r"\s.*", "", line) for line in done.out.splitlines()]


# ---- The server ----

def ask(url, data=None):
    """Status and length of the answer; None: there was none."""
    try:
        request = urllib.request.Request(url, data=data, headers={"X-Mgwfbp": "1"})
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, len(re.sub(rb"[0-9a-f]{32}", b"", answer.read()))
    except urllib.error.HTTPError as error:
        error.read()
        return error.code, None
    except (OSError, ValueError):
        return None


def serve_some(job, out):
    """What the server answers, and whether it still does afterwards. Then it is ended."""
    end = time.monotonic() + 30
    while not out.read_text().endswith("\n") and job.poll() is None and time.monotonic() < end:
        time.sleep(0.01)
    said = out.read_text().split()
    if not said:
        return None
    more = json.dumps(dict(small_trace(), model="another")).encode()
    answers = [ask(said[0]), ask(said[0] + "add?name=more.json", more), ask(said[0]), ask(said[0] + "clear", b"")]
    last = [ask(said[0]), ask(said[0])]  # one of them may be the one that fails
    job.terminate()
    return answers, last


# ---- All of them ----

def scenarios(folder):
    trace, cluster = folder / "t.json", folder / "c.json"
    trace.write_text(json.dumps(small_trace()))
    cluster.write_text(json.dumps(small_cluster()))
    fake = {"LD_LIBRARY_PATH": str(BUILD / "fake")}
    replay = [MGWFBP, "replay", trace, "--steps", "2", "--scale-compute", "1e-6", "--policy", "wfbp"]
    mpirun = test_mpi.MPIRUN
    if mpirun and mpirun[0]:
        for rank in "01":
            yield Scenario(f"replay over MPI, rank {rank}", replay, rank, rows, through=[*mpirun, "-n", "2"], codes=(2, 1))
            yield Scenario(f"engine over MPI, rank {rank}", [BUILD / "bin" / "example_engine"], rank,
                           lambda done, _: lines_of(done.out), through=[*mpirun, "-n", "2"], codes=(1,), library=True)
    for rank in "01":
        yield Scenario(f"replay over NCCL, rank {rank}", [*replay, "-n", "2", "--device", "cuda"], rank, rows,
                       environment=fake)
        if SECONDS == float("inf"):  # it takes its time, with sanitizers minutes
            yield Scenario(f"sums over NCCL, rank {rank}",
                           [MGWFBP, "launch", "-n", "2", BUILD / "bin" / "test_device", "sums", "optimal"],
                           rank, exact, environment=dict(fake, MGWFBP_TRANSPORT="nccl", MGWFBP_DEBUG="1"), codes=(1, 77),
                           library=True)
    for rank in "-01":
        yield Scenario(f"replay, {rank}", [*replay, "-n", "2"], rank, rows, codes=(2, 127))
    yield Scenario("launch", [MGWFBP, "launch", "-n", "2", "--", "sh", "-c", "echo $MGWFBP_RANK; echo told >&2"], "-",
                   lambda done, _: (sorted(done.out.splitlines()), sorted(done.err.splitlines())), codes=(2, 127))
    if run("trace", "lenet5", "-s", "1").returncode == 0:  # else it was built without oneDNN
        for rank in "-01":
            yield Scenario(f"train, {rank}", [MGWFBP, "train", "lenet5", "-n", "2", "--batch", "8", "--steps", "3",
                                              "--checkpoint", "checkpoint", "--checkpoint-steps", "1", "--json"], rank, trained,
                           codes=(2, 127))
    yield Scenario("serve", [MGWFBP, "serve", trace, cluster, "--port", "0"], "-", None, drive=serve_some)


def judge_serve(scenario, mode, done, good):
    if done.result is None or done.code:  # it did not begin, and says why
        return scenario.judge(mode, done, good)
    pages = {good.result[0][0], good.result[0][2], good.result[1][0]}  # as it was, if a change was refused
    answers, last = done.result
    done.failed = done.result != good.result
    if not pages & set(last):
        return f"it does not answer any more: {last}"
    for answer, right in zip((*answers, *last), (*good.result[0], *good.result[1])):
        if answer and answer[0] < 400 and answer != right and answer not in pages:
            return f"another answer: {answer}"
    if done.failed and MODES[mode]:
        return f"other answers: {done.result}"
    done.result = good.result
    return scenario.judge(mode, done, good)


class InjectedJobs(unittest.TestCase):
    def try_mode(self, scenario, mode, calls, good):
        wrong, errors, follows = [], 0, 0
        judge = judge_serve if scenario.drive else Scenario.judge
        with ThreadPoolExecutor(AT_ONCE) as pool:
            for (number, _), done in zip(calls, pool.map(lambda call: scenario.run(mode, *call), calls)):
                why = judge(scenario, mode, done, good)
                errors += done.code != 0 or getattr(done, "failed", False)
                follows += done.code != 0 and bool(FOLLOWS.search(" ".join(done.errors())))
                if why:
                    wrong.append(f"{scenario.name}, {mode} {number} ({done.where}): {why}; {done.code}, {done.err[-600:]!r}")
                    print(wrong[-1], file=sys.stderr, flush=True)
        print(f"{scenario.name:<24} {mode:<10} {good.points[mode]:6} points, {len(calls):5} tried: {errors:5} errors, "
              f"{len(calls) - errors:5} went well, {len(wrong)} bad; {follows} told by another alone",
              file=sys.stderr, flush=True)
        return wrong

    def test_jobs(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        wrong, begun = [], time.monotonic()
        some = [scenario for scenario in scenarios(Path(folder.name)) if ONLY in scenario.name]
        if SECONDS < float("inf"):
            random.shuffle(some)
        for scenario in some:
            if time.monotonic() - begun > SECONDS:
                break
            good = scenario.run("memory", 0)
            self.assertEqual((good.code, good.processes), (0, []), f"{scenario.name}: {good.err}")
            for number, mode in enumerate(MODES, 1):
                if good.points[mode]:
                    wrong += self.try_mode(scenario, mode, good.calls(number, mode), good)
        self.assertFalse(wrong, "\n".join([f"{len(wrong)} ended badly", *wrong[:30]]))


if __name__ == "__main__":
    unittest.main()
