"""mgwfbp for PyTorch: a drop-in DistributedDataParallel, a sharded optimizer, a DistributedOptimizer for Horovod programs,
and bucket sizes for stock DDP."""

from . import queues
from .buckets import Buckets, ddp_buckets
from .ddp import DistributedDataParallel
from .optimizer import DistributedOptimizer
from .profile import profile
from .report import Report
from .tuned import tune_ddp
from .zero import ZeroRedundancyOptimizer

__all__ = ["Buckets", "DistributedDataParallel", "DistributedOptimizer", "Report",
           "ZeroRedundancyOptimizer", "ddp_buckets", "profile", "tune_ddp"]
queues.ask_for_more()
