"""What decides in C, as Python objects: the flow of steps, where gradients lie, the tuner, the calibration. PyTorch is not
needed: who drives them brings the clock and the collectives."""

import contextlib
import ctypes
from ctypes import byref, c_bool, c_char_p, c_double, c_int, c_size_t, c_uint64
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple

from . import _lib, planning
from ._lib import check, encode, lib, make


class Flow(_lib.Object):
    """mgw_flow: which operation may start next. Every gradient sets `now_s.value` and calls `ready(address, tensor,
    now_s)`, which says whether `next` is worth a call: C's function itself, which a method around it would slow down."""

    _destroy = lib.mgw_flow_destroy
    ready = _lib.flow_ready

    def __init__(self, tensors: int):
        super().__init__(make(lib.mgw_flow_create, tensors))
        self.address, self.now_s = ctypes.c_void_p(self._address), c_double()
        self.ready_s = lib.mgw_flow_ready_times(self._address)
        self.tensors, self._operation = tensors, c_size_t()

    def adopt(self, tuner: "Tuner") -> None:
        count = c_size_t()
        operations = lib.mgw_tuner_operations(tuner._address, byref(count))
        check(lib.mgw_flow_adopt, self._address, operations, count)

    def begin(self, now_s: float) -> None:
        check(lib.mgw_flow_begin, self._address, now_s)

    def next(self) -> Iterator[int]:
        """What may start now, in order."""
        while _lib.flow_next(self._address, byref(self._operation)):
            yield self._operation.value

    def done(self, operation: int, start_s: float, end_s: float) -> None:
        _lib.flow_done(self._address, operation, start_s, end_s)


class Layout(_lib.Object):
    """mgw_layout: of tensors in ready order, in elements of their dtype's memory."""

    _destroy = lib.mgw_layout_destroy

    def __init__(self, counts: Sequence[int], dtypes: Sequence[str]):
        n = len(counts)
        super().__init__(make(lib.mgw_layout_create, n, (c_size_t * n)(*counts),
                              (c_int * n)(*map(_lib.DTYPES.index, dtypes))))

    def offset(self, tensor: int) -> int:
        return lib.mgw_layout_offset(self._address, tensor)

    def length(self, dtype: str) -> int:
        return lib.mgw_layout_length(self._address, _lib.DTYPES.index(dtype))

    def slice(self, first: int, count: int, dtype: str) -> slice:
        begin, length = c_size_t(), c_size_t()
        lib.mgw_layout_slice(self._address, first, count, _lib.DTYPES.index(dtype), byref(begin), byref(length))
        return slice(begin.value, begin.value + length.value)


# ---- Calls back ----


class Exchange:
    """mgw_exchange: how workers reach each other. By itself one worker, alone; others bring two collectives in place."""

    rank, size = 0, 1

    def combine(self, values, sums: int) -> None:
        """Doubles: the first `sums` become the sums over all workers, the others the largest."""

    def tell(self, data) -> None:
        """Bytes: rank 0's."""

    @contextlib.contextmanager
    def calls(self):
        """The C struct, and what makes other functions for C to call. What one raises is kept, since C must come to its
        end with a failure, and raised here."""
        raised = []

        def callback(kind, function: Callable):
            def call(context, *arguments):
                try:
                    function(*arguments[:-1])
                    return 0
                except BaseException as error:
                    raised.append(error)
                    if arguments[-1]:
                        arguments[-1][0] = _lib.ErrorStruct(_lib.ERR_PEER, str(error).encode()[:_lib.ERROR_MAX - 1])
                    return _lib.ERR_PEER

            return kind(call)

        combine = callback(_lib.Combine, lambda values, sums, maxima: self.combine(
            (c_double * (sums + maxima)).from_address(ctypes.addressof(values.contents)), sums))
        tell = callback(_lib.Tell, lambda data, count: self.tell((ctypes.c_char * count).from_address(data)))
        try:
            yield byref(_lib.Exchange(None, self.rank, self.size, combine, tell)), callback
        except _lib.Error as error:
            raise raised[0] if raised else error


