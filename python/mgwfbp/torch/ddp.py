"""DistributedDataParallel: PyTorch's, by the same name and with the same habits, with messages as the plan has them."""

import contextlib
import warnings
from typing import Any, Optional

import torch

from .compiled import outside, untraced
from .sync import GradientSync, Wrapper


def _move(value: Any, device: torch.device) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to(device)
    if isinstance(value, dict):
        return {key: _move(item, device) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*[_move(item, device) for item in value])
    return type(value)(_move(item, device) for item in value) if isinstance(value, (list, tuple)) else value


class DistributedDataParallel(Wrapper, torch.nn.Module):
    """Wraps a module so that its gradients are averaged among workers when `backward()` returns.

    Parameters and buffers of rank 0 are everybody's from the start. The arguments up to `static_graph` are those of
    torch.nn.parallel.DistributedDataParallel; the others:

    transport        `torch` (the process group that is initialised), `native` (the library's own: shared memory or
                     MPI, on GPUs NCCL; `native:emulated:1e-3,1e-9` names one); None: torch where there is a process
                     group
    policy           which messages: optimal, mgwfbp, wfbp, single, threshold:64MiB, ddp:1MiB,25MiB ...
    cluster          a cluster file or built-in name, instead of measuring what messages cost
    profile_steps    steps that are measured before the first plan
    replan_steps     steps between two looks at drift
    replan_percent   what a new plan must promise to be taken
    trials           whether plans of the policy optimal are tried on real steps, and the one that takes least stays
    plan             a file that save_plan has written: that plan from the start, and no tuning
    timeout_s        native: how long to wait for another worker (torch: as the process group was made)

    >>> model = mgwfbp.torch.DistributedDataParallel(model)    # doctest: +SKIP
    >>> for inputs, targets in loader:                         # doctest: +SKIP
    ...     optimizer.zero_grad()
    ...     loss(model(inputs), targets).backward()            # gradients are averaged
    ...     optimizer.step()
    >>> print(model.report())                                  # doctest: +SKIP
    """

    def __init__(self, module: torch.nn.Module, device_ids=None, output_device=None, dim: int = 0,
                 broadcast_buffers: bool = True, process_group=None, bucket_cap_mb: Optional[float] = None,
                 find_unused_parameters: bool = False, check_reduction: bool = False,
                 gradient_as_bucket_view: bool = True, static_graph: bool = False, **options: Any):
        super().__init__()
        if device_ids is not None and len(device_ids) > 1:
            raise ValueError("device_ids: one worker has one device; start a worker for each")
        if bucket_cap_mb is not None:
            warnings.warn("bucket_cap_mb has no effect: the plan decides which gradients travel together; "
                          f"policy='ddp:1MiB,{bucket_cap_mb}MiB' would cut them so", stacklevel=2)
        if dim != 0:
            raise ValueError("dim: only 0 is possible")
        self.module = module
        self.input_device = None
        if device_ids:
            self.input_device = torch.device(f"cuda:{device_ids[0]}" if isinstance(device_ids[0], int) else device_ids[0])
        ignore = tuple(getattr(module, "_ddp_params_and_buffers_to_ignore", ()))
        self._sync = GradientSync(module, process_group, find_unused_parameters, ignore, **options)
        self.broadcast_buffers = broadcast_buffers

    @property
    def broadcast_buffers(self) -> bool:
        return self._sync.has_buffers

    @broadcast_buffers.setter
    def broadcast_buffers(self, has: bool) -> None:
        self._sync.has_buffers = has

    @outside
    def forward(self, *inputs, **named):
        inputs, named = self._before_forward(inputs, named)
        return self.module(*inputs, **named)

    @untraced
    def _before_forward(self, inputs, named):
        if torch.is_grad_enabled():
            self._sync.check_ended()  # before the others are waited for
        self._sync.broadcast_buffers()
        self._sync.buffers_due = self._sync.enabled and torch.is_grad_enabled()
        if self.input_device is not None:
            inputs, named = _move(inputs, self.input_device), _move(named, self.input_device)
        return inputs, named

    @contextlib.contextmanager
    def no_sync(self):
        """Inside, gradients are accumulated and not averaged; the first backward pass outside averages the sum.

        >>> with model.no_sync():                              # doctest: +SKIP
        ...     loss(model(first), targets).backward()
        >>> loss(model(second), targets).backward()            # doctest: +SKIP
        """
        before, self._sync.enabled = self._sync.enabled, False
        try:
            yield
        finally:
            self._sync.enabled = before

    def close(self) -> None:
        self.broadcast_buffers = False
        super().close()

    def join(self, *_, **__):
        raise NotImplementedError("join: uneven inputs are not supported; give every worker the same number of batches "
                                  "(DistributedSampler does), or wrap the model in PyTorch's own DDP with tune_ddp")

    def register_comm_hook(self, *_, **__):
        raise NotImplementedError("register_comm_hook: not supported; tune_ddp gives a stock DDP that has it")

    def __getstate__(self):
        raise TypeError("a DistributedDataParallel cannot be copied or pickled: its gradients belong to a running job; "
                        "copy or save its .module")
