"""Long messages over several process groups (MGWFBP_LANES): the weights of PyTorch's own DDP, whatever the kind of message."""

import os
import unittest
from unittest import mock

from support import TORCH, WHY, launch_json

from mgwfbp import environment

CASES = ("torch plain single", "torch plain ddp", "torch zero zero:64", "torch zero overlap", "torch zero dear:1")
NARROW = "torch wire single"


@unittest.skipUnless(TORCH, WHY)
class Lanes(unittest.TestCase):
    def run_with(self, workers, lanes, *cases):
        results = launch_json(workers, "worker_lanes.py", "cpu", *cases, MGWFBP_LANES=lanes)[0]
        self.assertEqual(set(results), set(cases))
        for case, result in results.items():
            self.assertEqual(result["lanes"], int(lanes), case)
        return results

    def test_two_workers(self):
        """A sum of two numbers does not depend on their order: every bit, and of narrow numbers those of a single lane."""
        results = self.run_with(2, "3", *CASES, NARROW)
        for case in CASES:
            self.assertEqual(results[case]["difference"], 0.0, case)
            self.assertEqual(results[case]["bits"], results[CASES[0]]["bits"], case)
        self.assertEqual(results[NARROW]["bits"], self.run_with(2, "1", NARROW)[NARROW]["bits"])
        self.assertNotEqual(results[NARROW]["bits"], results[CASES[0]]["bits"])

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


if __name__ == "__main__":
    unittest.main()
