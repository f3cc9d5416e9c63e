"""Facts about the steps and messages of a GradientSync, for DDP's logging data (stock.py) and for reports."""

from typing import Any, List

import torch

from .. import core
from .broadcast import bytes_of, grouped


def usage_counts(sync: Any) -> List[int]:
    """With find_unused_parameters: how many workers used each parameter in the last step, in the module's order."""
    counts = sync.usage
    if sync.tells_usage and sync.statistics()["steps"] > 1:
        counts = [share * sync.group.size for share in sync.reducer.views[-1].tolist()]
    found = [0] * len(sync.parameters)
    for place, count in zip(sync.places, counts or [0.0] * len(found)):
        found[place] = round(count)
    return found


def message_bytes(sync: Any) -> List[int]:
    """Bytes of the messages of one step, in order; in the survey, by dtype."""
    if not sync.reducer.views:
        sizes = grouped(sync.parameters[::-1], lambda parameter: parameter.dtype).values()
        return [sum(map(bytes_of, some)) for some in sizes]
    return [sum(sync.reducer.slots[k].bytes for k in row) for row in _messages(sync)]


def message_places(sync: Any) -> List[List[int]]:
    return [[sync.places[k] for k in row] for row in _messages(sync)]


def _messages(sync: Any) -> List[List[int]]:
    count = len(sync.parameters)
    return [[k for k in range(o.first, o.first + o.count) if k < count] for o in _operations(sync)]


def _operations(sync: Any) -> List[core.Operation]:
    """The operations of the plan; none in the survey."""
    learned = sync.reducer.learned
    return core.operations_of(learned.plan()) if learned else []


def averages(sync: Any) -> List[core.Operation]:
    """The operations that send gradients, with their formats. The option `wire` applies to all messages; with a hook, the
    format is unchanged."""
    found = [o for o in _operations(sync) if o.kind not in ("all-gather", "pull")]
    wire = "f32" if sync.comm else sync.options.wire
    return [o._replace(wire=wire) for o in found] if wire else found


def wire_bytes(sync: Any) -> int:
    """Bytes of the gradients of one step, as sent."""
    total = 0
    for operation in averages(sync):
        slots = sync.reducer.slots[operation.first:operation.first + operation.count]
        total += core.wire_bytes(operation.wire, sum(slot.elements for slot in slots if slot.real == torch.float32))
        total += sum(slot.bytes for slot in slots if slot.real != torch.float32)
    return total


def times_ns(sync: Any) -> dict:
    """Times of the last step, and averages over the measured steps, if there are any."""
    if len(sync.timed) != 4:
        return {}
    forward, begun, computed, ended = [int(1e9 * moment) for moment in sync.timed]
    host = {"forward_compute_time_start": forward, "backward_compute_time_start": begun, "backward_comm_time_start": begun,
            "backward_compute_time_end": computed, "backward_comm_time_end": ended}
    found = sync.reducer.measured()
    times = begun - forward, computed - begun, ended - begun
    if found:
        times = tuple(int(1e9 * seconds) for seconds in (
            found.forward_s, found.compute_s - found.forward_s, found.iteration_s - found.forward_s))
    return {**host, "avg_forward_compute_time": times[0], "avg_backward_compute_time": times[1],
            "avg_backward_comm_time": times[2], "avg_backward_compute_comm_overlap_time": min(times[1:])}
