"""Jobs of several workers: the launcher, the engine's example, replay."""

import json
import os
import pty
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

from support import BUILD, MGWFBP, ROOT, run, run_json, workers


def launch(*arguments, workers=3):
    return run("launch", "-n", workers, "--", *arguments)


def python(code):
    return [sys.executable, "-c", code]


class Launch(unittest.TestCase):
    def test_environment_and_prefixes(self):
        names = ("MGWFBP_RANK", "MGWFBP_SIZE", "RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR",
                 "MASTER_PORT", "MGWFBP_JOB", "OMPI_MCA_mpi_yield_when_idle")
        done = launch(*python(f"import os; print(*[os.environ[n] for n in {names}])"))
        self.assertEqual(done.returncode, 0, done.stderr)
        lines = sorted(done.stdout.splitlines())
        self.assertEqual(len(lines), 3)
        for rank, line in enumerate(lines):
            words = line.split()
            self.assertEqual(words[:7], [f"[{rank}]", str(rank), "3", str(rank), str(rank), "3",
                                         "127.0.0.1"])
        self.assertEqual(len({tuple(line.split()[7:]) for line in lines}), 1)

    def test_queues_to_a_gpu(self):
        """Under MPS, workers share them; the environment decides."""
        def told(workers, **environment):
            show = python("import os; print(os.environ.get('CUDA_DEVICE_MAX_CONNECTIONS'))")
            kept = {name: value for name, value in os.environ.items() if name != "CUDA_DEVICE_MAX_CONNECTIONS"}
            done = run("launch", "-n", workers, "--", *show, environment={**kept, **environment})
            found = {line.split()[1] for line in done.stdout.splitlines()}
            self.assertEqual(len(found), 1, done)
            return found.pop()

        with tempfile.TemporaryDirectory(prefix="mgwfbp-mps-") as folder:
            self.assertEqual(told(4, CUDA_MPS_PIPE_DIRECTORY=folder), "32")
            Path(folder, "control").touch()
            shared = [told(workers, CUDA_MPS_PIPE_DIRECTORY=folder) for workers in (1, 2, 4, 16, 17)]
            self.assertEqual(shared, ["32", "32", "16", "4", "None"])
            self.assertEqual(told(2, CUDA_MPS_PIPE_DIRECTORY=folder, CUDA_DEVICE_MAX_CONNECTIONS="1"), "1")

    def test_output_is_whole(self):
        """Long lines, no line end, much of it: every byte arrives, lines do not mix."""
        for length, count in ((999, 300), (100000, 5)):
            done = launch(*python(f"import sys; sys.stdout.write(('x' * {length} + '\\n') * {count} + 'end')"))
            lines = done.stdout.splitlines()
            self.assertEqual(len(lines), 3 * (count + 1))
            self.assertEqual({line[4:] for line in lines}, {"x" * length, "end"})

    def test_a_line_without_end_is_cut(self):
        length = 3 << 20
        done = launch(*python(f"print('x' * {length}, end='')"), workers=1)
        self.assertEqual(sum(line.count("x") for line in done.stdout.splitlines()), length)

    def test_output_that_is_lost_is_a_failure(self):
        with open("/dev/full", "w") as full:
            lost = subprocess.run([MGWFBP, "launch", "-n", "2", "echo", "hi"], stdout=full, stderr=subprocess.PIPE,
                                  timeout=60, encoding="utf-8")
        self.assertEqual(lost.returncode, 2)
        self.assertIn("output of workers was lost: No space left", lost.stderr)
        unread = subprocess.run(f"'{MGWFBP}' launch -n 2 sh -c 'sleep 0.5; echo hi' | true; exit ${{PIPESTATUS[0]}}",
                                shell=True, executable="/bin/bash", timeout=60)
        self.assertEqual(unread.returncode, 0)  # who does not read ends nothing

    def test_first_failure_counts(self):
        code = ("import os, sys, time\n"
                "if os.environ['RANK'] == '1': sys.exit(7)\n"
                "time.sleep(60)")
        begun = time.monotonic()
        done = launch(*python(code))
        self.assertEqual(done.returncode, 7)
        self.assertIn("rank 1 ended with exit status 7", done.stderr)
        self.assertLess(time.monotonic() - begun, 30)

    def test_killed_worker(self):
        code = ("import os, time\n"
                "if os.environ['RANK'] == '2': os.kill(os.getpid(), 9)\n"
                "time.sleep(60)")
        done = launch(*python(code))
        self.assertEqual(done.returncode, 128 + 9)
        self.assertIn("rank 2 was killed by signal 9", done.stderr)

    def test_those_who_ignore_the_end_are_killed(self):
        code = ("import os, signal, sys, time\n"
                "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
                "if os.environ['RANK'] == '0': sys.exit(1)\n"
                "time.sleep(100)")
        begun = time.monotonic()
        self.assertEqual(launch(*python(code)).returncode, 1)
        self.assertLess(time.monotonic() - begun, 60)

    def test_signals_are_passed_on(self):
        code = ("import signal, sys, time\n"
                "signal.signal(signal.SIGINT, lambda *a: sys.exit(5))\n"
                "print('here', flush=True)\n"
                "time.sleep(60)")
        job = subprocess.Popen([MGWFBP, "launch", "-n", "2", "--", *python(code)],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8")
        self.assertIn("here", job.stdout.readline())
        self.assertIn("here", job.stdout.readline())
        job.send_signal(signal.SIGINT)
        job.communicate(timeout=60)
        self.assertEqual(job.returncode, 5)

    def test_no_worker_outlives_a_killed_launcher(self):
        code = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
        job = subprocess.Popen([MGWFBP, "launch", "-n", "2", "--", *python(code)],
                               stdout=subprocess.PIPE, encoding="utf-8")
        pids = [int(job.stdout.readline().split()[1]) for _ in range(2)]
        job.kill()
        job.communicate()
        for _ in range(200):
            if not any(alive(pid) for pid in pids):
                return
            time.sleep(0.1)
        self.fail("a worker is still there")

    def test_output_appears_when_it_is_written(self):
        """And is there when the worker is killed behind it: nothing waits in its buffer."""
        code = "import os; print('before the end'); os.kill(os.getpid(), 9)"
        done = launch(*python(code), workers=2)
        self.assertEqual(done.returncode, 128 + 9)
        self.assertIn("before the end", done.stdout)

    def test_a_grandchild_that_writes_for_ever(self):
        begun = time.monotonic()
        done = launch("sh", "-c", "yes & exit 1", workers=2)
        self.assertEqual(done.returncode, 1)
        self.assertLess(time.monotonic() - begun, 20)

    def test_signals_while_nobody_reads(self):
        for number in (signal.SIGTERM, signal.SIGINT):
            job = subprocess.Popen([MGWFBP, "launch", "-n", "2", "yes"], stdout=subprocess.PIPE,
                                   stderr=subprocess.DEVNULL, start_new_session=True)
            time.sleep(0.5)  # the pipe is full, and so is everything before it
            begun = time.monotonic()
            job.send_signal(number)
            self.assertEqual(job.wait(30), 128 + number)
            self.assertLess(time.monotonic() - begun, 10)
            job.stdout.close()

    def test_signals_while_a_terminal_is_stopped(self):
        here, there = pty.openpty()
        job = subprocess.Popen([MGWFBP, "launch", "-n", "2", "yes"], stdout=there, stderr=subprocess.DEVNULL,
                               start_new_session=True)
        os.close(there)
        time.sleep(0.5)  # nobody reads: it has room, but not for all that is ready to be written
        begun = time.monotonic()
        job.terminate()
        self.assertEqual(job.wait(30), 128 + signal.SIGTERM)
        self.assertLess(time.monotonic() - begun, 10)
        os.close(here)

    def test_children_of_the_shell_are_not_ended(self):
        script = f"exec '{MGWFBP}' launch -n 1 echo hello > >(sleep 1; cat; echo whole)"
        done = subprocess.run(["bash", "-c", script], stdout=subprocess.PIPE, encoding="utf-8", timeout=30)
        self.assertEqual((done.returncode, done.stdout), (0, "[0] hello\nwhole\n"))

    def test_files_are_looked_at_where_they_are_written(self):
        for rank, said in (("0", "cannot write"), ("1", "rank 0")):
            done = subprocess.run([MGWFBP, "calibrate", "-o", "/none/at/all.json"], stderr=subprocess.PIPE,
                                  encoding="utf-8", timeout=60,
                                  env=dict(os.environ, MGWFBP_JOB=f"outputs-{os.getpid()}", MGWFBP_RANK=rank,
                                           MGWFBP_SIZE="2", MGWFBP_TIMEOUT="0.5"))
            self.assertEqual(done.returncode, 2)
            self.assertIn(said, done.stderr)

    def grandchildren(self, how):
        """A worker's children, one of them in a session of its own, when the launcher gets a signal."""
        code = ("import subprocess, time\n"
                "for session in (False, True):\n"
                "    print(subprocess.Popen(['sleep', '100'], start_new_session=session).pid, flush=True)\n"
                "time.sleep(100)")
        job = subprocess.Popen([MGWFBP, "launch", "-n", "2", "--", *python(code)], stdout=subprocess.PIPE,
                               stderr=subprocess.DEVNULL, encoding="utf-8")
        pids = [int(job.stdout.readline().split()[1]) for _ in range(4)]
        how(job)
        job.stdout.read()
        job.wait(30)
        job.stdout.close()
        end = time.monotonic() + 20
        while any(alive(pid) for pid in pids) and time.monotonic() < end:
            time.sleep(0.05)
        self.assertEqual([pid for pid in pids if alive(pid)], [])
        return job.returncode

    def test_no_grandchild_outlives_the_launcher(self):
        self.assertEqual(self.grandchildren(lambda job: job.terminate()), 128 + 15)
        self.assertEqual(self.grandchildren(lambda job: job.kill()), -9)

    def test_no_grandchild_outlives_the_process_between(self):
        def kill_keeper(job):
            for child in Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split():
                os.kill(int(child), signal.SIGKILL)
        self.assertEqual(self.grandchildren(kill_keeper), 128 + 9)

    def test_a_stopped_rank_hears_that_it_is_over(self):
        code = ("import os, signal, sys\n"
                "if os.environ['RANK'] == '1': sys.exit(3)\n"
                "os.kill(os.getpid(), signal.SIGSTOP)")
        begun = time.monotonic()
        self.assertEqual(launch(*python(code), workers=2).returncode, 3)
        self.assertLess(time.monotonic() - begun, 6)  # not 7 s more, for who does not answer

    def test_a_network_for_any_program(self):
        done = run("launch", "-n", 2, "--network", "1e-3,1e-9", "sh", "-c", "echo $MGWFBP_TRANSPORT")
        self.assertIn("[1] emulated:0.001,", done.stdout)
        done = run("launch", "-n", 2, "--cluster", "paper-2-10gbe", BUILD / "bin" / "example_engine")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("2 workers", done.stdout)
        refused = run("launch", "--network", "1e-3,1e-9", "--transport", "shm", "true")
        self.assertEqual(refused.returncode, 2)
        self.assertIn("--transport", refused.stderr)

    def test_errors(self):
        done = launch("/no/such/program")
        self.assertEqual(done.returncode, 127)
        self.assertIn("cannot run /no/such/program", done.stderr)
        self.assertEqual(run("launch", "-n", "0", "true").returncode, 2)
        self.assertEqual(run("launch", "-n", "x", "true").returncode, 2)
        self.assertEqual(run("launch").returncode, 2)

    def test_options_of_the_program(self):
        done = run("launch", "-n", 1, "echo", "-n", "--workers", "5")
        self.assertEqual(done.stdout, "[0] --workers 5\n")


class Restarts(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="mgwfbp-restarts-")
        self.addCleanup(folder.cleanup)
        self.notes = Path(folder.name) / "notes"

    def start(self, code, *options):
        """Each worker notes its start: how often the job was restarted, with how many workers."""
        note = f"import os\nopen('{self.notes}', 'a').write('{{MGWFBP_RESTART}} {{SIZE}}\\n'.format(" \
               "SIZE=os.environ['WORLD_SIZE'], **os.environ))\n"
        return [MGWFBP, "launch", *map(str, options), "--", *python(note + code)]

    def launch(self, code, *options):
        return subprocess.run(self.start(code, *options), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              encoding="utf-8", timeout=60)

    def noted(self):
        return sorted(set(self.notes.read_text().splitlines()))

    def test_until_it_works(self):
        done = self.launch("import sys, time\n"
                           "if int(os.environ['MGWFBP_RESTART']) < 2: sys.exit(9) if os.environ['RANK'] == '1' "
                           "else time.sleep(0.2)", "-n", 2, "--restarts", 3, "--backoff", 0.1)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.noted(), ["0 2", "1 2", "2 2"])
        self.assertIn("restart 1 in 0.1 s", done.stderr)
        self.assertIn("restart 2 in 0.2 s", done.stderr)
        self.assertIn("rank 1 ended with exit status 9", done.stderr)

    def test_no_more_than_that(self):
        done = self.launch("os.kill(os.getpid(), 9)", "-n", 1, "--restarts", 2, "--backoff", 0.01)
        self.assertEqual(done.returncode, 128 + 9)
        self.assertEqual(self.noted(), ["0 1", "1 1", "2 1"])
        self.assertIn("2 restarts within an hour were not enough", done.stderr)

    def test_what_ends_well_or_is_told_to_end_does_not_start_again(self):
        self.assertEqual(self.launch("", "-n", 2, "--restarts", 2).returncode, 0)
        self.assertEqual(self.noted(), ["0 2"])
        job = subprocess.Popen(self.start("import time; print('here', flush=True); time.sleep(60)", "-n", 1,
                                          "--restarts", 2), stdout=subprocess.PIPE, encoding="utf-8")
        self.assertIn("here", job.stdout.readline())
        job.terminate()
        job.communicate(timeout=30)
        self.assertEqual(job.returncode, 128 + 15)
        self.assertEqual(self.noted(), ["0 1", "0 2"])

    def test_a_signal_ends_the_pause(self):
        job = subprocess.Popen(self.start("os._exit(1)", "-n", 1, "--restarts", 2, "--backoff", 50),
                               stderr=subprocess.PIPE, encoding="utf-8")
        while "restart 1 in" not in job.stderr.readline():
            continue
        job.terminate()
        self.assertEqual(job.wait(20), 1)
        job.stderr.close()

    def test_smaller_and_larger_again(self):
        """Two are lost at once; SIGUSR1 says that they are back."""
        code = ("import sys, time, signal\n"
                "signal.signal(signal.SIGTERM, lambda *a: sys.exit(143))\n"
                "if os.environ['MGWFBP_RESTART'] == '0' and int(os.environ['RANK']) > 1: os.kill(os.getpid(), 9)\n"
                "if os.environ['MGWFBP_RESTART'] == '2': sys.exit(0)\n"
                "print('here', flush=True); time.sleep(60)")
        job = subprocess.Popen(self.start(code, "--elastic", "1:4", "--backoff", 0.1), stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, encoding="utf-8")
        while "restart 1 in" not in job.stderr.readline():
            continue
        while self.noted() != ["0 4", "1 2"]:
            time.sleep(0.05)
        time.sleep(0.3)  # until they listen
        job.send_signal(signal.SIGUSR1)
        out, err = job.communicate(timeout=60)
        self.assertEqual(job.returncode, 0, err)
        self.assertIn("from 2 workers to 4", err)
        self.assertEqual(self.noted(), ["0 4", "1 2", "2 4"])

    def test_errors(self):
        for options, said in ((("--elastic", "3:2"), "MIN:MAX"), (("--elastic", "4"), "MIN:MAX"),
                              (("--elastic", "1:3", "-n", "2"), "starts with MAX (3)"), (("--regrow", "3"), "--elastic"),
                              (("--backoff", "3"), "--restarts"), (("--restarts", "x"), "--restarts")):
            done = run("launch", *options, "true")
            self.assertEqual(done.returncode, 2, options)
            self.assertIn(said, done.stderr)


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] not in "ZX"
    except OSError:
        return False


