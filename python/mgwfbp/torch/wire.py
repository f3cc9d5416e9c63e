"""f32 gradients that travel as 16 bits over process groups: added up in f32, and rounded once.

An all-reduce of a process group would round with every addition, and gloo's has no bf16 at all. So a message is an
exchange, after which each worker has everybody's block that is its own, adds it up in f32 and rounds; and a gather.
"""

import torch
import torch.distributed as dist

from .groups import ProcessGroup
from .halves import AllGather, ReduceScatter, one_block

DTYPES = {"f16": torch.float16, "bf16": torch.bfloat16}


class NarrowMessage:
    """The sum over all workers, in place, once `wait` has returned. The exchange runs beside the backward pass."""

    def __init__(self, group: ProcessGroup, piece: torch.Tensor, wire: str):
        self.group, self.piece, self.narrow = group, piece, piece.to(DTYPES[wire])
        self.spans = one_block(piece.numel(), group.size)
        self.scatter = ReduceScatter(group, self.narrow, self.spans, dist.ReduceOp.SUM)
        self.scatter.exchanges = True
        self.scatter.start()

    def wait(self) -> None:
        self.scatter.finish()
        gather = AllGather(self.group, self.narrow, self.spans)
        gather.start()
        gather.finish()
        self.piece.copy_(self.narrow)
