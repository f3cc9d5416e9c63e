"""The transport `torch`: sends the messages of the plan through the existing process group."""

import itertools
from time import perf_counter
from typing import Any, Dict, List, Optional, Sequence, Tuple

import torch
import torch.distributed as dist

from .. import core, planning
from ..environment import Options
from .batch import Batch
from .broadcast import bytes_of
from .groups import ProcessGroup
from .halves import one_block
from .lanes import Lanes
from .reducer import Steps
from .slots import Arena, Slot
from .wire import DTYPES, NarrowMessage

LARGEST = 64 << 20  # bytes: largest message to time


class ProcessGroupReducer(Steps):
    kinds: Tuple[str, ...] = ("all-reduce",)  # kinds of messages
    lanes_wanted: Optional[int] = None

    def __init__(self, group: ProcessGroup, slots: Sequence[Slot], options: Options, device: torch.device, **more: Any):
        self.group, self.arena = group, Arena(slots, device)
        self.lanes_of = Lanes(group, device, self.lanes_wanted)
        self.lanes = self.lanes_of.count
        self.sliced: Dict[tuple, tuple] = {}  # by the operations of a plan: messages, and their parts
        self.views = self.arena.views
        averages = "nccl" in group.backend and hasattr(dist.ReduceOp, "AVG") and not has_wires(options)
        self.wire = options.wire
        self.op = dist.ReduceOp.AVG if averages else dist.ReduceOp.SUM
        self.scale = 1.0 if averages else 1.0 / group.size
        super().__init__(slots, options, find_cluster(group, self.arena, options, self.lanes_of, self.kinds), group, device,
                         lanes=self.lanes, **more)

    def adopt(self) -> None:
        super().adopt()
        self.operations, most = self.tuner.operations(), self.tuner.lanes()
        cuts = (*self.operations, *most)
        if cuts not in self.sliced:  # plans take turns in a trial
            if len(self.sliced) > 16:
                self.sliced.clear()
            slices = [self.arena.slices(first, count) for first, count in self.operations]
            self.sliced[cuts] = slices, [self.lanes_of.divide(pieces, lanes) for pieces, lanes in zip(slices, most)]
        self.slices, self.parts = self.sliced[cuts]
        self.wires = self.find_wires()
        for number, wire in enumerate(self.wires, 1):
            if wire and (wire not in DTYPES or self.kinds != ("all-reduce",)):
                raise RuntimeError(f"plan: message {number} has the wire format {wire}; over process groups, all-reduces can be "
                                   f"sent as {', '.join(DTYPES)} or unchanged, other operations only unchanged (transport "
                                   "native supports more)")

    def find_wires(self) -> List[Optional[str]]:
        """By message: the format in which f32 gradients are sent. The option applies to all messages."""
        return [self.wire or wire for wire in self.tuner.wires()]

    def take_all(self, batch: Batch, at_s: Any) -> None:
        if batch.sources:
            batch.copy_on_device() if self.device.type == "cuda" else batch.copy_on_host()
        if self.scale != 1.0:
            for piece in self._memory_of(batch):
                piece.mul_(self.scale)
        if self.flow.ready_all(batch.ids, batch.count, at_s):
            self.launch()

    def _memory_of(self, batch: Batch) -> List[torch.Tensor]:
        """The memory of a batch, in as few pieces as possible."""
        if batch.memory is None:
            runs = itertools.groupby(enumerate(batch.numbers), lambda numbered: numbered[1] - numbered[0])
            ranges = [[number for _, number in run] for _, run in runs]
            batch.memory = [piece for some in ranges for piece in self.arena.slices(some[0], len(some))]
        return batch.memory

    def send(self, operation: int) -> list:
        wire, parts = self.wires[operation], self.parts[operation]
        narrow = [(lane, piece) for lane, piece in parts if wire and piece.dtype == torch.float32]
        sent: List[Any] = [NarrowMessage(narrow, wire)] if narrow else []
        return sent + [dist.all_reduce(piece, self.op, lane.group, async_op=True)
                       for lane, piece in parts if not (wire and piece.dtype == torch.float32)]

    def finish(self, operation: int, sent: list) -> None:
        try:
            for work in sent:
                work.wait()
        except RuntimeError as error:
            first = self.slots[self.operations[operation][0]].name
            raise RuntimeError(f"rank {self.group.rank}: message {operation + 1} of {len(self.operations)} (from "
                               f"'{first}') over {self.group.backend}: {error}") from error

    def statistics(self) -> dict:
        bytes = sum(map(bytes_of, self.arena.memory.values()))
        return {**super().statistics(), "messages": len(self.operations), "arena_bytes": bytes, "lanes": self.lanes}


def has_wires(options: Options) -> bool:
    """Whether the option or the given plan sets a wire format for any message."""
    return bool(options.wire or options.plan and any(
        o.wire != "f32" for o in planning.Plan.load(options.plan).operations))


def find_cluster(group: ProcessGroup, arena: Arena, options: Options, lanes: Optional[Lanes] = None,
                 kinds: Sequence[str] = ("all-reduce",)) -> planning.Cluster:
    """The cost of messages: given, or measured in the arena's memory, over the lanes or the group alone."""
    if options.cluster:
        return planning.Cluster.load(options.cluster)
    memory = max(arena.memory.values(), key=bytes_of)

    def time(bytes: int, kind: str) -> float:
        piece = memory[:max(1, bytes // memory.element_size())]
        group.largest([0.0])  # a barrier
        begun = perf_counter()
        if kind == "all-reduce":
            parts = lanes.divide([piece]) if lanes else [(group, piece)]
            works = [dist.all_reduce(part, group=lane.group, async_op=True) for lane, part in parts]
        else:
            assert lanes
            works = lanes.halves(kind, piece, one_block(piece.numel(), group.size), dist.ReduceOp.SUM)
            for work in works:
                work.start()
        for work in works:
            work.wait()
        if piece.is_cuda:
            torch.cuda.synchronize(piece.device)
        return perf_counter() - begun

    most = min(bytes_of(memory), LARGEST)
    with_lanes = f"-with-{lanes.count}-lanes" if lanes and lanes.count > 1 else ""
    return core.calibrate(group, time, f"{group.backend}-{group.size}{with_lanes}", most, kinds)
