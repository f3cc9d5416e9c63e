"""The transport mpi, under the mpirun of the MPI that the build uses."""

import os
import shutil
import subprocess
import unittest

from support import BUILD, MGWFBP


def mpirun_of_build():
    """The launcher of the MPI that the library is linked to, or null."""
    linked = subprocess.run(["ldd", BUILD / "src" / "libmgwfbp.so"], stdout=subprocess.PIPE,
                            encoding="utf-8").stdout
    if "libmpich" in linked:
        return [shutil.which("mpirun.mpich")]
    if "libmpi" in linked:
        return [shutil.which("mpirun.openmpi"), "--allow-run-as-root", "--oversubscribe",
                "--mca", "mpi_yield_when_idle", "1", "--mca", "btl_base_warn_component_unused", "0"]
    return None


MPIRUN = mpirun_of_build()


@unittest.skipUnless(MPIRUN and MPIRUN[0], "the build has no MPI, or its mpirun is not there")
class Mpi(unittest.TestCase):
    def mpirun(self, ranks, *command, **environment):
        return subprocess.run([*MPIRUN, "-n", str(ranks), *map(str, command)],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8",
                              timeout=280, env=dict(os.environ, **environment))

    def test_conforms(self):
        # All of 1 to 8 with ALL_RANKS=1: more ranks than cores take MPI minutes.
        for ranks in range(1, 9) if os.environ.get("ALL_RANKS") else (1, 2, 3, 5):
            done = self.mpirun(ranks, BUILD / "bin" / "test_transport", "mpi")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn(f"mpi: {ranks} ranks conform", done.stdout)

    def test_engine(self):
        """Chosen from the environment, and with an emulated network around it."""
        for transport in (None, "emulated:1e-4,1e-10"):
            extra = {"MGWFBP_TRANSPORT": transport} if transport else {}
            done = self.mpirun(4, BUILD / "bin" / "example_engine", **extra)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("4 workers: the first average is 1.5;", done.stdout)

    def test_servers(self):
        done = self.mpirun(3, BUILD / "bin" / "example_engine", MGWFBP_SERVERS="2")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("3 workers: the first average is 1;", done.stdout)

    def test_program_that_called_mpi_init(self):
        """Without support for threads the engine works in the caller's, and is right."""
        done = self.mpirun(3, BUILD / "bin" / "test_mpi_init")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout.count("right"), 3)

    def test_parameters(self):
        """Gathered beside the next forward pass, or in the caller's thread."""
        for arguments in (["callback"], ["said"], ["callback", "init"], ["said", "init"]):
            done = self.mpirun(3, BUILD / "bin" / "test_mpi_parameters", *arguments)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(done.stdout.count("right"), 3)

    def test_wires(self):
        """Messages that travel with 32, 16 and 8 bits, by a plan: bit for bit as written down."""
        for workers in (2, 3):
            done = self.mpirun(workers, BUILD / "bin" / "test_engine_wires", "mpi")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(done.stdout.count("good"), workers)

    def test_program_that_ended_mpi_first(self):
        """What it closes afterwards has nothing of MPI's left to free."""
        done = self.mpirun(2, BUILD / "bin" / "test_mpi_init", "finalizes")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout.count("closed"), 2)

    def test_more_workers_than_any_host_has(self):
        """What MPI says of the size counts, not what is said around it."""
        done = self.mpirun(2, BUILD / "bin" / "example_engine", WORLD_SIZE="5000", RANK="4999")
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_srun_that_mpi_does_not_know(self):
        """Workers that would each train alone, or each with workers of its own, without a word."""
        for command, status in (([BUILD / "bin" / "example_engine"], 1), ([MGWFBP, "calibrate"], 2)):
            done = subprocess.run(command, stderr=subprocess.PIPE, timeout=60, encoding="utf-8",
                                  env=dict(os.environ, SLURM_STEP_NUM_TASKS="4"))
            self.assertEqual(done.returncode, status)
            self.assertIn("srun has started 4 workers, but MPI sees only this one", done.stderr)

    def test_late_rank_is_named(self):
        """Asleep, stopped or late from the start; and nothing is written to memory that was freed."""
        for how in ("sleeps", "stops", "opens", "asks"):
            with self.subTest(how):
                done = self.mpirun(4, BUILD / "bin" / "test_mpi_late", how)
                for rank in (0, 2, 3):
                    self.assertRegex(done.stdout, rf"rank {rank}: mpi: [a-z- ]+: rank 1 did not come "
                                     "within 2 s; memory left alone", done.stderr)

    def test_replay(self):
        done = self.mpirun(2, MGWFBP, "replay", "googlenet-b64-fp32-h200", "--steps", 1, "--rounds",
                           1, "--policy", "optimal", "--network", "1e-3,1e-9")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("all averages were correct", done.stdout)


if __name__ == "__main__":
    unittest.main()
