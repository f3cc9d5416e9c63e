"""What reducers have in common: one for each transport sends the messages of a step.

A reducer gets the slots of all gradients in ready order, and gives each its memory (`views`). In a step it hears
`start` when the forward pass begins, `begin` with the first gradient, `ready` of each, and `wait`. Gradients are multiplied
by `scale` before they are made ready: as they come, while they are in the cache, and so that sums cannot overflow.
"""

import itertools
import weakref
from time import perf_counter
from typing import Any, Callable, List, NamedTuple, Optional, Sequence, Tuple

import torch

from .. import core, planning
from . import clock
from .options import Options
from .slots import Slot


class Times(NamedTuple):
    """Of a step, in seconds from the start of the forward pass."""

    ready_s: List[float]  # of each gradient
    forward_s: float  # to the first gradient
    compute_s: float  # to the last gradient
    iteration_s: float  # to the end of the last message


class Reducer:
    """Measures forward passes, and tells what was learned in C, where the clock begins with the first gradient."""

    scale = 1.0
    broadcast: Any = None  # the group's own is as good
    views: List[torch.Tensor]
    ready: Any
    learned: core.Learned

    def __init__(self, slots: Sequence[Slot], device: torch.device):
        self.slots, self.device = slots, device
        self.time = clock.time_of(device)
        self.forward = clock.Forward(self.time)

    def start(self) -> None:
        """The forward pass begins."""
        self.forward.start()

    def begin(self) -> None:
        """The first gradient is there."""
        self.forward.stop()

    def take(self, k: int, gradient: torch.Tensor) -> bool:
        """Whether it copies a gradient that is elsewhere, and makes it ready. Else the one who has it in the cache does."""
        return False

    def measured(self) -> Optional[Times]:
        """None before the first plan."""
        trace = self.learned.trace()
        if trace is None:
            return None
        forward_s, measured = self.forward.seconds, self.learned.statistics()
        ready = list(itertools.accumulate([forward_s, *trace.backward_s]))[1:]
        return Times(ready, forward_s, forward_s + measured["compute_s"], forward_s + measured["iteration_s"])

    def network(self) -> Tuple[planning.Cluster, float]:
        """What messages cost alone, and how many times that in steps."""
        return self.learned.cluster(), self.learned.statistics()["slowdown"]


EARLY_LOOKS = 3  # that follow the first plan closely: steps show what messages cost beside computation


class Steps(Reducer):
    """Steps as C's flow and tuner have them, driven from Python. By itself it sends nothing: it only measures."""

    def __init__(self, slots: Sequence[Slot], options: Options, cluster: planning.Cluster, workers: core.Exchange,
                 device: torch.device):
        super().__init__(slots, device)
        self.workers, self.flow = workers, core.Flow(len(slots))
        self.clock = clock.Clock(self.flow, self.time)
        self.learned = self.tuner = core.Tuner(
            [slot.name for slot in slots], [slot.bytes for slot in slots], cluster, options.policy, size=workers.size,
            profile_steps=options.profile_steps, replan_steps=options.replan_steps,
            replan_percent=options.replan_percent, early_looks=EARLY_LOOKS, sampled=self.time.sampled,
            whole_steps=not options.cluster)
        self.under_way: List[tuple] = []
        self.ready = self._make_ready()
        self.adopt()

    def adopt(self) -> None:
        """The tuner's operations, from the next step on."""
        self.flow.adopt(self.tuner)

    def send(self, operation: int) -> Any:
        """Starts an operation, and returns what `finish` waits for."""

    def finish(self, operation: int, sent: Any) -> None:
        pass

    # ---- A step ----

    def begin(self) -> None:
        super().begin()
        if self.tuner.due():  # here and not behind the step before, so that between steps the plan is the one it had
            self.look()
        self.flow.begin(perf_counter())
        self.clock.begin(self.tuner.watches())

    def _make_ready(self) -> Callable[[int], None]:
        """Every gradient calls it: nothing is looked up that can be known before."""
        this, flow, now = weakref.ref(self), self.flow, perf_counter
        ready, address, now_s, samples = flow.ready, flow.address, flow.now_s, self.time.sampled

        def gradient_is_ready(k: int) -> None:
            if samples:
                this().clock.mark(k)
            now_s.value = now()
            if ready(address, k, now_s):
                this().launch()

        return gradient_is_ready

    def launch(self) -> None:
        """Sends what may start."""
        for operation in self.flow.next():
            self.under_way.append((operation, perf_counter(), self.send(operation)))

    def wait(self) -> None:
        self.clock.computed()
        for operation, started, sent in self.under_way:
            self.finish(operation, sent)
            self.flow.done(operation, started, perf_counter())
        self.under_way = []
        self.tuner.count()
        self.clock.end(self.tuner)

    # ---- Between steps ----

    def look(self, may_stay: bool = True) -> None:
        """Another plan, where it is better. Collective."""
        self.clock.settle(self.tuner)
        if self.tuner.look(self.workers, may_stay):
            self.adopt()

    def set_policy(self, policy: str) -> None:
        self.tuner.set_policy(policy)
        if self.tuner.statistics()["steps"]:
            self.look(may_stay=False)

    def close(self) -> None:
        """Nothing but memory is held."""
