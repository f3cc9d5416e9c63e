"""The example of the README: two changed lines, and it trains under our launcher and under mpirun."""

import os
import re
import shutil
import subprocess
import sys
import unittest
from pathlib import Path

from support import MGWFBP, ROOT, TORCH, WHY, environment

FOLDER = ROOT / "examples" / "pytorch"
DATA = Path("/usr/share/datasets/fashion-mnist")


def changed():
    """The lines of the second script that the first has not."""
    plain = (FOLDER / "fashion_mnist_plain.py").read_text().splitlines()
    ours = (FOLDER / "fashion_mnist_mgwfbp.py").read_text().splitlines()
    return [line.strip() for line in ours if line not in plain]


class TwoLines(unittest.TestCase):
    def test_two_changed_lines(self):
        self.assertEqual(changed(), ["import mgwfbp.torch",
                                     "model = mgwfbp.torch.DistributedDataParallel(make_model())"])

    def test_documents_show_them(self):
        text = (ROOT / "docs" / "guide" / "pytorch.md").read_text()
        for line in changed():
            self.assertTrue(re.search(r"^\+\s*" + re.escape(line), text, re.MULTILINE), line)


@unittest.skipUnless(TORCH, WHY)
@unittest.skipUnless(DATA.exists(), "the dataset is not installed (Debian: dataset-fashion-mnist)")
class Training(unittest.TestCase):
    def train(self, *command, **more):
        done = subprocess.run([*map(str, command), sys.executable, FOLDER / "fashion_mnist_mgwfbp.py", "--steps", "100"],
                              env=environment(**more), stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8",
                              timeout=200)
        self.assertEqual(done.returncode, 0, done.stderr)
        return [float(percent) for percent in re.findall(r"accuracy ([0-9.]+)%", done.stdout)]

    def assert_learned(self, accuracies, workers):
        self.assertEqual(len(accuracies), workers)
        self.assertEqual(len(set(accuracies)), 1, "workers have different models")
        self.assertGreater(accuracies[0], 60)

    def test_launch(self):
        self.assert_learned(self.train(MGWFBP, "launch", "-n", 2, "--"), 2)

    def test_mpirun(self):
        mpirun = shutil.which("mpirun.openmpi")
        linked = subprocess.run(["ldd", os.environ["MGWFBP_LIBRARY"]], stdout=subprocess.PIPE, encoding="utf-8").stdout
        if not mpirun or "libmpi.so" not in linked:
            self.skipTest("Open MPI is not installed, or not in this build")
        root = ["--allow-run-as-root"] if os.getuid() == 0 else []
        self.assert_learned(self.train(mpirun, *root, "--oversubscribe", "-n", 2, MGWFBP_TRANSPORT="mpi",
                                       OMPI_MCA_mpi_yield_when_idle="1"), 2)


if __name__ == "__main__":
    unittest.main()
