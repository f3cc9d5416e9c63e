"""mgwfbp train and replay with sharded parameters: the same weights, checkpoints, faults in every phase."""

import json
import os
import re
import signal
import subprocess
import tempfile
import time
import unittest
from pathlib import Path

import test_mpi
from support import MGWFBP, run, workers
from test_train import FASHION, difference, events, numbers, train, weights

SHARED = ("zero:100KiB", "dear:100KiB", "fsdp", "sharded", "overlap")
# Slow enough that gathers last into the next forward pass.
NETWORK = ("--network", "2e-4,2e-9")


@unittest.skipUnless(FASHION.exists(), "Fashion-MNIST is not installed (dataset-fashion-mnist)")
class Weights(unittest.TestCase):
    """Compared with parameter servers: there the engine averages, and every worker then updates all weights."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def test_shared_out_or_whole(self):
        """50 steps, bit for bit: shm adds up in the order of ranks, whatever the number of workers."""
        for workers, model, batch in (("1", "lenet5", "8"), ("2", "resnet20", "2"), ("4", "lenet5", "4")):
            args = (model, "-n", workers, "--batch", batch, "--steps", "50")
            whole = weights(*args, "--servers", "1")
            for policy in SHARED:
                with self.subTest(policy, workers=workers):
                    self.assertEqual(weights(*args, "--policy", policy, *NETWORK), whole)

    def test_adamw(self):
        args = ("lenet5", "-n", "3", "--batch", "4", "--steps", "20", "--optimizer", "adamw")
        whole = weights(*args, "--servers", "1")
        for policy in ("optimal", "zero:50KiB", "overlap"):
            self.assertEqual(weights(*args, "--policy", policy, *NETWORK), whole)

    @unittest.skipUnless(test_mpi.MPIRUN and test_mpi.MPIRUN[0], "no MPI")
    def test_mpi(self):
        """Two workers have one sum; that of four may be rounded otherwise."""
        for workers, policy in (("2", "zero:100KiB"), ("2", "overlap"), ("4", "zero:20KiB")):
            paths = [self.folder / name for name in ("mpi", "shm")]
            args = ("lenet5", "--batch", "4", "--steps", "50", "--policy", policy, "--json")
            done = subprocess.run([*test_mpi.MPIRUN, "-n", workers, MGWFBP, "train", *args, *NETWORK, "--checkpoint",
                                   paths[0]], check=True, stdout=subprocess.PIPE, encoding="utf-8", timeout=280)
            shm = weights(*args[:-1], "-n", workers, "--checkpoint", str(paths[1]))
            if workers == "2":
                self.assertEqual(json.loads(done.stdout.splitlines()[-1])["weights"], shm)
                self.assertEqual(numbers(paths[0]), numbers(paths[1]))
            self.assertLess(difference(*map(numbers, paths)), 1e-5)

    def test_plans_that_change_move_what_is_remembered(self):
        environment = {**os.environ, "MGWFBP_REPLAN_STEPS": "3", "MGWFBP_REPLAN_PERCENT": "0", "MGWFBP_TRIALS": "0"}
        for optimizer, arrays in (("sgd", 1), ("adamw", 2)):
            for steps in (40, 80, 160):  # how often plans change depends on how busy the machine is
                args = ("resnet20", "-n", "3", "--batch", "2", "--steps", str(steps), "--optimizer", optimizer)
                summary, = events(*args, "--policy", "overlap", "--network", "1e-4,3e-8", env=environment)
                self.assertLess(summary["state_bytes"], arrays * 4 * 269434)  # something is shared out
                self.assertEqual(summary["weights"], weights(*args, "--servers", "1"))
                if summary["plans"] > 2:
                    break
            self.assertGreater(summary["plans"], 2)

    def test_trials_move_it_with_every_turn(self):
        environment = {**os.environ, "MGWFBP_PROFILE_STEPS": "3"}
        args = ("resnet20", "-n", "3", "--batch", "2", "--steps", "120", "--optimizer", "adamw")
        summary, = events(*args, "--policy", "overlap", "--network", "1e-4,3e-8", env=environment)
        self.assertGreater(summary["trial_steps"] or summary["trying"], 0)
        self.assertEqual(summary["weights"], weights(*args, "--servers", "1"))

    def test_comparison_moves_it_between_policies(self):
        rows = events("resnet20", "-n", "3", "--batch", "2", "--steps", "2", "--compare", "--rounds", "2", "--optimizer",
                      "adamw", "--policy", ",".join(("wfbp", *SHARED, "optimal")), *NETWORK, kind="compare")
        self.assertEqual(len(rows), len(SHARED) + 2)
        self.assertEqual(len({r["weights"] for r in rows}), 1, rows)

    def test_what_is_remembered_is_shared_out(self):
        """The optimizer's memory falls with the number of workers."""
        args = ("resnet20", "--batch", "2", "--steps", "10", "--optimizer", "adamw", *NETWORK)
        whole = 2 * 4 * 269434  # two numbers for each parameter
        for workers in (2, 4):
            summary, = events(*args, "-n", str(workers), "--policy", "zero:100KiB")
            self.assertAlmostEqual(summary["state_bytes"] / whole, 1 / workers, delta=0.02)
        summary, = events(*args, "-n", "2", "--policy", "optimal")
        self.assertAlmostEqual(summary["state_bytes"] / whole, 1, delta=0.02)

    def test_parameter_servers_share_nothing_out(self):
        args = ("lenet5", "-n", "2", "--batch", "4", "--steps", "3")
        self.assertEqual(weights(*args, env={**os.environ, "MGWFBP_SERVERS": "1"}), weights(*args))
        for more in ((), ("--compare",)):
            done = train(*args, "--servers", "1", "--policy", "overlap", *more, check=False)
            self.assertEqual(done.returncode, 2)
            self.assertIn("'overlap' shards parameters, which does not work with --servers", done.stderr)

    def test_resumes_under_another_plan_and_number_of_workers(self):
        path = self.folder / "checkpoint"
        for optimizer in ("sgd", "adamw"):
            args = ("resnet20", "-n", "2", "--batch", "4", "--epochs", "2", "--optimizer", optimizer)
            whole = weights(*args, "--steps", "20", "--servers", "1")
            weights(*args, "--steps", "12", "--policy", "zero:100KiB", *NETWORK, "--checkpoint", path)
            for policy in ("optimal", "overlap"):
                self.assertEqual(weights(*args, "--steps", "8", "--policy", policy, *NETWORK, "--resume", path), whole)
        lenet = ("lenet5", "--epochs", "2", "--policy", "zero:50KiB")
        paths = [self.folder / name for name in ("half", "one", "four")]
        train(*lenet, "-n", "2", "--batch", "16", "--steps", "8", "--checkpoint", paths[0])
        for workers, batch, to in (("1", "32", paths[1]), ("4", "8", paths[2])):
            train(*lenet, "-n", workers, "--batch", batch, "--steps", "8", "--resume", paths[0], "--checkpoint", to)
        self.assertLess(difference(*map(numbers, paths[1:])), 1e-5)

    def test_a_checkpoint_of_shards_is_that_of_the_whole(self):
        paths = [self.folder / name for name in ("shared", "whole")]
        args = ("resnet20", "-n", "3", "--batch", "2", "--steps", "9", "--optimizer", "adamw")
        train(*args, "--policy", "zero:100KiB", *NETWORK, "--checkpoint", paths[0])
        train(*args, "--servers", "1", "--checkpoint", paths[1])
        self.assertEqual(*(path.read_bytes() for path in paths))


