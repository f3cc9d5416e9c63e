"""Parameters that got no gradient in a step: they count as zero, nobody waits for them, and somebody may have to hear of it."""

from typing import Any, List

import torch

from .hooks import Handover
from .survey import Survey


def _debugs() -> bool:
    """What TORCH_DISTRIBUTED_DEBUG says."""
    level = getattr(torch.distributed, "get_debug_level", None)
    return bool(level and level() != torch.distributed.DebugLevel.OFF)


class Unused(Handover):
    """GradientSync's part that has to do with them."""

    group: Any
    static: Any
    comm: Any
    find_unused: bool
    device: torch.device

    def __init__(self, count: int, as_views: bool):
        super().__init__(count, as_views)
        self.places = list(range(count))  # of each parameter, its number among the module's
        self.complaint = ""  # for the next forward pass
        self.usage: List[float] = []  # in the last step, of each parameter: how many workers used it

    def _complain(self, missing: List[int]) -> None:
        """In the next forward pass, as DDP does: this backward pass is averaged all the same."""
        if self.static:
            if self.static.times is None or missing == self.static.unused():
                return
        rank, indices = self.group.rank, " ".join(str(self.places[k]) for k in sorted(missing, key=self.places.__getitem__))
        names = ", ".join(self.names[k] for k in missing[:20]) + (", ..." if len(missing) > 20 else "")
        why = ("This error indicates that your training graph has changed in this iteration, e.g., one parameter is used in "
               "first iteration, but then got unused in the second iteration. this is not compatible with static_graph set "
               "to True.\n" if self.static else
               "They counted as zeros. If that is meant, say so by passing the keyword argument "
               "`find_unused_parameters=True` to `DistributedDataParallel`; if not, make sure that all `forward` function "
               "outputs participate in calculating loss.\n")
        debug = ("" if _debugs() else "\n(With stock DDP, set the environment variable TORCH_DISTRIBUTED_DEBUG to either INFO "
                 "or DETAIL to hear their names; here they are told anyhow.)")
        self.complaint = (f"Expected to have finished reduction in the prior iteration before starting a new one. {why}"
                          f"Parameter indices which did not receive grad for rank {rank}: {indices}\n"
                          f"Parameters which did not receive grad for rank {rank}: {names} ({len(missing)} of "
                          f"{len(self.parameters)} parameters got no gradient in the backward pass before){debug}")

    def _fill(self, missing: List[int]) -> List[int]:
        """Makes what is missing ready, so that nobody waits for it; returns those that have no gradient at all."""
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
        """By a slot of its own, behind those of the gradients. Not where the message is in parts, or a hook's."""
        return bool(self.find_unused and self.addresses and not self.sharding and not self.comm)

    def _tell_usage(self, missing: List[int]) -> None:
        """The last slot says which parameters were used here; the average says which were anywhere."""
        if missing:
            usage = torch.full((len(self.parameters),), self.scale)
            for k in missing:
                usage[k] *= self.used[k]
            usage = usage.pin_memory() if self.device.type == "cuda" else usage
            self.reducer.views[-1].copy_(usage, non_blocking=True)
        else:
            self.reducer.views[-1].fill_(self.scale)
        self.reducer.ready(len(self.parameters))

    def _used_anywhere(self, absent: List[int]) -> List[float]:
        """By how many workers each was. Collective."""
        self.usage = self.group.total([float(k not in absent) for k in range(len(self.parameters))])
        return self.usage

    def _give_back(self, absent: List[int]) -> None:
        """A parameter that had no gradient and was used nowhere has none afterwards, as with DDP."""
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
                self.parameters[k].grad = self._alias(k) if self.as_views else self.reducer.views[k].clone()
