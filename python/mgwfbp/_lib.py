"""Bindings to libmgwfbp with ctypes: finds the library, and declares its structs and functions in tables.

The rest of the package calls the functions through `lib`. They accept an Object in place of its C object, and str for
strings and enum names. A failure raises Error. Output arguments become the return value.
"""

import contextlib
import ctypes
import faulthandler
import os
import re
from collections import namedtuple
from ctypes import (CFUNCTYPE, POINTER, Structure, c_bool, c_char, c_char_p, c_double, c_int, c_size_t, c_uint, c_uint64,
                    c_void_p)
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Optional

VERSION = "0.1.0"


def _add_stacks(message: str) -> None:
    """Appends Python's stack to the file in which the library has described the state of this worker, if there is one."""
    found = re.search(r"\(more in (/[^)]*)\)$", message)
    if found:
        with contextlib.suppress(OSError), open(found[1], "a") as file:
            file.write("\nPython:\n")
            file.flush()
            faulthandler.dump_traceback(file)


class Error(RuntimeError):
    """An error of the library: `status` is its code, the text says what failed and where."""

    def __init__(self, message: str, status: int = 0):
        super().__init__(message)
        self.status = status


# ---- Structs, as in include/mgwfbp/ (tests/torch/test_library.py compares them with the C compiler's) ----

COLLECTIVES = ("all-reduce", "reduce-scatter", "all-gather", "push", "pull")  # mgw_collective, in order
RELEASES = ("when-ready", "after-backward", "after-update")  # mgw_release, in order
DTYPES = ("f32", "f16", "bf16", "f64")  # mgw_dtype, in order: types of tensors
WIRES = (*DTYPES, "fp8", "fp8-e5m2")  # types of messages
DTYPE_BYTES = {"f32": 4, "f16": 2, "bf16": 2, "f64": 8}
OPERATIONS = ("average", "sum", "max")  # mgw_op, in order
NEVER_NEEDED = -2.0
ERROR_MAX = 512
POLICY_NAME_MAX = 64
ERR_PEER = -7  # mgw_status


def _struct(name: str, *fields) -> Any:
    return type(name, (Structure,), {"_fields_": [(field, kind) for kind, names in fields for field in names.split()]})


ErrorStruct = _struct("mgw_error", (c_int, "status"), (c_char * ERROR_MAX, "message"))
Text = _struct("mgw_text", (c_void_p, "data"), (c_size_t, "size capacity"), (c_bool, "failed"))
Sample = _struct("mgw_sample", (c_uint64, "bytes"), (c_double, "seconds"))
Curve = _struct("mgw_curve", (c_double, "a_s b_s_per_byte"), (c_size_t, "sample_count"), (POINTER(Sample), "samples"))
Cast = _struct("mgw_cast", (c_double, "a_s c_s_per_byte"))
Beside = _struct("mgw_beside", (c_double, "message compute"))
Cost = _struct("mgw_cost", (Curve * len(COLLECTIVES), "of"), (c_uint, "workers"), (c_char_p, "cluster"),
               (c_double, "worth_s"), (c_uint, "wires"), (Cast * len(WIRES), "casts"), (Beside, "beside"))
Policy = _struct("mgw_policy", (c_int, "kind"), (c_uint64, "first_bytes cap_bytes"))
OperationStruct = _struct("mgw_operation", (c_int, "kind release"), (c_size_t, "first count"), (c_uint64, "bytes"),
                          (c_double, "ready_s start_s end_s"), (c_int, "wire"), (c_uint, "lanes"))
Stall = _struct("mgw_stall", (c_size_t, "tensor"), (c_double, "start_s end_s"))
PlanStruct = _struct(
    "mgw_plan", (c_char_p, "policy model cluster"), (c_uint, "workers"), (c_size_t, "operation_count"),
    (POINTER(OperationStruct), "operations"), (c_void_p, "names"),
    (c_double, "forward_s alone_s compute_s iteration_s exposed_s lower_bound_s"), (c_bool, "overlaps_forward"),
    (c_size_t, "stall_count"), (POINTER(Stall), "stalls"))
TransportOptions = _struct("mgw_transport_options", (c_char_p, "name"), (c_uint, "rank size"), (c_char_p, "job"),
                           (c_double, "timeout_s"), (c_bool, "on_device"), (c_char_p, "address"), (c_double, "join_s"),
                           (c_uint, "lanes"))
