"""The transport `torch` with sharded parameters: reduce-scatters after the backward pass, all-gathers before the forward
pass.

A step begins with its forward pass. The gathers of the previous step continue meanwhile; `need` waits for one, `drain` for
all.
"""

import itertools
from ctypes import c_double
from time import perf_counter
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import torch

from .. import core
from .._lib import NEVER_NEEDED, lib
from ..environment import Options
from .broadcast import bytes_of
from .groups import Group, ProcessGroup
from .halves import gather_blocks, spans_of
from .ownership import Ownership
from .process_group import ProcessGroupReducer
from .reducer import Measured, Reducer
from .slots import DTYPES, Slot

Dtypes = Dict[torch.dtype, torch.dtype]  # from the dtype of gradients to that of their parameters


class Sharded:
    """The common part of reducers with parameters. Memory is flat, by the dtype of the gradients, with the same layout for
    both."""

    group: Group
    gradient_memory: Dict[torch.dtype, torch.Tensor]
    parameter_memory: Dict[torch.dtype, torch.Tensor]
    layout: core.Layout
    shards: Ownership
    plan: List[core.Operation]
    gathered_by: Dict[int, int] = {}  # by tensor with a gather in the current plan: that operation
    on_reshard: Optional[Callable[[Ownership], None]] = None  # called with the ownership before
    is_open = False  # a step has begun
    is_unsaid = False  # the update of the previous step was not reported
    wanted: Optional[str] = None  # a policy, from the next step on
    learned: Any

    # ---- A step ----

    def start(self) -> None:
        """The forward pass begins. Between a backward pass and its update it is one more in the same step: gradients stay
        with the owners of the current plan, and the next step begins with its first gradient."""
        super().start()  # type: ignore[misc]
        if not self.is_unsaid:
            self._open()

    def _open(self) -> None:
        """Begins a step, unless it has begun."""
        raise NotImplementedError

    def _end_last_step(self) -> None:
        """Before a step begins: the update that a GradScaler has skipped, and the policy that was set."""
        if self.is_unsaid:
            self.update()
        if self.wanted:
            wanted, self.wanted = self.wanted, None
            self._use_policy(wanted)

    def set_policy(self, policy: str) -> None:
        """In a step, and until its update, gradients are with the owners of the current plan."""
        if self.is_open or self.is_unsaid:
            lib.mgw_policy_parse(policy)
            self.wanted = policy
        else:
            self._use_policy(policy)

    def _use_policy(self, policy: str) -> None:
        super().set_policy(policy)  # type: ignore[misc]

    # ---- Plans ----

    def take_plan(self, plan: List[core.Operation], group: Group) -> None:
        """Adopts a plan. Ownership may move."""
        before = getattr(self, "shards", None)
        self.plan, self.shards = plan, Ownership(self.layout, plan, group.rank, group.size)
        self.gathered_by = {tensor: k for k, operation in enumerate(self.plan) if operation.kind == "all-gather"
                            for tensor in range(operation.first, operation.first + operation.count)}
        if before is not None and self.on_reshard:
            self.on_reshard(before)

    def gather(self, memory: Dict[torch.dtype, torch.Tensor]) -> None:
        """Completes gradients or parameters outside of steps. Collective."""
        for piece in self.shards.pieces:
            if piece.shared_out:
                real = next(real for real, name in DTYPES.items() if name == piece.dtype)
                gather_blocks(self.group, memory[real][piece.begin:piece.begin + piece.length])

    def move(self, before: Ownership, dtype: str, array: torch.Tensor) -> torch.Tensor:
        """Within on_reshard: moves an array with a number for each element of this worker's shards of a dtype, from the
        shards before to those of the new plan, bit for bit. Collective."""
        raise NotImplementedError

    def watches(self) -> bool:
        """Whether to report the first use of all parameters in the next forward pass, or only of those that are
        gathered."""
        return True

    def update(self) -> None:
        """This worker's shards are updated, or stay unchanged: their gathers may start."""
        raise NotImplementedError

    def need(self, k: int) -> None:
        """Waits for the gather of a parameter before its use; on a GPU the current stream waits."""
        raise NotImplementedError

    def drain(self) -> None:
        """Waits for all gathers."""
        raise NotImplementedError

    def total(self, numbers: torch.Tensor, op: str) -> None:
        """In place: the "sum" or the "max" over all workers, between backward and the next step."""
        raise NotImplementedError

    def measured(self) -> Optional[Measured]:
        """Here steps begin with the forward pass."""
        trace, found = self.learned.trace(), self.learned.statistics()
        if not trace:
            return None
        forward_s = trace.forward_s
        ready = list(itertools.accumulate([forward_s, *trace.backward_s]))[1:]
        return Measured(ready, forward_s, found["compute_s"], found["iteration_s"], self.learned.cluster(), trace)

    def sharded_counts(self) -> dict:
        return {"gathers": sum(operation.kind == "all-gather" for operation in self.plan),
                "parameter_bytes": sum(bytes_of(memory) for memory in self.parameter_memory.values()),
                "stall_s": self.learned.statistics()["stall_s"]}