def calibrate(exchange: Exchange, time: Callable[[int], float], name: str, most_bytes: int) -> planning.Cluster:
    """mgw_calibrate: what an all-reduce costs, as a + b*M. `time` takes bytes, does one among all workers, and returns
    its seconds. A slow network is known before all sizes were tried: after 2 s."""
    def call(kind, bytes, out):
        out[0] = time(bytes)

    with exchange.calls() as (struct, callback):
        how = _lib.Calibration(name=encode(name), least_bytes=1024, most_bytes=most_bytes, factor=4, repeats=5,
                               enough_s=2.0, kinds=1, time=callback(_lib.Time, call))
        return planning.Cluster(make(lib.mgw_calibrate, byref(how), struct))


# ---- The tuner ----


class Learned:
    """What an engine or a tuner knows, as copies."""

    _kind: str
    _statistics: Any
    _live: int

    def _copy(self, kind, what: str):
        address = getattr(lib, f"{self._kind}_{what}")(self._live)
        return kind.parse(_lib.written(kind._write, address)) if address else None

    def trace(self) -> Optional[planning.Trace]:
        """The ready times behind the plan in force, from the first gradient on; None before the first plan."""
        return self._copy(planning.Trace, "trace")

    def cluster(self) -> planning.Cluster:
        """What messages cost alone: as measured, or as told."""
        return self._copy(planning.Cluster, "cluster")

    def statistics(self) -> Dict[str, float]:
        measured = self._statistics()
        getattr(lib, f"{self._kind}_measure")(self._live, byref(measured))
        return {name: getattr(measured, name) for name, _ in measured._fields_}


class Tuner(_lib.Object, Learned):
    """mgw_tuner: what steps have shown, and which plan comes next. It owns the cluster from now on."""

    _destroy = lib.mgw_tuner_destroy
    _kind, _statistics = "mgw_tuner", _lib.TunerStatistics

    def __init__(self, names: Sequence[str], bytes: Sequence[int], cluster: planning.Cluster, policy: str,
                 **options: Any):
        n = len(names)
        told = _lib.TunerOptions(policy=encode(policy), **options)
        super().__init__(make(lib.mgw_tuner_create, byref(told), n, (c_char_p * n)(*map(encode, names)),
                              (c_uint64 * n)(*bytes), cluster._address))
        cluster._address = None

    def operations(self) -> List[Tuple[int, int]]:
        """The first tensor of each, and how many it has, in the order of the next step."""
        count = c_size_t()
        operations = lib.mgw_tuner_operations(self._address, byref(count))
        return [(o.first, o.count) for o in operations[:count.value]]

    def observe(self, late_s: float, compute_s: float, iteration_s: float, ready_s) -> None:
        """A step has shown: in seconds from its begin; `ready_s` by tensor, as doubles in memory, 0 where not timed."""
        record = _lib.StepRecord(late_s, compute_s, iteration_s, ctypes.cast(ready_s, ctypes.POINTER(c_double)))
        lib.mgw_tuner_observe(self._address, byref(record))

    def count(self) -> None:
        """A step was run. Its times may come later."""
        lib.mgw_tuner_count(self._address)

    def due(self) -> bool:
        return lib.mgw_tuner_due(self._address)

    def watches(self) -> bool:
        """Whether the times of the next step will count."""
        return lib.mgw_tuner_watches(self._address)

    def look(self, exchange: Exchange, may_stay: bool = True) -> bool:
        """Whether there is another plan from now on. Collective."""
        changed = c_bool()
        with exchange.calls() as (struct, _):
            check(lib.mgw_tuner_look, self._address, struct, may_stay, byref(changed))
        return changed.value

    def set_policy(self, policy: str) -> None:
        """From the next look on."""
        check(lib.mgw_tuner_set_policy, self._address, encode(policy))
