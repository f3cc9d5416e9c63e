"""What reducers have in common, and their clock: one for each transport sends the messages of a step.

A reducer gets the slots of all gradients in ready order, and gives each its memory (`views`). In a step it hears
`start` when the forward pass begins, `begin` with the first gradient, `ready` of each, and `wait`. Gradients are multiplied
by `scale` before they are made ready: as they come, while they are in the cache, and so that sums cannot overflow.

A step begins with its first gradient; the forward pass before it is measured apart. Time is taken in every step, at next to
no cost: by the host's clock, or by a GPU's. C's tuner hears the times of a step when they are known.
"""

import functools
import itertools
import weakref
from ctypes import c_double
from time import perf_counter
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

import torch

from .. import core, planning
from ..environment import Options
from .batch import Batch
from .slots import Slot


# Bytes of a gradient: larger ones are made ready by themselves, in the host's memory while the cache has them; on a GPU
# what autograd has put elsewhere is let go at once.
SMALL = (1 << 16, 1 << 20)
KEPT = 32  # steps that the host may be ahead of a device, and all are measured


class HostTime:
    """Hooks run when the gradient is there: the moment of the call is the time, and the flow has it."""

    sampled = 0  # all gradients are timed

    def __init__(self, device: torch.device):
        self.device = device

    def now(self) -> Any:
        return perf_counter()

    def between(self, begun: Any, ended: Any) -> float:
        return ended - begun

    def is_over(self, moment: Any, waits: bool = False) -> bool:
        return True


class CudaTime(HostTime):
    """Hooks run when the gradient's kernels are queued: events tell when they ran. One gradient in eight has one in each
    step that counts. What the device has not reached yet is read later; nobody waits, but before a look at the plan."""

    sampled = 8

    def now(self) -> Any:
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self.device))
        return event

    def between(self, begun: Any, ended: Any) -> float:
        return begun.elapsed_time(ended) / 1e3

    def is_over(self, moment: Any, waits: bool = False) -> bool:
        if waits:
            moment.synchronize()
        return moment.query()


def stream_of(device: torch.device) -> Optional[Callable[[], int]]:
    """What tells on which stream this thread computes; None: there are none."""
    if device.type != "cuda":
        return None
    raw = getattr(torch._C, "_cuda_getCurrentRawStream", None)  # no object in between
    return functools.partial(raw, device.index) if raw else lambda: torch.cuda.current_stream(device).cuda_stream


def time_of(device: torch.device) -> HostTime:
    return (CudaTime if device.type == "cuda" else HostTime)(device)


class Forward:
    """How long the forward pass takes, from `start` to `stop`, smoothed. A device's are added when it is over them."""

    def __init__(self, time: HostTime):
        self.time, self.started, self.seconds = time, None, 0.0
        self.pending: List[tuple] = []

    def start(self) -> None:
        self.started = self.time.now()

    def stop(self) -> None:
        while self.pending and self.time.is_over(self.pending[0][1]):
            seconds = self.time.between(*self.pending.pop(0))
            self.seconds += (seconds - self.seconds) * (0.1 if self.seconds else 1.0)
        if self.started is not None:
            self.pending.append((self.started, self.time.now()))
            del self.pending[:-KEPT]
            self.started = None


class Measured(NamedTuple):
    """Of steps, in seconds from the start of the forward pass."""

    ready_s: List[float]  # of each gradient
    forward_s: float  # to the first gradient
    compute_s: float  # to the last gradient
    iteration_s: float  # to the end of the last message
    idle: planning.Cluster  # what messages cost alone
    slowdown: float  # how many times that in steps
    trace: Optional[planning.Trace] = None  # if it knows more than the times above


class Reducer:
    """Measures forward passes, and tells what was learned in C, where the clock begins with the first gradient."""

    scale = 1.0
    broadcast: Any = None  # the group's own is as good
    views: Optional[List[torch.Tensor]] = None  # None: gradients stay where they are
    ready: Any
    learned: Any = None  # a core.Learned
    counts: Tuple[str, ...] = ("steps", "plans", "messages", "arena_bytes", "trials", "trial_steps", "trying")
    planned: Any = None  # in a step, its operations: as core.Flow has them. None: every gradient is made ready by itself
    current: Any = None  # returns the stream on which this thread computes, where there are several

    def __init__(self, slots: Sequence[Slot], device: torch.device):
        self.slots, self.device = slots, device
        self.small_bytes = SMALL[device.type == "cuda"]
        self.time = time_of(device)
        self.forward = Forward(self.time)

    def start(self) -> None:
        """The forward pass begins."""
        self.forward.start()

    def begin(self) -> None:
        """The first gradient is there."""
        self.forward.stop()

    def take(self, k: int, gradient: torch.Tensor) -> bool:
        """Whether it copies a gradient that is elsewhere, and makes it ready. Else the one who has it in the cache does."""
        return False

    def take_all(self, batch: Batch, at_s: Any) -> None:
        """Makes gradients ready, which were there at these times, by tensor. Those with sources are copied first."""
        raise NotImplementedError

    def samples(self) -> Tuple[Optional[int], int, int]:
        """In a step: the stream that is its own, one in how many gradients is timed (0: by their hooks), and which one of
        those: of these `mark` hears when they are there."""
        return None, 0, 0

    def mark(self, k: int) -> None:
        pass

    def measured(self) -> Optional[Measured]:
        """None before the first plan."""
        trace = self.learned and self.learned.trace()
        if not trace:
            return None
        forward_s, found = self.forward.seconds, self.learned.statistics()
        ready = list(itertools.accumulate([forward_s, *trace.backward_s]))[1:]
        return Measured(ready, forward_s, forward_s + found["compute_s"], forward_s + found["iteration_s"],
                        self.learned.cluster(), found["slowdown"])

    def statistics(self) -> dict:
        measured = self.learned.statistics() if self.learned else {}
        return {name: measured.get(name, 0) for name in self.counts}

    def save_plan(self, path) -> None:
        """The one in force, as a file."""
        if not self.learned:
            raise RuntimeError(f"{path}: there is no plan yet: the first comes after some steps")
        self.learned.save_plan(path)

    def set_policy(self, policy: str) -> None:
        """From the next step on. Collective."""
        if self.learned:
            self.learned.set_policy(policy)

    def close(self) -> None:
        """Frees what is more than memory."""


