"""From a parameter's hook to the reducer: who hears of gradients, brings them to where they are sent from, and says that
they are ready. GradientSync (sync.py) is one, and knows when steps begin and end."""

import weakref
from typing import Any, Callable, List

import torch

from .compiled import leave_alone
from .reducer import Reducer


def _accumulator_of(parameter: torch.Tensor):
    with torch.enable_grad(), torch._C.DisableTorchFunction():  # a parameter that is on its way is not waited for
        return parameter.expand_as(parameter).grad_fn.next_functions[0][0]


def _hook_after_gradient(parameter: torch.Tensor, call: Callable):
    """Calls back whenever the parameter's gradient is complete. Returns what removes it, and what must be kept."""
    if hasattr(parameter, "register_post_accumulate_grad_hook"):  # PyTorch 2.1 and later
        return parameter.register_post_accumulate_grad_hook(call), None
    accumulator = _accumulator_of(parameter)
    return accumulator.register_hook(call), accumulator


class Handover:
    """A hook on every parameter. What is kept by number is in the order of `parameters`."""

    names: List[str]
    parameters: List[torch.Tensor]
    reducer: Reducer
    sharding: Any = None  # where parameters lie beside the gradients: a Sharding
    _hooks: list = []

    def __init__(self, count: int):
        self.syncing = True  # as it was enabled at the last forward pass: what backward does
        self.in_step = False
        self.accumulated = 0  # backward passes whose gradients were not averaged, since some were
        self.passed = True  # the forward pass before had a backward pass
        self.copied_bytes = self.copies = 0
        self.strays: List[int] = []  # gradients of this step that cannot be in the arena: copied back, too
        self.seen = bytearray(count)
        self.used = bytearray(count)  # since the last averaging, no_sync included

    def _arm(self, *_) -> None:
        """Asks to be told when backward has ended."""
        raise NotImplementedError

    def _begin(self) -> None:
        raise NotImplementedError

    def _register(self) -> None:
        self.dtype, self.scale = self.parameters[0].dtype, self.reducer.scale
        views = self.reducer.views
        self.addresses = [view.data_ptr() for view in views] if views else None
        # What becomes .grad: other tensors than the views, since model.half() changes what they refer to.
        self.aliases = [view.detach() for view in views] if views else None
        self._hooks = [_hook_after_gradient(parameter, self._hook(k)) for k, parameter in enumerate(self.parameters)]

    def _unregister(self) -> None:
        for handle, _ in self._hooks:
            handle.remove()
        self._hooks = []

    def _hook(self, k: int) -> Callable:
        """Every gradient calls it: what is the same in all steps is looked up once."""
        this, parameter, seen = weakref.ref(self), self.parameters[k], self.seen
        address, scale, ready = self.addresses and self.addresses[k], self.scale, self.reducer.ready

        def gradient_is_there(*_):
            self = this()
            if self.sharding and address is not None:
                self.sharding.check(k)
            if not self.syncing:
                self.used[k] = 1
                if not self.passed:
                    self.passed = True
                    self.accumulated += 1
                return
            if not self.in_step:
                self._arm()
                self._begin()
            if seen[k]:
                raise RuntimeError(f"parameter '{self.names[k]}' got its gradient twice in one backward pass: a module "
                                   "that is used in several reentrant backward passes cannot be averaged in between; "
                                   "use torch.utils.checkpoint with use_reentrant=False, or no_sync()")
            seen[k] = 1
            if address is None or parameter.grad.data_ptr() != address:
                self._take_in(k)
                return
            if scale != 1.0:
                parameter.grad.mul_(scale)
            ready(k)

        return leave_alone(gradient_is_there)

    def _replaced(self) -> bool:
        """By model.half() and the like, perhaps to and fro: autograd may have new accumulators, without our hooks."""
        accumulator = self._hooks[0][1]
        return self.parameters[0].dtype != self.dtype or (
            accumulator is not None and _accumulator_of(self.parameters[0]) is not accumulator)

    def _take_in(self, k: int) -> None:
        """Makes a gradient ready that autograd has put elsewhere (zero_grad(set_to_none=True), another dtype): it is
        copied, by the reducer itself if it can."""
        parameter = self.parameters[k]
        gradient = parameter.grad
        if gradient.is_sparse:
            raise RuntimeError(f"parameter '{self.names[k]}': its gradient is sparse; sparse gradients cannot be "
                               "averaged here (for an Embedding: sparse=False)")
        if self.addresses is None or gradient.data_ptr() == self.addresses[k]:  # it is in place
            if self.scale != 1.0:
                gradient.mul_(self.scale)
            self.reducer.ready(k)
            return
        view = self.reducer.views[k]
        self.copies += 1
        self.copied_bytes += self.reducer.slots[k].bytes
        if gradient.dtype == view.dtype and not gradient.requires_grad:
            parameter.grad = self._alias(k)
            if self.reducer.take(k, gradient):
                return
            torch.mul(gradient, self.scale, out=view)
        else:
            with torch.no_grad():
                view.copy_(gradient).mul_(self.scale)
            self.strays.append(k)
        self.reducer.ready(k)

    def _alias(self, k: int) -> torch.Tensor:
        """Of the view: what becomes .grad, and with it may be cast or moved away."""
        if self.sharding:
            self.sharding.gradients.unmark(k)
        if self.aliases[k].data_ptr() != self.addresses[k]:
            self.aliases[k] = self.reducer.views[k].detach()
        return self.aliases[k]
