"""Bucket sizes for PyTorch's own DDP and for Horovod."""

import contextlib
import inspect
import itertools
from typing import Iterable, Iterator, List, NamedTuple, Optional, Tuple

import torch
import torch.distributed as dist

from .. import planning
from ..environment import Options
from .groups import ProcessGroup
from .process_group import find_cluster
from .profile import Step, measure
from .slots import Arena, trace_of

MIB = 1 << 20
_made_by = torch.nn.parallel.DistributedDataParallel.__init__
TAKES_LIST = "bucket_cap_mb_list" in inspect.signature(_made_by).parameters
# From PyTorch 2.4 on, bucket_cap_mb also applies to the first bucket; before, that limit was a module variable.
NAMES_FIRST = TAKES_LIST or "bucket_bytes_cap_default" in inspect.getsource(_made_by)


class Buckets(NamedTuple):
    """Buckets for other libraries: pass `megabytes` to DDP's bucket_cap_mb_list, or `bucket_cap_mb` to a DDP without that
    list; pass `groups_of(model)` to Horovod's groups=."""

    bytes: List[int]
    names: List[List[str]]
    plan: planning.Plan
    trace: planning.Trace
    cluster: planning.Cluster

    @property
    def megabytes(self) -> List[float]:
        return [size / MIB for size in self.bytes]

    @property
    def bucket_cap_mb(self) -> float:
        """The single limit to advise, as this PyTorch's DDP understands it."""
        if NAMES_FIRST:
            return planning.advise_buckets(self.trace, self.cluster)[0]
        return limits_of(best(one_limits(self.trace, self.cluster)))[1] / MIB

    def groups_of(self, model: torch.nn.Module) -> List[List[torch.nn.Parameter]]:
        """The parameters of each bucket: hvd.DistributedOptimizer(optimizer, groups=buckets.groups_of(model))."""
        parameters = dict(model.named_parameters())
        return [[parameters[name] for name in names] for names in self.names]


def ddp_buckets(model: torch.nn.Module, step: Step, *, cluster: Optional[planning.ClusterLike] = None,
                process_group=None, policy: str = "optimal", steps: int = 8) -> Buckets:
    """Profiles a few steps and returns the buckets that make the step shortest.

    `step(model)` computes a loss and calls backward. Without a cluster, the cost of messages is measured on the process
    group; then all of its workers must call this.

    >>> buckets = ddp_buckets(model, step, cluster="paper-2-10gbe")     # doctest: +SKIP
    >>> buckets.megabytes                                               # doctest: +SKIP
    [7.8, 89.7]
    """
    with as_it_was(model):
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
        raise ValueError("cluster: pass one, or initialise a process group on which to measure it")
    trace, cluster = trace_of(slots, ready, forward_s), planning.Cluster.of(cluster)
    plan = planning.plan(trace, cluster, policy)
    return Buckets([operation.bytes for operation in plan.operations], plan.groups, plan, trace, cluster)


@contextlib.contextmanager
def as_it_was(model: torch.nn.Module) -> Iterator[None]:
    """Undoes the effects of trial steps: restores buffers and random number generators, and sets gradients to None."""
    device = next(model.parameters()).device
    buffers = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        try:
            yield
        finally:
            with torch.no_grad():
                for buffer, before in buffers:
                    buffer.copy_(before)
            model.zero_grad(set_to_none=True)


# ---- Plans that DDP's limits allow ----


def limits_of(plan: planning.Plan) -> Tuple[int, int]:
    """The limits of a plan of the policy ddp, in bytes: of the first bucket, and of the others."""
    sizes = plan.policy.partition(":")[2] or f"{MIB},{25 * MIB}"  # the name has no sizes if they are DDP's defaults
    first, cap = (int(size.rstrip("B")) for size in sizes.split(","))
    return first, cap


def one_limits(trace: planning.Trace, cluster: planning.Cluster) -> List[planning.Plan]:
    """Plans that DDP can make with one limit, bucket_cap_mb."""
    caps = _caps(trace)
    return [planning.plan(trace, cluster, f"ddp:{cap if NAMES_FIRST else MIB}B,{cap}B") for cap in caps]


def two_limits(trace: planning.Trace, cluster: planning.Cluster) -> List[planning.Plan]:
    """Plans that DDP can make with one limit for the first bucket and one for the others."""
    prefix = list(itertools.accumulate(trace.bytes))
    firsts = sorted({prefix[i * (len(prefix) - 1) // 23] for i in range(24)} | {MIB})
    return [planning.plan(trace, cluster, f"ddp:{first}B,{cap}B")
            for first, cap in itertools.product(firsts, _caps(trace))]


def best(plans: Iterable[planning.Plan]) -> planning.Plan:
    return min(plans, key=lambda plan: (plan.iteration_s, plan.message_count))


def _caps(trace: planning.Trace) -> List[int]:
    total = sum(trace.bytes)
    return sorted({max(1, int(total * 1.35 ** -i)) for i in range(32)} | {25 * MIB})


def bucket_sizes(ddp: torch.nn.parallel.DistributedDataParallel) -> List[int]:
    """The bucket sizes of a stock DDP in bytes, as it reports them."""
    data = ddp._get_ddp_logging_data()
    text = data.get("rebuilt_bucket_sizes") or data.get("bucket_sizes") or ""
    return [int(size) for size in text.split(",") if size.strip()]
