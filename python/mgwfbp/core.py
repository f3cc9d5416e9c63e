"""C's parts as Python objects. What decides: the flow of steps, where gradients lie, the calibration, the tuner; who drives
them brings the clock and the collectives. What sends: transports, and the engine, which has all that inside. Memory is
told by address; PyTorch is not needed."""

import atexit
import contextlib
import ctypes
import hashlib
import itertools
import weakref
from ctypes import byref, c_char_p, c_double, c_int, c_size_t, c_uint64, c_void_p
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from . import _lib, environment, planning, rendezvous
from ._lib import encode, lib, quick


class Flow(_lib.Object, kind="mgw_flow"):
    """mgw_flow: which operation may start next. Every gradient sets `now_s.value` and calls `ready(address, tensor,
    now_s)`, which says whether `next` is worth a call: C's function itself, which a method around it would slow down."""

    ready = quick.mgw_flow_ready
    begin = lib.mgw_flow_begin

    def __init__(self, tensors: int):
        super().__init__(lib.mgw_flow_create(tensors))
        self.address, self.now_s = c_void_p(self._address), c_double()
        self.ready_s = lib.mgw_flow_ready_times(self)
        self.tensors, self._operation = tensors, c_size_t()

    def adopt(self, tuner: "Tuner") -> None:
        lib.mgw_flow_adopt(self, *tuner.plan())

    def ready_all(self, numbers, count: int, at_s) -> bool:
        """Of several, in one call. Arrays: which, and by tensor when each was there. Whether `next` is worth a call."""
        return quick.mgw_flow_ready_all(self._address, numbers, count, at_s)

    def operations(self) -> Tuple[Any, int, int]:
        """Of this step, as C has them; and a number that is another one for other operations."""
        return (*lib.mgw_flow_operations(self), lib.mgw_flow_plans(self))

    def next(self) -> Iterator[int]:
        """What may start now, in order."""
        while quick.mgw_flow_next(self._address, byref(self._operation)):
            yield self._operation.value

    def done(self, operation: int, start_s: float, end_s: float) -> None:
        quick.mgw_flow_done(self._address, operation, start_s, end_s)

    def updated(self, tensor: int) -> bool:
        """Its parameters were; whether `next` is worth a call."""
        return quick.mgw_flow_updated(self._address, tensor)


class Layout(_lib.Object, kind="mgw_layout"):
    """mgw_layout: of tensors in ready order, in elements of their dtype's memory."""

    offset, length = lib.mgw_layout_offset, lib.mgw_layout_length

    def __init__(self, counts: Sequence[int], dtypes: Sequence[str]):
        n = len(counts)
        super().__init__(lib.mgw_layout_create(n, (c_size_t * n)(*counts), (c_int * n)(*map(_lib.DTYPES.index, dtypes))))

    def slice(self, first: int, count: int, dtype: str) -> slice:
        begin, length = lib.mgw_layout_slice(self, first, count, dtype)
        return slice(begin, begin + length)


Piece = NamedTuple("Piece", [("dtype", str), ("begin", int), ("length", int), ("shared_out", bool), ("reduced_by", int),
                             ("gathered_by", int)])  # the last one is NO_OPERATION where it is all-reduced
Shard = NamedTuple("Shard", [("tensor", int), ("first", int), ("count", int), ("dtype", str), ("begin", int), ("at", int),
                             ("reduced_by", int)])
Move = NamedTuple("Move", [("kind", str), ("source", int), ("target", int), ("count", int)])
MOVES = ("keep", "lend", "gather", "take")  # mgw_move_kind, in order
NO_OPERATION = 2 ** (8 * ctypes.sizeof(c_size_t)) - 1


def _rows(row, structs, count: int, **names: Sequence[str]) -> list:
    """Structs as tuples, with names in place of some numbers."""
    return [row(*(names[field][getattr(s, field)] if field in names else getattr(s, field) for field, _ in s._fields_))
            for s in structs[:count]]


