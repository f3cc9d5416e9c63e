"""What the tests of the Python package share: jobs of workers, and whether PyTorch is there."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
BUILD = Path(os.environ.get("MGWFBP_BUILD", ROOT / "build" / "release"))
MGWFBP = BUILD / "bin" / "mgwfbp"
LIBRARY = BUILD / "src" / "libmgwfbp.so"
TORCH = importlib.util.find_spec("torch") is not None
WHY = f"PyTorch is not installed for {sys.executable} (Debian: python3-torch, python3-torchvision)"

os.environ.setdefault("MGWFBP_LIBRARY", str(LIBRARY))
sys.path.insert(0, str(ROOT / "python"))


def environment(**more):
    path = os.pathsep.join([str(ROOT / "python"), str(HERE)])
    return dict(os.environ, PYTHONPATH=path, MGWFBP_LIBRARY=str(LIBRARY), OMP_NUM_THREADS="1", MGWFBP_TIMEOUT="120",
                **more)


def python(*arguments, cwd=None, timeout=120, **more):
    return subprocess.run([sys.executable, *map(str, arguments)], env=environment(**more), cwd=cwd, timeout=timeout,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8")


def launch(workers, script, *arguments, timeout=240, **more):
    """Runs a script of this folder as so many workers; returns what each rank printed, as lines."""
    done = subprocess.run([MGWFBP, "launch", "-n", str(workers), "--", sys.executable, str(HERE / script), *arguments],
                          env=environment(**more), timeout=timeout, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          encoding="utf-8")
    assert done.returncode == 0, f"{script} {arguments} with {workers} workers:\n{done.stderr}\n{done.stdout}"
    lines = {rank: [] for rank in range(workers)}
    for line in done.stdout.splitlines():
        rank, _, text = line.partition("] ")
        lines[int(rank[1:])].append(text)
    return lines


def launch_json(workers, script, *arguments, **more):
    """The JSON object that each rank's output ends with (the launcher cuts long lines)."""
    lines = launch(workers, script, *arguments, **more)
    return {rank: json.loads("".join(text)) if text else None for rank, text in lines.items()}
