"""DistributedOptimizer: for programs that were written for Horovod."""

from typing import Optional

import torch

from . import groups
from .options import Options
from .report import Report
from .sync import GradientSync, WeakHook


def _inner(name: str) -> property:
    """An attribute of the optimizer inside."""
    return property(lambda self: getattr(self.optimizer, name),
                    lambda self, value: setattr(self.optimizer, name, value),
                    lambda self: delattr(self.optimizer, name))


class DistributedOptimizer(torch.optim.Optimizer):
    """Wraps an optimizer so that the gradients of the model are averaged among workers before it steps.

    They are averaged when `backward()` returns, so that clipping and scaling need no `synchronize`. Parameters and
    buffers of rank 0 are everybody's from the start. `backward_passes_per_step` backward passes are accumulated and
    averaged once; if there were fewer when `step()` or `synchronize()` is called, they are averaged there (with a
    GradScaler, call `synchronize()` before it looks at them). The other options are those of DistributedDataParallel.

    >>> optimizer = mgwfbp.torch.DistributedOptimizer(optimizer, model)    # doctest: +SKIP
    """

    def __init__(self, optimizer: torch.optim.Optimizer, model: torch.nn.Module, *, backward_passes_per_step: int = 1,
                 process_group=None, find_unused_parameters: bool = False, transport: Optional[str] = None,
                 policy: Optional[str] = None, cluster: Optional[str] = None, profile_steps: Optional[int] = None,
                 replan_steps: Optional[int] = None, replan_percent: Optional[int] = None, timeout_s: float = 0):
        if backward_passes_per_step < 1:
            raise ValueError("backward_passes_per_step: at least 1")
        known = {id(parameter) for parameter in model.parameters()}
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if id(parameter) not in known:
                    raise ValueError("the optimizer has a parameter that is not the model's")
        self.optimizer = optimizer
        parameter = next((p for p in model.parameters() if p.requires_grad), torch.empty(0))
        self._group = groups.choose(transport, process_group, parameter.device, timeout_s)
        self._sync = GradientSync(
            model, self._group, Options.complete(policy, cluster, profile_steps, replan_steps, replan_percent),
            find_unused_parameters, timeout_s)
        self._passes = backward_passes_per_step
        self._counter = model.register_forward_pre_hook(WeakHook(self._count))
        # Before the hook of GradientSync, which takes `enabled` as it is when forward begins.
        model._forward_pre_hooks.move_to_end(self._counter.id, last=False)
        with torch.no_grad():
            self._group.broadcast_all(list(model.parameters()) + list(model.buffers()))

    def _count(self, *_) -> None:
        self._sync.enabled = self._sync.accumulated + 1 >= self._passes

    # What an optimizer is: the one inside is.
    def __getattr__(self, name: str):
        return getattr(self.__dict__["optimizer"], name)

    def __repr__(self) -> str:
        return f"DistributedOptimizer({self.optimizer!r})"

    def __getstate__(self):
        raise TypeError("a DistributedOptimizer cannot be copied or pickled; save its state_dict()")

    # What GradScaler tells an optimizer that scales by itself (fused=True), and how.
    grad_scale, found_inf = _inner("grad_scale"), _inner("found_inf")

    def step(self, closure=None, **named):
        self.synchronize()
        return self.optimizer.step(**named) if closure is None else self.optimizer.step(closure, **named)

    def zero_grad(self, *arguments, **named) -> None:
        self.optimizer.zero_grad(*arguments, **named)

    def state_dict(self):
        return self.optimizer.state_dict()

    def load_state_dict(self, state_dict) -> None:
        self.optimizer.load_state_dict(state_dict)

    def add_param_group(self, param_group) -> None:
        raise RuntimeError("add_param_group: the gradients that are averaged are fixed; add the group before wrapping")

    def synchronize(self) -> None:
        """For Horovod programs. Gradients are averaged when backward returns; only what was accumulated in fewer passes
        than `backward_passes_per_step` is left to do. Collective."""
        self._sync.average()

    def report(self) -> Report:
        """As DistributedDataParallel.report."""
        return self._sync.report()

    def statistics(self) -> dict:
        return self._sync.statistics()

    def close(self) -> None:
        self._counter.remove()
        self._sync.close()
