"""Sends f32 gradients as 16 bits over process groups; they are summed in f32 and rounded once.

An all-reduce of a process group would round after every addition, and gloo has no bf16. So a message is an all-to-all
exchange, after which each worker sums its own block in f32 and rounds, followed by an all-gather.
"""

import torch
import torch.distributed as dist

from .groups import ProcessGroup
from .halves import AllGather, ReduceScatter, one_block

DTYPES = {"f16": torch.float16, "bf16": torch.bfloat16}


class NarrowMessage:
    """Holds the sum over all workers, in place, when `wait` has returned. The exchange runs during the backward pass."""

    def __init__(self, group: ProcessGroup, piece: torch.Tensor, wire: str):
        self.group, self.piece, self.narrow = group, piece, piece.to(DTYPES[wire])
        self.spans = one_block(piece.numel(), group.size)
        self.scatter = ReduceScatter(group, self.narrow, self.spans, dist.ReduceOp.SUM)
        self.scatter.exchanges = True
        self.scatter.start()

    def wait(self) -> None:
        self.scatter.wait()
        gather = AllGather(self.group, self.narrow, self.spans)
        gather.start()
        gather.wait()
        self.piece.copy_(self.narrow)
