"""Typical use of a command line: misspelt names, swapped arguments, Ctrl-C, narrow terminals, closed pipes."""

import fcntl
import json
import os
import pty
import re
import shutil
import signal
import struct
import subprocess
import termios
import time
import unittest
from pathlib import Path

from folder import RESNET, Folder, small_cluster, small_trace
from support import MGWFBP, run, run_json

LINK = "paper-1-10gbe-link"
COMMANDS = re.findall(r"(?m)^  (\w+)  ", run("--help").stdout)
HAS_TRAIN = bool(run("list", "models", "--names").stdout)


def options_of(command):
    """Of the usage text: (letter or None, name, what it takes or None)."""
    text = run(command, "--help").stdout
    return re.findall(r"(?m)^  (?:-(\w), |    )--([a-z-]+)(?: ([A-Z]\S*))?", text)


class Names(Folder):
    """An unknown name: the nearest names are suggested."""

    def test_suggestions(self):
        cases = [
            (["plann"], "did you mean 'plan'?"), (["simulat"], "did you mean 'simulate'?"),
            (["help", "trian"], "did you mean 'train'"), (["plan", "--polcy", "x"], "did you mean '--policy'?"),
            (["plan", "--wokers=4"], "did you mean '--workers'?"),
            (["plan", "resnet50", LINK], f"did you mean 'resnet50-b32-amp-bf16-h200' or '{RESNET}'?"),
            (["show", "resnt50"], RESNET), (["plan", RESNET, "10gb"], "did you mean '10gbe'?"),
            (["plan", RESNET, "paper-2-10gb"], "did you mean 'paper-2-10gbe'?"),
            (["advise", RESNET, "nvlink5"], "did you mean 'nvlink3' or 'nvlink4'?"),
            (["plan", RESNET, LINK, "-p", "optiml"], "unknown policy 'optiml'; did you mean 'optimal'?"),
            (["plan", RESNET, LINK, "-p", "treshold:1MB"], "did you mean 'threshold'?"),
            (["plan", RESNET, LINK, "-a", "rings"], "did you mean 'ring'?"),
            (["plan", RESNET, LINK, "--nodes", "2", "--inside", "nvlnk4"], "did you mean 'nvlink4'?"),
            (["list", "trace"], "did you mean 'traces'?"),
        ]
        if HAS_TRAIN:
            cases += [(["train", "resnet18"], "unknown model 'resnet18'; choose one of lenet5, resnet20"),
                      (["trace", "resnet18"], "unknown model 'resnet18'; choose one of lenet5, resnet20")]
        for arguments, part in cases:
            self.refused(run(*arguments), part)

    def test_nothing_near(self):
        self.refused(run("dance"), "unknown command 'dance'; 'mgwfbp --help' lists all commands")
        self.refused(run("plan", RESNET, LINK, "--policy", "best"), "unknown policy 'best'; choose one of naive")
        self.refused(run("plan", "no-such-model", LINK), "'mgwfbp list' shows them")


class Sizes(unittest.TestCase):
    def test_as_people_write_them(self):
        plans = [run_json("plan", RESNET, LINK, "--policy", policy)["plan"] for policy in
                 ("ddp:1MiB,25MiB", "ddp:1MB,25MB", "ddp:1,25", "ddp:25", "ddp:25MB", "ddp:1048576,26214400", "ddp")]
        self.assertEqual(len({json.dumps(plan) for plan in plans}), 1)
        self.assertEqual(run_json("plan", RESNET, LINK, "--policy", "ddp:2.5")["plan"]["policy"], "ddp:1048576,2621440")
        rows = run_json("simulate", RESNET, LINK, "--policy", "zero:4,threshold:64,ddp:2,wfbp")
        self.assertEqual([row["policy"] for row in rows],
                         ["zero:4194304", "threshold:67108864", "ddp:1048576,2097152", "wfbp"])

    def test_largest_message(self):
        done = run("calibrate", "--largest", "99999")
        self.assertIn("between 2048 bytes and 16 GiB" if done.returncode else "", done.stderr)
        for size in ("much", "-1", "1.5B"):
            self.assertIn("--largest", run("calibrate", "--largest", size).stderr)


