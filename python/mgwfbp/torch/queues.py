"""Queues between this process and a GPU: streams that share one wait for each other."""

import os

from .. import core, environment

VARIABLE = "CUDA_DEVICE_MAX_CONNECTIONS"


def ask_for_more() -> None:
    """Unless the environment says how many. Has no effect once CUDA has started."""
    try:
        wanted = core.device_queues(environment.local_size())
    except ValueError:  # of a launcher that counts in another way
        return
    if wanted:
        os.environ.setdefault(VARIABLE, str(wanted))
