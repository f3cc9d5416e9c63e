"""Halves of an all-reduce over PyTorch's process groups: in-place reduce-scatters and all-gathers.

A half moves pieces of a dtype's memory, each of which is divided among the workers. Process groups require contiguous parts
of equal length; other parts are packed before and unpacked afterwards. Gloo has no reduce-scatter in PyTorch 1.13, and
later emulates it with all-reduces; here it is an all-to-all exchange, followed by a local sum.
"""

from typing import Any, List, Optional, Sequence, Tuple

import torch
import torch.distributed as dist

from .. import core
from .groups import Group, NativeGroup, ProcessGroup
from .ownership import Piece
from .slots import DTYPES

Span = Tuple[int, int]  # begin and length


class _Half:
    """Moves pieces of `memory`; `spans` has the parts of each rank. It keeps no views of the memory, whose references are
    counted (awaited.py)."""

    def __init__(self, group: ProcessGroup, memory: torch.Tensor, spans: Sequence[Sequence[Span]]):
        self.group, self.memory, self.spans = group, memory, spans
        self.sizes = [sum(length for _, length in own) for own in spans]
        self.most = max(self.sizes)
        ends = [own[0][0] + own[0][1] for own in spans]
        self.is_whole = (all(len(own) == 1 for own in spans) and  # the parts are contiguous
                         all(own[0][0] == end for own, end in zip(spans[1:], ends)))
        self.is_even = self.is_whole and min(self.sizes) == self.most
        self.works: List[Any] = []

    def _parts(self, rank: int) -> List[torch.Tensor]:
        return [self.memory[begin:begin + length] for begin, length in self.spans[rank] if length]

    def _whole(self) -> torch.Tensor:
        begin = self.spans[0][0][0]
        return self.memory[begin:begin + sum(self.sizes)]

    def _pack(self, parts: Sequence[torch.Tensor], into: torch.Tensor) -> None:
        at = 0
        for part in parts:
            into[at:at + part.numel()].copy_(part)
            at += part.numel()

    def _unpack(self, source: torch.Tensor, parts: Sequence[torch.Tensor]) -> None:
        at = 0
        for part in parts:
            part.copy_(source[at:at + part.numel()])
            at += part.numel()

    def _await_works(self) -> None:
        for work in self.works:
            work.wait()
        self.works = []


class ReduceScatter(_Half):
    """Afterwards a worker's own parts hold the sums or averages, depending on `op`; the rest is undefined."""

    def __init__(self, group: ProcessGroup, memory: torch.Tensor, spans: Sequence[Sequence[Span]], op):
        super().__init__(group, memory, spans)
        self.op, self.exchanges = op, group.backend == "gloo"
        self.result: Optional[torch.Tensor] = None
        self.sent: Optional[torch.Tensor] = None  # until it is over

    def start(self) -> None:
        n, mine = self.group.size, self.sizes[self.group.rank]
        if self.exchanges:
            sent = self._whole() if self.is_whole else torch.cat([p for rank in range(n) for p in self._parts(rank)])
            self.result = sent.new_empty(n * mine)
            given, received = sent, self.result
            if sent.element_size() == 2:  # not supported by every gloo
                given, received = sent.view(torch.uint8), self.result.view(torch.uint8)
            factor = given.numel() // max(1, sent.numel())
            self.works = [dist.all_to_all_single(received, given, [mine * factor] * n, [s * factor for s in self.sizes],
                                                 group=self.group.group, async_op=True)]
            self.sent = sent
            return
        if self.is_even:
            sent, self.result = self._whole(), self._parts(self.group.rank)[0]
        else:
            sent = self.memory.new_zeros(n * self.most)
            for rank in range(n):
                self._pack(self._parts(rank), sent[rank * self.most:])
            self.result = sent.new_empty(self.most)
        self.works = [dist.reduce_scatter_tensor(self.result, sent, self.op, group=self.group.group, async_op=True)]
        self.sent = sent

    def wait(self) -> None:
        self._await_works()
        if self.exchanges:
            self._unpack(_sum(self.result.view(self.group.size, -1)), self._parts(self.group.rank))
        elif not self.is_even:
            self._unpack(self.result, self._parts(self.group.rank))
        self.result = self.sent = None


def _sum(rows: torch.Tensor) -> torch.Tensor:
    """Sums in rank order; 16-bit numbers in 32 bits, rounded once."""
    if rows.element_size() == 2:
        return rows.float().sum(0).to(rows.dtype)
    total = rows[0].clone()
    for row in rows[1:]:
        total += row
    return total


class AllGather(_Half):
    """Afterwards every worker has the parts of all workers."""

    def start(self) -> None:
        n, most = self.group.size, self.most
        if self.is_even:
            self.there, mine = self._whole(), self._parts(self.group.rank)[0]
        else:
            self.there = self.memory.new_empty(n * most)
            mine = self.there[self.group.rank * most:][:most]
            self._pack(self._parts(self.group.rank), mine)
        self.works = [all_gather(self.there, mine, self.group)]

    def wait(self) -> None:
        self._await_works()
        if not self.is_even:
            for rank in range(self.group.size):
                if rank != self.group.rank:
                    self._unpack(self.there[rank * self.most:], self._parts(rank))
        self.there = None


def all_gather(there: torch.Tensor, mine: torch.Tensor, group: ProcessGroup):
    """All parts have the same length; `mine` may be its part of `there`. Gloo gets bytes, since it does not support every
    dtype."""
    if group.backend == "gloo":
        parts = list(there.view(torch.uint8).chunk(group.size)) if there.numel() else [there] * group.size
        return dist.all_gather(parts, mine.view(torch.uint8) if mine.numel() else mine, group=group.group, async_op=True)
    return dist.all_gather_into_tensor(there, mine, group=group.group, async_op=True)


def spans_of(pieces: Sequence[Piece], workers: int) -> List[List[Span]]:
    return [[piece.owned[rank] for piece in pieces] for rank in range(workers)]


def one_block(length: int, workers: int) -> List[List[Span]]:
    """The parts of the first `length` elements as one piece."""
    return [[core.block(length, workers, rank)] for rank in range(workers)]


def gather_blocks(group: Group, whole: torch.Tensor) -> None:
    """Gathers all workers' blocks in place, with any group. Blocking; for use outside steps."""
    if group.size == 1 or not whole.numel():
        return
    there = whole.to(group.device)
    if isinstance(group, NativeGroup):
        group.transport.all_gather(there.data_ptr(), there.numel(), DTYPES[there.dtype])
    else:
        assert isinstance(group, ProcessGroup)
        half = AllGather(group, there, one_block(there.numel(), group.size))
        half.start()
        half.wait()
    if there.data_ptr() != whole.data_ptr():
        whole.copy_(there)
