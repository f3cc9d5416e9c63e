"""Traces, clusters and plans: the planner's inputs and outputs. PyTorch is not needed."""

import ctypes
import json
from collections import namedtuple
from typing import Any, Dict, List, Optional, Sequence, Tuple, Union

from . import _lib
from ._lib import lib


# One collective over tensors first .. first+count-1 in ready order; seconds from the start of the forward pass. `kind` is
# one of _lib.COLLECTIVES; `release`, when it may start, one of _lib.RELEASES.
Operation = namedtuple("Operation", [name for name, _ in _lib.OperationStruct._fields_])


class _Object(_lib.Object):
    """A C object that can be read from and written to a file."""

    @classmethod
    def load(cls, path_or_name):
        """Reads a file, or built-in data of that name."""
        return cls(getattr(lib, f"{cls._kind}_load")(path_or_name))

    @classmethod
    def parse(cls, text: str, origin: Optional[str] = None):
        data = text.encode()
        return cls(getattr(lib, f"{cls._kind}_parse")(origin or cls.__name__.lower(), data, len(data)))

    @classmethod
    def of(cls, given):
        """Converts `given`: an object is returned as it is, a dictionary is parsed as file content, anything else is a path
        or a built-in name."""
        if isinstance(given, cls):
            return given
        return cls.parse(json.dumps(given)) if isinstance(given, dict) else cls.load(given)

    @classmethod
    def copy(cls, address: Optional[int]):
        """Copies an object by its address; None if that is null."""
        return cls.parse(cls._written(address)) if address else None

    @classmethod
    def _written(cls, what) -> str:
        with _lib.written(cls._kind, what) as text:
            return ctypes.string_at(text.data, text.size).decode()

    def json(self) -> str:
        """The file content: see docs/reference/formats.md."""
        return self._written(self)

    def dict(self) -> Dict[str, Any]:
        return json.loads(self.json())

    def save(self, path) -> None:
        """Writes the file atomically."""
        with _lib.written(self._kind, self) as text:
            lib.mgw_text_save(text, path)


class Trace(_Object, kind="mgw_trace"):
    """A model: its gradients in the order in which they become ready, and how long each takes.

    >>> Trace.load("resnet50-b32-fp32-h200").tensor_count
    161
    >>> Trace.create("two", ["b", "a"], counts=[10, 20], backward_s=[0.001, 0.002]).compute_s
    0.003
    """

    @classmethod
    def create(cls, model: str, names: Sequence[str], counts: Sequence[int], backward_s: Sequence[float],
               forward_s: float = 0.0, dtype: str = "f32", **about: Any) -> "Trace":
        """Creates a trace from lists in ready order; `backward_s` is the time since the previous tensor was ready. `about`
        are further members of the file: batch, precision, device."""
        if not len(names) == len(counts) == len(backward_s):
            raise ValueError("names, counts and backward_s must have the same length")
        tensors = [{"name": name, "count": int(count), "backward_s": float(seconds)}
                   for name, count, seconds in zip(names, counts, backward_s)]
        return cls.of({"format": "mgwfbp-trace-1", "model": model, "device": "unknown", "batch": 1,
                       "precision": "unknown", "gradient_dtype": dtype, "forward_s": float(forward_s),
                       "tensors": tensors, **about})

    def _each(self, what: str) -> list:
        return [tensor[what] for tensor in self.dict()["tensors"]]

    names = property(lambda self: self._each("name"))
    backward_s = property(lambda self: self._each("backward_s"))
    tensor_count = property(lambda self: len(self.names))
    forward_s = property(lambda self: self.dict()["forward_s"])
    compute_s = property(lambda self: self.forward_s + sum(self.backward_s))

    @property
    def bytes(self) -> List[int]:
        width = _lib.DTYPE_BYTES[self.dict()["gradient_dtype"]]
        return [count * width for count in self._each("count")]


