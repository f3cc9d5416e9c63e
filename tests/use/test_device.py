"""Gradients on a GPU, with the fake one of tests/fake; and the errors if there is none."""

import ctypes
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
from support import BUILD, MGWFBP

TEST_DEVICE = BUILD / "bin" / "test_device"
TEST_WIRE = BUILD / "bin" / "test_device_wire"


def has_driver():
    try:
        ctypes.CDLL("libcuda.so.1")
        return True
    except OSError:
        return False


def environment(fake, **more):
    path = str(BUILD / "fake") if fake else ""
    return {**os.environ, "LD_LIBRARY_PATH": path, "MGWFBP_TIMEOUT": "30", **more}


def run(*arguments, fake=True, **more):
    return subprocess.run([str(MGWFBP), *map(str, arguments)], env=environment(fake, **more),
                          timeout=300, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          encoding="utf-8")


class WithoutGpu(unittest.TestCase):
    @unittest.skipIf(has_driver(), "there is a driver")
    def test_says_what_is_missing(self):
        for command in (["calibrate", "-n", 2, "--device", "cuda"],
                        ["replay", "googlenet-b64-fp32-h200", "-n", 2, "--device", "cuda"],
                        ["calibrate", "-n", 2, "--device", "cuda", "--transport", "shm"],
                        ["calibrate", "-n", 2, "--transport", "nccl"]):
            done = run(*command, fake=False)
            self.assertEqual(done.returncode, 2, done.stdout)
            self.assertIn("libcuda.so.1 not found", done.stderr)

    def test_says_what_does_without_nccl(self):
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "libcuda.so.1").symlink_to(BUILD / "fake" / "libcuda.so.1")
            (Path(folder) / "libnccl.so.2").touch()  # stands before one that the machine may have
            command = ["calibrate", "-n", 2, "--device", "cuda", "--largest", "64KiB"]
            done = run(*command, LD_LIBRARY_PATH=folder)
            self.assertEqual(done.returncode, 2, done.stdout)
            self.assertRegex(done.stderr, r"libnccl.so.2 not found: .*shm and mpi do without")
            done = run(*command, "--transport", "shm", LD_LIBRARY_PATH=folder)
            self.assertEqual(done.returncode, 0, done.stderr)

    def test_choices_that_cannot_be(self):
        for message, command, more in (
                ("'gpu' is not host or cuda", ["calibrate", "-n", 2, "--device", "gpu"], {}),
                ("cannot be emulated; use nccl, shm or mpi",
                 ["calibrate", "-n", 2, "--device", "cuda", "-t", "emulated:1e-3,0"], {}),
                ("leave out --cluster and --network",
                 ["replay", "googlenet-b64-fp32-h200", "-n", 2, "--device", "cuda", "--network", "1e-3,1e-9"], {}),
                ("leave out --chrome-trace",
                 ["replay", "googlenet-b64-fp32-h200", "-n", 2, "--device", "cuda", "--chrome-trace", "x.json"], {}),
                ("unknown transport 'smh'",
                 ["replay", "googlenet-b64-fp32-h200", "-n", 2, "--device", "cuda"], {"MGWFBP_TRANSPORT": "smh"}),
                ("what the workers agree through", ["calibrate", "-n", 2, "--transport", "nccl:nccl"], {}),
                ("cannot be emulated", ["calibrate", "-n", 2, "--transport", "emulated:1e-3,0:nccl"], {})):
            done = run(*command, **more)
            self.assertNotEqual(done.returncode, 0, command)
            self.assertIn(message, done.stderr)

    def test_numbers_of_lanes_that_cannot_be(self):
        for value, what in (("-1", "'-1' is not a number up to 2147483647"), ("x", "'x' is not a number up to 2147483647"),
                            ("", "'' is not a number up to 2147483647"), ("3.5", "'3.5' is not a number up to 2147483647"),
                            ("99999999999", "'99999999999' is not a number up to 2147483647"),
                            ("9", "9; there are at most 8")):
            done = run("calibrate", "-n", 2, "--device", "cuda", MGWFBP_LANES=value)
            self.assertEqual(done.returncode, 2, done.stdout)
            self.assertEqual(done.stderr, f"mgwfbp calibrate: MGWFBP_LANES: {what}\n")


