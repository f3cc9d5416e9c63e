"""Only the plan, for PyTorch's own DDP: bucket sizes, and a stock DDP that uses them."""

import inspect
import itertools
from typing import Any, List, NamedTuple, Optional

import torch
import torch.distributed as dist

from .. import planning
from ..environment import Options
from .groups import ProcessGroup
from .process_group import find_cluster
from .profile import Step, measure
from .slots import Arena, trace_of

MIB = 1 << 20


class Buckets(NamedTuple):
    """What to hand to others: `megabytes` to DDP's bucket_cap_mb_list, `groups_of(model)` to Horovod's groups=."""

    bytes: List[int]
    names: List[List[str]]
    plan: planning.Plan
    trace: planning.Trace
    cluster: planning.Cluster

    @property
    def megabytes(self) -> List[float]:
        return [size / MIB for size in self.bytes]

    def groups_of(self, model: torch.nn.Module) -> List[List[torch.nn.Parameter]]:
        """The parameters of each bucket: hvd.DistributedOptimizer(optimizer, groups=buckets.groups_of(model))."""
        parameters = dict(model.named_parameters())
        return [[parameters[name] for name in names] for names in self.names]


def ddp_buckets(model: torch.nn.Module, step: Step, *, cluster: Optional[planning.ClusterLike] = None,
                process_group=None, policy: str = "optimal", steps: int = 8) -> Buckets:
    """Profiles some steps and returns the buckets that make the step shortest.

    `step(model)` computes a loss and calls backward. Without a cluster, what messages cost is measured on the process
    group; then all its workers must call this.

    >>> buckets = ddp_buckets(model, step, cluster="paper-2-10gbe")     # doctest: +SKIP
    >>> buckets.megabytes                                               # doctest: +SKIP
    [7.8, 89.7]
    """
    slots, times = measure(model, step, steps)
    ready, forward_s = times.ready_s, times.forward_s
    if dist.is_available() and dist.is_initialized():
        group = ProcessGroup(process_group, next(model.parameters()).device)
        group.agree([slot.name for slot in slots], "ready gradient")
        forward_s, *ready = group.largest([forward_s, *ready])
        if cluster is None:
            arena = Arena(slots, next(model.parameters()).device)
            cluster = find_cluster(group, arena, Options.complete())
    if cluster is None:
        raise ValueError("cluster: name one, or initialise a process group on which it can be measured")
    trace, cluster = trace_of(slots, ready, forward_s), planning.Cluster.of(cluster)
    plan = planning.plan(trace, cluster, policy)
    return Buckets([operation.bytes for operation in plan.operations], plan.groups, plan, trace, cluster)


def two_limits(trace: planning.Trace, cluster: planning.Cluster, same: bool = False) -> planning.Plan:
    """The best plan that DDP can make of a limit for the first bucket and one for the others; or the same for all."""
    prefix = list(itertools.accumulate(trace.bytes))
    firsts = sorted({prefix[i * (len(prefix) - 1) // 23] for i in range(24)} | {MIB})
    caps = sorted({max(1, int(prefix[-1] * 1.35 ** -i)) for i in range(32)} | {25 * MIB})
    pairs = [(cap, cap) for cap in caps] if same else itertools.product(firsts, caps)
    plans = (planning.plan(trace, cluster, f"ddp:{first},{cap}") for first, cap in pairs)
    return min(plans, key=lambda plan: (plan.iteration_s, plan.message_count))


def tune_ddp(model: torch.nn.Module, step: Step, *, cluster: Optional[planning.ClusterLike] = None,
             process_group=None, steps: int = 8, verbose: bool = True,
             **options: Any) -> torch.nn.parallel.DistributedDataParallel:
    """Wraps the model in PyTorch's own DistributedDataParallel, with the buckets that make the step shortest.

    Where DDP takes a list of bucket sizes (bucket_cap_mb_list), it gets the plan's; else the best that its two limits
    can do. Three steps are run with it, after which DDP itself tells its buckets; `ddp.mgwfbp_tuning` says what was
    asked for and what came out, and rank 0 prints it if `verbose`. `options` go to DistributedDataParallel.

    >>> ddp = tune_ddp(model, lambda m: loss(m(inputs), targets).backward())    # doctest: +SKIP
    """
    for name in ("bucket_cap_mb", "bucket_cap_mb_list"):
        if name in options:
            raise ValueError(f"{name}: that is what tune_ddp finds out")
    stock = torch.nn.parallel.DistributedDataParallel
    buckets = ddp_buckets(model, step, cluster=cluster, process_group=process_group, steps=steps)
    if "bucket_cap_mb_list" in inspect.signature(stock.__init__).parameters:
        plan, how = buckets.plan, "bucket_cap_mb_list"
        ddp = stock(model, process_group=process_group, bucket_cap_mb_list=buckets.megabytes, **options)
    else:
        # From PyTorch 2.4 on a limit that is named is that of the first bucket, too.
        has_one = "bucket_bytes_cap_default" in inspect.getsource(stock.__init__)
        plan = two_limits(buckets.trace, buckets.cluster, has_one)
        first, cap = map(int, plan.policy.partition(":")[2].split(","))
        how = f"a first bucket of {first / MIB:.2f} MiB and others of {cap / MIB:.2f} MiB"
        # DDP takes the first limit from a variable of its module, when it is made.
        before, dist._DEFAULT_FIRST_BUCKET_BYTES = dist._DEFAULT_FIRST_BUCKET_BYTES, first
        try:
            ddp = stock(model, process_group=process_group, bucket_cap_mb=cap / MIB, **options)
        finally:
            dist._DEFAULT_FIRST_BUCKET_BYTES = before
    for _ in range(3):  # DDP makes its buckets after the first, and tells them with the third
        step(ddp)
    model.zero_grad(set_to_none=True)
    ddp.mgwfbp_tuning = _tell(ddp, buckets, plan, how)
    if verbose and dist.get_rank(process_group) == 0:
        print(ddp.mgwfbp_tuning)
    return ddp


def bucket_sizes(ddp: torch.nn.parallel.DistributedDataParallel) -> List[int]:
    """The buckets that a stock DDP uses, in bytes, by its own account."""
    data = ddp._get_ddp_logging_data()
    text = data.get("rebuilt_bucket_sizes") or data.get("bucket_sizes") or ""
    return [int(size) for size in text.split(",") if size.strip()]


def _mebibytes(sizes: List[int]) -> str:
    return ", ".join(f"{size / MIB:.2f}" for size in sizes) + " MiB"


def _tell(ddp, buckets: Buckets, plan: planning.Plan, how: str) -> str:
    wanted, got = [operation.bytes for operation in plan.operations], bucket_sizes(ddp)
    default = planning.plan(buckets.trace, buckets.cluster, "ddp")
    lines = [f"mgwfbp: DDP with {how}: {len(got)} buckets of {_mebibytes(got)}",
             f"        predicted step {plan.iteration_s * 1e3:.1f} ms; DDP's default buckets "
             f"{default.iteration_s * 1e3:.1f} ms, the best plan {buckets.plan.iteration_s * 1e3:.1f} ms"]
    if got != wanted:
        lines.append(f"        these are not the buckets that were planned: {_mebibytes(wanted)}")
    return "\n".join(lines)
