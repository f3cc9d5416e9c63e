"""PyTorch's own DDP, with the buckets that steps have shown to be the shortest: its default, where that is."""

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
WARM_UP = 3  # steps: DDP makes its buckets after the first, and tells them with the third


class Candidate(NamedTuple):
    name: str
    plan: planning.Plan  # what is predicted
    options: Dict[str, Any]  # of DDP
    first_bytes: Optional[int] = None  # of the first bucket, where DDP has no option for it


class Tried(NamedTuple):
    """A candidate, and what its steps have shown."""

    name: str
    options: Dict[str, Any]
    buckets: List[int]  # bytes, by DDP's own account
    predicted_s: float
    measured_s: float
    ratio: float  # to the best
    width: float  # of the interval around it, to either side
    rounds: int
    won: bool


# ---- Candidates ----


def candidates_of(buckets: Buckets) -> List[Candidate]:
    """DDP's default; the best plan that this DDP can be told, and the best of those with half as many buckets or fewer,
    and with twice as many or more: what messages cost beside computation is not known before it is tried."""
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
    """DDP takes that limit from a variable of its module, when it is made."""
    before = dist._DEFAULT_FIRST_BUCKET_BYTES
    dist._DEFAULT_FIRST_BUCKET_BYTES = before if size is None else size
    try:
        yield
    finally:
        dist._DEFAULT_FIRST_BUCKET_BYTES = before


# ---- Trying them ----


class _Contest:
    """A stock DDP for each candidate, all around one model: those that are not in a step leave its gradients alone."""

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
        """What each took. Nobody waits for a device before the last."""
        moments = [self.time.now()]
        for _ in range(steps):
            self.model.zero_grad(set_to_none=True)
            self.step(self.ddps[number])
            moments.append(self.time.now())
        self.time.is_over(moments[-1], waits=True)
        return [self.time.between(begun, ended) for begun, ended in zip(moments, moments[1:])]

    def decide(self, trial: Trial) -> Stock:
        """Every worker has the same trial: it is told the same numbers, and they make sure that it says the same."""
        while trial.winner is None:
            order = trial.left
            seconds = [Trial.turn(self.run(number, trial.turn_steps)[1:]) for number in order]
            row = torch.tensor(seconds, dtype=torch.float64, device=self.group.device)
            self.group.all_reduce(row, "average")
            self.group.broadcast(row)
            trial.round(row.tolist())
            self.group.agree([str(trial.left), str(trial.winner)], "candidate")
            for number in set(order) - set(trial.left):
                del self.ddps[number]  # and its buckets' memory
        return self.ddps[trial.winner]


def tune_ddp(model: torch.nn.Module, step: Step, *, cluster: Optional[planning.ClusterLike] = None,
             process_group=None, steps: int = 8, most_rounds: int = 30, turn_steps: int = 5, verbose: bool = True,
             **options: Any) -> Stock:
    """Wraps the model in PyTorch's own DistributedDataParallel, with the buckets that make the step shortest.

    Some plans are tried on real steps, in turn with DDP's default, `turn_steps` at a time, until the better one is clear
    or too close to matter, in at most `most_rounds` rounds. The default is returned where it wins, or where it is not
    clear that another is as good. The model's parameters, buffers and gradients, and random numbers, are as before.

    Where DDP takes a list of bucket sizes (bucket_cap_mb_list), it gets the plan's; else the best that its limits can do.
    `ddp.mgwfbp_tried` has what was measured, `ddp.mgwfbp_steps` how many steps that took, `ddp.mgwfbp_tuning` both as
    text, which rank 0 prints if `verbose`. `options` go to DistributedDataParallel. All workers must call this.

    >>> ddp = tune_ddp(model, lambda m: loss(m(inputs), targets).backward())    # doctest: +SKIP
    """
    for name in ("bucket_cap_mb", "bucket_cap_mb_list"):
        if name in options:
            raise ValueError(f"{name}: that is what tune_ddp finds out")

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


# ---- What it says ----


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
             f"        after {ddp.mgwfbp_steps} steps, of which these took:"]
    for each in tried:
        seen = f"{each.measured_s * 1e3:.1f} ms" if each.rounds else "not timed"
        lines.append(f"        {each.name:8} {len(each.buckets):4} buckets  {seen}, {each.ratio:.3f} ± {each.width:.3f} "
                     f"of the best in {each.rounds} rounds; {each.predicted_s * 1e3:.1f} ms predicted")
    if won.buckets != wanted:
        lines.append(f"        these are not the buckets that were planned: {_mebibytes(wanted)}")
    return "\n".join(lines)