class Shards(_lib.Object, kind="mgw_shards"):
    """mgw_shards: who owns what under operations (kind, first tensor, how many), of so many workers. See
    include/mgwfbp/shards.h."""

    length = lib.mgw_shards_length

    def __init__(self, layout: Layout, operations: Sequence[Tuple[str, int, int]], workers: int):
        n = len(operations)
        structs = (_lib.OperationStruct * n)(*(
            (_lib.COLLECTIVES.index(kind), 2 * (kind == "all-gather"), first, count) for kind, first, count, *_ in operations))
        super().__init__(lib.mgw_shards_create(layout, structs, n, workers))

    def pieces(self) -> List[Piece]:
        """In memory order, dtype by dtype."""
        return _rows(Piece, *lib.mgw_shards_pieces(self), dtype=_lib.DTYPES)

    def owned(self, piece: int, rank: int) -> slice:
        """What a rank has of a piece, in its dtype's memory."""
        begin, length = lib.mgw_shards_owned(self, piece, rank)
        return slice(begin, begin + length)

    def of(self, rank: int) -> List[Shard]:
        """What a rank updates, tensor by tensor, in memory order."""
        shards, count = lib.mgw_shards_of(self, rank)
        with _freed(shards):
            return _rows(Shard, shards, count, dtype=_lib.DTYPES)

    def segments(self, operation: int, dtype: str) -> Tuple[slice, List[int]]:
        """The operation's part of the dtype's memory, and the lengths of the pieces that it moves."""
        count, segments, begin, length = lib.mgw_shards_segments(self, operation, dtype)
        return slice(begin, begin + length), segments[:count]

    def moves(self, after: "Shards", rank: int, dtype: str, most: int = 0) -> Tuple[List[Move], int]:
        """What a rank does so that an array of its shards' state is one of the shards after; and how many elements the
        scratch has, all of which each "gather" gathers, from every rank the same number."""
        moves, count, scratch = lib.mgw_shards_moves(self, after, rank, dtype, most)
        with _freed(moves):
            return _rows(Move, moves, count, kind=MOVES), scratch


@contextlib.contextmanager
def _freed(memory):
    """What C has allocated for its caller."""
    try:
        yield
    finally:
        _lib.free(memory)


class Operation(NamedTuple):
    """Of a plan: over tensors first .. first+count-1."""

    kind: str
    first: int
    count: int
    wire: str = "f32"  # what f32 gradients travel as


def operations_of(plan: Tuple[Any, int]) -> List[Operation]:
    """From C: a pointer, and how many."""
    pointer, count = plan
    return [Operation(_lib.COLLECTIVES[o.kind], o.first, o.count, _lib.WIRES[o.wire]) for o in pointer[:count]]


wire_bytes = lib.mgw_wire_bytes  # of so many f32 numbers, as they travel


def block(count: int, size: int, rank: int) -> Tuple[int, int]:
    """mgw_transport_block: where a rank's part of so many elements begins, and how long it is."""
    return tuple(lib.mgw_transport_block(count, size, rank))


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
            yield _lib.Exchange(None, self.rank, self.size, combine, tell), callback
        except _lib.Error as error:
            raise raised[0] if raised else error


def calibrate(exchange: Exchange, time: Callable[[int, str], float], name: str, most_bytes: int,
              kinds: Sequence[str] = ("all-reduce",)) -> planning.Cluster:
    """mgw_calibrate: what collectives cost, as a + b*M or, where no line fits, as a curve. `time` takes bytes and a kind,
    does one among all workers, and returns its seconds. It takes about half a second, however slow the network is."""
    def call(kind, bytes, out):
        out[0] = time(bytes, _lib.COLLECTIVES[kind])

    with exchange.calls() as (struct, callback):
        how = _lib.Calibration(name=encode(name), least_bytes=1024, most_bytes=most_bytes, factor=4, more_sizes=8,
                               repeats=3, most_repeats=9, enough_s=0.5,
                               kinds=sum(1 << _lib.COLLECTIVES.index(kind) for kind in kinds),
                               time=callback(_lib.Time, call))
        return planning.Cluster(lib.mgw_calibrate(how, struct))


class Tried(NamedTuple):
    """A plan in a trial; times are of whole steps."""

    name: str  # "ddp", the policy, "fewer", "fewest", "more" or "single"
    messages: int
    rounds: int  # in which it was timed
    measured_s: float  # what a step took; 0: not timed yet
    ratio: float  # to the best,
    width: float  # give or take; 0: not known yet, or it is the best
    predicted_s: float  # what the model thought
    left: bool  # it was not dropped
    kept: bool  # it has won


