"""Time, measured in every step at next to no cost: by the host's clock, or by a GPU's."""

from time import perf_counter
from typing import Any, List

import torch

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
