"""When gradients become ready, measured in every step at next to no cost: by the host's clock, or by a GPU's.

A step begins with its first gradient; the forward pass before it is measured apart. C's tuner hears the times of a step
when they are known.
"""

from ctypes import c_double
from time import perf_counter
from typing import Any, Dict, List, Optional

import torch

from .. import core

KEPT = 32  # steps that the host may be ahead of a device, and all are measured


def event_on(device: torch.device):
    """The moment at which the device comes to where its current stream is now."""
    event = torch.cuda.Event(enable_timing=True)
    event.record(torch.cuda.current_stream(device))
    return event


class HostClock:
    """Hooks run when the gradient is there, so that the flow has the times of gradients."""

    sampled = 0  # all are timed

    def __init__(self, flow: core.Flow, device: torch.device):
        self.flow = flow
        self.ended: Optional[float] = None

    def begin(self, watched: bool) -> float:
        """The first gradient is there: when, by the host's clock. `watched`: gradients' times will count."""
        self.begun = perf_counter()
        self.late_s = self.begun - self.ended if self.ended else 0.0
        return self.begun

    def computed(self) -> None:
        """All are there."""
        self.compute_s = perf_counter() - self.begun

    def end(self, tuner: core.Tuner) -> None:
        """All messages have been waited for."""
        self.ended = perf_counter()
        tuner.observe(self.late_s, self.compute_s, self.ended - self.begun, self.flow.ready_s)

    def settle(self, tuner: core.Tuner) -> None:
        """Makes known what is not known yet."""


class CudaClock:
    """Hooks run when the gradient's kernels are queued: events tell when they ran. One gradient in eight has one in each
    step that counts. What the device has not reached yet is read later; nobody waits, but before a look at the plan."""

    sampled = 8

    def __init__(self, flow: core.Flow, device: torch.device):
        self.flow, self.device, self.turn = flow, device, 0
        self.steps: List[tuple] = []

    def begin(self, watched: bool) -> float:
        self.turn = (self.turn + 1) % self.sampled
        self.watched, self.marks = watched, {}  # type: bool, Dict[int, Any]
        self.begun = event_on(self.device)
        return perf_counter()

    def mark(self, k: int) -> None:
        if self.watched and k % self.sampled == self.turn:
            self.marks[k] = event_on(self.device)

    def computed(self) -> None:
        self.computed_at = event_on(self.device)

    def end(self, tuner: core.Tuner) -> None:
        self.steps.append((self.begun, self.marks, self.computed_at, event_on(self.device)))
        del self.steps[:-KEPT]
        while self.steps and self.steps[0][-1].query():
            self._observe(tuner, *self.steps.pop(0))

    def settle(self, tuner: core.Tuner) -> None:
        while self.steps:
            self.steps[0][-1].synchronize()
            self._observe(tuner, *self.steps.pop(0))

    def _observe(self, tuner: core.Tuner, begun, marks, computed_at, ended) -> None:
        ready_s = (c_double * self.flow.tensors)()
        for k, event in marks.items():
            ready_s[k] = begun.elapsed_time(event) / 1e3
        # How late a step was begun is not told: gradients that take turns are of different steps.
        tuner.observe(0.0, begun.elapsed_time(computed_at) / 1e3, begun.elapsed_time(ended) / 1e3, ready_s)


class HostForward:
    """How long the forward pass takes, from `start` to `stop`, smoothed."""

    def __init__(self, device: torch.device):
        self.device, self.started, self.seconds = device, None, 0.0
        self.pending: List[tuple] = []  # what the device has not reached yet

    def start(self) -> None:
        self.started = perf_counter()

    def stop(self) -> None:
        if self.started is not None:
            self._add(perf_counter() - self.started)
            self.started = None

    def _add(self, seconds: float) -> None:
        self.seconds += (seconds - self.seconds) * (0.1 if self.seconds else 1.0)


class CudaForward(HostForward):
    """The same by the device's clock. What it has not reached yet is added later; nobody waits."""

    def start(self) -> None:
        self.started = event_on(self.device)

    def stop(self) -> None:
        while self.pending and self.pending[0][1].query():
            began, ended = self.pending.pop(0)
            self._add(began.elapsed_time(ended) / 1e3)
        if self.started is not None:
            self.pending.append((self.started, event_on(self.device)))
            del self.pending[:-KEPT]
            self.started = None


def for_device(device: torch.device):
    """The kinds of clock: of gradients, and of the forward pass."""
    return (CudaClock, CudaForward) if device.type == "cuda" else (HostClock, HostForward)
