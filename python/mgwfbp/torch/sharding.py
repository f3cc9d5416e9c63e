"""Keeps a model's parameters in the reducer's memory, and its gradients sharded among workers: the layer between
GradientSync, which averages gradients, and ZeroRedundancyOptimizer, which updates parameters.

In each step, `averaged` marks sharded gradients when backward ends (scattered.py). The optimizer updates its shards and
calls `publish`, which starts the gathers. Using a parameter then waits for its gather (awaited.py).
"""

import sys
import warnings
import weakref
from typing import Any, Callable, Dict, Iterable, List, Optional

import torch
from torch import Tensor

from . import awaited, hidden
from .groups import ProcessGroup
from .scattered import Gradients
from .sharded import Sharded, ShardedProcessGroupReducer
from .slots import Slot


def _is_graphed(module: torch.nn.Module) -> bool:
    """Whether it was captured by torch.cuda.make_graphed_callables: its kernels contain addresses."""
    return "make_graphed" in getattr(module.__dict__.get("forward"), "__qualname__", "")


def _hides_uses(module: torch.nn.Module) -> bool:
    """Whether its parameters are used without __torch_function__: in scripted, compiled or captured code."""
    for each in module.modules():
        if isinstance(each, torch.jit.ScriptModule) or getattr(each, "_compiled_call_impl", None) is not None:
            return True
        if type(each).__name__ == "OptimizedModule" or _is_graphed(each):
            return True
    return False


def _nothing() -> None:
    pass


def _write_nothing(parameter: Tensor) -> None:
    parameter.detach().flatten()[:0].zero_() if parameter.is_contiguous() else parameter.detach()[..., :0].zero_()


_increment_version = getattr(torch.autograd.graph, "increment_version", _write_nothing)  # PyTorch 2.1 and later