EARLY_LOOKS = 3  # that follow the first plan closely: steps show what messages cost beside computation


class Steps(Reducer):
    """Steps as C's flow and tuner have them, driven from Python. By itself it sends nothing: it only measures."""

    def __init__(self, slots: Sequence[Slot], options: Options, cluster: planning.Cluster, workers: core.Exchange,
                 device: torch.device, **more: Any):
        super().__init__(slots, device)
        self.workers, self.flow = workers, core.Flow(len(slots))
        self.learned = self.tuner = core.Tuner(
            [slot.name for slot in slots], [slot.as_sent(options.wire).bytes for slot in slots], cluster, options.policy,
            size=workers.size, profile_steps=options.profile_steps, replan_steps=options.replan_steps,
            replan_percent=options.replan_percent, early_looks=EARLY_LOOKS, sampled=self.time.sampled,
            whole_steps=not options.cluster, trials=options.trials, **more)
        if options.plan:
            self.tuner.load_plan(options.plan)
        self.current = stream_of(device)
        self.under_way: List[tuple] = []
        self.turn, self.counted, self.ended = 0, 0, None  # type: int, int, Any
        self.past: List[tuple] = []  # steps whose times the tuner has not heard yet
        self.ready, self.planned = self._make_ready(), self.flow.operations
        self.adopt()

    def adopt(self) -> None:
        """The tuner's operations, from the next step on."""
        self.flow.adopt(self.tuner)

    def send(self, operation: int) -> Any:
        """Starts an operation, and returns what `finish` waits for."""

    def finish(self, operation: int, sent: Any) -> None:
        pass

    def begin(self) -> None:
        super().begin()
        self._begin_step()

    def _begin_step(self) -> None:
        if self.tuner.due():  # here and not behind the step before, so that between steps the plan is the one it had
            self.look()
        elif self.tuner.turn():
            self.adopt()
        self.flow.begin(perf_counter())
        self.turn += 1
        self.watched, self.marks = self.tuner.watches(), {}  # type: bool, Dict[int, Any]
        self.begun = self.time.now()

    def _make_ready(self) -> Callable[[int], None]:
        """Every gradient calls it: nothing is looked up that can be known before."""
        this, flow, now = weakref.ref(self), self.flow, perf_counter
        ready, address, now_s, samples = flow.ready, flow.address, flow.now_s, self.time.sampled

        def gradient_is_ready(k: int) -> None:
            if samples:
                this().mark(k)
            now_s.value = now()
            if ready(address, k, now_s):
                this().launch()

        return gradient_is_ready

    def mark(self, k: int) -> None:
        if self.watched and (k - self.turn) % self.time.sampled == 0:
            self.marks[k] = self.time.now()

    def samples(self) -> Tuple[Optional[int], int, int]:
        sampled = self.time.sampled if self.watched else 0
        return self.current and self.current(), sampled, self.turn % sampled if sampled else 0

    def launch(self) -> None:
        """Sends what may start."""
        for operation in self.flow.next():
            self.under_way.append((operation, perf_counter(), self.send(operation)))

    def wait(self) -> None:
        computed = self.time.now()
        for operation, started, sent in self.under_way:
            self.finish(operation, sent)
            self.flow.done(operation, started, perf_counter())
        self.under_way = []
        self.tuner.count()
        self.counted += 1
        before, self.ended = self.ended, self.time.now()
        self.past.append((self.counted, self.uses(), before, self.begun, self.marks, computed, self.ended))
        del self.past[:-KEPT]
        self.settle(waits=False)

    def settle(self, waits: bool = True) -> None:
        """Tells the tuner what is known by now, or waits for it."""
        between = self.time.between
        while self.past and self.time.is_over(self.past[0][-1], waits):
            step, uses, before, begun, marks, computed, ended = self.past.pop(0)
            ready_s, late_s = self.flow.ready_s, 0.0
            if self.time.sampled:  # gradients that take turns are of different steps: how late those were says nothing
                ready_s = (c_double * self.flow.tensors)()
                for k, moment in marks.items():
                    ready_s[k] = between(begun, moment)
            elif before:
                late_s = between(before, begun)
            need_s, stall_s = self.needs(begun, uses)
            if stall_s:
                ready_s = (c_double * self.flow.tensors)(*[t and t - stall_s for t in ready_s[:self.flow.tensors]])
            period_s = between(before, ended) if before else 0.0
            self.tuner.observe(late_s, between(begun, computed) - stall_s, between(begun, ended), ready_s, need_s, stall_s,
                               period_s, step)

    def uses(self) -> Any:
        """Of parameters in this step's forward pass: what `needs` makes times of, once they are known."""

    def needs(self, begun: Any, uses: Any) -> Tuple[Any, float]:
        """When parameters were needed, by tensor, and how long was waited for them."""
        return None, 0.0

    def look(self, may_stay: bool = True) -> None:
        """Another plan, where it is better. Collective."""
        self.settle()
        if self.tuner.look(self.workers, may_stay):
            self.adopt()

    def set_policy(self, policy: str) -> None:
        super().set_policy(policy)
        if self.tuner.statistics()["steps"]:
            self.look(may_stay=False)