class Engine(unittest.TestCase):
    EXAMPLE = BUILD / "bin" / "example_engine"

    def test_example(self):
        for workers, average in ((1, "0"), (2, "0.5"), (4, "1.5")):
            done = launch(self.EXAMPLE, workers=workers)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn(f"{workers} workers: the first average is {average};", done.stdout)

    def test_alone(self):
        done = subprocess.run([self.EXAMPLE], stdout=subprocess.PIPE, encoding="utf-8", timeout=60)
        self.assertIn("1 workers", done.stdout)

    def test_mpi_that_is_not_there(self):
        """A build without MPI says what is missing."""
        linked = subprocess.run(["ldd", BUILD / "src" / "libmgwfbp.so"], stdout=subprocess.PIPE,
                                encoding="utf-8").stdout
        if "libmpi" in linked:
            self.skipTest("this build has MPI")
        done = subprocess.run([self.EXAMPLE], stderr=subprocess.PIPE, encoding="utf-8", timeout=60,
                              env=dict(os.environ, MGWFBP_TRANSPORT="mpi"))
        self.assertEqual(done.returncode, 1)
        self.assertIn("libopenmpi-dev or libmpich-dev", done.stderr)

    def test_a_cluster_that_differs(self):
        """The same name, on two hosts, of two files."""
        with tempfile.TemporaryDirectory() as folder:
            for rank in range(2):
                host = Path(folder) / str(rank)
                host.mkdir()
                (host / "csv").write_text(f"bytes,seconds\n1000,0.001\n1000000,0.00{2 + rank}\n")
                self.assertEqual(run("fit", host / "csv", "--workers", 2, "-o", host / "here.json").returncode, 0)
            done = launch("sh", "-c", f"cd {folder}/$RANK; MGWFBP_CLUSTER=here.json exec {self.EXAMPLE}", workers=2)
        self.assertEqual(done.returncode, 1, done)
        self.assertIn("rank 1 has a different cluster than rank 0 in 'here.json'", done.stderr)

    def test_environment_is_checked(self):
        done = subprocess.run([self.EXAMPLE], stderr=subprocess.PIPE, encoding="utf-8", timeout=60,
                              env=dict(os.environ, MGWFBP_POLICY="best"))
        self.assertEqual(done.returncode, 1)
        self.assertIn("unknown policy 'best'", done.stderr)

    def test_nothing_is_left_behind(self):
        """kill -9 of all workers and the launcher at random moments."""
        before = set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()
        for i in range(10):
            job = subprocess.Popen([MGWFBP, "launch", "-n", "3", "--transport", "emulated:1e-3,0",
                                    self.EXAMPLE], stdout=subprocess.DEVNULL,
                                   stderr=subprocess.DEVNULL, start_new_session=True)
            time.sleep(0.02 * i)
            os.killpg(job.pid, signal.SIGKILL)
            job.wait()
        after = set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()
        self.assertEqual({n for n in after - before if "mgwfbp" in n}, set())


