"""The transport `torch`: messages through the process group that is there, as our plan cuts them.

A reducer gets the slots of all gradients in ready order, and gives each its memory (`views`). In a step it hears
`begin`, `ready` of each, and `wait`; messages are the same on all workers, in the same order. Gradients are multiplied by
`scale` before they are made ready: as they come, while they are in the cache, and so that sums cannot overflow.
"""

from typing import List, Optional, Sequence, Tuple

import torch
import torch.distributed as dist

from .. import planning
from . import clock
from .groups import ProcessGroup
from .options import Options
from .planner import Planner
from .slots import Arena, Slot


class ProcessGroupReducer:
    def __init__(self, group: ProcessGroup, slots: Sequence[Slot], options: Options, device: torch.device):
        self.group, self.slots = group, slots
        self.arena = Arena(slots, device)
        self.views = self.arena.views
        self.clock = clock.for_device(device, len(slots))
        self.planner = Planner(group, slots, options, calibrate(group, self.arena, options))
        self.steps = 0
        averages = "nccl" in group.backend and hasattr(dist.ReduceOp, "AVG")
        self.op = dist.ReduceOp.AVG if averages else dist.ReduceOp.SUM
        self.scale = 1.0 if averages else 1.0 / group.size
        self._cut(self.planner.first_cut())

    def _cut(self, ends: Sequence[int]) -> None:
        """Messages: one past the last slot of each."""
        self.sizes = [end - begin for begin, end in zip([0, *ends[:-1]], ends)]
        self.slices = [self.arena.slices(end - size, end) for size, end in zip(self.sizes, ends)]
        self.message_of = [m for m, size in enumerate(self.sizes) for _ in range(size)]

    # ---- A step ----

    def start(self) -> None:
        """The forward pass begins."""
        self.clock.start()

    def begin(self) -> None:
        self.missing = self.sizes[:]
        self.next = 0
        self.works: List = []
        self.clock.begin()

    def ready(self, k: int) -> None:
        self.clock.mark(k)
        m = self.message_of[k]
        self.missing[m] -= 1
        if m == self.next and not self.missing[m] and not self.planner.after_backward:
            self._launch()

    def take(self, k: int, gradient: torch.Tensor) -> bool:
        """Whether it copies a gradient that is elsewhere, and makes it ready."""
        return False

    def _launch(self) -> None:
        """Sends what is complete, in order."""
        while self.next < len(self.sizes) and not self.missing[self.next]:
            for piece in self.slices[self.next]:
                self.works.append((self.next, dist.all_reduce(piece, self.op, self.group.group, async_op=True)))
            self.next += 1

    def wait(self) -> None:
        self._launch()
        for m, work in self.works:
            try:
                work.wait()
            except RuntimeError as error:
                raise RuntimeError(f"rank {self.group.rank}: message {m + 1} of {len(self.sizes)} (from "
                                   f"'{self.slots[sum(self.sizes[:m])].name}') over {self.group.backend}: "
                                   f"{error}") from error
        self.clock.end()
        self.steps += 1
        ends = self.planner.after_step(self.clock)
        if ends:
            self._cut(ends)

    # ---- What happened ----

    def measured(self) -> Optional[clock.Times]:
        return self.clock.collect() if self.clock.steps else self.planner.times

    def network(self) -> Tuple[planning.Cluster, float]:
        """What messages cost alone, and how many times that in steps."""
        return self.planner.idle, self.planner.slowdown

    def statistics(self) -> dict:
        return {"steps": self.steps, "plans": self.planner.plans, "messages": len(self.sizes),
                "arena_bytes": self.arena.bytes}

    def set_policy(self, policy: str) -> None:
        ends = self.planner.set_policy(policy)
        if ends:
            self._cut(ends)

    def close(self) -> None:
        """Nothing but memory is held."""


# ---- Calibration ----

REPEATS = 5
LARGEST = 64 << 20
ENOUGH_S = 2.0  # of calibrating: a slow network needs no large messages to be known


def calibrate(group: ProcessGroup, arena: Arena, options: Options) -> planning.Cluster:
    """T(M) of the group: medians of all-reduces of growing size, the slowest worker's, as a + b*M."""
    if options.cluster:
        return planning.Cluster.load(options.cluster)
    memory = max(arena.memory.values(), key=lambda m: m.numel() * m.element_size())
    element, most = memory.element_size(), min(memory.numel(), LARGEST // memory.element_size())
    samples, spent, bytes = [], 0.0, 1024
    while True:
        count = min(max(1, bytes // element), most)
        seconds = max(row[0] for row in group.exchange([_time(group, memory[:count])]))
        samples.append((count * element, seconds))
        spent += seconds * (REPEATS + 1)
        if count == most or spent > ENOUGH_S:
            break
        bytes *= 4
    if len(samples) == 1:  # a tiny model: a line needs two points
        samples.append((2 * samples[0][0] + 1, samples[0][1]))
    return planning.Cluster.fit(f"{group.backend}-{group.size}", max(2, group.size), samples)


def _time(group: ProcessGroup, piece: torch.Tensor) -> float:
    times = []
    for _ in range(REPEATS + 1):  # the first warms up
        group.exchange([0.0])
        begun = clock.perf_counter()
        dist.all_reduce(piece, group=group.group)
        if piece.is_cuda:
            torch.cuda.synchronize(piece.device)
        times.append(clock.perf_counter() - begun)
    return max(1e-9, sorted(times[1:])[REPEATS // 2])
