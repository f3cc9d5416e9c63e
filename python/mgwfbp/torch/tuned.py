"""Wraps a model in PyTorch's own DDP, with the bucket sizes that were fastest on real steps, which may be the default."""

import contextlib
from typing import Any, Callable, Dict, List, NamedTuple, Optional

import torch
import torch.distributed as dist

from .. import planning
from ..trial import Trial
from .buckets import (MIB, NAMES_FIRST, TAKES_LIST, Buckets, as_it_was, best, bucket_sizes, ddp_buckets, limits_of,
                      one_limits, two_limits)
from .groups import ProcessGroup
from .profile import Step
from .reducer import time_of

Stock = torch.nn.parallel.DistributedDataParallel
WARM_UP = 3  # steps: DDP rebuilds its buckets after the first, and reports them at the third


class Candidate(NamedTuple):
    name: str
    plan: planning.Plan  # with predicted times
    options: Dict[str, Any]  # of DDP
    first_bytes: Optional[int] = None  # limit of the first bucket, if DDP has no option for it


class Tried(NamedTuple):
    """A candidate and its measured steps."""

    name: str
    options: Dict[str, Any]
    buckets: List[int]  # bytes, as DDP reports them
    predicted_s: float
    measured_s: float
    ratio: float  # time relative to the best
    width: float  # half width of its confidence interval
    rounds: int
    won: bool


# ---- Candidates ----


def candidates_of(buckets: Buckets) -> List[Candidate]:
    """DDP's default; the best plan that this DDP supports; and the best ones with at most half and with at least twice as
    many buckets, since the cost of messages during computation is not known in advance."""
    trace, cluster = buckets.trace, buckets.cluster
    plans = one_limits(trace, cluster) if NAMES_FIRST else []
    if TAKES_LIST or not NAMES_FIRST:
        plans += two_limits(trace, cluster)
    chosen = buckets.plan if TAKES_LIST else best(plans)
    few = [plan for plan in plans if plan.message_count <= chosen.message_count / 2]
    many = [plan for plan in plans if plan.message_count >= chosen.message_count * 2]
    found = [Candidate("default", planning.plan(trace, cluster, "ddp"), {})]
    for name, choice in (("planned", [chosen]), ("fewer", few), ("more", many)):
        plan = best(choice) if choice else None
        if plan and _sizes(plan) not in [_sizes(other.plan) for other in found]:
            found.append(_told(name, plan))
    return found


def _told(name: str, plan: planning.Plan) -> Candidate:
    if TAKES_LIST:
        return Candidate(name, plan, {"bucket_cap_mb_list": [size / MIB for size in _sizes(plan)]})
    first, cap = limits_of(plan)
    return Candidate(name, plan, {"bucket_cap_mb": cap / MIB}, None if NAMES_FIRST else first)


def _sizes(plan: planning.Plan) -> List[int]:
    return [operation.bytes for operation in plan.operations]


@contextlib.contextmanager
def _first_bucket(size: Optional[int]):
    """Sets the limit of the first bucket, which DDP's constructor reads from a module variable."""
    before = dist._DEFAULT_FIRST_BUCKET_BYTES
    dist._DEFAULT_FIRST_BUCKET_BYTES = before if size is None else size
    try:
        yield
    finally:
        dist._DEFAULT_FIRST_BUCKET_BYTES = before


# ---- Trying them ----


class _Contest:
    """A stock DDP for each candidate, all around one model. Those that do not run the step leave its gradients alone."""

    def __init__(self, model: torch.nn.Module, step: Step, group: ProcessGroup, make: Callable[[Candidate], Stock],
                 candidates: List[Candidate]):
        self.model, self.step, self.group = model, step, group
        self.time = time_of(next(model.parameters()).device)
        self.ddps: Dict[int, Stock] = {}
        self.buckets: List[List[int]] = []
        for number, candidate in enumerate(candidates):
            self.ddps[number] = make(candidate)
            self.run(number, WARM_UP)
            self.buckets.append(bucket_sizes(self.ddps[number]))

    def run(self, number: int, steps: int) -> List[float]:
        """Runs steps and returns their times. Waits for the device only after the last one."""
        moments = [self.time.now()]
        for _ in range(steps):
            self.model.zero_grad(set_to_none=True)
            self.step(self.ddps[number])
            moments.append(self.time.now())
        self.time.is_over(moments[-1], waits=True)
        return [self.time.between(begun, ended) for begun, ended in zip(moments, moments[1:])]

    def decide(self, trial: Trial) -> Stock:
        """Runs the trial. Every worker has one and feeds it the same numbers; all check that they agree."""
        while trial.winner is None:
            order = trial.left
            seconds = [Trial.turn(self.run(number, trial.turn_steps)[1:]) for number in order]
            row = torch.tensor(seconds, dtype=torch.float64, device=self.group.device)
            self.group.all_reduce(row, "average")
            self.group.broadcast(row)
            trial.round(row.tolist())
            self.group.agree([str(trial.left), str(trial.winner)], "candidate")
            for number in set(order) - set(trial.left):
                del self.ddps[number]  # frees the memory of its buckets
        return self.ddps[trial.winner]