class Kill(unittest.TestCase):
    def test_each_phase(self):
        """kill -9 of a worker while it joins, calibrates, ...: the others name it. docs/evidence/engine.md has more."""
        done = subprocess.run([ROOT / "bench" / "kill_workers", BUILD, "4"], stdout=subprocess.PIPE,
                              encoding="utf-8", timeout=500)
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertEqual(done.stdout.count(" 0 |"), 6, done.stdout)


class Suspend(unittest.TestCase):
    """A whole job that is stopped for longer than its timeout, and then continues."""

    # Barriers, one after the other: what goes over TCP are not gradients.
    MEET = ("import ctypes, sys, time\n"
            f"library = ctypes.CDLL('{BUILD}/src/libmgwfbp.so')\n"
            "options, transport, error = (ctypes.c_char * 512)(), ctypes.c_void_p(), (ctypes.c_char * 1024)()\n"
            "status = library.mgw_transport_open(options, ctypes.byref(transport), error)\n"
            "print('steady', flush=True)\n"
            "while not status:\n"
            "    status = library.mgw_transport_barrier(transport, error)\n"
            "    time.sleep(0.001)\n"
            "sys.exit(error[4:].split(b'\\0')[0].decode())")

    def suspend(self, program, transport, stop, go_on):
        environment = dict(os.environ, MGWFBP_TIMEOUT="2")
        job = subprocess.Popen([MGWFBP, "launch", "-n", "3", "--transport", transport, "--", *program],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8", env=environment,
                               start_new_session=True)
        try:
            for line in job.stdout:
                if "steady" in line:
                    break
            time.sleep(0.3)
            stop(job)
            time.sleep(3.5)
            go_on(job)
            time.sleep(0.7)
            self.assertIsNone(job.poll(), transport)
        finally:
            job.kill()
            error = job.communicate(timeout=30)[1]
        self.assertEqual(error, "")

    def test_over_shared_memory(self):
        """All at once; and one after the other, as a shell or a scheduler may do it."""
        steady = [BUILD / "bin" / "test_phases", "steady"]
        self.suspend(steady, "shm", self.all(signal.SIGSTOP), self.all(signal.SIGCONT))

        def each(number):
            return lambda job: [(os.kill(pid, number), time.sleep(0.05)) for pid in workers(job)]
        self.suspend(steady, "shm", each(signal.SIGSTOP), each(signal.SIGCONT))

    @staticmethod
    def all(number):
        return lambda job: os.killpg(job.pid, number)

    @unittest.skipIf("asan" in BUILD.name, "Python cannot load a library with a sanitizer")
    def test_over_tcp(self):
        self.suspend(python(self.MEET), "tcp", self.all(signal.SIGSTOP), self.all(signal.SIGCONT))

    def test_one_that_is_stopped_is_still_named(self):
        job = subprocess.Popen([MGWFBP, "launch", "-n", "3", BUILD / "bin" / "test_phases", "steady"],
                               stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, encoding="utf-8",
                               env=dict(os.environ, MGWFBP_TIMEOUT="2"))
        time.sleep(1)
        begun = time.monotonic()
        os.kill(workers(job)[1], signal.SIGSTOP)
        error = job.communicate(timeout=60)[1]
        self.assertIn("rank 1 did not come within 2 s", error)
        self.assertLess(time.monotonic() - begun, 15)


