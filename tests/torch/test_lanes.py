"""Long messages over several process groups (MGWFBP_LANES): the weights of PyTorch's own DDP, whatever the kind of message."""

import os
import unittest
from unittest import mock

from support import TORCH, WHY, launch_json

from mgwfbp import environment

CASES = ("torch plain single", "torch plain ddp", "torch zero zero:64", "torch zero overlap", "torch zero dear:1")
NARROW = "torch wire single"
HOOKED = "torch hook single"
TRIALS = "torch trials optimal"


@unittest.skipUnless(TORCH, WHY)
class Lanes(unittest.TestCase):
    def run_with(self, workers, lanes, *cases):
        results = launch_json(workers, "worker_lanes.py", "cpu", *cases, MGWFBP_LANES=lanes)[0]
        self.assertEqual(set(results), set(cases))
        for case, result in results.items():
            expected = 1 if case == HOOKED else int(lanes)
            self.assertEqual((result["lanes"], result["carrying"]), (expected, expected), case)
        return results

    def test_two_workers(self):
        """A sum of two numbers does not depend on their order: every bit, and of narrow numbers those of a single lane."""
        results = self.run_with(2, "3", *CASES, NARROW)
        for case in CASES:
            self.assertEqual(results[case]["difference"], 0.0, case)
            self.assertEqual(results[case]["bits"], results[CASES[0]]["bits"], case)
        self.assertEqual(results[NARROW]["bits"], self.run_with(2, "1", NARROW)[NARROW]["bits"])
        self.assertNotEqual(results[NARROW]["bits"], results[CASES[0]]["bits"])

    def test_hooks_get_whole_messages(self):
        self.assertEqual(self.run_with(2, "3", HOOKED)[HOOKED]["difference"], 0.0)

    def test_trials(self):
        """DDP's buckets and the best plan take turns on one lane, too, and weights stay those of DDP."""
        result = self.run_with(2, "3", TRIALS)[TRIALS]
        self.assertEqual(result["difference"], 0.0)
        self.assertIn("one lane", result["tried"])
        self.assertNotIn("one lane", self.run_with(2, "1", TRIALS)[TRIALS]["tried"])

    def test_some_of_the_workers(self):
        """Lanes are groups that all workers of a job open together, so a part of them has one."""
        self.assertEqual(set(map(str, launch_json(3, "worker_lanes_part.py", MGWFBP_LANES="3").values())), {"[1, 0.0]"})

    def test_three_workers(self):
        """Whose sums gloo adds up in another order."""
        for case, result in self.run_with(3, "3", *CASES).items():
            self.assertLess(result["difference"], 1e-6, case)


class Variable(unittest.TestCase):
    def test_numbers(self):
        with mock.patch.dict(os.environ):
            os.environ.pop("MGWFBP_LANES", None)
            self.assertEqual(environment.lanes(), 0)
            for value in 0, 1, 3, 8:
                os.environ["MGWFBP_LANES"] = str(value)
                self.assertEqual(environment.lanes(), value)
            for value in "-1", "x", "", "3.5":
                os.environ["MGWFBP_LANES"] = value
                with self.assertRaisesRegex(ValueError, f"^MGWFBP_LANES: '{value}' is not an integer of at least 0$"):
                    environment.lanes()
            for value in "9", "99999999999":
                os.environ["MGWFBP_LANES"] = value
                with self.assertRaisesRegex(ValueError, f"^MGWFBP_LANES: {value}; there are at most 8$"):
                    environment.lanes()

    @unittest.skipUnless(TORCH, WHY)
    def test_checked_when_the_model_is_wrapped(self):
        """Also where nothing is sent."""
        import torch

        import mgwfbp.torch
        for value in "9", "many":
            with mock.patch.dict(os.environ, MGWFBP_LANES=value), self.assertRaisesRegex(ValueError, "^MGWFBP_LANES: "):
                mgwfbp.torch.DistributedDataParallel(torch.nn.Linear(1, 1), transport="native:self")


if __name__ == "__main__":
    unittest.main()
