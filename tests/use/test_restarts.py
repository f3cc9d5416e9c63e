"""Continued training: background checkpoints, restarts, elastic jobs."""

import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
import unittest
import zlib
from pathlib import Path

from support import BUILD, MGWFBP, ROOT, workers
from test_train import FASHION, events, numbers, train, weights

ARGS = ("lenet5", "-n", "2", "--batch", "8", "--epochs", "2")


def steps_of(path):
    return int(re.search(rb"\nsteps (\d+)\n", Path(path).read_bytes()).group(1))


@unittest.skipUnless(FASHION.exists(), "Fashion-MNIST is not installed (dataset-fashion-mnist)")
class Checkpoints(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.path = self.folder / "checkpoint"

    def test_the_last_ones_are_kept(self):
        # Many steps, since one that comes while the checkpoint before is still being written saves none.
        train(*ARGS, "--steps", "90", "--checkpoint", self.path, "--checkpoint-steps", "1", "--keep", "3")
        self.assertEqual(sorted(os.listdir(self.folder)), ["checkpoint", "checkpoint.1", "checkpoint.2"])
        newest, *older = [steps_of(self.folder / name) for name in sorted(os.listdir(self.folder))]
        self.assertEqual(newest, 90)
        self.assertEqual(older, sorted(older, reverse=True))
        self.assertLess(older[0], 90)
        self.path.unlink()
        for name in os.listdir(self.folder):
            os.unlink(self.folder / name)
        train(*ARGS, "--steps", "3", "--checkpoint", self.path, "--checkpoint-steps", "1", "--keep", "1")
        self.assertEqual(os.listdir(self.folder), ["checkpoint"])

    def test_every_so_many_seconds(self):
        job = subprocess.Popen([MGWFBP, "train", *ARGS, "--checkpoint", self.path, "--checkpoint-seconds", "0.5"],
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.addCleanup(job.wait)
        self.addCleanup(job.kill)
        end = time.monotonic() + 60
        while not self.path.with_name("checkpoint.1").exists():  # the second, in the first epoch of 3750 steps
            self.assertLess(time.monotonic(), end)
            time.sleep(0.05)
        self.assertIsNone(job.poll())

    def test_the_newest_that_is_whole_is_taken(self):
        train(*ARGS, "--steps", "6", "--checkpoint", self.path, "--checkpoint-steps", "3", "--keep", "2")
        older = self.path.with_name("checkpoint.1")
        self.assertEqual((steps_of(self.path), steps_of(older)), (6, 3))
        whole = self.path.read_bytes()
        expected = weights(*ARGS, "--steps", "5", "--resume", older)
        not_finite = whole[:-8] + b"\0\0\xc0\x7f"
        for damaged in (whole[:1000], whole[:-1], b"", whole[:5000] + b"x" + whole[5001:],
                        not_finite + zlib.crc32(not_finite).to_bytes(4, "little")):
            self.path.write_bytes(damaged)
            done = train(*ARGS, "--steps", "5", "--resume", self.path, "--json")
            self.assertRegex(done.stderr, r"^mgwfbp train: warning: .*checkpoint: .*; using an older one\n$")
            self.assertEqual(json.loads(done.stdout.splitlines()[-1])["weights"], expected)
        older.write_bytes(b"")
        done = train("lenet5", "-n", "1", "--resume", self.path, check=False)
        self.assertEqual(done.returncode, 2)
        self.assertIn("checkpoint: weights are not finite", done.stderr)

    def test_what_is_no_file_has_no_end(self):
        os.mkfifo(self.path)
        for path in (self.path, "/dev/zero", self.folder):
            done = train("lenet5", "-n", "1", "--resume", path, check=False)
            self.assertEqual(done.returncode, 2)
            self.assertIn(f"{path}: not a regular file", done.stderr)

    def test_one_that_does_not_fit_is_not_skipped(self):
        train("resnet20", "-n", "1", "--batch", "4", "--steps", "1", "--checkpoint", self.path)
        shutil.copy(self.path, self.path.with_name("checkpoint.1"))
        done = train("lenet5", "-n", "1", "--resume", self.path, check=False)
        self.assertIn("'model resnet20' where this model has 'model lenet5'", done.stderr)

    def test_the_folder_is_looked_at_first(self):
        begun = time.monotonic()
        for path, said in ((self.folder / "none" / "x", "No such file"), (self.folder, "folder|directory"),
                           (FASHION / "t10k-labels-idx1-ubyte.gz" / "x", "not a folder|cannot write")):
            done = train(*ARGS, "--checkpoint", path, check=False)
            self.assertEqual(done.returncode, 2, done)
            self.assertRegex(done.stderr, f"(?i){said}")
            self.assertEqual(len(done.stderr.splitlines()), 1)
        self.assertLess(time.monotonic() - begun, 30)

    def test_what_a_killed_writer_left_is_removed(self):
        dead = subprocess.Popen(["true"])
        dead.wait()
        stale = self.folder / f".mgwfbp-{dead.pid}-0.tmp"
        live = self.folder / f".mgwfbp-{os.getpid()}-0.tmp"
        other = self.folder / ".mgwfbp-notes.tmp"
        for path in (stale, live, other, self.folder / "checkpoint.next"):
            path.write_text("something")
        train(*ARGS, "--steps", "1", "--checkpoint", self.path)
        self.assertEqual(sorted(os.listdir(self.folder)), sorted([live.name, other.name, "checkpoint"]))

    def test_what_was_left_where_a_link_leads_is_removed(self):
        dead = subprocess.Popen(["true"])
        dead.wait()
        there = self.folder / "there"
        there.mkdir()
        train(*ARGS, "--steps", "1", "--checkpoint", there / "checkpoint")
        self.path.symlink_to(there / "checkpoint")
        for name in (f".mgwfbp-{dead.pid}-0.tmp", "checkpoint.next"):
            (there / name).write_text("something")
        train(*ARGS, "--steps", "1", "--checkpoint", self.path)
        self.assertEqual(sorted(os.listdir(there)), ["checkpoint", "checkpoint.1"])
        self.assertTrue(self.path.is_symlink())

    def test_statistics_go_on_exactly(self):
        """Each worker has its own; when a checkpoint comes changes nothing. Two epochs of 15 steps."""
        args = ("resnet20", "-n", "2", "--batch", "2", "--data", self.small(), "--epochs", "2")
        whole = events(*args, kind="epoch")
        train(*args, "--steps", "7", "--checkpoint", self.path, "--checkpoint-steps", "2")
        self.assertEqual(events(*args, "--resume", self.path, kind="epoch"), whole)

    def small(self):
        """A folder of 60 images."""
        data = self.folder / "data"
        data.mkdir()
        import gzip
        for file in FASHION.iterdir():
            content = gzip.open(file).read()
            head = 16 if "images" in file.name else 8
            size = 784 if "images" in file.name else 1
            count = (60).to_bytes(4, "big")
            (data / file.name).write_bytes(gzip.compress(content[:4] + count + content[8:head + 60 * size]))
        return str(data)


@unittest.skipUnless(FASHION.exists(), "Fashion-MNIST is not installed (dataset-fashion-mnist)")
class GoesOn(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = Path(folder.name) / "checkpoint"

    def start(self, *args):
        job = subprocess.Popen([MGWFBP, "train", *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               encoding="utf-8")
        self.addCleanup(job.wait)
        self.addCleanup(job.kill)
        return job

    def test_by_the_same_command(self):
        """Also when it was the launcher that was killed; --steps counts all."""
        args = (*ARGS, "--checkpoint", self.path, "--checkpoint-steps", "2", "--restarts", "2", "--steps", "300", "--json")
        job = self.start(*args)
        end = time.monotonic() + 60
        while not self.path.exists() and time.monotonic() < end:
            time.sleep(0.01)
        job.kill()
        job.communicate()
        lines = [json.loads(line) for line in train(*args).stdout.splitlines()]
        self.assertEqual(lines[0]["event"], "resume")
        self.assertEqual(lines[-1]["steps"], 300)
        self.assertEqual(lines[-1]["weights"], weights(*ARGS, "--steps", "300"))
        done = train(*args)  # nothing is left to do
        self.assertEqual(json.loads(done.stdout.splitlines()[-1])["steps"], 300)
        done = train(*args, "--seed", "2", check=False)
        self.assertIn("was made with seed 1", done.stderr)

    def test_smaller_and_larger(self):
        """One worker is lost, the others continue; SIGUSR1 brings it back."""
        job = self.start("lenet5", "--batch", "8", "--elastic", "1:3", "--checkpoint", self.path, "--checkpoint-steps",
                         "5", "--backoff", "0.1", "--json", "--log-steps", "1", "--steps", "600")
        def resumed():
            for line in job.stdout:
                event = json.loads(line)
                if event["event"] == "resume":
                    return event
        end = time.monotonic() + 60
        while not self.path.exists() and time.monotonic() < end:
            time.sleep(0.01)
        os.kill(workers(job)[1], signal.SIGKILL)
        first = resumed()
        self.assertEqual(first["workers"], 2)
        job.send_signal(signal.SIGUSR1)
        second = resumed()
        self.assertEqual(second["workers"], 3)
        self.assertGreaterEqual(second["step"], first["step"])
        out, err = job.communicate(timeout=120)
        self.assertEqual(job.returncode, 0, err)
        self.assertEqual(json.loads(out.splitlines()[-1])["steps"], 600)
        self.assertIn("from 2 workers to 3", err)
        self.assertTrue(all(abs(x) < 1e6 for x in numbers(self.path)))

    def test_larger_by_itself(self):
        """A lost worker is replaced some time after it was lost, and not after the beginning: the job is older than that."""
        job = self.start("lenet5", "--batch", "8", "--elastic", "1:3", "--regrow", "1.5", "--checkpoint", self.path,
                         "--checkpoint-steps", "50", "--json", "--log-steps", "50", "--epochs", "10000")
        events = ((time.monotonic(), json.loads(line)) for line in job.stdout)
        next(event for _, event in events if event["event"] == "progress" and self.path.exists())
        time.sleep(1.6)
        killed = time.monotonic()
        os.kill(workers(job)[1], signal.SIGKILL)
        resumed = [next((when, event) for when, event in events if event["event"] == "resume") for _ in range(2)]
        self.assertEqual([event["workers"] for _, event in resumed], [2, 3])
        self.assertGreater(resumed[1][0] - killed, 1.5)
        self.assertGreaterEqual(resumed[1][1]["step"], resumed[0][1]["step"])
        job.terminate()

    def test_those_left_go_on_from_what_was_asked_for(self):
        """Before there is a checkpoint of its own that is --resume's, and not the beginning."""
        asked = self.path.with_name("asked")
        train("lenet5", "-n", "3", "--batch", "8", "--steps", "40", "--checkpoint", asked)
        job = self.start("lenet5", "--batch", "8", "--elastic", "1:3", "--resume", asked, "--checkpoint", self.path, "--json",
                         "--log-steps", "1", "--steps", "2000")
        events = (json.loads(line) for line in job.stdout)
        self.assertGreater(next(event for event in events if event["event"] == "progress")["step"], 40)
        os.kill(workers(job)[1], signal.SIGKILL)
        went_on = next(event for event in events if event["event"] == "resume")
        self.assertEqual((went_on["workers"], went_on["step"], self.path.exists()), (2, 40, False))

    def test_kills(self):
        """docs/evidence/trust.md has more."""
        done = subprocess.run([ROOT / "bench" / "kill_jobs", BUILD, "6"], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              encoding="utf-8", timeout=500)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)


if __name__ == "__main__":
    unittest.main()