EngineOptions = _struct(
    "mgw_engine_options", (TransportOptions, "transport"), (c_char_p, "policy cluster"),
    (c_int, "profile_steps replan_steps replan_percent"), (c_char_p, "wire device"), (c_int, "servers op"),
    (c_bool, "zero_unused keeps_parameters"), (c_char_p, "parameters"), (c_int, "trials"), (c_char_p, "plan"), (c_int, "debug"))
EngineStatistics = _struct(
    "mgw_engine_statistics", (c_uint64, "steps plans"), (c_size_t, "tensors messages"),
    (c_uint64, "arena_bytes extra_bytes copied_bytes device_waits"),
    (c_double, "iteration_s compute_s exposed_s predicted_s slowdown stall_s"),
    (c_uint64, "parameter_bytes trials trial_steps"), (c_double, "trial_cost_s"), (c_size_t, "trying"), (c_uint, "lanes"))
Combine = CFUNCTYPE(c_int, c_void_p, POINTER(c_double), c_size_t, c_size_t, POINTER(ErrorStruct))
Tell = CFUNCTYPE(c_int, c_void_p, c_void_p, c_size_t, POINTER(ErrorStruct))
TimeLanes = CFUNCTYPE(c_int, c_void_p, c_uint, POINTER(c_double), POINTER(ErrorStruct))
Time = CFUNCTYPE(c_int, c_void_p, c_int, c_uint64, POINTER(c_double), POINTER(ErrorStruct))
OnReshard = CFUNCTYPE(c_int, c_void_p, c_void_p, c_size_t, c_void_p, c_size_t, POINTER(ErrorStruct))
Exchange = _struct("mgw_exchange", (c_void_p, "context"), (c_uint, "rank size"), (Combine, "combine"), (Tell, "tell"))
Calibration = _struct(
    "mgw_calibration", (c_char_p, "name"), (c_uint64, "least_bytes most_bytes"), (c_uint, "factor more_sizes repeats most_repeats"),
    (c_double, "enough_s"), (c_uint, "kinds"), (c_bool, "keeps_samples"), (c_void_p, "context"), (Time, "time"), (c_void_p, "stops"))
TunerOptions = _struct(
    "mgw_tuner_options", (c_char_p, "policy"), (c_int, "profile_steps replan_steps replan_percent early_looks sampled"),
    (c_bool, "whole_steps"), (c_double, "crowd"), (c_uint, "size"), (c_double, "parameter_ratio"), (c_uint, "trials lanes"),
    (c_bool, "one_dtype"), (c_int, "dtype"))
StepRecord = _struct("mgw_step_record", (c_double, "late_s compute_s iteration_s"),
                     (POINTER(c_double), "ready_s took_s busy_s need_s"), (c_double, "stall_s period_s"),
                     (c_uint64, "step"), (c_double, "forward_s"))
TunerStatistics = _struct("mgw_tuner_statistics", (c_uint64, "steps plans"),
                          (c_double, "iteration_s compute_s slowdown worth_s stretch beside stall_s predicted_s"), (c_uint64, "trials trial_steps"),
                          (c_double, "trial_cost_s"), (c_size_t, "trying"))
Tried = _struct("mgw_tried", (c_char * POLICY_NAME_MAX, "name"), (c_size_t, "messages rounds"),
                (c_double, "measured_s ratio width predicted_s"), (c_bool, "left kept"))
TrialOptions = _struct("mgw_trial_options", (c_double, "close risk"), (c_uint, "turn_steps most_rounds incumbent"))
TrialOutcome = _struct("mgw_trial_outcome", (c_size_t, "rounds"), (c_bool, "left"), (c_double, "mean_s ratio width"))
Piece = _struct("mgw_piece", (c_int, "dtype"), (c_size_t, "begin length"), (c_bool, "shared_out"),
                (c_size_t, "reduced_by gathered_by"))
Shard = _struct("mgw_shard", (c_uint, "tensor"), (c_size_t, "first count"), (c_int, "dtype"),
                (c_size_t, "begin at reduced_by"))
Move = _struct("mgw_move", (c_int, "kind"), (c_size_t, "from to count"))

PROBE_BYTES, LANE_BYTES = 8 << 20, 512 << 10  # MGW_PROBE_BYTES, MGW_LANE_BYTES

# ---- Functions: result, arguments, names ----


