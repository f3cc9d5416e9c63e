"""The workers of a job, as one of two kinds of group: PyTorch's process group, or our own transports.

Both provide the same blocking collectives, for communication before the first step and between steps. The messages of a
step are sent by reducers.
"""

import atexit
import contextlib
import functools
import itertools
import os
import socket
import time
import uuid
from ctypes import c_size_t
from typing import Any, Callable, Iterator, List, Optional, Sequence, Tuple

import torch
import torch.distributed as dist

from .. import environment
from ..core import Exchange, Identity, Transport
from .._lib import Error
from .broadcast import bytes_of
from .slots import DTYPES

TIMEOUT_S = 1800.0


class Group(Exchange):
    """Rank, size, and two in-place collectives that each kind provides. Everything else is built on these, including
    `combine` and `tell` for C's tuner."""

    device: torch.device  # the device for small tensors
    about: str  # the transport, as shown to users
    group: Any = None  # the process group of these workers; None: the default one, or none
    broadcast: Callable[..., None]  # (tensor, root=0)
    all_reduce: Callable[..., None]  # (tensor, op): op is "sum", "average" or "max"

    def combine(self, values, sums):
        for part, op in ((slice(sums), "sum"), (slice(sums, None), "max")):
            numbers = torch.frombuffer(values, dtype=torch.float64)[part]
            if len(numbers):
                there = numbers.to(self.device)
                self.all_reduce(there, op)
                numbers.copy_(there)

    def tell(self, data, root=0):
        numbers = torch.frombuffer(data, dtype=torch.uint8)
        there = numbers.to(self.device)
        self.broadcast(there, root)
        numbers.copy_(there)

    def largest(self, numbers: Sequence[float]) -> List[float]:
        """The elementwise maximum over all workers."""
        row = torch.tensor(list(numbers), dtype=torch.float64, device=self.device)
        self.all_reduce(row, "max")
        return row.tolist()

    def total(self, numbers: Sequence[float]) -> List[float]:
        """The elementwise sum over all workers."""
        row = torch.tensor(list(numbers), dtype=torch.float64, device=self.device)
        self.all_reduce(row, "sum")
        return row.tolist()

    def agree(self, lines: Sequence[str], what: str) -> None:
        """Raises the same error on every rank if the lines differ between ranks."""
        own = "\n".join(lines)
        texts = self._text_of(own, 0).split("\n"), own.split("\n")
        pairs = enumerate(itertools.zip_longest(*texts, fillvalue="(none)"))
        found = next((f"{what} {i} is '{here}' on rank 0 and '{there}' on rank {self.rank}"
                      for i, (here, there) in pairs if here != there), "")
        behind = int(self.largest([self.size - self.rank if found else 0])[0])
        if behind:
            about = ": DDP expects same model across all ranks, and one appears not to match" if what == "parameter" else ""
            raise RuntimeError(f"workers disagree: {self._text_of(found, self.size - behind)}{about}")

    def _text_of(self, own: str, root: int) -> str:
        data = own.encode()
        length = c_size_t(len(data))
        self.tell(length, root)
        content = bytearray(data[:length.value].ljust(length.value))
        self.tell(content, root)
        return content.decode("utf-8", "replace")


@functools.lru_cache(None)
def _let_gloo_go_first() -> None:
    """A thread of gloo frees the tensors of a collective only after those who wait for it were woken, and needs Python's lock
    for that. If the interpreter ends just then, PyTorch aborts the process. So the lock is left to such a thread for a moment
    before the interpreter ends."""
    atexit.register(time.sleep, 0.05)


def _backend_of(group, device: torch.device) -> str:
    """The backend for tensors on the device: a group may have one per kind of device, as in cpu:gloo,cuda:nccl."""
    told = str(dist.get_backend(group))
    if not hasattr(dist, "get_backend_config"):
        return told
    pairs = (pair.partition(":") for pair in str(dist.get_backend_config(group)).split(","))
    return {kind: backend for kind, _, backend in pairs}.get(device.type) or told


class ProcessGroup(Group):
    """PyTorch's process group, whatever its backend."""

    def __init__(self, group, device: torch.device):
        self.group = group
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        self.backend = _backend_of(group, device)
        self.about = f"torch ({self.backend})"
        if "gloo" in self.backend:
            _let_gloo_go_first()
        self.device = device if "nccl" in self.backend else torch.device("cpu")
        self._ranks = [dist.get_global_rank(group or dist.group.WORLD, rank) for rank in range(self.size)]

    def is_whole(self) -> bool:
        """Whether all workers of the job are in it, in their order. Others could not open more groups of the same workers:
        those that are not in it would have to help, and PyTorch sorts the workers of new groups."""
        return self._ranks == list(range(dist.get_world_size()))

    def open_more(self) -> "ProcessGroup":
        """Another group of all workers. Collective."""
        options = {}
        with contextlib.suppress(AttributeError, RuntimeError):  # not every PyTorch tells the timeout
            options["timeout"] = (self.group or dist.group.WORLD)._get_backend(self.device).options._timeout
        return ProcessGroup(dist.new_group(self._ranks, backend=self.backend, **options), self.device)

    def close(self) -> None:
        dist.destroy_process_group(self.group)

    def broadcast(self, tensor, root=0):
        dist.broadcast(tensor, self._ranks[root], group=self.group)  # it takes the global rank

    def all_reduce(self, tensor, op):
        if op == "average":
            tensor.mul_(1.0 / self.size)
        dist.all_reduce(tensor, dist.ReduceOp.MAX if op == "max" else dist.ReduceOp.SUM, group=self.group)


