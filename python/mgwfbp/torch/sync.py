"""Gradients averaged when backward returns: what both wrappers (ddp.py, optimizer.py) rest on.

A hook on every parameter says when its gradient is there (hooks.py); a reducer, one per transport, sends the messages.
The first step is a survey: it is reduced in one piece, and shows in which order gradients become ready. From then on
parameters are kept in that order, and their gradients are views of the reducer's memory.
"""

import contextlib
import weakref
from ctypes import c_size_t
from typing import Callable, Iterator, List, Optional, Sequence, Tuple

import torch
from torch.autograd import Variable

from ..environment import Options
from . import report
from .broadcast import Buffers, broadcast_all, grouped
from .compiled import Pieces, check_backward, untraced
from .groups import Group, NativeGroup, ProcessGroup, choose
from .hooks import Handover
from .native import make_reducer
from .process_group import ProcessGroupReducer
from .reducer import Reducer
from .slots import Slot

USAGE = "mgwfbp.used"  # the name of the slot in which workers tell which parameters they used

_synced: "weakref.WeakKeyDictionary" = weakref.WeakKeyDictionary()  # of a module: who averages its gradients


def _tensors_in(output) -> Iterator[torch.Tensor]:
    if isinstance(output, torch.Tensor):
        yield output
    elif isinstance(output, (list, tuple)):
        for value in output:
            yield from _tensors_in(value)
    elif isinstance(output, dict) or hasattr(output, "__dataclass_fields__"):
        yield from _tensors_in(list((output if isinstance(output, dict) else vars(output)).values()))


class _Survey(Reducer):
    """The reducer of the first step: gradients stay where they are, and the order is taken down."""

    def __init__(self, group: Group, parameters: List[torch.Tensor]):
        super().__init__([], parameters[0].device)
        self.group, self.parameters, self.order = group, parameters, []

    def ready(self, k: int) -> None:
        self.order.append(k)

    def wait(self) -> None:
        for parameter in self.parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        with torch.no_grad():
            for batch in grouped([parameter.grad for parameter in self.parameters], lambda grad: grad.dtype).values():
                flat = torch.cat([gradient.reshape(-1) for gradient in batch])
                flat = flat.float() if flat.element_size() == 2 else flat  # which not every group adds up
                self.group.all_reduce(torch.view_as_real(flat) if flat.is_complex() else flat, "average")
                for gradient, piece in zip(batch, flat.split([g.numel() for g in batch])):
                    gradient.copy_(piece.view(gradient.shape))