def encode(text):
    """A C string, or null for None."""
    return None if text is None else os.fspath(text).encode()


def _argument(kind, convert) -> Any:
    """An argument type that converts a Python value for C."""
    return type("argument", (), {"from_param": staticmethod(lambda given: kind.from_param(convert(given)))})


_Out = namedtuple("_Out", "kind")  # an output argument, which callers omit
_status = object()  # result of functions that can fail, and take an mgw_error as the last argument
_object, _made, _count = c_void_p, _Out(c_void_p), _Out(c_size_t)
_text, _string = POINTER(Text), _argument(c_char_p, encode)
_dtype, _op, _collective, _wire = (_argument(c_int, names.index) for names in (DTYPES, OPERATIONS, COLLECTIVES, WIRES))

_functions = (
    (None, [_text], "mgw_text_init mgw_text_fini"),
    (_status, [_text], "mgw_text_status"),
    (_status, [_text, _string], "mgw_text_save"),
    (None, [_object], "mgw_trace_destroy mgw_cluster_destroy mgw_plan_destroy mgw_transport_close mgw_engine_close "
                      "mgw_flow_destroy mgw_layout_destroy mgw_shards_destroy mgw_tuner_destroy mgw_tuner_count "
                      "mgw_trial_destroy"),
    (None, [_object, _text], "mgw_trace_write mgw_cluster_write mgw_plan_write"),
    (_object, [_object], "mgw_engine_cluster mgw_engine_trace mgw_tuner_cluster mgw_tuner_trace"),
    (c_char_p, [_object, c_size_t], "mgw_plan_tensor_name"),
    (_status, [_string, _made], "mgw_trace_load mgw_cluster_load mgw_plan_load"),
    (_status, [_string, c_char_p, c_size_t, _made], "mgw_trace_parse mgw_cluster_parse"),
    (None, [_object, _Out(Cost)], "mgw_cluster_cost"),
    (c_double, [POINTER(Cost), _collective, c_uint64], "mgw_cost_seconds"),
    (c_uint64, [_wire, c_uint64], "mgw_wire_bytes"),
    (_status, [_string, _Out(Policy)], "mgw_policy_parse"),
    (c_char_p, [POINTER(Policy), c_char_p], "mgw_policy_name"),
    (POINTER(Policy), [_count], "mgw_policy_list"),
    (_status, [_object, POINTER(Cost), POINTER(Policy), _made], "mgw_plan_make"),
    (_status, [_object, _object, POINTER(Cost)], "mgw_plan_time"),
    (_status, [_object, POINTER(Cost), _Out(c_double), _Out(c_double)], "mgw_advise_buckets"),
    (_status, [POINTER(TransportOptions), _made], "mgw_transport_open"),
    (c_char_p, [_object], "mgw_transport_name"),
    (c_uint, [_object], "mgw_transport_rank mgw_transport_size"),
    (_status, [_object, c_void_p, c_size_t, _dtype, _op], "mgw_transport_all_reduce"),
    (_status, [_object, c_void_p, c_size_t, c_uint], "mgw_transport_broadcast"),
    (_status, [_object, c_void_p, c_size_t, _dtype], "mgw_transport_all_gather"),
    (None, [c_size_t, c_uint, c_uint, _count, _count], "mgw_transport_block"),
    (_status, [POINTER(EngineOptions), _made], "mgw_engine_open"),
    (_status, [_object, _string, c_size_t, _dtype, _Out(c_uint)], "mgw_engine_add"),
    (_status, [_object], "mgw_engine_start mgw_engine_begin mgw_engine_wait"),
    (_status, [_object, c_void_p, c_size_t], "mgw_engine_broadcast"),
    (_status, [_object, c_void_p, c_size_t, _dtype, _op], "mgw_engine_all_reduce"),
    (_status, [_object, c_size_t], "mgw_engine_update"),
    (_status, [_object, c_uint], "mgw_engine_need"),
    (_status, [_object], "mgw_engine_drain"),
    (_status, [_object, OnReshard, c_void_p], "mgw_engine_on_reshard"),
    (_status, [_object, _dtype, c_void_p, c_void_p, c_size_t], "mgw_engine_move"),
    (c_void_p, [_object, _dtype], "mgw_engine_gradient_memory mgw_engine_parameter_memory"),
    (POINTER(PlanStruct), [_object], "mgw_engine_plan mgw_tuner_plan"),
    (POINTER(Tried), [_object, _count], "mgw_engine_tried mgw_tuner_tried"),
    (_status, [_object, _string, _Out(c_uint64)], "mgw_tuner_load_plan"),
    (_status, [_object, _string], "mgw_engine_set_policy mgw_tuner_set_policy"),
    (c_void_p, [_object, c_uint], "mgw_engine_gradient"),
    (None, [_object, c_void_p], "mgw_engine_set_stream"),
    (None, [_object, _Out(EngineStatistics)], "mgw_engine_measure"),
    (POINTER(OperationStruct), [_object, _count, _Out(c_uint64)], "mgw_engine_operations"),
    (c_uint, [_object, _Out(c_uint)], "mgw_engine_samples"),
    (POINTER(OperationStruct), [_object, _count], "mgw_flow_operations"),
    (c_uint64, [_object], "mgw_flow_plans"),
    (_status, [c_size_t, _made], "mgw_flow_create"),
    (_status, [_object, POINTER(OperationStruct), c_size_t], "mgw_flow_adopt"),
    (_status, [_object, c_double], "mgw_flow_begin"),
    (POINTER(c_double), [_object], "mgw_flow_ready_times"),
    (_status, [c_size_t, POINTER(c_size_t), POINTER(c_int), _made], "mgw_layout_create"),
    (c_size_t, [_object, c_size_t], "mgw_layout_offset"),
    (c_size_t, [_object, _dtype], "mgw_layout_length"),
    (None, [_object, c_size_t, c_size_t, _dtype, _count, _count], "mgw_layout_slice"),
    (_status, [_object, POINTER(OperationStruct), c_size_t, c_uint, _made], "mgw_shards_create"),
    (POINTER(Piece), [_object, _count], "mgw_shards_pieces"),
    (None, [_object, c_size_t, c_uint, _count, _count], "mgw_shards_owned"),
    (_status, [_object, c_uint, _Out(POINTER(Shard)), _count], "mgw_shards_of"),
    (c_size_t, [_object, c_uint, _dtype], "mgw_shards_length"),
    (c_size_t, [_object, c_size_t, _dtype, _Out(POINTER(c_size_t)), _count, _count], "mgw_shards_segments"),
    (_status, [_object, _object, c_uint, _dtype, c_size_t, _Out(POINTER(Move)), _count, _count], "mgw_shards_moves"),
    (_status, [POINTER(Calibration), POINTER(Exchange), _made], "mgw_calibrate"),
    (_status, [POINTER(Exchange), c_void_p, TimeLanes, _Out(c_uint)], "mgw_choose_lanes"),
    (c_uint, [c_uint], "mgw_device_queues"),
    (_status, [POINTER(TunerOptions), c_size_t, POINTER(c_char_p), POINTER(c_uint64), _object, _made],
     "mgw_tuner_create"),
    (POINTER(OperationStruct), [_object, _count], "mgw_tuner_operations"),
    (None, [_object, POINTER(StepRecord)], "mgw_tuner_observe"),
    (c_bool, [_object], "mgw_tuner_due mgw_tuner_turn mgw_tuner_watches"),
    (_status, [_object, POINTER(Exchange), c_bool, _Out(c_bool)], "mgw_tuner_look"),
    (None, [_object, _Out(TunerStatistics)], "mgw_tuner_measure"),
    (_status, [POINTER(TrialOptions), c_size_t, _made], "mgw_trial_create"),
    (None, [_object, _Out(TrialOptions)], "mgw_trial_options_of"),
    (c_size_t, [_object, POINTER(c_size_t)], "mgw_trial_left"),
    (c_double, [POINTER(c_double), c_size_t], "mgw_trial_turn"),
    (None, [_object, POINTER(c_double)], "mgw_trial_round"),
    (c_bool, [_object, _count], "mgw_trial_over"),
    (None, [_object, c_size_t, _Out(TrialOutcome)], "mgw_trial_result"),
    (c_size_t, [_object], "mgw_trial_steps"),
)
# Called for every gradient or message. They never block, so holding the GIL is cheaper than releasing it. These are plain
# ctypes functions, which take addresses.
_quick = (
    (None, [_object, c_uint], "mgw_engine_ready"),
    (None, [_object, c_uint, c_void_p], "mgw_engine_ready_on"),
    (None, [_object, c_uint, c_void_p, c_void_p], "mgw_engine_ready_at"),
    (None, [_object, c_void_p, c_size_t, c_void_p, c_void_p, c_void_p], "mgw_engine_ready_all"),
    (None, [_object, c_uint, c_void_p], "mgw_engine_mark"),
    (c_bool, [_object, c_void_p, c_size_t, c_void_p], "mgw_flow_ready_all"),
    (None, [c_size_t, c_void_p, c_void_p, c_void_p], "mgw_copy_all"),
    (c_bool, None, "mgw_flow_ready"),  # takes ctypes objects, which need no conversion
    (c_bool, [_object, POINTER(c_size_t)], "mgw_flow_next"),
    (None, [_object, c_size_t, c_double, c_double], "mgw_flow_done"),
    (c_bool, [_object, c_uint], "mgw_flow_updated"),
)


