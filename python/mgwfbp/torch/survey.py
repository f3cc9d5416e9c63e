"""The first step, called the survey: averages all gradients in one message, in place, and records their order."""

from typing import List, Optional

import torch

from .broadcast import grouped
from .comm_hooks import CommHook, reduce_now
from .groups import Group
from .reducer import Reducer


class Survey(Reducer):
    """The reducer of the first step: gradients stay in their own memory, and their order is recorded."""

    def __init__(self, group: Group, parameters: List[torch.Tensor], device: torch.device, comm: Optional[CommHook] = None):
        super().__init__([], device)
        self.group, self.parameters, self.order, self.comm = group, parameters, [], comm
        self.joined = False  # this worker has no inputs any more: it contributes zeros, and keeps its gradients

    def ready(self, k: int) -> None:
        self.order.append(k)

    def wait(self) -> None:
        gradients = []
        for parameter in self.parameters:
            if parameter.grad is None and not self.joined:
                parameter.grad = torch.zeros_like(parameter)
            gradients.append(torch.zeros_like(parameter) if self.joined else parameter.grad)
        with torch.no_grad():
            if self.comm:
                reduce_now(self.comm, gradients, self.parameters)
                return
            for batch in grouped(gradients, lambda grad: grad.dtype).values():
                flat = torch.cat([gradient.reshape(-1) for gradient in batch])
                flat = flat.float() if flat.element_size() == 2 else flat  # not every group can sum 16 bits
                self.group.all_reduce(torch.view_as_real(flat) if flat.is_complex() else flat, "average")
                for gradient, piece in zip(batch, flat.split([g.numel() for g in batch])):
                    gradient.copy_(piece.view(gradient.shape))
