"""Broadcasts tensors from rank 0, hundreds of small ones in one message; and a module's buffers before each forward
pass."""

import itertools
import operator
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import torch

MOST = 64 << 20  # bytes of a message, and of a copy that is kept
ALIGNMENT = 64


def copy_all(to: Sequence[torch.Tensor], source: Sequence[torch.Tensor]) -> None:
    if hasattr(torch, "_foreach_copy_"):  # PyTorch 2: on a GPU, one kernel for many
        torch._foreach_copy_(to, source)
        return
    for one, other in zip(to, source):
        one.copy_(other)


def bytes_of(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def grouped(tensors: Sequence[torch.Tensor], key: Callable[[torch.Tensor], Any]) -> Dict[Any, List[torch.Tensor]]:
    found: Dict[Any, List[torch.Tensor]] = {}
    for tensor in tensors:
        found.setdefault(key(tensor), []).append(tensor)
    return found


class _Flat:
    """A flat buffer for tensors of one device, by dtype."""

    def __init__(self, tensors: Sequence[torch.Tensor]):
        by_dtype = grouped(tensors, lambda tensor: tensor.dtype)
        sizes = [sum(map(bytes_of, some)) for some in by_dtype.values()]
        begins = [0, *itertools.accumulate((size + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT for size in sizes)]
        self.memory = torch.empty(begins[-1], dtype=torch.uint8, device=tensors[0].device)
        self.copies: List[Tuple[list, list]] = []  # tensors, and their places in the buffer
        for begin, size, (dtype, some) in zip(begins, sizes, by_dtype.items()):
            rooms = self.memory[begin:begin + size].view(dtype).split([tensor.numel() for tensor in some])
            self.copies.append((some, [room.view(tensor.shape) for room, tensor in zip(rooms, some)]))

    def broadcast(self, leads: bool, call: Callable[[torch.Tensor], None]) -> None:
        for tensors, rooms in self.copies if leads else ():
            copy_all(rooms, tensors)
        call(self.memory)
        for tensors, rooms in () if leads else self.copies:  # autograd must not notice: an earlier graph may hold the tensors
            copy_all([tensor.data for tensor in tensors], rooms)


def broadcast_all(tensors: Sequence[torch.Tensor], leads: bool, call: Callable[[torch.Tensor], None]) -> None:
    """Rank 0 leads. Messages are not much larger than MOST."""
    with torch.no_grad():
        for some in grouped(tensors, lambda tensor: tensor.device).values():
            ends = itertools.accumulate(map(bytes_of, some))
            for _, batch in itertools.groupby(zip(ends, some), lambda pair: pair[0] // MOST):
                _Flat([tensor for _, tensor in batch]).broadcast(leads, call)


class Buffers:
    """A module's buffers. They are looked up each time, since modules may replace them; the layout is kept while they stay
    the same."""

    def __init__(self, module: torch.nn.Module, ignore: Sequence[str] = ()):
        self.module = module
        self.ignored = {(owner, name) for prefix, owner in module.named_modules() for name, _ in owner._buffers.items()
                        if (f"{prefix}.{name}" if prefix else name) in ignore}
        self.tensors: List[torch.Tensor] = []
        self.kinds: List[tuple] = []
        self.flats: Optional[List[_Flat]] = []  # None: too large to keep

    def find(self) -> List[torch.Tensor]:
        """Like module.buffers(), in a third of the time."""
        found, modules, seen = [], [self.module], set()
        while modules:
            module = modules.pop()
            if module is None or module in seen:
                continue
            seen.add(module)
            modules.extend(module._modules.values())
            for name, tensor in module._buffers.items():
                if tensor is not None and not (self.ignored and (module, name) in self.ignored):
                    found.append(tensor)
        return found if len(set(map(id, found))) == len(found) else list(dict.fromkeys(found))

    def broadcast(self, leads: bool, call: Callable[[torch.Tensor], None]) -> None:
        tensors = self.find()
        kinds = [(tensor.shape, tensor.dtype, tensor.device) for tensor in tensors]
        if kinds != self.kinds or not all(map(operator.is_, tensors, self.tensors)):
            self.tensors, self.kinds = tensors, kinds
            by_device = grouped(tensors, lambda tensor: tensor.device)
            small = sum(map(bytes_of, tensors)) <= MOST
            self.flats = [_Flat(some) for some in by_device.values()] if small else None
        if self.flats is None:
            broadcast_all(tensors, leads, call)
            return
        with torch.no_grad():
            for flat in self.flats:
                flat.broadcast(leads, call)