@unittest.skipUnless(FASHION.exists(), "Fashion-MNIST is not installed (dataset-fashion-mnist)")
class Faults(unittest.TestCase):
    """Gathers take most of a step here: a worker that dies is likely to die in one."""

    SLOW = ("--network", "5e-3,2e-8", "--policy", "zero:100KiB")

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = Path(folder.name) / "checkpoint"

    def start(self, *args, timeout_s="30"):
        job = subprocess.Popen([MGWFBP, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8",
                               env={**os.environ, "MGWFBP_TIMEOUT": timeout_s})
        self.addCleanup(job.kill)
        return job

    def await_workers(self, job, count, ready):
        end = time.monotonic() + 60
        while not ready() or len(workers(job)) < count:
            self.assertLess(time.monotonic(), end, "it does not begin")
            time.sleep(0.02)
        return workers(job)

    def test_a_killed_worker_ends_training_which_resumes(self):
        args = ("resnet20", "-n", "3", "--batch", "2", "--epochs", "1", "--optimizer", "adamw")
        for moment_s in (0.0, 0.013, 0.05, 0.11):
            self.path.unlink(missing_ok=True)
            job = self.start("train", *args, *self.SLOW, "--checkpoint", str(self.path), "--checkpoint-steps", "3")
            pids = self.await_workers(job, 3, self.path.exists)
            time.sleep(moment_s)
            os.kill(pids[1], signal.SIGKILL)
            killed = time.monotonic()
            error = job.communicate(timeout=60)[1]
            self.assertLess(time.monotonic() - killed, 10)  # 2 s, and the load of other tests
            self.assertNotEqual(job.returncode, 0)  # the dead one's, or of who noticed it before the launcher did
            self.assertIn("rank 1 has died", error)
            steps = int(re.search(rb"\nsteps (\d+)\n", self.path.read_bytes()).group(1))
            self.assertEqual(steps % 3, 0)
            self.assertEqual(weights(*args, "--steps", "3", "--policy", "overlap", "--resume", self.path),
                             weights(*args, "--steps", str(steps + 3), "--servers", "1"))

    def test_a_stopped_worker_is_named(self):
        """After the timeout, and not after an eternity."""
        job = self.start("train", "resnet20", "-n", "3", "--batch", "2", "--epochs", "1", *self.SLOW, "--checkpoint",
                         str(self.path), "--checkpoint-steps", "3", timeout_s="2")
        pids = self.await_workers(job, 3, self.path.exists)
        os.kill(pids[2], signal.SIGSTOP)
        stopped = time.monotonic()
        error = job.communicate(timeout=60)[1]
        self.assertLess(time.monotonic() - stopped, 20)
        self.assertNotEqual(job.returncode, 0)
        self.assertRegex(error, r"rank 2\b")
        numbers(self.path)

    def replay(self, **options):
        return self.start("replay", "resnet50-b32-fp32-h200", "-n", "3", "--cluster", "paper-1-10gbe", "--policy",
                          "zero:4MiB", "--rounds", "64", "--steps", "20", **options)

    def test_a_killed_worker_ends_a_replay(self):
        for moment_s in (1.5, 1.63):
            job = self.replay()
            pids = self.await_workers(job, 3, lambda: True)
            time.sleep(moment_s)
            os.kill(pids[1], signal.SIGKILL)
            killed = time.monotonic()
            error = job.communicate(timeout=60)[1]
            self.assertLess(time.monotonic() - killed, 10)
            self.assertNotEqual(job.returncode, 0)  # the dead one's, or of who noticed it before the launcher did
            self.assertIn("rank 1 has died", error)

    def test_a_stopped_worker_ends_a_replay(self):
        job = self.replay(timeout_s="2")
        pids = self.await_workers(job, 3, lambda: True)
        time.sleep(1.5)
        os.kill(pids[0], signal.SIGSTOP)
        stopped = time.monotonic()
        error = job.communicate(timeout=60)[1]
        self.assertLess(time.monotonic() - stopped, 20)
        self.assertRegex(error, r"rank 0\b")


class Replay(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="mgwfbp-overlap-")
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.trace = self.folder / "t.json"

    def write(self, needed, count=12):
        """Forward pass of 12 ms, backward of 12 ms; `needed` says when, by tensor."""
        self.trace.write_text(json.dumps({
            "format": "mgwfbp-trace-1", "model": "small", "device": "none", "batch": 1, "precision": "fp32",
            "gradient_dtype": "f32", "forward_s": 0.012,
            "tensors": [{"name": f"t{i}", "count": 3000 + 1000 * (i % 5), "backward_s": 0.001, **needed(i)}
                        for i in range(count)]}))

    def replay(self, *args, workers=3):
        done = run("replay", self.trace, "-n", workers, "--steps", 3, "--rounds", 2, "--json", *args)
        self.assertEqual(done.returncode, 0, done.stderr)
        return {row["policy"]: row for row in json.loads(done.stdout)}

    def test_steps_back_to_back(self):
        """12 ms of messages behind 24 ms of computation: halves hide more than whole ones can. Every parameter is
        checked by the command itself."""
        self.write(lambda i: {"forward_start_s": 0.001 * (11 - i)})
        for _ in range(6):  # other work may hold it up, but not every time
            rows = self.replay("--network", "1e-3,4e-8", "--policy", "single,optimal,zero:40K,dear:40K,fsdp,overlap")
            if rows["overlap"]["measured_iteration_s"] < rows["single"]["measured_iteration_s"]:
                break
        for name, row in rows.items():
            with self.subTest(name):
                # The emulated network is a lower limit; how far above it is, is not for a test.
                self.assertGreater(row["measured_iteration_s"], 0.97 * row["predicted_iteration_s"])
                self.assertGreaterEqual(row["measured_compute_s"], 0.0239)
                self.assertGreaterEqual(row["predicted_iteration_s"], row["lower_bound_s"] - 1e-9)
        self.assertLess(rows["overlap"]["predicted_iteration_s"], rows["optimal"]["predicted_iteration_s"])
        self.assertLess(rows["overlap"]["measured_iteration_s"], rows["single"]["measured_iteration_s"])

    def test_the_timeline_has_halves_and_stalls(self):
        """Timelines of every worker and of the prediction, with the period of overlapping steps."""
        self.write(lambda i: {"forward_start_s": 0.001 * (11 - i)})
        file = self.folder / "steps.json"
        rows = self.replay("--network", "1e-3,8e-8", "--policy", "zero:40K", "--chrome-trace", file)
        shown = json.loads(file.read_text())["traceEvents"]
        names = {e["pid"]: e["args"]["name"] for e in shown if e.get("name") == "process_name"}
        self.assertEqual(len(names), 4)
        kinds = {pid: [e["cat"] for e in shown if e["pid"] == pid and e.get("ph") == "X"] for pid in names}
        for pid, found in kinds.items():
            with self.subTest(names[pid]):
                halves = found.count("reduce-scatter"), found.count("all-gather")
                self.assertEqual(sum(halves), rows["zero:40960"]["messages"])
                self.assertEqual(*halves)
                self.assertIn("stall", found)
        page = self.folder / "page.html"
        self.assertEqual(run("report", file, "-o", page).returncode, 0)

    def test_needs_of_any_order(self):
        """Tied to the first layer, needed at once, in the order in which gradients come."""
        for needed in (lambda i: {"forward_start_s": 0.0 if i == 0 else 0.001 * (11 - i)}, lambda i: {},
                       lambda i: {"forward_start_s": 0.001 * i}):
            self.write(needed)
            self.replay("--network", "2e-4,1e-8", "--policy", "zero:40K,overlap")

    def test_gradients_alone_are_not_shared_out(self):
        self.write(lambda i: {})
        done = run("replay", self.trace, "-n", 2, "--servers", 1, "--policy", "zero")
        self.assertEqual(done.returncode, 2)
        self.assertIn("'zero' shards parameters, which does not work with --servers", done.stderr)

    def test_one_worker_and_many(self):
        self.write(lambda i: {"forward_start_s": 0.001 * (11 - i)})
        for workers in (1, 7):
            self.replay("--policy", "optimal,zero:10K,overlap", workers=workers)


if __name__ == "__main__":
    unittest.main()