class Learned(_lib.Object):
    """What an engine or a tuner knows, as copies."""

    def _ask(self, what: str):
        return getattr(lib, f"{self._kind}_{what}")(self)

    def trace(self) -> Optional[planning.Trace]:
        """The ready times behind the plan in force, from the first gradient on; None before the first plan."""
        return planning.Trace.copy(self._ask("trace"))

    def cluster(self) -> planning.Cluster:
        """What messages cost alone: as measured, or as told."""
        return planning.Cluster.copy(self._ask("cluster"))

    def statistics(self) -> Dict[str, float]:
        measured = self._ask("measure")
        return {name: getattr(measured, name) for name, _ in measured._fields_}

    def tried(self) -> List[Tried]:
        """Plans of the trial that goes on, or of the last one."""
        found, count = self._ask("tried")
        return [Tried(each.name.decode(), *(getattr(each, name) for name in Tried._fields[1:]))
                for each in (found[:count] if count else [])]

    def save_plan(self, path) -> None:
        """The plan in force, as a file that a later run can be given."""
        plan = self._ask("plan")
        if not plan:
            raise _lib.Error(f"{path}: there is no plan yet: the first comes after some steps")
        with _lib.written("mgw_plan", plan) as text:
            lib.mgw_text_save(text, path)


class Tuner(Learned, kind="mgw_tuner"):
    """mgw_tuner: what steps have shown, and which plan comes next. It owns the cluster from now on."""

    count = lib.mgw_tuner_count  # a step was run; its times may come later
    due = lib.mgw_tuner_due
    watches = lib.mgw_tuner_watches  # whether the times of the next step will count
    turn = lib.mgw_tuner_turn  # before a step without a look: whether another candidate's has come, in a trial
    set_policy = lib.mgw_tuner_set_policy  # from the next look on
    load_plan = lib.mgw_tuner_load_plan  # from a file: it stays

    def __init__(self, names: Sequence[str], bytes: Sequence[int], cluster: planning.Cluster, policy: str,
                 **options: Any):
        n = len(names)
        super().__init__(lib.mgw_tuner_create(_lib.TunerOptions(policy=encode(policy), **options), n,
                                              (c_char_p * n)(*map(encode, names)), (c_uint64 * n)(*bytes), cluster))
        cluster._address = None

    def operations(self) -> List[Tuple[int, int]]:
        """The first tensor of each, and how many it has, in the order of the next step."""
        return [(o.first, o.count) for o in operations_of(self.plan())]

    def wires(self) -> List[Optional[str]]:
        """What f32 gradients of each travel as; None: as they are."""
        return [None if o.wire == "f32" else o.wire for o in operations_of(self.plan())]

    def plan(self) -> Tuple[Any, int]:
        """The same as C has them."""
        return lib.mgw_tuner_operations(self)

    def observe(self, late_s: float, compute_s: float, iteration_s: float, ready_s, need_s=None,
                stall_s: float = 0.0, period_s: float = 0.0, step: int = 0) -> None:
        """A step has shown: in seconds from its begin; `ready_s` by tensor, as doubles in memory, 0 where not timed; so is
        `need_s`, with NEVER_NEEDED, where the forward pass waits for parameters, `stall_s` in all. `period_s` is from the
        end of the step before, if known; `step` which one it was, from 1 on, if some are left out."""
        ready, need = (ctypes.cast(times, ctypes.POINTER(c_double)) for times in (ready_s, need_s))
        record = _lib.StepRecord(late_s=late_s, compute_s=compute_s, iteration_s=iteration_s, ready_s=ready, need_s=need,
                                 stall_s=stall_s, period_s=period_s, step=step)
        lib.mgw_tuner_observe(self, record)

    def look(self, exchange: Exchange, may_stay: bool = True) -> bool:
        """Whether there is another plan from now on. Collective."""
        with exchange.calls() as (struct, _):
            return lib.mgw_tuner_look(self, struct, may_stay)


# ---- What sends ----

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


class Identity(NamedTuple):
    """Who this worker is in a job, where that is not what the launcher says: in a group of some of its workers."""

    rank: int
    size: int
    job: str  # the same on all of them, and only there


def _transport_options(transport: Optional[str], timeout_s: float, who: Optional[Identity]) -> _lib.TransportOptions:
    if who:
        return _lib.TransportOptions(encode(transport), who.rank, who.size, encode(who.job), timeout_s, False, None)
    (rank, size), number = environment.launched(), next(_numbers)
    over_tcp = transport in ("tcp", "nccl:tcp")
    job = environment.name() if over_tcp else environment.job()
    if job and len(job) > 40:  # names have an end
        job = hashlib.sha256(job.encode()).hexdigest()[:32]
    address = rendezvous.address(f"{job}/{number}", rank, timeout_s) if over_tcp else None
    return _lib.TransportOptions(encode(transport), rank, size, encode(job and f"{job}/{number}"), timeout_s, False,
                                 encode(address))


