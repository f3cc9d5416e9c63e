"""Communication hooks over process groups: `register_comm_hook` of PyTorch's DDP, with our messages as buckets.

A hook gets local gradients and averages them itself. Buckets are the messages of the plan, by dtype. Some hooks keep state
by bucket index (PowerSGD does), so the initial plan, DDP's own buckets, is kept. If the program has chosen a policy, the
first plan of that policy is kept instead.
"""

import inspect
import warnings
from typing import Any, Callable, List, NamedTuple, Optional, Sequence

import torch
import torch.distributed as dist

from ..environment import Options
from .groups import ProcessGroup
from .process_group import ProcessGroupReducer, has_wires
from .slots import Arena, Slot

WIRES = {"fp16_compress_hook": "f16", "bf16_compress_hook": "bf16"}  # PyTorch's hooks that correspond to an option here


class GradBucket:
    """Like torch.distributed.GradBucket, which cannot be created from Python."""

    def __init__(self, index: int, buffer: torch.Tensor, gradients: List[torch.Tensor], parameters: List[torch.Tensor],
                 is_last: bool):
        self._index, self._buffer, self._gradients, self._parameters = index, buffer, gradients, parameters
        self._is_last = is_last

    def index(self) -> int:
        return self._index

    def buffer(self) -> torch.Tensor:
        """The gradients in a flat tensor; gaps between them are zero."""
        return self._buffer

    def gradients(self) -> List[torch.Tensor]:
        return self._gradients

    def parameters(self) -> List[torch.Tensor]:
        return self._parameters

    def is_last(self) -> bool:
        return self._is_last

    def set_buffer(self, buffer: torch.Tensor) -> None:
        self._buffer = buffer


class CommHook(NamedTuple):
    state: Any
    hook: Callable

    def start(self, bucket: GradBucket) -> Any:
        return self.hook(self.state, bucket)


def finish(sent: Any, piece: torch.Tensor) -> None:
    """Waits for the result of a hook, and copies it to its place."""
    value = sent.wait() if hasattr(sent, "wait") else sent
    value = value[0] if isinstance(value, (list, tuple)) else value
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"communication hook: its future must hold a tensor, not a {type(value).__name__}")
    if value.data_ptr() != piece.data_ptr() or value.dtype != piece.dtype:
        with torch.no_grad():
            piece.copy_(value.reshape(piece.shape))


def check(hook: Callable) -> None:
    """Checks the hook as DDP does."""
    if not callable(hook):
        raise TypeError("Communication hook must be callable.")
    signature = inspect.signature(hook)
    told = signature.parameters["bucket"].annotation if "bucket" in signature.parameters else inspect.Parameter.empty
    if told not in (inspect.Parameter.empty, dist.GradBucket, "dist.GradBucket"):
        raise ValueError("Communication hook: bucket annotation should be dist.GradBucket.")
    returns = signature.return_annotation
    if returns not in (inspect.Signature.empty, torch.futures.Future[torch.Tensor]):
        raise ValueError("Communication hook: return annotation should be torch.futures.Future[torch.Tensor].")


def builtin(kind: Any) -> Callable:
    """The Python equivalent of one of PyTorch's C++ hooks."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    return {"ALLREDUCE": default_hooks.allreduce_hook, "FP16_COMPRESS": default_hooks.fp16_compress_hook}[
        str(kind).split(".")[-1]]


class HookedReducer(ProcessGroupReducer):
    """Gradients are averaged by the communication hook, in whole messages."""

    lanes_wanted = 1

    def __init__(self, group: ProcessGroup, slots: Sequence[Slot], options: Options, device: torch.device, comm: CommHook,
                 parameters: Sequence[torch.Tensor]):
        if has_wires(options):
            warnings.warn("wire has no effect, as an option or in the plan: the communication hook decides how gradients are sent")
        self.comm, self.parameters, self.settled = comm, parameters, not options.is_chosen
        super().__init__(group, slots, options._replace(wire=None, trials=0), device)
        self.scale = 1.0

    def find_wires(self) -> List[Optional[str]]:
        return [None] * len(self.operations)

    def adopt(self) -> None:
        super().adopt()
        last, index = sum(map(len, self.slices)) - 1, 0
        self.buckets = []
        for (first, count), pieces in zip(self.operations, self.slices):
            row = []
            for piece in pieces:
                real = [k for k in range(first, first + count) if self.slots[k].real == piece.dtype]
                row.append((index, piece, [self.views[k] for k in real], [self.parameters[k] for k in real], index == last))
                index += 1
            self.buckets.append(row)

    def look(self, may_stay: bool = True) -> None:
        if not self.settled or not may_stay:
            super().look(may_stay)
            self.settled = True

    def send(self, operation: int) -> list:
        return [(piece, self.comm.start(GradBucket(index, piece, gradients, parameters, is_last)))
                for index, piece, gradients, parameters, is_last in self.buckets[operation]]

    def finish(self, operation: int, sent: list) -> None:
        for piece, future in sent:
            finish(future, piece)


def reduce_now(comm: CommHook, gradients: Sequence[torch.Tensor], parameters: Sequence[torch.Tensor]) -> None:
    """Averages all gradients of a step in place, in one bucket per dtype: the first step has no plan."""
    slots = [Slot.of(str(k), parameter) for k, parameter in enumerate(parameters)]
    arena = Arena(slots, parameters[0].device)  # same layout as later messages: hooks keep state of the length of a bucket
    for view, gradient in zip(arena.views, gradients):
        view.copy_(gradient)
    last = len(arena.memory) - 1
    for index, piece in enumerate(arena.slices(0, len(slots))):
        here = [k for k, slot in enumerate(slots) if slot.real == piece.dtype]
        bucket = GradBucket(index, piece, [arena.views[k] for k in here], [parameters[k] for k in here], index == last)
        finish(comm.start(bucket), piece)
    for view, gradient in zip(arena.views, gradients):
        gradient.copy_(view)


def wire_of(hook: Any) -> Optional[str]:
    """The value of the option `wire` that corresponds to a hook of PyTorch's, or None."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    name = getattr(hook, "__name__", "")
    return WIRES.get(name) if getattr(default_hooks, name, None) is hook else None
