"""Lanes: process groups of the same workers, which move the parts of a long message at the same time.

Over sockets, NCCL has one thread per communicator that copies everything, and fast networks can take more than that. How
many lanes make messages faster is measured when the first model is wrapped; models in the same group share them.
"""

import weakref
from time import perf_counter
from typing import Any, List, Optional, Sequence, Tuple

import torch
import torch.distributed as dist

from .. import core, environment
from .groups import ProcessGroup
from .halves import AllGather, ReduceScatter, Span

_more: "weakref.WeakKeyDictionary[Any, list]" = weakref.WeakKeyDictionary()  # by process group: the other lanes


class Lanes:
    def __init__(self, group: ProcessGroup, device: torch.device, wanted: Optional[int] = None):
        """`wanted`: how many lanes; 0: as many as help; None: as MGWFBP_LANES says."""
        self.group, self.device = group, device
        self.more: List[ProcessGroup] = []
        self.count = 1
        if group.size > 1 and group.is_whole() and wanted != 1:
            self._find(environment.lanes() if wanted is None else wanted)

    def _find(self, wanted: int) -> None:
        key = self.group.group or dist.group.WORLD
        wanted = int(self.group.largest([wanted if self.group.rank == 0 else 0])[0])  # rank 0 decides
        if not wanted and self.group.backend != "nccl":
            return
        self.more = _more.get(key, [])
        self.count = wanted or len(self.more) + 1
        if not wanted and key not in _more:
            self.count = core.choose_lanes(self.group, self._time)
            for extra in self.more[self.count - 1:]:
                extra.close()
            del self.more[self.count - 1:]
        self._open(self.count)
        _more[key] = self.more
        self.more = self.more[:self.count - 1]

    def _open(self, count: int) -> None:
        while len(self.more) < count - 1:
            self.more.append(self.group.open_more())

    def _time(self, lanes: int) -> float:
        self._open(lanes)
        data = torch.zeros(core.PROBE_BYTES // 4, device=self.device)
        self.group.largest([0.0])  # a barrier
        torch.cuda.synchronize(self.device)
        begun = perf_counter()
        for work in [dist.all_reduce(part, group=lane.group, async_op=True) for lane, part in self.divide([data], lanes)]:
            work.wait()
        torch.cuda.synchronize(self.device)
        return perf_counter() - begun

    def divide(self, pieces: Sequence[torch.Tensor], lanes: int = 0) -> List[Tuple[ProcessGroup, torch.Tensor]]:
        """The parts of a message, each with its lane; `lanes` at most, 0: all."""
        found = []
        for piece in pieces:
            used = self._used(piece.numel() * piece.element_size(), lanes or self.count)
            for k, lane in enumerate(used):
                begin, length = core.block(piece.numel(), len(used), k)
                found.append((lane, piece[begin:begin + length]))
        return found

    def _used(self, bytes: int, lanes: int) -> List[ProcessGroup]:
        return [self.group, *self.more][:max(1, min(lanes, bytes // core.LANE_BYTES))]

    def halves(self, kind: str, memory: torch.Tensor, spans: Sequence[Sequence[Span]], op: Any, lanes: int = 0) -> List[Any]:
        """Halves of a message. A lane moves its part of every rank's blocks."""
        used = self._used(sum(length for own in spans for _, length in own) * memory.element_size(), lanes or self.count)
        found = []
        for k, lane in enumerate(used):
            part = [[_part(span, len(used), k) for span in own] for own in spans]
            if not any(length for own in part for _, length in own):
                continue
            found.append(AllGather(lane, memory, part) if kind == "all-gather" else ReduceScatter(lane, memory, part, op))
        return found


def _part(span: Span, lanes: int, lane: int) -> Span:
    begin, length = core.block(span[1], lanes, lane)
    return span[0] + begin, length
