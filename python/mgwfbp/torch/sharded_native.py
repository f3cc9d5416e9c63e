"""The transport `native` with sharded parameters: the engine scatters, gathers and waits; this file exposes its memory."""

import weakref
from typing import Any, Sequence

import torch

from .. import _lib, core
from ..environment import Options
from .groups import NativeGroup
from .native import CudaReducer, NativeReducer
from .ownership import Ownership
from .reducer import Reducer
from .sharded import Dtypes, Sharded
from .slots import DTYPES, Slot


def make_sharded(group: NativeGroup, slots: Sequence[Slot], options: Options, device: torch.device, dtypes: Dtypes):
    return (ShardedCudaReducer if device.type == "cuda" else ShardedNativeReducer)(group, slots, options, device, dtypes)


class ShardedNativeReducer(Sharded, NativeReducer):
    """A step begins with its forward pass. The engine learns from the first use of every parameter."""

    def __init__(self, group: NativeGroup, slots: Sequence[Slot], options: Options, device: torch.device, dtypes: Dtypes):
        self.group, self.steps, self.error = group, 0, _lib.ErrorStruct()
        narrow = dtypes.get(torch.float32)
        super().__init__(group, slots, options, device, keeps_parameters=True,
                         parameters=_lib.encode(narrow and DTYPES[narrow]))
        self.layout = core.Layout([slot.elements for slot in slots], [DTYPES[slot.real] for slot in slots])
        self.gradient_memory, self.parameter_memory = {}, {}
        for real in dict.fromkeys(slot.real for slot in slots):
            length, kept = self.layout.length(DTYPES[real]), dtypes.get(real, real)
            for memory, address, dtype in (
                    (self.gradient_memory, self.engine.gradient_memory(DTYPES[real]), real),
                    (self.parameter_memory, self.engine.parameter_memory(DTYPES[real]), kept)):
                width = torch.empty((), dtype=dtype).element_size()
                memory[real] = (self._show(address, length * width, dtype) if length else
                                torch.zeros(0, dtype=dtype, device=device))
        self.known: Any = None  # the plan that was adopted last
        self._take_engine_plan()

    def _before_start(self) -> None:
        this = weakref.ref(self)  # the engine keeps the function, and must not keep its owner
        self.engine.on_reshard(lambda: this()._take_engine_plan())

    def _take_engine_plan(self) -> None:
        """Adopts the engine's plan, which may change in begin and set_policy. If shards move with it, the engine calls this
        itself."""
        told = core.operations_of(self.engine.plan())
        if told != self.known:
            self.known = told
            self.take_plan(told, self.group)

    # ---- A step ----

    def begin(self) -> None:
        self._open()
        Reducer.begin(self)

    def _open(self) -> None:
        if self.is_open:
            return
        self._end_last_step()
        self._begin_engine()
        self.is_open, self.steps = True, self.steps + 1
        self._take_engine_plan()

    def _begin_engine(self) -> None:
        self.engine.begin()

    def wait(self) -> None:
        super().wait()
        self.is_open, self.is_unsaid = False, True

    def _use_policy(self, policy: str) -> None:
        super()._use_policy(policy)
        self._take_engine_plan()

    # ---- Parameters ----

    def move(self, before: Ownership, dtype: str, array: torch.Tensor) -> torch.Tensor:
        width = array.element_size()
        if width == 1:  # the engine moves elements of two bytes and more
            return self.move(before, dtype, array.view(torch.uint8).to(torch.int16)).to(torch.uint8).view(array.dtype)
        after = array.new_zeros(self.shards.length(dtype))
        self.engine.move(dtype, array.data_ptr(), after.data_ptr(), width)
        return after

    def update(self) -> None:
        if self.steps:
            self.engine.update(core.NO_OPERATION)
        else:  # it was the survey, which the engine does not know of
            self.gather(self.parameter_memory)
        self.is_unsaid = False

    def need(self, k: int) -> None:
        """Called for every parameter in every step, so it avoids allocations."""
        if self.steps and not self.is_unsaid and _lib.library.mgw_engine_need(self.engine._address, k, self.error):
            raise _lib.Error(self.error.message.decode("utf-8", "replace"), self.error.status)

    def drain(self) -> None:
        if not self.is_open:
            if self.steps and not self.is_unsaid:
                self.engine.drain()
            return
        for k in self.gathered_by:
            self.need(k)

    def total(self, numbers: torch.Tensor, op: str) -> None:
        self.group.all_reduce(numbers, op)

    def statistics(self) -> dict:
        return {**super().statistics(), **self.sharded_counts()}

    def close(self) -> None:
        self.gradient_memory, self.parameter_memory = {}, {}
        super().close()


class ShardedCudaReducer(ShardedNativeReducer, CudaReducer):
    """As in CudaReducer, nothing here waits for the GPU. The stream on which the forward pass begins is the engine's stream
    in this step, and waits for gathers. If a parameter is used on another stream, that stream waits for it as well."""

    def _begin_engine(self) -> None:
        self.stream = self._take_stream()
        self.engine.begin()

    def _use_policy(self, policy: str) -> None:
        self.stream = self._take_stream()  # on which state may move
        super()._use_policy(policy)

    def _follow(self) -> None:
        now = torch.cuda.current_stream(self.device)
        if self.stream is not None and now != self.stream:
            now.wait_stream(self.stream)

    def update(self) -> None:
        if not self.is_open:
            self.stream = self._take_stream()
        super().update()

    def need(self, k: int) -> None:
        super().need(k)
        self._follow()

    def drain(self) -> None:
        super().drain()
        self._follow()

    def total(self, numbers: torch.Tensor, op: str) -> None:
        """Sums on the GPU do not involve the host."""
        if op != "sum" or not numbers.is_cuda or self.is_open:
            super().total(numbers, op)
            return
        self.stream = self._take_stream()
        self.engine.all_reduce(numbers.data_ptr(), numbers.numel(), DTYPES[numbers.dtype], op)

    def broadcast(self, tensor: torch.Tensor) -> None:
        if self.is_open:  # forward without backward: the engine is in the middle of a step
            self.group.broadcast(tensor)
            return
        self.stream = self._take_stream()
        self.engine.broadcast(tensor.data_ptr(), tensor.numel() * tensor.element_size())
