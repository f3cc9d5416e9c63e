"""Attributes of DDP that PyTorch and programs use besides its public methods: `reducer`, `logger`, and its logging data."""

import os
import weakref
from types import SimpleNamespace
from typing import Any, Dict, List

import torch

from . import facts

VARIABLES = ("MASTER_PORT", "MASTER_ADDR", "CUDA_VISIBLE_DEVICES", "TORCH_DISTRIBUTED_DEBUG")
GLOO_VARIABLES = ("GLOO_SOCKET_IFNAME", "GLOO_DEVICE_TRANSPORT")
NAMES = {torch.float32: "float", torch.float64: "double", torch.float16: "c10::Half", torch.bfloat16: "c10::BFloat16"}


class ReducerFace:
    """Replaces torch.distributed.Reducer: provides the methods that are called from Python."""

    def __init__(self, ddp: Any):
        self._wrapper = weakref.ref(ddp)

    @property
    def _ddp(self) -> Any:
        return self._wrapper()

    def _get_local_used_map(self) -> torch.Tensor:
        """How many workers used each parameter in the last step."""
        sync = self._ddp._sync
        return torch.tensor(facts.usage_counts(sync), dtype=torch.int32, device=sync.device)

    def _ddp_graph_static(self) -> bool:
        return not self._ddp._sync.varies

    def _install_post_backward_futures(self, futures: List[Any]) -> None:
        self._ddp._sync.futures.extend(futures)

    def _rebuild_buckets(self) -> bool:
        return False

    def _check_reducer_finalized(self) -> None:
        self._ddp._sync.check_ended()

    def _remove_autograd_hooks(self) -> None:
        self._ddp.close()

    def _set_ddp_runtime_logging_sample_rate(self, rate: int) -> None:
        """Does nothing: all steps are measured."""


class Logger:
    """Replaces torch.distributed.Logger."""

    def __init__(self, ddp: Any):
        self._wrapper, self.error, self.comm_hook = weakref.ref(ddp), "", ""

    @property
    def _ddp(self) -> Any:
        return self._wrapper()

    def set_error_and_log(self, error: str) -> None:
        self.error = error

    def _set_comm_hook_name(self, name: str) -> None:
        self.comm_hook = name

    def _get_ddp_logging_data(self) -> SimpleNamespace:
        strings, numbers = self._texts(), self._numbers()
        sync = self._ddp.__dict__.get("_made_sync")
        error = self.error or (sync.error if sync else "")
        if error:
            strings["error"], numbers["has_error"] = error, 1
        if self.comm_hook:
            strings["comm_hook"] = self.comm_hook
        return SimpleNamespace(strs_map=strings, ints_map=numbers)

    def _texts(self) -> Dict[str, str]:
        ddp, sync = self._ddp, self._ddp._sync
        told = VARIABLES + (GLOO_VARIABLES if getattr(sync.group, "backend", "") == "gloo" else ())
        found = {name.lower(): os.environ.get(name, "N/A") for name in told}
        found.update(module_name=type(ddp.module).__name__, backend_name=getattr(sync.group, "backend", "native"),
                     device_ids=", ".join(map(str, ddp.device_ids or ())),
                     dtypes=", ".join(sorted({NAMES.get(p.dtype, str(p.dtype)) for p in sync.parameters})),
                     bucket_sizes=", ".join(map(str, facts.message_bytes(sync))),
                     prev_iteration_grad_ready_order_indices=", ".join(map(str, sync.places)))
        if sync.reducer.views:
            found.update(rebuilt_bucket_sizes=found["bucket_sizes"],
                         rebuilt_per_bucket_param_indices=", ".join(
                             " ".join(map(str, row)) for row in facts.message_places(sync)))
        return found

    def _numbers(self) -> Dict[str, int]:
        ddp, sync = self._ddp, self._ddp._sync
        counts = sync.statistics()
        return {"world_size": sync.group.size, "rank": sync.group.rank, "iteration": counts["steps"],
                "output_device": -1 if ddp.output_device is None else ddp.output_device,
                "broadcast_buffers": int(ddp.broadcast_buffers), "bucket_cap_bytes": ddp.bucket_bytes_cap,
                "find_unused_parameters": int(ddp.find_unused_parameters),
                "gradient_as_bucket_view": int(bool(ddp._asked_for_views)), "static_graph": int(ddp.static_graph),
                "can_set_static_graph": int(not sync.varies), "num_parameter_tensors": len(sync.parameters),
                "total_parameter_size_bytes": sum(p.numel() * p.element_size() for p in sync.parameters),
                "has_rebuilt_buckets": int(bool(sync.reducer.views) and not sync.find_unused),
                "unused_parameter_size": 0, "join_uneven_inputs": int(sync.uneven),
                **({"gloo_num_threads": 2} if getattr(sync.group, "backend", "") == "gloo" else {}), **facts.times_ns(sync)}
