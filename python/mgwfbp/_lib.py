"""libmgwfbp by ctypes: finds the library, and declares its structs and functions once, in tables.

Everything else in the package calls the functions through `lib`, and turns a failure into an Error with `check`.
"""

import ctypes
import os
from ctypes import (CFUNCTYPE, POINTER, Structure, byref, c_bool, c_char, c_char_p, c_double, c_int, c_size_t,
                    c_uint, c_uint64, c_void_p)
from pathlib import Path
from typing import Any, Optional

VERSION = "0.1.0"


class Error(RuntimeError):
    """What the library reports: `status` is its code, the text says what went wrong and where."""

    def __init__(self, message: str, status: int = 0):
        super().__init__(message)
        self.status = status


# ---- Structs, as in include/mgwfbp/ (tests/torch/test_library.py compares them with the C compiler's) ----


COLLECTIVES = ("all-reduce", "reduce-scatter", "all-gather", "push", "pull")  # mgw_collective, in order
RELEASES = ("when-ready", "after-backward", "after-update")  # mgw_release, in order
DTYPES = ("f32", "f16", "bf16", "f64")  # mgw_dtype, in order
DTYPE_BYTES = {"f32": 4, "f16": 2, "bf16": 2, "f64": 8}
OPERATIONS = {"average": 0, "sum": 1, "max": 2}  # mgw_op
TIME_UNKNOWN = -1.0
ERROR_MAX = 512
ERR_PEER = -7  # mgw_status


def _struct(name: str, /, **fields) -> Any:
    return type(name, (Structure,), {"_fields_": list(fields.items())})


ErrorStruct = _struct("mgw_error", status=c_int, message=c_char * ERROR_MAX)
Text = _struct("mgw_text", data=c_void_p, size=c_size_t, capacity=c_size_t, failed=c_bool)
Sample = _struct("mgw_sample", bytes=c_uint64, seconds=c_double)
Line = _struct("mgw_line", a_s=c_double, b_s_per_byte=c_double)
Fit = _struct("mgw_fit", line=Line, r2=c_double, max_relative_error=c_double, worst_bytes=c_uint64)
Curve = _struct("mgw_curve", a_s=c_double, b_s_per_byte=c_double, sample_count=c_size_t, samples=POINTER(Sample))
Cost = _struct("mgw_cost", of=Curve * len(COLLECTIVES), workers=c_uint, cluster=c_char_p, worth_s=c_double)
Tensor = _struct("mgw_tensor", count=c_uint64, backward_s=c_double, forward_start_s=c_double)
TraceStruct = _struct(
    "mgw_trace", model=c_void_p, device=c_void_p, precision=c_void_p, batch=c_uint64, gradient_dtype=c_int,
    parameter_dtype=c_int, forward_s=c_double, tensor_count=c_size_t, tensors=POINTER(Tensor), names=c_void_p, extra=c_void_p)
Policy = _struct("mgw_policy", kind=c_int, first_bytes=c_uint64, cap_bytes=c_uint64)
OperationStruct = _struct(
    "mgw_operation", kind=c_int, release=c_int, first=c_size_t, count=c_size_t, bytes=c_uint64, ready_s=c_double,
    start_s=c_double, end_s=c_double)
Stall = _struct("mgw_stall", tensor=c_size_t, start_s=c_double, end_s=c_double)
PlanStruct = _struct(
    "mgw_plan", policy=c_char_p, model=c_char_p, cluster=c_char_p, workers=c_uint, operation_count=c_size_t,
    operations=POINTER(OperationStruct), names=c_void_p, forward_s=c_double, compute_s=c_double, iteration_s=c_double,
    exposed_s=c_double, lower_bound_s=c_double, overlaps_forward=c_bool, stall_count=c_size_t, stalls=POINTER(Stall))
TransportOptions = _struct(
    "mgw_transport_options", name=c_char_p, rank=c_uint, size=c_uint, job=c_char_p, timeout_s=c_double,
    on_device=c_bool)
EngineOptions = _struct(
    "mgw_engine_options", transport=TransportOptions, policy=c_char_p, cluster=c_char_p, profile_steps=c_int,
    replan_steps=c_int, replan_percent=c_int, wire=c_char_p, device=c_char_p, servers=c_int, op=c_int,
    zero_unused=c_bool)
EngineStatistics = _struct(
    "mgw_engine_statistics", steps=c_uint64, plans=c_uint64, tensors=c_size_t, messages=c_size_t,
    arena_bytes=c_uint64, extra_bytes=c_uint64, copied_bytes=c_uint64, device_waits=c_uint64, iteration_s=c_double,
    compute_s=c_double, exposed_s=c_double, predicted_s=c_double, slowdown=c_double)

