"""PyTorch's own tests of DistributedDataParallel, moved to the CPU, with stock DDP and with ours in its place.

usage: ddp_suite.py [--write docs/evidence/ddp_tests.md] [--transport native] [--workers N] [--only ours] [-v] [PART ...]

Its tests are those of torch.testing._internal.distributed.distributed_test that wrap a model. Most ask for GPUs that
they do not need: the skips are taken off, and what says GPU says CPU. Tests whose name has a PART are run, without one all.
Each is a job of processes of its own, over gloo, with a time limit.
"""

import argparse
import collections
import contextlib
import io
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import types
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
LIMIT_S = 300  # of a test: the longest takes 65 s where others compute, too
MODULE = "torch.testing._internal.distributed.distributed_test"
BIG = ("hierarchical",)  # these want four workers

# What says GPU in the tests, and what says CPU instead.
MOVES = [(r"device_ids=\[[^\]]*\]", "device_ids=None"), (r"device_ids=\w+", "device_ids=None"),
         (r"output_device=torch\.device\([^)]*\)", "output_device=None"),
         (r"output_device=[\w.\[\]]+", "output_device=None"),
         (r"device = self\.rank", 'device = "cpu"'), (r"device=(self\.rank|rank|my_rank|device_id|torch\.cuda\.current_device\(\))\b", 'device="cpu"'),
         (r"device=torch\.device\(next_rank\)", 'device="cpu"'), (r"current_device\s*\+\s*1", '"cpu"'),
         (r'"cuda:"\s*\+\s*str\(i\)', '"cpu"'), (r'"cuda:%d" % rank', '"cpu"'), (r'device\("cuda"(, \w+)?\)', 'device("cpu")'),
         (r'device="cuda"', 'device="cpu"'), (r"\.to\((self\.rank|rank|my_rank)\)", '.to("cpu")'),
         (r"dim = 1000(\s+batch = 1)", r"dim = 64\1"), (r"HAS_TORCHVISION = True", "HAS_TORCHVISION = False"),
         (r'map_location = \{.*\}', 'map_location = "cpu"')]


def move_to_the_cpu():
    """What the tests ask of GPUs."""
    import torch
    import torch.testing._internal.common_distributed as common

    passes = lambda *_, **__: (lambda function: function)
    common.skip_if_no_gpu = lambda function: function
    common.skip_if_lt_x_gpu = common.nccl_skip_if_lt_x_gpu = passes
    common.TIMEOUT_DEFAULT = LIMIT_S - 10
    common.DistTestCases.backend_feature = {feature: {"gloo"} for feature in common.DistTestCases.backend_feature}
    common.init_multigpu_helper = lambda workers, backend: {rank: [rank] for rank in range(int(workers))}
    torch.Tensor.cuda = torch.nn.Module.cuda = lambda self, *_, **__: self
    for name in ("set_device", "synchronize", "manual_seed"):
        setattr(torch.cuda, name, lambda *_, **__: None)
    torch.cuda.current_device = lambda: "cpu"
    torch.cuda.Stream = lambda *_, **__: None
    torch.cuda.stream = lambda *_: contextlib.nullcontext()
    for kind in (torch.Tensor, torch.nn.Module):
        def to(self, device=None, *rest, to=kind.to, **named):
            return to(self, "cpu" if isinstance(device, int) and not isinstance(device, bool) else device, *rest, **named) \
                if device is not None else to(self, *rest, **named)
        kind.to = to
    with contextlib.suppress(ImportError):  # of 1.13: does not load with Python 3.11
        import torch.nn.parallel._replicated_tensor_ddp_utils as replicated
        replicated._set_ddp_with_replicated_tensor = lambda value: None
    # Processes are forked: PyTorch is loaded once.
    import torch.multiprocessing as processes
    spawn = processes.get_context
    processes.get_context = lambda kind=None: spawn("fork")


def put_in_place(transport):
    """Ours, where programs look for DDP."""
    import functools

    import torch
    import mgwfbp.torch

    kind = mgwfbp.torch.DistributedDataParallel
    if transport:
        original = kind.__init__
        kind.__init__ = functools.wraps(original)(
            lambda self, *given, **named: original(self, *given, **{"transport": transport, **named}))
    torch.nn.parallel.DistributedDataParallel = kind


def load_tests():
    """The module, as its text is after the moves; and the tests in it that have to do with DDP."""
    import importlib.util
    if importlib.util.find_spec("expecttest") is None:  # which these tests do not use
        sys.modules["expecttest"] = types.SimpleNamespace(TestCase=unittest.TestCase, ACCEPT=False)
    os.environ.setdefault("BACKEND", "gloo")
    import torch  # noqa: F401
    move_to_the_cpu()
    path = Path(importlib.util.find_spec(MODULE).origin)
    text = path.read_text()
    for pattern, replacement in MOVES:
        text = re.sub(pattern, replacement, text)
    module = types.ModuleType(MODULE)
    module.__file__ = str(path)
    sys.modules[MODULE] = module
    exec(compile(text, str(path), "exec"), module.__dict__)
    return module, tests_of_ddp(text)


def tests_of_ddp(text):
    """By name: what mentions DDP, and what calls a helper that does."""
    bodies, current = {}, None
    for line in text.split("\n"):
        found = re.match(r"        def (\w+)\(", line)
        if found:
            current = bodies.setdefault(found.group(1), [])
        elif re.match(r"(    )?(def|class) ", line):
            current = None
        if current is not None:
            current.append(line)
    texts = {name: "\n".join(lines) for name, lines in bodies.items()}
    wraps = {name for name, body in texts.items() if "istributedDataParallel" in body}
    while True:
        more = {name for name, body in texts.items()
                if any(not helper.startswith("test") and f"self.{helper}" in body for helper in wraps)}
        if more <= wraps:
            return [name for name in texts if name.startswith("test_") and name in wraps]
        wraps |= more


