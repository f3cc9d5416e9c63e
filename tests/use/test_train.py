"""mgwfbp train and trace: the workers' common result, checkpoints, faults."""

import array
import gzip
import json
import math
import os
import pty
import re
import shutil
import signal
import struct
import subprocess
import tempfile
import time
import unittest
import zlib
from pathlib import Path

import test_mpi
from support import MGWFBP, workers

FASHION = Path("/usr/share/datasets/fashion-mnist")


def train(*args, check=True, **options):
    return subprocess.run([MGWFBP, "train", *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          encoding="utf-8", check=check, timeout=300, **options)


def events(*args, kind="summary", **options):
    lines = [json.loads(line) for line in train(*args, "--json", **options).stdout.splitlines()]
    return [line for line in lines if line["event"] == kind]


def weights(*args, **options):
    return events(*args, **options)[0]["weights"]


def numbers(path):
    """All numbers of a checkpoint: weights, velocities, statistics."""
    data = Path(path).read_bytes()
    mark = b"\nf32, little-endian\n"
    values = array.array("f")
    values.frombytes(data[data.index(mark) + len(mark):-4])
    return values


def difference(one, other):
    """The largest; not a number, if any is not."""
    differences = [abs(a - b) for a, b in zip(one, other)]
    return max(differences) if all(map(math.isfinite, differences)) else math.nan


@unittest.skipUnless(FASHION.exists(), "Fashion-MNIST is not installed (dataset-fashion-mnist)")
class Train(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def test_one_epoch_learns(self):
        done = train("lenet5", "-n", "4", "--epochs", "1", "--batch", "32")
        accuracy = float(re.search(r"accuracy ([0-9.]+)%", done.stdout).group(1))
        self.assertGreater(accuracy, 80)
        self.assertRegex(done.stdout, r"policy +messages +iteration")

    def test_adamw_learns(self):
        done = train("lenet5", "-n", "2", "--epochs", "1", "--batch", "64", "--optimizer", "adamw")
        self.assertGreater(float(re.search(r"accuracy ([0-9.]+)%", done.stdout).group(1)), 80)

    def test_several_workers_are_one_with_a_larger_batch(self):
        """Without batch normalisation nothing but rounding differs."""
        files = [self.folder / name for name in ("one", "four")]
        for path, workers, batch in zip(files, ("1", "4"), ("64", "16")):
            train("lenet5", "-n", workers, "--batch", batch, "--steps", "20", "--checkpoint", path)
        one, four = map(numbers, files)
        self.assertLess(difference(one, four), 1e-5)
        self.assertGreater(max(map(abs, one)), 0.1)

    def test_every_policy_gives_the_same_weights(self):
        for model, more in (("lenet5", ()), ("resnet20", ("--network", "1e-4,1e-10"))):
            rows = events(model, "-n", "3", "--batch", "4", "--steps", "3", "--compare", "--rounds", "2",
                          *more, kind="compare")
            self.assertEqual([r["policy"] for r in rows], ["naive", "wfbp", "single", "threshold:67108864",
                                                           "ddp", "mgwfbp", "optimal", "overlap"])
            self.assertEqual(len({r["weights"] for r in rows}), 1)
        self.assertNotEqual(weights("lenet5", "-n", "3", "--batch", "4", "--steps", "3"),
                            weights("lenet5", "-n", "3", "--batch", "4", "--steps", "4"))

    def test_policies_are_held_against_the_reference(self):
        """Optimal, or the first of those that were asked for."""
        args = ("lenet5", "-n", "2", "--batch", "4", "--steps", "1", "--compare", "--rounds", "3")
        for policies, reference in (("single,optimal,wfbp", "optimal"), ("single,wfbp", "single")):
            rows = events(*args, "--policy", policies, kind="compare")
            self.assertEqual([r["policy"] for r in rows], policies.split(","))
            for row in rows:
                ratios = [row[name] for name in ("ratio_low", "ratio", "ratio_high")]
                self.assertEqual(ratios, sorted(ratios))
                self.assertEqual(ratios == [1, 1, 1], row["policy"] == reference)
                self.assertAlmostEqual(row["exposed_s"], row["iteration_s"] - row["compute_s"], 6)
        shown = train(*args, "--policy", "single,optimal", "--network", "1e-3,1e-9").stdout
        self.assertRegex(shown, r"(?m)^single +1 .* [0-9.]+ \([0-9.]+ to [0-9.]+\) .*\n"
                                r"optimal .* 1\.000 \(1\.000 to 1\.000\) ")

    def test_mixed_precision_is_close(self):
        files = [self.folder / name for name in ("f32", "bf16")]
        for path, precision in zip(files, ("f32", "bf16-comm")):
            train("lenet5", "-n", "2", "--batch", "16", "--steps", "10", "--precision", precision,
                  "--checkpoint", path)
        f32, bf16 = map(numbers, files)
        self.assertNotEqual(f32, bf16)
        self.assertLess(difference(f32, bf16), 1e-2)

    def test_parameter_servers_give_the_same_weights(self):
        args = ("lenet5", "-n", "3", "--batch", "8", "--steps", "6")
        self.assertEqual(weights(*args), weights(*args, "--servers", "2"))

    @unittest.skipUnless(test_mpi.MPIRUN and test_mpi.MPIRUN[0], "no MPI")
    def test_mpi_gives_the_same_weights(self):
        """Of two workers' numbers there is only one sum."""
        args = ("lenet5", "--batch", "8", "--steps", "6")
        done = subprocess.run([*test_mpi.MPIRUN, "-n", "2", MGWFBP, "train", *args, "--json"], check=True,
                              stdout=subprocess.PIPE, encoding="utf-8", timeout=280)
        self.assertEqual(json.loads(done.stdout.splitlines()[-1])["weights"], weights(*args, "-n", "2"))

    def test_older_processors_train_too(self):
        """A softmax over ten values is negligible in a step, whatever its code."""
        losses = []
        for processor in ("ALL", "AVX2", "SSE41"):
            environment = {**os.environ, "ONEDNN_MAX_CPU_ISA": processor}
            args = ("lenet5", "-n", "2", "--batch", "8", "--steps", "10", "--json")
            done = train(*args, env=environment)
            self.assertEqual(done.stderr, "")
            lines = [json.loads(line) for line in done.stdout.splitlines()]
            losses.append([line["loss"] for line in lines if line["event"] == "progress"][0])
            self.assertLess(lines[-1]["reference_share"], 0.05)
        self.assertLess(max(losses) - min(losses), 1e-4)

    def many_classes(self):
        """Small images in 256 classes: there the softmax is a good part of a step."""
        for name, count in (("train", 1024), ("t10k", 256)):
            images = struct.pack(">IIII", 0x803, count, 12, 12) + os.urandom(count * 144)
            labels = struct.pack(">II", 0x801, count) + bytes(i % 256 for i in range(count))
            (self.folder / f"{name}-images-idx3-ubyte.gz").write_bytes(gzip.compress(images))
            (self.folder / f"{name}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(labels))
        return self.folder

    def test_reference_code_that_takes_long_is_told(self):
        """Once, by one worker, with its share."""
        environment = {**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX2"}
        told = r"mgwfbp train: warning: .* reference code for softmax, which takes (\d+)% of a step's computation\n"
        args = ("lenet5", "-n", "2", "--data", self.many_classes())
        done = train(*args, "--steps", "10", "--json", env=environment)
        self.assertRegex(done.stderr, f"^{told}$")
        share = json.loads(done.stdout.splitlines()[-1])["reference_share"]
        self.assertAlmostEqual(share, int(re.match(told, done.stderr).group(1)) / 100, delta=0.1)
        for more in (("--steps", "3"), ("--compare", "--rounds", "1", "--policy", "single")):
            self.assertRegex(train(*args, *more, env=environment).stderr, f"^{told}")

    def test_resumes_exactly(self):
        path = self.folder / "checkpoint"
        for model in ("lenet5", "resnet20"):
            args = (model, "-n", "2", "--batch", "8", "--augment", "--epochs", "2", "--optimizer",
                    "sgd" if model == "lenet5" else "adamw")
            whole = weights(*args, "--steps", "12")
            weights(*args, "--steps", "5", "--checkpoint", path)
            self.assertEqual(weights(*args, "--steps", "7", "--resume", path), whole)

    def test_resumes_with_another_number_of_workers(self):
        paths = [self.folder / name for name in ("half", "one", "two")]
        args = ("lenet5", "--epochs", "2")
        train(*args, "-n", "2", "--batch", "16", "--steps", "5", "--checkpoint", paths[0])
        train(*args, "-n", "1", "--batch", "32", "--steps", "5", "--resume", paths[0], "--checkpoint", paths[1])
        train(*args, "-n", "2", "--batch", "16", "--steps", "5", "--resume", paths[0], "--checkpoint", paths[2])
        one, two = map(numbers, paths[1:])
        self.assertLess(difference(one, two), 1e-5)

    def test_the_last_step_as_all_workers_saw_it(self):
        path = self.folder / "steps.json"
        train("lenet5", "-n", "2", "--batch", "8", "--steps", "8", "--chrome-trace", path)
        processes = [e["args"]["name"] for e in json.loads(path.read_text())["traceEvents"]
                     if e.get("name") == "process_name"]
        self.assertEqual(len([p for p in processes if "rank" in p]), 2, processes)
        page = self.folder / "page.html"
        subprocess.run([MGWFBP, "report", path, "-o", page], check=True, stderr=subprocess.DEVNULL)
        self.assertIn("rank 1 of 2", page.read_text())

    def start(self, *args, **options):
        return subprocess.Popen([MGWFBP, "train", *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                encoding="utf-8", **options)

    def await_file(self, path):
        end = time.monotonic() + 60
        while not path.exists():
            self.assertLess(time.monotonic(), end, "no checkpoint came")
            time.sleep(0.02)

    def test_a_killed_worker_ends_the_others_and_training_resumes(self):
        path = self.folder / "checkpoint"
        args = ("resnet20", "-n", "3", "--batch", "4", "--epochs", "1")
        job = self.start(*args, "--checkpoint", path, "--checkpoint-steps", "5")
        self.addCleanup(job.kill)
        self.await_file(path)
        pids = workers(job)
        self.assertEqual(len(pids), 3)
        os.kill(pids[1], signal.SIGKILL)
        killed = time.monotonic()
        error = job.communicate(timeout=60)[1]
        self.assertLess(time.monotonic() - killed, 10)  # 2 s, and the load of other tests
        self.assertEqual(job.returncode, 128 + signal.SIGKILL)
        self.assertIn("rank 1 has died", error)
        # From the last checkpoint to step 5 more: as if nothing had happened.
        steps = int(re.search(rb"\nsteps (\d+)\n", path.read_bytes()).group(1))
        self.assertEqual(steps % 5, 0)
        self.assertEqual(weights(*args, "--steps", "5", "--resume", path),
                         weights(*args, "--steps", str(steps + 5)))

    def test_interrupt_ends_in_good_order(self):
        path = self.folder / "checkpoint"
        args = ("lenet5", "-n", "2", "--batch", "4", "--epochs", "3")
        job = self.start(*args, "--checkpoint", path)
        self.addCleanup(job.kill)
        job.stdout.readline()
        time.sleep(1)
        job.send_signal(signal.SIGINT)
        out, error = job.communicate(timeout=60)
        self.assertEqual(job.returncode, 128 + signal.SIGINT)
        self.assertIn("policy", out)
        steps = int(re.search(rb"\nsteps (\d+)\n", path.read_bytes()).group(1))
        self.assertRegex(error, r"^mgwfbp train: interrupted by signal 2 \(Interrupt\) after step "
                         rf"{steps}, with \d\.\d\d of 3 epochs done; --resume {path} continues from there\n$")
        self.assertEqual(weights(*args, "--steps", "3", "--resume", path),
                         weights(*args, "--steps", str(steps + 3)))

    def check_interrupted(self, path, args, status):
        self.assertEqual(status, 128 + signal.SIGINT)
        steps = int(re.search(rb"\nsteps (\d+)\n", path.read_bytes()).group(1))
        self.assertLess(steps, 45000)
        weights(*args, "--steps", "1", "--resume", path)

    def test_ctrl_c_in_a_terminal(self):
        """Which tells all workers, and the launcher."""
        path = self.folder / "checkpoint"
        args = ("lenet5", "-n", "2", "--batch", "4", "--epochs", "6")
        pid, terminal = pty.fork()
        if pid == 0:
            os.execv(MGWFBP, [str(MGWFBP), "train", *args, "--checkpoint", str(path)])
        shown = b""
        while b"epoch 1, step" not in shown:
            shown += os.read(terminal, 4096)
        os.write(terminal, b"\x03")
        try:
            while os.read(terminal, 4096):
                pass
        except OSError:  # the end of a terminal
            pass
        self.check_interrupted(path, args, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))

    def test_interrupt_of_all_processes(self):
        path = self.folder / "checkpoint"
        args = ("lenet5", "-n", "2", "--batch", "4", "--epochs", "6")
        job = self.start(*args, "--checkpoint", path, start_new_session=True)
        self.addCleanup(job.kill)
        while not job.stdout.readline().startswith("epoch 1"):
            self.assertIsNone(job.poll())
        os.killpg(job.pid, signal.SIGINT)
        job.communicate(timeout=60)
        self.check_interrupted(path, args, job.returncode)

    def test_interrupt_ends_a_comparison(self):
        """Rounds that are done are shown."""
        job = self.start("lenet5", "-n", "2", "--batch", "4", "--compare", "--rounds", "1000", "--policy", "single,optimal")
        self.addCleanup(job.kill)
        while job.stderr.readline() != "round 2 of 1000 is done\n":
            self.assertIsNone(job.poll())
        job.send_signal(signal.SIGINT)
        out, error = job.communicate(timeout=60)
        self.assertEqual(job.returncode, 128 + signal.SIGINT, error)
        rows = re.findall(r"^(single|optimal) .* (\w{8})$", out, re.MULTILINE)
        self.assertEqual([name for name, _ in rows], ["single", "optimal"], out)
        self.assertEqual(rows[0][1], rows[1][1])

    def refused(self, *args):
        done = train(*args, "-n", "1", check=False)
        self.assertEqual(done.returncode, 2, done)
        self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
        return done.stderr

    def test_workers_say_once_what_is_wrong(self):
        done = train("lenet5", "-n", "3", "--data", str(self.folder), check=False)
        self.assertEqual(done.returncode, 2, done)
        said, = done.stderr.splitlines()
        self.assertIn("train-images", said)
        done = train("lenet5", "-n", "3", "--compare", "--policy", "best", check=False)
        self.assertEqual((done.returncode, len(done.stderr.splitlines())), (2, 1), done)

    def test_diverged_weights_are_not_saved(self):
        path = self.folder / "checkpoint"
        done = train("lenet5", "-n", "2", "--batch", "4", "--rate", "1e9", "--warmup", "0", "--steps", "50",
                     "--checkpoint", path, "--checkpoint-steps", "1", check=False)
        self.assertEqual(done.returncode, 2, done)
        self.assertIn("not finite", done.stderr)
        if path.exists():
            self.assertTrue(all(map(math.isfinite, numbers(path))))

    def test_a_checkpoint_that_cannot_be(self):
        """With a checksum that is right."""
        path = self.folder / "checkpoint"
        train("lenet5", "-n", "1", "--batch", "4", "--steps", "1", "--checkpoint", path)
        whole = path.read_bytes()[:-4]
        for samples in (60001, 2**64 - 1):
            data = re.sub(rb"\nsamples \d+\n", b"\nsamples %d\n" % samples, whole)
            path.write_bytes(data + zlib.crc32(data).to_bytes(4, "little"))
            self.assertIn("'samples': the data has only 60000 images",
                          self.refused("lenet5", "--batch", "4", "--steps", "1", "--resume", str(path)))

    def test_the_environment_does_not_say_more_than_options(self):
        environment = {**os.environ, "MGWFBP_WIRE": "bf16", "MGWFBP_DEVICE": "cuda"}
        args = ("lenet5", "-n", "2", "--batch", "4", "--steps", "3")
        self.assertEqual(weights(*args), weights(*args, "--precision", "f32", env=environment))
        self.assertNotEqual(weights(*args), weights(*args, env=environment))

    def test_bad_data_is_refused(self):
        self.assertIn("train-images", self.refused("lenet5", "--data", str(self.folder)))
        for file in FASHION.iterdir():
            shutil.copy(file, self.folder)
        images = self.folder / "train-images-idx3-ubyte.gz"
        whole = images.read_bytes()
        images.write_bytes(whole[:100000])
        self.assertIn("train-images", self.refused("lenet5", "--data", str(self.folder)))
        images.write_bytes(whole[:50000] + b"damaged" + whole[50007:])
        self.assertIn("train-images", self.refused("lenet5", "--data", str(self.folder)))
        images.write_bytes(gzip.compress(b"\0\0\x08\x03" + bytes(12)))
        self.assertIn("the file has no data", self.refused("lenet5", "--data", str(self.folder)))

    def test_bad_usage_is_refused(self):
        other = self.folder / "other"
        train("lenet5", "-n", "1", "--batch", "4", "--steps", "1", "--checkpoint", other)
        for args, words in (
                (("lenet6",), "choose one of lenet5, resnet20"),
                (("lenet5", "--batch", "0"), "--batch"),
                (("lenet5", "--batch", "2.5"), "--batch"),
                (("lenet5", "--batch", "-5"), "--batch"),
                (("lenet5", "--batch", "nan"), "--batch"),
                (("lenet5", "--batch", "1e300"), "--batch"),
                (("lenet5", "--data", "synthetic", "--augment"), "--augment"),
                (("lenet5", "--checkpoint-steps", "5"), "--checkpoint FILE"),
                (("lenet5", "--compare", "--checkpoint-steps", "5"), "--checkpoint FILE"),
                (("lenet5", "--resume", str(other), "--seed", "2"), "--seed"),
                (("lenet5", "--steps", "5", "--batch", "4", "--chrome-trace", "x"), "first plan comes after step 5"),
                (("lenet5", "--batch", "60001"), "only 60000 images"),
                (("lenet5", "--momentum", "1.5"), "--momentum"),
                (("lenet5", "--optimizer", "adam"), "sgd or adamw"),
                (("lenet5", "--optimizer", "adamw", "--momentum", "0.5"), "--momentum: only with --optimizer sgd"),
                (("lenet5", "--betas", "0.9,0.99"), "--betas: only with --optimizer adamw"),
                (("lenet5", "--epsilon", "1e-8"), "--epsilon: only with --optimizer adamw"),
                (("lenet5", "--optimizer", "adamw", "--betas", "0.9"), "two numbers"),
                (("lenet5", "--optimizer", "adamw", "--betas", "0.9,1"), "two numbers"),
                (("lenet5", "--optimizer", "adamw", "--resume", str(other)),
                 "--optimizer sgd; it cannot be resumed with adamw"),
                (("lenet5", "--precision", "f8"), "f32 or bf16-comm"),
                (("lenet5", "--size", "64"), "--size"),
                (("lenet5", "--data", "synthetic", "--size", "4"), "too small"),
                (("lenet5", "--rounds", "2"), "--rounds"),
                (("lenet5", "--steps", "2", "--batch", "4", "--chrome-trace", "x"), "first plan comes after step 5"),
                (("lenet5", "--compare", "--checkpoint", "x"), "--checkpoint"),
                (("lenet5", "--policy", "best"), "best"),
                (("lenet5", "--cluster", "none-such"), "none-such"),
                (("lenet5", "--resume", str(self.folder / "none")), "none"),
                (("resnet20", "--resume", str(other)), "'model lenet5' where this model has 'model resnet20'"),
                (("lenet5", "--rate", "1e9", "--steps", "50", "--epochs", "1"), "the loss is not finite")):
            with self.subTest(args):
                self.assertIn(words, self.refused(*args))

    def test_trace_is_a_trace(self):
        path = self.folder / "trace.json"
        for model in (["resnet50"], ["--model", "resnet50"]):
            path.unlink(missing_ok=True)
            subprocess.run([MGWFBP, "trace", *model, "--batch", "1", "--size", "64", "--steps", "2", "-o", path],
                           check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            trace = json.loads(path.read_text())
            self.assertEqual((trace["model"], trace["batch"], len(trace["tensors"])), ("resnet50", 1, 161))
            compute_s = trace["forward_s"] + sum(tensor["backward_s"] for tensor in trace["tensors"])
            self.assertEqual(len(trace["steps_s"]), 2)
            self.assertGreater(min(trace["steps_s"]), 0)
            self.assertGreaterEqual(max(trace["steps_s"]), compute_s / 2)  # medians of both passes may be of two steps
        for model in ([], ["lenet5", "--model", "lenet5"], ["--model", "lenet6"]):
            done = subprocess.run([MGWFBP, "trace", *model], stderr=subprocess.PIPE, encoding="utf-8")
            self.assertEqual((done.returncode, done.stderr.count("\n")), (2, 1), done.stderr)
        self.assertTrue(all(t["backward_s"] >= 0 for t in trace["tensors"]))
        starts = {t["name"]: t["forward_start_s"] for t in trace["tensors"]}
        self.assertLess(starts["conv1.weight"], starts["fc.weight"])
        self.assertLess(starts["fc.weight"], trace["forward_s"])
        subprocess.run([MGWFBP, "plan", path, "paper-2-10gbe"], check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    unittest.main()
