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


ERROR_MAX = 512


class ErrorStruct(Structure):
    _fields_ = [("status", c_int), ("message", c_char * ERROR_MAX)]


class Text(Structure):
    _fields_ = [("data", c_void_p), ("size", c_size_t), ("capacity", c_size_t), ("failed", c_bool)]


class Sample(Structure):
    _fields_ = [("bytes", c_uint64), ("seconds", c_double)]


class Line(Structure):
    _fields_ = [("a_s", c_double), ("b_s_per_byte", c_double)]


class Fit(Structure):
    _fields_ = [("line", Line), ("r2", c_double), ("max_relative_error", c_double), ("worst_bytes", c_uint64)]


COLLECTIVES = ("all-reduce", "reduce-scatter", "all-gather", "push", "pull")  # mgw_collective, in order
RELEASES = ("when-ready", "after-backward", "after-update")  # mgw_release, in order


class Curve(Structure):
    _fields_ = [("a_s", c_double), ("b_s_per_byte", c_double), ("sample_count", c_size_t),
                ("samples", POINTER(Sample))]


class Cost(Structure):
    _fields_ = [("of", Curve * len(COLLECTIVES)), ("workers", c_uint), ("cluster", c_char_p), ("worth_s", c_double)]


class Tensor(Structure):
    _fields_ = [("count", c_uint64), ("backward_s", c_double), ("forward_start_s", c_double)]


class TraceStruct(Structure):
    _fields_ = [("model", c_void_p), ("device", c_void_p), ("precision", c_void_p), ("batch", c_uint64),
                ("gradient_dtype", c_int), ("forward_s", c_double), ("tensor_count", c_size_t),
                ("tensors", POINTER(Tensor)), ("names", c_void_p), ("extra", c_void_p)]


class Policy(Structure):
    _fields_ = [("kind", c_int), ("first_bytes", c_uint64), ("cap_bytes", c_uint64)]


class OperationStruct(Structure):
    _fields_ = [("kind", c_int), ("release", c_int), ("first", c_size_t), ("count", c_size_t), ("bytes", c_uint64),
                ("ready_s", c_double), ("start_s", c_double), ("end_s", c_double)]


class PlanStruct(Structure):
    _fields_ = [("policy", c_char_p), ("model", c_char_p), ("cluster", c_char_p), ("workers", c_uint),
                ("operation_count", c_size_t), ("operations", POINTER(OperationStruct)), ("names", c_void_p),
                ("forward_s", c_double), ("compute_s", c_double), ("iteration_s", c_double),
                ("exposed_s", c_double), ("lower_bound_s", c_double)]


class TransportOptions(Structure):
    _fields_ = [("name", c_char_p), ("rank", c_uint), ("size", c_uint), ("job", c_char_p), ("timeout_s", c_double),
                ("on_device", c_bool)]


class EngineOptions(Structure):
    _fields_ = [("transport", TransportOptions), ("policy", c_char_p), ("cluster", c_char_p),
                ("profile_steps", c_int), ("replan_steps", c_int), ("replan_percent", c_int), ("wire", c_char_p),
                ("device", c_char_p),
                ("servers", c_int), ("op", c_int), ("zero_unused", c_bool)]


class EngineStatistics(Structure):
    _fields_ = [("steps", c_uint64), ("plans", c_uint64), ("tensors", c_size_t), ("messages", c_size_t),
                ("arena_bytes", c_uint64), ("extra_bytes", c_uint64), ("copied_bytes", c_uint64),
                ("device_waits", c_uint64),
                ("iteration_s", c_double), ("compute_s", c_double), ("exposed_s", c_double),
                ("predicted_s", c_double), ("slowdown", c_double)]


ERR_PEER = -7  # mgw_status
_error = POINTER(ErrorStruct)
Combine = CFUNCTYPE(c_int, c_void_p, POINTER(c_double), c_size_t, c_size_t, _error)
Tell = CFUNCTYPE(c_int, c_void_p, c_void_p, c_size_t, _error)
Time = CFUNCTYPE(c_int, c_void_p, c_int, c_uint64, POINTER(c_double), _error)


class Exchange(Structure):
    _fields_ = [("context", c_void_p), ("rank", c_uint), ("size", c_uint), ("combine", Combine), ("tell", Tell)]


class Calibration(Structure):
    _fields_ = [("name", c_char_p), ("least_bytes", c_uint64), ("most_bytes", c_uint64), ("factor", c_uint),
                ("repeats", c_uint), ("enough_s", c_double), ("kinds", c_uint), ("keeps_samples", c_bool),
                ("context", c_void_p), ("time", Time)]


