"""The C library's objects in Python. Flow, layout, calibration and tuner decide; their driver provides the clock and the
collectives. Transports send, and so does the engine, which contains all of these. Memory is passed by address; PyTorch is
not needed."""

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
    """mgw_flow: which operation may start next. For every gradient, set `now_s.value` and call `ready(address, tensor,
    now_s)`; it returns whether `next` should be called. It is the C function itself, since a method would be slower."""

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
        """Several gradients are ready. Arrays: their numbers, and by tensor when each was ready. Returns whether `next`
        should be called."""
        return quick.mgw_flow_ready_all(self._address, numbers, count, at_s)

    def operations(self) -> Tuple[Any, int, int]:
        """The operations of this step as a C array, their count, and a number that changes whenever they do."""
        return (*lib.mgw_flow_operations(self), lib.mgw_flow_plans(self))

    def next(self) -> Iterator[int]:
        """The operations that may start now, in order."""
        while quick.mgw_flow_next(self._address, byref(self._operation)):
            yield self._operation.value

    def done(self, operation: int, start_s: float, end_s: float) -> None:
        quick.mgw_flow_done(self._address, operation, start_s, end_s)

    def updated(self, tensor: int) -> bool:
        """The parameters of the tensor were updated. Returns whether `next` should be called."""
        return quick.mgw_flow_updated(self._address, tensor)


class Layout(_lib.Object, kind="mgw_layout"):
    """mgw_layout: the layout of tensors in ready order, in elements of their dtype's memory."""

    offset, length = lib.mgw_layout_offset, lib.mgw_layout_length

    def __init__(self, counts: Sequence[int], dtypes: Sequence[str]):
        n = len(counts)
        super().__init__(lib.mgw_layout_create(n, (c_size_t * n)(*counts), (c_int * n)(*map(_lib.DTYPES.index, dtypes))))

    def slice(self, first: int, count: int, dtype: str) -> slice:
        begin, length = lib.mgw_layout_slice(self, first, count, dtype)
        return slice(begin, begin + length)


Piece = NamedTuple("Piece", [("dtype", str), ("begin", int), ("length", int), ("shared_out", bool), ("reduced_by", int),
                             ("gathered_by", int)])  # gathered_by is NO_OPERATION if it is all-reduced
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
    """mgw_shards: which worker owns which elements, given the operations (kind, first tensor, count). See
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
        """The part of a piece that a rank owns, in its dtype's memory."""
        begin, length = lib.mgw_shards_owned(self, piece, rank)
        return slice(begin, begin + length)

    def of(self, rank: int) -> List[Shard]:
        """The shards that a rank updates, tensor by tensor, in memory order."""
        shards, count = lib.mgw_shards_of(self, rank)
        with _freed(shards):
            return _rows(Shard, shards, count, dtype=_lib.DTYPES)

    def segments(self, operation: int, dtype: str) -> Tuple[slice, List[int]]:
        """The operation's part of the dtype's memory, and the lengths of the pieces that it moves."""
        count, segments, begin, length = lib.mgw_shards_segments(self, operation, dtype)
        return slice(begin, begin + length), segments[:count]

    def moves(self, after: "Shards", rank: int, dtype: str, most: int = 0) -> Tuple[List[Move], int]:
        """The moves that turn a rank's array for its shards into an array for the shards `after`; and the number of
        elements of the scratch. Each "gather" gathers all of the scratch, an equal block from every rank."""
        moves, count, scratch = lib.mgw_shards_moves(self, after, rank, dtype, most)
        with _freed(moves):
            return _rows(Move, moves, count, kind=MOVES), scratch


@contextlib.contextmanager
def _freed(memory):
    """Frees memory that C has allocated for its caller."""
    try:
        yield
    finally:
        _lib.free(memory)


class Operation(NamedTuple):
    """An operation of a plan, over tensors first .. first+count-1."""

    kind: str
    first: int
    count: int
    wire: str = "f32"  # format in which f32 gradients are sent
    lanes: int = 0  # that move it at most; 0: all


def operations_of(plan: Tuple[Any, int]) -> List[Operation]:
    """Converts operations from C, given as a pointer and a count."""
    pointer, count = plan
    return [Operation(_lib.COLLECTIVES[o.kind], o.first, o.count, _lib.WIRES[o.wire], o.lanes) for o in pointer[:count]]


wire_bytes = lib.mgw_wire_bytes  # bytes sent for a number of f32 elements


