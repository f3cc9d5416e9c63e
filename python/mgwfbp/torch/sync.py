"""Averages gradients during backward: the common base of both wrappers (ddp.py, optimizer.py).

A hook on every parameter reports when its gradient is ready (hooks.py); a reducer, one per transport, sends the messages;
averaging.py runs a step. This file covers everything before and between steps. The first step is a survey: all gradients
are averaged in one message, and their ready order is recorded. From then on parameters are kept in that order, and their
gradients are views of the reducer's memory.
"""

import dataclasses
import weakref
from time import perf_counter
from typing import Iterator, List, Optional, Sequence, Tuple

import torch

from ..environment import Options
from . import facts, in_backward
from .averaging import Averaging
from .broadcast import Buffers, broadcast_all
from .comm_hooks import CommHook, HookedReducer
from .compiled import ALSO_AFTER_ERRORS, Pieces
from .groups import NativeGroup, ProcessGroup, choose
from .hooks import WeakHook
from .native import make_reducer
from .process_group import ProcessGroupReducer
from .reducer import Reducer
from .slots import Slot
from .sparse import SparseGradients, names_of
from .static_graph import StaticGraph
from .survey import Survey

USAGE = "mgwfbp.used"  # name of the slot in which workers report the parameters they used

_synced: "weakref.WeakKeyDictionary" = weakref.WeakKeyDictionary()  # by module: the GradientSync that averages its gradients


def _tensors_in(output) -> Iterator[torch.Tensor]:
    if isinstance(output, torch.Tensor):
        yield output
    elif isinstance(output, (list, tuple)):
        for value in output:
            yield from _tensors_in(value)
    elif isinstance(output, dict):
        yield from _tensors_in(list(output.values()))
    elif dataclasses.is_dataclass(output):
        yield from _tensors_in([getattr(output, field.name, None) for field in dataclasses.fields(output)])


def _device_of(parameters: Sequence[torch.Tensor]) -> torch.device:
    devices = {parameter.device for parameter in parameters}
    if len(devices) > 1:
        raise RuntimeError(f"the parameters are on several devices ({', '.join(sorted(map(str, devices)))}); each worker "
                           "must have one device")
    return devices.pop()


