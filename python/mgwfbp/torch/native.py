"""The transport `native`: the C engine. Its communication thread sends messages without the GIL; it also calibrates,
measures and plans."""

import atexit
import ctypes
import functools
from types import SimpleNamespace
from typing import Any, Optional, Sequence, Tuple

import torch

from ..core import Engine
from ..environment import Options
from .batch import Batch, fused_copy
from .groups import NativeGroup
from .reducer import Reducer, stream_of
from .slots import DTYPES, Slot, is_lazy


def make_reducer(group: NativeGroup, slots: Sequence[Slot], options: Options, device: torch.device):
    return (CudaReducer if device.type == "cuda" else NativeReducer)(group, slots, options, device)


@functools.lru_cache(None)
def _forget_failed_passes() -> None:
    """PyTorch 1.13 keeps what a backward pass that has raised did not do, until the process ends, and freeing memory of the
    engine then waits for Python's lock for ever. A pass through a node that is older than these drops them."""
    if not hasattr(torch, "compile"):
        with torch.enable_grad(), torch.inference_mode(False):
            atexit.register(torch.zeros(1, requires_grad=True).clone().backward)


class NativeReducer(Reducer):
    where = "host"

    def __init__(self, group: NativeGroup, slots: Sequence[Slot], options: Options, device: torch.device, **more: Any):
        super().__init__(slots, device)
        percent = options.replan_percent or -1  # for the engine, 0 means the default
        self.learned = self.engine = Engine(
            group.engine_transport, group.timeout_s, options.policy, options.cluster, self.where, options.plan, options.wire,
            group.who(), profile_steps=options.profile_steps, replan_steps=options.replan_steps, replan_percent=percent,
            trials=options.trials or -1, **more)
        for slot in slots:
            if slot.real not in DTYPES:
                raise RuntimeError(f"parameter '{slot.name}': transport native does not support gradients of "
                                   f"{slot.dtype}")
            self.engine.add(slot.name, slot.elements, DTYPES[slot.real])
        self._before_start()
        self.engine.start()
        _forget_failed_passes()
        self.views = [slot.view(self._show(self.engine.gradient(k), slot.bytes, slot.real)) if slot.count else
                      torch.zeros(slot.shape, dtype=slot.dtype, device=device) for k, slot in enumerate(slots)]
        self.ready, self.planned = self._make_ready(), self.engine.operations

    def _before_start(self) -> None:
        pass

    def _show(self, address: int, bytes: int, dtype: torch.dtype) -> torch.Tensor:
        """A tensor in the engine's arena, which lives as long as such tensors do."""
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
        """The engine is destroyed when no tensor refers to its memory any more."""
        self.views, self.ready, self.learned, self.engine, self.planned = [], None, None, None, None


class CudaReducer(NativeReducer):
    """Nothing here waits for the GPU; only streams wait for each other.

    A gradient becomes ready on the stream that is current in its hook, which computed it. The stream of the first hook is
    the engine's stream in this step, and waits for the averages. If backward was called on another stream, that stream
    waits for it. So the optimizer step is ordered after the averages, the next forward pass after the step, and the next
    gradients are written after the messages have left the arena.
    """

    where = "cuda"
    counts = NativeReducer.counts + ("device_waits",)

    def __init__(self, group: NativeGroup, slots: Sequence[Slot], options: Options, device: torch.device, **more: Any):
        self.stream: Optional[torch.cuda.Stream] = None  # the engine's stream in this step
        self.strides = [slot.stride for slot in slots]
        self.current = stream_of(device)
        torch.zeros(1, device=device)  # the engine uses the GPU of this thread's context
        super().__init__(group, slots, options, device, **more)

    def _show(self, address: int, bytes: int, dtype: torch.dtype) -> torch.Tensor:
        shown = {"data": (address, False), "shape": (bytes,), "typestr": "|u1", "strides": None, "version": 2}
        memory = torch.as_tensor(SimpleNamespace(__cuda_array_interface__=shown, keeps=self.engine), device=self.device)
        if memory.data_ptr() != address:
            raise RuntimeError(f"the engine's memory is on another GPU than {self.device}, so PyTorch copied it")
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
        """Copies with one kernel if PyTorch has it; otherwise the engine copies them one by one."""
        sources = batch.sources
        if sources and fused_copy:
            sources = batch.copy_on_device()
        self.engine.ready_all(batch.ids, batch.count, at_s, sources and sources.buffer_info()[0], self.stream.cuda_stream)

    def take(self, k: int, gradient: torch.Tensor) -> bool:
        """The engine copies through the driver, which costs the host much less than a kernel of PyTorch. This matters when
        the GPU waits for the host."""
        if gradient.stride() != self.strides[k] or is_lazy(gradient):
            return False
        self.engine.ready_at(k, gradient.data_ptr(), self.current())
        return True

    def wait(self) -> None:
        super().wait()
        now = torch.cuda.current_stream(self.device)
        if now != self.stream:
            now.wait_stream(self.stream)

    def broadcast(self, tensor: torch.Tensor) -> None:
        """Broadcasts a contiguous tensor from rank 0, between steps, in the order of the current stream."""
        self._take_stream()
        self.engine.broadcast(tensor.data_ptr(), tensor.numel() * tensor.element_size())
