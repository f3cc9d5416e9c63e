"""Parameters that got no gradient in a step: they count as zero, other workers do not wait for them, and the user may get
an error."""

from typing import Any, List, Optional, Set

import torch

from .hooks import Handover
from .survey import Survey


def _debugs() -> bool:
    """Whether TORCH_DISTRIBUTED_DEBUG is set to INFO or DETAIL."""
    level = getattr(torch.distributed, "get_debug_level", None)
    return bool(level and level() != torch.distributed.DebugLevel.OFF)


class Unused(Handover):
    """The part of GradientSync that handles unused parameters."""

    group: Any
    static: Any
    comm: Any
    find_unused: bool
    device: torch.device

    def __init__(self, count: int, as_views: bool):
        super().__init__(count, as_views)
        self.places = list(range(count))  # of each parameter: its position in the module
        self.complaint = ""  # an error to raise in the next forward pass
        self.idle: Optional[Set[int]] = None  # places of parameters that no averaged backward pass since forward has used
        self.usage: List[float] = []  # how many workers used each parameter in the last step

    def _check_used(self, missing: List[int]) -> None:
        """Complains about parameters that are still unused. Each of several backward passes may use other parts of the
        model."""
        places = {self.places[k] for k in missing}
        self.idle = places if self.idle is None else self.idle & places
        self.complaint = ""
        if self.idle:
            self._complain([k for k in missing if self.places[k] in self.idle])

    def _complain(self, missing: List[int]) -> None:
        """Prepares an error for the next forward pass, as DDP does; this backward pass is still averaged."""
        if self.static:
            if self.static.times is None or missing == self.static.unused():
                return
        rank, indices = self.group.rank, " ".join(str(self.places[k]) for k in sorted(missing, key=self.places.__getitem__))
        names = ", ".join(self.names[k] for k in missing[:20]) + (", ..." if len(missing) > 20 else "")
        why = ("This error indicates that your training graph has changed in this iteration, e.g., one parameter is used in "
               "first iteration, but then got unused in the second iteration. this is not compatible with static_graph set "
               "to True.\n" if self.static else
               "They counted as zeros. If this is intended, enable unused parameter detection by passing the keyword argument "
               "`find_unused_parameters=True` to `DistributedDataParallel`; otherwise, make sure that all `forward` function "
               "outputs participate in calculating loss.\n")
        debug = ("" if _debugs() else "\n(With stock DDP, set the environment variable TORCH_DISTRIBUTED_DEBUG to either INFO "
                 "or DETAIL to see their names; here they are always shown.)")
        self.complaint = (f"Expected to have finished reduction in the prior iteration before starting a new one. {why}"
                          f"Parameter indices which did not receive grad for rank {rank}: {indices}\n"
                          f"Parameters which did not receive grad for rank {rank}: {names} ({len(missing)} of "
                          f"{len(self.parameters)} parameters got no gradient in the previous backward pass){debug}")

    def _fill(self, missing: List[int]) -> List[int]:
        """Reports missing gradients as ready, so that other workers do not wait for them. Returns those without any
        gradient."""
        absent = []
        for k in missing:
            if self.sharding and self.addresses:
                self.sharding.check(k)
            if self.parameters[k].grad is not None:
                self._take_in(k)
                continue
            absent.append(k)
            if self.addresses:
                self.reducer.views[k].zero_()
            self.reducer.ready(k)
        return absent

    @property
    def tells_usage(self) -> bool:
        """Whether workers exchange the used parameters in an extra slot after those of the gradients. Not with sharding or
        hooks."""
        return bool(self.find_unused and self.addresses and not self.sharding and not self.comm)

    def _tell_usage(self, missing: List[int]) -> None:
        """Writes to the last slot which parameters were used here; its average tells which were used on any worker."""
        if missing:
            usage = torch.full((len(self.parameters),), self.scale, dtype=torch.float32, device="cpu")
            for k in missing:
                usage[k] *= self.used[k]
            usage = usage.pin_memory() if self.device.type == "cuda" else usage
            self.reducer.views[-1].copy_(usage, non_blocking=True)
        else:
            self.reducer.views[-1].fill_(self.scale)
        self.reducer.ready(len(self.parameters))

    def _used_anywhere(self, absent: List[int]) -> List[float]:
        """How many workers used each parameter. Collective."""
        self.usage = self.group.total([float(k not in absent) for k in range(len(self.parameters))])
        return self.usage

    def _give_back(self, absent: List[int]) -> None:
        """Sets the gradients of absent parameters that other workers used. As with DDP, a parameter that no worker used has
        none."""
        apart = self.find_unused and (self.sharding or self.comm)
        if isinstance(self.reducer, Survey) or not (absent or apart):
            return
        if self.static:
            somewhere = self.static.somewhere
        elif not self.find_unused:
            somewhere = [1.0] * len(self.parameters)
        else:
            somewhere = self._used_anywhere(absent) if apart else self.reducer.views[-1].tolist()
        for k in absent:
            if somewhere[k] > 0:
                self.parameters[k].grad = self._alias(k) if self._is_view(k) else self.reducer.views[k].clone()
