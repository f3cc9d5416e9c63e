"""tune_ddp: it keeps the buckets whose steps are shortest, leaves the model as it was, and ends when a worker does."""

import itertools
import re
import unittest

from support import TORCH, WHY, launch, launch_json


@unittest.skipUnless(TORCH, WHY)
class Tuned(unittest.TestCase):
    CASES = ("default", "another", "another,gradient_as_bucket_view", "another,static_graph",
             "default,find_unused_parameters")

    def test_winners(self):
        """The default is kept where it wins; so are others, whatever DDP's options. And all workers do the same."""
        results = launch_json(2, "worker_tuned.py", *self.CASES)
        for rank, case in itertools.product(results, self.CASES):
            result, stays = results[rank][case], case.startswith("default")
            about = (rank, case, result)
            self.assertEqual(result["won"] == ["default"], stays, about)
            self.assertEqual(len(result["won"]), 1)
            self.assertEqual(result["cap"] == 25 << 20, stays, about)
            self.assertEqual((result["won"], result["rounds"]), (results[0][case]["won"], results[0][case]["rounds"]))
            self.assertEqual(result["tried"][:2], ["default", "planned"])
            self.assertLess(result["ratios"][result["tried"].index(result["won"][0])], 1.01)
            self.assertEqual(result["steps"], result["ran"])
            self.assertLessEqual(result["steps"], 2 + 8 + 4 * (3 + 10 * 5))
            self.assertTrue(result["same_state"] and result["same_random"] and result["no_gradients"], about)
            self.assertLess(result["off"], 1e-6)
            self.assertLess(result["again"], 1e-6)
            self.assertEqual(result["told"], result["text"] + "\n" if rank == 0 else "")
            self.assertIn(f"after {result['steps']} steps", result["text"])
            self.assertIn("its default buckets" if stays else "bucket_cap_mb", result["text"])

    def survivors(self, *arguments):
        lines = launch(3, "worker_tuned_death.py", *arguments, timeout=100)
        for rank in (0, 1):
            self.assertEqual(len(lines[rank]), 1, lines)
            found = re.match(r"after ([0-9.]+) s, same state: ", lines[rank][0])
            self.assertTrue(found, lines)
            self.assertLess(float(found.group(1)), 60)

    def test_a_worker_dies(self):
        for step in ("12", "40"):  # while it is warmed up, and tried
            self.survivors("die", step)

    def test_a_worker_hangs(self):
        self.survivors("hang", "40")


if __name__ == "__main__":
    unittest.main()
