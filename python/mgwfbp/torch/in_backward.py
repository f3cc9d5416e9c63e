"""Optimizers that step in the backward pass (PyTorch's _apply_optimizer_in_backward): they step once gradients are averaged."""

import sys
from typing import List, Sequence

import torch


def take_over(parameters: Sequence[torch.Tensor]) -> List[torch.Tensor]:
    """Removes the hooks that would step with the gradients of this worker alone, as DDP does (PyTorch 2 and later). Returns
    the parameters that had them."""
    applied = sys.modules.get("torch.distributed.optim.apply_optimizer_in_backward")
    handles = getattr(applied, "param_to_optim_hook_handle_map", {})
    found = [parameter for parameter in parameters if handles and parameter in handles]
    for parameter in found:
        for handle in handles[parameter]:
            handle.remove()
    return found


def step(parameters: Sequence[torch.Tensor]) -> None:
    """As with DDP, the gradients are None afterwards."""
    for parameter in parameters:
        for optimizer in parameter._in_backward_optimizers:  # type: ignore[attr-defined]
            optimizer.step()
        parameter.grad = None