def _bind(function, result, arguments):
    """Wraps a C function in a Python function, which can also serve as a method."""
    checked, arguments = result is _status, arguments + [_Out(ErrorStruct)] * (result is _status)
    function.restype = c_int if checked else result
    function.argtypes = [POINTER(a.kind) if isinstance(a, _Out) else a for a in arguments]
    outs = [a.kind for a in arguments if isinstance(a, _Out)]

    def call(*given):
        told = [each._live if isinstance(each, Object) else each for each in given]  # `given` keeps the objects alive
        made = [kind() for kind in outs]
        found = function(*told, *made)
        if checked and found:
            message = made[-1].message.decode("utf-8", "replace")
            _add_stacks(message)
            raise Error(message, made[-1].status)
        results = [] if checked or result is None else [found.decode() if result is c_char_p else found]
        results += [getattr(each, "value", each) for each in (made[:-1] if checked else made)]  # of a number, or a struct
        return results[0] if len(results) == 1 else results

    return call


def _load():
    """Loads the library: from MGWFBP_LIBRARY, from the package, from its path at installation, or from the system. Returns
    it and its path."""
    package, told, failures = Path(__file__).parent, os.environ.get("MGWFBP_LIBRARY"), []
    noted = (package / "library.txt").read_text().strip() if (package / "library.txt").exists() else ""
    inside = [str(file) for file in (package / "libmgwfbp.so", Path(noted)) if file.is_file()]
    for path in [told] if told else inside + ["libmgwfbp.so.0"]:
        try:
            return ctypes.CDLL(path), path
        except OSError as error:
            failures.append(str(error))
    raise ImportError("libmgwfbp not found: build it with CMake and install it, or set MGWFBP_LIBRARY to its path. "
                      "Tried: " + "; ".join(failures))


