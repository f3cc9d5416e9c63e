"""Several hosts, under torchrun and under our launcher: workers on GPUs (fake ones) agree over TCP; the memory of hosts is told
where else to go. The hosts are agents on this one; tests/use/test_hosts.py has namespaces."""

import json
import socket
import subprocess
import sys
import unittest

from support import BUILD, HERE, MGWFBP, TORCH, WHY, environment

if TORCH:
    from test_cuda import CUDA_BUILD


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1] % 40000 + 20000


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
        """Debian's, of 1.13, ends at once unless it is told to do something about a stream."""
        port = free_port()
        return lambda node: [sys.executable, "-m", "torch.distributed.run", "--redirects=2", "--tee=2", "--nnodes=2",
                             f"--node_rank={node}", "--nproc_per_node=1", "--master_addr=127.0.0.1", f"--master_port={port}",
                             HERE / "worker_hosts.py", *arguments]

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


if __name__ == "__main__":
    unittest.main()