class TunerOptions(Structure):
    _fields_ = [("policy", c_char_p), ("profile_steps", c_int), ("replan_steps", c_int), ("replan_percent", c_int),
                ("early_looks", c_int), ("sampled", c_int), ("whole_steps", c_bool), ("crowd", c_double),
                ("size", c_uint)]


class StepRecord(Structure):
    _fields_ = [("late_s", c_double), ("compute_s", c_double), ("iteration_s", c_double),
                ("ready_s", POINTER(c_double)), ("took_s", POINTER(c_double)), ("busy_s", POINTER(c_double))]


class TunerStatistics(Structure):
    _fields_ = [("steps", c_uint64), ("plans", c_uint64), ("iteration_s", c_double), ("compute_s", c_double),
                ("slowdown", c_double), ("worth_s", c_double)]


DTYPES = ("f32", "f16", "bf16", "f64")  # mgw_dtype, in order
DTYPE_BYTES = {"f32": 4, "f16": 2, "bf16": 2, "f64": 8}
TIME_UNKNOWN = -1.0
OPERATIONS = {"average": 0, "sum": 1, "max": 2}  # mgw_op

# ---- Functions: name, result, arguments; "checked" ones end in an mgw_error and return its status ----

_out = POINTER(c_void_p)
_plain = {
    "mgw_version": (c_char_p, []),
    "mgw_text_init": (None, [POINTER(Text)]),
    "mgw_text_fini": (None, [POINTER(Text)]),
    "mgw_trace_destroy": (None, [c_void_p]),
    "mgw_trace_write": (None, [c_void_p, POINTER(Text)]),
    "mgw_trace_tensor_name": (c_char_p, [c_void_p, c_size_t]),
    "mgw_cluster_destroy": (None, [c_void_p]),
    "mgw_cluster_write": (None, [c_void_p, POINTER(Text)]),
    "mgw_cluster_cost": (None, [c_void_p, POINTER(Cost)]),
    "mgw_cost_seconds": (c_double, [POINTER(Cost), c_int, c_uint64]),
    "mgw_plan_destroy": (None, [c_void_p]),
    "mgw_plan_write": (None, [c_void_p, POINTER(Text)]),
    "mgw_plan_tensor_name": (c_char_p, [c_void_p, c_size_t]),
    "mgw_plan_tensor_count": (c_size_t, [c_void_p]),
    "mgw_policy_name": (c_char_p, [POINTER(Policy), c_char_p]),
    "mgw_policy_list": (POINTER(Policy), [POINTER(c_size_t)]),
    "mgw_transport_close": (None, [c_void_p]),
    "mgw_transport_name": (c_char_p, [c_void_p]),
    "mgw_transport_rank": (c_uint, [c_void_p]),
    "mgw_transport_size": (c_uint, [c_void_p]),
    "mgw_engine_close": (None, [c_void_p]),
    "mgw_engine_gradient": (c_void_p, [c_void_p, c_uint]),
    "mgw_engine_set_stream": (None, [c_void_p, c_void_p]),
    "mgw_engine_measure": (None, [c_void_p, POINTER(EngineStatistics)]),
    "mgw_engine_plan": (c_void_p, [c_void_p]),
    "mgw_engine_cluster": (c_void_p, [c_void_p]),
    "mgw_engine_trace": (c_void_p, [c_void_p]),
    "mgw_flow_destroy": (None, [c_void_p]),
    "mgw_flow_averaged": (c_bool, [c_void_p]),
    "mgw_flow_ready_times": (POINTER(c_double), [c_void_p]),
    "mgw_layout_destroy": (None, [c_void_p]),
    "mgw_layout_offset": (c_size_t, [c_void_p, c_size_t]),
    "mgw_layout_length": (c_size_t, [c_void_p, c_int]),
    "mgw_layout_slice": (None, [c_void_p, c_size_t, c_size_t, c_int, POINTER(c_size_t), POINTER(c_size_t)]),
    "mgw_tuner_destroy": (None, [c_void_p]),
    "mgw_tuner_operations": (POINTER(OperationStruct), [c_void_p, POINTER(c_size_t)]),
    "mgw_tuner_count": (None, [c_void_p]),
    "mgw_tuner_observe": (None, [c_void_p, POINTER(StepRecord)]),
    "mgw_tuner_due": (c_bool, [c_void_p]),
    "mgw_tuner_watches": (c_bool, [c_void_p]),
    "mgw_tuner_cluster": (c_void_p, [c_void_p]),
    "mgw_tuner_plan": (c_void_p, [c_void_p]),
    "mgw_tuner_trace": (c_void_p, [c_void_p]),
    "mgw_tuner_measure": (None, [c_void_p, POINTER(TunerStatistics)]),
}
_checked = {
    "mgw_text_save": [POINTER(Text), c_char_p],
    "mgw_trace_load": [c_char_p, _out],
    "mgw_trace_parse": [c_char_p, c_char_p, c_size_t, _out],
    "mgw_trace_create": [c_char_p, c_int, c_double, c_size_t, POINTER(c_char_p), POINTER(Tensor), _out],
    "mgw_cluster_load": [c_char_p, _out],
    "mgw_cluster_parse": [c_char_p, c_char_p, c_size_t, _out],
    "mgw_cluster_from_line": [c_char_p, c_uint, POINTER(Line), _out],
    "mgw_fit_line": [POINTER(Sample), c_size_t, POINTER(Fit)],
    "mgw_policy_parse": [c_char_p, POINTER(Policy)],
    "mgw_plan_make": [c_void_p, POINTER(Cost), POINTER(Policy), _out],
    "mgw_plan_parse": [c_char_p, c_char_p, c_size_t, _out],
    "mgw_plan_time": [c_void_p, c_void_p, POINTER(Cost)],
    "mgw_transport_open": [POINTER(TransportOptions), _out],
    "mgw_transport_all_reduce": [c_void_p, c_void_p, c_size_t, c_int, c_int],
    "mgw_transport_broadcast": [c_void_p, c_void_p, c_size_t, c_uint],
    "mgw_engine_open": [POINTER(EngineOptions), _out],
    "mgw_engine_add": [c_void_p, c_char_p, c_size_t, c_int, POINTER(c_uint)],
    "mgw_engine_start": [c_void_p],
    "mgw_engine_begin": [c_void_p],
    "mgw_engine_wait": [c_void_p],
    "mgw_engine_broadcast": [c_void_p, c_void_p, c_size_t],
    "mgw_engine_set_policy": [c_void_p, c_char_p],
    "mgw_flow_create": [c_size_t, _out],
    "mgw_flow_adopt": [c_void_p, POINTER(OperationStruct), c_size_t],
    "mgw_flow_begin": [c_void_p, c_double],
    "mgw_layout_create": [c_size_t, POINTER(c_size_t), POINTER(c_int), _out],
    "mgw_calibrate": [POINTER(Calibration), POINTER(Exchange), _out],
    "mgw_tuner_create": [POINTER(TunerOptions), c_size_t, POINTER(c_char_p), POINTER(c_uint64), c_void_p, _out],
    "mgw_tuner_look": [c_void_p, POINTER(Exchange), c_bool, POINTER(c_bool)],
    "mgw_tuner_set_policy": [c_void_p, c_char_p],
}


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
for _name, (_result, _arguments) in _plain.items():
    _function = getattr(lib, _name)
    _function.restype, _function.argtypes = _result, _arguments