class GradientSync(Handover):
    """Averages the gradients of a module's parameters in every backward pass. What rank 0 has is everybody's from the
    start. The arguments are those of the wrappers."""

    _module_hooks: list = []

    def __init__(self, module: torch.nn.Module, process_group=None, find_unused_parameters: bool = False,
                 ignore: Tuple[str, ...] = (), *, transport: Optional[str] = None, timeout_s: float = 0, **options):
        other = _synced.get(module, lambda: None)()
        if other and other._hooks:
            raise RuntimeError("the gradients of this model are averaged already, by another wrapper: close() that first")
        named = [(n, p) for n, p in module.named_parameters() if p.requires_grad and n not in ignore]
        if not named:
            raise RuntimeError("no parameter of the module requires a gradient: there is nothing to average")
        devices = {parameter.device for _, parameter in named}
        if len(devices) > 1:
            raise RuntimeError(f"the parameters are on several devices ({', '.join(map(str, devices))}); one worker "
                               "has one device")
        self.device, self.find_unused, self.options = devices.pop(), find_unused_parameters, Options.complete(**options)
        self.names = [name for name, _ in named]
        self.parameters = [parameter for _, parameter in named]
        self.group = group = choose(transport, process_group, self.device, timeout_s)
        group.agree([f"{name} {parameter.dtype} {list(parameter.shape)}" for name, parameter in named] +
                    [f"options {self.options.agreed()} find_unused_parameters={find_unused_parameters}",
                     f"transport {group.about}"], "parameter")
        super().__init__(len(named))
        self.enabled = True  # False inside no_sync
        self.armed = False  # the end of this backward pass will call _finish
        self.reducer = _Survey(group, self.parameters)
        self.pieces = Pieces(module, self.parameters)
        self._register()
        self._module_hooks = [module.register_forward_pre_hook(WeakHook(self._before_forward)),
                              module.register_forward_hook(WeakHook(self._after_forward))]
        _synced[module] = weakref.ref(self)
        self.buffers = Buffers(module, ignore)
        self.has_buffers = False  # that are broadcast
        self.buffers_due = True  # as with DDP: not again until a backward pass was averaged
        broadcast_all([p for n, p in module.named_parameters() if n not in ignore] + self.buffers.find(),
                      group.rank == 0, group.broadcast)

    def check_ended(self) -> None:
        if self.in_step:
            raise RuntimeError("the backward pass before this forward pass did not end (an exception in it?): its "
                               "messages are on the way, and other workers may wait for the rest; wrap the model anew "
                               "on all workers to go on")

    def _before_forward(self, *_) -> None:
        if not torch.is_grad_enabled():
            return
        self.check_ended()
        if self._replaced():
            self._unregister()
            self._register()
        self.armed = self.passed = False
        self.syncing = self.enabled
        self.reducer.start()
        self.pieces.enter()

    def _after_forward(self, module, inputs, output) -> None:
        """The first gradient that goes in asks to be told when backward has ended: from the outermost backward pass,
        where parameters' hooks may run in an inner one (reentrant checkpoints)."""
        self.pieces.leave()
        if not (torch.is_grad_enabled() and self.syncing):
            return
        arm = WeakHook(self._arm)
        for tensor in _tensors_in(output):
            if tensor.grad_fn is not None:  # else it is a parameter, which would keep the hook
                tensor.register_hook(arm)

    # ---- A step ----

    def _arm(self, *_) -> None:
        if self.syncing and not self.armed:
            check_backward()
            self.armed = True
            Variable._execution_engine.queue_callback(self._finish)

    def _begin(self) -> None:
        self.in_step = True
        self.reducer.begin()
        self._note_from_now()

    def average(self) -> None:
        """What was accumulated and not averaged: now, and not at the end of a backward pass."""
        if self.accumulated:
            self.check_ended()
            with self._inside():
                self._begin()
                self._end(complains=False)

    @untraced
    def _finish(self) -> None:
        """Backward has ended, on a thread that may have another GPU before it."""
        self.armed = False
        if self.in_step:  # else no parameter got a gradient: torch.autograd.grad, or a loss that needs none
            with self._inside():
                self._end()

    def _inside(self):
        return torch.cuda.device(self.device) if self.device.type == "cuda" else contextlib.nullcontext()

    def _end(self, complains: bool = True) -> None:
        """Waits for the messages. What got no gradient here counts as zero."""
        self._take_noted()
        missing = [k for k, seen in enumerate(self.seen) if not seen]
        names = ", ".join(f"'{self.names[k]}'" for k in missing[:5]) + (", ..." if len(missing) > 5 else "")
        absent = self._fill(missing)
        if self.find_unused and self.addresses and not self.sharding:
            self._tell_usage(missing)
        self.reducer.wait()
        for k in () if self.sharding else self.strays:
            with torch.no_grad():
                self.parameters[k].grad.copy_(self.reducer.views[k])
        self._give_back(absent)
        if self.sharding:
            self.sharding.averaged()
        self.strays, self.in_step, self.accumulated = [], False, 0
        self.seen[:] = self.used[:] = bytes(len(self.parameters))
        if isinstance(self.reducer, _Survey):
            self._settle(absent)
        if missing and complains and not self.find_unused:
            raise RuntimeError(
                f"rank {self.group.rank}: {len(missing)} of {len(self.parameters)} parameters got no gradient in this "
                f"backward pass: {names}. They counted as zeros. If that is meant, pass find_unused_parameters=True; if "
                "not, make sure that all outputs of forward take part in the loss")

    def _fill(self, missing: List[int]) -> List[int]:
        """Makes what is missing ready, so that nobody waits for it; returns those that have no gradient at all."""
        absent = []
        for k in missing:
            if self.sharding and self.addresses:
                self.sharding.check(k)
            if self.parameters[k].grad is not None:
                self._take_in(k)
                continue
            absent.append(k)
            if self.addresses:
                self.reducer.views[k].zero_()
            self.reducer.ready(k)
        return absent

    def _tell_usage(self, missing: List[int]) -> None:
        """The last slot says which parameters were used here; the average says which were anywhere."""
        if missing:
            usage = torch.full((len(self.parameters),), self.scale)
            for k in missing:
                usage[k] *= self.used[k]
            usage = usage.pin_memory() if self.device.type == "cuda" else usage
            self.reducer.views[-1].copy_(usage, non_blocking=True)
        else:
            self.reducer.views[-1].fill_(self.scale)
        self.reducer.ready(len(self.parameters))

    def _give_back(self, absent: List[int]) -> None:
        """A parameter that had no gradient and was used nowhere has none afterwards, as with DDP."""
        if isinstance(self.reducer, _Survey) or not (absent or self.sharding and self.find_unused):
            return
        if not self.find_unused:
            somewhere = [1.0] * len(self.parameters)
        elif self.sharding:  # which has no slot for that: it would be in parts
            somewhere = self.group.largest([float(k not in absent) for k in range(len(self.parameters))])
        else:
            somewhere = self.reducer.views[-1].tolist()
        for k in absent:
            if somewhere[k] > 0:
                self.parameters[k].grad = self._alias(k)

    def _settle(self, absent: List[int]) -> None:
        """Rank 0's order is everybody's; gradients move into the reducer's memory."""
        order = (c_size_t * len(self.parameters))(*dict.fromkeys(self.reducer.order))
        self.group.tell(order)
        used = [float(k not in absent or not self.find_unused) for k in range(len(self.parameters))]
        used_anywhere = self.group.largest(used)
        self._unregister()
        self.names = [self.names[k] for k in order]
        self.parameters = [self.parameters[k] for k in order]
        self.reducer = self.sharding.make_reducer() if self.sharding else self._make_reducer()
        self._register()
        with torch.no_grad():
            for k, (parameter, view) in enumerate(zip(self.parameters, self.aliases)):
                if not used_anywhere[order[k]]:
                    parameter.grad = None
                elif parameter.grad.dtype == view.dtype:
                    view.copy_(parameter.grad)
                    parameter.grad = view

    def _make_reducer(self) -> Reducer:
        slots = [Slot.of(name, parameter) for name, parameter in zip(self.names, self.parameters)]
        if self.find_unused:
            slots.append(Slot.of(USAGE, torch.empty(len(slots))))
        make = ProcessGroupReducer if isinstance(self.group, ProcessGroup) else make_reducer
        return make(self.group, slots, self.options, self.device)

    # ---- Between steps ----

    def attach(self, sharding, policy: Optional[str]) -> None:
        """Parameters lie beside the gradients from the next backward pass on, which is a survey. On all workers."""
        if self.sharding:
            raise RuntimeError("the model has a ZeroRedundancyOptimizer already; add_param_group adds to it")
        self.check_ended()
        self.sharding = sharding
        if policy or not self.options.is_chosen:
            self.options = self.options._replace(policy=policy or "overlap", is_chosen=True)
        self._unregister()
        self._survey_again()
        self._register()

    def broadcast_buffers(self) -> None:
        """If they are due: before a forward pass; or before gathers begin, which it would have to wait for."""
        if self.has_buffers and self.buffers_due and self.group.size > 1:
            with self._inside():
                self.buffers.broadcast(self.group.rank == 0, self.reducer.broadcast or self.group.broadcast)
        self.buffers_due = False

    def statistics(self) -> dict:
        counts = self.reducer.statistics()
        counts["steps"] += bool(self.reducer.views)  # the survey
        return {**counts, "tensors": len(self.parameters), "copies": self.copies, "copied_bytes": self.copied_bytes}

    def close(self) -> None:
        """Gradients stay as they are."""
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
        self.aliases, self.reducer = None, _Survey(self.group, self.parameters)

    def _let_go(self) -> None:
        self._unregister()
        for handle in self._module_hooks:
            handle.remove()

    __del__ = _let_go