def run_one(module, name):
    """In a process of its own: "ok", "skip", or why not."""
    case = type("TestDdp", (module.TestDistBackend, module.DistributedTest._DistTestBase),
                {"setUp": lambda self: (super(case, self).setUp(), self._spawn_processes())})
    names = [name] if hasattr(case, name) else [each for each in dir(case) if each.startswith(name + "_")]
    suite = unittest.TestSuite([case(each) for each in names])
    result = unittest.TestResult()
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        suite.run(result)
    for _, reason in result.skipped:
        return "skip", reason
    for _, reason in result.errors + result.failures:
        return "fail", reason
    return "ok", ""


def run_all(arguments):
    """Prints a line of JSON for each test."""
    if arguments.whose == "ours":
        put_in_place(arguments.transport)
    os.environ["WORLD_SIZE"] = str(arguments.workers)
    module, names = load_tests()
    for name in names:
        if arguments.parts and not any(part in name for part in arguments.parts):
            continue
        workers = 4 if any(part in name for part in BIG) else arguments.workers
        out = tempfile.TemporaryFile("w+")
        log = tempfile.TemporaryFile("w+")
        begun = time.monotonic()
        child = os.fork()
        if child == 0:
            os.setpgid(0, 0)
            os.environ["WORLD_SIZE"] = str(workers)
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
            try:
                found = run_one(module, name)
            except BaseException as error:
                found = "fail", repr(error)
            json.dump(found, out)
            out.flush()
            os._exit(0)
        while os.waitpid(child, os.WNOHANG)[0] == 0 and time.monotonic() - begun < LIMIT_S:
            time.sleep(0.05)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        out.seek(0)
        text = out.read()
        log.seek(0)
        found = json.loads(text) if text else ("fail", f"no end in {LIMIT_S} s")
        print(json.dumps([name, *found, round(time.monotonic() - begun, 1), log.read()[-6000:]]), flush=True)


def why(reason):
    """The last line of the last traceback that says something."""
    lines = [line.strip() for line in reason.split("\n") if re.match(r"\w[\w.]*(Error|Exception|Warning)\b", line.strip())]
    lines = [line for line in lines if not re.match("RuntimeError: Process [0-9]* exited with", line)]
    return (lines[0] if lines else reason.strip().split("\n")[-1])[:300]


HEAD = f"""# PyTorch's own tests of DDP, with ours in its place

`tests/torch/ddp_suite.py --write docs/evidence/ddp_tests.md` makes the section of the PyTorch that runs it: the tests of `{MODULE}`
that wrap a model, moved to the CPU. What has `dim = 1000` with a batch of one in PyTorch's text has 64 here (`MOVES` in the script).
"""
SECTION = "\n## With PyTorch "


def write(path, version, lines):
    """Puts a version's section into the page, whose others stay."""
    text = path.read_text() if path.exists() else HEAD
    sections = dict(section.split("\n", 1) for section in text.split(SECTION)[1:])
    sections[version] = "\n" + "\n".join(lines) + "\n"
    path.write_text(HEAD + "".join(f"{SECTION}{each}\n{sections[each]}" for each in sorted(sections, key=lambda v: [
        int(part) for part in re.findall("[0-9]+", v)])))


def table(arguments, stock, ours):
    import torch
    passed = [name for name in stock if stock[name][0] == "ok"]
    both = [name for name in passed if ours[name][0] == "ok"]
    reasons = json.loads((HERE / "ddp_suite_reasons.json").read_text())
    lines = [f"{arguments.workers} workers over gloo. Stock DDP passes {len(passed)} of {len(stock)}; of these, ours passes "
             f"**{len(both)}**.", "", "| test | stock | ours | why not |", "|---|---|---|---|"]
    for name in stock:
        reason = ""
        if stock[name][0] != "ok":
            reason = "stock: " + why(stock[name][1]).replace("|", "/")[:120]
        elif ours[name][0] != "ok":
            reason = reasons.get(name) or why(ours[name][1]).replace("|", "/")
        lines.append(f"| {name} | {stock[name][0]} | {ours[name][0]} | {reason} |")
    write(Path(arguments.write), torch.__version__.split("+")[0], lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--write")
    parser.add_argument("--transport")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--whose", choices=("stock", "ours"), help=argparse.SUPPRESS)
    parser.add_argument("--only", choices=("stock", "ours"))
    parser.add_argument("-v", action="store_true")
    parser.add_argument("parts", nargs="*")
    arguments = parser.parse_args()
    if arguments.whose:
        sys.argv[1:] = []  # which PyTorch reads, too
        return run_all(arguments)
    import support
    results = {}
    for whose in ("stock", "ours"):
        if arguments.only not in (None, whose):
            continue
        results[whose] = collections.OrderedDict()
        command = [sys.executable, __file__, "--whose", whose, "--workers", str(arguments.workers)]
        command += ["--transport", arguments.transport] if arguments.transport else []
        with subprocess.Popen([*command, *arguments.parts], stdout=subprocess.PIPE, stderr=None if arguments.v else subprocess.DEVNULL,
                              env=support.environment(), encoding="utf-8") as process:
            for line in process.stdout:
                name, kind, reason, seconds, log = json.loads(line)
                results[whose][name] = kind, reason
                print(f"{whose:5} {kind:4} {seconds:5} {name} {why(reason) if kind != 'ok' else ''}", flush=True)
                if arguments.v and kind == "fail":
                    print(reason, log)
        counts = collections.Counter(kind for kind, _ in results[whose].values())
        print(whose, dict(counts), flush=True)
    if arguments.write:
        table(arguments, results["stock"], results["ours"])


if __name__ == "__main__":
    main()
