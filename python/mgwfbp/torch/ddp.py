"""DistributedDataParallel: a drop-in replacement for PyTorch's, which sends the messages of the plan."""

import copy
import inspect
import warnings
from typing import Any, Dict, Optional

import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join, Joinable
from torch.distributed.utils import _to_kwargs

from . import comm_hooks
from . import join as uneven
from .buckets import NAMES_FIRST
from .compiled import outside, untraced
from .groups import other_group
from .stock import Logger, ReducerFace
from .sync import GradientSync
from .wrapper import Wrapper

Stock = torch.nn.parallel.DistributedDataParallel
POSITIONS = [name for name in inspect.signature(Stock.__init__).parameters if name != "self"]  # of this PyTorch
DEFAULT_CAP_MB = 25
# In newer PyTorch, broadcast_buffers=False also skips the initial broadcast of buffers.
LEAVES_BUFFERS = "broadcast_buffers" in inspect.signature(dist.utils._sync_module_states).parameters


def _move(inputs: tuple, named: dict, device: torch.device) -> tuple:
    """To that device, as PyTorch's DDP does. PyTorch 1.13 takes a number."""
    if not (inputs or named):
        return inputs, named
    (inputs,), (named,) = _to_kwargs(inputs, named, device if hasattr(torch, "compile") else device.index, False)
    return inputs, named


