"""The C engine and its transports as Python objects. Addresses go in and out; PyTorch is not needed."""

import atexit
import ctypes
import hashlib
import itertools
import weakref
from ctypes import c_void_p
from typing import Optional

from . import _lib, environment
from ._lib import encode, lib, quick
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


class Transport(_Member, kind="mgw_transport", destroy="close"):
    """Collectives on memory by address. `transport` is self, shm, mpi or emulated:A,B[:NAME]; None: as the environment
    says."""

    all_reduce, broadcast = lib.mgw_transport_all_reduce, lib.mgw_transport_broadcast

    def __init__(self, transport: Optional[str] = None, timeout_s: float = 0):
        super().__init__(lib.mgw_transport_open(_transport_options(transport, timeout_s)))
        self.rank, self.size = lib.mgw_transport_rank(self), lib.mgw_transport_size(self)
        self.name = lib.mgw_transport_name(self)


class Engine(_Member, Learned, kind="mgw_engine", destroy="close"):
    """mgw_engine: gradients in an arena, averaged in merged messages by a thread of the library's own.

    The order of calls is that of include/mgwfbp/engine.h: add, start, then for each step begin, ready, wait.
    """

    add, start = lib.mgw_engine_add, lib.mgw_engine_start
    begin, wait = lib.mgw_engine_begin, lib.mgw_engine_wait
    gradient = lib.mgw_engine_gradient  # the address of its memory, which lives until close
    set_stream = lib.mgw_engine_set_stream  # where the program computes: begin, wait and broadcast are about it
    broadcast = lib.mgw_engine_broadcast  # rank 0's numbers for all, between steps
    set_policy = lib.mgw_engine_set_policy

    def __init__(self, transport: Optional[str] = None, timeout_s: float = 0, policy: Optional[str] = None,
                 cluster: Optional[str] = None, device: Optional[str] = None, **counts: int):
        self._options = _lib.EngineOptions(  # its strings must live until start
            transport=_transport_options(transport, timeout_s), policy=encode(policy), cluster=encode(cluster),
            device=encode(device), **counts)
        super().__init__(lib.mgw_engine_open(self._options))

    def ready(self, number: int) -> None:
        quick.mgw_engine_ready(self._address or self._live, number)

    def ready_on(self, number: int, stream: int) -> None:
        """On a device: what is on the stream by now includes the gradient."""
        quick.mgw_engine_ready_on(self._address or self._live, number, stream)

    def ready_at(self, number: int, source: int, stream: int) -> None:
        """Of a gradient that is elsewhere: it is copied to where it belongs, on a device on that stream."""
        quick.mgw_engine_ready_at(self._address or self._live, number, source, stream)
