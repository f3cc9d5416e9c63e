"""The inner optimizer: a plain one, over this worker's shards as flat tensors in the reducer's memory.

Updates are elementwise, so neighbouring shards of one parameter group can form a single tensor: a run. With 16-bit
parameters, the tensor of a run is its f32 master, from which the parameters are rounded.
"""

from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Type

import torch
from torch import Tensor

from .. import core
from .state import MASTER, Part, Parts

GAP = 64  # bytes: the padding of a tensor is smaller


class Run(NamedTuple):
    group: int
    shards: List[core.Shard]
    begin: int
    length: int
    tensor: Tensor  # what the optimizer updates
    gradient: Tensor
    shown: Optional[Tensor]  # 16-bit parameters; None: `tensor` is the parameters


class Runs:
    def __init__(self, optimizer_class: Type[torch.optim.Optimizer], options: Dict[str, Any]):
        self.optimizer_class, self.options = optimizer_class, options
        self.inner: Optional[torch.optim.Optimizer] = None
        self.runs: List[Run] = []
        self.idle: Parts = {}  # tensors in no parameter group
        self.present: Optional[List[bool]] = None

    def bind(self, sharding, groups: Dict[int, int], param_groups: List[Dict[str, Any]]) -> None:
        self.sharding, self.groups, self.param_groups = sharding, groups, param_groups

    def dtype_of(self, k: int) -> torch.dtype:
        """The dtype in which the optimizer computes."""
        real = self.sharding.slots_now[k].real
        parameter = self.sharding.reducer.parameter_memory[real].dtype
        return torch.float32 if self._has_master(k) else parameter

    def _has_master(self, k: int) -> bool:
        real = self.sharding.slots_now[k].real
        cast = self.sharding.parameter_dtype
        return cast is not None and self.sharding.reducer.parameter_memory[real].dtype == cast

    # ---- Making them ----

    def make(self, parts: Parts) -> None:
        """Makes the runs of this worker's current shards, with their known state."""
        with self.sharding.references:
            self._forget()
            shards = self.sharding.reducer.shards.own
            self.idle = {s.tensor: parts[s.tensor] for s in shards if s.tensor not in self.groups and s.tensor in parts}
            self.runs = [self._run(some, parts) for some in self._neighbours(shards, parts)]
        by_group: Dict[int, List[Run]] = {}
        for run in self.runs:
            by_group.setdefault(run.group, []).append(run)
        self.group_numbers = list(by_group)
        if not by_group:
            return
        self.inner = self.optimizer_class([{**self._options_of(g), "params": [run.tensor for run in some]}
                                           for g, some in by_group.items()], **self.options)
        for run in self.runs:
            state = self._state(run, parts)
            if state:
                self.inner.state[run.tensor] = state

    def _forget(self) -> None:
        if self.inner is not None:
            self.inner.state.clear()
            self.inner.param_groups.clear()
        self.inner, self.runs = None, []

    def _options_of(self, group: int) -> Dict[str, Any]:
        return {key: value for key, value in self.param_groups[group].items() if key != "params"}

    def _key(self, shard: core.Shard, parts: Parts) -> tuple:
        """Shards with the same key can form one run."""
        k = shard.tensor
        alone = k if self.sharding.sync.find_unused else None  # it may have no gradient when its neighbours have one
        present = self.present[k] if self.present else True
        part = parts.get(k)
        known = part and (tuple(sorted(part.arrays)), tuple(sorted((name, float(v)) for name, v in part.numbers.items()
                                                                   if v is not None)))
        return self.groups[k], shard.dtype, self.dtype_of(k), alone, present, known

    def _neighbours(self, shards: Sequence[core.Shard], parts: Parts) -> List[List[core.Shard]]:
        found: List[List[core.Shard]] = []
        slots, before = self.sharding.slots_now, None
        for shard in shards:
            if shard.tensor not in self.groups:
                before = None
                continue
            key = self._key(shard, parts)
            if before == key:
                last = found[-1][-1]
                slot = slots[shard.tensor]
                gap = (shard.begin - last.begin - last.count) * (slot.bytes // slot.elements)
                if shard.first == 0 and last.first + last.count == slots[last.tensor].elements and 0 <= gap < GAP:
                    found[-1].append(shard)
                    continue
            found.append([shard])
            before = key
        return found

    def _run(self, shards: List[core.Shard], parts: Parts) -> Run:
        first, last = shards[0], shards[-1]
        real = self.sharding.slots_now[first.tensor].real
        begin, end = first.begin, last.begin + last.count
        shown = self.sharding.reducer.parameter_memory[real][begin:end]
        gradient = self.sharding.reducer.gradient_memory[real][begin:end]
        if not self._has_master(first.tensor):
            return Run(self.groups[first.tensor], shards, begin, end - begin, shown, gradient, None)
        master = shown.float()
        for shard in shards:
            part = parts.get(shard.tensor)
            if part is not None and MASTER in part.arrays:
                master[shard.begin - begin:][:shard.count].copy_(part.arrays[MASTER])
        return Run(self.groups[first.tensor], shards, begin, end - begin, master, gradient, shown)

    def _state(self, run: Run, parts: Parts) -> Dict[str, Any]:
        known = parts.get(run.shards[0].tensor)
        if known is None:
            return {}
        state = {name: value.clone() if isinstance(value, Tensor) else value for name, value in known.numbers.items()}
        for name in known.arrays:
            if name != MASTER:
                array = torch.zeros(run.length, dtype=known.arrays[name].dtype, device=run.tensor.device)
                for shard in run.shards:
                    array[shard.begin - run.begin:][:shard.count].copy_(parts[shard.tensor].arrays[name])
                state[name] = array
        return state

    # ---- Taking them apart ----

    def parts(self) -> Parts:
        """This worker's state, by tensor."""
        found = dict(self.idle)
        for run in self.runs:
            state = {**self.inner.state.get(run.tensor, {}), **({MASTER: run.tensor} if run.shown is not None else {})}
            for shard in run.shards:
                part = Part(shard.first, shard.count, {}, {})
                at = shard.begin - run.begin
                for name, value in state.items():
                    if isinstance(value, Tensor) and value.dim() == 1:
                        part.arrays[name] = value[at:at + shard.count]
                    elif value is not None:
                        part.numbers[name] = value
                found[shard.tensor] = part
        return found

    def take(self) -> Parts:
        """The same, and forgets it, so that it can be freed array by array."""
        with self.sharding.references:
            found = self.parts()
            self.idle = {}
            self._forget()
        return found

    # ---- A step ----

    def step(self, present: List[bool]) -> None:
        if self.present is None:
            self.present = [True] * len(present)
        if present != self.present:
            self.present = present
            if not self.sharding.sync.find_unused:
                self.make(self.take())
        if self.inner is None:
            return
        for inner, number in zip(self.inner.param_groups, self.group_numbers):
            inner.update(self._options_of(number))
        for run in self.runs:
            if run.shown is not None:  # respect values that the program has written to parameters
                same = run.tensor.to(run.shown.dtype) == run.shown
                run.tensor.copy_(torch.where(same, run.tensor, run.shown.float()))
            gradient = run.gradient if run.gradient.dtype == run.tensor.dtype else run.gradient.to(run.tensor.dtype)
            run.tensor.grad = gradient if present[run.shards[0].tensor] else None
        self.inner.step()
        for run in self.runs:
            run.tensor.grad = None
            if run.shown is not None:
                run.shown.copy_(run.tensor)

    def state_bytes(self) -> int:
        """Bytes of the optimizer's state and of masters on this worker."""
        arrays = [array for part in self.parts().values() for array in part.arrays.values()]
        return sum(array.numel() * array.element_size() for array in arrays)