class DistributedDataParallel(Wrapper, Stock):
    """Wraps a module so that its gradients are averaged among workers when `backward()` returns.

    Parameters and buffers are first broadcast from rank 0. The class is a subclass of
    torch.nn.parallel.DistributedDataParallel, and takes its arguments, of PyTorch 1.13 to 2.13, in the order of the
    installed version. Further arguments:

    transport        `torch` (the initialised process group) or `native` (the library's own: shared memory or MPI, on
                     GPUs NCCL; a name may follow, as in `native:emulated:1e-3,1e-9`); None: torch if there is a
                     process group, else native
    policy           how to merge gradients: optimal, mgwfbp, wfbp, single, threshold:64MiB, ddp:1MiB,25MiB ...
    cluster          a cluster file or built-in name, instead of measuring the cost of messages
    profile_steps    steps that are measured before the first plan
    replan_steps     steps between two checks for drift
    replan_percent   gain that a new plan must promise
    trials           whether to try plans of the policies optimal, overlap and sharded on real steps, and keep the fastest; a number
                     above 1: in trials of about so many steps at most, instead of 2,400
    plan             a file written by save_plan: uses that plan from the first step on, without tuning
    wire             format in which f32 gradients are sent: f32, bf16 or f16; sums are computed in f32 and rounded once
    timeout_s        native: how long to wait for another worker (torch: the timeout of the process group applies)

    >>> model = mgwfbp.torch.DistributedDataParallel(model)    # doctest: +SKIP
    >>> for inputs, targets in loader:                         # doctest: +SKIP
    ...     optimizer.zero_grad()
    ...     loss(model(inputs), targets).backward()            # gradients are averaged
    ...     optimizer.step()
    >>> print(model.report())                                  # doctest: +SKIP
    """

    def __init__(self, module: torch.nn.Module, *given: Any, **named: Any):
        if len(given) >= len(POSITIONS):
            raise TypeError(f"DistributedDataParallel takes {len(POSITIONS)} positional arguments")
        for name, value in zip(POSITIONS[1:], given):
            if name in named:
                raise TypeError(f"DistributedDataParallel got {name} twice")
            named[name] = value
        self._init(module, **named)

    def _init(self, module: torch.nn.Module, *, device_ids=None, output_device=None, dim: int = 0, broadcast_buffers=None,
              init_sync: bool = True, process_group=None, bucket_cap_mb: Optional[float] = None,
              find_unused_parameters: bool = False, check_reduction: bool = False,
              gradient_as_bucket_view: Optional[bool] = None, static_graph: bool = False,
              delay_all_reduce_named_params=None, param_to_hook_all_reduce=None, mixed_precision=None, device_mesh=None,
              skip_all_reduce_unused_params: bool = False, bucket_cap_mb_list=None, batched_grad_copy: bool = False,
              forward_sync_buffers: Optional[bool] = None, **options: Any):
        torch.nn.Module.__init__(self)
        Joinable.__init__(self)
        if (delay_all_reduce_named_params is None) != (param_to_hook_all_reduce is None):
            raise ValueError("delay_all_reduce_named_params and param_to_hook_all_reduce need to be set at the same time")
        if device_ids is not None and len(device_ids) > 1:
            raise ValueError("device_ids: one worker has one device; start one worker per device")
        if dim != 0:
            raise ValueError("dim: only 0 is supported")
        self._warn(bucket_cap_mb=bucket_cap_mb, bucket_cap_mb_list=bucket_cap_mb_list, check_reduction=check_reduction,
                   mixed_precision=mixed_precision, delay_all_reduce_named_params=delay_all_reduce_named_params,
                   skip_all_reduce_unused_params=skip_all_reduce_unused_params, batched_grad_copy=batched_grad_copy)
        if any(isinstance(p, torch.nn.parameter.UninitializedParameter) for p in module.parameters()):
            raise RuntimeError("Modules with uninitialized parameters can't be used with `DistributedDataParallel`. Run a "
                               "dummy forward pass to correctly initialize the modules")
        self.module = module
        process_group = self._group_of(process_group, device_mesh)
        self.bucket_bytes_cap_list = [int(each * (1 << 20)) for each in bucket_cap_mb_list or ()]
        cap_mb = max(bucket_cap_mb_list) if bucket_cap_mb_list else bucket_cap_mb or DEFAULT_CAP_MB
        self._describe(device_ids, output_device, dim, process_group, cap_mb)
        as_views = gradient_as_bucket_view is not False
        self.gradient_as_bucket_view, self._asked_for_views, self.static_graph = as_views, gradient_as_bucket_view, static_graph
        self.find_unused_parameters, self.mixed_precision = find_unused_parameters, mixed_precision
        reduce_dtype = getattr(mixed_precision, "reduce_dtype", None)
        if reduce_dtype in (torch.float16, torch.bfloat16) and options.get("wire") is None:
            options["wire"] = "f16" if reduce_dtype == torch.float16 else "bf16"
        self._making = dict(process_group=process_group, find_unused_parameters=find_unused_parameters, as_views=as_views,
                            static_graph=static_graph, init_sync=init_sync, **options)
        self._decide_on_buffers(broadcast_buffers, forward_sync_buffers)
        self._hooked: Optional[tuple] = None
        self._make_sync()

    def _warn(self, **given: Any) -> None:
        """Warns about arguments that have no effect, by name."""
        why = {"check_reduction": "it is deprecated",
               "mixed_precision": "parameters keep their dtype (reduce_dtype becomes `wire`); use torch.autocast",
               "delay_all_reduce_named_params": "these are averaged with all others, before backward returns"}
        for name, value in given.items():
            if not value:
                continue
            plan = "the plan decides which gradients are sent together"
            if name == "bucket_cap_mb":
                first = value if NAMES_FIRST else 1
                plan += f"; for these buckets, pass policy='ddp:{first}MiB,{value}MiB'"
            warnings.warn(f"{name} has no effect: {why.get(name, plan)}", stacklevel=5)

    def _decide_on_buffers(self, broadcast_buffers: Optional[bool], forward_sync_buffers: Optional[bool]) -> None:
        """Decides whether buffers are broadcast before each forward pass, and at the start."""
        self._buffers_wanted = forward_sync_buffers if forward_sync_buffers is not None else broadcast_buffers is not False
        self._making["init_buffers"] = not LEAVES_BUFFERS or forward_sync_buffers is not None or self._buffers_wanted
        if broadcast_buffers is not None and "forward_sync_buffers" in POSITIONS:
            does = ("has no effect if forward_sync_buffers is given" if forward_sync_buffers is not None else
                    "also skips the initial broadcast of buffers if False, which forward_sync_buffers=False does not")
            warnings.warn(f"PyTorch has deprecated broadcast_buffers in favour of forward_sync_buffers; it {does}",
                          FutureWarning, stacklevel=4)

    def _group_of(self, process_group, device_mesh):
        if device_mesh is None:
            return other_group(process_group)
        if process_group is not None:
            raise RuntimeError("Cannot specify both process_group and device_mesh arguments.")
        if device_mesh.ndim != 1:
            raise RuntimeError(f"Only 1D device mesh is supported, but got {device_mesh}.")
        self.device_mesh = device_mesh
        return other_group(device_mesh.get_group(mesh_dim=0))

    def _describe(self, device_ids, output_device, dim: int, process_group, cap_mb: float) -> None:
        """Sets the attributes of a DDP that programs read."""
        parameters = list(self.module.parameters())
        self.dim, self.device_ids, self.output_device = dim, None, None
        self.device = parameters[0].device if parameters else torch.device("cpu")
        self.device_type = self.device.type
        self.is_multi_device_module = len({parameter.device for parameter in parameters}) > 1
        self.input_device = None
        if device_ids:
            if self.device_type == "cpu":
                raise ValueError("DistributedDataParallel device_ids and output_device arguments only work with GPU modules, "
                                 f"but got device_ids {device_ids}, and a module on {self.device}")
            self.input_device = torch.device(f"cuda:{device_ids[0]}" if isinstance(device_ids[0], int) else device_ids[0])
            self.device_ids = [self.input_device.index]
            self.output_device = self.device_ids[0] if output_device is None else output_device
        self._given_group = process_group
        ignored = getattr(self.module, "_ddp_params_and_buffers_to_ignore", ())
        self.parameters_to_ignore = set(ignored)
        self.broadcast_bucket_size, self.bucket_bytes_cap = 250 << 20, int(cap_mb * (1 << 20))
        self._module_parameters = [p for n, p in self.module.named_parameters() if n not in self.parameters_to_ignore]
        self._use_replicated_tensor_module = self._use_python_reducer = False
        self._delay_all_reduce_params, self._comm_hooks, self.modules_buffers = [], [], []  # type: list, list, list
        self._divides_by_all, self._authoritative_rank = True, 0
        self.logger, self.reducer = Logger(self), ReducerFace(self)

    # ---- The GradientSync ----

    def _make_sync(self) -> GradientSync:
        sync = GradientSync(self.module, ignore=tuple(self.parameters_to_ignore), on_module=False, **self._making)
        sync.has_buffers = self._buffers_wanted
        object.__setattr__(self, "_made_sync", sync)
        if self._hooked:
            self._install(*self._hooked)
        return sync

    @property
    def _sync(self) -> GradientSync:
        """A copy of the model makes its own at its first forward pass, which all workers must run."""
        return self.__dict__.get("_made_sync") or self._make_sync()

    def __getstate__(self) -> Dict[str, Any]:
        """As with DDP: the copy averages among all workers, and starts from scratch."""
        if self._making["process_group"] is not None:
            raise RuntimeError("DDP Pickling/Unpickling are only supported when using DDP with the default process group. That "
                               "is, when you have called init_process_group and have not passed process_group argument to "
                               "DDP constructor")
        state = copy.copy(self.__dict__)
        for name in ("_made_sync", "_given_group", "logger", "reducer", "_join_config", "device_mesh"):
            state.pop(name, None)
        return state

    def __setstate__(self, state: Dict[str, Any]) -> None:
        self.__dict__.update(state)
        torch.nn.Module.__setstate__(self, {})
        Joinable.__init__(self)
        self.__dict__["_given_group"] = None
        self.__dict__["_making"] = {**self._making, "init_sync": False}
        self.logger, self.reducer = Logger(self), ReducerFace(self)

    @property
    def process_group(self):
        """No reference to the default group is kept: its threads must end with destroy_process_group, not with the last
        model."""
        if self._given_group is None and dist.is_available() and dist.is_initialized():
            return dist.group.WORLD
        return self._given_group

    @property
    def broadcast_buffers(self) -> bool:
        return self._buffers_wanted

    @broadcast_buffers.setter
    def broadcast_buffers(self, has: bool) -> None:
        self._buffers_wanted = self._sync.has_buffers = has

    forward_sync_buffers = broadcast_buffers

    @property
    def require_backward_grad_sync(self) -> bool:
        """Whether gradients of the next forward pass are averaged; no_sync() sets it."""
        return self._sync.enabled

    @require_backward_grad_sync.setter
    def require_backward_grad_sync(self, value: bool) -> None:
        self._sync.enabled = bool(value) and self._sync.is_open

    @property
    def require_forward_param_sync(self) -> bool:
        return self._sync.buffers_due

    @require_forward_param_sync.setter
    def require_forward_param_sync(self, value: bool) -> None:
        self._sync.buffers_due = value

    # ---- A step ----

    @outside
    def forward(self, *inputs, **named):
        if not torch.is_grad_enabled() and "_made_sync" not in self.__dict__:  # a copy that is not trained
            return self.module(*inputs, **named)
        try:
            inputs, named = self._before_forward(inputs, named)
            output = self.module(*inputs, **named)
        except BaseException:
            self._after_error()
            raise
        self._after_forward(output)
        return output

    @untraced
    def _before_forward(self, inputs, named):
        sync, trains = self._sync, torch.is_grad_enabled()
        if trains:
            sync.check_ended()  # before waiting for other workers
        if self._join_config.enable:
            uneven.before_forward(self)
        self._sync_buffers_at("PRE_FORWARD")
        sync.buffers_due = sync.enabled and trains
        if self._join_config.enable or sync.uneven:
            uneven.tell_step(self, sync.enabled and trains)
        sync.before_forward()
        if self.input_device is not None:
            inputs, named = _move(inputs, named, self.input_device)
        return inputs, named

    @untraced
    def _after_forward(self, output) -> None:
        if "buffer_hook" in self.__dict__:
            self._sync_buffers_at("POST_FORWARD")
        self._sync.after_forward(output)

    @untraced
    def _after_error(self) -> None:
        """The forward pass has failed: from now on other models are compiled as usual."""
        if "_made_sync" in self.__dict__:
            self._sync.pieces.leave()

    def _sync_buffers_at(self, where: str) -> None:
        """Broadcasts buffers from rank 0 before the forward pass, or calls the buffer hook at the location it was
        registered for."""
        hook, sync = self.__dict__.get("buffer_hook"), self._sync
        if hook is None:
            sync.broadcast_buffers()
        elif hook.buffer_comm_hook_location.name == where and sync.has_buffers:
            self._assign_modules_buffers()
            futures = hook.buffer_comm_hook(hook.buffer_comm_hook_state, self.named_module_buffers)
            sync.futures.extend(futures or ())

    def no_sync(self):
        """A context in which gradients are accumulated without averaging; the first backward pass after it averages the
        sum.

        >>> with model.no_sync():                              # doctest: +SKIP
        ...     loss(model(first), targets).backward()
        >>> loss(model(second), targets).backward()            # doctest: +SKIP
        """
        return super().no_sync()

    def _set_static_graph(self) -> None:
        """Must be called before the first step."""
        if self.static_graph:
            warnings.warn("You've set static_graph to be True, no need to set it again.", stacklevel=2)
            return
        if self._sync.statistics()["steps"] or self._sync.in_step:
            raise self._sync.failure("static_graph should be called before training loop starts: it cannot change "
                                     "after the first step")
        self.static_graph = self._making["static_graph"] = True
        self._sync.close()
        self._make_sync()

    # ---- Uneven inputs, hooks ----

    def join(self, divide_by_initial_world_size: bool = True, enable: bool = True, throw_on_early_termination: bool = False):
        """A context for training with different numbers of batches per worker: workers without batches contribute zeros,
        and at the end all get the model of the last one.

        >>> with model.join():                                 # doctest: +SKIP
        ...     for inputs, targets in loader:
        ...         loss(model(inputs), targets).backward()
        ...         optimizer.step()
        """
        if self.process_group is None:
            raise RuntimeError("join: PyTorch needs a process group to count the workers that have inputs; call "
                               "torch.distributed.init_process_group first (gloo is enough), also with transport='native'")
        return Join([self], enable, throw_on_early_termination, divide_by_initial_world_size=divide_by_initial_world_size)

    def join_hook(self, **named: Any) -> uneven.DdpJoinHook:
        if self._sync.sharding:
            raise RuntimeError("join: uneven inputs are not supported with a ZeroRedundancyOptimizer")
        return uneven.DdpJoinHook(self, named.get("divide_by_initial_world_size", True))

    def register_comm_hook(self, state: object, hook: Any) -> None:
        """Sets a hook that averages gradients instead of an all-reduce: PyTorch's fp16, bf16, PowerSGD and post-local-SGD
        hooks, or your own. Works over process groups; with `native`, fp16_compress_hook and bf16_compress_hook set the
        option `wire`."""
        try:
            comm_hooks.check(hook)
            if self._hooked:
                raise RuntimeError("register_comm_hook can only be called once")
            self._install(state, hook)
        except (TypeError, ValueError, RuntimeError) as error:
            self.logger.set_error_and_log(str(error))
            raise
        self._hooked = state, hook
        self._comm_hooks.append((hook, state))
        self.logger._set_comm_hook_name(getattr(hook, "__qualname__", type(hook).__qualname__))

    def _install(self, state: object, hook: Any) -> None:
        sync, wire = self._sync, comm_hooks.wire_of(hook)
        if hasattr(sync.group, "transport"):  # native
            if wire is None:
                raise RuntimeError("register_comm_hook: with transport='native', only PyTorch's fp16_compress_hook and "
                                   "bf16_compress_hook work (they become `wire`); for other hooks, use transport='torch'")
            sync.change(wire=wire)
        elif wire == "bf16" and sync.device.type == "cpu":  # which the process group cannot sum
            sync.change(wire=wire)
        else:
            sync.change(comm=comm_hooks.CommHook(state, hook))

    def _register_builtin_comm_hook(self, comm_hook_type) -> None:
        self.register_comm_hook(None, comm_hooks.builtin(comm_hook_type))
        self.logger._set_comm_hook_name(str(comm_hook_type))

    def _register_fused_optim(self, *_, **__) -> None:
        raise NotImplementedError("_register_fused_optim: step the optimizer after backward, or use "
                                  "mgwfbp.torch.ZeroRedundancyOptimizer")

    def close(self) -> None:
        self.broadcast_buffers = False
        super().close()


DistributedDataParallel.__init__.__signature__ = inspect.signature(DistributedDataParallel._init)  # type: ignore
