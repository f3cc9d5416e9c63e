"""Runs the situations of a worker: functions that begin with test_, in one job, one after the other."""

import datetime
import json
import sys
import time
import traceback

import torch
import torch.distributed as dist


def run(known, wanted=(), before=lambda: None):
    """Runs all of the known situations, or those that are wanted, and prints a JSON object: situation -> "ok" or what went
    wrong. `before` is called before each."""
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=120))
    torch.set_num_threads(1)
    results = {}
    for name, test in sorted(known.items()):
        if not name.startswith("test_") or (wanted and name not in wanted):
            continue
        dist.barrier()
        torch.manual_seed(11)
        before()
        begun = time.perf_counter()
        try:
            test()
            results[name] = "ok"
        except Exception:
            results[name] = traceback.format_exc()
            break  # the ranks may be apart from here on
        if dist.get_rank() == 0:
            print(f"{name}: {time.perf_counter() - begun:.1f} s", file=sys.stderr, flush=True)
    print(json.dumps(results))
    dist.destroy_process_group()  # gloo has threads, which must not outlive the interpreter