class Swapped(Folder):
    """Traces and clusters are recognized by their contents."""

    def test_each_command(self):
        trace, cluster = self.file("t.json", small_trace()), self.file("c.json", small_cluster())
        for command in ("plan", "simulate", "advise"):
            for first, second in ((trace, cluster), (RESNET, LINK), (RESNET, "100gbe")):
                if command == "advise" and first == trace:
                    continue
                right, wrong = run(command, first, second, "--json"), run(command, second, first, "--json")
                self.assertEqual((right.returncode, wrong.returncode), (0, 0), wrong.stderr)
                self.assertEqual(right.stdout, wrong.stdout)
                self.assertRegex(wrong.stderr, rf"^mgwfbp {command}: note: using {first} as TRACE and {second} as \w+\n")

    def test_neither(self):
        for second in (LINK, "no-such"):
            self.refused(run("plan", LINK, second), f"{LINK} is a network or cluster; a trace is expected")
        self.refused(run("plan", RESNET, RESNET), f"{RESNET} is a trace; a network or cluster is expected")


class Guesses(Folder):
    """The assumptions of an answer are stated; unusable ones are refused."""

    FIXTURES = Path(__file__).parent.parent / "fixtures"

    def noted(self, done, *notes):
        self.assertEqual(done.returncode, 0, done.stderr)
        lines = [line for line in done.stderr.splitlines() if ": note: " in line]
        self.assertEqual(len(lines), len(notes), lines)
        for line, note in zip(lines, notes):
            self.assertIn(note, line)

    def test_workers(self):
        for command, how in (("advise", "--workers, or --nodes"), ("plan", "--nodes"), ("simulate", "--workers, or --nodes")):
            self.noted(run(command, RESNET, "10gbe"), "10gbe does not say how many workers there are; 2 are assumed")
            self.assertIn(how, run(command, RESNET, "10gbe").stderr)
        self.noted(run("advise", RESNET, "10gbe", "--workers", 2))
        self.noted(run("simulate", RESNET, "10gbe", "-n", 4))
        self.noted(run("advise", RESNET, "10gbe", "--nodes", 2, "--gpus", 2))
        self.noted(run("advise", RESNET, self.FIXTURES / "osu_allreduce.txt"), "'mgwfbp fit --workers N' makes a cluster that does")

    def test_nodes(self):
        self.refused(run("advise", RESNET, "10gbe", "--gpus", 4), "one node alone would not use 10gbe")
        self.noted(run("advise", RESNET, "10gbe", "--nodes", 1, "--gpus", 4))
        measured = self.FIXTURES / "nccl_tests.txt"
        alone = run("advise", RESNET, measured)
        self.assertEqual(run("advise", RESNET, measured, "--nodes", 1, "--gpus", 8).stdout, alone.stdout)
        self.refused(run("advise", RESNET, measured, "--measured-on", "1x8", "--nodes", 8, "--gpus", 8),
                     "says nothing about links between nodes")
        self.refused(run("advise", RESNET, measured, "--nodes", 2, "--gpus", 8), "(--measured-on)")
        for ports, says in ((1, "1 port per node"), (8, "8 ports per node")):
            self.assertIn(says, run("advise", RESNET, "25gbe", "--nodes", 8, "--gpus", 8, "--ports", ports).stdout)

    def test_measurements(self):
        """Those of every program, wherever a cluster is taken."""
        csv = self.file("m.csv", "bytes,seconds\n1024,0.001\n67108864,0.1\n")
        for path in (csv, self.FIXTURES / "nccl_tests.json", self.FIXTURES / "nccl_tests.txt"):
            for command in (("advise", RESNET), ("plan", RESNET), ("show",)):
                self.assertEqual(run(*command, path).returncode, 0, path)
        short = self.file("short.csv", "bytes,seconds\n1024,0.001\n1048576,0.002\n")
        self.assertIn("short was measured up to 1 MiB; times of larger messages are extrapolated",
                      run("advise", RESNET, short).stderr)
        self.noted(run("fit", self.file("us.csv", "bytes,seconds\n1024,910\n1048576,2000\n"), "--workers", 16),
                   "a message of 1 KiB takes 910 s; are these microseconds?")
        self.refused(run("fit", self.file("header.csv", "bytes,us\n1024,910\n")), "header: must be 'bytes,seconds', not 'bytes,us'")
        lines = (self.FIXTURES / "nccl_tests.txt").read_text().splitlines()
        at = max(i for i, line in enumerate(lines) if re.match(r"\s*\d", line))
        lines[at] = re.sub(r"\S+\s*$", "7", lines[at])
        self.refused(run("fit", self.file("wrong.txt", "\n".join(lines))), f"wrong.txt:{at + 1}: #wrong: 7 results were wrong")

    def test_links(self):
        self.assertEqual(run("advise", RESNET, "30us,10gbit/s", "-n", 4).stdout.splitlines()[0],
                         run("advise", RESNET, "30us,10Gbit/s", "-n", 4).stdout.splitlines()[0])
        for link in ("10Gbit/s", "10Gbit/s,30us", "30,10", "30us,0Gbit/s"):
            self.refused(run("advise", RESNET, link), f"'{link}' is not a network; write the latency and bandwidth")
        self.refused(run("advise", RESNET, "25gbe", "--inside", "pcie9", "--nodes", 2, "--gpus", 2),
                     "--inside: unknown network 'pcie9'; did you mean 'pcie4' or 'pcie5'?")

    def test_words(self):
        self.refused(run("plan", RESNET, LINK, "--policy", "DDP"), "did you mean 'ddp'?")
        self.refused(run("plan", RESNET, LINK, "--policy", "ddp,optimal"), "one policy is expected")
        self.refused(run("replay", RESNET, "10gbe"), "too many arguments: write --cluster 10gbe")
        self.refused(run("plan", RESNET, LINK, "-o", ""), "--output: the file name is empty")
        path = self.folder / "a.json"
        self.refused(run("plan", RESNET, LINK, "-o", path, "--svg", path), f"--svg: --output already writes {path}")
        self.assertFalse(path.exists())
        for words in ("-v", "-V", "version", "--version"):
            self.assertRegex(run(words).stdout, r"^mgwfbp \d+\.\d+\.\d+\n$")


