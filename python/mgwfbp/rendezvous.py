"""The address at which workers on several hosts meet, for the transport tcp. Under torchrun, rank 0 listens on any free
port and publishes it in torchrun's store. Otherwise the address is MGWFBP_ADDRESS, or the port after MASTER_PORT."""

import os
import socket
import sys
from datetime import timedelta
from typing import Optional

JOIN_S, DEFAULT_S = 300, 1800  # C's default timeouts: for others to join, and for everything else


def _store(timeout_s: float):
    """PyTorch's store for all workers of the job: that of the process group, or of torchrun's agents. None: there is
    none."""
    distributed = sys.modules.get("torch.distributed")
    if not distributed or not distributed.is_available():
        return None
    if distributed.is_initialized():
        return distributed.distributed_c10d._get_default_store()
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return None  # init_process_group may yet have to open MASTER_PORT
    return distributed.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False,
                                timeout=timedelta(seconds=timeout_s))


def _listen() -> socket.socket:
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True, backlog=1024)
    return socket.create_server(("", 0), backlog=1024)


def address(key: str, rank: int, timeout_s: float) -> Optional[str]:
    """The value of the option `address`. All workers pass the same key. None: use C's default."""
    if "MGWFBP_ADDRESS" in os.environ or "MASTER_ADDR" not in os.environ:
        return None
    timeout_s = timeout_s or float(os.environ.get("MGWFBP_TIMEOUT") or 0)
    timeout_s = JOIN_S if timeout_s in (0, DEFAULT_S) else timeout_s  # as in C: joining has its own limit
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
        return f"fd:{server.detach()}"  # owned by the transport from now on
    except RuntimeError as error:  # PyTorch appends its own stack
        why = str(error).partition("\n")[0]
        raise RuntimeError(f"tcp: rank {rank}: " + (
            f"rank 0 did not publish its address within {timeout_s:g} s" if rank else "cannot publish its address") +
            f" in PyTorch's store at {os.environ['MASTER_ADDR']}:{os.environ.get('MASTER_PORT', '?')} ({why})") from None
