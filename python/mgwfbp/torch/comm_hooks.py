"""Communication hooks over process groups: `register_comm_hook` of PyTorch's DDP, with our messages as its buckets.

A hook gets the sums of nobody: it averages by itself. Buckets are the messages of the plan, by dtype; hooks keep state by
a bucket's number (PowerSGD does), so the plan that the first step gives, DDP's own cut, stays, unless the program has
chosen a policy: then the first plan of that stays.
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

WIRES = {"fp16_compress_hook": "f16", "bf16_compress_hook": "bf16"}  # PyTorch's hooks that are an option here


class GradBucket:
    """As torch.distributed.GradBucket, which Python cannot make."""

    def __init__(self, index: int, buffer: torch.Tensor, gradients: List[torch.Tensor], parameters: List[torch.Tensor],
                 is_last: bool):
        self._index, self._buffer, self._gradients, self._parameters = index, buffer, gradients, parameters
        self._is_last = is_last

    def index(self) -> int:
        return self._index

    def buffer(self) -> torch.Tensor:
        """The gradients one behind the other; there may be unused numbers in between, which are zero."""
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
    """Waits for what a hook has returned, and puts it into place."""
    value = sent.wait() if hasattr(sent, "wait") else sent
    value = value[0] if isinstance(value, (list, tuple)) else value
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"communication hook: its future holds a {type(value).__name__}, and not a tensor")
    if value.data_ptr() != piece.data_ptr() or value.dtype != piece.dtype:
        with torch.no_grad():
            piece.copy_(value.reshape(piece.shape))


def check(hook: Callable) -> None:
    """As DDP does."""
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
    """The hook in Python that does what one of PyTorch's in C++ does."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    return {"ALLREDUCE": default_hooks.allreduce_hook, "FP16_COMPRESS": default_hooks.fp16_compress_hook}[
        str(kind).split(".")[-1]]


class HookedReducer(ProcessGroupReducer):
    """Messages are what the hook makes of them."""

    def __init__(self, group: ProcessGroup, slots: Sequence[Slot], options: Options, device: torch.device, comm: CommHook,
                 parameters: Sequence[torch.Tensor]):
        if has_wires(options):
            warnings.warn("wire has no effect, of the option and of the plan: the communication hook decides how gradients travel")
        self.comm, self.parameters, self.settled = comm, parameters, not options.is_chosen
        super().__init__(group, slots, options._replace(wire=None, trials=False), device)
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
    """All of a step at once, in place: buckets of one dtype each. The first step has no plan."""
    slots = [Slot.of(str(k), parameter) for k, parameter in enumerate(parameters)]
    arena = Arena(slots, parameters[0].device)  # laid out as messages will be: hooks keep what is as long as a bucket
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
    """What the hook is as an option `wire`, if it is one of PyTorch's."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    name = getattr(hook, "__name__", "")
    return WIRES.get(name) if getattr(default_hooks, name, None) is hook else None
