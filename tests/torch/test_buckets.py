"""Only the plan: buckets for stock DDP, groups for Horovod, trace files."""

import json
import subprocess
import tempfile
import unittest
from pathlib import Path

from support import MGWFBP, TORCH, WHY, launch_json, python


@unittest.skipUnless(TORCH, WHY)
class Buckets(unittest.TestCase):
    def test_stock_ddp(self):
        results = launch_json(2, "worker_buckets.py")
        self.assertEqual(results[0]["bytes"], results[1]["bytes"])
        for result in results.values():
            self.assertTrue(result["stock"])
            self.assertGreater(len(result["bytes"]), 1)
            self.assertEqual(sum(result["bytes"]), result["total"])
            self.assertEqual(sum(result["got"]), result["total"])
            self.assertEqual(len(result["groups"]), len(result["bytes"]))
            self.assertLessEqual(result["optimal_s"], result["two_limits_s"] * (1 + 1e-9))
            self.assertLessEqual(result["two_limits_s"], result["default_s"] * (1 + 1e-9))
            self.assertLessEqual(result["two_limits_s"], result["swept_s"] * (1 + 1e-9))
            self.assertLessEqual(result["one_limit_s"], result["swept_s"] * 1.001)
            self.assertEqual(result["one_limit_got"], result["one_limit_gives"])
            self.assertIn(f"{len(result['got'])} buckets of ", result["told"])
            self.assertNotIn("not the buckets that were planned", result["told"])
            self.assertEqual(result["cluster"], "gloo-2")


MODULE = """
import torch

def small():
    model = torch.nn.Sequential(torch.nn.Linear(30, 20), torch.nn.Tanh(), torch.nn.Linear(20, 5))
    return model, lambda m: m(torch.randn(8, 30)).square().mean().backward()

def wrong():
    return 1
"""


@unittest.skipUnless(TORCH, WHY)
class Traces(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="mgwfbp-trace-")
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        (self.folder / "mine.py").write_text(MODULE)

    def trace(self, *arguments):
        return python("-m", "mgwfbp.torch", "trace", *arguments, cwd=self.folder)

    def test_own_model(self):
        done = self.trace("--model", "mine:small", "-o", "small.json")
        self.assertEqual(done.returncode, 0, done.stderr)
        trace = json.loads((self.folder / "small.json").read_text())
        self.assertEqual([t["name"] for t in trace["tensors"]], ["2.bias", "2.weight", "0.bias", "0.weight"])
        self.assertEqual([t["count"] for t in trace["tensors"]], [5, 100, 20, 600])
        self.assertGreater(trace["forward_s"], 0)
        planned = subprocess.run([MGWFBP, "plan", self.folder / "small.json", "paper-2-10gbe"], stdout=subprocess.PIPE,
                                 encoding="utf-8", timeout=60)
        self.assertEqual(planned.returncode, 0)
        self.assertIn("4 gradient tensors", planned.stdout)

    def test_torchvision(self):
        done = self.trace("--model", "resnet18", "--batch", "2", "--size", "32", "--steps", "1", "-o", "r.json")
        if "torchvision is not installed" in done.stderr:
            self.skipTest("torchvision is not installed (Debian: python3-torchvision)")
        self.assertEqual(done.returncode, 0, done.stderr)
        trace = json.loads((self.folder / "r.json").read_text())
        self.assertEqual(trace["model"], "resnet18")
        self.assertEqual(len(trace["tensors"]), 62)
        self.assertEqual(sum(t["count"] for t in trace["tensors"]), 11689512)
        self.assertTrue(trace["tensors"][0]["name"].startswith("fc."))

    def test_errors(self):
        for model, part in (("mine:wrong", "must return a model and a step"), ("mine:no", "no"),
                            ("no_such_module:f", "no_such_module"), ("resnet1", "resnet1")):
            done = self.trace("--model", model)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn(part, done.stderr)
            self.assertNotIn("Traceback", done.stderr)


if __name__ == "__main__":
    unittest.main()
