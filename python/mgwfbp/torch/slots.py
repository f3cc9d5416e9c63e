"""Where gradients live: a slot for each, in ready order, so that every message of every plan is one slice per dtype."""

from typing import List, NamedTuple, Sequence, Tuple

import torch

ALIGNMENT = 64  # bytes: every gradient begins on a cache line; the gaps travel along, and stay zero


class Slot(NamedTuple):
    """What a gradient is like. Its memory lies as its parameter's does."""

    name: str
    shape: Tuple[int, ...]
    stride: Tuple[int, ...]
    dtype: torch.dtype
    count: int
    bytes: int

    @classmethod
    def of(cls, name: str, parameter: torch.Tensor) -> "Slot":
        stride = parameter.stride() if _dense(parameter) else torch.empty(parameter.shape, device="meta").stride()
        return cls(name, tuple(parameter.shape), tuple(stride), parameter.dtype, parameter.numel(),
                   parameter.numel() * parameter.element_size())

    def view(self, memory: torch.Tensor) -> torch.Tensor:
        """The gradient in `memory`, which begins where its slot does."""
        return memory[:self.count].as_strided(self.shape, self.stride, memory.storage_offset())


def _dense(tensor: torch.Tensor) -> bool:
    """Whether the elements fill their memory without gaps, in any order (channels_last does)."""
    expected = 1
    for stride, length in sorted(zip(tensor.stride(), tensor.shape)):
        if length == 1:
            continue
        if stride != expected:
            return False
        expected *= length
    return True


class Arena:
    """One piece of memory per dtype, with the slots one after the other."""

    def __init__(self, slots: Sequence[Slot], device: torch.device):
        self.begins: List[int] = []  # elements, in the arena of the slot's dtype
        lengths = {}
        for slot in slots:
            unit = ALIGNMENT // torch.empty(0, dtype=slot.dtype).element_size()
            self.begins.append(lengths.get(slot.dtype, 0))
            lengths[slot.dtype] = self.begins[-1] + (slot.count + unit - 1) // unit * unit
        self.slots = slots
        self.memory = {dtype: torch.zeros(length, dtype=dtype, device=device) for dtype, length in lengths.items()}
        self.views = [slot.view(self.memory[slot.dtype][begin:]) for slot, begin in zip(slots, self.begins)]

    @property
    def bytes(self) -> int:
        return sum(memory.numel() * memory.element_size() for memory in self.memory.values())

    def slices(self, first: int, stop: int) -> List[torch.Tensor]:
        """The memory of slots first .. stop-1: one slice for each dtype among them."""
        found = []
        for dtype, memory in self.memory.items():
            inside = [i for i in range(first, stop) if self.slots[i].dtype == dtype]
            after = [i for i in range(stop, len(self.slots)) if self.slots[i].dtype == dtype]
            if inside:
                found.append(memory[self.begins[inside[0]]:self.begins[after[0]] if after else memory.numel()])
        return found