class Calibrate(unittest.TestCase):
    def test_emulated_network_is_found(self):
        with tempfile.TemporaryDirectory(prefix="mgwfbp-calibrate-") as folder:
            out, svg = Path(folder) / "c.json", Path(folder) / "c.svg"
            done = run("calibrate", "-n", 2, "--transport", "emulated:2e-3,4e-9", "--largest",
                       "2MiB", "-o", out, "--svg", svg, "--json")
            self.assertEqual(done.returncode, 0, done.stderr)
            cluster = json.loads(out.read_text())
            self.assertEqual(cluster, json.loads(done.stdout))
            self.assertEqual(cluster["workers"], 2)
            sizes = [sample["bytes"] for sample in cluster["samples"]]  # and more where noise made it bend
            self.assertLessEqual({1024 << k for k in range(12)}, set(sizes))
            self.assertEqual(sizes, sorted(sizes))
            self.assertTrue(all(sample["within"] >= 0 for sample in cluster["samples"]))
            self.assertEqual(list(cluster["collectives"]), ["reduce-scatter", "all-gather"])
            for sample in cluster["samples"]:  # at least; how much more is not for a test
                self.assertGreaterEqual(sample["seconds"], 2e-3 + 4e-9 * sample["bytes"])
            for kind in cluster["collectives"].values():
                self.assertEqual([s["bytes"] for s in kind["samples"]], [s["bytes"] for s in cluster["samples"]])
            described = run("show", out).stdout
            self.assertIn("reduce-scatter: fitted: T(M) = ", described)
            self.assertIn("all-gather: fitted: T(M) = ", described)
            self.assertIn("<svg", svg.read_text())
            self.assertEqual(run("plan", "resnet50-b32-fp32-h200", out).returncode, 0)
            fitted = run_json("fit", out)["cluster"]["collectives"]
            self.assertEqual({kind: list(v) for kind, v in fitted.items()},
                             {"reduce-scatter": ["cost"], "all-gather": ["cost"]})
            self.assertEqual(run_json("fit", out, "--as", "samples")["cluster"]["collectives"], cluster["collectives"])

    def test_the_largest_is_measured(self):
        done = run("calibrate", "-n", 2, "--largest", "5000", "--json")
        sizes = [sample["bytes"] for sample in json.loads(done.stdout)["samples"]]
        self.assertLessEqual({1024, 2048, 4096, 5000}, set(sizes))
        self.assertEqual((sizes[0], sizes[-1]), (1024, 5000))

    def test_errors(self):
        self.assertEqual(run("calibrate", "-n", 1).returncode, 2)
        self.assertEqual(run("calibrate", "--largest", "7B").returncode, 2)
        done = run("calibrate", "-n", 2, "--transport", "pigeon")
        self.assertEqual(done.returncode, 2)
        self.assertIn("unknown transport 'pigeon'", done.stderr)


