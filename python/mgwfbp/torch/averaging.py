"""One step, from the first gradient of a backward pass to the averages; and the transition from the first step, the survey,
to the others."""

import contextlib
import weakref
from ctypes import c_size_t
from time import perf_counter
from typing import Any, Callable, List, Optional

import torch
from torch.autograd import Variable

from . import in_backward
from .compiled import leave_alone, untraced
from .hooks import UNDEFINED, WeakHook, hook_after_gradient
from .survey import Survey
from .unused import Unused


class Averaging(Unused):
    """The part of GradientSync that runs steps. GradientSync itself handles everything between steps."""

    sparse: Any
    stepping: List[torch.Tensor]  # parameters whose optimizers step when backward ends
    is_open: bool
    enabled: bool
    check_ended: Callable[[], None]
    _make_reducer: Callable[[], Any]

    def __init__(self, count: int, as_views: bool):
        super().__init__(count, as_views)
        self.armed = False  # the end of this backward pass will call _finish
        self.futures: list = []  # awaited when backward ends
        self.before: Optional[List[int]] = None  # unused parameters of the previous step; `varies`: whether they ever changed
        self.varies = False
        self.moments: List[float] = []  # of this step: forward pass, first gradient, last gradient
        self.timed: List[float] = []  # the same of the previous step, and the end of its last message
        self.factor = 1.0  # join(): averages are multiplied by this

    def _from_output(self, *_) -> None:
        """A backward pass through the wrapper's output: its gradients are averaged, even if it is the second one since the
        forward pass. If an earlier one has raised, its callback is lost, so each output requests one."""
        if self.is_open:
            self.syncing, self.armed = True, False
            self._stay_last()
            self._arm()

    def _arm(self, *_) -> None:
        if self.syncing and not self.armed:
            self.armed = True
            Variable._execution_engine.queue_callback(self._finish)

    def _begin(self) -> None:
        self.in_step = True
        self.moments.append(perf_counter())
        self.reducer.begin()
        if not self.static:
            self._note_from_now()

    def _hook(self, k: int) -> Callable:
        if not self.static:
            return super()._hook(k)
        this = weakref.ref(self)
        return leave_alone(self.static.wrap(self, k, lambda *_: this()._hear(k)))

    def _register(self) -> None:
        super()._register()
        self.sparse.register(hook_after_gradient, WeakHook(self._sparse_is_there))

    def _unregister(self) -> None:
        super()._unregister()
        self.sparse.unregister()

    def _sparse_is_there(self, *_) -> None:
        if self.syncing and not self.in_step:
            self._arm()
            self._begin()

    def average(self) -> None:
        """Averages accumulated gradients now, instead of at the end of a backward pass; also those of backward passes that
        belong to no forward pass of the model, because its parts were called directly."""
        if self.accumulated or any(self.used):
            self.check_ended()
            with self._inside():
                self._begin()
                self._end(complains=False)

    @untraced
    def _finish(self) -> None:
        """Backward has ended, on a thread whose current GPU may be another one. A further backward pass without a forward
        pass of the wrapper is not averaged, unless this one gave no parameter a gradient (torch.autograd.grad): its results
        may be part of the loss."""
        if not self.armed:  # another output's callback was first
            return
        self.armed = False
        if self.in_step:
            with self._inside():
                self._end()
            self.syncing = False

    def _inside(self):
        return torch.cuda.device(self.device) if self.device.type == "cuda" else contextlib.nullcontext()

    def _end(self, complains: bool = True) -> None:
        """Waits for the messages. Parameters without a gradient count as zero."""
        self._take_noted()
        missing = [k for k, seen in enumerate(self.seen) if not seen]
        undefined = [k for k, seen in enumerate(self.seen) if seen == UNDEFINED]
        if complains and not self.find_unused:
            self._check_used(missing)
        unused = sorted(self.places[k] for k in missing)
        self.before, self.varies = unused, self.varies or self.before not in (None, unused)
        self.moments.append(perf_counter())
        absent = self._fill(missing) + undefined
        if self.tells_usage:
            self._tell_usage(missing + undefined)
        self.reducer.wait()
        self.sparse.average(self.group.size / self.factor)
        self._rescale()
        for k in () if self.sharding else self.strays:
            with torch.no_grad():
                self.parameters[k].grad.copy_(self.reducer.views[k])
        self._give_back(absent)
        if self.sharding:
            self.sharding.averaged()
        self._clean_up(absent)
        in_backward.step(self.stepping)

    def _clean_up(self, absent: List[int]) -> None:
        """The step is over."""
        self.timed = [*self.moments, perf_counter()]
        self.strays, self.in_step, self.accumulated = [], False, 0
        self.seen[:] = self.used[:] = bytes(len(self.parameters))
        for future in self.futures:
            future.wait()
        self.futures = []
        if isinstance(self.reducer, Survey):
            if self.parameters:
                self._settle(absent)
        elif self.static:
            self.static.end_step()

    def _rescale(self) -> None:
        """join(divide_by_initial_world_size=False): divides by the number of workers with inputs. Communication hooks
        divide by themselves."""
        if self.factor != 1.0 and not self.comm:
            with torch.no_grad():
                for gradient in self.reducer.views[:len(self.parameters)] if self.reducer.views else [
                        parameter.grad for parameter in self.parameters]:
                    gradient.mul_(self.factor)

    def shadow_step(self) -> None:
        """A step in which this worker has no inputs: it contributes zeros, and keeps its gradients."""
        self.check_ended()
        everything = list(range(len(self.parameters)))
        with self._inside(), torch.no_grad():
            self._begin()
            self._take_noted()
            if isinstance(self.reducer, Survey):
                self.reducer.joined = True
                for k in reversed(everything):
                    self.reducer.ready(k)
            else:
                for k, parameter in enumerate(self.parameters):
                    if parameter.grad is not None and parameter.grad.data_ptr() == self.addresses[k]:
                        parameter.grad = parameter.grad.clone()
                    self.reducer.views[k].zero_()
                    self.reducer.ready(k)
            if self.tells_usage:
                self._tell_usage(everything)
            self.reducer.wait()
            self.sparse.average(1.0, joined=True)
            if self.find_unused and self.comm and self.addresses:
                self._used_anywhere(everything)
            self._clean_up(everything)

    def _settle(self, absent: List[int]) -> None:
        """After the survey: all workers take rank 0's order, and gradients move into the reducer's memory."""
        found = self.static.order(self.reducer.order) if self.static else dict.fromkeys(self.reducer.order)
        order = (c_size_t * len(self.parameters))(*found)
        self.group.tell(order)
        gives_none = self.find_unused or self.static
        used = [float(k not in absent or not gives_none) for k in range(len(self.parameters))]
        used_anywhere = self.group.total(used)
        self._unregister()
        self.names = [self.names[k] for k in order]
        self.parameters = [self.parameters[k] for k in order]
        self.places = [self.places[k] for k in order]
        if self.static:
            self.static.learn(order, used_anywhere)
        self.reducer = self.sharding.make_reducer() if self.sharding else self._make_reducer()
        self._register()
        self.usage = [used_anywhere[k] for k in order]
        with torch.no_grad():
            for k, (parameter, view) in enumerate(zip(self.parameters, self.aliases)):
                if not used_anywhere[order[k]]:
                    parameter.grad = None
                elif parameter.grad is not None and parameter.grad.dtype == view.dtype and self._is_view(k):
                    view.copy_(parameter.grad)
                    parameter.grad = view
