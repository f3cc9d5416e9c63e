"""The Python that README and the guide show runs as it is shown, in two workers."""

import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from support import MGWFBP, ROOT, TORCH, WHY, environment

BEFORE = """
import types
import torch
import mgwfbp.torch

torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
inputs, targets, loss = torch.randn(8, 16), torch.zeros(8, 4), torch.nn.functional.mse_loss
"""

TRAIN = """
for _ in range(8):
    optimizer.zero_grad()
    error = loss(model(inputs), targets)
    error.backward()
    optimizer.step()
optimizer.consolidate_state_dict()
print("weights", float(sum(p.detach().double().sum() for p in model.parameters())))
"""

TUNED = """
hvd = types.SimpleNamespace(DistributedOptimizer=lambda optimizer, groups: print("groups", len(groups)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
{}
assert type(ddp) is torch.nn.parallel.DistributedDataParallel
print("buckets", buckets.bucket_cap_mb)
"""


def blocks(document, language):
    return re.findall(rf"^```{language}\n(.*?)^```", (ROOT / document).read_text(), re.M | re.S)


@unittest.skipUnless(TORCH, WHY)
class Shown(unittest.TestCase):
    def run_as_two(self, text):
        with tempfile.TemporaryDirectory(prefix="mgwfbp-shown-") as folder:
            script = Path(folder) / "shown.py"
            script.write_text(text)
            done = subprocess.run([MGWFBP, "launch", "-n", "2", "--", sys.executable, script], env=environment(),
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8", timeout=200)
        self.assertEqual(done.returncode, 0, done.stderr + done.stdout)
        return done.stdout

    def same_weights(self, out):
        weights = re.findall(r"weights (\S+)", out)
        self.assertEqual(len(weights), 2, out)
        self.assertEqual(len(set(weights)), 1, out)

    def test_the_lines_of_the_readme(self):
        added, = [re.findall(r"^\+(.*)$", block, re.M) for block in blocks("README.md", "diff")]
        self.assertEqual(len(added), 3)
        self.same_weights(self.run_as_two(BEFORE + "\n".join(added) + TRAIN))

    def test_sharded_updates(self):
        shown, = [block for block in blocks("docs/guide/pytorch.md", "python") if "ZeroRedundancyOptimizer" in block]
        self.same_weights(self.run_as_two(BEFORE + shown + TRAIN))

    def test_tuned_buckets(self):
        shown, = [block for block in blocks("docs/guide/pytorch.md", "python") if "tune_ddp" in block]
        out = self.run_as_two(BEFORE + TUNED.format(shown))
        self.assertEqual(len(re.findall("groups [1-9]", out)), 2, out)
        self.assertEqual(len(re.findall(r"\] buckets ", out)), 2, out)


if __name__ == "__main__":
    unittest.main()