def tune_ddp(model: torch.nn.Module, step: Step, *, cluster: Optional[planning.ClusterLike] = None,
             process_group=None, steps: int = 8, most_rounds: int = 30, turn_steps: int = 5, verbose: bool = True,
             **options: Any) -> Stock:
    """Wraps the model in PyTorch's own DistributedDataParallel, with the buckets that make the step shortest.

    A few plans are tried on real steps, in turn with DDP's default, `turn_steps` at a time, until the winner is clear or
    the difference too small to matter, in at most `most_rounds` rounds. The default is returned if it wins, or if it is not
    clear that another one is as good. Afterwards the model's parameters, buffers and the random number generators are
    unchanged, and gradients are None.

    If DDP takes a list of bucket sizes (bucket_cap_mb_list), it gets those of the plan, otherwise the best ones that its
    limits allow. `ddp.mgwfbp_tried` has the measurements, `ddp.mgwfbp_steps` the number of steps run, and
    `ddp.mgwfbp_tuning` both as text, which rank 0 prints if `verbose`. `options` are passed to DistributedDataParallel. All
    workers must call this.

    >>> ddp = tune_ddp(model, lambda m: loss(m(inputs), targets).backward())    # doctest: +SKIP
    """
    for name in ("bucket_cap_mb", "bucket_cap_mb_list"):
        if name in options:
            raise ValueError(f"{name}: cannot be passed to tune_ddp, which chooses it")

    ran = 0

    def counted(wrapped: torch.nn.Module) -> None:
        nonlocal ran
        ran += 1
        step(wrapped)

    def make(candidate: Candidate) -> Stock:
        with _first_bucket(candidate.first_bytes):
            return Stock(model, process_group=process_group, **candidate.options, **options)

    group = ProcessGroup(process_group, next(model.parameters()).device)
    with as_it_was(model):
        buckets = ddp_buckets(model, counted, cluster=cluster, process_group=process_group, steps=steps)
        candidates = candidates_of(buckets)
        group.agree([f"{c.name} {_sizes(c.plan)}" for c in candidates], "candidate")
        trial = Trial(len(candidates), most_rounds=most_rounds, turn_steps=turn_steps)
        contest = _Contest(model, counted, group, make, candidates)
        ddp = contest.decide(trial)
    ddp.mgwfbp_tried = [_result(trial, number, candidate, contest.buckets[number])
                        for number, candidate in enumerate(candidates)]
    ddp.mgwfbp_steps = ran
    ddp.mgwfbp_tuning = _tell(ddp, candidates)
    if verbose and group.rank == 0:
        print(ddp.mgwfbp_tuning)
    return ddp


# ---- Results ----


def _result(trial: Trial, number: int, candidate: Candidate, sizes: List[int]) -> Tried:
    found = trial.result(number)
    return Tried(candidate.name, candidate.options, sizes, candidate.plan.iteration_s, found.mean_s, found.ratio,
                 found.width, found.rounds, number == trial.winner)


def _mebibytes(sizes: List[int]) -> str:
    return ", ".join(f"{size / MIB:.2f}" for size in sizes) + " MiB"


def _tell(ddp: Stock, candidates: List[Candidate]) -> str:
    tried, numbers = ddp.mgwfbp_tried, [number for number, each in enumerate(ddp.mgwfbp_tried) if each.won]
    won, wanted = tried[numbers[0]], _sizes(candidates[numbers[0]].plan)
    how = "its default buckets" if not won.options else ", ".join(won.options)
    lines = [f"mgwfbp: DDP with {how}: {len(won.buckets)} buckets of {_mebibytes(won.buckets)}",
             f"        after {ddp.mgwfbp_steps} steps; time per step:"]
    for each in tried:
        seen = f"{each.measured_s * 1e3:.1f} ms" if each.rounds else "not timed"
        lines.append(f"        {each.name:8} {len(each.buckets):4} buckets  {seen}, {each.ratio:.3f} ± {each.width:.3f} "
                     f"of the best in {each.rounds} rounds; {each.predicted_s * 1e3:.1f} ms predicted")
    if won.buckets != wanted:
        lines.append(f"        these are not the buckets that were planned: {_mebibytes(wanted)}")
    return "\n".join(lines)