def block(count: int, size: int, rank: int) -> Tuple[int, int]:
    """mgw_transport_block: where a rank's part of `count` elements begins, and its length."""
    return tuple(lib.mgw_transport_block(count, size, rank))


PROBE_BYTES, LANE_BYTES = _lib.PROBE_BYTES, _lib.LANE_BYTES


class Exchange:
    """mgw_exchange: how workers communicate. The base class is a single worker; subclasses provide two in-place
    collectives."""

    rank, size = 0, 1

    def combine(self, values, sums: int) -> None:
        """Of an array of doubles, the first `sums` become the sums over all workers, the others the maxima."""

    def tell(self, data) -> None:
        """Broadcasts bytes from rank 0."""

    @contextlib.contextmanager
    def calls(self):
        """The C struct, and a function that wraps Python functions for C to call. If one raises an exception, C gets a
        failure, and the exception is raised here once C has returned."""
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
    """mgw_calibrate: measures the cost of collectives, as a + b*M or, if no line fits, as a curve. `time(bytes, kind)` runs
    one collective among all workers and returns its seconds. Takes about half a second, however slow the network is."""
    def call(kind, bytes, out):
        out[0] = time(bytes, _lib.COLLECTIVES[kind])

    with exchange.calls() as (struct, callback):
        how = _lib.Calibration(name=encode(name), least_bytes=1024, most_bytes=most_bytes, factor=4, more_sizes=8,
                               repeats=3, most_repeats=9, enough_s=0.5,
                               kinds=sum(1 << _lib.COLLECTIVES.index(kind) for kind in kinds),
                               time=callback(_lib.Time, call))
        return planning.Cluster(lib.mgw_calibrate(how, struct))


def choose_lanes(exchange: Exchange, time: Callable[[int], float]) -> int:
    """mgw_choose_lanes: how many connections should move the parts of a long message. `time(lanes)` runs an all-reduce of
    PROBE_BYTES over so many lanes, among all workers, and returns its seconds."""
    def call(lanes, out):
        out[0] = time(lanes)

    with exchange.calls() as (struct, callback):
        return lib.mgw_choose_lanes(struct, None, callback(_lib.TimeLanes, call))


def device_queues(workers: int) -> int:
    """mgw_device_queues: how many queues to a GPU each of so many processes of a host should ask for; 0: as CUDA has it."""
    return lib.mgw_device_queues(workers)


class Tried(NamedTuple):
    """A plan in a trial; times are of whole steps."""

    name: str  # "ddp", the policy, "fewer", "fewest", "more" or "single"
    messages: int
    rounds: int  # in which it was timed
    measured_s: float  # time of a step; 0: not timed yet
    ratio: float  # time relative to the best plan,
    width: float  # plus or minus this; 0: not known yet, or it is the best
    predicted_s: float  # what the model predicted
    left: bool  # not dropped
    kept: bool  # the winner


class Learned(_lib.Object):
    """What an engine or a tuner has learned. Results are copies."""

    def _ask(self, what: str):
        return getattr(lib, f"{self._kind}_{what}")(self)

    def trace(self) -> Optional[planning.Trace]:
        """The step that the current plan was made from, as it would be without messages, relative to the first gradient;
        None before the first plan."""
        return planning.Trace.copy(self._ask("trace"))

    def cluster(self) -> planning.Cluster:
        """The cost of messages, measured or as given, and how they and computation slow each other down."""
        return planning.Cluster.copy(self._ask("cluster"))

    def statistics(self) -> Dict[str, float]:
        measured = self._ask("measure")
        return {name: getattr(measured, name) for name, _ in measured._fields_}

    def tried(self) -> List[Tried]:
        """The plans of the current trial, or of the last one."""
        found, count = self._ask("tried")
        return [Tried(each.name.decode(), *(getattr(each, name) for name in Tried._fields[1:]))
                for each in (found[:count] if count else [])]

    def save_plan(self, path) -> None:
        """Saves the current plan to a file, for later runs."""
        plan = self._ask("plan")
        if not plan:
            raise _lib.Error(f"{path}: no plan yet; the first one is made after a few steps")
        with _lib.written("mgw_plan", plan) as text:
            lib.mgw_text_save(text, path)