class GradientSync(Averaging):
    """Averages the gradients of a module's parameters in every backward pass. Parameters are first broadcast from rank 0.
    The arguments are those of the wrappers."""

    _module_hooks: list = []
    is_open = False

    def __init__(self, module: torch.nn.Module, process_group=None, find_unused_parameters: bool = False,
                 ignore: Sequence[str] = (), *, transport: Optional[str] = None, timeout_s: float = 0,
                 as_views: bool = True, static_graph: bool = False, init_sync: bool = True, init_buffers: bool = True,
                 on_module: bool = True, **options):
        other = _synced.get(module, lambda: None)()
        if other and other.is_open:
            other.make_way()
        named = [(n, p) for n, p in module.named_parameters() if p.requires_grad and n not in ignore]
        if not named:
            raise RuntimeError("DistributedDataParallel is not needed when a module doesn't have any parameter that "
                               "requires a gradient: there is nothing to average")
        self.device, self.options = _device_of([p for _, p in named]), Options.complete(**options)
        self.find_unused = find_unused_parameters and not static_graph
        sparse = names_of(module)
        self.names = [name for name, _ in named if name not in sparse]
        self.parameters = [parameter for name, parameter in named if name not in sparse]
        self.static = StaticGraph(len(self.parameters)) if static_graph else None
        self._choose = lambda device: choose(transport, process_group, device, timeout_s)
        self.group = group = self._choose(self.device)
        group.agree([f"{name} {parameter.dtype} {list(parameter.shape)}" for name, parameter in named] +
                    [f"options {self.options.agreed()} find_unused_parameters={find_unused_parameters} "
                     f"buffers at the start: {init_buffers}", f"transport {group.about}"], "parameter")
        super().__init__(len(self.parameters), as_views)
        self._find_shared()
        self.sparse = SparseGradients([(name, parameter) for name, parameter in named if name in sparse], group)
        self.enabled = True  # False inside no_sync
        self.comm: Optional[CommHook] = None
        self.error = ""  # the last one raised
        self.leader, self.uneven = 0, False  # join(): whose buffers count
        self._take_over()
        self.reducer = self._survey()
        self.pieces = Pieces(module, self.parameters)
        self._register()
        if on_module:
            self._module_hooks = [module.register_forward_pre_hook(WeakHook(self.before_forward)),
                                  module.register_forward_hook(WeakHook(self._after_module), **ALSO_AFTER_ERRORS)]
        _synced[module] = weakref.ref(self)
        self.is_open = True
        self.module, self.ignored, self.buffers = weakref.ref(module), ignore, Buffers(module, ignore)
        self.has_buffers = False  # to broadcast
        self.buffers_due = True  # as with DDP: not again before a backward pass was averaged
        if init_sync:
            broadcast_all(self.whole(init_buffers), group.rank == 0, group.broadcast)

    def _take_over(self) -> None:
        """Optimizers may be applied to the backward pass after wrapping, too, up to the first forward pass."""
        self.stepping = in_backward.take_over(self.parameters + self.sparse.parameters)

    def _find_shared(self) -> None:
        """Parameters may belong to several wrapped models. Each wrapper averages them in its own steps, which may end in
        the same backward pass."""
        own = {id(parameter) for parameter in self.parameters}
        for other in [reference() for reference in _synced.values()]:
            shared = own & {id(p) for p in other.parameters} if other is not None and other.is_open else None
            if shared:
                other.share(shared)
                self.shared |= shared

    def whole(self, buffers: bool = True) -> List[torch.Tensor]:
        """All parameters and buffers that are not ignored."""
        parameters = [p for n, p in self.module().named_parameters() if n not in self.ignored]
        return parameters + (self.buffers.find() if buffers else [])

    def _survey(self) -> Survey:
        return Survey(self.group, self.parameters, self.device, self.comm)

    def failure(self, text: str) -> RuntimeError:
        self.error = text
        return RuntimeError(text)

    def check_ended(self) -> None:
        if self.in_step:
            indices = " ".join(str(self.places[k]) for k, seen in enumerate(self.seen) if not seen)
            changed = ("This error indicates that your training graph has changed in this iteration, e.g., one parameter is "
                       "used in first iteration, but then got unused in the second iteration. this is not compatible with "
                       "static_graph set to True.\nParameter indices which did not receive grad for "
                       f"rank {self.group.rank}: {indices}\n") if self.static else ""
            raise self.failure("Expected to have finished reduction in the prior iteration before starting a new one. "
                               f"{changed}The backward pass before this forward pass did not end (did it raise an exception?). Some "
                               "of its messages are in flight, and other workers may wait for the rest; to continue, wrap "
                               "the model again on all workers")
        if self.complaint:
            text, self.complaint = self.complaint, ""
            raise self.failure(text)

    def before_forward(self, *_) -> None:
        if not torch.is_grad_enabled() or not self.is_open:
            return
        self.check_ended()
        if self.parameters and self.parameters[0].device != self.device:
            self._move()
        elif self._replaced():
            self._unregister()
            self._register()
        if isinstance(self.reducer, Survey):
            self._take_over()
            if self.sharding:
                self.sharding.listen()
        self.armed = self.passed = False
        self.syncing, self.idle = self.enabled, None
        self.moments = [perf_counter()]
        self.reducer.start()
        self.pieces.enter()

    def _move(self) -> None:
        """Handles model.to(device). Collective: all workers must move their models."""
        self.device = _device_of(self.parameters + self.sparse.parameters)
        if self.sharding:
            raise RuntimeError("a model with a ZeroRedundancyOptimizer cannot be moved to another device; move it before wrapping")
        self._unregister()
        self.reducer.close()
        if isinstance(self.group, NativeGroup):
            self.group.transport.close()
        self.group = self.sparse.group = self._choose(self.device)
        self.aliases, self.reducer = None, self._survey()
        self._register()

    def _after_module(self, module, inputs, output) -> None:
        self.after_forward(output)

    def after_forward(self, output) -> None:
        """The first gradient that arrives at the output requests a callback at the end of backward. It does so in the
        outermost backward pass; parameters' hooks may run in an inner one (reentrant checkpoints). An object of an unknown
        class may have tensors as attributes."""
        self.pieces.leave()
        if not (torch.is_grad_enabled() and self.syncing):
            return
        arm = WeakHook(self._from_output)
        for tensor in list(_tensors_in(output)) or _tensors_in(getattr(output, "__dict__", None)):
            if tensor.grad_fn is not None:  # a parameter would keep the hook
                tensor.register_hook(arm)

    def _make_reducer(self) -> Reducer:
        slots = [Slot.of(name, parameter) for name, parameter in zip(self.names, self.parameters)]
        if self.comm:
            return HookedReducer(self.group, slots, self.options, self.device, self.comm, self.parameters)
        if self.find_unused:
            slots.append(Slot.of(USAGE, torch.empty(len(slots), dtype=torch.float32)))
        make = ProcessGroupReducer if isinstance(self.group, ProcessGroup) else make_reducer
        return make(self.group, slots, self.options, self.device)

    # ---- Between steps ----

    def change(self, comm: Optional[CommHook] = None, wire: Optional[str] = None) -> None:
        """Sets a communication hook, or the format in which f32 gradients are sent, from the next step on. On all
        workers."""
        if self.sharding:
            raise RuntimeError("register_comm_hook: not supported with a ZeroRedundancyOptimizer")
        self.check_ended()
        self.comm, self.options = comm, self.options._replace(wire=wire or self.options.wire)
        self._unregister()
        self._survey_again()
        self._register()

    def make_way(self) -> None:
        """Closes this wrapper, for another one of the same module."""
        if self.in_step or self.sharding:
            raise RuntimeError("another wrapper already averages the gradients of this model, and it has " +
                               ("an unfinished backward pass" if self.in_step else "a ZeroRedundancyOptimizer") +
                               "; close() that wrapper first")
        self.close()

    def attach(self, sharding, policy: Optional[str]) -> None:
        """Shards parameters from the next backward pass on, which is a survey. On all workers."""
        if self.sharding:
            raise RuntimeError("the model already has a ZeroRedundancyOptimizer; use its add_param_group")
        self.check_ended()
        self._take_over()
        if self.comm or self.sparse or self.static or self.stepping or not self.as_views:
            raise RuntimeError("ZeroRedundancyOptimizer does not support models with a communication hook, sparse gradients, "
                               "optimizers in backward, static_graph=True or gradient_as_bucket_view=False")
        if self.options.wire and isinstance(self.group, ProcessGroup):
            raise RuntimeError(f"wire {self.options.wire}: with ZeroRedundancyOptimizer over process groups, pass "
                               "gradient_dtype to it instead")
        if self.shared:
            raise RuntimeError("ZeroRedundancyOptimizer does not support parameters that belong to several wrapped models, "
                               f"as '{self._name_of_any(self.shared)}' does; close() the other wrapper, and wrap this model "
                               "again")
        self.sharding = sharding
        if policy or not self.options.is_chosen:
            self.options = self.options._replace(policy=policy or "overlap", is_chosen=True)
        self._unregister()
        self._survey_again()
        self._register()

    def broadcast_buffers(self) -> None:
        """Broadcasts buffers if they are due: before a forward pass; or before gathers begin, since it would have to wait
        for these."""
        if self.has_buffers and self.buffers_due and self.is_open and self.group.size > 1:
            send = self.reducer.broadcast or self.group.broadcast
            if self.leader:
                send = lambda tensor: self.group.broadcast(tensor, self.leader)  # noqa: E731
            with self._inside(), torch.inference_mode(False):
                self.buffers.broadcast(self.group.rank == self.leader, send)
        self.buffers_due = False

    def statistics(self) -> dict:
        counts = self.reducer.statistics()
        counts["steps"] += bool(self.reducer.views)  # the survey
        return {**counts, "tensors": len(self.parameters), "copies": self.copies, "copied_bytes": self.copied_bytes,
                "wire_bytes": facts.wire_bytes(self)}

    def close(self) -> None:
        """Stops averaging. Gradients keep their values."""
        self._let_go()
        if self.sharding:
            self.sharding.uninstall()
        self._survey_again()
        if isinstance(self.group, NativeGroup):
            self.group.transport.close()

    def _survey_again(self) -> None:
        if self.reducer.views:
            for parameter in self.parameters:
                if parameter.grad is not None:
                    parameter.grad = parameter.grad.clone()
        self.reducer.close()
        self.aliases, self.reducer = None, self._survey()

    def _let_go(self) -> None:
        self.is_open = self.syncing = self.enabled = self.in_step = False
        self.complaint = ""
        self._unregister()
        for handle in self._module_hooks:
            handle.remove()

    def __del__(self):
        if self.is_open:
            self._let_go()


def find_sync(parameters: Sequence[torch.Tensor]) -> Tuple[GradientSync, torch.nn.Module]:
    """The GradientSync that averages the gradients of these parameters, and its module."""
    wanted = {id(parameter) for parameter in parameters if parameter.requires_grad}
    for module, reference in _synced.items():
        sync = reference()
        known = {id(parameter) for parameter in sync.parameters} if sync is not None and sync.is_open else set()
        if wanted & known:
            if wanted - known:
                raise ValueError("some parameters do not belong to the wrapped model, or it does not average their "
                                 "gradients")
            return sync, module
    raise RuntimeError("wrap the model in mgwfbp.torch.DistributedDataParallel first: it averages the gradients of these "
                       "parameters")
