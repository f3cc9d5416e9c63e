"""Several backward passes, graphs and wrappers in one step (worker_graphs.py), on both transports."""

import unittest

from support import TORCH, WHY, launch_json


@unittest.skipUnless(TORCH, WHY)
class Graphs(unittest.TestCase):
    def run_with(self, workers, transport):
        for rank, results in launch_json(workers, "worker_graphs.py", transport).items():
            for situation, result in results.items():
                with self.subTest(situation=situation, rank=rank):
                    self.assertEqual(result, "ok")
            self.assertGreaterEqual(len(results), 13)

    def test_torch(self):
        self.run_with(2, "torch")

    def test_native(self):
        self.run_with(2, "native")


if __name__ == "__main__":
    unittest.main()
