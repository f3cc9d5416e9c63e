"""Every allocation and system call of a command fails once: the command reports it, and leaves nothing behind.

MGWFBP_INJECT_EVERY=k tries one in k of them, starting at a random one; 1 tries all."""

import os
import random
import re
import subprocess
import sys
import tempfile
import unittest
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import test_profile
from folder import Folder, small_cluster, small_trace
from support import BUILD, MGWFBP, run

EVERY = int(os.environ.get("MGWFBP_INJECT_EVERY", "1"))
FIXTURES = Path(__file__).resolve().parent.parent / "fixtures"
MODES = {"memory": False, "system": False, "interrupt": True, "short": True}  # whether all must go well
LIBRARY = BUILD / "inject" / "libinject.so"


class Injected(Folder):
    def setUp(self):
        super().setUp()
        curve = dict(small_cluster(), samples=[{"bytes": 8 << i, "seconds": 1 + i} for i in range(4)])
        del curve["cost"]
        kept = dict(small_trace(), note={"deep": [1.5, "text", None, True]})
        kept["tensors"][0]["extra"] = 0.1
        kept["steps_s"] = [1.5, 2.0]
        self.trace = self.file("t.json", kept)
        self.profile = self.file("profile.json", test_profile.two_layers())
        self.names = self.file("names.json", {"first": [6, 4], "second": 30})
        self.cluster = self.file("c.json", small_cluster())
        self.curve = self.file("curve.json", curve)
        self.beside = self.file("beside.json", dict(small_cluster(), beside={"message": 1.5, "compute": 1.2}))
        self.rows = self.file("rows.json", run("simulate", self.trace, self.cluster, "--json").stdout)
        self.plan = self.folder / "p.json"
        self.spans = self.folder / "spans.json"
        run("plan", self.trace, self.cluster, "-o", self.plan)
        run("show", self.plan, "--chrome-trace", self.spans)

    def commands(self):
        t, c = self.trace, self.cluster
        yield "plan", t, c, "-o", "p.json"
        yield "plan", t, c, "--policy", "overlap", "--json"
        yield "plan", t, self.curve
        yield "simulate", t, c, "--svg", "s.svg", "--chrome-trace", "s.json", "--gantt"
        yield "simulate", t, self.curve, "--json"
        yield "advise", t, c
        yield "advise", t, self.beside
        yield "fit", FIXTURES / "samples.csv", "-o", "c.json"
        yield "fit", FIXTURES / "nccl_tests.json", "--json"
        yield "fit", FIXTURES / "nccl_tests.txt"
        yield "fit", FIXTURES / "osu_allreduce.txt"
        yield "show", t
        yield "show", self.plan, "--svg", "p.svg", "--chrome-trace", "p.json"
        yield "show", c, "--json"
        yield "report", t, c, self.plan, self.rows, self.spans, "-o", "page.html"
        yield "trace", "--from", self.profile, "--tensors", self.names, "-o", "t.json", "--cluster-out", "c.json"
        yield "simulate", t, c, "--jitter", "measured", "--mtbf", "1y", "--checkpoint", "1s", "--samples", 9, "--price", 1
        yield "--man",
        if run("trace", "lenet5", "-s", "1").returncode == 0:  # else it was built without oneDNN
            yield "trace", "lenet5", "-s", "1", "-b", "1", "-o", "measured.json"

    def attempt(self, command, mode, numbers):
        """How those runs ended, by number: exit status, output, errors, files left, calls of each mode, the call."""
        with tempfile.TemporaryDirectory(dir=self.folder) as name:
            place = Path(name)
            env = dict(os.environ, LD_PRELOAD=str(LIBRARY), MGWFBP_INJECT_FOLDER=name,
                       MGWFBP_INJECT=f"{mode}:{numbers.start}:{numbers.step}:{numbers.stop - 1}",
                       ASAN_OPTIONS="verify_asan_link_order=0:exitcode=99:allocator_may_return_null=1")
            subprocess.run([MGWFBP, *map(str, command)], env=env, check=True)
            ends = {}
            for line in (place / f"{mode}.{numbers.start}.log").read_text().splitlines():
                number, code, *counts, where = line.split(" ", 2 + len(MODES))
                left = {file.name: file.read_text() for file in (place / number).iterdir()}
                ends[int(number)] = (int(code), (place / f"{number}.out").read_text(),
                                     (place / f"{number}.err").read_text(), left, [int(c) for c in counts], where)
            return ends

    @staticmethod
    def judge(mode, end, good):
        """What is wrong with this end, or None."""
        code, out, err, left, _, _ = end
        if "measured.json" in good[3]:  # every time another
            good = (good[0], out, good[2], left)
        if code == 0 or MODES[mode]:
            return None if (code, out, err, left) == good[:4] else "another result"
        said = [line for line in err.splitlines() if line not in good[2].splitlines()]
        if code != 2 or len(said) != 1 or not re.match(r"mgwfbp( \w+)?: .", said[0]):
            return "no clean error"
        return None if all(left[name] == good[3].get(name) for name in left) else "something left behind"

    def try_all(self, command, mode, points, good):
        """All ends, and what is wrong with which."""
        first = 1 + random.randrange(EVERY)
        parts = [range(n, points + 1, 2 * EVERY) for n in (first, first + EVERY)]  # two at once
        ends, wrong = [], []
        with ThreadPoolExecutor(2) as pool:
            for some in pool.map(lambda part: self.attempt(command, mode, part) if part else {}, parts):
                for number, end in some.items():
                    why = self.judge(mode, end, good)
                    ends.append(end)
                    if why:
                        wrong.append(f"{command[0]}, {mode} {number} ({end[5]}): {why}: exit status {end[0]}, "
                                     f"{end[2][:500]!r}, {sorted(end[3])}")
        return ends, wrong

    def test_commands(self):
        totals, wrong = {mode: [0, 0, 0] for mode in MODES}, []
        for command in self.commands():
            good = self.attempt(command, "memory", range(0, 1))[0]
            self.assertEqual(good[0], 0, good)
            for mode, points in zip(MODES, good[4]):
                ends, some_wrong = self.try_all(command, mode, points, good)
                wrong += some_wrong
                for i, more in enumerate((points, len(ends), sum(end[0] != 0 for end in ends))):
                    totals[mode][i] += more
        for mode, (points, tried, errors) in totals.items():
            print(f"{mode}: {points} points, {tried} tried: {errors} ended in an error, {tried - errors} went well",
                  file=sys.stderr)
            self.assertGreater(points, 30)
        self.assertFalse(wrong, "\n".join([f"{len(wrong)} ended badly", *wrong[:30]]))


if __name__ == "__main__":
    unittest.main()