class FakeGpu(unittest.TestCase):
    def test_sums(self):
        for transport, workers in (("nccl", 1), ("nccl", 3), ("shm", 1), ("shm", 3)):
            done = run("launch", "-n", workers, TEST_DEVICE, "sums", MGWFBP_TRANSPORT=transport)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(done.stdout.count("exact"), 8)

    @unittest.skipUnless(test_mpi.MPIRUN and test_mpi.MPIRUN[0], "no MPI")
    def test_sums_over_mpi(self):
        for transport, workers in (("nccl:mpi", 2), ("mpi", 2)):
            done = subprocess.run([*test_mpi.MPIRUN, "-n", str(workers), TEST_DEVICE, "sums"], timeout=300,
                                  env=environment(True, MGWFBP_TRANSPORT=transport), stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE, encoding="utf-8")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(done.stdout.count("exact"), 8)

    def test_parameters(self):
        for transport, workers in (("nccl", 1), ("nccl", 3), ("shm", 2)):
            for how in "callback", "said":
                done = run("launch", "-n", workers, BUILD / "bin" / "test_device_parameters", how,
                           MGWFBP_TRANSPORT=transport)
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertEqual(done.stdout.count("exact"), workers)

    def test_parameters_in_a_trial(self):
        """Plans change between steps while gathers are under way, and nothing but streams waits for them."""
        for how in "callback", "said":
            done = run("launch", "-n", 2, BUILD / "bin" / "test_device_parameters", how, "trial", MGWFBP_TRANSPORT="nccl",
                       MGWFBP_CLUSTER="paper-1-10gbe", FAKE_NCCL_RATE="100e6")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(done.stdout.count("exact"), 2)

    def test_wire(self):
        """f32 gradients as 16 and 8 bits: the bits that the host makes of them."""
        for transport, workers in (("nccl", 2), ("nccl", 3), ("shm", 2)):
            done = run("launch", "-n", workers, TEST_WIRE, "exact", MGWFBP_TRANSPORT=transport)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(done.stdout.count("exact"), 10)
        for wire in "bf16", "fp8":
            done = run("launch", "-n", 3, BUILD / "bin" / "test_device_parameters", "said", MGWFBP_TRANSPORT="nccl",
                       MGWFBP_WIRE=wire)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(done.stdout.count("exact"), 3)

    def test_lanes(self):
        """Long messages over three lanes. Of two workers each sums half; of three, one is in the middle."""
        for workers, program, words in ((2, [TEST_DEVICE, "sums"], "over 3 lanes"),
                                        (3, [TEST_WIRE, "long"], "long messages over 3 lanes: exact"),
                                        (3, [BUILD / "bin" / "test_device_parameters", "said"], "exact")):
            done = run("launch", "-n", workers, *program, MGWFBP_TRANSPORT="nccl", MGWFBP_LANES="3")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn(words, done.stdout)

    def lanes(self, cores, **more):
        """How many there are for two workers. A lane moves 8 MiB in 30 ms, unless the others use the same link."""
        done = run("launch", "-n", 2, TEST_DEVICE, "lanes", LD_PRELOAD=str(BUILD / "fake" / "libfake_cores.so"),
                   ASAN_OPTIONS="verify_asan_link_order=0", FAKE_CORES=str(cores), FAKE_NCCL_RATE="280e6", **more)
        self.assertEqual(done.returncode, 0, done.stderr)
        found = re.findall(r"\d+(?= lanes)", done.stdout)
        self.assertEqual(len(found), 2, done.stdout)
        self.assertEqual(found[0], found[1])
        return int(found[0])

    def test_lanes_are_as_many_as_help(self):
        self.assertEqual(self.lanes(16), 4)
        self.assertEqual(self.lanes(16, MGWFBP_LANES="0"), 4)  # as if it was not set
        self.assertEqual(self.lanes(16, FAKE_NCCL_LINK="1"), 1)
        self.assertEqual(self.lanes(8), 2)
        self.assertEqual(self.lanes(4), 1)
        self.assertEqual(self.lanes(2), 1)
        for wanted in 1, 3, 8:
            self.assertEqual(self.lanes(4, MGWFBP_LANES=str(wanted)), wanted)

    def test_plans_may_limit_them(self):
        """8 MiB take 30 ms over one lane, and a message has twice that."""
        done = run("launch", "-n", 2, TEST_DEVICE, "limited", FAKE_NCCL_RATE="280e6", MGWFBP_LANES="3")
        self.assertEqual(done.returncode, 0, done.stderr)
        found = [[float(each) for each in re.findall(f"at most {most}: ([0-9.]+) ms", done.stdout)] for most in range(3)]
        self.assertEqual([len(each) for each in found], [2, 2, 2], done.stdout)
        everything, one, two = map(min, found)
        self.assertGreater(one, 59)
        self.assertGreater(two, 29)
        self.assertGreater(everything, 19)
        self.assertLess(everything, 0.6 * one)
        self.assertLess(two, 0.8 * one)

    def test_trials(self):
        """With several lanes also on one, as PyTorch has it."""
        for transport, lanes in ("nccl", "1"), ("nccl", "3"), ("shm", "3"):
            done = run("launch", "-n", 2, TEST_DEVICE, "trials", MGWFBP_TRANSPORT=transport, MGWFBP_LANES=lanes)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(done.stdout.count("all are known after"), 2, done.stdout)
            self.assertEqual("tried: one lane" in done.stdout, (transport, lanes) == ("nccl", "3"), done.stdout)

    def test_steps_are_handed_over(self):
        done = run("launch", "-n", 2, TEST_DEVICE, "speed")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("the host waited for the GPU 0 times", done.stdout)

    def test_through_the_host_every_step_waits(self):
        done = run("launch", "-n", 2, TEST_DEVICE, "speed", MGWFBP_TRANSPORT="shm")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("the host waited for the GPU 6 times", done.stdout)

    def test_computing_for_long_is_not_being_late(self):
        for transport in "nccl", "shm":
            done = run("launch", "-n", 2, TEST_DEVICE, "slow", MGWFBP_TRANSPORT=transport, MGWFBP_TIMEOUT="1")
            self.assertEqual(done.stdout.count("nobody was late"), 2, done.stderr)

    def test_workers_that_differ(self):
        done = run("launch", "-n", 3, TEST_DEVICE, "mixed", MGWFBP_TRANSPORT="shm")
        self.assertEqual(done.stderr.count("many: workers disagree: all-reduce with other segments, or another root, dtype, op "
                                           "or kind of memory, now or before"), 3, done.stderr)
        self.assertEqual(done.stderr.count("again: staged: the transport failed before; close it"), 3, done.stderr)

    def test_a_fault_of_the_gpu(self):
        for transport in ("nccl", "shm"):
            done = run("launch", "-n", 2, TEST_DEVICE, "broken", MGWFBP_TRANSPORT=transport)
            self.assertRegex(done.stderr, r"synchronize: .*\(700\)", done.stdout)

    def test_calibrate(self):
        for more, name in (([], "nccl-2-with-3-lanes"), (["--transport", "shm"], "staged-shm-2")):  # which has none
            done = run("calibrate", "-n", 2, "--device", "cuda", "--largest", "1MiB", "--json", *more, MGWFBP_LANES="3")
            self.assertEqual(done.returncode, 0, done.stderr)
            cluster = json.loads(done.stdout)
            self.assertEqual((cluster["name"], cluster["workers"]), (name, 2))
            self.assertEqual(set(cluster["casts"]), {"f16", "bf16", "fp8", "fp8-e5m2"})
            for cast in cluster["casts"].values():
                self.assertGreater(cast["a_s"] + cast["c_s_per_byte"], 0)

    def test_replay(self):
        for transport in "nccl", "shm":
            done = run("replay", "googlenet-b64-fp32-h200", "-n", 2, "--device", "cuda", "--policy", "wfbp,optimal",
                       "--steps", 2, "--rounds", 1, "--json", MGWFBP_TRANSPORT=transport)
            self.assertEqual(done.returncode, 0, done.stderr)
            for row in json.loads(done.stdout):
                self.assertGreater(row["measured_compute_s"], 0.0196)  # as the trace says
                self.assertGreaterEqual(row["measured_iteration_s"], row["measured_compute_s"])

    def fault(self, number, transport, **variables):
        """Rank 1 of 3 gets a signal in the middle of its steps."""
        job = subprocess.Popen([str(MGWFBP), "launch", "-n", "3", str(TEST_DEVICE), "steady"],
                               env=environment(True, **{"MGWFBP_TIMEOUT": "5", "MGWFBP_TRANSPORT": transport, **variables}),
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8")
        victim = None
        lines = []
        for line in job.stdout:
            lines.append(line)
            found = re.match(r"\[1\] steady (\d+)", line)
            if found:
                victim = int(found[1])
                time.sleep(0.2)
                os.kill(victim, number)
                break
        self.assertIsNotNone(victim, lines)
        rest = job.communicate(timeout=100)[0]
        self.assertNotEqual(job.returncode, 0)
        for rank in (0, 2):
            self.assertRegex(rest, rf"\[{rank}\] step: .*rank 1")
            self.assertRegex(rest, rf"\[{rank}\] the stream is free")
        return rest

    def test_killed_worker_is_named(self):
        for transport in "nccl", "shm":
            self.fault(signal.SIGKILL, transport)

    def test_killed_worker_is_named_by_lanes(self):
        """When the parts of a long message are under way on all of them."""
        self.fault(signal.SIGKILL, "nccl", MGWFBP_LANES="3", MGWFBP_POLICY="single", FAKE_NCCL_RATE="50e6")

    def test_nccl_that_does_not_let_go(self):
        """Aborts that never return, of one lane or several, are left alone, and the process ends as it would have."""
        rest = self.fault(signal.SIGSTOP, "nccl", FAKE_NCCL_STUCK="1", MGWFBP_TIMEOUT="3", MGWFBP_LANES="3")
        self.assertNotIn("Segmentation", rest)
        self.assertRegex(rest, r"launch: rank [02] ended with exit status 1")

    def test_stopped_worker_is_named(self):
        for transport in "nccl", "shm":
            self.fault(signal.SIGSTOP, transport)


if __name__ == "__main__":
    unittest.main()
