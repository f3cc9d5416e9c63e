"""DistributedOptimizer, for programs written for Horovod."""

from typing import Any

import torch

from .hooks import WeakHook
from .sync import GradientSync
from .wrapper import Wrapper


def _inner(name: str) -> property:
    """An attribute of the wrapped optimizer."""
    return property(lambda self: getattr(self.optimizer, name),
                    lambda self, value: setattr(self.optimizer, name, value),
                    lambda self: delattr(self.optimizer, name))


class DistributedOptimizer(Wrapper, torch.optim.Optimizer):
    """Wraps an optimizer so that the gradients of the model are averaged among workers before it steps.

    Gradients are averaged when `backward()` returns, so clipping and scaling need no `synchronize`. Parameters and buffers
    are first broadcast from rank 0. Gradients of `backward_passes_per_step` backward passes are accumulated and averaged
    once. If `step()` or `synchronize()` is called after fewer passes, they are averaged there (with a GradScaler, call
    `synchronize()` before it reads them); likewise if only parts of the model were called, in one message that overlaps
    with nothing. The other options are those of DistributedDataParallel.

    >>> optimizer = mgwfbp.torch.DistributedOptimizer(optimizer, model)    # doctest: +SKIP
    """

    def __init__(self, optimizer: torch.optim.Optimizer, model: torch.nn.Module, *, backward_passes_per_step: int = 1,
                 process_group=None, find_unused_parameters: bool = False, **options: Any):
        if backward_passes_per_step < 1:
            raise ValueError("backward_passes_per_step must be at least 1")
        known = {id(parameter) for parameter in model.parameters()}
        if any(id(parameter) not in known for group in optimizer.param_groups for parameter in group["params"]):
            raise ValueError("the optimizer has a parameter that does not belong to the model")
        self.optimizer = optimizer
        self._sync = GradientSync(model, process_group, find_unused_parameters, **options)
        self._passes = backward_passes_per_step
        self._counter = model.register_forward_pre_hook(WeakHook(self._count))
        # Must run before the hook of GradientSync, which reads `enabled` when forward begins.
        model._forward_pre_hooks.move_to_end(self._counter.id, last=False)

    def _count(self, *_) -> None:
        self._sync.enabled = self._sync.accumulated + 1 >= self._passes

    # Everything else is that of the wrapped optimizer.
    def __getattr__(self, name: str):
        return getattr(self.__dict__["optimizer"], name)

    def __repr__(self) -> str:
        return f"DistributedOptimizer({self.optimizer!r})"

    def __getstate__(self):
        raise TypeError("a DistributedOptimizer cannot be copied or pickled; save its state_dict()")

    # GradScaler sets these on optimizers that unscale by themselves (fused=True).
    grad_scale, found_inf = _inner("grad_scale"), _inner("found_inf")
    # The base class has these, so __getattr__ is not called for them.
    zero_grad, state_dict, load_state_dict = map(_inner, ("zero_grad", "state_dict", "load_state_dict"))

    def step(self, closure=None, **named):
        self.synchronize()
        return self.optimizer.step(**named) if closure is None else self.optimizer.step(closure, **named)

    def add_param_group(self, param_group) -> None:
        raise RuntimeError("add_param_group: not supported after wrapping; add the group before")

    def synchronize(self) -> None:
        """For Horovod programs. Gradients are already averaged when backward returns; this averages only gradients
        accumulated in fewer passes than `backward_passes_per_step`, and those of parts of the model that were called
        directly. Collective."""
        self._sync.average()

    def close(self) -> None:
        self._counter.remove()
        super().close()
