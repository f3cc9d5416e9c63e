"""Uneven inputs: what a worker does that has none left, so that the others can go on.

`join()` and torch.distributed.algorithms.join.Join keep count of who has; this is the hook that they call for each step
that the others do. In it a worker does what a step of the others asks of it, with zeros for gradients.
"""

from typing import Any

from torch.distributed.algorithms.join import Join, JoinHook

from .broadcast import broadcast_all


def before_forward(ddp: Any) -> None:
    """On a worker that has inputs: tells those that have none what comes, and hears how many go on."""
    Join.notify_join_context(ddp)
    if not ddp._join_config.enable:
        return
    sync = ddp._sync
    sync.leader = int(sync.group.largest([float(sync.group.rank)])[0])


def tell_step(ddp: Any, syncs: bool) -> None:
    """Whether gradients will be averaged in this step; and by how many workers, where that counts."""
    if ddp._join_config.enable:
        sync = ddp._sync
        _, working = sync.group.total([float(syncs), 1.0])
        sync.factor = 1.0 if ddp._divides_by_all else sync.group.size / working
        sync.uneven = True
    else:
        ddp._sync.leader, ddp._sync.factor = 0, 1.0


class DdpJoinHook(JoinHook):
    def __init__(self, ddp: Any, divide_by_initial_world_size: bool = True):
        self.ddp = ddp
        ddp._divides_by_all = divide_by_initial_world_size

    def main_hook(self) -> None:
        """The others do a step."""
        sync = self.ddp._sync
        sync.uneven = True
        sync.leader = int(sync.group.largest([-1.0])[0])
        sync.broadcast_buffers()
        syncs, working = sync.group.total([0.0, 0.0])
        sync.factor = 1.0 if self.ddp._divides_by_all else sync.group.size / max(1.0, working)
        sync.buffers_due = syncs > 0
        if syncs:
            sync.shadow_step()

    def post_hook(self, is_last_joiner: bool) -> None:
        """All are through: the model of the last one is everybody's."""
        sync = self.ddp._sync
        sync.leader, sync.factor = 0, 1.0
        root = int(sync.group.largest([float(sync.group.rank if is_last_joiner else -1)])[0])
        self.ddp._authoritative_rank = root
        broadcast_all(sync.whole(), sync.group.rank == root, lambda tensor: sync.group.broadcast(tensor, root))
