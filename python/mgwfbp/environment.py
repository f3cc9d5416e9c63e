"""Which worker this is: what launchers tell their programs in the environment."""

import os
from typing import NamedTuple, Optional


class Launcher(NamedTuple):
    """The variables in which a launcher says what; `job` is the same on all workers of a job, and only there."""

    rank: str
    size: str
    local_rank: str
    local_size: str
    job: str


# The first whose rank and size are both set counts. torchrun under mpirun goes by torchrun, so it comes first.
LAUNCHERS = (
    Launcher("MGWFBP_RANK", "MGWFBP_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MGWFBP_JOB"),
    Launcher("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RUN_ID"),
    Launcher("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
             "OMPI_COMM_WORLD_LOCAL_SIZE", "PMIX_NAMESPACE"),
    Launcher("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", "PMI_JOBID"),
    # Of the step that srun started: a batch script has the numbers of the whole job, and is alone.
    Launcher("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE", "SLURM_JOB_ID"),
)


def _launcher() -> Optional[Launcher]:
    for launcher in LAUNCHERS:
        if launcher.rank in os.environ and launcher.size in os.environ:
            return launcher
    return None


def _number(variable: Optional[str], fallback: int) -> int:
    text = os.environ.get(variable, "") if variable else ""
    if not text:
        return fallback
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{variable}: {text!r} is not a number") from None


def rank() -> int:
    """This worker's number, by mgwfbp launch, torchrun, mpirun or srun; 0 alone."""
    launcher = _launcher()
    return _number(launcher and launcher.rank, 0)


def size() -> int:
    """How many workers there are; 1 alone."""
    launcher = _launcher()
    return _number(launcher and launcher.size, 1)


def local_rank() -> int:
    """This worker's number on its host."""
    launcher = _launcher()
    return _number(launcher and launcher.local_rank, rank())


def job() -> Optional[str]:
    """What the workers of a job that is on one host have in common; None where it is on several, or alone."""
    launcher = _launcher()
    if launcher is None or size() == 1:
        return None
    told = os.environ.get("MGWFBP_JOB")
    if told:
        return told
    if _number(launcher.local_size, 0) != size():
        return None
    parts = [os.environ.get(name, "") for name in (launcher.job, "SLURM_STEP_ID", "MASTER_ADDR", "MASTER_PORT")]
    return "-".join(part for part in parts if part) or None
