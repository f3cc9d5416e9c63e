"""Uneven inputs: what a worker without inputs does so that the others can continue.

`join()` and torch.distributed.algorithms.join.Join count the workers with inputs, and call this hook for each step of these
workers. The hook takes part in the collectives of that step, with zeros as gradients.
"""

from typing import Any

from torch.distributed.algorithms.join import Join, JoinHook

from .broadcast import broadcast_all


def before_forward(ddp: Any) -> None:
    """On a worker with inputs: notifies those without, and finds out whose buffers count."""
    Join.notify_join_context(ddp)
    if not ddp._join_config.enable:
        return
    sync = ddp._sync
    sync.leader = int(sync.group.largest([float(sync.group.rank)])[0])


def tell_step(ddp: Any, syncs: bool) -> None:
    """Tells the others whether gradients will be averaged in this step, and counts the workers with inputs."""
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
        """Called for a step of the workers with inputs."""
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
        """All workers are done: broadcasts the model of the last one."""
        sync = self.ddp._sync
        sync.leader, sync.factor = 0, 1.0
        root = int(sync.group.largest([float(sync.group.rank if is_last_joiner else -1)])[0])
        self.ddp._authoritative_rank = root
        broadcast_all(sync.whole(), sync.group.rank == root, lambda tensor: sync.group.broadcast(tensor, root))
