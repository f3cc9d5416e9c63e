"""The base classes of reducers, and their clocks. There is one reducer per transport; it sends the messages of a step.

A reducer gets the slots of all gradients in ready order, and provides memory for each (`views`). In a step, `start` is
called when the forward pass begins, `begin` at the first gradient, `ready` for each gradient, and then `wait`. Gradients
are multiplied by `scale` before they are reported as ready: while they are in the cache, and so that sums cannot overflow.

A step begins with its first gradient; the forward pass is measured separately. Every step is timed, at almost no cost, by
the clock of the host or of a GPU. C's tuner gets the times of a step when they are known.
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


# Bytes of a small gradient (host, GPU). Larger ones are handed over by themselves: in host memory while they are in the
# cache; on a GPU so that memory that autograd has allocated is freed at once.
SMALL = (1 << 16, 1 << 20)
KEPT = 32  # steps that the host may be ahead of a device with all of them measured


class HostTime:
    """On the host, hooks run when the gradient is ready: the flow records the time of the call."""

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
    """On a GPU, hooks run when the gradient's kernels are queued, and events record when they ran. In each step that
    counts, one gradient in eight has an event. Events that the device has not reached are read later; the host waits for
    them only before a look at the plan."""

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
    """A function that returns this thread's current stream; None on devices without streams."""
    if device.type != "cuda":
        return None
    raw = getattr(torch._C, "_cuda_getCurrentRawStream", None)  # no object in between
    return functools.partial(raw, device.index) if raw else lambda: torch.cuda.current_stream(device).cuda_stream


def time_of(device: torch.device) -> HostTime:
    return (CudaTime if device.type == "cuda" else HostTime)(device)


class Forward:
    """The smoothed duration of the forward pass, from `start` to `stop`. On a device, times are added when they are
    known."""

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
    """Times of a step, in seconds from the start of the forward pass."""

    ready_s: List[float]  # of each gradient, if nothing were sent
    forward_s: float  # to the first gradient
    compute_s: float  # to the last gradient
    iteration_s: float  # to the end of the last message
    cluster: planning.Cluster  # cost of messages, and how they and computation slow each other down
    trace: Optional[planning.Trace] = None  # if there is more than the times above


class Reducer:
    """Measures forward passes, and reports what C has learned; in C, a step begins with the first gradient."""

    scale = 1.0
    broadcast: Any = None  # None: use the group's
    views: Optional[List[torch.Tensor]] = None  # None: gradients stay where they are
    ready: Any
    learned: Any = None  # a core.Learned
    counts: Tuple[str, ...] = ("steps", "plans", "messages", "arena_bytes", "trials", "trial_steps", "trying", "lanes")
    planned: Any = None  # returns a step's operations, like core.Flow.operations. None: gradients are handed over one by one
    current: Any = None  # returns this thread's current stream; None without streams

    def __init__(self, slots: Sequence[Slot], device: torch.device):
        self.slots, self.device = slots, device
        self.small_bytes = SMALL[device.type == "cuda"]
        self.time = time_of(device)
        self.forward = Forward(self.time)

    def start(self) -> None:
        """The forward pass begins."""
        self.forward.start()

    def begin(self) -> None:
        """The first gradient is ready."""
        self.forward.stop()

    def take(self, k: int, gradient: torch.Tensor) -> bool:
        """Copies a gradient that is not in place and reports it as ready, if the reducer can; otherwise returns False, and
        the caller does."""
        return False

    def take_all(self, batch: Batch, at_s: Any) -> None:
        """Reports gradients as ready, with their times by tensor. Those with sources are copied first."""
        raise NotImplementedError

    def samples(self) -> Tuple[Optional[int], int, int]:
        """In a step: its stream; n, if one in n gradients is timed by `mark` (0: hooks time all); and which one of n."""
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
                        self.learned.cluster())

    def statistics(self) -> dict:
        measured = self.learned.statistics() if self.learned else {}
        return {name: measured.get(name, 0) for name in self.counts}

    def save_plan(self, path) -> None:
        """Saves the current plan to a file."""
        if not self.learned:
            raise RuntimeError(f"{path}: no plan yet; the first one is made after a few steps")
        self.learned.save_plan(path)

    def set_policy(self, policy: str) -> None:
        """Uses this policy from the next step on. Collective."""
        if self.learned:
            self.learned.set_policy(policy)

    def close(self) -> None:
        """Frees resources other than memory."""


EARLY_LOOKS = 3  # looks soon after the first plan, when steps have shown the cost of messages during computation


class Steps(Reducer):
    """Drives C's flow and tuner from Python. This base class sends nothing: it only measures."""

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
        self.past: List[tuple] = []  # steps whose times were not reported to the tuner yet
        self.ready, self.planned = self._make_ready(), self.flow.operations
        self.adopt()

    def adopt(self) -> None:
        """Uses the tuner's operations from the next step on."""
        self.flow.adopt(self.tuner)

    def send(self, operation: int) -> Any:
        """Starts an operation, and returns an object for `finish`."""

    def finish(self, operation: int, sent: Any) -> None:
        pass

    def begin(self) -> None:
        super().begin()
        self._begin_step()

    def _begin_step(self) -> None:
        if self.tuner.due():  # here, not at the end of the previous step, so that between steps the plan is the one that was used
            self.look()
        elif self.tuner.turn():
            self.adopt()
        self.flow.begin(perf_counter())
        self.turn += 1
        self.watched, self.marks = self.tuner.watches(), {}  # type: bool, Dict[int, Any]
        self.begun = self.time.now()

    def _make_ready(self) -> Callable[[int], None]:
        """Every gradient calls this function, so everything is looked up in advance."""
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
        """Starts all operations that may start."""
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
        """Reports the times of finished steps to the tuner; `waits`: of all steps, waiting for the device."""
        between = self.time.between
        while self.past and self.time.is_over(self.past[0][-1], waits):
            step, uses, before, begun, marks, computed, ended = self.past.pop(0)
            ready_s, late_s = self.flow.ready_s, 0.0
            if self.time.sampled:  # sampled gradients come from different steps, so lateness means nothing
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
        """The uses of parameters in this step's forward pass, which `needs` turns into times once these are known."""

    def needs(self, begun: Any, uses: Any) -> Tuple[Any, float]:
        """When parameters were needed, by tensor, and the total time spent waiting for them."""
        return None, 0.0

    def look(self, may_stay: bool = True) -> None:
        """Looks for a better plan, and adopts it. Collective."""
        self.settle()
        if self.tuner.look(self.workers, may_stay):
            self.adopt()

    def set_policy(self, policy: str) -> None:
        super().set_policy(policy)
        if self.tuner.statistics()["steps"]:
            self.look(may_stay=False)