class Sharding:
    """The sharding of one model; created before its first step, or between steps."""

    def __init__(self, sync, module: torch.nn.Module, parameter_dtype: Optional[torch.dtype],
                 gradient_dtype: torch.dtype):
        self.sync, self.module = weakref.proxy(sync), weakref.ref(module)
        self.parameter_dtype, self.gradient_dtype = parameter_dtype, gradient_dtype
        self.parameters: List[Tensor] = []  # of the reducer; those of `sync`, which may be collected before this object
        self.masters: Dict[int, Tensor] = {}  # by id of the parameter, until the optimizer takes them over
        self.reducer: Optional[Sharded] = None
        self.is_fresh = False  # gradients were averaged, and not yet used for an update
        self.is_closed = False
        self.expected: List[int] = []  # parameters whose use must be noticed
        self.unheard = ""  # the name of one whose uses are not
        self.held = 0  # steps that waited for all gathers at once
        self.optimizer: Callable[[], Any] = lambda: None  # a weak reference
        if any(_is_graphed(each) for each in module.modules()):
            raise RuntimeError("a part of the model was captured by torch.cuda.make_graphed_callables, which fixes the "
                               "addresses of its parameters; ZeroRedundancyOptimizer moves them, so capture it after the "
                               "first step")
        if parameter_dtype is not None:
            self._cast()
        sync.pieces.before_tracing = weakref.WeakMethod(self.drain)

    # ---- Memory ----

    def _is_cast(self, parameter: Tensor) -> bool:
        return self.parameter_dtype is not None and parameter.dtype in (torch.float32, self.parameter_dtype)

    def _cast(self) -> None:
        for name, parameter in zip(self.sync.names, self.sync.parameters):
            if self._is_cast(parameter):
                slot = Slot.of(name, parameter)._replace(dtype=torch.float32)
                master = torch.empty(slot.count, dtype=torch.float32, device=parameter.device)
                slot.view(master).copy_(parameter.data)
                self.masters[id(parameter)] = master
                parameter.data = parameter.data.to(self.parameter_dtype)

    def slots(self) -> List[Slot]:
        """The slots of gradients, which may be averaged in another dtype than that of the parameters."""
        found = []
        for name, parameter in zip(self.sync.names, self.sync.parameters):
            slot = Slot.of(name, parameter)
            if self._is_cast(parameter):
                wide = slot.count * torch.empty((), dtype=self.gradient_dtype).element_size()
                slot = slot._replace(dtype=self.gradient_dtype, bytes=wide)
            found.append(slot)
        return found

    def make_reducer(self):
        """Makes the reducer for GradientSync, and moves the parameters into its memory."""
        dtypes = {self.gradient_dtype: self.parameter_dtype} if self.parameter_dtype else {}
        sync = self.sync
        if isinstance(sync.group, ProcessGroup):
            make = ShardedProcessGroupReducer
        else:
            from .sharded_native import make_sharded as make
        self.parameters, self.slots_now = sync.parameters, self.slots()
        self.reducer = reducer = make(sync.group, self.slots_now, sync.options, sync.device, dtypes)
        this = weakref.ref(self)  # parameters' hooks keep the reducer alive, and it must not keep the model alive
        reducer.on_reshard = lambda before: this()._reshard(before)
        self.references = awaited.References(list(reducer.parameter_memory.values()))
        self.gradients = Gradients(sync.names, reducer.views, reducer.total)
        with self.references, torch.no_grad():
            for k, parameter in enumerate(sync.parameters):
                view = self._parameter_view(k)
                view.copy_(parameter.data)
                parameter.data = view
                del view
        self.addresses = [parameter.data_ptr() for parameter in sync.parameters]
        self.waits = [lambda k=k: this().reducer.need(k) for k in range(len(sync.parameters))]
        self.can_wait = [awaited.can_await(parameter) for parameter in sync.parameters]
        self._take_shards()
        optimizer = self.optimizer()
        if optimizer is not None:
            optimizer._install()
        reducer.is_unsaid = True  # the update after the survey
        return reducer

    def _parameter_view(self, k: int) -> Tensor:
        slot, parameter = self.slots_now[k], self.sync.parameters[k]
        memory = self.reducer.parameter_memory[slot.real]
        shown = slot._replace(dtype=parameter.dtype)
        return shown.view(memory[self.reducer.layout.offset(k):])

    def _take_shards(self) -> None:
        """Takes this worker's shards from the current plan."""
        reducer, gradients = self.reducer, self.gradients
        shards = [reducer.gradient_memory[slot.real].new_empty(0) for slot in self.slots_now]
        for shard in reducer.shards.own:
            memory = reducer.gradient_memory[self.slots_now[shard.tensor].real]
            shards[shard.tensor] = memory[shard.begin:shard.begin + shard.count]
        self.gathered = [k in reducer.gathered_by for k in range(len(self.slots_now))]
        gradients.share(shards, self.gathered)

    def _reshard(self, before) -> None:
        self._take_shards()
        optimizer = self.optimizer()
        if optimizer is not None and not before.is_same(self.reducer.shards):
            optimizer._reshard(before)

    def uninstall(self) -> None:
        """Moves parameters back to memory of their own, with their values."""
        self.is_closed = True
        self.drain()
        if self.reducer is None:
            return
        for k in list(self.gradients.marked):
            self.gradients.unmark(k)
            self.parameters[k].grad = None  # it was only a part
        for parameter in self.parameters:
            parameter.data = parameter.data.clone()
        self.reducer = None

    def __del__(self):
        """The model was dropped without close(), but its module may still be used."""
        if not sys.is_finalizing():
            with torch.inference_mode(False):
                self.uninstall()

    # ---- Gradients ----

    def listen(self) -> None:
        """In the survey, all parameters are complete: it shows whether their uses are noticed."""
        if not (self.sync.pieces.are_used or self._hides_uses()):
            self.parameters = self.sync.parameters
            self.expected = [k for k, parameter in enumerate(self.sync.parameters) if awaited.can_await(parameter)]
            for k in self.expected:
                awaited.expect(self.sync.parameters[k], _nothing)

    def check_heard(self, k: int) -> None:
        """A gradient is ready: the forward pass has used the parameter, and must have waited for it."""
        parameter, name = self.sync.parameters[k], self.sync.names[k]
        if type(parameter) is not awaited.Awaited:
            return
        awaited.arrived(parameter)
        if self.reducer is not None:
            raise RuntimeError(f"parameter '{name}' was used where PyTorch does not tell (in an extension, say), so its values may "
                               "have been old; call drain() of the ZeroRedundancyOptimizer before such a forward pass")
        if not self.unheard:
            self.unheard = name
            warnings.warn(f"parameter '{name}' is used where PyTorch does not tell (in an extension, say), so all-gathers do not "
                          "overlap with the forward pass: each step waits for them at its end")

    def check(self, k: int) -> None:
        """A gradient is ready: it must not have been added to a sharded one."""
        gradient = self.gradients.marked.get(k)
        if gradient is None:
            return
        self.gradients.unmark(k)
        if self.sync.parameters[k].grad is gradient:
            raise RuntimeError(
                f"parameter '{self.sync.names[k]}': backward cannot add to a gradient that was averaged, since each worker has "
                "only a part of it; call zero_grad() before backward, or accumulate inside no_sync()")

    def release_gradients(self, tensors: Iterable[int]) -> None:
        """The gradients of these tensors are about to be zeroed or dropped."""
        self.gradients.changed()
        for k in tensors:
            self.gradients.unmark(k)

    def drop_gradients(self) -> None:
        """Gradients that no parameter group zeroes: nobody can add to them any more, since each worker has only a part."""
        for k in list(self.gradients.marked):
            self.gradients.unmark(k)
            self.sync.parameters[k].grad = None

    def averaged(self) -> None:
        """Backward has ended."""
        self.is_fresh = True
        if self.reducer is None:  # it was the survey, whose gradients are complete
            self.drain()
            return
        gradients, sync = self.gradients, self.sync
        gradients.changed()
        strays = set(sync.strays)
        for k, parameter in enumerate(sync.parameters):
            if self.gathered[k] or k in strays:
                gradients.unmark(k)
                if parameter.grad is not None:
                    gradients.mark(k, parameter.grad)

    def gather_gradients(self) -> None:
        """Makes all gradients complete, until the next backward pass. Collective."""
        reducer, gradients = self.reducer, self.gradients
        if reducer is None:
            return
        with torch.no_grad():
            reducer.gather(reducer.gradient_memory)
            for k, gradient in list(gradients.marked.items()):
                gradients.unmark(k)
                if gradient.data_ptr() != gradients.views[k].data_ptr():
                    gradient.copy_(gradients.views[k])

    def take_in(self) -> List[bool]:
        """Takes over tensors that the program has assigned to .grad and .data. Returns, by tensor, whether there is a
        gradient."""
        present = []
        gradients, aliases = self.gradients, self.sync.aliases
        with torch.no_grad():
            for k, parameter in enumerate(self.sync.parameters):
                gradient = parameter.grad
                present.append(gradient is not None)
                if gradient is not None and gradient is not aliases[k] and gradient is not gradients.marked.get(k):
                    gradients.views[k].copy_(gradient)
                if parameter.data_ptr() != self.addresses[k]:
                    self._take_back(k, parameter)
        return present

    def _take_back(self, k: int, parameter: Tensor) -> None:
        """The program has given the parameter other memory: copies its values back."""
        view = self._parameter_view(k) if parameter.dtype == self._dtype_of(k) else None
        if view is None or parameter.shape != view.shape or parameter.device != view.device:
            raise RuntimeError(f"parameter '{self.sync.names[k]}' was moved or cast after ZeroRedundancyOptimizer had taken it "
                               "over; do that before wrapping the model")
        view.copy_(parameter.data)
        parameter.data = view

    def _dtype_of(self, k: int) -> torch.dtype:
        slot = self.slots_now[k]
        memory = self.reducer.parameter_memory[slot.real].dtype
        return slot.dtype if slot.dtype.is_complex else memory

    # ---- Parameters ----

    def publish(self) -> None:
        """This worker's shards are updated: starts the gathers."""
        self.is_fresh = False
        self.sync.broadcast_buffers()
        hides = self.unheard or self.sync.pieces.are_used or self._hides_uses()
        holds = hides or self.references.has_others() or not all(self.can_wait)
        self._count_update()
        self.reducer.update()
        if not holds:
            self.expect()
        elif any(self.gathered):  # parameters could be read unnoticed
            self.held += 1
            self.reducer.drain()

    def _hides_uses(self) -> bool:
        module = self.module()
        return module is None or _hides_uses(module) or any(map(hidden.is_scripted, self.sync.parameters))

    def _count_update(self) -> None:
        """As an update in place would, so that autograd notices graphs from before."""
        with torch.no_grad(), torch._C.DisableTorchFunction():
            for parameter in self.sync.parameters:
                _increment_version(parameter)

    def expect(self) -> None:
        hears_all, parameters = self.reducer.watches(), self.sync.parameters
        self.expected = [k for k, gathered in enumerate(self.gathered) if gathered or hears_all]
        for k in self.expected:
            awaited.expect(parameters[k], self.waits[k])

    def drain(self) -> None:
        """Waits until all parameters are complete."""
        if self.reducer is not None:
            self.reducer.drain()
        for k in self.expected:
            awaited.arrived(self.parameters[k])
        self.expected = []
