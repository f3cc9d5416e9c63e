"""ZeroRedundancyOptimizer: the same weights and state as PyTorch's DDP with a plain optimizer, whatever the plan."""

import tempfile
import unittest

from support import TORCH, WHY, launch_json

ROUNDED = ("clipped", "scaled and clipped")  # norms are added up part by part


@unittest.skipUnless(TORCH, WHY)
class Halves(unittest.TestCase):
    def test_exact_sums(self):
        for workers in (1, 2, 3):
            for done in launch_json(workers, "worker_zero_halves.py").values():
                self.assertGreaterEqual(done, 40)


@unittest.skipUnless(TORCH, WHY)
class Parity(unittest.TestCase):
    def run_with(self, workers, transport, *cases):
        """One and two workers: every bit, but where a norm is rounded. Four: doubles, in which what is not rounding stands
        out."""
        results = launch_json(workers, "worker_zero.py", transport, *cases, timeout=500)[0]
        self.assertGreaterEqual(len(results), len(cases) or 24)
        for case, result in results.items():
            with self.subTest(case=case):
                if workers > 1 and case != "cnn, overlap":  # which may well find all-reduces best
                    self.assertGreater(result["gathers"], 0)
                if workers > 1 and case == "cnn, trials":
                    self.assertGreaterEqual(result["moves"], 3)
                if workers <= 2 and case not in ROUNDED:
                    self.assertTrue(result["bits"], result)
                self.assertLess(result["difference"], 1e-6 if workers <= 2 else 1e-9)
                self.assertLess(result["held"], 5)

    def test_one_worker(self):
        self.run_with(1, "native")

    def test_two_workers_torch(self):
        self.run_with(2, "torch")

    def test_two_workers_native(self):
        self.run_with(2, "native")

    def test_four_workers_torch(self):
        self.run_with(4, "torch", "cnn", "transformer, groups", "unused and frozen", "clipped", "two dtypes", "cnn, trials")

    def test_four_workers_native(self):
        self.run_with(4, "native", "cnn", "transformer, groups", "unused and frozen", "clipped", "two dtypes", "cnn, trials")


@unittest.skipUnless(TORCH, WHY)
class Resume(unittest.TestCase):
    def run_with(self, transport, *narrow):
        """Two, four, three workers, and one: each resumes from the checkpoint of the previous one."""
        with tempfile.TemporaryDirectory(prefix="mgwfbp-zero-") as folder:
            for number, workers in enumerate((2, 4, 3, 1)):
                results = launch_json(workers, "worker_zero_resume.py", transport, folder, str(number), *narrow)
                for rank, worst in results.items():
                    with self.subTest(workers=workers, rank=rank):
                        self.assertGreaterEqual(worst, 0)
                        self.assertLess(worst, 1e-9)

    def test_torch(self):
        self.run_with("torch")

    def test_native(self):
        self.run_with("native")

    def test_masters(self):
        self.run_with("native", "bf16")


if __name__ == "__main__":
    unittest.main()
