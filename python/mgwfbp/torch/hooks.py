"""From the parameters' hooks to the reducer: notices gradients, brings them to the memory they are sent from, and reports
them as ready. GradientSync (sync.py) is a subclass, which knows when steps begin and end.

Small gradients are noted in C, and those of a message are handed over together when the last one is ready, in any order, in
place or elsewhere. Other gradients are handed over one by one: the first of a step, large ones, those on another stream,
and all of them in the survey, inside no_sync, and with sharded parameters.
"""

import contextlib
import weakref
from typing import Any, Callable, Dict, Iterator, List, Optional, Set, Tuple

import torch

from ..notes import ALONE, HANDED_OVER, NOTED, TAKEN, UNSEEN, Notes
from .batch import Batch
from .compiled import leave_alone, untraced
from .reducer import Reducer


@contextlib.contextmanager
def _unfrozen(parameter: torch.Tensor) -> Iterator[None]:
    """A parameter that was frozen after wrapping keeps its hook, since it may be unfrozen again; but autograd accepts
    hooks only while it requires a gradient."""
    required = parameter.requires_grad
    parameter.requires_grad_(True)
    try:
        yield
    finally:
        parameter.requires_grad_(required)


def _accumulator_of(parameter: torch.Tensor):
    with torch.enable_grad(), torch._C.DisableTorchFunction():  # do not wait for a parameter that is being gathered
        with _unfrozen(parameter):
            return parameter.expand_as(parameter).grad_fn.next_functions[0][0]


class _Handle:
    """Removes a hook. PyTorch's own handles cannot do so when they are collected as garbage together with their owner, since
    their weak references are cleared first."""

    def __init__(self, handle):
        self.hooks, self.id = handle.hooks_dict_ref(), handle.id

    def remove(self) -> None:
        self.hooks.pop(self.id, None)

    def move_last(self) -> None:
        if self.id in self.hooks:
            self.hooks[self.id] = self.hooks.pop(self.id)


def hook_after_gradient(parameter: torch.Tensor, call: Callable):
    """Calls back whenever the parameter's gradient is complete. Returns a handle that removes the hook, and an object to
    keep alive."""
    if hasattr(parameter, "register_post_accumulate_grad_hook"):  # PyTorch 2.1 and later
        with _unfrozen(parameter):
            return _Handle(parameter.register_post_accumulate_grad_hook(call)), None
    accumulator = _accumulator_of(parameter)
    return _Handle(accumulator.register_hook(call)), accumulator


class WeakHook:
    """A hook that does not keep its owner alive. In a copy of the module it does nothing."""

    def __init__(self, method: Optional[Callable] = None):
        self.method = weakref.WeakMethod(method) if method else lambda: None

    @untraced
    def __call__(self, *arguments):
        method = self.method()
        return method(*arguments) if method else None

    def __reduce__(self):
        return WeakHook, ()


UNDEFINED = 9  # in `seen`: the parameter was reached, but has no gradient


