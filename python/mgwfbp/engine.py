"""The C engine and its transports as Python objects. Addresses go in and out; PyTorch is not needed."""

import atexit
import ctypes
import hashlib
import itertools
import weakref
from ctypes import byref, c_uint, c_void_p
from typing import Optional

from . import _lib, environment
from ._lib import check, encode, lib, make
from .core import Learned

_numbers = itertools.count()  # every engine and transport of a process is a job of its own, in the same order everywhere
_open: "weakref.WeakSet" = weakref.WeakSet()


@atexit.register
def _close_at_exit():
    """MPI wants to be finalized, and other workers to hear that we leave rather than die. But what is closed unmaps its
    memory, and gradients may be there that handlers like this one still read. So C's own exit closes what is open now: it
    comes when nothing of Python runs any more."""
    at_exit = ctypes.CDLL(None).__cxa_atexit
    at_exit.argtypes = [c_void_p, c_void_p, c_void_p]
    for each in list(_open):
        address, each._address = each._address, None
        if address:
            at_exit(ctypes.cast(type(each)._destroy, c_void_p), address, None)


def _transport_options(transport: Optional[str], timeout_s: float) -> _lib.TransportOptions:
    job, number = environment.job(), next(_numbers)
    if job and len(job) > 40:  # names have an end
        job = hashlib.sha256(job.encode()).hexdigest()[:32]
    return _lib.TransportOptions(encode(transport), environment.rank(), environment.size(),
                                 encode(job and f"{job}/{number}"), timeout_s)


class _Member(_lib.Object):
    """Of a job."""

    def __init__(self, address: int):
        super().__init__(address)
        _open.add(self)


class Transport(_Member):
    """Collectives on memory by address. `transport` is self, shm, mpi or emulated:A,B[:NAME]; None: as the environment
    says."""

    _destroy = lib.mgw_transport_close

    def __init__(self, transport: Optional[str] = None, timeout_s: float = 0):
        super().__init__(make(lib.mgw_transport_open, byref(_transport_options(transport, timeout_s))))
        self.rank = lib.mgw_transport_rank(self._live)
        self.size = lib.mgw_transport_size(self._live)
        self.name = lib.mgw_transport_name(self._live).decode()

    def all_reduce(self, address: int, count: int, dtype: str, op: str = "sum") -> None:
        check(lib.mgw_transport_all_reduce, self._live, address, count, _lib.DTYPES.index(dtype),
              _lib.OPERATIONS[op])

    def broadcast(self, address: int, bytes: int, root: int = 0) -> None:
        check(lib.mgw_transport_broadcast, self._live, address, bytes, root)


class Engine(_Member, Learned):
    """mgw_engine: gradients in an arena, averaged in merged messages by a thread of the library's own.

    The order of calls is that of include/mgwfbp/engine.h: add, start, then for each step begin, ready, wait.
    """

    _destroy = lib.mgw_engine_close
    _kind, _statistics = "mgw_engine", _lib.EngineStatistics

    def __init__(self, transport: Optional[str] = None, timeout_s: float = 0, policy: Optional[str] = None,
                 cluster: Optional[str] = None, profile_steps: int = 0, replan_steps: int = 0,
                 replan_percent: int = 0, device: Optional[str] = None):
        options = _lib.EngineOptions(
            transport=_transport_options(transport, timeout_s), policy=encode(policy), cluster=encode(cluster),
            profile_steps=profile_steps, replan_steps=replan_steps, replan_percent=replan_percent,
            device=encode(device))
        self._options = options  # its strings must live until start
        super().__init__(make(lib.mgw_engine_open, byref(options)))

    def add(self, name: str, count: int, dtype: str) -> int:
        number = c_uint()
        check(lib.mgw_engine_add, self._live, encode(name), count, _lib.DTYPES.index(dtype), byref(number))
        return number.value

    def start(self) -> None:
        check(lib.mgw_engine_start, self._live)

    def gradient(self, number: int) -> int:
        """The address of a gradient's memory, which lives until close."""
        return lib.mgw_engine_gradient(self._live, number)

    def begin(self) -> None:
        check(lib.mgw_engine_begin, self._live)

    def ready(self, number: int) -> None:
        _lib.engine_ready(self._address or self._live, number)

    def ready_on(self, number: int, stream: int) -> None:
        """On a device: what is on the stream by now includes the gradient."""
        _lib.engine_ready_on(self._address or self._live, number, stream)

    def ready_at(self, number: int, source: int, stream: int) -> None:
        """Of a gradient that is elsewhere: it is copied to where it belongs, on a device on that stream."""
        _lib.engine_ready_at(self._address or self._live, number, source, stream)

    def set_stream(self, stream: int) -> None:
        """Where the program computes, between steps. On a device begin, wait and broadcast are about this stream."""
        lib.mgw_engine_set_stream(self._live, stream)

    def wait(self) -> None:
        check(lib.mgw_engine_wait, self._live)

    def broadcast(self, address: int, bytes: int) -> None:
        """Rank 0's numbers for all, between steps."""
        check(lib.mgw_engine_broadcast, self._live, address, bytes)

    def set_policy(self, policy: str) -> None:
        check(lib.mgw_engine_set_policy, self._live, encode(policy))