class Tuner(Learned, kind="mgw_tuner"):
    """mgw_tuner: learns from steps and chooses the next plan. Takes ownership of the cluster."""

    count = lib.mgw_tuner_count  # a step was run; its times may follow later
    due = lib.mgw_tuner_due
    watches = lib.mgw_tuner_watches  # whether the times of the next step will count
    turn = lib.mgw_tuner_turn  # call before a step without a look: whether it is another candidate's turn
    set_policy = lib.mgw_tuner_set_policy  # takes effect at the next look
    load_plan = lib.mgw_tuner_load_plan  # from a file; disables tuning

    def __init__(self, names: Sequence[str], bytes: Sequence[int], cluster: planning.Cluster, policy: str,
                 **options: Any):
        n = len(names)
        super().__init__(lib.mgw_tuner_create(_lib.TunerOptions(policy=encode(policy), **options), n,
                                              (c_char_p * n)(*map(encode, names)), (c_uint64 * n)(*bytes), cluster))
        cluster._address = None

    def operations(self) -> List[Tuple[int, int]]:
        """The operations of the next step, in order: first tensor and number of tensors."""
        return [(o.first, o.count) for o in operations_of(self.plan())]

    def lanes(self) -> List[int]:
        """By operation: how many lanes move it at most; 0: all."""
        return [o.lanes for o in operations_of(self.plan())]

    def wires(self) -> List[Optional[str]]:
        """By operation: the format in which f32 gradients are sent; None: unchanged."""
        return [None if o.wire == "f32" else o.wire for o in operations_of(self.plan())]

    def plan(self) -> Tuple[Any, int]:
        """The operations of the next step as a C array, and their count."""
        return lib.mgw_tuner_operations(self)

    def observe(self, late_s: float, compute_s: float, iteration_s: float, ready_s, need_s=None,
                stall_s: float = 0.0, period_s: float = 0.0, step: int = 0) -> None:
        """Reports the times of a step, in seconds from its start. `ready_s` is an array of doubles by tensor, 0 if not
        timed. If the forward pass waits for parameters, `need_s` is such an array, with NEVER_NEEDED, and `stall_s` the
        total time waited. `period_s` is the time since the end of the previous step, if known; `step` is the number of the
        step, from 1 on, if some are left out."""
        ready, need = (ctypes.cast(times, ctypes.POINTER(c_double)) for times in (ready_s, need_s))
        record = _lib.StepRecord(late_s=late_s, compute_s=compute_s, iteration_s=iteration_s, ready_s=ready, need_s=need,
                                 stall_s=stall_s, period_s=period_s, step=step)
        lib.mgw_tuner_observe(self, record)

    def look(self, exchange: Exchange, may_stay: bool = True) -> bool:
        """Returns whether the plan has changed. Collective."""
        with exchange.calls() as (struct, _):
            return lib.mgw_tuner_look(self, struct, may_stay)


# ---- Transports and the engine ----

_numbers = itertools.count()  # each engine and transport is a job of its own; the order is the same on all workers
_open: "weakref.WeakSet" = weakref.WeakSet()


@atexit.register
def _close_at_exit():
    """MPI must be finalized, and other workers must see that this one leaves rather than dies. But closing unmaps memory,
    and other exit handlers may still read gradients there. So C's exit handlers close everything, after Python has
    ended."""
    at_exit = ctypes.CDLL(None).__cxa_atexit
    at_exit.argtypes = [c_void_p, c_void_p, c_void_p]
    for each in list(_open):
        address, each._address = each._address, None
        if address:
            at_exit(ctypes.cast(type(each)._destroy, c_void_p), address, None)


class Identity(NamedTuple):
    """This worker's identity in a job whose workers are not those of the launcher, such as a process group."""

    rank: int
    size: int
    job: str  # a name shared by these workers only


def _transport_options(transport: Optional[str], timeout_s: float, who: Optional[Identity]) -> _lib.TransportOptions:
    if who:
        return _lib.TransportOptions(encode(transport), who.rank, who.size, encode(who.job), timeout_s, False, None)
    (rank, size), number = environment.launched(), next(_numbers)
    over_tcp = transport in ("tcp", "nccl:tcp")
    job = environment.name() if over_tcp else environment.job()
    if job and len(job) > 40:  # the length of names is limited
        job = hashlib.sha256(job.encode()).hexdigest()[:32]
    address = rendezvous.address(f"{job}/{number}", rank, timeout_s) if over_tcp else None
    return _lib.TransportOptions(encode(transport), rank, size, encode(job and f"{job}/{number}"), timeout_s, False,
                                 encode(address))


