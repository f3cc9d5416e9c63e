"""Between steps, for the transport `torch`: rank 0 plans from what was measured, the others follow, and all make sure
that they follow the same. The C engine does this itself for the transport `native`."""

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
    before = [forward_s, *ready_s[:-1]]
    backward = [max(0.0, now - then) for now, then in zip(ready_s, before)]
    return planning.Trace.create(model, [slot.name for slot in slots], counts, backward, forward_s, dtype or "f16")


class Planner:
    """Decides when a new plan is due, and which."""

    def __init__(self, group: Group, slots: Sequence[Slot], options: Options, cluster: planning.Cluster):
        self.group, self.slots, self.options, self.cluster = group, slots, options, cluster
        self.policy = options.policy
        self.plan: Optional[planning.Plan] = None  # rank 0 knows the whole plan, the others its cuts
        self.times = None  # behind the plan
        self.plans = 0
        self.window = 0  # steps since the last look
        self.after_backward = False  # naive: nothing is sent before all is ready
        planning.plan(trace_of(slots, [0.0] * len(slots), 0.0), cluster, self.policy)  # a bad name fails now

    def first_cut(self) -> List[int]:
        """Until there is a plan: as PyTorch's DDP would, which is rarely bad."""
        plan = planning.plan(trace_of(self.slots, [0.0] * len(self.slots), 0.0), self.cluster, "ddp")
        return [m.first + m.count for m in plan.messages]

    def after_step(self, clock) -> Optional[List[int]]:
        """Counts the step; where a look is due, the new cuts if there are any. Collective."""
        self.window += 1
        due = self.options.replan_steps if self.times else max(self.options.profile_steps, clock.STEPS_NEEDED)
        if self.window < due:
            return None
        times = clock.collect()
        clock.reset()
        self.window = 0
        rows = self.group.exchange([times.forward_s, *times.ready_s])
        ready, latest = [], 0.0  # the slowest worker's count; a message waits for all before it
        for k in range(len(self.slots)):
            latest = max(latest, *(row[k + 1] for row in rows))
            ready.append(latest)
        self.times = times._replace(ready_s=ready, forward_s=min(ready[0], max(row[0] for row in rows)))
        return self._decide()

    def set_policy(self, policy: str) -> Optional[List[int]]:
        planning.plan(trace_of(self.slots, [0.0] * len(self.slots), 0.0), self.cluster, policy)
        self.policy = policy
        return self._decide() if self.times else None

    def _decide(self) -> Optional[List[int]]:
        made = self._make() if self.group.rank == 0 else None
        ends = [m.first + m.count for m in made.messages] if made else []
        told = self.group.tell([len(ends), self.policy == "naive", *ends], len(self.slots) + 2)
        ends = told[2:2 + told[0]]
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
        trace = trace_of(self.slots, self.times.ready_s, self.times.forward_s)
        made = planning.plan(trace, self.cluster, self.policy)
        if self.plan is not None and self.plan.policy == made.policy:
            kept = self.plan.time(trace, self.cluster).iteration_s
            if made.iteration_s >= kept * (1 - self.options.replan_percent / 100):
                return None
        return made
