"""A strict checker of Chrome traces: the rules of the trace event format that our files use."""

import json
import math

METADATA = {
    "process_name": ("name", str),
    "process_sort_index": ("sort_index", int),
    "thread_name": ("name", str),
    "thread_sort_index": ("sort_index", int),
}


def unique(pairs):
    names = [name for name, _ in pairs]
    assert len(names) == len(set(names)), f"a member given twice: {names}"
    return dict(pairs)


def refuse(constant):
    raise AssertionError(f"{constant} is not JSON")


def check(text):
    """Raises AssertionError; else returns {process: {lane: [events]}} with the names of the processes."""
    trace = json.loads(text, object_pairs_hook=unique, parse_constant=refuse)
    assert isinstance(trace, dict) and isinstance(trace["traceEvents"], list)
    assert trace.get("displayTimeUnit") in ("ms", "ns")
    named, lanes = {}, {}
    for event in trace["traceEvents"]:
        assert isinstance(event, dict) and isinstance(event["name"], str), event
        assert type(event["pid"]) is int and type(event["tid"]) is int, event
        if event["ph"] == "M":
            assert set(event) == {"name", "ph", "pid", "tid", "args"}, event
            member, kind = METADATA[event["name"]]
            assert type(event["args"][member]) is kind, event
            key = event["name"], event["pid"], event["tid"]
            assert key not in named, f"{key} twice"
            named[key] = event["args"][member]
        else:
            assert event["ph"] == "X", event
            assert set(event) <= {"name", "cat", "ph", "pid", "tid", "ts", "dur", "args"}, event
            for member in ("ts", "dur"):
                assert (
                    type(event[member]) in (int, float) and math.isfinite(event[member]) and event[member] >= 0
                ), event
            assert isinstance(event["cat"], str) and isinstance(event.get("args", {}), dict), event
            assert ("process_name", event["pid"], 0) in named, f"{event}: its process has no name yet"
            assert ("thread_name", event["pid"], event["tid"]) in named, f"{event}: its lane has no name yet"
            lanes.setdefault(event["pid"], {}).setdefault(event["tid"], []).append(event)
    for process in lanes.values():
        for events in process.values():  # in one lane, events come in order and do not overlap
            for before, after in zip(events, events[1:]):
                assert after["ts"] >= before["ts"] + before["dur"] - 0.0021, (before, after)
    titles = {pid: name for (what, pid, _), name in named.items() if what == "process_name"}
    return lanes, titles