_error, _object, _out, _text = POINTER(ErrorStruct), c_void_p, POINTER(c_void_p), POINTER(Text)
Combine = CFUNCTYPE(c_int, c_void_p, POINTER(c_double), c_size_t, c_size_t, _error)
Tell = CFUNCTYPE(c_int, c_void_p, c_void_p, c_size_t, _error)
Time = CFUNCTYPE(c_int, c_void_p, c_int, c_uint64, POINTER(c_double), _error)
Exchange = _struct("mgw_exchange", context=c_void_p, rank=c_uint, size=c_uint, combine=Combine, tell=Tell)
Calibration = _struct(
    "mgw_calibration", name=c_char_p, least_bytes=c_uint64, most_bytes=c_uint64, factor=c_uint, repeats=c_uint,
    enough_s=c_double, kinds=c_uint, keeps_samples=c_bool, context=c_void_p, time=Time)
TunerOptions = _struct(
    "mgw_tuner_options", policy=c_char_p, profile_steps=c_int, replan_steps=c_int, replan_percent=c_int,
    early_looks=c_int, sampled=c_int, whole_steps=c_bool, crowd=c_double, size=c_uint)
StepRecord = _struct(
    "mgw_step_record", late_s=c_double, compute_s=c_double, iteration_s=c_double, ready_s=POINTER(c_double),
    took_s=POINTER(c_double), busy_s=POINTER(c_double))
TunerStatistics = _struct(
    "mgw_tuner_statistics", steps=c_uint64, plans=c_uint64, iteration_s=c_double, compute_s=c_double,
    slowdown=c_double, worth_s=c_double)

# ---- Functions: result, arguments, names ----

_plain = (
    (c_char_p, [], "mgw_version"),
    (None, [_text], "mgw_text_init mgw_text_fini"),
    (None, [_object], "mgw_trace_destroy mgw_cluster_destroy mgw_plan_destroy mgw_transport_close mgw_engine_close "
                      "mgw_flow_destroy mgw_layout_destroy mgw_tuner_destroy mgw_tuner_count"),
    (None, [_object, _text], "mgw_trace_write mgw_cluster_write mgw_plan_write"),
    (_object, [_object], "mgw_engine_plan mgw_engine_cluster mgw_engine_trace mgw_tuner_cluster mgw_tuner_trace"),
    (c_char_p, [_object, c_size_t], "mgw_trace_tensor_name mgw_plan_tensor_name"),
    (None, [_object, POINTER(Cost)], "mgw_cluster_cost"),
    (c_double, [POINTER(Cost), c_int, c_uint64], "mgw_cost_seconds"),
    (c_char_p, [POINTER(Policy), c_char_p], "mgw_policy_name"),
    (POINTER(Policy), [POINTER(c_size_t)], "mgw_policy_list"),
    (c_char_p, [_object], "mgw_transport_name"),
    (c_uint, [_object], "mgw_transport_rank mgw_transport_size"),
    (c_void_p, [_object, c_uint], "mgw_engine_gradient"),
    (None, [_object, c_void_p], "mgw_engine_set_stream"),
    (None, [_object, POINTER(EngineStatistics)], "mgw_engine_measure"),
    (POINTER(c_double), [_object], "mgw_flow_ready_times"),
    (c_size_t, [_object, c_size_t], "mgw_layout_offset"),
    (c_size_t, [_object, c_int], "mgw_layout_length"),
    (None, [_object, c_size_t, c_size_t, c_int, POINTER(c_size_t), POINTER(c_size_t)], "mgw_layout_slice"),
    (POINTER(OperationStruct), [_object, POINTER(c_size_t)], "mgw_tuner_operations"),
    (None, [_object, POINTER(StepRecord)], "mgw_tuner_observe"),
    (c_bool, [_object], "mgw_tuner_due mgw_tuner_watches"),
    (None, [_object, POINTER(TunerStatistics)], "mgw_tuner_measure"),
)
_checked = (  # these end in an mgw_error, and return its status
    ([_text, c_char_p], "mgw_text_save"),
    ([c_char_p, _out], "mgw_trace_load mgw_cluster_load"),
    ([c_char_p, c_char_p, c_size_t, _out], "mgw_trace_parse mgw_cluster_parse"),
    ([c_char_p, c_int, c_double, c_size_t, POINTER(c_char_p), POINTER(Tensor), _out], "mgw_trace_create"),
    ([c_char_p, c_uint, POINTER(Line), _out], "mgw_cluster_from_line"),
    ([POINTER(Sample), c_size_t, POINTER(Fit)], "mgw_fit_line"),
    ([c_char_p, POINTER(Policy)], "mgw_policy_parse"),
    ([_object, POINTER(Cost), POINTER(Policy), _out], "mgw_plan_make"),
    ([_object, _object, POINTER(Cost)], "mgw_plan_time"),
    ([POINTER(TransportOptions), _out], "mgw_transport_open"),
    ([_object, c_void_p, c_size_t, c_int, c_int], "mgw_transport_all_reduce"),
    ([_object, c_void_p, c_size_t, c_uint], "mgw_transport_broadcast"),
    ([POINTER(EngineOptions), _out], "mgw_engine_open"),
    ([_object, c_char_p, c_size_t, c_int, POINTER(c_uint)], "mgw_engine_add"),
    ([_object], "mgw_engine_start mgw_engine_begin mgw_engine_wait"),
    ([_object, c_void_p, c_size_t], "mgw_engine_broadcast"),
    ([_object, c_char_p], "mgw_engine_set_policy mgw_tuner_set_policy"),
    ([c_size_t, _out], "mgw_flow_create"),
    ([_object, POINTER(OperationStruct), c_size_t], "mgw_flow_adopt"),
    ([_object, c_double], "mgw_flow_begin"),
    ([c_size_t, POINTER(c_size_t), POINTER(c_int), _out], "mgw_layout_create"),
    ([POINTER(Calibration), POINTER(Exchange), _out], "mgw_calibrate"),
    ([POINTER(TunerOptions), c_size_t, POINTER(c_char_p), POINTER(c_uint64), _object, _out], "mgw_tuner_create"),
    ([_object, POINTER(Exchange), c_bool, POINTER(c_bool)], "mgw_tuner_look"),
)