class Transport(_lib.Object, kind="mgw_transport", destroy="close"):
    """Collectives on memory by address. `transport`: self, shm, mpi or emulated:A,B[:NAME]; None: the environment's."""

    all_reduce, broadcast = lib.mgw_transport_all_reduce, lib.mgw_transport_broadcast
    all_gather = lib.mgw_transport_all_gather  # in place: all blocks to all workers
    rank, size, name = map(property, (lib.mgw_transport_rank, lib.mgw_transport_size, lib.mgw_transport_name))

    def __init__(self, transport: Optional[str] = None, timeout_s: float = 0, who: Optional[Identity] = None):
        super().__init__(lib.mgw_transport_open(_transport_options(transport, timeout_s, who)))
        _open.add(self)


class Engine(Learned, kind="mgw_engine", destroy="close"):
    """mgw_engine: gradients in an arena, averaged in merged messages by the library's communication thread. The order of
    calls is as in include/mgwfbp/engine.h: add, start, then for each step begin, ready, wait."""

    add, start = lib.mgw_engine_add, lib.mgw_engine_start
    begin, wait = lib.mgw_engine_begin, lib.mgw_engine_wait
    gradient = lib.mgw_engine_gradient  # its address, valid until close
    set_stream = lib.mgw_engine_set_stream  # the stream that begin, wait and broadcast refer to
    broadcast = lib.mgw_engine_broadcast  # from rank 0, between steps
    set_policy = lib.mgw_engine_set_policy
    update, need, drain = lib.mgw_engine_update, lib.mgw_engine_need, lib.mgw_engine_drain
    gradient_memory, parameter_memory = lib.mgw_engine_gradient_memory, lib.mgw_engine_parameter_memory
    all_reduce = lib.mgw_engine_all_reduce  # of other data, between steps
    move = lib.mgw_engine_move  # an array of this worker's shards, within on_reshard

    def __init__(self, transport: Optional[str] = None, timeout_s: float = 0, policy: Optional[str] = None,
                 cluster: Optional[str] = None, device: Optional[str] = None, plan: Optional[str] = None,
                 wire: Optional[str] = None, who: Optional[Identity] = None, **counts: int):
        self._options = _lib.EngineOptions(  # its strings must live until start
            transport=_transport_options(transport, timeout_s, who), policy=encode(policy), cluster=encode(cluster),
            device=encode(device), plan=encode(plan), wire=encode(wire), **counts)
        super().__init__(lib.mgw_engine_open(self._options))
        _open.add(self)

    def on_reshard(self, function: Callable[[], None]) -> None:
        """Before start. When shards move, the function is called within begin or set_policy, and moves the arrays."""
        def call(context, before, before_count, after, after_count, error):
            try:
                function()
                return 0
            except BaseException as raised:
                said = raised if isinstance(raised, _lib.Error) else f"{type(raised).__name__}: {raised}"
                error[0] = _lib.ErrorStruct(_lib.ERR_PEER, str(said).encode()[:_lib.ERROR_MAX - 1])
                return _lib.ERR_PEER

        self._on_reshard = _lib.OnReshard(call)  # lives as long as the engine
        lib.mgw_engine_on_reshard(self, self._on_reshard, None)

    def ready(self, number: int) -> None:
        quick.mgw_engine_ready(self._address or self._live, number)

    def ready_on(self, number: int, stream: int) -> None:
        """On a device: the work on the stream so far includes the gradient."""
        quick.mgw_engine_ready_on(self._address or self._live, number, stream)

    def ready_all(self, numbers, count: int, at_s, sources=None, stream: Optional[int] = None) -> None:
        """Several gradients are ready. Arrays: their numbers, by tensor when each was ready, and addresses, unless all are
        in place."""
        quick.mgw_engine_ready_all(self._address or self._live, numbers, count, at_s, sources, stream)

    def mark(self, number: int, stream: int) -> None:
        """On a device, for a sampled tensor: the gradient is ready, but will be reported later."""
        quick.mgw_engine_mark(self._address or self._live, number, stream)

    def operations(self) -> Tuple[Any, int, int]:
        """The operations of this step as a C array, their count, and a number that changes whenever they do; between steps
        those of the next step, and 0."""
        return lib.mgw_engine_operations(self)

    def plan(self) -> Tuple[Any, int]:
        """The operations of this step, or between steps of the next, as a C array, and their count."""
        return self.operations()[:2]

    samples = lib.mgw_engine_samples  # (n, share): this step times tensors k with k % n == share; n = 0: none

    def ready_at(self, number: int, source: int, stream: int) -> None:
        """A gradient at `source` is ready: it is copied to its place, on a device on that stream."""
        quick.mgw_engine_ready_at(self._address or self._live, number, source, stream)
