"""mgwfbp: merges neighbouring gradients into messages, so that data-parallel training communicates as fast as the
network allows.

    import mgwfbp
    mgwfbp.plan("resnet50-b32-fp32-h200", "paper-2-10gbe").iteration_s

plans without PyTorch. `mgwfbp.torch` trains with it:

    import mgwfbp.torch
    model = mgwfbp.torch.DistributedDataParallel(model)
"""

from ._lib import VERSION as __version__
from ._lib import Error
from .environment import local_rank, rank, size
from .planning import Cluster, Operation, Plan, Trace, compare, plan, policies

__all__ = ["Cluster", "Error", "Operation", "Plan", "Trace", "compare", "local_rank", "plan", "policies", "rank",
           "size"]