class Outputs(Folder):
    """Unwritable output files are refused before the work starts; - is standard output."""

    def test_refused_at_once(self):
        missing = self.folder / "no" / "file"
        commands = [("plan", RESNET, LINK, "-o"), ("simulate", RESNET, LINK, "--svg"),
                    ("simulate", RESNET, LINK, "--chrome-trace"), ("show", RESNET, "--svg"), ("fit", LINK, "-o"),
                    ("report", RESNET, LINK, "-o"), ("calibrate", "-n", "2", "-o"), ("calibrate", "--svg"),
                    ("replay", RESNET, "--rounds", "60", "--chrome-trace")]
        if HAS_TRAIN:
            commands += [("train", "resnet20", "--checkpoint"), ("train", "resnet20", "--chrome-trace"),
                         ("trace", "resnet20", "-o")]
        begin = time.monotonic()
        for command in commands:
            self.refused(run(*command, missing), f"{missing}: cannot write: No such file or directory")
        self.refused(run(*commands[0], self.folder), f"{self.folder}: cannot write: Is a directory")
        self.assertLess(time.monotonic() - begin, 20)

    def test_somebody_elses(self):
        if os.getuid():
            self.skipTest("only root can make files of others")
        shutil.copy(MGWFBP, self.folder)
        for file in MGWFBP.parents[1].glob("src/libmgwfbp.so*"):
            shutil.copy(file, self.folder)
        self.folder.chmod(0o755)
        for path in ("/etc/passwd", "/etc/new"):
            done = subprocess.run([self.folder / "mgwfbp", "plan", RESNET, LINK, "-o", path], user=65534, encoding="utf-8",
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={"LD_LIBRARY_PATH": self.folder})
            self.refused(done, f"{path}: cannot write: Permission denied")

    def test_standard_output(self):
        for command in (("plan", RESNET, LINK), ("fit", LINK), ("report", RESNET, LINK)):
            file = self.folder / "file"
            self.assertEqual(run(*command, "-o", file).returncode, 0)
            done = run(*command, "-o", "-")
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            self.assertEqual(done.stdout, file.read_text())
        self.assertTrue(run("show", RESNET, "--svg", "-").stdout.startswith("<svg"))
        self.assertIn("mgwfbp-timelines-1", run("simulate", RESNET, LINK, "--chrome-trace", "-").stdout[:40])
        self.refused(run("plan", RESNET, LINK, "-o", "-", "--json"), "--json already goes to standard output")
        self.refused(run("simulate", RESNET, LINK, "--svg", "-", "--chrome-trace", "-"), "--svg already goes to standard output")
        self.assertEqual([name for name in os.listdir(self.folder) if name == "-"], [])

    @unittest.skipUnless(HAS_TRAIN, "no oneDNN")
    def test_checkpoints_are_files(self):
        self.refused(run("train", "lenet5", "--checkpoint", "-"), "a file, not standard output")

    def test_closed_and_full(self):
        """Standard output that is closed, full, or that nobody reads on."""
        plan = [MGWFBP, "plan", RESNET, LINK]
        done = subprocess.run(["sh", "-c", '"$@" >&-', "sh", *plan], stderr=subprocess.PIPE, encoding="utf-8")
        self.assertEqual((done.returncode, done.stderr), (2, "mgwfbp plan: standard output: Bad file descriptor\n"))
        with open("/dev/full", "w") as full:
            for more in ((), ("-o", "-"), ("--json",)):
                done = subprocess.run([*plan, *more], stdout=full, stderr=subprocess.PIPE, encoding="utf-8")
                self.assertEqual((done.returncode, done.stderr), (2, "mgwfbp plan: standard output: No space left on device\n"))
        done = subprocess.run(["bash", "-c", '"$@" | head -c 1 >/dev/null; exit ${PIPESTATUS[0]}', "sh", MGWFBP, "plan", RESNET,
                               LINK, "--json"], stderr=subprocess.PIPE, encoding="utf-8")
        self.assertIn((done.returncode, done.stderr), [(0, ""), (128 + signal.SIGPIPE, "")])