for _name, _arguments in _checked.items():
    _function = getattr(lib, _name)
    _function.restype, _function.argtypes = c_int, _arguments + [_error]

# Called for every gradient or message: they never block, so holding the interpreter's lock is cheaper than giving it away.
_held = ctypes.PyDLL(path)


def _quick(name, result, *arguments):
    function = getattr(_held, name)
    function.restype, function.argtypes = result, arguments
    return function


engine_ready = _quick("mgw_engine_ready", None, c_void_p, c_uint)
engine_ready_on = _quick("mgw_engine_ready_on", None, c_void_p, c_uint, c_void_p)
engine_ready_at = _quick("mgw_engine_ready_at", None, c_void_p, c_uint, c_void_p, c_void_p)
flow_ready = _held.mgw_flow_ready  # without types: it takes ctypes' own objects, which need no conversion
flow_ready.restype = c_bool
flow_next = _quick("mgw_flow_next", c_bool, c_void_p, POINTER(c_size_t))
flow_done = _quick("mgw_flow_done", None, c_void_p, c_size_t, c_double, c_double)


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
    """Owns a C object."""

    _destroy: Any

    def __init__(self, address: Optional[int]):
        self._address = address

    def __del__(self):
        if getattr(self, "_address", None):
            type(self)._destroy(self._address)


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
