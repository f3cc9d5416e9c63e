"""A worker that dies or hangs in the middle of a backward pass: the others get an error that says where, in time. And
workers that leave as they should."""

import re
import subprocess
import sys
import unittest

from support import HERE, MGWFBP, TORCH, WHY, environment, launch


@unittest.skipUnless(TORCH, WHY)
class Faults(unittest.TestCase):
    def survivors(self, transport, what):
        """What ranks 0 and 1 of 3 saw; the timeout is 8 s."""
        lines = launch(3, "worker_death.py", transport, what, timeout=100)
        for rank in (0, 1):
            self.assertEqual(len(lines[rank]), 1, lines)
            after = float(re.match(r"after ([0-9.]+) s:", lines[rank][0]).group(1))
            self.assertLess(after, 60)
            yield rank, lines[rank][0]

    def test_torch(self):
        for what in ("die", "hang"):
            for rank, line in self.survivors("torch", what):
                self.assertIn(f"rank {rank}: message ", line)
                self.assertIn("over gloo", line)

    def test_native_die(self):
        for _, line in self.survivors("native", "die"):
            self.assertRegex(line, r"message \d+ of 10 \(from '.*'\): .*rank 2 has died")

    def test_native_hang(self):
        for _, line in self.survivors("native", "hang"):
            self.assertIn("(from 'body.3.weight'): all-reduce: rank 2 did not come within 8 s", line)

    def test_an_error_ends_the_process(self):
        """PyTorch 1.13 would wait for ever when the rest of the backward pass is freed."""
        done = subprocess.run([MGWFBP, "launch", "-n", "2", "--", sys.executable, HERE / "worker_raises.py"], env=environment(),
                              timeout=100, stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8")
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("backward cannot add to a gradient that was averaged", done.stdout + done.stderr)

    def test_gradients_outlive_the_interpreter_s_exit(self):
        """The engine's memory lives as long as Python runs; and leaving is not mistaken for dying."""
        for rank, lines in launch(2, "worker_exit.py").items():
            self.assertEqual(len(lines), 2, (rank, lines))
            self.assertEqual(lines[0], lines[1])
            self.assertGreater(float(lines[0]), 0)


if __name__ == "__main__":
    unittest.main()