class Options(unittest.TestCase):
    def test_letters_mean_one_thing(self):
        meant = {}
        for command in COMMANDS:
            for letter, name, _ in options_of(command):
                if letter:
                    self.assertEqual(meant.setdefault(letter, name), name, f"{command} -{letter}")
        self.assertEqual((meant["o"], meant["n"], meant["p"]), ("output", "workers", "policy"))

    def test_an_option_has_its_letter_everywhere(self):
        letters = {}
        for command in COMMANDS:
            for letter, name, _ in options_of(command):
                self.assertEqual(letters.setdefault(name, letter), letter, f"{command} --{name}")


class Completion(Folder):
    def complete(self, *words):
        script = (f'cd {self.folder}; PATH={MGWFBP.parent}:$PATH; eval "$(mgwfbp --bash-completion)"; '
                  f'COMP_WORDS=(mgwfbp "$@"); COMP_CWORD=$#; _mgwfbp; printf "%s\\n" "${{COMPREPLY[@]}}"')
        return subprocess.run(["bash", "-uec", script, "sh", *words], stdout=subprocess.PIPE, check=True,
                              encoding="utf-8").stdout.split()

    def setUp(self):
        super().setUp()
        self.file("file.json", "")

    def test_commands(self):
        self.assertEqual(set(self.complete("")), {*COMMANDS, "help", "--help", "--version", "--man", "--bash-completion"})
        self.assertEqual(self.complete("si"), ["simulate"])
        self.assertEqual(set(self.complete("help", "")), set(COMMANDS))

    def test_options_of_every_command(self):
        for command in COMMANDS:
            names = {f"--{name}" for _, name, _ in options_of(command)}
            self.assertEqual(set(self.complete(command, "--")), names, command)

    def test_arguments_of_every_command(self):
        traces = set(run("list", "traces", "--names").stdout.split())
        clusters = set(run("list", "clusters", "--names").stdout.split())
        networks = set(run("list", "networks", "--names").stdout.split())
        models = set(run("list", "models", "--names").stdout.split())
        file = {"file.json"}
        data = traces | clusters | networks | file
        expected = {
            "advise": [traces | file, networks | clusters | file], "plan": [traces | file, clusters | networks | file],
            "simulate": [traces | file, clusters | networks | file], "replay": [traces | file, set()], "train": [models],
            "trace": [models, set()], "calibrate": [set()], "launch": [None, file], "show": [data],
            "report": [data] * 3, "serve": [data] * 3, "fit": [clusters | file],
            "list": [{"traces", "clusters", "networks", "policies", "algorithms", "models"}, set()],
        }
        self.assertEqual(set(expected), set(COMMANDS))
        for command, arguments in expected.items():
            for at, words in enumerate(arguments):
                if words is not None:
                    self.assertEqual(set(self.complete(command, *["x"] * at, "")), words, (command, at))
        self.assertIn("bash", self.complete("launch", "bas"))

    def test_options_do_not_count_as_arguments(self):
        self.assertEqual(self.complete("plan", "-n", "4", RESNET, "--json", "paper-2"), ["paper-2-10gbe"])

    def test_values(self):
        policies = set(run("list", "policies", "--names").stdout.split())
        self.assertEqual(set(self.complete("plan", "-p", "")), policies)
        self.assertEqual(self.complete("simulate", "--policy", "opt"), ["optimal"])
        self.assertEqual(self.complete("simulate", "--policy", "=", "opt"), ["optimal"])
        self.assertEqual(self.complete("simulate", "--policy", "wfbp,opt"), ["wfbp,optimal"])
        self.assertEqual(self.complete("simulate", "--algorithm", "ri"), ["ring"])
        self.assertEqual(self.complete("replay", "--device", ""), ["host", "cuda"])
        self.assertEqual(self.complete("plan", "-o", ""), ["file.json"])
        self.assertEqual(self.complete("replay", "-c", "paper-2"), ["paper-2-10gbe"])
        self.assertEqual(self.complete("plan", "--workers", ""), [])

    def test_every_file_is_in_the_table(self):
        """An option that takes a FILE offers files; what it writes is checked before (see Outputs)."""
        for command in COMMANDS:
            for _, name, takes in options_of(command):
                if takes in ("FILE", "DIR", "PROFILE"):
                    self.assertIn("file.json", self.complete(command, f"--{name}", ""), f"{command} --{name}")