library, path = _load()
library.mgw_version.restype = c_char_p
_found = library.mgw_version().decode()
if _found.split(".")[:2] != VERSION.split(".")[:2]:
    raise ImportError(f"{path} is version {_found}, this package is version {VERSION}: install both from the same source")
lib, quick = SimpleNamespace(), ctypes.PyDLL(path)
free = ctypes.CDLL(None).free
free.restype, free.argtypes = None, [c_void_p]
for _result, _arguments, _names in _functions:
    for _name in _names.split():
        setattr(lib, _name, _bind(getattr(library, _name), _result, _arguments))
for _result, _arguments, _name in _quick:
    getattr(quick, _name).restype, getattr(quick, _name).argtypes = _result, _arguments


class Object:
    """Owns a C object until it is closed. `kind` is its C type."""

    _kind: str
    _destroy: Any
    _address: Optional[int] = None

    def __init_subclass__(cls, kind: str = "", destroy: str = "destroy"):
        if kind:
            cls._kind, cls._destroy = kind, getattr(library, f"{kind}_{destroy}")

    def __init__(self, address: Optional[int]):
        self._address = address

    @property
    def is_closed(self) -> bool:
        return self._address is None

    @property
    def _live(self) -> int:
        if self._address is None:
            raise Error(f"{type(self).__name__.lower()} is closed")
        return self._address

    def close(self) -> None:
        address, self._address = self._address, None
        if address:
            type(self)._destroy(address)

    def __del__(self):
        self.close()


@contextlib.contextmanager
def written(kind: str, what):
    """An mgw_text with the file content of an object, or of the object at an address."""
    text = Text()
    lib.mgw_text_init(text)
    try:
        getattr(lib, f"{kind}_write")(what, text)
        lib.mgw_text_status(text)
        yield text
    finally:
        lib.mgw_text_fini(text)
