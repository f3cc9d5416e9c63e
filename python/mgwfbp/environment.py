"""Reads the environment: this worker's rank, as the launcher sets it, and options that the program does not pass."""

import hashlib
import json
import os
import sys
from collections import namedtuple
from pathlib import Path
from typing import NamedTuple, Optional

LANES_MAX = 8  # MGW_LANES_MAX

# The environment variables of a launcher; `job` has the same value on all workers of a job, and on no others.
Launcher = namedtuple("Launcher", "rank size local_rank local_size job")

# The first launcher whose rank and size are both set is used. torchrun may run under mpirun, so it comes first.
LAUNCHERS = (
    Launcher("MGWFBP_RANK", "MGWFBP_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MGWFBP_JOB"),
    Launcher("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RUN_ID"),
    Launcher("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
             "OMPI_COMM_WORLD_LOCAL_SIZE", "PMIX_NAMESPACE"),
    Launcher("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", "PMI_JOBID"),
    # The variables of a step that srun started. A batch script has those of the whole job, but runs alone.
    Launcher("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE", "SLURM_JOB_ID"),
)


def _launcher() -> Optional[Launcher]:
    return next((each for each in LAUNCHERS if each.rank in os.environ and each.size in os.environ), None)


def _number(source: str, given, least: int) -> int:
    try:
        if int(given) >= least:
            return int(given)
    except ValueError:
        pass
    raise ValueError(f"{source}: {given!r} is not an integer of at least {least}")


def _told(what: str, fallback: int) -> int:
    """The launcher's value, if there is one."""
    variable = getattr(_launcher(), what, "")
    return _number(variable, os.environ.get(variable) or fallback, 0)


def _process_group():
    """torch.distributed, if it is loaded and initialised: without a launcher (mp.spawn), only it knows the ranks."""
    distributed = sys.modules.get("torch.distributed")
    return distributed if distributed and distributed.is_available() and distributed.is_initialized() else None


def rank() -> int:
    """This worker's rank: in PyTorch's process group if there is one; else as set by mgwfbp launch, torchrun, mpirun or
    srun; else 0."""
    group = _process_group()
    return group.get_rank() if group else _told("rank", 0)


def size() -> int:
    """The number of workers; 1 without a launcher."""
    group = _process_group()
    return group.get_world_size() if group else _told("size", 1)


def launched() -> tuple:
    """Rank and size as set by the launcher, ignoring process groups; 0 and 1 without one."""
    return _told("rank", 0), _told("size", 1)


def local_rank() -> int:
    """This worker's rank on its host."""
    return _told("local_rank", rank())


def local_size() -> int:
    """The number of workers on this host; 1 without a launcher that says so."""
    return _told("local_size", 1)


def name() -> Optional[str]:
    """A name that the workers of this job share, and no other job has; None for a single worker."""
    launcher = _launcher()
    if launcher is None or launched()[1] == 1:
        return None
    parts = [os.environ.get(each, "") for each in (launcher.job, "SLURM_STEP_ID", "MASTER_ADDR", "MASTER_PORT")]
    return os.environ.get("MGWFBP_JOB") or "-".join(part for part in parts if part) or None


def job() -> Optional[str]:
    """The same if the job runs on one host; None if it runs on several, or has one worker. With MGWFBP_JOB, one host is
    assumed unless the launcher says otherwise."""
    told = launched()[1] if "MGWFBP_JOB" in os.environ else 0
    return name() if _told("local_size", told) == launched()[1] else None


def lanes() -> int:
    """MGWFBP_LANES: how many connections move the parts of a long message; 0: not set."""
    found = _number("MGWFBP_LANES", os.environ.get("MGWFBP_LANES", 0), 0)
    if found > LANES_MAX:
        raise ValueError(f"MGWFBP_LANES: {found}; there are at most {LANES_MAX}")
    return found


def control() -> str:
    """The default transport for coordination."""
    launcher = _launcher()
    meets = "MASTER_ADDR" in os.environ or "MGWFBP_ADDRESS" in os.environ
    by_mpi = launcher is not None and launcher.rank not in ("MGWFBP_RANK", "RANK")
    return "self" if launched()[1] == 1 else "shm" if job() else "tcp" if meets and not by_mpi else "mpi"


class Options(NamedTuple):
    """Options for planning, common to both wrappers."""

    policy: str
    cluster: Optional[str]
    profile_steps: int
    replan_steps: int
    replan_percent: int
    is_chosen: bool = True  # the policy was given, and is not the default
    trials: int = 1  # steps decide between plans of the policies optimal, overlap and sharded; above 1: a trial has about so many
    plan: Optional[str] = None  # a plan file, used without tuning
    wire: Optional[str] = None  # format in which f32 gradients are sent: f16, bf16; None: unchanged

    @classmethod
    def complete(cls, policy=None, cluster=None, profile_steps=None, replan_steps=None, replan_percent=None,
                 trials=None, plan=None, wire=None):
        """Values passed by the program, else the environment variables of docs/explanation/engine.md, else the defaults."""
        def count(name: str, given, fallback: int, least: int) -> int:
            if given is None:
                name = "MGWFBP_" + name.upper()
                given = os.environ.get(name, fallback)
            return _number(name, given, least)

        wire = wire or os.environ.get("MGWFBP_WIRE") or "f32"
        if wire not in ("f32", "f16", "bf16"):
            raise ValueError(f"wire: {wire!r} is not one of f32, f16, bf16")
        lanes()
        return cls(policy or os.environ.get("MGWFBP_POLICY") or "optimal",
                   cluster or os.environ.get("MGWFBP_CLUSTER"),
                   count("profile_steps", profile_steps, 5, 1),
                   count("replan_steps", replan_steps, 100, 1),
                   count("replan_percent", replan_percent, 3, 0),
                   bool(policy or os.environ.get("MGWFBP_POLICY")),
                   count("trials", trials, 1, 0),
                   os.fspath(plan or os.environ.get("MGWFBP_PLAN") or "") or None, None if wire == "f32" else wire)

    def agreed(self) -> str:
        """A text that must be the same on all workers. A plan file counts by its content, not by its path."""
        if not self.plan:
            return str(self)
        try:
            told = json.loads(Path(self.plan).read_text())
            cuts = [[each.get(name) for name in ("kind", "release", "tensors", "wire", "lanes")]
                    for each in told.get("operations") or told["messages"]]
            found = hashlib.sha256(json.dumps(cuts).encode()).hexdigest()[:16]
        except (OSError, ValueError, LookupError, AttributeError, TypeError) as error:  # loading the plan reports the error in detail
            found = type(error).__name__
        return str(self._replace(plan=found))
