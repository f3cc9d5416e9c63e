"""The memory of gradients: one slot each, in ready order, in C's layout."""

import itertools
from typing import List, NamedTuple, Optional, Sequence, Tuple

import torch

from .. import core, planning

DTYPES = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16", torch.float64: "f64"}
PAIRS = {torch.complex64: torch.float32, torch.complex128: torch.float64}  # a complex number is a pair of real ones


def is_lazy(tensor: torch.Tensor) -> bool:
    """Whether its memory holds the conjugate or the negative of its values."""
    return tensor.is_conj() or tensor.is_neg()


class Slot(NamedTuple):
    """Shape and dtype of a gradient. Its memory has the strides of its parameter: `elements` numbers of the dtype
    `real`."""

    name: str
    shape: Tuple[int, ...]
    stride: Tuple[int, ...]
    dtype: torch.dtype
    count: int
    bytes: int

    @property
    def real(self) -> torch.dtype:
        return PAIRS.get(self.dtype, self.dtype)

    @property
    def elements(self) -> int:
        return 2 * self.count if self.dtype.is_complex else self.count

    @classmethod
    def of(cls, name: str, parameter: torch.Tensor) -> "Slot":
        stride = torch.empty_like(parameter, device="meta").stride()  # that of the parameter, if it is dense
        return cls(name, tuple(parameter.shape), stride, parameter.dtype, parameter.numel(),
                   parameter.numel() * parameter.element_size())

    def as_sent(self, wire: Optional[str]) -> "Slot":
        """The slot as sent: with `wire`, f32 becomes 16 bits."""
        narrow = {"f16": torch.float16, "bf16": torch.bfloat16}.get(wire or "")
        return self._replace(dtype=narrow, bytes=self.bytes // 2) if narrow and self.dtype == torch.float32 else self

    def view(self, memory: torch.Tensor) -> torch.Tensor:
        """The gradient as a view of `memory`, which begins at its slot."""
        if self.dtype.is_complex:
            memory = torch.view_as_complex(memory[:self.elements].view(self.count, 2))
        return memory[:self.count].as_strided(self.shape, self.stride, memory.storage_offset())


def trace_of(slots: Sequence[Slot], ready_s: Sequence[float], forward_s: float, model: str = "measured",
             **about) -> planning.Trace:
    """Measured times as a trace. The planner counts bytes: several dtypes are written as 16-bit elements."""
    dtypes = {slot.dtype for slot in slots}
    dtype = DTYPES.get(slots[0].dtype) if len(dtypes) == 1 else None
    counts = [slot.count if dtype else (slot.bytes + 1) // 2 for slot in slots]
    ready = list(itertools.accumulate([forward_s, *ready_s], max))  # a message waits for all earlier gradients
    backward = [now - before for before, now in zip(ready, ready[1:])]
    return planning.Trace.create(model, [slot.name for slot in slots], counts, backward, forward_s, dtype or "f16",
                                 **about)


class Arena:
    """One piece of memory per dtype."""

    def __init__(self, slots: Sequence[Slot], device: torch.device):
        for slot in slots:
            if slot.real not in DTYPES:
                raise RuntimeError(f"parameter '{slot.name}': gradients of {slot.dtype} are not supported")
        self.layout = core.Layout([slot.elements for slot in slots], [DTYPES[slot.real] for slot in slots])
        self.memory = {real: torch.zeros(self.layout.length(DTYPES[real]), dtype=real, device=device)
                       for real in dict.fromkeys(slot.real for slot in slots)}
        self.views = [slot.view(self.memory[slot.real][self.layout.offset(k):]) for k, slot in enumerate(slots)]

    def slices(self, first: int, count: int) -> List[torch.Tensor]:
        """The memory of slots first .. first+count-1: one slice for each dtype among them."""
        found = [memory[self.layout.slice(first, count, DTYPES[dtype])] for dtype, memory in self.memory.items()]
        return [piece for piece in found if piece.numel()]
