"""Sends f32 gradients as 16 bits over process groups; they are summed in f32 and rounded once.

An all-reduce of a process group would round after every addition, and gloo has no bf16. So a message is an all-to-all
exchange, after which each worker sums its own block in f32 and rounds, followed by an all-gather.
"""

from typing import Sequence, Tuple

import torch
import torch.distributed as dist

from .groups import ProcessGroup
from .halves import AllGather, ReduceScatter, one_block

DTYPES = {"f16": torch.float16, "bf16": torch.bfloat16}


class NarrowMessage:
    """A message, whose parts go over several lanes. It holds the sum over all workers, in place, when `wait` has returned. The
    exchange runs during the backward pass."""

    def __init__(self, parts: Sequence[Tuple[ProcessGroup, torch.Tensor]], wire: str):
        self.pieces = [piece for _, piece in parts]
        self.narrow = [piece.to(DTYPES[wire]) for piece in self.pieces]
        spans = [one_block(piece.numel(), lane.size) for lane, piece in parts]
        self.scatters = [ReduceScatter(lane, narrow, blocks, dist.ReduceOp.SUM)
                         for (lane, _), narrow, blocks in zip(parts, self.narrow, spans)]
        self.gathers = [AllGather(lane, narrow, blocks) for (lane, _), narrow, blocks in zip(parts, self.narrow, spans)]
        for scatter in self.scatters:
            scatter.exchanges = True
            scatter.start()

    def wait(self) -> None:
        for scatter, gather in zip(self.scatters, self.gathers):
            scatter.wait()
            gather.start()
        for piece, narrow, gather in zip(self.pieces, self.narrow, self.gathers):
            gather.wait()
            piece.copy_(narrow)
