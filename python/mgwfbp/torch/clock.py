"""When gradients become ready, measured in every step at next to no cost: by the host's clock, or by a GPU's.

A step begins with its first gradient; the forward pass before it is measured apart. C's tuner hears the times of a step
when they are known.
"""

from ctypes import c_double
from time import perf_counter
from typing import Any, Dict, List

import torch

from .. import core

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


def time_of(device: torch.device) -> HostTime:
    return (CudaTime if device.type == "cuda" else HostTime)(device)


class Clock:
    """Of steps."""

    def __init__(self, flow: core.Flow, time: HostTime):
        self.flow, self.time, self.turn = flow, time, 0
        self.ended: Any = None
        self.steps: List[tuple] = []

    def begin(self, watched: bool) -> None:
        """The first gradient is there. `watched`: gradients' times will count."""
        self.turn += 1
        self.watched, self.marks = watched, {}  # type: bool, Dict[int, Any]
        self.begun = self.time.now()

    def mark(self, k: int) -> None:
        if self.watched and (k - self.turn) % self.time.sampled == 0:
            self.marks[k] = self.time.now()

    def computed(self) -> None:
        """All are there."""
        self.computed_at = self.time.now()

    def end(self, tuner: core.Tuner) -> None:
        """All messages have been waited for."""
        before, self.ended = self.ended, self.time.now()
        self.steps.append((before, self.begun, self.marks, self.computed_at, self.ended))
        del self.steps[:-KEPT]
        self.settle(tuner, waits=False)

    def settle(self, tuner: core.Tuner, waits: bool = True) -> None:
        """Tells what is known by now, or waits for it."""
        while self.steps and self.time.is_over(self.steps[0][-1], waits):
            before, begun, marks, computed_at, ended = self.steps.pop(0)
            ready_s, late_s = self.flow.ready_s, 0.0
            if self.time.sampled:  # gradients that take turns are of different steps: how late those were says nothing
                ready_s = (c_double * self.flow.tensors)()
                for k, moment in marks.items():
                    ready_s[k] = self.time.between(begun, moment)
            elif before:
                late_s = self.time.between(before, begun)
            tuner.observe(late_s, self.time.between(begun, computed_at), self.time.between(begun, ended), ready_s)


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
