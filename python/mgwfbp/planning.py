"""Traces, clusters and plans: what the planner takes and gives. PyTorch is not needed."""

import ctypes
import json
from ctypes import byref
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple, Union

from . import _lib
from ._lib import check, encode, lib, make


class Operation(NamedTuple):
    """One collective over tensors first .. first+count-1 in ready order; seconds from the start of the forward pass."""

    kind: str  # "all-reduce", "reduce-scatter", "all-gather", "push" or "pull"
    release: str  # when it may start: "when-ready", "after-backward" or "after-update"
    first: int
    count: int
    bytes: int
    ready_s: float
    start_s: float
    end_s: float


class _Object(_lib.Object):
    """A C object that is the content of a file."""

    _kind: str  # what C calls it
    _write: Any

    @classmethod
    def load(cls, path_or_name):
        """A file, or one of those that come with the library."""
        return cls(make(getattr(lib, f"{cls._kind}_load"), encode(path_or_name)))

    @classmethod
    def parse(cls, text: str, origin: Optional[str] = None):
        data = text.encode()
        return cls(make(getattr(lib, f"{cls._kind}_parse"), encode(origin or cls.__name__.lower()), data, len(data)))

    @classmethod
    def of(cls, given):
        """An object as it is; a dictionary as in a file; else a file or built-in name."""
        if isinstance(given, cls):
            return given
        return cls.parse(json.dumps(given)) if isinstance(given, dict) else cls.load(given)

    def json(self) -> str:
        """As it stands in a file: see docs/formats.md."""
        return _lib.written(type(self)._write, self._address)

    def dict(self) -> Dict[str, Any]:
        return json.loads(self.json())

    def save(self, path) -> None:
        """Writes the file, all or nothing."""
        text = _lib.Text()
        lib.mgw_text_init(byref(text))
        type(self)._write(self._address, byref(text))
        try:
            check(lib.mgw_text_save, byref(text), encode(path))
        finally:
            lib.mgw_text_fini(byref(text))


def _field(name: str) -> property:
    """Of the C struct."""
    return property(lambda self: getattr(self._struct, name))


class Trace(_Object):
    """A model: its gradients in the order in which they become ready, and how long each takes.

    >>> Trace.load("resnet50-b32-fp32-h200").tensor_count
    161
    >>> Trace.create("two", ["b", "a"], counts=[10, 20], backward_s=[0.001, 0.002]).compute_s
    0.003
    """

    _kind, _destroy = "mgw_trace", lib.mgw_trace_destroy
    _write = lib.mgw_trace_write

    @classmethod
    def create(cls, model: str, names: Sequence[str], counts: Sequence[int], backward_s: Sequence[float],
               forward_s: float = 0.0, dtype: str = "f32") -> "Trace":
        """From lists in ready order; `backward_s` is the time since the tensor before was ready."""
        n = len(names)
        if not n == len(counts) == len(backward_s):
            raise ValueError("names, counts and backward_s must be of one length")
        tensors = (_lib.Tensor * n)(*[_lib.Tensor(int(c), float(b), _lib.TIME_UNKNOWN)
                                      for c, b in zip(counts, backward_s)])
        texts = (ctypes.c_char_p * n)(*[name.encode() for name in names])
        return cls(make(lib.mgw_trace_create, encode(model), _lib.DTYPES.index(dtype), float(forward_s), n, texts,
                        tensors))

    @property
    def _struct(self) -> _lib.TraceStruct:
        return _lib.TraceStruct.from_address(self._address)

    tensor_count, forward_s = _field("tensor_count"), _field("forward_s")

    @property
    def names(self) -> List[str]:
        return [lib.mgw_trace_tensor_name(self._address, i).decode() for i in range(self.tensor_count)]

    @property
    def backward_s(self) -> List[float]:
        struct = self._struct
        return [struct.tensors[i].backward_s for i in range(struct.tensor_count)]

    @property
    def bytes(self) -> List[int]:
        struct = self._struct
        width = _lib.DTYPE_BYTES[_lib.DTYPES[struct.gradient_dtype]]
        return [struct.tensors[i].count * width for i in range(struct.tensor_count)]

    @property
    def compute_s(self) -> float:
        return self.forward_s + sum(self.backward_s)


