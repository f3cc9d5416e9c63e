"""Program errors and their messages: the same over shm, mpi, nccl and tcp (with the fake GPU of tests/fake)."""

import json
import os
import re
import subprocess
import tempfile
import unittest
from pathlib import Path

import test_mpi
from support import BUILD, MGWFBP

TEST_MISUSE = BUILD / "bin" / "test_misuse"
MPIRUN = test_mpi.MPIRUN if test_mpi.MPIRUN and test_mpi.MPIRUN[0] else None


def run(transport, mode, ranks=3, **more):
    """What each rank says, by rank."""
    environment = {**os.environ, "MGWFBP_TIMEOUT": "20", **more}
    launcher = [str(MGWFBP), "launch", "-n", str(ranks)]
    if transport == "mpi":
        launcher = [*MPIRUN, "-n", str(ranks)]
    if transport.startswith("nccl"):
        environment.update(LD_LIBRARY_PATH=str(BUILD / "fake"), MGWFBP_DEVICE="cuda", MGWFBP_TRANSPORT=transport)
    done = subprocess.run([*launcher, str(TEST_MISUSE), mode], env=environment, timeout=100, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, encoding="utf-8")
    said = {rank: [] for rank in range(ranks)}
    for rank, text in re.findall(r"^(?:\[\d+\] )?rank (\d+): (.*)$", done.stdout, re.MULTILINE):
        said[int(rank)].append(text)
    return done, said


class Misuse(unittest.TestCase):
    transports = ["shm", "nccl"] + (["mpi"] if MPIRUN else [])
    talking = [*transports, "nccl:tcp"]  # for what workers agree on

    def each(self, mode, expected, transports=None, **more):
        for transport in transports or self.transports:
            with self.subTest(transport):
                done, said = run(transport, mode, **more)
                self.assertEqual(done.returncode, 0, (said, done.stderr))
                for rank, text in expected.items():
                    self.assertEqual(len(said[rank]), 1, (said, done.stderr))
                    self.assertRegex(said[rank][0], text)

    def test_different_collectives(self):
        """Named on every rank, before anything is moved; and the job ends as any other."""
        step = r"step: message 1 of \d+ \(from 't0'\): workers disagree: rank %d is in message 1 of the step, rank 0 in %s$"
        for mode, own in (("metric", "all-reduce of 1"), ("broadcast", "broadcast of 16"), ("barrier", "barrier")):
            self.each(mode, {0: f"{mode}: workers disagree: rank 0 is in {own}, rank 1 in message 1 of the step$",
                             1: step % (1, own), 2: step % (2, own)}, self.talking)

    def test_alike_but_for_what_it_is_for(self):
        self.each("alike", {0: r"rank 0 is in all-reduce of 15\d+, rank 1 in message 1 of the step$",
                            1: r"rank 1 is in message 1 of the step, rank 0 in all-reduce of 15\d+$"},
                  [t for t in self.transports if t != "nccl"])

    def test_different_numbers(self):
        self.each("other", {0: "rank 0 is in all-reduce of 2, rank 1 in all-reduce of 1$",
                            1: "rank 1 is in all-reduce of 1, rank 0 in all-reduce of 2$",
                            2: "rank 2 is in all-reduce of 1, rank 0 in all-reduce of 2$"}, self.talking)

    def test_start_beside_others(self):
        self.each("start", {0: "rank 0 is in mgw_engine_start, rank 1 in all-reduce of 1$",
                            1: "rank 1 is in all-reduce of 1, rank 0 in mgw_engine_start$"},
                  [t for t in self.transports if t != "nccl"])

    def test_numbers_before_an_update(self):
        """Gathers of parameters come between steps, where programs have collectives of their own."""
        self.each("update", {0: "rank 0 is in all-reduce of 1, rank 1 in message 4 of the step$",
                             1: "rank 1 is in message 4 of the step, rank 0 in all-reduce of 1$"}, self.talking)

    def test_gradients_that_are_the_engines(self):
        """With MGWFBP_DEBUG=1 every rank hears which one has written to which tensor."""
        for mode, tensor, when in (("written", 0, "ready"), ("late", 1, "averaged")):
            told = f"rank 1: tensor {tensor} \\('t{tensor}'\\) was written to after it was {when}: the engine owns a gradient from"
            self.each(mode, {rank: told for rank in range(3)}, MGWFBP_DEBUG="1")

    def test_averages_that_differ(self):
        told = r"step 1: rank 1 has a different average of tensor 0 \('t0'\) than rank 0: "
        self.each("shared", {rank: told for rank in range(3)}, [t for t in self.transports if t != "nccl"], MGWFBP_DEBUG="1")

    def test_debug_finds_nothing(self):
        self.each("nothing", {rank: "nothing: fine$" for rank in range(3)}, MGWFBP_DEBUG="1")

    def test_fork(self):
        """It gets an error at once and ends, and its parent continues."""
        calls = "start", "add", "begin", "all-reduce", "barrier", "set_policy", "wait", "bind"
        for transport in self.transports:
            with self.subTest(transport):
                done, said = run(transport, "fork", ranks=2)
                self.assertEqual(done.returncode, 0, (said, done.stderr))
                for rank in said:
                    self.assertEqual(len(said[rank]), len(calls), said)
                    for call, text in zip(calls, said[rank]):
                        self.assertRegex(text, rf"^{call}: {call}: the engine belongs to process \d+, and this process is a fork of "
                                               "it: only that process can use it")


class LastWords(unittest.TestCase):
    """For programs that cannot be changed; nothing is printed otherwise."""

    def run_example(self, **more):
        done = subprocess.run([str(MGWFBP), "launch", "-n", "2", str(BUILD / "bin" / "example_engine")],
                              env={**os.environ, **more}, timeout=100, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              encoding="utf-8")
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stderr

    def test_statistics(self):
        self.assertEqual(self.run_example(MGWFBP_STATS="0"), "")
        told = self.run_example(MGWFBP_STATS="1")
        self.assertRegex(told, r"(?m)^\[0\] workers    2, transport shm, policy optimal$")
        self.assertRegex(told, r"(?m)^\[0\] wfbp +20 ")
        self.assertNotIn("[1]", told)

    def test_timeline(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "step.json"
            self.assertEqual(self.run_example(MGWFBP_TIMELINE=str(path)), "")
            for rank, file in enumerate((path, path.with_name("step.1.json"))):
                self.assertIn(f"rank {rank} of 2, measured", json.dumps(json.loads(file.read_text())))
            told = self.run_example(MGWFBP_TIMELINE=str(Path(folder) / "nowhere" / "step.json"))
            self.assertRegex(told, r"mgwfbp: MGWFBP_TIMELINE: .*nowhere")


if __name__ == "__main__":
    unittest.main()
