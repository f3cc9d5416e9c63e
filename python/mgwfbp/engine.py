"""The C engine and its transports as Python objects. Addresses go in and out; PyTorch is not needed."""

import atexit
import hashlib
import itertools
import weakref
from ctypes import byref, c_uint
from typing import Dict, Optional

from . import _lib, environment
from ._lib import check, encode, lib, make

_numbers = itertools.count()  # every engine and transport of a process is a job of its own, in the same order everywhere
_open: "weakref.WeakSet" = weakref.WeakSet()


@atexit.register
def _close_all():
    """MPI wants to be finalized, and other workers to hear that we leave rather than die."""
    for each in list(_open):
        each.close()


def _transport_options(transport: Optional[str], timeout_s: float) -> _lib.TransportOptions:
    job, number = environment.job(), next(_numbers)
    if job and len(job) > 40:  # names have an end
        job = hashlib.sha256(job.encode()).hexdigest()[:32]
    return _lib.TransportOptions(encode(transport), environment.rank(), environment.size(),
                                 encode(job and f"{job}/{number}"), timeout_s)


class _Owner:
    """Of a C object, until it is closed."""

    _address: Optional[int] = None

    def _own(self, address: int) -> None:
        self._address = address
        _open.add(self)

    @property
    def _live(self) -> int:
        if self._address is None:
            raise _lib.Error(f"{type(self).__name__.lower()}: it was closed")
        return self._address

    def close(self) -> None:
        address, self._address = self._address, None
        if address:
            type(self)._close(address)

    def __del__(self):
        self.close()


class Transport(_Owner):
    """Collectives on memory by address. `transport` is self, shm, mpi or emulated:A,B[:NAME]; None: as the environment
    says."""

    _close = lib.mgw_transport_close

    def __init__(self, transport: Optional[str] = None, timeout_s: float = 0):
        self._own(make(lib.mgw_transport_open, byref(_transport_options(transport, timeout_s))))
        self.rank = lib.mgw_transport_rank(self._live)
        self.size = lib.mgw_transport_size(self._live)
        self.name = lib.mgw_transport_name(self._live).decode()

    def all_reduce(self, address: int, count: int, dtype: str, op: str = "sum") -> None:
        check(lib.mgw_transport_all_reduce, self._live, address, count, _lib.DTYPES.index(dtype),
              _lib.OPERATIONS[op])

    def broadcast(self, address: int, bytes: int, root: int = 0) -> None:
        check(lib.mgw_transport_broadcast, self._live, address, bytes, root)


class Engine(_Owner):
    """mgw_engine: gradients in an arena, averaged in merged messages by a thread of the library's own.

    The order of calls is that of include/mgwfbp/engine.h: add, start, then for each step begin, ready, wait.
    """

    _close = lib.mgw_engine_close

    def __init__(self, transport: Optional[str] = None, timeout_s: float = 0, policy: Optional[str] = None,
                 cluster: Optional[str] = None, profile_steps: int = 0, replan_steps: int = 0,
                 replan_percent: int = 0, device: Optional[str] = None):
        options = _lib.EngineOptions(
            transport=_transport_options(transport, timeout_s), policy=encode(policy), cluster=encode(cluster),
            profile_steps=profile_steps, replan_steps=replan_steps, replan_percent=replan_percent,
            device=encode(device))
        self._options = options  # its strings must live until start
        self._own(make(lib.mgw_engine_open, byref(options)))

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
        _lib.engine_ready(self._address, number)

    def ready_on(self, number: int, stream: int) -> None:
        """On a device: what is on the stream by now includes the gradient."""
        _lib.engine_ready_on(self._address, number, stream)

    def ready_at(self, number: int, source: int, stream: int) -> None:
        """Of a gradient that is elsewhere: it is copied to where it belongs, on a device on that stream."""
        _lib.engine_ready_at(self._address, number, source, stream)

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

    def statistics(self) -> Dict[str, float]:
        measured = _lib.EngineStatistics()
        lib.mgw_engine_measure(self._live, byref(measured))
        return {name: getattr(measured, name) for name, _ in measured._fields_}

    def plan_json(self) -> Optional[str]:
        """The plan in force; None before the first."""
        address = lib.mgw_engine_plan(self._live)
        return _lib.written(lib.mgw_plan_write, address) if address else None

    def cluster_json(self) -> str:
        """What messages cost, as calibrated."""
        return _lib.written(lib.mgw_cluster_write, lib.mgw_engine_cluster(self._live))

    def trace_json(self) -> Optional[str]:
        """The ready times behind the plan; None before the first."""
        address = lib.mgw_engine_trace(self._live)
        return _lib.written(lib.mgw_trace_write, address) if address else None