class Cluster(_Object):
    """What a collective costs among that many workers.

    >>> cluster = Cluster.line("10GbE", workers=16, a_s=9.08e-4, b_s_per_byte=7.4e-10)
    >>> round(cluster.seconds(1 << 20) * 1e3, 3)
    1.684
    """

    _kind, _destroy = "mgw_cluster", lib.mgw_cluster_destroy
    _write = lib.mgw_cluster_write

    @classmethod
    def line(cls, name: str, workers: int, a_s: float, b_s_per_byte: float) -> "Cluster":
        """T(M) = a + b*M."""
        return cls(make(lib.mgw_cluster_from_line, encode(name), workers, byref(_lib.Line(a_s, b_s_per_byte))))

    @classmethod
    def fit(cls, name: str, workers: int, samples: Sequence[Tuple[int, float]]) -> "Cluster":
        """The a and b closest to measured (bytes, seconds), in relative terms."""
        array = (_lib.Sample * len(samples))(*[_lib.Sample(int(b), float(s)) for b, s in samples])
        fit = _lib.Fit()
        check(lib.mgw_fit_line, array, len(samples), byref(fit))
        return cls.line(name, workers, fit.line.a_s, fit.line.b_s_per_byte)

    @property
    def cost(self) -> _lib.Cost:
        """Borrows from this cluster."""
        cost = _lib.Cost()
        lib.mgw_cluster_cost(self._address, byref(cost))
        cost._keeps = self
        return cost

    def slower(self, factor: float) -> "Cluster":
        """As it is where collectives take so many times as long."""
        return Cluster.line(self.name, self.workers, self.a_s * factor, self.b_s_per_byte * factor)

    @property
    def a_s(self) -> float:
        return self.cost.of[0].a_s

    @property
    def b_s_per_byte(self) -> float:
        return self.cost.of[0].b_s_per_byte

    @property
    def name(self) -> str:
        return self.cost.cluster.decode()

    @property
    def workers(self) -> int:
        return self.cost.workers

    def seconds(self, bytes: int, kind: str = "all-reduce") -> float:
        """T(bytes) of that kind of collective."""
        return lib.mgw_cost_seconds(byref(self.cost), _lib.COLLECTIVES.index(kind), int(bytes))


class Plan(_Object):
    """Which neighbouring gradients travel together, and what that promises."""

    _destroy = lib.mgw_plan_destroy
    _write = lib.mgw_plan_write

    @property
    def _struct(self) -> _lib.PlanStruct:
        return _lib.PlanStruct.from_address(self._address)

    @property
    def policy(self) -> str:
        return self._struct.policy.decode()

    @property
    def operations(self) -> List[Operation]:
        """In the order in which every worker starts them."""
        struct = self._struct
        return [Operation(_lib.COLLECTIVES[o.kind], _lib.RELEASES[o.release],
                          *[getattr(o, field) for field in Operation._fields[2:]])
                for o in struct.operations[:struct.operation_count]]

    @property
    def message_count(self) -> int:
        """How many operations a step makes: what tables call messages."""
        return self._struct.operation_count

    compute_s, iteration_s = _field("compute_s"), _field("iteration_s")
    exposed_s, lower_bound_s = _field("exposed_s"), _field("lower_bound_s")

    @property
    def groups(self) -> List[List[str]]:
        """The names of the tensors of each operation."""
        return [[lib.mgw_plan_tensor_name(self._address, i).decode()
                 for i in range(m.first, m.first + m.count)] for m in self.operations]

    def time(self, trace: "TraceLike", cluster: "ClusterLike") -> "Plan":
        """Predicts this plan's times anew, for other times of computation or another cluster."""
        trace, cost = Trace.of(trace), Cluster.of(cluster).cost
        check(lib.mgw_plan_time, self._address, trace._address, byref(cost))
        return self


TraceLike = Union[Trace, str, Dict[str, Any]]
ClusterLike = Union[Cluster, str, Dict[str, Any]]


def _policy(name: str) -> _lib.Policy:
    policy = _lib.Policy()
    check(lib.mgw_policy_parse, encode(name), byref(policy))
    return policy


def policies() -> List[str]:
    """The policies that comparisons show."""
    count = ctypes.c_size_t()
    listed = lib.mgw_policy_list(byref(count))
    room = ctypes.create_string_buffer(64)
    return [lib.mgw_policy_name(byref(listed[i]), room).decode() for i in range(count.value)]


def plan(trace: TraceLike, cluster: ClusterLike, policy: str = "optimal") -> Plan:
    """Plans the messages of a model on a cluster.

    >>> best = plan("resnet50-b32-fp32-h200", "paper-2-10gbe")
    >>> best.message_count, round(best.iteration_s * 1e3, 1)
    (2, 83.9)
    """
    trace, cluster = Trace.of(trace), Cluster.of(cluster)
    return Plan(make(lib.mgw_plan_make, trace._address, byref(cluster.cost), byref(_policy(policy))))


def compare(trace: TraceLike, cluster: ClusterLike, names: Optional[Sequence[str]] = None) -> List[Plan]:
    """A plan by each policy: all that `policies` lists, or those named."""
    trace, cluster = Trace.of(trace), Cluster.of(cluster)
    return [plan(trace, cluster, name) for name in (policies() if names is None else names)]