class NativeGroup(Group):
    """The library's own transports. Communication outside steps goes through host memory, even if gradients are on GPUs,
    where the engine averages them over NCCL. The workers are those of the job, or of a process group on one host."""

    def __init__(self, transport: Optional[str], timeout_s: float, device: torch.device, of: Optional[ProcessGroup] = None):
        control, over_nccl = _split(transport or os.environ.get("MGWFBP_TRANSPORT"), device)
        self.job, self.jobs = None, itertools.count()  # type: Optional[Identity], Iterator[int]
        if of is not None:
            self.group = of.group
            control = control or ("self" if of.size == 1 else "shm")
            self.job = _identity(of, control)
        if over_nccl and control is None:  # ignore MGWFBP_TRANSPORT
            control = environment.control()
        if control is None and environment.control() == "tcp":
            raise RuntimeError("transport native: the workers are on several hosts. Gradients in host memory then need a process "
                               "group (call torch.distributed.init_process_group first, and do not pass transport) or "
                               "MPI (start the job with mpirun or srun)")
        self.transport, self.timeout_s = Transport(control, timeout_s, self.who()), timeout_s
        self.engine_transport = f"nccl:{self.transport.name}" if over_nccl else self.transport.name
        self.about = f"native ({self.engine_transport})"
        self.rank, self.size = self.transport.rank, self.transport.size
        self.device = torch.device("cpu")

    def who(self) -> Optional[Identity]:
        """The identity for another transport or engine among the same workers; each is a job of its own."""
        return self.job and self.job._replace(job=f"{self.job.job}/{next(self.jobs)}")

    def broadcast(self, tensor, root=0):
        with _contiguous(tensor) as memory:
            self.transport.broadcast(memory.data_ptr(), bytes_of(memory), root)

    def all_reduce(self, tensor, op):
        if tensor.dtype not in DTYPES:
            raise Error(f"transport native: gradients of {tensor.dtype} are not supported")
        with _contiguous(tensor) as memory:
            self.transport.all_reduce(memory.data_ptr(), memory.numel(), DTYPES[tensor.dtype], op)


def _identity(group: ProcessGroup, control: str) -> Identity:
    """Makes a job of a process group's workers. Collective."""
    if control.partition(":")[0] not in ("self", "shm", "emulated"):
        raise ValueError(f"transport native:{control}: with a process group, only shared memory is supported; do not "
                         "pass process_group, or use transport='torch'")
    try:
        group.agree([socket.gethostname()], "host")
    except RuntimeError as error:
        raise RuntimeError(f"transport native: the process group's workers are on several hosts ({error}); use "
                           "transport='torch'") from None
    return Identity(group.rank, group.size, group._text_of(uuid.uuid4().hex, 0))


def _split(name: Optional[str], device: torch.device) -> Tuple[Optional[str], bool]:
    """The transport for coordination, and whether messages go over NCCL: on a GPU with `shm`, `nccl` and `nccl:shm`."""
    head, _, control = (name or "").partition(":")
    if device.type == "cpu":
        if head == "nccl":
            raise RuntimeError("transport native:nccl works in GPU memory, but the model is on the CPU; move it to a GPU "
                               "first, or use transport='native'")
        return name, False
    if device.type != "cuda":
        raise RuntimeError(f"transport native: the model is on {device}; only CPUs and CUDA GPUs are supported. Use "
                           "transport='torch'")
    if head == "emulated":
        raise RuntimeError(f"transport native:{name}: emulated networks work only in host memory")
    return (control or None, True) if head == "nccl" else (name, True)


@contextlib.contextmanager
def _contiguous(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """The tensor itself if it is contiguous and on the CPU; otherwise a copy, which is copied back at the end."""
    memory = tensor.detach().cpu().contiguous()
    yield memory
    if memory.data_ptr() != tensor.data_ptr():
        with torch.no_grad():
            tensor.copy_(memory)


def other_group(process_group):
    """The process group, or None if it is the default one, to which no reference is kept."""
    return None if dist.is_available() and dist.is_initialized() and process_group is dist.group.WORLD else process_group


def choose(transport: Optional[str], process_group, device: torch.device, timeout_s: float) -> Group:
    """`torch`: the process group; `native`, or `native:NAME`: ours; None: torch if there is a process group."""
    there, process_group = dist.is_available() and dist.is_initialized(), other_group(process_group)
    if transport is None:
        transport = "torch" if there or process_group is not None else "native"
    if transport == "torch":
        if not there:
            raise RuntimeError("transport torch: no process group; call torch.distributed."
                               "init_process_group first, or use transport='native'")
        return ProcessGroup(process_group, device)
    kind, _, name = transport.partition(":")
    if kind != "native":
        raise ValueError(f"transport: unknown transport '{transport}'; choose torch, native or native:NAME")
    # As long as PyTorch's: a slow worker (rank 0 evaluates alone) is not a dead one, which is detected at once.
    timeout_s = timeout_s or float(os.environ.get("MGWFBP_TIMEOUT") or TIMEOUT_S)
    if there and (process_group is not None or environment.launched() != (dist.get_rank(), dist.get_world_size())):
        return NativeGroup(name or None, timeout_s, device, ProcessGroup(process_group, device))
    return NativeGroup(name or None, timeout_s, device)