class Terminal:
    """The command on its own terminal."""

    def __init__(self, *arguments, columns=80, rows=24, **environment):
        self.pid, self.terminal = pty.fork()
        if self.pid == 0:
            os.environ.pop("COLUMNS", None)
            os.environ.pop("NO_COLOR", None)
            os.environ.update({"TERM": "xterm", **environment})
            while not os.get_terminal_size(0).columns == columns:
                time.sleep(0.001)
            os.execv(MGWFBP, [str(MGWFBP), *map(str, arguments)])
        fcntl.ioctl(self.terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.shown = b""

    def read(self, until=None, timeout=60):
        end = time.monotonic() + timeout
        try:
            while until is None or until not in self.shown:
                assert time.monotonic() < end, self.shown
                self.shown += os.read(self.terminal, 4096)
        except OSError:  # the end of a terminal
            pass
        return self.shown.decode()

    def end(self):
        shown = self.read().replace("\r\n", "\n")
        os.close(self.terminal)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1]), shown


def plain(text):
    return re.sub("\x1b\\[[0-9;]*[mK]", "", text)


class Screen(Folder):
    def test_tables_fit(self):
        commands = [("plan", RESNET, LINK), ("simulate", RESNET, LINK, "-n", "4:64"), ("advise", RESNET, "100gbe"),
                    ("list",), ("list", "policies")]
        for columns in (40, 60, 80):
            for command in commands:
                status, shown = Terminal(*command, columns=columns).end()
                self.assertEqual(status, 0)
                tables = plain(shown)
                if command[0] != "list":  # sentences wrap as the terminal does it: of tables the lines are counted
                    tables = "\n".join(line for line in tables.split("\n") if re.search(r"\S  +\S", line)
                                       and not re.match(r"(model|compute|cluster)? +", line))
                for line in tables.split("\n"):
                    self.assertLessEqual(len(line), columns, f"{command} at {columns}: {line!r}")

    def test_help_fits(self):
        for columns in (40, 80):
            shown = plain(Terminal("plan", "--help", columns=columns).end()[1])
            body = shown.split("examples:")[0].split("\n\n", 1)[1]
            for line in body.split("\n"):
                self.assertLessEqual(len(line), columns, line)

    def test_columns(self):
        wide = plain(Terminal("plan", RESNET, LINK, columns=40, COLUMNS="200").end()[1])
        self.assertIn("slower than the best", wide)
        self.assertIn("slower than the best", run("plan", RESNET, LINK).stdout)  # no terminal: as wide as it is

    def test_progress(self):
        """One line that is overwritten, and gone in the end; without a terminal none (nobody asked for it)."""
        command = ("replay", RESNET, "-n", "2", "--cluster", "paper-2-10gbe", "-p", "single", "--rounds", "2", "--steps", "2")
        status, shown = Terminal(*command).end()
        self.assertEqual(status, 0)
        self.assertRegex(shown, "mgwfbp replay: round [12], \\d+%[^\n]*\x1b\\[K\r")
        self.assertRegex(plain(shown.split("\r")[-1]), "^(|model    resnet50)")
        self.assertEqual(run(*command).stderr, "")

    def test_colour(self):
        self.assertIn("\x1b[1m", Terminal("plan", RESNET, LINK).end()[1])
        self.assertIn("\x1b[1;31mmgwfbp plan:\x1b[0m ", Terminal("plan", RESNET).end()[1])
        for arguments in (("plan", RESNET, LINK), ("plan", RESNET)):
            for environment in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
                self.assertNotIn("\x1b", Terminal(*arguments, **environment).end()[1])
            done = run(*arguments)
            self.assertNotIn("\x1b", done.stdout + done.stderr)