class Replay(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="mgwfbp-replay-")
        self.addCleanup(folder.cleanup)
        self.trace = Path(folder.name) / "t.json"
        self.trace.write_text(json.dumps({
            "format": "mgwfbp-trace-1", "model": "small", "device": "none", "batch": 1,
            "precision": "fp32", "gradient_dtype": "f32", "forward_s": 0.002,
            "tensors": [{"name": f"t{i}", "count": 1000 * (i % 5), "backward_s": 0.0005}
                        for i in range(12)]}))

    def test_rows(self):
        done = run("replay", self.trace, "-n", 3, "--network", "1e-3,1e-9", "--steps", 2,
                   "--rounds", 2, "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        rows = {row["policy"]: row for row in json.loads(done.stdout)}
        self.assertEqual(len(rows), 8)
        for row in rows.values():
            self.assertEqual(row["workers"], 3)
            # The emulated network is a lower limit; how far above it is, is not for a test.
            self.assertGreater(row["measured_iteration_s"], 0.007)
            self.assertGreater(row["predicted_iteration_s"], 0.008)
            self.assertGreaterEqual(row["measured_compute_s"], 0.0079)
        self.assertEqual(rows["wfbp"]["messages"], 12)
        self.assertEqual(rows["single"]["messages"], 1)

    def test_a_measured_curve_is_emulated_as_it_is(self):
        samples = [(1000, 0.001), (10000, 0.015), (200000, 0.02)]  # which no line fits
        cluster = self.trace.with_name("c.json")
        cluster.write_text(json.dumps({"format": "mgwfbp-cluster-1", "name": "curve", "workers": 2, "samples": [
            {"bytes": size, "seconds": seconds} for size, seconds in samples]}))
        done = run("replay", self.trace, "-n", 2, "--cluster", cluster, "--steps", 1, "--rounds", 1, "--policy",
                   "single", "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        row, = json.loads(done.stdout)
        sent = 4 * sum(1000 * (i % 5) for i in range(12))
        sent_s = 0.015 + 0.005 * (sent - 10000) / 190000
        self.assertAlmostEqual(row["predicted_iteration_s"], 0.008 + sent_s, 9)
        self.assertGreaterEqual(row["measured_iteration_s"], 0.9999 * (0.008 + sent_s))
        self.assertGreaterEqual(row["measured_exposed_s"], 0.9 * sent_s)  # computation may end after the message begins

    def test_gradients_are_replayed_as_f32(self):
        trace = json.loads(self.trace.read_text())
        self.trace.write_text(json.dumps(dict(trace, gradient_dtype="bf16")))
        done = run("replay", self.trace, "-n", 2, "--network", "0,1e-6", "--steps", 1, "--rounds", 1, "--policy",
                   "single", "--json")
        row, = json.loads(done.stdout)
        self.assertAlmostEqual(row["predicted_exposed_s"], 4e-6 * sum(1000 * (i % 5) for i in range(12)), 9)

    def test_servers(self):
        done = run("replay", self.trace, "-n", 3, "--servers", 2, "--steps", 1, "--rounds", 1,
                   "--policy", "wfbp,optimal")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r"parameter server: push = |push: fitted: T")  # a line, or a curve that none fits
        self.assertIn("all averages were correct", done.stdout)

    def test_table_on_shared_memory_alone(self):
        done = run("replay", self.trace, "-n", 2, "--steps", 1, "--rounds", 1, "--policy",
                   "wfbp,optimal")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("all averages were correct", done.stdout)
        self.assertIn("optimal", done.stdout)

    def test_errors(self):
        for arguments, part in (
                (["--network", "1"], "--network"), (["--network", "1,x"], "--network"),
                (["--network", "1,1", "--cluster", "paper-2-10gbe"], "one of the two"),
                (["--policy", "best"], "best"), (["--steps", "0"], "--steps"),
                (["--steps", "1.5"], "--steps"), (["-n", "100"], "--workers")):
            done = run("replay", self.trace, *arguments)
            self.assertEqual(done.returncode, 2, arguments)
            self.assertIn(part, done.stderr)


if __name__ == "__main__":
    unittest.main()
