"""What programs do with ZeroRedundancyOptimizer, right and wrong; a worker that is gone; and the same weights on a GPU, if
there is one, or on a fake one."""

import re
import unittest

from support import BUILD, TORCH, WHY, launch, launch_json

CUDA = CUDA_BUILD = False
if TORCH:
    import torch
    CUDA, CUDA_BUILD = torch.cuda.is_available(), torch.version.cuda is not None


@unittest.skipUnless(TORCH, WHY)
class Use(unittest.TestCase):
    def run_with(self, workers, transport):
        for rank, results in launch_json(workers, "worker_zero_use.py", transport, timeout=400).items():
            self.assertGreaterEqual(len(results), 1)
            for situation, result in results.items():
                with self.subTest(situation=situation, rank=rank):
                    self.assertEqual(result, "ok")
            self.assertGreaterEqual(len(results), 33)

    def test_torch(self):
        self.run_with(2, "torch")

    def test_native(self):
        self.run_with(2, "native")

    def test_three_workers_torch(self):
        self.run_with(3, "torch")

    def test_native_emulated(self):
        """A slow network: gathers are under way when parameters are used."""
        self.run_with(3, "native:emulated:1e-3,1e-9")

    def test_alone(self):
        self.run_with(1, "native")


@unittest.skipUnless(TORCH, WHY)
class Random(unittest.TestCase):
    """For more: mgwfbp launch -n 2 -- python3 worker_zero_random.py native 1000 500"""

    def test_jobs(self):
        for transport in "torch", "native":
            for found in launch_json(2, "worker_zero_random.py", transport, "0", "12").values():
                self.assertFalse(found)


@unittest.skipUnless(TORCH, WHY)
class Faults(unittest.TestCase):
    def survivors(self, transport, when):
        """What ranks 0 and 1 of 3 saw, of whom the last is gone; the timeout is 8 s."""
        lines = launch(3, "worker_zero_death.py", transport, when, timeout=100)
        for rank in (0, 1):
            self.assertEqual(len(lines[rank]), 1, lines)
            self.assertLess(float(re.match(r"after ([0-9.]+) s:", lines[rank][0]).group(1)), 60)
            yield rank, lines[rank][0]

    def test_torch(self):
        for when in ("update", "forward"):
            for rank, line in self.survivors("torch", when):
                self.assertIn(f"rank {rank}: message ", line)
                self.assertIn("over gloo", line)

    def test_state_on_its_way(self):
        for rank, line in self.survivors("torch", "move"):
            self.assertIn(f"rank {rank}: the optimizer's state moves with a new plan, over torch (gloo)", line)

    def test_native(self):
        for when in ("update", "forward", "move"):
            for _, line in self.survivors("native", when):
                self.assertRegex(line, r"rank 2 (has died|has left|did not come)")


@unittest.skipUnless(TORCH, WHY)
@unittest.skipUnless(CUDA, "there is no GPU here")
class Gpu(unittest.TestCase):
    def run_with(self, workers):
        """Of one and two workers every bit is the same, but where a norm is added up part by part, or in fp16."""
        for transport, found in launch_json(workers, "worker_zero_cuda.py", "torch", "native", timeout=500)[0].items():
            print(transport, found)
            rounded = found.pop("masters")
            self.assertTrue(rounded["rounded"])
            self.assertLess(rounded["last"], rounded["first"])
            for case, result in found.items():
                with self.subTest(transport=transport, case=case):
                    loose = 1e-2 if "autocast" in case else 1e-4 if "clipped" in case or workers > 2 else 0
                    self.assertLessEqual(result["difference"], 0 if workers == 1 and "clipped" not in case else loose)
                    self.assertGreater(result["gathers"], 0)
                    self.assertLess(result["held"], 5)

    def test_nccl(self):
        self.run_with(torch.cuda.device_count())

    def test_nccl_shared(self):
        self.run_with(2 * torch.cuda.device_count())


@unittest.skipUnless(TORCH, WHY)
@unittest.skipIf(CUDA_BUILD, "PyTorch would take the fake GPU for a real one")
class FakeGpu(unittest.TestCase):
    def test_native(self):
        for workers in (1, 2):
            result = launch_json(workers, "worker_zero_fake_cuda.py", LD_LIBRARY_PATH=str(BUILD / "fake"))[0]
            self.assertTrue(result["Cnn"] and result["Transformer"] and result["Mixed"], result)
            self.assertGreater(result["gathers"], 2)
            self.assertTrue(result["other stream waited"])


if __name__ == "__main__":
    unittest.main()
