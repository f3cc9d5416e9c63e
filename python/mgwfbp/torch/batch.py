"""The small gradients of a message, which are handed over together."""

from array import array
from ctypes import c_size_t, c_uint, c_void_p
from typing import List, Optional, Sequence

import torch

from .._lib import quick
from .slots import Slot, is_lazy

fused_copy = getattr(torch, "_foreach_copy_", None)  # PyTorch 2.1 and later: one kernel for many tensors


def _lies_like(gradient: torch.Tensor, slot: Slot) -> bool:
    """Whether its memory is laid out like the slot's; strides of dimensions of size 1 do not matter."""
    return all(size == 1 or mine == other for size, mine, other in zip(slot.shape, gradient.stride(), slot.stride))


class Batch:
    def __init__(self, numbers: Sequence[int], parameters: List[torch.Tensor], views: List[torch.Tensor],
                 aliases: List[torch.Tensor], slots: List[Slot]):
        self.numbers, self.count = numbers, len(numbers)
        self.parameters, self.views, self.aliases, self.slots = parameters, views, aliases, slots
        self.addresses = [view.data_ptr() for view in views]
        self.strides = [slot.stride for slot in slots]
        self.bytes = sum(slot.bytes for slot in slots)
        self.ids = (c_uint * self.count)(*numbers)
        self._targets = (c_void_p * self.count)(*self.addresses)
        self._sizes = (c_size_t * self.count)(*[slot.bytes for slot in slots])
        self.gradients: List[torch.Tensor] = []  # of this step; set by `find`
        self.sources: Optional[array] = None
        self.memory: Optional[List[torch.Tensor]] = None  # all of it, for reducers that need it

    def find(self) -> bool:
        """Finds where the gradients are. False: one is missing or cannot be copied as plain memory, so each must be handled
        by itself."""
        self.gradients = gradients = [parameter.grad for parameter in self.parameters]
        self.sources = None
        try:
            addresses = [gradient.data_ptr() for gradient in gradients]
        except (AttributeError, RuntimeError, NotImplementedError):  # None, or sparse
            return False
        if addresses == self.addresses:
            return True
        if [gradient.stride() for gradient in gradients] != self.strides and not self._lie_alike():
            return False
        for gradient, slot in zip(gradients, self.slots):
            if gradient.dtype != slot.dtype or gradient.requires_grad or is_lazy(gradient):
                return False
        self.sources = array("Q", [a if a != home else 0 for a, home in zip(addresses, self.addresses)])
        return True

    def _lie_alike(self) -> bool:
        if not all(map(_lies_like, self.gradients, self.slots)):
            return False
        self.strides = [gradient.stride() for gradient in self.gradients]  # expect the same next time
        return True

    def place(self) -> bool:
        """Sets .grad to the views. False: a view was cast or moved together with an earlier .grad."""
        if [alias.data_ptr() for alias in self.aliases] != self.addresses:
            return False
        for parameter, alias in zip(self.parameters, self.aliases):
            parameter.grad = alias
        return True

    # ---- Copying, for reducers without their own ----

    def copy_on_host(self) -> None:
        quick.mgw_copy_all(self.count, self._targets, self.sources.buffer_info()[0], self._sizes)

    def copy_on_device(self) -> None:
        if fused_copy:
            fused_copy(self.views, self.gradients)
        else:
            for view, gradient in zip(self.views, self.gradients):
                view.copy_(gradient)
