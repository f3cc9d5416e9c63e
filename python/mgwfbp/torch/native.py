"""The transport `native`: the C engine, whose communication thread sends messages without the interpreter's lock.

Same calls as the reducer of process_group.py; calibrating, measuring and planning are the engine's own business.
"""

import ctypes
from time import perf_counter
from typing import Optional, Sequence, Tuple

import torch

from .. import planning
from ..engine import Engine
from . import clock
from .groups import DTYPES
from .options import Options
from .slots import Slot


class NativeReducer:
    scale = 1.0  # the engine averages

    def __init__(self, transport: Optional[str], timeout_s: float, slots: Sequence[Slot], options: Options):
        self.engine = Engine(transport, timeout_s, options.policy, options.cluster, options.profile_steps,
                             options.replan_steps, options.replan_percent)
        self.slots = slots
        for slot in slots:
            if slot.dtype not in DTYPES:
                raise RuntimeError(f"parameter '{slot.name}': gradients of {slot.dtype} cannot be averaged by the "
                                   "transport native")
            self.engine.add(slot.name, slot.count, DTYPES[slot.dtype])
        self.engine.start()
        self.views = [slot.view(self._memory(k, slot)) for k, slot in enumerate(slots)]
        self.ready = self.engine.ready
        self.started: Optional[float] = None
        self.forward_s = 0.0  # smoothed

    def _memory(self, k: int, slot: Slot) -> torch.Tensor:
        """The gradient's memory in the engine's arena, which lives as long as any tensor shows it."""
        if not slot.count:
            return torch.zeros(0, dtype=slot.dtype)
        buffer = (ctypes.c_char * slot.bytes).from_address(self.engine.gradient(k))
        buffer._keeps = self.engine
        return torch.frombuffer(buffer, dtype=slot.dtype)

    # ---- A step ----

    def start(self) -> None:
        """The forward pass begins."""
        self.started = perf_counter()

    def begin(self) -> None:
        if self.started is not None:
            forward = perf_counter() - self.started
            self.forward_s += (forward - self.forward_s) * (0.1 if self.forward_s else 1.0)
            self.started = None
        self.engine.begin()

    def wait(self) -> None:
        self.engine.wait()

    # ---- What happened ----

    def measured(self) -> Optional[clock.Times]:
        """The engine's clock begins with the first gradient; the forward pass is added here."""
        text = self.engine.trace_json()
        if text is None:
            return None
        ready, now = [], self.forward_s
        for seconds in planning.Trace.parse(text).backward_s:
            now += seconds
            ready.append(now)
        measured = self.engine.statistics()
        return clock.Times(ready, self.forward_s, self.forward_s + measured["compute_s"],
                           self.forward_s + measured["iteration_s"])

    def network(self) -> Tuple[planning.Cluster, float]:
        return planning.Cluster.parse(self.engine.cluster_json()), 1.0

    def statistics(self) -> dict:
        measured = self.engine.statistics()
        return {name: measured[name] for name in ("steps", "plans", "messages", "arena_bytes")}

    def set_policy(self, policy: str) -> None:
        self.engine.set_policy(policy)

    def close(self) -> None:
        """The engine ends when nobody shows its memory any more."""
        self.views, self.ready, self.engine = [], None, None
