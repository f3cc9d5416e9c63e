"""Situations of worker_use.py, correct and wrong use, on both transports."""

import unittest

from support import TORCH, WHY, launch_json


@unittest.skipUnless(TORCH, WHY)
class Use(unittest.TestCase):
    def run_with(self, workers, transport):
        for rank, results in launch_json(workers, "worker_use.py", transport).items():
            self.assertGreaterEqual(len(results), 19)
            for situation, result in results.items():
                with self.subTest(situation=situation, rank=rank):
                    self.assertEqual(result, "ok")

    def test_torch(self):
        self.run_with(2, "torch")

    def test_native(self):
        self.run_with(2, "native")

    def test_native_emulated(self):
        """A slow network makes messages overlap with what comes after them."""
        self.run_with(3, "native:emulated:1e-3,1e-9")

    def test_alone(self):
        self.run_with(1, "native")


if __name__ == "__main__":
    unittest.main()
