"""Queues between the host and a GPU: streams that share one wait for each other."""

import os


def ask_for_more() -> None:
    """Unless told otherwise. Has no effect once CUDA has started. NCCL makes streams of its own, which wait until messages are
    over; with CUDA's default of eight queues, computation may have to wait behind such a stream."""
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")