class Handover:
    """A hook on every parameter. Numbers are positions in `parameters`."""

    names: List[str]
    parameters: List[torch.Tensor]
    reducer: Reducer
    sharding: Any = None  # a Sharding, if parameters are sharded
    _hooks: list = []
    _last: tuple = [], [], []  # those that must be the last of their parameters: handles, hooks of the parameter, ids
    batches: List[Batch] = []  # messages of the current plan with several small gradients
    known_batches: Dict[tuple, List[Batch]] = {}  # by plan

    def __init__(self, count: int, as_views: bool = True):
        self.as_views = as_views  # gradients are views of the reducer's memory; else they stay in the program's memory
        self.shared: Set[int] = set()  # ids of parameters whose gradients other wrappers average as well
        self.syncing = False  # `enabled` at the last forward pass: whether backward averages
        self.in_step = False
        self.accumulated = 0  # backward passes without averaging since the last average
        self.passed = True  # the previous forward pass had a backward pass
        self.copied_bytes = self.copies = 0
        self.strays: List[int] = []  # gradients of this step that cannot be in the arena and are copied back
        self.seen = bytearray(count)
        self.used = bytearray(count)  # since the last averaging, no_sync included
        self.known_batches = {}

    def _is_view(self, k: int) -> bool:
        """Whether its gradient becomes a view of the reducer's memory. Not if it is shared: the other wrapper needs the
        gradient of this worker, and both copy the average back."""
        return self.as_views and id(self.parameters[k]) not in self.shared

    def share(self, shared: Set[int]) -> None:
        """Another wrapper will average the gradients of these parameters, given by id, as well."""
        if self.in_step or self.sharding:
            raise RuntimeError(f"parameter '{self._name_of_any(shared)}' belongs to another wrapped model as well, "
                               "which has " + ("an unfinished backward pass" if self.in_step else "a ZeroRedundancyOptimizer") +
                               "; close() its wrapper first")
        self.shared |= shared
        self.batches, self.known_batches, self.noted_plan = [], {}, -1
        for parameter, address in zip(self.parameters, self.addresses or ()):
            if id(parameter) in shared and parameter.grad is not None and parameter.grad.data_ptr() == address:
                parameter.grad = parameter.grad.clone()

    def _name_of_any(self, ids: Set[int]) -> str:
        return next(name for name, parameter in zip(self.names, self.parameters) if id(parameter) in ids)

    def _arm(self, *_) -> None:
        """Requests a callback at the end of the backward pass."""
        raise NotImplementedError

    def _begin(self) -> None:
        raise NotImplementedError

    def _register(self) -> None:
        self.dtypes, self.scale = [parameter.dtype for parameter in self.parameters], self.reducer.scale
        views, this = self.reducer.views, weakref.ref(self)
        self.addresses = [view.data_ptr() for view in views] if views else None
        # These become .grad. They are not the views themselves, since model.half() changes the memory they refer to.
        self.aliases = [view.detach() for view in views] if views else None
        self.notes = Notes(self.seen, leave_alone(lambda k: this()._hear(k)), self.reducer.mark, self.reducer.current)
        self.noted_plan = -1
        self._hooks = [hook_after_gradient(parameter, self._hook(k)) for k, parameter in enumerate(self.parameters)]
        last = [handle for handle, accumulator in self._hooks if accumulator is None]  # an accumulator's run after all of these
        self._last = last, [handle.hooks for handle in last], [handle.id for handle in last]

    def _stay_last(self) -> None:
        """Hooks that the program has registered since then may change gradients; these are handed over after that."""
        handles, hooks, ids = self._last
        if [next(reversed(each), None) for each in hooks] != ids:
            for handle in handles:
                handle.move_last()

    def _hook(self, k: int) -> Callable:
        return self.notes.hook(k)

    def _unregister(self) -> None:
        for handle, _ in self._hooks:
            handle.remove()
        self._hooks, self.batches, self.known_batches = [], [], {}  # these refer to the reducer's memory

    def _hear(self, k: int) -> None:
        """Called for a gradient that is not noted, or that completes its message."""
        notes, seen = self.notes, self.seen
        if seen[k] == NOTED and notes.is_complete(k):
            self._take_message(notes.message[k])
            return
        if self.sharding:
            self.sharding.check_heard(k)
            if self.addresses is not None:
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
        if seen[k] != UNSEEN:
            raise RuntimeError(f"parameter '{self.names[k]}' got its gradient twice in one backward pass: modules "
                               "that are used in several reentrant backward passes are not supported; "
                               "use torch.utils.checkpoint with use_reentrant=False, or no_sync()")
        seen[k] = HANDED_OVER
        self._take_in(k)
        if notes.on and notes.message[k] != ALONE:
            notes.left[notes.message[k]] -= 1
            if notes.is_complete(k):
                self._take_message(notes.message[k])

    def _replaced(self) -> bool:
        """Whether parameters were replaced, for example by model.half() and back: autograd may have new accumulators
        without our hooks."""
        if not self._hooks:
            return False
        accumulator = self._hooks[0][1]
        return [parameter.dtype for parameter in self.parameters] != self.dtypes or (
            accumulator is not None and _accumulator_of(self.parameters[0]) is not accumulator)

    def _take_in(self, k: int) -> None:
        """Hands over one gradient. If autograd has put it elsewhere (zero_grad(set_to_none=True), another dtype), it is
        copied first, by the reducer itself if it can."""
        parameter = self.parameters[k]
        gradient = parameter.grad
        if gradient is None:  # autograd returned None for it: it counts as zero
            self.seen[k] = UNDEFINED
            if self.addresses is not None:
                self.reducer.views[k].zero_()
            self.reducer.ready(k)
            return
        if gradient.is_sparse:
            raise RuntimeError(f"parameter '{self.names[k]}': its gradient is sparse, but it does not belong to a "
                               "torch.nn.Embedding or EmbeddingBag with sparse=True; only these are supported")
        if self.addresses is None or gradient.data_ptr() == self.addresses[k]:  # it is in place
            if self.scale != 1.0:
                gradient.mul_(self.scale)
            self.reducer.ready(k)
            return
        view = self.reducer.views[k]
        self.copies += 1
        self.copied_bytes += self.reducer.slots[k].bytes
        if gradient.dtype == view.dtype and not gradient.requires_grad and self._is_view(k):
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
        """An alias of the view, which becomes .grad and may be cast or moved with it."""
        if self.sharding:
            self.sharding.gradients.unmark(k)
        if self.aliases[k].data_ptr() != self.addresses[k]:
            self.aliases[k] = self.reducer.views[k].detach()
        return self.aliases[k]

    # ---- Messages ----

    def _note_from_now(self) -> None:
        """A step has begun: from now on gradients are noted, if the reducer has a plan."""
        reducer = self.reducer
        if self.sharding or not self.as_views or reducer.planned is None:
            return
        operations, count, plan = reducer.planned()
        if plan != self.noted_plan:
            self.noted_plan = plan
            self._adopt([(o.first, o.first + o.count) for o in operations[:count]])
        self.notes.begin(*reducer.samples())

    def _adopt(self, operations: List[Tuple[int, int]]) -> None:
        """Uses other messages from now on. Their small gradients, except tensor 0, are handed over together."""
        key, reducer = tuple(operations), self.reducer
        if key not in self.known_batches:  # plans take turns in a trial
            if len(self.known_batches) > 16:
                self.known_batches.clear()
            end = len(self.parameters)  # the last slot may not belong to a parameter
            messages = [[k for k in range(max(first, 1), min(behind, end))
                         if reducer.slots[k].bytes <= reducer.small_bytes and self._is_view(k)]
                        for first, behind in operations]
            self.known_batches[key] = [self._batch(numbers) for numbers in messages if len(numbers) > 1]
        self.batches = self.known_batches[key]
        self.notes.adopt([batch.numbers for batch in self.batches])

    def _batch(self, numbers: List[int]) -> Batch:
        return Batch(numbers, *([some[k] for k in numbers] for some in (
            self.parameters, self.reducer.views, self.aliases, self.reducer.slots)))

    def _take_message(self, message: int) -> None:
        """Hands over the gradients of a complete message."""
        self.notes.left[message] = TAKEN
        batch, seen = self.batches[message], self.seen
        noted = [k for k in batch.numbers if seen[k] == NOTED]
        if len(noted) < batch.count:  # others were handed over one by one
            batch = self._batch(noted)
        if not batch.find():
            for k in noted:
                self._take_in(k)
            return
        if batch.sources:
            if not batch.place():
                batch.aliases = [self._alias(k) for k in batch.numbers]
                batch.place()
            self.copies += batch.count
            self.copied_bytes += batch.bytes
        self.reducer.take_all(batch, self.notes.at_s)
        batch.gradients = []

    def _take_noted(self) -> None:
        """Backward has ended: hands over noted gradients of incomplete messages."""
        notes = self.notes
        if notes.on:
            notes.end()
            for k in [k for k, seen in enumerate(self.seen) if seen == NOTED and notes.left[notes.message[k]] != TAKEN]:
                self._take_in(k)