class Cluster(_Object, kind="mgw_cluster"):
    """The cost of collectives among a number of workers.

    >>> cluster = Cluster.line("10GbE", workers=16, a_s=9.08e-4, b_s_per_byte=7.4e-10)
    >>> round(cluster.seconds(1 << 20) * 1e3, 3)
    1.684
    """

    name = property(lambda self: self.cost.cluster.decode())
    workers = property(lambda self: self.cost.workers)
    a_s = property(lambda self: self.cost.of[0].a_s)
    b_s_per_byte = property(lambda self: self.cost.of[0].b_s_per_byte)

    @classmethod
    def line(cls, name: str, workers: int, a_s: float, b_s_per_byte: float) -> "Cluster":
        """T(M) = a + b*M."""
        return cls.of({"format": "mgwfbp-cluster-1", "name": name, "workers": workers,
                       "cost": {"a_s": a_s, "b_s_per_byte": b_s_per_byte}})

    @property
    def cost(self) -> _lib.Cost:
        """The C struct, which borrows from this cluster."""
        cost = lib.mgw_cluster_cost(self)
        cost._keeps = self
        return cost

    @property
    def beside(self) -> Tuple[float, float]:
        """How many times as long messages and computation take while both run."""
        beside = self.cost.beside
        return beside.message, beside.compute

    def fitted(self) -> "Cluster":
        """This cluster with a + b*M in place of a measured curve."""
        message, compute = self.beside
        return Cluster.of({**Cluster.line(self.name, self.workers, self.a_s, self.b_s_per_byte).dict(),
                           "beside": {"message": message, "compute": compute}})

    def seconds(self, bytes: int, kind: str = "all-reduce") -> float:
        """T(bytes) of that kind of collective."""
        return lib.mgw_cost_seconds(self.cost, kind, int(bytes))


class Plan(_Object, kind="mgw_plan"):
    """Which neighbouring gradients are sent together, and the predicted times."""

    _struct = property(lambda self: _lib.PlanStruct.from_address(self._live))
    policy = property(lambda self: self._struct.policy.decode())
    message_count = property(lambda self: self._struct.operation_count)  # per step
    compute_s = property(lambda self: self._struct.compute_s)
    iteration_s = property(lambda self: self._struct.iteration_s)
    exposed_s = property(lambda self: self._struct.exposed_s)
    lower_bound_s = property(lambda self: self._struct.lower_bound_s)

    @property
    def operations(self) -> List[Operation]:
        """In the order in which every worker starts them."""
        struct = self._struct
        return [Operation(_lib.COLLECTIVES[o.kind], _lib.RELEASES[o.release],
                          *[getattr(o, field) for field in Operation._fields[2:-2]], _lib.WIRES[o.wire], o.lanes)
                for o in struct.operations[:struct.operation_count]]

    @property
    def groups(self) -> List[List[str]]:
        """The names of the tensors of each operation."""
        return [[lib.mgw_plan_tensor_name(self, i) for i in range(m.first, m.first + m.count)] for m in self.operations]

    def time(self, trace: "TraceLike", cluster: "ClusterLike") -> "Plan":
        """Predicts this plan's times again, for other computation times or another cluster."""
        lib.mgw_plan_time(self, Trace.of(trace), Cluster.of(cluster).cost)
        return self


TraceLike = Union[Trace, str, Dict[str, Any]]
ClusterLike = Union[Cluster, str, Dict[str, Any]]


def policies() -> List[str]:
    """The policies that comparisons show."""
    listed, count = lib.mgw_policy_list()
    room = ctypes.create_string_buffer(64)
    return [lib.mgw_policy_name(listed[i], room) for i in range(count)]


def plan(trace: TraceLike, cluster: ClusterLike, policy: str = "optimal") -> Plan:
    """Plans the messages of a model on a cluster.

    >>> best = plan("resnet50-b32-fp32-h200", "paper-2-10gbe")
    >>> best.message_count, round(best.iteration_s * 1e3, 1)
    (2, 83.9)
    """
    return Plan(lib.mgw_plan_make(Trace.of(trace), Cluster.of(cluster).cost, lib.mgw_policy_parse(policy)))


def advise_buckets(trace: TraceLike, cluster: ClusterLike) -> Tuple[float, float]:
    """The bucket_cap_mb to advise for PyTorch's DDP (2.4 and later), and the predicted time of a step with it.

    >>> advise_buckets("googlenet-b64-fp32-h200", "paper-2-10gbe")[0]
    9.0
    """
    return lib.mgw_advise_buckets(Trace.of(trace), Cluster.of(cluster).cost)


def compare(trace: TraceLike, cluster: ClusterLike, names: Optional[Sequence[str]] = None) -> List[Plan]:
    """A plan by each policy: all that `policies` lists, or those named."""
    trace, cluster = Trace.of(trace), Cluster.of(cluster)
    return [plan(trace, cluster, name) for name in (policies() if names is None else names)]
