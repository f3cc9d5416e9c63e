"""Where the time of a training step goes, and what plans could gain: the table of model.report()."""

from collections import namedtuple
from typing import List, NamedTuple, Optional, Tuple

from .. import planning
from ..core import Tried
from . import facts
from .slots import trace_of


CURVE_MOST = 2000  # with more tensors, planning on a measured curve would take seconds

# The prediction for a policy with the measured computation and network.
Row = namedtuple("Row", "policy messages iteration_s exposed_s")


class Report(NamedTuple):
    """Times are means of steps: from the start of the forward pass to the end of the last message. None: not measured."""

    workers: int
    transport: str
    policy: str
    statistics: dict
    iteration_s: Optional[float] = None
    compute_s: Optional[float] = None
    exposed_s: Optional[float] = None
    a_s: Optional[float] = None
    b_s_per_byte: Optional[float] = None
    slowdown: Optional[float] = None  # how many times as long messages take during computation as alone, and
    stretch: Optional[float] = None  # computation during messages; both are included in predictions
    predicted: List[Row] = []
    lower_bound_s: Optional[float] = None
    tried: List[Tried] = []  # plans of the current trial, or of the last one
    trial_cost_s: float = 0.0  # how much longer all trials took than with the winners

    def __str__(self) -> str:
        s = self.statistics
        lines = [f"workers    {self.workers}, transport {self.transport}, policy {self.policy}",
                 f"steps      {s['steps']}, {s['plans']} plans; {s['tensors']} gradients in {s['messages']} messages, "
                 f"{_size(s['arena_bytes'])}"]
        if s["copies"]:
            lines.append(f"copied     {s['copies']} gradients, {_size(s['copied_bytes'])}: they were not in the "
                         "arena (zero_grad(set_to_none=True), or another dtype)")
        if self.iteration_s is None:
            return "\n".join([*lines, "not measured yet: the first plan is made after a few steps"])
        beside = (f"; while both run, messages take {self.slowdown:.2f} and computation {self.stretch:.2f} times as long"
                  if max(self.slowdown, self.stretch) > 1 else "")
        lines += [f"step       {_ms(self.iteration_s)}: compute {_ms(self.compute_s)}, exposed communication "
                  f"{_ms(self.exposed_s)}",
                  f"network    T(M) = {self.a_s * 1e6:.0f} us + M * {self.b_s_per_byte * 1e9:.3g} ns{beside}", "",
                  f"{'predicted':20} {'messages':>8} {'iteration':>10} {'exposed':>10}"]
        for row in self.predicted:
            mark = " *" if row.policy == self.policy else ""
            lines.append(f"{row.policy + mark:20} {row.messages:8} {_ms(row.iteration_s):>10} {_ms(row.exposed_s):>10}")
        most = max(0.0, 1 - self.lower_bound_s / self.iteration_s)
        return "\n".join([*lines, f"{'lower bound':20} {'':8} {_ms(self.lower_bound_s):>10}   no plan is faster",
                          f"Upper bound on what any plan could still gain: {most:.1%} of the measured step.",
                          *self._trial_lines()])

    def _trial_lines(self) -> List[str]:
        """Times of whole steps, including the time between steps."""
        if not self.tried:
            return []
        s, lines = self.statistics, ["", f"{'tried':20} {'messages':>8} {'whole step':>10} {'of the best':>16} {'predicted':>10}"]
        for each in self.tried:
            mark = " *" if each.kept else "" if each.left else " -"
            measured = _ms(each.measured_s) if each.rounds else "-"
            sure = f" +- {each.width:.3f}" if 0 < each.width < 1 else " +- ?" if each.width else ""  # ?: too few rounds yet
            ratio = f"{each.ratio:.3f}{sure}" if each.rounds else "-"
            predicted = _ms(each.predicted_s) if each.predicted_s else "-"
            lines.append(f"{each.name + mark:20} {each.messages:8} {measured:>10} {ratio:>16} {predicted:>10}")
        if s["trials"]:
            more = "more" if self.trial_cost_s < 0 else "less"
            lines.append(f"{s['trials']} trials, {s['trial_steps']} steps; with the winners, they would have taken "
                         f"{_ms(abs(self.trial_cost_s))} {more}")
        return [*lines, *([f"the trial is not over: {s['trying']} plans are still compared"] if s["trying"] else [])]


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def _size(bytes: float) -> str:
    return f"{bytes / 2**20:.1f} MiB" if bytes >= 2**20 else f"{bytes / 2**10:.1f} KiB"


def describe(sync) -> Optional[Tuple[planning.Trace, planning.Cluster]]:
    """What the steps of a GradientSync have shown: a step without messages, and the network as training sees it. None
    before the first plan."""
    times = sync.reducer.measured()
    if times is None:
        return None
    slots = [slot.as_sent(sync.options.wire) for slot in sync.reducer.slots]
    return times.trace or trace_of(slots, times.ready_s, times.forward_s), times.cluster


def make(sync) -> Report:
    """Makes the report of a GradientSync. Not collective: any worker may call it, between steps."""
    reducer, policy, times = sync.reducer, sync.options.policy, sync.reducer.measured()
    described, learned, statistics = describe(sync), reducer.learned, sync.statistics()
    wires = " or ".join(sorted({operation.wire for operation in facts.averages(sync)}))
    narrow = f", f32 as {wires} ({_size(statistics['wire_bytes'])} a step)" if wires != "f32" else ""
    about = sync.group.size, sync.group.about + narrow, policy, statistics
    if times is None or described is None:
        return Report(*about)
    names = list(dict.fromkeys([*planning.policies(), policy]))
    trace, cluster = described
    if len(reducer.slots) > CURVE_MOST:
        cluster = cluster.fitted()
    plans = planning.compare(trace, cluster, names)
    rows = [Row(name, plan.message_count, plan.iteration_s, plan.exposed_s) for name, plan in zip(names, plans)]
    return Report(*about, times.iteration_s, times.compute_s, times.iteration_s - times.compute_s,
                  cluster.a_s, cluster.b_s_per_byte, *cluster.beside, rows,
                  min(plan.lower_bound_s for plan in plans), learned.tried(), learned.statistics()["trial_cost_s"])