class ShardedProcessGroupReducer(Sharded, ProcessGroupReducer):
    kinds = ("all-reduce", "reduce-scatter", "all-gather")

    def __init__(self, group: ProcessGroup, slots: Sequence[Slot], options: Options, device: torch.device,
                 dtypes: Dtypes):
        self.dtypes = dtypes
        self.gathers: Dict[int, tuple] = {}  # in flight
        self.needed: Optional[List[tuple]] = None  # of this step: tensor, time, number of stalls before; None: not timed
        self.stalls: List[tuple] = []
        widths = [(slot.bytes, torch.empty((), dtype=dtypes.get(slot.real, slot.real)).element_size() * slot.elements)
                  for slot in slots]
        ratio = sum(parameter for _, parameter in widths) / max(1, sum(gradient for gradient, _ in widths))
        super().__init__(group, slots, options, device,
                         parameter_ratio=min((0.5, 1.0, 2.0), key=lambda known: abs(known - ratio)))

    def adopt(self) -> None:
        self.drain()  # what is in flight belongs to the plan before
        super().adopt()
        if not self.turn and not hasattr(self, "layout"):
            self.layout, self.gradient_memory = self.arena.layout, self.arena.memory
            self.parameter_memory = {real: torch.zeros_like(memory, dtype=self.dtypes.get(real, real))
                                     for real, memory in self.gradient_memory.items()}
        self.take_plan(core.operations_of(self.tuner.plan()), self.group)
        self.halves = [self._halves_of(k) for k in range(len(self.plan))]

    def _halves_of(self, operation: int) -> list:
        kind, lanes, found = self.plan[operation].kind, self.plan[operation].lanes, []
        for real, memory in (self.parameter_memory if kind == "all-gather" else self.gradient_memory).items():
            pieces = self.shards.pieces_of(operation, DTYPES[real])
            if pieces and kind != "all-reduce":
                found += self.lanes_of.halves(kind, memory, spans_of(pieces, self.group.size), self.op, lanes)
        return found

    def look(self, may_stay: bool = True) -> None:
        self.drain()
        super().look(may_stay)

    # ---- A step ----

    def begin(self) -> None:
        self._open()
        self.drain()  # gathers that the forward pass did not wait for: the flow must see their end before they are due again
        Reducer.begin(self)

    def _open(self) -> None:
        if self.is_open:
            return
        self._end_last_step()
        hears_all = self.needed is not None
        self._begin_step()
        self.is_open, self.stalls = True, []
        self.needed = [] if hears_all and self.watched else None

    def send(self, operation: int) -> Any:
        if self.plan[operation].kind == "all-reduce":
            return super().send(operation)
        for half in self.halves[operation]:
            half.start()

    def finish(self, operation: int, sent: Any) -> None:
        super().finish(operation, sent if sent is not None else self.halves[operation])

    def launch(self) -> None:
        for operation in self.flow.next():
            sent = operation, perf_counter(), self.send(operation)
            if self.plan[operation].kind == "all-gather":
                self.gathers[operation] = sent
            else:
                self.under_way.append(sent)

    def wait(self) -> None:
        super().wait()
        self.is_open, self.is_unsaid, self.needed = False, True, None

    # ---- Times of the forward pass ----

    def watches(self) -> bool:
        heard = self.tuner.watches()
        self.needed = [] if heard else None
        return heard

    def uses(self) -> Any:
        return self.needed, self.stalls

    def needs(self, begun: Any, uses: Any) -> Tuple[Any, float]:
        needed, stalls = uses
        waited = list(itertools.accumulate([0.0, *[self.time.between(*stall) for stall in stalls]]))
        if needed is None:
            return None, waited[-1]
        need_s = (c_double * len(self.slots))(*[NEVER_NEEDED] * len(self.slots))
        for k, moment, stalls_before in needed:
            need_s[k] = max(0.0, self.time.between(begun, moment) - waited[stalls_before])
        return need_s, waited[-1]

    # ---- Parameters ----

    def update(self) -> None:
        self.is_unsaid = False
        if not self.turn:  # after the survey, which the flow does not know of
            self.gather(self.parameter_memory)
            return
        for k in self.gathered_by:
            self.flow.updated(k)
        self.launch()

    def _finish_gather(self, operation: int) -> None:
        _, started, sent = self.gathers.pop(operation)
        begun = self.time.now() if self.is_open else None
        self.finish(operation, sent)
        if not self.flow.is_closed:  # garbage collection frees the objects of a model in any order
            self.flow.done(operation, started, perf_counter())
        if begun is not None:
            self.stalls.append((begun, self.time.now()))

    def need(self, k: int) -> None:
        if self.is_open and self.needed is not None and not (self.time.sampled and (k - self.turn) % self.time.sampled):
            self.needed.append((k, self.time.now(), len(self.stalls)))
        operation = self.gathered_by.get(k)
        if operation in self.gathers:
            self._finish_gather(operation)

    def drain(self) -> None:
        for operation in list(self.gathers):
            self._finish_gather(operation)

    def move(self, before: Ownership, dtype: str, array: torch.Tensor) -> torch.Tensor:
        moves, scratch = before.moves_to(self.shards, dtype)
        after, room = array.new_zeros(self.shards.length(dtype)), array.new_zeros(scratch)
        for kind, source, target, count in moves:
            if kind == "gather":
                gather_blocks(self.group, room[:count])
                continue
            here, there = room if kind == "take" else array, room if kind == "lend" else after
            there[target:target + count].copy_(here[source:source + count])
        return after

    def total(self, numbers: torch.Tensor, op: str) -> None:
        there = numbers.to(self.group.device)
        self.group.all_reduce(there, op)
        if there.data_ptr() != numbers.data_ptr():
            numbers.copy_(there)

    def statistics(self) -> dict:
        return {**super().statistics(), **self.sharded_counts()}
