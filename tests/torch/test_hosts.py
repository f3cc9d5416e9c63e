"""Several hosts, under torchrun and under our launcher: workers on GPUs (fake ones) agree over TCP; the memory of hosts is told
where else to go; who dies, or cannot be met, is named. The hosts are agents on this one. Where something goes wrong they are,
as root, namespaces, each with a network, a /dev/shm and a name of its own, as in tests/use/test_hosts.py."""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

from support import BUILD, HERE, LIBRARY, MGWFBP, ROOT, TORCH, WHY, environment

sys.path.insert(0, str(ROOT / "bench"))
from network import Star  # noqa: E402

CAN_DIVIDE = os.geteuid() == 0 and all(map(shutil.which, ("ip", "tc", "unshare")))
OTHER_HOST = 'hostname host$0 && mount -t tmpfs none /dev/shm && exec "$@"'
if TORCH:
    from test_cuda import CUDA_BUILD


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1] % 40000 + 20000


def torchrun(master, *arguments):
    """Debian's, of 1.13, ends at once unless it is told to do something about a stream."""
    port = free_port()
    return lambda node: [*map(str, (sys.executable, "-m", "torch.distributed.run", "--redirects=2", "--tee=2", "--nnodes=2",
                                    f"--node_rank={node}", "--nproc_per_node=1", f"--master_addr={master}",
                                    f"--master_port={port}", HERE / "worker_hosts.py", *arguments))]


@unittest.skipUnless(TORCH, WHY)
class SeveralHosts(unittest.TestCase):
    def run_hosts(self, command, **more):
        """What all workers printed, of one on each of two hosts."""
        jobs = [subprocess.Popen([*map(str, command(node))], stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8",
                                 env=environment(LD_LIBRARY_PATH=str(BUILD / "fake"), **more)) for node in range(2)]
        texts = [job.communicate(timeout=200) for job in jobs]
        self.assertEqual([job.returncode for job in jobs], [0, 0], texts)
        return [json.loads(out.partition("] ")[2] if out.startswith("[") else out) for out, _ in texts]

    def torchrun(self, *arguments):
        return torchrun("127.0.0.1", *arguments)

    def launcher(self, *arguments):
        port = free_port()
        return lambda node: [MGWFBP, "launch", "-n", 1, "--nodes", 2, "--node", node, "--address", f"localhost:{port}", "--",
                             sys.executable, HERE / "worker_hosts.py", *arguments]

    def test_gpus_agree_over_tcp(self):
        if CUDA_BUILD:
            self.skipTest("PyTorch would take the fake GPU for a real one")
        for way in self.torchrun, self.launcher:
            first, second = self.run_hosts(way(), MGWFBP_SECRET="s")
            self.assertEqual(first, second)
            self.assertIn("native (nccl:tcp)", first["about"])

    def test_the_memory_of_hosts_is_told_where_to_go(self):
        for way in self.torchrun, self.launcher:
            for said in self.run_hosts(way("cpu")):
                self.assertRegex(said["error"], "several hosts.*init_process_group.*mpirun")
                self.assertNotIn("shm", said["error"])


@unittest.skipUnless(TORCH and not CUDA_BUILD, WHY if not TORCH else "PyTorch would take the fake GPU for a real one")
class HostsFail(unittest.TestCase):
    """Under torchrun, one worker on each of two hosts."""

    @contextlib.contextmanager
    def hosts(self, mode, *differ):
        """Jobs, whose output is to be read. `differ`: variables of each."""
        with Star(2) if CAN_DIVIDE else contextlib.nullcontext() as star:
            command = torchrun(star.address(0) if star else "127.0.0.1", mode)

            def inside(node):
                if not star:
                    return command(node)
                return star.inside(node, ["unshare", "--mount", "--uts", "--ipc", "sh", "-c", OTHER_HOST, str(node), *command(node)])

            jobs = [subprocess.Popen(inside(node), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, encoding="utf-8",
                                     env={**environment(LD_LIBRARY_PATH=str(BUILD / "fake"), MGWFBP_SECRET="s"), **more})
                    for node, more in enumerate(differ)]
            try:
                yield jobs
            finally:
                for job in jobs:
                    job.terminate()  # the agent ends its worker
                    job.communicate(timeout=60)

    def test_the_killed_are_named_by_the_other_host(self):
        for victim in range(2):
            with self.subTest(victim=victim), self.hosts("steady", {}, {}) as jobs:
                pids = [json.loads(job.stdout.readline())["steady"] for job in jobs]
                begun = time.monotonic()
                os.kill(pids[victim], signal.SIGKILL)
                error = json.loads(jobs[1 - victim].stdout.readline())["error"]
                self.assertLess(time.monotonic() - begun, 2)
                self.assertIn(f"rank {victim} has died", error)

    def other_version(self, folder):
        """The library, but of another version. What is compared is in it once, as a string."""
        data = LIBRARY.read_bytes()
        version = subprocess.run([MGWFBP, "--version"], stdout=subprocess.PIPE, check=True).stdout.split()[-1]
        other = version[:-1] + (b"8" if version.endswith(b"9") else b"9")
        self.assertGreaterEqual(data.count(b"\0" + version + b"\0"), 1)
        path = Path(folder) / LIBRARY.name
        path.write_bytes(data.replace(b"\0" + version + b"\0", b"\0" + other + b"\0"))
        return str(path), version.decode(), other.decode()

    def test_those_who_cannot_meet_say_why(self):
        """One clear error on each of both hosts, and no hang."""
        with tempfile.TemporaryDirectory(prefix="mgwfbp-hosts-") as folder:
            path, version, other = self.other_version(folder)
            with self.hosts("join", {}, {"MGWFBP_LIBRARY": path}) as jobs:
                first, second = [json.loads(job.communicate(timeout=120)[0]) for job in jobs]
        expected = {
            "wrong_secret": (("rank 1 did not come: .*refused .from [0-9a-f.:]+: it has another secret", 20),
                             ("rank 0 did not take rank 1 of 2 in: it has another secret", 5)),
            "other_version": ((f"rank 1 has libmgwfbp {other}, rank 0 has {version}", 5),  # rank 0 comes later: the 10 s above
                              (f"rank 1 has libmgwfbp {other}, rank 0 has {version}", 20)),
            "port_in_use": (("the port is in use; set MGWFBP_ADDRESS", 5), ("rank 0 was not reached at .* within 2 s", 10)),
            "rank_0_missing": (None, ("rank 0 did not publish its address within 2 s", 10))}
        for fault, both in expected.items():
            for said, wanted in zip((first, second), both):
                if wanted:
                    with self.subTest(fault=fault, on=said is first):
                        text, took_s = said[fault]
                        self.assertRegex(text, wanted[0])
                        self.assertNotIn("\n", text)
                        self.assertLess(took_s, wanted[1])


if __name__ == "__main__":
    unittest.main()
