"""When gradients become ready: measured in every step, at next to no cost."""

import itertools
import statistics
from time import perf_counter
from typing import List, NamedTuple, Optional, Sequence

import torch

KEPT = 32  # steps: the last ones, whose medians count


class Times(NamedTuple):
    """Medians, in seconds from the start of the forward pass."""

    ready_s: List[float]  # of each gradient
    forward_s: float  # to the first gradient
    compute_s: float  # to the last gradient
    iteration_s: float  # to the end of the last message


def _times(rows: Sequence[Sequence[float]], forward_s: float, ends: Sequence[float]) -> Times:
    """rows: of each gradient, the measured times."""
    known = [statistics.median(row) for row in rows if row]
    # What was not measured yet is taken to be ready with the one before it.
    ready = list(itertools.accumulate((statistics.median(row) if row else None for row in rows),
                                      lambda before, now: before if now is None else now))
    latest = max(known)
    return Times([now or 0.0 for now in ready], min(forward_s, *known), latest, max(latest, statistics.median(ends)))


class CpuClock:
    """Hooks run when the gradient is there: the time of the call is the time."""

    STEPS_NEEDED = 1

    def __init__(self, count: int):
        self.steps: List[tuple] = []
        self.now: List[Optional[float]] = [None] * count
        self.started: Optional[float] = None

    def start(self) -> None:
        """The forward pass begins."""
        self.started = perf_counter()

    def begin(self) -> None:
        """The first gradient is there."""
        self.first = perf_counter()
        if self.started is None:
            self.started = self.first

    def mark(self, k: int) -> None:
        self.now[k] = perf_counter()

    def end(self) -> None:
        """All messages have been waited for."""
        self.steps.append((self.started, self.first, self.now, perf_counter()))
        del self.steps[:-KEPT]
        self.now, self.started = [None] * len(self.now), None

    def collect(self) -> Times:
        """Of the steps since the last reset."""
        rows = [[now[k] - start for start, _, now, _ in self.steps if now[k] is not None]
                for k in range(len(self.now))]
        forward = statistics.median(first - start for start, first, _, _ in self.steps)
        return _times(rows, forward, [end - start for start, _, _, end in self.steps])

    def reset(self) -> None:
        del self.steps[:]


class CudaClock:
    """Hooks run when the gradient's kernels are queued: events tell when they ran. One gradient in eight has one in
    each step, and nobody waits for them: what the device has not reached yet is read later."""

    EVERY = 8
    STEPS_NEEDED = 2 * EVERY  # so that each gradient was measured twice

    def __init__(self, count: int, device: torch.device):
        self.count, self.device, self.turn = count, device, 0
        self.every = min(self.EVERY, count)  # in every step there is one
        self.steps: List[tuple] = []
        self.started = None

    def _event(self):
        return event_on(self.device)

    def start(self) -> None:
        self.started = self._event()

    def begin(self) -> None:
        self.first = self._event()
        if self.started is None:
            self.started = self.first
        self.turn = (self.turn + 1) % self.every
        self.marks = {}

    def mark(self, k: int) -> None:
        if k % self.every == self.turn:
            self.marks[k] = self._event()

    def end(self) -> None:
        self.steps.append((self.started, self.first, self.marks, self._event()))
        del self.steps[:-KEPT]
        self.started = None

    def collect(self) -> Times:
        done = [step for step in self.steps if step[3].query()]
        if not done:  # a planner that has outrun the device by a whole window
            self.steps[-1][3].synchronize()
            done = self.steps
        rows: List[List[float]] = [[] for _ in range(self.count)]
        for start, _, marks, _ in done:
            for k, event in marks.items():
                rows[k].append(start.elapsed_time(event) / 1e3)
        forward = statistics.median(start.elapsed_time(first) / 1e3 for start, first, _, _ in done)
        return _times(rows, forward, [start.elapsed_time(end) / 1e3 for start, _, _, end in done])

    def reset(self) -> None:
        del self.steps[:]


def for_device(device: torch.device, count: int):
    return CudaClock(count, device) if device.type == "cuda" else CpuClock(count)


# ---- The forward pass alone: the C engine's clock begins with the first gradient ----


def event_on(device: torch.device):
    """The moment at which the device comes to where its current stream is now."""
    event = torch.cuda.Event(enable_timing=True)
    event.record(torch.cuda.current_stream(device))
    return event


class CpuForward:
    """From `start` to `stop`, smoothed."""

    def __init__(self):
        self.started: Optional[float] = None
        self.seconds = 0.0

    def start(self) -> None:
        self.started = perf_counter()

    def stop(self) -> None:
        if self.started is not None:
            self._add(perf_counter() - self.started)
            self.started = None

    def _add(self, seconds: float) -> None:
        self.seconds += (seconds - self.seconds) * (0.1 if self.seconds else 1.0)


class CudaForward(CpuForward):
    """The same by the device's clock. What it has not reached yet is added later; nobody waits."""

    def __init__(self, device: torch.device):
        super().__init__()
        self.device, self.pending = device, []

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
