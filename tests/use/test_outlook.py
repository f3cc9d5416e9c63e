"""Large jobs: simulate with stragglers, failures and cost, and invalid input."""

import json
import math
import re
import time
import unittest
import xml.etree.ElementTree as ElementTree

from folder import RESNET, SVG, Folder
from support import builtin_trace, run, run_json

LINK = "paper-1-10gbe-link"
GPT = "gpt2-b8-fp32-h200"
JOB = ("--jitter", "5%", "--mtbf", "5y", "--checkpoint", "30s", "--restart", "5min", "--samples", 10**8, "--price", 2.5)


def largest_of(workers, deviation):
    """The mean of the largest of that many normal numbers of mean 1, as a sum over narrow cells."""
    total, before, cells = 0.0, 0.0, 20000
    for i in range(1, cells + 1):
        z = -10 + 20 * i / cells
        now = math.exp(workers * math.log(max(math.erfc(-z / math.sqrt(2)) / 2, 1e-300)))
        total += (now - before) * (1 + deviation * (z - 10 / cells))
        before = now
    return total


class Outlook(Folder):
    def test_a_hundred_thousand_in_a_second(self):
        begun = time.monotonic()
        rows = run_json("simulate", GPT, "ndr", "--nodes", 12500, "--gpus", 8, "--ports", 8, "--policy", "all", *JOB)
        self.assertLess(time.monotonic() - begun, 1)
        self.assertEqual({row["workers"] for row in rows}, {100000})

    def test_against_formulas(self):
        rows = run_json("simulate", RESNET, LINK, "--workers", "16:65536", "--algorithm", "double-binary-trees",
                        "--policy", "single", "--jitter", "normal:4%", *JOB[2:])
        trace = builtin_trace(RESNET)
        compute = trace["forward_s"] + sum(tensor["backward_s"] for tensor in trace["tensors"])
        year = 365 * 86400
        for row in rows:
            workers = row["workers"]
            slowest = largest_of(workers, 0.04)
            self.assertAlmostEqual(row["slowest"], slowest, delta=1e-6)
            step = slowest * compute + row["exposed_s"]  # one message, behind all computation
            self.assertAlmostEqual(row["expected_s"], step, delta=1e-6 * step)
            between = 5 * year / workers
            self.assertAlmostEqual(row["failure_s"], between, delta=1e-6)
            share = lambda t: t / (between * math.exp(300 / between) * math.expm1((t + 30) / between))
            interval = row["interval_steps"] * row["expected_s"]
            self.assertAlmostEqual(row["interval_s"], interval, delta=1e-6 * interval)
            self.assertAlmostEqual(row["trains"], share(interval), delta=1e-9)
            self.assertGreaterEqual(row["trains"], share(interval + row["expected_s"]))
            self.assertGreaterEqual(row["trains"], share(interval - row["expected_s"]))
            self.assertAlmostEqual(row["daly_trains"], share(row["daly_interval_s"]), delta=1e-9)
            self.assertAlmostEqual(row["expected_efficiency"], compute * row["trains"] / step, delta=1e-6)
            steps = math.ceil(10**8 / (workers * trace["batch"]))
            self.assertAlmostEqual(row["epoch_s"], steps * step / row["trains"], delta=1e-6 * row["epoch_s"])
            self.assertAlmostEqual(row["epoch_cost"], row["epoch_s"] / 3600 * workers * 2.5,
                                   delta=1e-6 * row["epoch_cost"])

    def test_measured_steps(self):
        trace = builtin_trace(RESNET)
        compute = trace["forward_s"] + sum(tensor["backward_s"] for tensor in trace["tensors"])
        trace["steps_s"] = [0.9 * compute, 1.0 * compute, 1.3 * compute]
        path = self.file("t.json", trace)
        row, = run_json("simulate", path, LINK, "--policy", "single", "--workers", 2, "--jitter", "measured")
        slowest = (0.9 * 1 + 1.0 * 3 + 1.3 * 5) / 9  # of nine equally likely pairs
        self.assertAlmostEqual(row["slowest"], slowest, delta=1e-9)
        self.assertAlmostEqual(row["expected_s"], slowest * compute + row["exposed_s"], delta=1e-9)
        twice, = run_json("simulate", path, LINK, "--policy", "single", "--workers", 2, "--jitter", "measured",
                          "--scale-compute", 2)
        self.assertAlmostEqual(twice["slowest"], slowest, delta=1e-9)
        self.assertIn("Only 3 steps were measured", run("simulate", path, LINK, "--jitter", "measured").stdout)
        self.refused(run("simulate", RESNET, LINK, "--jitter", "measured"), "steps_s")
        for bad in (["x"], [-1], 5, [1e999]):
            trace["steps_s"] = bad
            text = json.dumps(trace).replace("Infinity", "1e999")
            self.refused(run("show", self.file("bad.json", text)), "bad.json")

    def test_table_and_curves(self):
        picture = self.folder / "job.svg"
        arguments = ("simulate", GPT, "ndr", "--nodes", 2, "--gpus", 8, "--workers", "16:4096", "--policy", "ddp,overlap")
        done = run(*arguments, *JOB, "--svg", picture)
        self.assertEqual(done.returncode, 0, done.stderr)
        for word in ("slowest worker", "a failure every", "checkpoint every", "trains", "samples/s", "epoch", "costs"):
            self.assertIn(word, done.stdout)
        plain = self.folder / "plain.svg"
        self.assertNotIn("slowest", run(*arguments, "--svg", plain).stdout)
        curves = [[p.get("d") for p in ElementTree.parse(path).iter(f"{SVG}path") if p.get("fill") == "none"]
                  for path in (picture, plain)]
        self.assertEqual(len(curves[0]), len(curves[1]))
        self.assertNotEqual(curves[0], curves[1])
        rows = self.file("rows.json", run(*arguments, *JOB, "--json").stdout)
        data = run_json("report", rows)
        self.assertEqual(data["simulations"][0]["rows"][0]["trains"], json.loads(rows.read_text())[0]["trains"])
        text = re.sub(r'"trains": [0-9.]+', '"trains": "x"', rows.read_text(), count=1)
        self.refused(run("report", self.file("bad.json", text), "-o", self.folder / "x.html"), "[0].trains")

    def test_what_it_refuses(self):
        for arguments, part in (
            (("--jitter", "5"), "--jitter"),
            (("--jitter", "uniform:5%"), "lognormal:5%"),
            (("--jitter", "-5%"), "--jitter"),
            (("--mtbf", "5"), "not a time: write 250ms, 30s"),  # of what?
            (("--mtbf", "5 years"), "not a time"),
            (("--mtbf", "0"), "--mtbf"),
            (("--mtbf", "nan"), "not a time"),
            (("--checkpoint", "30s"), "only with --mtbf"),
            (("--restart", "30s"), "only with --mtbf"),
            (("--price", "2"), "--samples"),
            (("--samples", "1.5"), "whole"),
            (("--mtbf", "5y", "--checkpoint-every", "1e16s"), "at most"),
            (("--mtbf", "1e300y", "--checkpoint", "30s"), "at most"),
        ):
            self.refused(run("simulate", RESNET, LINK, *arguments), part)

    def test_a_time_is_no_file(self):
        """train's --checkpoint is a file, and simulate's is none."""
        self.refused(run("simulate", RESNET, LINK, "--mtbf", "5y", "--checkpoint", "-"), "not a time")

    def test_a_job_that_never_trains(self):
        rows = run_json("simulate", RESNET, LINK, "--workers", 100000, "--mtbf", "1s", "--restart", "10min", "--samples", 1000000)
        self.assertTrue(all(row["trains"] == 0 and "epoch_s" not in row for row in rows), rows[0])


if __name__ == "__main__":
    unittest.main()
