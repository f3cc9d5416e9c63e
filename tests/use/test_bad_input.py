"""Bad input and failures: the command reports the error once and clearly, and leaves nothing half-written."""

import json
import os
import resource
import shutil
import signal
import subprocess
import tempfile
import unittest
from pathlib import Path

from folder import RESNET, Folder, small_cluster, small_trace
from support import BUILD, MGWFBP, run


class BadInput(Folder):
    def test_traces(self):
        good = small_trace()
        cluster = self.file("c.json", small_cluster())

        def tensors(**changes):
            return small_trace(tensors=[dict(good["tensors"][0], **changes)])

        cases = [
            ("{", "t.json:1"), ("", "empty"), ("[1, 2]", "'{' expected"),
            (json.dumps(good)[:-20], "t.json:1"),
            ("\x00\x01\xff", "t.json"),
            (small_trace(format="mgwfbp-trace-9"), "format"),
            ({k: v for k, v in good.items() if k != "forward_s"}, "forward_s"),
            (small_trace(forward_s="fast"), "forward_s"),
            (small_trace(forward_s=-1), "forward_s"),
            (json.dumps(small_trace(forward_s=float("nan"))), "t.json:1"),
            (json.dumps(small_trace(forward_s=float("inf"))), "t.json:1"),
            (small_trace(gradient_dtype="f8"), "gradient_dtype"),
            (small_trace(tensors=[]), "tensors"),
            (small_trace(tensors={}), "tensors"),
            (small_trace(tensors=good["tensors"] + good["tensors"][:1]), "tensors[3].name"),
            (tensors(count=-1), "tensors[0].count"), (tensors(count=1.5), "tensors[0].count"),
            (tensors(count=2**63 - 1), "tensors[0].count"),
            (tensors(backward_s=-0.1), "tensors[0].backward_s"),
            (tensors(backward_s=None), "tensors[0].backward_s"),
            (tensors(name=7), "tensors[0].name"),
            (tensors(forward_start_s=-1), "tensors[0].forward_start_s"),
        ]
        for content, field in cases:
            path = self.file("t.json", content)
            out = self.folder / "out.json"
            self.refused(run("plan", path, cluster, "-o", out), path, field)
            self.assertFalse(out.exists())

    def test_clusters(self):
        trace = self.file("t.json", small_trace())
        link = {"alpha_s": 1e-5, "beta_s_per_byte": 1e-9, "gamma_s_per_byte": 0}
        bare = {k: v for k, v in small_cluster().items() if k != "cost"}
        cases = [
            (small_cluster(workers=0), "workers"), (small_cluster(workers=1), "workers"),
            (small_cluster(workers=2.5), "workers"), (small_cluster(cost={"a_s": 1}), "cost"),
            (small_cluster(cost={"a_s": -1, "b_s_per_byte": 0}), "cost.a_s"), (bare, "cost"),
            (dict(bare, link=link), "algorithm"),
            (dict(bare, link=link, algorithm="magic"), "algorithm"),
            (dict(bare, link=link, algorithm="recursive-doubling", workers=6), "workers"),
            (dict(bare, samples=[]), "samples"),
            (dict(bare, samples=[{"bytes": 1, "seconds": 0}]), "samples[0].seconds"),
        ]
        for content, field in cases:
            path = self.file("c.json", content)
            self.refused(run("plan", trace, path), path, field)

    def test_times_without_end(self):
        """One message can be timed, more cannot: no comparison with those."""
        path = self.file("c.json", small_cluster(cost={"a_s": 1e308, "b_s_per_byte": 0}))
        done = run("plan", RESNET, path)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("single", done.stdout)

    def test_a_folder_does_not_hide_what_is_built_in(self):
        Path(self.folder, "paper-2-10gbe").mkdir()
        Path(self.folder, "other").mkdir()
        self.assertEqual(run("plan", RESNET, "paper-2-10gbe", cwd=self.folder).returncode, 0)
        self.assertIn("directory", run("plan", RESNET, "other", cwd=self.folder).stderr)

    def test_show_names_the_line(self):
        path = Path(self.folder, "t.json")
        path.write_text('{"model": "x",\n,"format": "mgwfbp-trace-1"}')
        self.assertIn("t.json:2:", run("show", path).stderr)

    def test_commands_for_terminals_in_names(self):
        path = self.file("t.json", small_trace(model="\u009b2J\x7fname"))
        self.assertIn("??2J?name", run("show", path).stdout)

    def test_usage(self):
        link = "paper-1-10gbe-link"
        cases = [
            (["plan"], "TRACE CLUSTER"), (["plan", RESNET], "TRACE CLUSTER"),
            (["plan", RESNET, link, "more"], "more"), (["plan", RESNET, link, "--what"], "--what"),
            (["plan", RESNET, link, "--policy"], "--policy"),
            (["plan", RESNET, link, "--policy", "best"], "best"),
            (["plan", RESNET, link, "-qZ"], "'-q'"),
            (["plan", RESNET, link, "-o", "a", "-o", "b"], "--output' is given twice"),
            (["plan", RESNET, link, "--policy", "threshold:x"], "'x'"),
            (["plan", RESNET, link, "--workers", "0"], "--workers"),
            (["plan", RESNET, link, "--workers", "1"], "--workers"),
            (["plan", RESNET, link, "--workers", "many"], "--workers"),
            (["plan", RESNET, link, "--workers", "-4"], "--workers"),
            (["plan", RESNET, link, "--workers", "8x"], "--workers"),
            (["plan", RESNET, link, "--workers", "99999999999999999999"], "--workers"),
            (["plan", RESNET, link, "--workers", "12", "--algorithm", "binary-tree"],
             "power of two"),
            (["plan", RESNET, "paper-2-10gbe", "--workers", "32"], "16 workers"),
            (["plan", RESNET, link, "--scale-compute", "0"], "--scale-compute"),
            (["plan", RESNET, link, "--wire", "int8"], "--wire: unknown wire format 'int8'"),
            (["plan", RESNET, link, "--scale-compute", "nan"], "--scale-compute"),
            (["plan", RESNET, link, "--scale-compute", "1,5"], "--scale-compute"),
            (["simulate", RESNET, link, "--workers", "4:100"], "powers of two"),
            (["simulate", RESNET, link, "--workers", "64:4"], "powers of two"),
            (["simulate", RESNET, link, "--workers", "4,,8"], "--workers"),
            (["simulate", RESNET, link, "--algorithm", "ring,star"], "star"),
            (["simulate", RESNET, "paper-2-10gbe", "--workers", "4:64"], "16 workers"),
            (["plan", "no-such-model", link], "no-such-model"),
            (["plan", RESNET, "no-such-cluster"], "no-such-cluster"),
            (["plan", link, link], "a trace is expected"), (["show", "/etc/hostname"], "not a JSON object"),
            (["plan", self.folder, link], self.folder), (["list", "things"], "things"),
            (["fit", "/no/such/file"], "/no/such/file"), (["dance"], "dance"),
        ]
        for arguments, part in cases:
            self.refused(run(*arguments), part)

    def test_unreadable_file(self):
        path = self.file("secret.json", small_trace())
        path.chmod(0)
        self.folder.chmod(0o755)
        # Root reads everything, so nobody tries; it needs a command where it may go.
        with tempfile.TemporaryDirectory(dir="/tmp") as place:
            os.chmod(place, 0o755)
            for file in (MGWFBP, *BUILD.glob("src/libmgwfbp.so*")):
                shutil.copy(file, place)
            done = subprocess.run(
                [f"{place}/mgwfbp", "plan", path, "paper-2-10gbe"], stdout=subprocess.PIPE,
                stderr=subprocess.PIPE, encoding="utf-8", env={"LD_LIBRARY_PATH": place},
                user=65534 if os.getuid() == 0 else None)
        self.refused(done, path, "Permission denied")

    def test_odd_places(self):
        plan = ("plan", RESNET, "paper-2-10gbe")
        out = self.folder / "out"
        with open(out, "w") as file:  # /dev/stdout is then a regular file
            subprocess.run([MGWFBP, *plan, "-o", "/dev/stdout"], stdout=file, check=True,
                           stderr=subprocess.DEVNULL)
        self.assertIn("mgwfbp-plan-2", out.read_text())
        self.assertIn("lower bound", out.read_text())
        name = self.folder / ("n" * 250)
        self.assertEqual(run(*plan, "-o", name).returncode, 0)
        self.assertEqual(json.loads(name.read_text())["policy"], "optimal")

    def test_links(self):
        """What a link points to is written, whether it is there or not; the link stays one."""
        plan = ("plan", RESNET, "paper-2-10gbe")
        (self.folder / "there").mkdir()
        target, link, second = self.folder / "there" / "plan.json", self.folder / "a", self.folder / "b"
        link.symlink_to(Path("there") / "plan.json")
        second.symlink_to("a")
        for _ in range(2):
            self.assertEqual(run(*plan, "-o", second).returncode, 0)
            self.assertTrue(link.is_symlink() and second.is_symlink())
            self.assertEqual(json.loads(target.read_text())["policy"], "optimal")
            self.assertEqual(os.listdir(self.folder / "there"), ["plan.json"])
        nowhere = self.folder / "nowhere"
        nowhere.symlink_to(Path("not") / "there" / "plan.json")
        self.refused(run(*plan, "-o", nowhere), nowhere, "No such file")
        self.assertTrue(nowhere.is_symlink())
        loop = self.folder / "loop"
        loop.symlink_to("loop")
        self.refused(run(*plan, "-o", loop), loop)
        self.assertTrue(loop.is_symlink())

    def test_input_without_end(self):
        """It is refused before it has taken all memory."""
        def limit():
            resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))

        done = subprocess.run([MGWFBP, "show", "/dev/zero"], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, encoding="utf-8",
                              preexec_fn=limit if "asan" not in BUILD.name else None)
        self.refused(done, "/dev/zero", "too large")
        path = self.folder / "holes.json"
        path.touch()
        os.truncate(path, (1 << 30) + 1)
        self.refused(run("show", path), path, "too large")

    def test_a_small_stack(self):
        commands = [("plan", RESNET, "paper-2-10gbe"), ("advise", RESNET, "paper-2-10gbe"),
                    ("trace", "lenet5", "-s", "1"),
                    ("replay", self.file("t.json", small_trace()), "-n", "2", "--steps", "2",
                     "--scale-compute", "1e-6")]
        if run(*commands[2]).returncode:  # built without oneDNN
            del commands[2]
        for command in commands:
            done = subprocess.run([MGWFBP, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                  preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_STACK, (32768, 32768)))
            self.assertEqual(done.returncode, 0, (command, done.stderr))

    def test_tiny_times(self):
        """Times near the smallest number are drawn without harm."""
        for tiny in (1e-310, 5e-324, 1e-290):
            plan = {"format": "mgwfbp-plan-1", "policy": "p", "model": "m", "cluster": "c",
                    "workers": 2, "messages": [{"tensors": ["a"], "bytes": 4, "start_s": 0,
                                                "end_s": tiny}],
                    "compute_s": 0, "iteration_s": tiny, "exposed_s": tiny, "lower_bound_s": tiny}
            path, svg = self.file("p.json", plan), self.folder / "p.svg"
            done = run("show", path, "--svg", svg, "--chrome-trace", self.folder / "c.json")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertNotRegex(svg.read_text(), r"\b(nan|inf)\b")

    def test_endless_samples(self):
        for seconds in (1e308, 1e-300):
            cluster = self.file("c.json", {
                "format": "mgwfbp-cluster-1", "name": "c", "workers": 2, "samples": [
                    {"bytes": 8, "seconds": seconds}, {"bytes": 8, "seconds": seconds},
                    {"bytes": 16, "seconds": seconds}]})
            self.refused(run("show", cluster), cluster, "between 1e-15")

    def test_byte_order_mark(self):
        path = self.folder / "t.json"
        path.write_text(json.dumps(small_trace()), encoding="utf-8-sig")
        self.assertEqual(run("show", path).returncode, 0)

    def test_output_that_cannot_be_written(self):
        plan = ("plan", RESNET, "paper-2-10gbe")
        self.refused(run(*plan, "-o", "/dev/full"), "/dev/full", "No space left")
        self.refused(run(*plan, "-o", self.folder), self.folder)
        self.refused(run(*plan, "-o", self.folder / "no" / "plan.json"), "no/plan.json")
        self.refused(run("show", RESNET, "--svg", "/dev/full"), "/dev/full")
        with open("/dev/full", "w") as full:
            done = subprocess.run([MGWFBP, *plan], stdout=full, stderr=subprocess.PIPE)
        self.assertEqual(done.returncode, 2)
        self.assertIn(b"standard output", done.stderr)

    def test_full_disk(self):
        """The old plan stays whole, and nothing half-written stays behind."""
        path = self.file("plan.json", "old")

        def limit():  # fails in the middle of the file, as a full disk does
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))

        done = subprocess.run([MGWFBP, "plan", RESNET, "paper-2-10gbe", "-o", path],
                              preexec_fn=limit, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              encoding="utf-8")
        self.refused(done, path)
        self.assertEqual(path.read_text(), "old")
        self.assertEqual(os.listdir(self.folder), ["plan.json"])

    def test_a_server_that_cannot_say_where_it_is(self):
        with open("/dev/full", "wb") as full:
            done = subprocess.run([MGWFBP, "serve", "--port", "0"], stdout=full, stderr=subprocess.PIPE,
                                  encoding="utf-8", timeout=60)
        self.assertEqual((done.returncode, done.stderr),
                         (2, "mgwfbp serve: standard output: No space left on device\n"))

    def test_full_file_system(self):
        """The same on a real file system of 16 KiB, where we may mount one."""
        mount = self.folder / "small"
        mount.mkdir()
        script = (f"mount -t tmpfs -o size=16k tmpfs {mount} && head -c 12K /dev/zero > {mount}/x "
                  f"&& ({MGWFBP} plan {RESNET} paper-2-10gbe -o {mount}/plan.json; echo $?; "
                  f"ls {mount})")
        done = subprocess.run(["unshare", "-m", "sh", "-c", script], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, encoding="utf-8")
        if done.returncode:
            self.skipTest("cannot mount here")
        self.assertEqual(done.stdout, "2\nx\n")
        self.assertIn("No space left", done.stderr)


if __name__ == "__main__":
    unittest.main()
