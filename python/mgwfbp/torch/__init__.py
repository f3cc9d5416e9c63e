"""mgwfbp for PyTorch: a drop-in DistributedDataParallel, an optimizer for Horovod programs, and buckets for stock DDP."""

from .ddp import DistributedDataParallel
from .optimizer import DistributedOptimizer
from .report import Report

__all__ = ["DistributedDataParallel", "DistributedOptimizer", "Report"]
