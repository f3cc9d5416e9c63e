"""Jobs on several hosts without MPI: workers on GPUs (the fake ones of tests/fake) with TCP as the control channel.
As root the hosts are namespaces with their own network, /dev/shm and host name; otherwise two launchers share this host."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import unittest

from support import BUILD, MGWFBP, ROOT

sys.path.insert(0, str(ROOT / "bench"))
from network import Star  # noqa: E402

TEST_DEVICE = BUILD / "bin" / "test_device"
CAN_DIVIDE = os.geteuid() == 0 and all(map(shutil.which, ("ip", "tc", "unshare")))


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1] % 40000 + 20000


def environment(**more):
    kept = {key: value for key, value in os.environ.items() if not re.match("MGWFBP_(?!BUILD)|MASTER_|.*WORLD_SIZE", key)}
    return {**kept, "LD_LIBRARY_PATH": str(BUILD / "fake"), "MGWFBP_TIMEOUT": "60", "MGWFBP_DEVICE": "cuda", **more}


def node(number, address, program, workers=1, nodes=2, inside=lambda command: command, **more):
    command = [MGWFBP, "launch", "-n", workers, "--nodes", nodes, "--node", number, "--address", address, *program]
    return subprocess.Popen(inside([*map(str, command)]), env=environment(**more), stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, encoding="utf-8")


class TwoLaunchers(unittest.TestCase):
    def setUp(self):
        self.address = f"127.0.0.1:{free_port()}"

    def ends(self, jobs, timeout=100):
        texts = [job.communicate(timeout=timeout)[0] for job in jobs]
        return texts, [job.returncode for job in jobs]

    def test_sums(self):
        jobs = [node(k, self.address, [TEST_DEVICE, "sums", "optimal"], workers=2, MGWFBP_SECRET="s") for k in range(2)]
        texts, codes = self.ends(jobs)
        self.assertEqual(codes, [0, 0], texts)
        self.assertRegex(texts[0], r"\[0\] optimal: .*exact")

    def test_secrets_that_differ(self):
        jobs = [node(k, self.address, [TEST_DEVICE, "sums", "optimal"], MGWFBP_SECRET=f"s{k}", MGWFBP_TIMEOUT="6") for k in range(2)]
        texts, codes = self.ends(jobs, 30)
        self.assertNotIn(0, codes)
        self.assertIn("rank 0 did not take rank 1 of 2 in: it has another secret", texts[1])
        self.assertRegex(texts[0], "joining the job: rank 1 did not come within 6 s .*another secret")

    def test_rank_0_that_is_missing(self):
        (text,), (code,) = self.ends([node(1, self.address, [TEST_DEVICE, "sums"], MGWFBP_TIMEOUT="2")], 30)
        self.assertNotEqual(code, 0)
        self.assertIn("[1] ", text)
        self.assertRegex(text, r"tcp: rank 0 was not reached at 127.0.0.1:\d+ within 2 s \(Connection refused\)")

    def test_a_port_in_use(self):
        with socket.create_server(("127.0.0.1", int(self.address.split(":")[1]) + 1)):
            (text,), (code,) = self.ends([node(0, self.address, [TEST_DEVICE, "sums"])], 30)
        self.assertNotEqual(code, 0)
        self.assertIn("the port is in use; set MGWFBP_ADDRESS", text)

    def test_gradients_of_the_host_say_where_to_go(self):
        jobs = [node(k, self.address, [BUILD / "bin" / "test_phases"], MGWFBP_DEVICE="host") for k in range(2)]
        texts, codes = self.ends(jobs, 30)
        self.assertNotIn(0, codes)
        for text in texts:
            self.assertIn("tcp is for coordination only and cannot send gradients", text)
            self.assertRegex(text, "mpirun .*process group")

    def test_options(self):
        for message, options in (("also give --node and --address", ["--nodes", 2]),
                                 ("--node: '2' is not a number from 0 to 1",
                                  ["--nodes", 2, "--node", 2, "--address", "a:1"]),
                                 ("--address: 'a' is not HOST:PORT", ["--nodes", 2, "--node", 1, "--address", "a"]),
                                 ("--nodes: '0' is not a number", ["--nodes", 0])):
            done = subprocess.run([*map(str, (MGWFBP, "launch", *options, "true"))], stderr=subprocess.PIPE, encoding="utf-8")
            self.assertNotEqual(done.returncode, 0)
            self.assertIn(message, done.stderr)


@unittest.skipUnless(CAN_DIVIDE, "network namespaces need root, ip, tc and unshare")
class TwoHosts(unittest.TestCase):
    """Every host has a network namespace of the star, and its own /dev/shm and host name."""

    def inside(self, star, number):
        setup = f"hostname host{number} && mount -t tmpfs none /dev/shm && exec \"$@\""
        return lambda command: star.inside(number, ["unshare", "--mount", "--uts", "--ipc", "sh", "-c", setup, "sh", *command])

    def start(self, star, program, hosts=2, **more):
        address = f"{star.address(0)}:29500"
        return [node(k, address, program, nodes=hosts, inside=self.inside(star, k), MGWFBP_SECRET="s", **more)
                for k in range(hosts)]

    def test_sums(self):
        with Star(2) as star:
            jobs = self.start(star, [TEST_DEVICE, "sums", "optimal"])
            texts = [job.communicate(timeout=100)[0] for job in jobs]
        self.assertEqual([job.returncode for job in jobs], [0, 0], texts)
        self.assertIn("exact", texts[0])

    def fault(self, victim, hurt, most_s, said="has died"):
        """The output of the other host's worker, which must come within a number of seconds."""
        with Star(2) as star:
            jobs = self.start(star, [TEST_DEVICE, "steady"])
            pid = None
            while pid is None:
                line = jobs[victim].stdout.readline()
                self.assertNotEqual(line, "", "it ended before it was steady")
                found = re.match(r"\[\d\] steady (\d+)", line)
                pid = int(found[1]) if found else None
            time.sleep(0.3)
            begun = time.monotonic()
            hurt(star, pid)
            other, lines = jobs[1 - victim].stdout, []
            while not lines or f"rank {victim}" not in lines[-1]:
                lines.append(other.readline())
                self.assertNotEqual(lines[-1], "", lines)
            took = time.monotonic() - begun
            for job in jobs:
                job.kill()
                job.communicate(timeout=30)
        self.assertIn(f"rank {victim} {said}", lines[-1])
        self.assertLess(took, most_s)

    def test_the_killed_are_named_by_the_other_host(self):
        for victim in range(2):
            self.fault(victim, lambda star, pid: os.kill(pid, signal.SIGKILL), 2)

    def await_steady(self, jobs):
        """The process of each host's worker."""
        pids = []
        for job in jobs:
            found = None
            while not found:
                line = job.stdout.readline()
                self.assertNotEqual(line, "", "it ended before it was steady")
                found = re.match(r"\[\d\] steady (\d+)", line)
            pids.append(int(found[1]))
        return pids

    def test_those_that_are_left_go_on(self):
        """Also when who had the hub has died: its host says so."""
        with Star(2) as star:
            jobs = self.start(star, [TEST_DEVICE, "reform"])
            pids = self.await_steady(jobs)
            begun = time.monotonic()
            os.kill(pids[0], signal.SIGKILL)
            texts = [job.communicate(timeout=60)[0] for job in jobs]
        self.assertIn("rank 0 has died", texts[1])
        self.assertIn("went on as rank 0 of 1", texts[1])
        self.assertLess(time.monotonic() - begun, 10)

    def test_a_host_that_falls_silent_is_named(self):
        """Its cable is pulled: nothing says goodbye. The system's own questions go unanswered for 10 s. Then the two hosts that
        see each other go on, and the third does not, also when its cable is back."""
        with Star(3) as star:
            jobs = self.start(star, [TEST_DEVICE, "reform"], 3, MGWFBP_TIMEOUT="3")
            self.await_steady(jobs)
            begun = time.monotonic()
            subprocess.run(["ip", "-n", star.namespace(2), "link", "set", "net0", "down"], check=True)
            named = ""
            while "rank 2" not in named:
                named = jobs[0].stdout.readline()
                self.assertNotEqual(named, "")
            self.assertLess(time.monotonic() - begun, 16)
            texts = [job.communicate(timeout=60)[0] for job in jobs[:2]]
            took = time.monotonic() - begun
            texts[0] = named + texts[0]
            subprocess.run(["ip", "-n", star.namespace(2), "link", "set", "net0", "up"], check=True)
            texts.append(jobs[2].communicate(timeout=60)[0])
        for rank in range(2):
            self.assertRegex(texts[rank], "rank 2 (has died|did not come)|for rank 2")
            self.assertIn(f"went on as rank {rank} of 2", texts[rank])
        self.assertLess(took, 25)
        self.assertIn("stays: ", texts[2])
        self.assertNotIn("went on", texts[2])


if __name__ == "__main__":
    unittest.main()
