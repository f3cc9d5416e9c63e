"""Between steps, for the transport `torch`: rank 0 plans from what was measured, the others follow, and all make sure
that they follow the same. The C engine does this itself for the transport `native`."""

import itertools
import zlib
from typing import List, Optional, Sequence

from .. import planning
from .groups import Group
from .options import Options
from .slots import Slot


def trace_of(slots: Sequence[Slot], ready_s: Sequence[float], forward_s: float, model: str = "measured"):
    """Measured times as a trace. The planner counts bytes: several dtypes are written as 16-bit elements."""
    dtypes = {slot.dtype for slot in slots}
    names = {"torch.float32": "f32", "torch.float64": "f64", "torch.bfloat16": "bf16", "torch.float16": "f16"}
    dtype = names.get(str(slots[0].dtype)) if len(dtypes) == 1 else None
    counts = [slot.count if dtype else (slot.bytes + 1) // 2 for slot in slots]
    ready = list(itertools.accumulate([forward_s, *ready_s], max))  # a message waits for all before it
    backward = [now - before for before, now in zip(ready, ready[1:])]
    return planning.Trace.create(model, [slot.name for slot in slots], counts, backward, forward_s, dtype or "f16")


EARLY = 3  # looks that follow each other more closely, and take every better plan
SLOWEST = 8.0


def slowdown_of(plan: planning.Plan, trace: planning.Trace, idle: planning.Cluster, measured_s: float) -> float:
    """How many times as long as on an idle machine messages must have taken, for a step under this plan to take as long
    as it did: computation and communication share cores and memory."""
    if plan.time(trace, idle).iteration_s >= measured_s:
        return 1.0
    low, high = 1.0, SLOWEST
    for _ in range(20):
        middle = (low + high) / 2
        if plan.time(trace, scaled(idle, middle)).iteration_s < measured_s:
            low = middle
        else:
            high = middle
    return high


def scaled(cluster: planning.Cluster, factor: float) -> planning.Cluster:
    return planning.Cluster.line(cluster.name, cluster.workers, cluster.a_s * factor, cluster.b_s_per_byte * factor)


class Planner:
    """Decides when a new plan is due, and which. `idle` is what messages cost where nothing else happens; if it was
    measured, steps show what they cost beside computation."""

    def __init__(self, group: Group, slots: Sequence[Slot], options: Options, idle: planning.Cluster):
        self.group, self.slots, self.options, self.idle = group, slots, options, idle
        self.slowdown = 1.0
        self.looks = 0
        self.policy = options.policy
        self.plan: Optional[planning.Plan] = None  # rank 0 knows the whole plan, the others its cuts
        self.times = None  # behind the plan
        self.plans = 0
        self.window = 0  # steps since the last look
        self.after_backward = False  # the plan's release rule: nothing is sent before all is ready
        planning.plan(trace_of(slots, [0.0] * len(slots), 0.0), idle, self.policy)  # a bad name fails now

    def first_cut(self) -> List[int]:
        """Until there is a plan: as PyTorch's DDP would, which is rarely bad."""
        plan = planning.plan(trace_of(self.slots, [0.0] * len(self.slots), 0.0), self.cluster, "ddp")
        return [m.first + m.count for m in plan.operations]

    def after_step(self, clock) -> Optional[List[int]]:
        """Counts the step; where a look is due, the new cuts if there are any. Collective."""
        self.window += 1
        if self.window < self._due(max(self.options.profile_steps, clock.STEPS_NEEDED)):
            return None
        times = clock.collect()
        clock.reset()
        self.window = 0
        self.looks += 1
        rows = self.group.exchange([times.iteration_s, times.forward_s, *times.ready_s])
        worst = [max(column) for column in zip(*rows)]  # the slowest worker's count
        ready = list(itertools.accumulate(worst[2:], max))  # a message waits for all before it
        self.times = times._replace(ready_s=ready, forward_s=min(ready[0], worst[1]), compute_s=ready[-1],
                                    iteration_s=max(worst[0], ready[-1]))
        self._learn()
        return self._decide()

    def _due(self, first: int) -> int:
        """Steps from one look to the next."""
        often = min(first, self.options.replan_steps)
        return first if not self.looks else often if self.looks <= EARLY else self.options.replan_steps

    def _trace(self) -> planning.Trace:
        return trace_of(self.slots, self.times.ready_s, self.times.forward_s)

    def _learn(self) -> None:
        """Rank 0, with a plan in force: what messages cost beside computation. A user's cluster stays as it is."""
        if self.plan is not None and not self.options.cluster:
            seen = slowdown_of(self.plan, self._trace(), self.idle, self.times.iteration_s)
            self.slowdown = seen if self.looks <= 2 else (self.slowdown * seen) ** 0.5

    @property
    def cluster(self) -> planning.Cluster:
        """What messages cost in steps."""
        return scaled(self.idle, self.slowdown) if self.slowdown > 1 else self.idle

    def set_policy(self, policy: str) -> Optional[List[int]]:
        planning.plan(trace_of(self.slots, [0.0] * len(self.slots), 0.0), self.cluster, policy)
        self.policy = policy
        return self._decide() if self.times else None

    def _decide(self) -> Optional[List[int]]:
        made = self._make() if self.group.rank == 0 else None
        ends = [m.first + m.count for m in made.operations] if made else []
        waits = any(o.release == "after-backward" for o in made.operations) if made else False
        told = self.group.tell([len(ends), waits, int(self.slowdown * 1e6), *ends], len(self.slots) + 3)
        ends, self.slowdown = told[3:3 + told[0]], told[2] / 1e6
        if not ends:
            return None
        rows = self.group.exchange([zlib.crc32(repr(told).encode())])
        wrong = next((r for r, row in enumerate(rows) if row != rows[0]), 0)
        if wrong:
            raise RuntimeError(f"rank {wrong} has another plan than rank 0")
        self.plan = made
        self.after_backward = bool(told[1])
        self.plans += 1
        return ends

    def _make(self) -> Optional[planning.Plan]:
        """Rank 0: the new plan; None where the one in force is as good."""
        made = planning.plan(self._trace(), self.cluster, self.policy)
        if self.plan is not None and self.plan.policy == made.policy:
            kept = self.plan.time(self._trace(), self.cluster).iteration_s
            percent = 0 if self.looks <= EARLY else self.options.replan_percent
            if made.iteration_s >= kept * (1 - percent / 100):
                return None
        return made