def _candidates():
    """Where the library may be: as told, in the package, where it was when that was installed, where the system looks."""
    told = os.environ.get("MGWFBP_LIBRARY")
    if told:
        return [told]
    package = Path(__file__).parent
    inside = [package / "libmgwfbp.so"]
    if (package / "library.txt").exists():
        inside.append(Path((package / "library.txt").read_text().strip()))
    return [str(file) for file in inside if file.exists()] + ["libmgwfbp.so.0"]


def _load():
    failures = []
    for path in _candidates():
        try:
            return ctypes.CDLL(path), path
        except OSError as error:
            failures.append(str(error))
    raise ImportError("libmgwfbp was not found: build it with CMake and install it, or name the file in "
                      "MGWFBP_LIBRARY. Tried: " + "; ".join(failures))


lib, path = _load()
lib.mgw_version.restype = c_char_p
_found = lib.mgw_version().decode()
if _found.split(".")[:2] != VERSION.split(".")[:2]:
    raise ImportError(f"{path} is version {_found}, this package is {VERSION}: install both from the same source")
for _result, _arguments, _names in _plain + tuple((c_int, [*a, _error], names) for a, names in _checked):
    for _name in _names.split():
        getattr(lib, _name).restype, getattr(lib, _name).argtypes = _result, _arguments

# Called for every gradient or message: they never block, so holding the interpreter's lock is cheaper than giving it away.
_held = ctypes.PyDLL(path)
engine_ready, engine_ready_on, engine_ready_at = (_held.mgw_engine_ready, _held.mgw_engine_ready_on,
                                                  _held.mgw_engine_ready_at)
engine_ready.restype, engine_ready.argtypes = None, [_object, c_uint]
engine_ready_on.restype, engine_ready_on.argtypes = None, [_object, c_uint, c_void_p]
engine_ready_at.restype, engine_ready_at.argtypes = None, [_object, c_uint, c_void_p, c_void_p]
flow_ready, flow_next, flow_done = _held.mgw_flow_ready, _held.mgw_flow_next, _held.mgw_flow_done
flow_ready.restype = c_bool  # no types of arguments: it takes ctypes' own objects, which need no conversion
flow_next.restype, flow_next.argtypes = c_bool, [_object, POINTER(c_size_t)]
flow_done.restype, flow_done.argtypes = None, [_object, c_size_t, c_double, c_double]


def check(function, *arguments) -> None:
    """Calls a checked function; a failure becomes an Error."""
    error = ErrorStruct()
    if function(*arguments, byref(error)):
        raise Error(error.message.decode("utf-8", "replace"), error.status)


def make(function, *arguments) -> int:
    """Calls a checked function that makes an object, and returns its address."""
    out = c_void_p()
    check(function, *arguments, byref(out))
    return out.value


class Object:
    """Owns a C object, until it is closed."""

    _destroy: Any
    _address: Optional[int] = None

    def __init__(self, address: Optional[int]):
        self._address = address

    @property
    def _live(self) -> int:
        if self._address is None:
            raise Error(f"{type(self).__name__.lower()}: it was closed")
        return self._address

    def close(self) -> None:
        address, self._address = self._address, None
        if address:
            type(self)._destroy(address)

    def __del__(self):
        self.close()


def encode(text):
    """A C string, or null for None."""
    return None if text is None else os.fspath(text).encode()


def written(function, address: int) -> str:
    """What one of the mgw_*_write functions writes."""
    text = Text()
    lib.mgw_text_init(byref(text))
    function(address, byref(text))
    try:
        if text.failed:
            raise Error("out of memory")
        return ctypes.string_at(text.data, text.size).decode()
    finally:
        lib.mgw_text_fini(byref(text))
