"""The transport `native`: the C engine, whose communication thread sends messages without the interpreter's lock.
Calibrating, measuring and planning are its own business."""

import ctypes
from types import SimpleNamespace
from typing import Any, Optional, Sequence, Tuple

import torch

from ..core import Engine
from ..environment import Options
from .batch import Batch, fused_copy
from .groups import NativeGroup
from .reducer import Reducer, stream_of
from .slots import DTYPES, Slot


def make_reducer(group: NativeGroup, slots: Sequence[Slot], options: Options, device: torch.device):
    return (CudaReducer if device.type == "cuda" else NativeReducer)(group, slots, options, device)


class NativeReducer(Reducer):
    where = "host"

    def __init__(self, group: NativeGroup, slots: Sequence[Slot], options: Options, device: torch.device, **more: Any):
        super().__init__(slots, device)
        percent = options.replan_percent or -1  # the engine takes 0 for "not said"
        self.learned = self.engine = Engine(
            group.engine_transport, group.timeout_s, options.policy, options.cluster, self.where, options.plan, options.wire,
            group.who(), profile_steps=options.profile_steps, replan_steps=options.replan_steps, replan_percent=percent,
            trials=1 if options.trials else -1, **more)
        for slot in slots:
            if slot.real not in DTYPES:
                raise RuntimeError(f"parameter '{slot.name}': gradients of {slot.dtype} cannot be averaged by the "
                                   "transport native")
            self.engine.add(slot.name, slot.elements, DTYPES[slot.real])
        self.engine.start()
        self.views = [slot.view(self._show(self.engine.gradient(k), slot.bytes, slot.real)) if slot.count else
                      torch.zeros(slot.shape, dtype=slot.dtype, device=device) for k, slot in enumerate(slots)]
        self.ready, self.planned = self._make_ready(), self.engine.operations

    def _show(self, address: int, bytes: int, dtype: torch.dtype) -> torch.Tensor:
        """Memory in the engine's arena, which lives as long as any tensor shows it."""
        buffer = (ctypes.c_char * bytes).from_address(address)
        buffer._keeps = self.engine
        return torch.frombuffer(buffer, dtype=dtype)

    def _make_ready(self):
        return self.engine.ready

    def begin(self) -> None:
        super().begin()
        self.engine.begin()

    def take_all(self, batch: Batch, at_s: Any) -> None:
        self.engine.ready_all(batch.ids, batch.count, at_s, batch.sources and batch.sources.buffer_info()[0])

    def wait(self) -> None:
        self.engine.wait()

    def close(self) -> None:
        """The engine ends when nobody shows its memory any more."""
        self.views, self.ready, self.learned, self.engine, self.planned = [], None, None, None, None


class CudaReducer(NativeReducer):
    """Nothing here waits for the GPU; streams wait for each other.

    Gradients become ready on the stream that is current in their hook: the one that computed them. The first hook's is
    the engine's in this step: it waits for the averages. Where backward was called on another one, that waits for it.
    So the stream on which an optimizer steps is behind the averages, the next forward pass is behind the step, and the
    gradients of the next backward pass come when the messages have left the arena.
    """

    where = "cuda"
    counts = NativeReducer.counts + ("device_waits",)

    def __init__(self, group: NativeGroup, slots: Sequence[Slot], options: Options, device: torch.device, **more: Any):
        self.stream: Optional[torch.cuda.Stream] = None  # the engine's, in this step
        self.strides = [slot.stride for slot in slots]
        self.current = stream_of(device)
        torch.zeros(1, device=device)  # the engine takes the GPU whose context this thread has
        super().__init__(group, slots, options, device, **more)

    def _show(self, address: int, bytes: int, dtype: torch.dtype) -> torch.Tensor:
        shown = {"data": (address, False), "shape": (bytes,), "typestr": "|u1", "strides": None, "version": 2}
        memory = torch.as_tensor(SimpleNamespace(__cuda_array_interface__=shown, keeps=self.engine), device=self.device)
        if memory.data_ptr() != address:
            raise RuntimeError(f"PyTorch has copied the engine's memory, which is on another GPU than {self.device}")
        return memory.view(dtype)

    def _make_ready(self):
        ready_on, current = self.engine.ready_on, self.current
        return lambda k: ready_on(k, current())

    def _take_stream(self) -> torch.cuda.Stream:
        stream = torch.cuda.current_stream(self.device)
        self.engine.set_stream(stream.cuda_stream)
        return stream

    def begin(self) -> None:
        self.stream = self._take_stream()
        super().begin()

    def samples(self) -> Tuple[Optional[int], int, int]:
        return (self.stream.cuda_stream, *self.engine.samples())

    def mark(self, k: int) -> None:
        self.engine.mark(k, self.current())

    def take_all(self, batch: Batch, at_s: Any) -> None:
        """One kernel copies them, where PyTorch has it; else the engine does, one by one."""
        sources = batch.sources
        if sources and fused_copy:
            sources = batch.copy_on_device()
        self.engine.ready_all(batch.ids, batch.count, at_s, sources and sources.buffer_info()[0], self.stream.cuda_stream)

    def take(self, k: int, gradient: torch.Tensor) -> bool:
        """The engine asks the driver, which takes the host a fraction of what a kernel of PyTorch's does: that matters
        where it is the host that the GPU waits for."""
        if gradient.stride() != self.strides[k]:
            return False
        self.engine.ready_at(k, gradient.data_ptr(), self.current())
        return True

    def wait(self) -> None:
        super().wait()
        now = torch.cuda.current_stream(self.device)
        if now != self.stream:
            now.wait_stream(self.stream)

    def broadcast(self, tensor: torch.Tensor) -> None:
        """Rank 0's, between steps; contiguous. Behind what the current stream has to do, and before what comes."""
        self._take_stream()
        self.engine.broadcast(tensor.data_ptr(), tensor.numel() * tensor.element_size())
