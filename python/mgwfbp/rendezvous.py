"""Where workers on several hosts meet: the address of the transport tcp. Under torchrun its store is there already, so that rank
0 takes any free port and says there which. Elsewhere it is a rule: MGWFBP_ADDRESS, or the port behind MASTER_PORT."""

import os
import socket
import sys
from datetime import timedelta
from typing import Optional

JOIN_S, DEFAULT_S = 300, 1800  # as C waits: for others to join, and for all else if nothing is said


def _store(timeout_s: float):
    """PyTorch's, that all workers of the job have: the process group's, or that of torchrun's agents. None: there is none."""
    distributed = sys.modules.get("torch.distributed")
    if not distributed or not distributed.is_available():
        return None
    if distributed.is_initialized():
        return distributed.distributed_c10d._get_default_store()
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return None  # MASTER_PORT may still have to be opened, by init_process_group
    return distributed.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False,
                                timeout=timedelta(seconds=timeout_s))


def _listen() -> socket.socket:
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True, backlog=1024)
    return socket.create_server(("", 0), backlog=1024)


def address(key: str, rank: int, timeout_s: float) -> Optional[str]:
    """For the option `address`, of what all workers call by the same key. None: C's own rule."""
    if "MGWFBP_ADDRESS" in os.environ or "MASTER_ADDR" not in os.environ:
        return None
    timeout_s = timeout_s or float(os.environ.get("MGWFBP_TIMEOUT") or 0)
    timeout_s = JOIN_S if timeout_s in (0, DEFAULT_S) else timeout_s  # as C has it: joining has a limit of its own
    key = f"mgwfbp/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '')}/{key}"
    try:
        store = _store(timeout_s)
        if store is None:
            return None
        if rank:
            store.wait([key], timedelta(seconds=timeout_s))
            return f"[{os.environ['MASTER_ADDR']}]:{store.get(key).decode()}"
        server = _listen()
        store.set(key, str(server.getsockname()[1]))
        return f"fd:{server.detach()}"  # the transport's from now on
    except RuntimeError as error:  # as PyTorch has it, which adds where in its code
        why = str(error).partition("\n")[0]
        raise RuntimeError(f"tcp: rank {rank}: " + (
            f"rank 0 did not say within {timeout_s:g} s where it listens" if rank else "where it listens cannot be said") +
            f", by PyTorch's store at {os.environ['MASTER_ADDR']}:{os.environ.get('MASTER_PORT', '?')} ({why})") from None