class Workers(Folder):
    """When workers fail, the cause is reported first, and once."""

    def test_all_fail_alike(self):
        done = subprocess.run([MGWFBP, "calibrate", "-n", "4"], env={**os.environ, "MGWFBP_TRANSPORT": "pigeon"},
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8")
        self.refused(done, "unknown transport 'pigeon'")

    def test_one_is_killed(self):
        job = subprocess.Popen([MGWFBP, "replay", RESNET, "-n", "3", "--cluster", "paper-2-10gbe", "-p", "single", "--rounds", "60",
                                "--progress"],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8", start_new_session=True)
        self.addCleanup(job.kill)
        self.assertIn("round 1", job.stderr.readline())
        processes = subprocess.run(["ps", "-o", "pid=,ppid=", "-s", str(job.pid)], stdout=subprocess.PIPE,
                                   encoding="utf-8").stdout.split()
        parents = set(processes[1::2])
        workers = sorted(int(pid) for pid in processes[::2] if pid not in parents)
        self.assertEqual(len(workers), 3)
        os.kill(workers[1], signal.SIGKILL)
        out, error = job.communicate(timeout=60)
        cause, seen = [line for line in error.splitlines() if "%" not in line]
        self.assertEqual(cause, "mgwfbp replay: rank 1 was killed by signal 9 (Killed)")
        self.assertRegex(seen, r"^mgwfbp replay: .*rank 1 has died")
        self.assertEqual((job.returncode, out), (128 + signal.SIGKILL, ""))


class Interrupt(Folder):
    """Ctrl-C: finished work is kept, and the exit status shows it. Before that, progress and remaining time."""

    LINE = r"^mgwfbp \w+: {}, \d+%(, (\d+ s|\d+ min|\d+ h \d+ min) left)?\n$"

    def start(self, *arguments, **options):
        job = subprocess.Popen([MGWFBP, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               encoding="utf-8", **options)
        self.addCleanup(job.kill)
        self.addCleanup(job.stdout.close)
        self.addCleanup(job.stderr.close)
        return job

    def interrupt(self, job):
        if job.poll() is None:
            job.send_signal(signal.SIGINT)
        out, error = job.communicate(timeout=60)
        self.assertEqual(job.returncode, 128 + signal.SIGINT, error)
        return out, error

    def test_replay(self):
        """Rounds that are done are shown, and their timelines saved."""
        path = self.folder / "steps.json"
        job = self.start("replay", RESNET, "-n", "2", "--cluster", "paper-2-10gbe", "-p", "single,optimal", "--steps", "2",
                         "--rounds", "64", "--chrome-trace", path, "--progress", "--json")
        while "round 3" not in (line := job.stderr.readline()):
            self.assertRegex(line, self.LINE.format(r"round \d"))
        self.assertIn(" left\n", line)
        out, error = self.interrupt(job)
        self.assertEqual([row["policy"] for row in json.loads(out)], ["single", "optimal"])
        self.assertRegex(error, r"(?m)^mgwfbp replay: interrupted: \d+ of 64 rounds are done$")
        self.assertIn("mgwfbp-timelines-1", path.read_text()[:40])

    def test_replay_before_anything_is_done(self):
        job = self.start("replay", RESNET, "-n", "2", "--network", "1e-2,1e-8", "-p", "wfbp", "--steps", "1000")
        time.sleep(1)
        self.assertEqual(self.interrupt(job), ("", ""))

    def test_calibrate(self):
        path = self.folder / "cluster.json"
        job = self.start("calibrate", "-n", "2", "--transport", "emulated:1e-4,1e-8", "-o", path, "--progress")
        shares = []
        while "MiB" not in (line := job.stderr.readline()):
            self.assertRegex(line, self.LINE.format(r"messages of \d+ KiB"))
            shares.append(int(re.search(r"(\d+)%", line).group(1)))
        self.assertEqual(shares, sorted(shares))
        out, error = self.interrupt(job)
        self.assertIn("mgwfbp calibrate: interrupted: larger messages were not measured\n", error)
        cluster = json.loads(path.read_text())
        self.assertLess(cluster["samples"][-1]["bytes"], 64 << 20)
        self.assertGreater(len(cluster["samples"]), 5)
        self.assertEqual(run("show", path).returncode, 0)

    @unittest.skipUnless(HAS_TRAIN, "no oneDNN")
    def test_trace(self):
        path = self.folder / "trace.json"
        job = self.start("trace", "resnet20", "--steps", "10000", "--batch", "4", "--progress", "-o", path)
        self.assertRegex(job.stderr.readline(), self.LINE.format(r"step \d+ of 10002"))
        out, error = self.interrupt(job)
        self.assertRegex(error, r"(?m)^mgwfbp trace: interrupted: \d+ of 10000 steps are measured$")
        self.assertEqual(run("show", path).returncode, 0)
        self.assertIn("resnet20", out)

    @unittest.skipUnless(HAS_TRAIN, "no oneDNN")
    def test_train(self):
        """What it saves is tested with training."""
        job = self.start("train", "lenet5", "-n", "2", "--batch", "4", "--steps", "100000", "--epochs", "100", "--progress")
        while not (line := job.stderr.readline()).endswith(" left\n"):
            self.assertRegex(line, self.LINE.format(r"step \d+ of 100000"))
        self.assertIn("policy", self.interrupt(job)[0])

    def slow_trace(self, tensors):
        return self.file("slow.json", small_trace(tensors=[
            {"name": f"t{i}", "count": 1 + i % 7, "backward_s": 1e-6} for i in range(tensors)]))

    def test_simulate(self):
        path = self.folder / "rows.svg"
        job = self.start("simulate", self.slow_trace(40000), LINK, "-n", "2:1073741824", "-a", "ring,double-binary-trees",
                         "--json", "--svg", path, "--progress")
        self.assertRegex(job.stderr.readline(), self.LINE.format(r"row \d+ of 360"))
        out, error = self.interrupt(job)
        done, all_rows = map(int, re.search(r"interrupted: (\d+) of (\d+) rows are done\n", error).groups())
        rows = json.loads(out)
        self.assertEqual((len(rows), all_rows), (done, 2 * 30 * 6))
        self.assertTrue(0 < done < all_rows)
        self.assertTrue(path.read_text().startswith("<svg"))

    def test_report(self):
        """What was read by then is shown."""
        path = self.folder / "report.html"
        pipe = self.folder / "pipe"
        os.mkfifo(pipe)
        job = self.start("report", RESNET, LINK, pipe, RESNET, "-o", path)
        with open(pipe, "w") as writer:  # it waits for this one
            job.send_signal(signal.SIGINT)
            time.sleep(0.2)
            writer.write(json.dumps(small_trace()))
        out, error = self.interrupt(job)
        self.assertRegex(error, r"interrupted: 3 of 4 inputs are shown\nwrote ")
        self.assertIn("</html>", path.read_text())

    def test_commands_that_are_quick(self):
        """Nothing is half-written, whatever stood there before stays."""
        pipe, path = self.folder / "pipe", self.file("out.json", "old")
        os.mkfifo(pipe)
        for command in (("plan", pipe, LINK, "-o", path), ("fit", pipe, "-o", path), ("show", pipe, "--svg", path),
                        ("advise", pipe, LINK)):
            job = self.start(*command)
            with open(pipe, "w") as writer:
                writer.write("{")
                writer.flush()
                time.sleep(0.1)
                job.send_signal(signal.SIGINT)
                self.assertEqual(job.wait(timeout=20), -signal.SIGINT, command)
        self.assertEqual(path.read_text(), "old")
        self.assertEqual(set(os.listdir(self.folder)), {"pipe", "out.json"})


if __name__ == "__main__":
    unittest.main()
