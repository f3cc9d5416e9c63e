"""What programs rely on with PyTorch's DDP (worker_dropin.py), on both transports; and workers that no launcher started."""

import unittest

from support import HERE, TORCH, WHY, launch_json, python


@unittest.skipUnless(TORCH, WHY)
class DropIn(unittest.TestCase):
    def run_with(self, workers, transport):
        for rank, results in launch_json(workers, "worker_dropin.py", transport).items():
            for situation, result in results.items():
                with self.subTest(situation=situation, rank=rank):
                    self.assertEqual(result, "ok")
            self.assertGreaterEqual(len(results), 20)

    def test_torch(self):
        self.run_with(2, "torch")

    def test_native(self):
        self.run_with(2, "native")

    def test_spawned(self):
        """Everybody had been rank 0 of 1."""
        done = python(HERE / "worker_spawn.py", 2)
        self.assertEqual(sorted(done.stdout.splitlines()), ["0 2 1.5", "1 2 1.5"], done.stderr)


if __name__ == "__main__":
    unittest.main()