class Transport(_lib.Object, kind="mgw_transport", destroy="close"):
    """Collectives on memory by address. `transport`: self, shm, mpi or emulated:A,B[:NAME]; None: the environment's."""

    all_reduce, broadcast = lib.mgw_transport_all_reduce, lib.mgw_transport_broadcast
    all_gather = lib.mgw_transport_all_gather  # in place: everybody's block for everybody
    rank, size, name = map(property, (lib.mgw_transport_rank, lib.mgw_transport_size, lib.mgw_transport_name))

    def __init__(self, transport: Optional[str] = None, timeout_s: float = 0, who: Optional[Identity] = None):
        super().__init__(lib.mgw_transport_open(_transport_options(transport, timeout_s, who)))
        _open.add(self)


class Engine(Learned, kind="mgw_engine", destroy="close"):
    """mgw_engine: gradients in an arena, averaged in merged messages by a thread of the library's own. The order of calls
    is that of include/mgwfbp/engine.h: add, start, then for each step begin, ready, wait."""

    add, start = lib.mgw_engine_add, lib.mgw_engine_start
    begin, wait = lib.mgw_engine_begin, lib.mgw_engine_wait
    gradient = lib.mgw_engine_gradient  # the address of its memory, which lives until close
    set_stream = lib.mgw_engine_set_stream  # where the program computes: begin, wait and broadcast are about it
    broadcast = lib.mgw_engine_broadcast  # rank 0's numbers for all, between steps
    set_policy = lib.mgw_engine_set_policy
    update, need, drain = lib.mgw_engine_update, lib.mgw_engine_need, lib.mgw_engine_drain
    gradient_memory, parameter_memory = lib.mgw_engine_gradient_memory, lib.mgw_engine_parameter_memory
    all_reduce = lib.mgw_engine_all_reduce  # other numbers, between steps

    def plan(self) -> Optional[Tuple[Any, int]]:
        """The operations in force, as C has them; None before the first plan."""
        found = lib.mgw_engine_plan(self)
        return (found.contents.operations, found.contents.operation_count) if found else None

    def __init__(self, transport: Optional[str] = None, timeout_s: float = 0, policy: Optional[str] = None,
                 cluster: Optional[str] = None, device: Optional[str] = None, plan: Optional[str] = None,
                 wire: Optional[str] = None, who: Optional[Identity] = None, **counts: int):
        self._options = _lib.EngineOptions(  # its strings must live until start
            transport=_transport_options(transport, timeout_s, who), policy=encode(policy), cluster=encode(cluster),
            device=encode(device), plan=encode(plan), wire=encode(wire), **counts)
        super().__init__(lib.mgw_engine_open(self._options))
        _open.add(self)

    def ready(self, number: int) -> None:
        quick.mgw_engine_ready(self._address or self._live, number)

    def ready_on(self, number: int, stream: int) -> None:
        """On a device: what is on the stream by now includes the gradient."""
        quick.mgw_engine_ready_on(self._address or self._live, number, stream)

    def ready_all(self, numbers, count: int, at_s, sources=None, stream: Optional[int] = None) -> None:
        """Of several, in one call. Arrays: which, by tensor when each was there, and where it is, if not all are in place."""
        quick.mgw_engine_ready_all(self._address or self._live, numbers, count, at_s, sources, stream)

    def mark(self, number: int, stream: int) -> None:
        """On a device, of one that is sampled: the gradient is there, and not handed over yet."""
        quick.mgw_engine_mark(self._address or self._live, number, stream)

    def operations(self) -> Tuple[Any, int, int]:
        """Of this step, as C has them; and a number that is another one for other operations."""
        return lib.mgw_engine_operations(self)

    samples = lib.mgw_engine_samples  # one tensor in so many is timed in this step, and which one of those; 0: none

    def ready_at(self, number: int, source: int, stream: int) -> None:
        """Of a gradient that is elsewhere: it is copied to where it belongs, on a device on that stream."""
        quick.mgw_engine_ready_at(self._address or self._live, number, source, stream)