def find_sync(parameters: Sequence[torch.Tensor]) -> Tuple[GradientSync, torch.nn.Module]:
    """Who averages the gradients of these, and of which module."""
    wanted = {id(parameter) for parameter in parameters if parameter.requires_grad}
    for module, reference in _synced.items():
        sync = reference()
        known = {id(parameter) for parameter in sync.parameters} if sync is not None and sync._hooks else set()
        if wanted & known:
            if wanted - known:
                raise ValueError("there are parameters that the wrapped model does not have, or whose gradients it does not "
                                 "average")
            return sync, module
    raise RuntimeError("wrap the model in mgwfbp.torch.DistributedDataParallel first: it averages the gradients of these "
                       "parameters")


class Wrapper:
    """What both wrappers do with their GradientSync, `_sync`."""

    def report(self) -> report.Report:
        """Iteration time, compute, exposed communication, messages, what each policy would do, and the most that
        could be gained: a table when printed, and its numbers as attributes. Any worker may ask, between steps."""
        return report.make(self._sync)

    def statistics(self) -> dict:
        """Counts of all steps: steps, plans, messages, arena_bytes, tensors, copies, copied_bytes."""
        return self._sync.statistics()

    def save_plan(self, path) -> None:
        """The plan in force, as a file: with `plan=` (or MGWFBP_PLAN) a later run has the same cuts. Between steps."""
        self._sync.reducer.save_plan(path)

    def set_policy(self, policy: str) -> None:
        """From the next step on, this policy: plans anew from what was measured. All workers must call it."""
        self._sync.options = self._sync.options._replace(policy=policy)
        self._sync.reducer.set_policy(policy)

    def close(self) -> None:
        """Ends averaging and frees what is held; the model can be used on, or wrapped anew."""
        self._sync.close()


class WeakHook:
    """Does not keep its owner alive; and a copy of the module that has it does not call it."""

    def __init__(self, method: Optional[Callable] = None):
        self.method = weakref.WeakMethod(method) if method else lambda: None

    @untraced
    def __call__(self, *arguments):
        method = self.method()
        return method(*arguments) if method else None

    def __reduce__(self):
        return WeakHook, ()
