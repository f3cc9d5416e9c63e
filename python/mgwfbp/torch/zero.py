"""ZeroRedundancyOptimizer, like PyTorch's: each worker keeps the optimizer state of the parameters that it updates."""

import copy
import warnings
import weakref
from typing import Any, Callable, Dict, Iterable, List, Optional, Type, Union

import torch
from torch import Tensor

from .._lib import Error
from .groups import other_group
from .runs import Runs
from .sharding import Sharding
from .state import MASTER, Part, Parts, collect, from_plain, move, to_plain
from .sync import find_sync

ELEMENTWISE = ("SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "Adadelta", "Adamax", "NAdam", "RAdam", "ASGD", "Rprop")


def _check_class(optimizer_class: Type) -> None:
    known = [getattr(torch.optim, name) for name in ELEMENTWISE if hasattr(torch.optim, name)]
    if optimizer_class in known or getattr(optimizer_class, "is_elementwise", False):
        return
    name = getattr(optimizer_class, "__name__", str(optimizer_class))
    raise ValueError(f"optimizer_class: {name} is not known to be elementwise, and each worker updates parts of tensors; use "
                     f"one of {', '.join(ELEMENTWISE)} or PyTorch's own ZeroRedundancyOptimizer. If {name} is "
                     "elementwise, set its attribute `is_elementwise = True`")


class _NoState(dict):
    def __missing__(self, key):
        raise RuntimeError("the optimizer's state is sharded among workers: call consolidate_state_dict() on all of "
                           "them, then state_dict()")


class ZeroRedundancyOptimizer(torch.optim.Optimizer):
    """Updates the parameters of a model that is wrapped in mgwfbp.torch.DistributedDataParallel. Each worker updates its
    shards, and the others receive them during their next forward pass.

    The arguments are those of torch.distributed.optim.ZeroRedundancyOptimizer; `params` may also be the model. Further
    arguments:

    parameter_dtype  torch.bfloat16 or torch.float16: casts f32 parameters to this type, in which they are also sent.
                     Each worker keeps f32 masters of its shards; they are in state_dict().
    gradient_dtype   the dtype in which gradients of such parameters are averaged: torch.float32 or parameter_dtype
    policy           how to merge gradients; default: the model's policy if one was given, else `overlap`, the fastest; with
                     `sharded`, the best plan that shards everything, each worker has its share of the state only

    >>> model = mgwfbp.torch.DistributedDataParallel(model)                                         # doctest: +SKIP
    >>> optimizer = mgwfbp.torch.ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-3)  # doctest: +SKIP
    """

    def __init__(self, params: Union[torch.nn.Module, Iterable], optimizer_class: Type = torch.optim.AdamW,
                 process_group=None, parameters_as_bucket_view: bool = False, overlap_with_ddp: bool = False, *,
                 parameter_dtype: Optional[torch.dtype] = None, gradient_dtype: Optional[torch.dtype] = None,
                 policy: Optional[str] = None, **defaults: Any):
        _check_class(optimizer_class)
        if parameter_dtype not in (None, torch.bfloat16, torch.float16):
            raise ValueError(f"parameter_dtype: must be torch.bfloat16 or torch.float16, not {parameter_dtype}")
        if gradient_dtype not in (None, torch.float32, parameter_dtype):
            raise ValueError(f"gradient_dtype: must be torch.float32 or parameter_dtype, not {gradient_dtype}")
        if overlap_with_ddp:
            warnings.warn("overlap_with_ddp has no effect: communication always overlaps with computation; call step() "
                          "as with any optimizer", stacklevel=2)
        given = list(params.parameters()) if isinstance(params, torch.nn.Module) else list(params)
        if isinstance(params, torch.nn.Module):
            given = [parameter for parameter in given if parameter.requires_grad]
        first = given[0] if given and isinstance(given[0], dict) else {}
        own = {key: value for key, value in first.items() if key != "params"}
        some = first.get("params", given) if first else given
        device = next((each.device for each in some if isinstance(each, Tensor)), None) if isinstance(some, (list, tuple)) else None
        probe = optimizer_class([{**own, "params": [torch.zeros(1, device=device)]}], **defaults)  # checks the options, has the defaults
        self.optimizer_class, self._options = optimizer_class, defaults
        self._sharding: Optional[Sharding] = None
        super().__init__(given, probe.defaults)
        self.state = _NoState()
        self._sync, module = find_sync(self._all_parameters())
        if process_group is not None and other_group(process_group) is not self._sync.group.group:
            raise ValueError("process_group: not the process group in which the model's gradients are averaged")
        self._sync.group.agree([f"{optimizer_class.__name__} {parameter_dtype} {gradient_dtype} {policy} parameters " +
                                " ".join(str(len(group["params"])) for group in self.param_groups)], "optimizer")
        self._whole: Optional[dict] = None  # the result of consolidate_state_dict
        self._pending: Dict[int, Dict[str, Any]] = {}  # loaded state, by id of the parameter
        self._sharding = Sharding(self._sync, module, parameter_dtype, gradient_dtype or torch.float32)
        self._runs = Runs(optimizer_class, defaults)
        self._sharding.optimizer = weakref.ref(self)
        self._sync.attach(self._sharding, policy)

    def _all_parameters(self) -> List[Tensor]:
        return [parameter for group in self.param_groups for parameter in group["params"]]

    # ---- Shards ----

    def _install(self) -> None:
        """The reducer was created."""
        self._runs.bind(self._sharding, self._group_of(), self.param_groups)
        self._take_up({})

    def _take_up(self, now: Parts) -> None:
        """Takes loaded state and f32 masters for this worker's shards."""
        parts = {shard.tensor: self._part(shard, now.get(shard.tensor)) for shard in self._sharding.reducer.shards.own}
        self._pending, self._sharding.masters = {}, {}
        self._runs.make({k: part for k, part in parts.items() if part.arrays or part.numbers})

    def _part(self, shard, now: Optional[Part]) -> Part:
        parameter, slot = self._sync.parameters[shard.tensor], self._sharding.slots_now[shard.tensor]
        loaded, master = self._pending.get(id(parameter), {}), self._sharding.masters.get(id(parameter))
        if self._sharding.parameter_dtype is None:
            loaded = {name: value for name, value in loaded.items() if name != MASTER}
        part = from_plain(loaded, slot, shard.first, shard.count, self._runs.dtype_of(shard.tensor), parameter.device)
        if master is not None:
            part.arrays.setdefault(MASTER, master[shard.first:shard.first + shard.count].clone())
        if now is not None and MASTER in now.arrays:
            part.arrays.setdefault(MASTER, now.arrays[MASTER].clone())
        return part

    def _group_of(self) -> Dict[int, int]:
        """By tensor in ready order: its parameter group."""
        places = {id(parameter): k for k, parameter in enumerate(self._sync.parameters)}
        return {places[id(parameter)]: i for i, group in enumerate(self.param_groups) for parameter in group["params"]
                if id(parameter) in places}

    def _reshard(self, before) -> None:
        """Ownership moves, and the state with it. Collective."""
        sharding = self._sharding
        reducer = sharding.reducer
        try:
            self._runs.make(move(self._sync.group, sharding.slots_now, self._runs.take(), before, reducer.shards,
                                 lambda dtype, array: reducer.move(before, dtype, array), self._sync.device))
        except torch.cuda.OutOfMemoryError as error:
            raise RuntimeError("no memory for the optimizer's state under the next plan. What a plan sends by all-reduces has "
                               "its whole state on every worker; with policy='sharded', all state is sharded from the first "
                               f"step on. {error}") from error
        except RuntimeError as error:
            if isinstance(error, Error):  # the engine's, which names who is gone
                raise
            raise RuntimeError(f"rank {self._sync.group.rank}: the optimizer's state moves with a new plan, over "
                               f"{self._sync.group.about}: {error}") from error

    def add_param_group(self, param_group: Dict[str, Any]) -> None:
        super().add_param_group(param_group)
        if self._sharding is not None:  # not called by the constructor
            known = {id(parameter) for parameter in self._sync.parameters}
            added = self.param_groups[-1]["params"]
            if any(p.requires_grad and id(p) not in known for p in added):
                self.param_groups.pop()
                raise ValueError("add_param_group: the gradient of a parameter is not averaged: it must require a gradient "
                                 "when the model is wrapped")
            self._whole = None
            if self._sharding.reducer is not None:
                self._runs.groups = self._group_of()
                self._runs.make(self._runs.take())

    # ---- Steps ----

    @torch.no_grad()
    def step(self, closure: Optional[Callable[[], Any]] = None, **named: Any) -> Any:
        if named:
            raise TypeError(f"step: ZeroRedundancyOptimizer does not support {', '.join(named)}")
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        sharding = self._sharding
        self._sync.check_ended()
        if not sharding.is_fresh:
            self._check_nothing_to_do()
            return loss
        with self._sync._inside():
            present = sharding.take_in()
            self._runs.step(present)
            self._whole = None
            sharding.publish()
        return loss

    def _check_nothing_to_do(self) -> None:
        """As with any optimizer, without gradients nothing is done. Using the same gradients twice is an error."""
        if any(p.grad is not None for p in self._all_parameters()):
            raise RuntimeError("step: no gradients were averaged since the last step: there was no backward pass through "
                               "the wrapped model (or only inside no_sync()). To step several times with the same gradients, "
                               "use an optimizer of torch.optim")

    def zero_grad(self, set_to_none: bool = True) -> None:
        with torch._C.DisableTorchFunction():  # accessing gradients must not wait for parameters
            if self._sharding.reducer is not None:
                self._sharding.release_gradients(self._runs.groups)
                self._sharding.drop_gradients()
            super().zero_grad(set_to_none=set_to_none)

    def drain(self) -> None:
        """Waits until all parameters are complete. Using a parameter waits for it automatically; call this before reads
        that PyTorch does not see (memory shared earlier, a captured graph)."""
        with self._sync._inside():
            self._sharding.drain()

    def gather_gradients(self) -> None:
        """Between backward and step: makes all gradients complete, so that they can be read. All workers must call it."""
        with self._sync._inside():
            self._sharding.gather_gradients()

    def statistics(self) -> Dict[str, float]:
        """`state_bytes`: bytes of the optimizer's state on this worker, including masters; `runs`: the number of tensors of
        the inner optimizer; `held`: the number of steps that waited for all gathers at once, since parameters could have
        been read unnoticed."""
        return {"state_bytes": self._runs.state_bytes(), "runs": len(self._runs.runs), "held": self._sharding.held}

    # ---- Checkpoints ----

    def consolidate_state_dict(self, to: int = 0) -> None:
        """Makes state_dict() possible on the rank `to`, until the next step. All workers must call it."""
        sharding = self._sharding
        if sharding.is_closed:
            raise RuntimeError("consolidate_state_dict: the model was closed, and the optimizer's state with it; call this before "
                               "close()")
        with self._sync._inside(), torch.no_grad():
            whole = {}
            if sharding.reducer is not None:
                slots = sharding.slots_now
                wish = (lambda k: (0, slots[k].elements)) if self._sync.group.rank == to else (lambda k: None)
                parts = collect(self._sync.group, sharding.reducer.shards, sharding.reducer.layout, slots, self._runs.parts(),
                                wish, torch.device("cpu"))
                whole = {id(self._sync.parameters[k]): to_plain(part, slots[k]) for k, part in parts.items()}
            else:
                whole = dict(self._pending)
        self._whole = whole if self._sync.group.rank == to else None

    def state_dict(self) -> dict:
        """The state of whole tensors, in the format of the inner optimizer, with "master" for each if parameter_dtype is
        set. Call consolidate_state_dict first; works on the rank that it names."""
        if self._whole is None:
            raise RuntimeError("state_dict: the optimizer's state is sharded among workers. After the last step, call "
                               "consolidate_state_dict(to=RANK) on all workers, then state_dict() on that rank")
        order = {id(parameter): i for i, parameter in enumerate(self._all_parameters())}
        return {"state": {order[key]: state for key, state in sorted(self._whole.items(), key=lambda item: order.get(item[0], 0))
                          if key in order and state},
                "param_groups": [{**{key: value for key, value in group.items() if key != "params"},
                                  "params": [order[id(parameter)] for parameter in group["params"]]}
                                 for group in self.param_groups]}

    def load_state_dict(self, state_dict: dict) -> None:
        """Loads the state of this class or of the plain optimizer. All workers pass the same; each takes the part for its
        shards."""
        groups_given, parameters = state_dict["param_groups"], self._all_parameters()
        if [len(group["params"]) for group in groups_given] != [len(group["params"]) for group in self.param_groups]:
            raise ValueError("load_state_dict: the parameter groups have different sizes")
        for group, told in zip(self.param_groups, groups_given):
            group.update({key: value for key, value in told.items() if key != "params"})
        keys = [key for group in groups_given for key in group["params"]]
        states = state_dict["state"]
        # Copied, since it is taken up later: until then other optimizers may change what they have loaded from the same dict.
        loaded = {id(p): copy.deepcopy(states[key]) for key, p in zip(keys, parameters) if key in states}
        self._pending, self._whole = loaded, None
        if self._sharding.reducer is not None:
            self._sharding.drain()
            self._take_up(self._runs.parts())

    def __getstate__(self):
        raise TypeError("a ZeroRedundancyOptimizer cannot be copied or pickled; save its state_dict()")
