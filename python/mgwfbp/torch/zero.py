"""ZeroRedundancyOptimizer: PyTorch's, by the same name: each worker keeps the optimizer's state of what it updates."""

import warnings
from typing import Any, Callable, Dict, Iterable, List, Optional, Type, Union

import torch
from torch import Tensor

from .runs import Runs
from .sharding import Sharding
from .state import MASTER, Part, Parts, collect, from_plain, to_plain
from .sync import find_sync

ELEMENTWISE = ("SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "Adadelta", "Adamax", "NAdam", "RAdam", "ASGD", "Rprop")


def _check_class(optimizer_class: Type) -> None:
    known = [getattr(torch.optim, name) for name in ELEMENTWISE if hasattr(torch.optim, name)]
    if optimizer_class in known or getattr(optimizer_class, "is_elementwise", False):
        return
    name = getattr(optimizer_class, "__name__", str(optimizer_class))
    raise ValueError(f"optimizer_class: {name} is not known to update every element by itself, and a worker has parts of "
                     f"tensors; use one of {', '.join(ELEMENTWISE)}, PyTorch's own ZeroRedundancyOptimizer, or, if {name} "
                     "does, give it an attribute `is_elementwise = True`")


class _NoState(dict):
    def __missing__(self, key):
        raise RuntimeError("the optimizer's state is shared out among workers: call consolidate_state_dict() on all of "
                           "them, then state_dict()")


class ZeroRedundancyOptimizer(torch.optim.Optimizer):
    """Updates the parameters of a model that is wrapped in mgwfbp.torch.DistributedDataParallel; each worker those that it
    has averaged, and the others get them while their next forward pass runs.

    It is called as torch.distributed.optim.ZeroRedundancyOptimizer is; `params` may be the model, too.

    parameter_dtype  torch.bfloat16 or torch.float16: what f32 parameters become, and travel as. Each worker keeps f32
                     originals ("masters") of what it updates; they are in state_dict().
    gradient_dtype   what gradients of such parameters are averaged in: torch.float32, or parameter_dtype
    policy           which messages; `overlap` unless the model was given one

    >>> model = mgwfbp.torch.DistributedDataParallel(model)                                         # doctest: +SKIP
    >>> optimizer = mgwfbp.torch.ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-3)  # doctest: +SKIP
    """

    def __init__(self, params: Union[torch.nn.Module, Iterable], optimizer_class: Type = torch.optim.AdamW,
                 process_group=None, parameters_as_bucket_view: bool = False, overlap_with_ddp: bool = False, *,
                 parameter_dtype: Optional[torch.dtype] = None, gradient_dtype: Optional[torch.dtype] = None,
                 policy: Optional[str] = None, **defaults: Any):
        _check_class(optimizer_class)
        if parameter_dtype not in (None, torch.bfloat16, torch.float16):
            raise ValueError(f"parameter_dtype: {parameter_dtype} is not torch.bfloat16 or torch.float16")
        if gradient_dtype not in (None, torch.float32, parameter_dtype):
            raise ValueError(f"gradient_dtype: {gradient_dtype} is not torch.float32 or parameter_dtype")
        if overlap_with_ddp:
            warnings.warn("overlap_with_ddp has no effect: communication overlaps the passes anyway; call step() as with "
                          "any optimizer", stacklevel=2)
        given = list(params.parameters()) if isinstance(params, torch.nn.Module) else list(params)
        if isinstance(params, torch.nn.Module):
            given = [parameter for parameter in given if parameter.requires_grad]
        first = given[0] if given and isinstance(given[0], dict) else {}
        own = {key: value for key, value in first.items() if key != "params"}
        probe = optimizer_class([{**own, "params": [torch.zeros(1)]}], **defaults)  # checks them, and knows the others
        self.optimizer_class, self._options = optimizer_class, defaults
        self._sharding: Optional[Sharding] = None
        super().__init__(given, probe.defaults)
        self.state = _NoState()
        self._sync, module = find_sync(self._all_parameters())
        if process_group is not None and getattr(self._sync.group, "group", None) is not process_group:
            raise ValueError("process_group: it is not the one that the model's gradients are averaged in")
        self._sync.group.agree([f"{optimizer_class.__name__} {parameter_dtype} {gradient_dtype} {policy} parameters " +
                                " ".join(str(len(group["params"])) for group in self.param_groups)], "optimizer")
        self._whole: Optional[dict] = None  # what consolidate_state_dict has found
        self._pending: Dict[int, Dict[str, Any]] = {}  # state to be taken up, by parameter's id
        self._sharding = Sharding(self._sync, module, parameter_dtype, gradient_dtype or torch.float32)
        self._runs = Runs(optimizer_class, defaults)
        self._sharding.on_install, self._sharding.on_reshard = self._install, self._reshard
        self._sync.attach(self._sharding, policy)

    def _all_parameters(self) -> List[Tensor]:
        return [parameter for group in self.param_groups for parameter in group["params"]]

    # ---- What the shards are ----

    def _install(self) -> None:
        """The reducer is there."""
        self._runs.bind(self._sharding, self._group_of(), self.param_groups)
        self._take_up({})

    def _take_up(self, now: Parts) -> None:
        """State that was loaded, and f32 originals, as far as they are this worker's."""
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
        own = {shard.tensor: (shard.first, shard.count) for shard in self._sharding.reducer.shards.own}
        self._runs.make(self._collect(before, own.get, self._sync.device))

    def _collect(self, shards, wish, device):
        sharding = self._sharding
        return collect(self._sync.group, shards, sharding.reducer.layout, sharding.slots_now, self._runs.parts(), wish,
                       device)

    def add_param_group(self, param_group: Dict[str, Any]) -> None:
        super().add_param_group(param_group)
        if self._sharding is not None:  # not by the constructor
            known = {id(parameter) for parameter in self._sync.parameters}
            added = self.param_groups[-1]["params"]
            if any(p.requires_grad and id(p) not in known for p in added):
                self.param_groups.pop()
                raise ValueError("add_param_group: a parameter is not among those whose gradients are averaged: it must "
                                 "require a gradient when the model is wrapped")
            self._whole = None
            if self._sharding.reducer is not None:
                self._runs.groups = self._group_of()
                self._runs.make(self._runs.copies())

    # ---- Steps ----

    @torch.no_grad()
    def step(self, closure: Optional[Callable[[], Any]] = None, **named: Any) -> Any:
        if named:
            raise TypeError(f"step: {', '.join(named)}: not supported by ZeroRedundancyOptimizer")
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
        """As with any optimizer, no gradients mean no step. But the same ones twice would."""
        if any(p.grad is not None for p in self._all_parameters()):
            raise RuntimeError("step: no gradients were averaged since the last one: there was no backward pass through the "
                               "wrapped model (or inside of no_sync() only). For several steps with one gradient use an "
                               "optimizer of torch.optim")

    def zero_grad(self, set_to_none: bool = True) -> None:
        with torch._C.DisableTorchFunction():  # gradients are not what a parameter on its way is waited for
            if self._sharding.reducer is not None:
                self._sharding.release_gradients(self._runs.groups)
            super().zero_grad(set_to_none=set_to_none)

    def drain(self) -> None:
        """All parameters are whole afterwards. Whoever uses one waits for it by itself; this is for readers that PyTorch
        knows nothing about (memory that was shared with others before, a captured graph)."""
        with self._sync._inside():
            self._sharding.drain()

    def gather_gradients(self) -> None:
        """Between backward and step: makes all gradients whole, so that they can be read. All workers must call it."""
        with self._sync._inside():
            self._sharding.gather_gradients()

    def statistics(self) -> Dict[str, float]:
        """Counts: bytes of the optimizer's state on this worker, masters among them; runs, which are the tensors that the
        optimizer inside has; `held`, the steps that waited for all gathers at once, since somebody could have read
        parameters unseen."""
        return {"state_bytes": self._runs.state_bytes(), "runs": len(self._runs.runs), "held": self._sharding.held}

    # ---- Checkpoints ----

    def consolidate_state_dict(self, to: int = 0) -> None:
        """Makes state_dict() possible on the rank `to`, until the next step. All workers must call it."""
        sharding = self._sharding
        with self._sync._inside(), torch.no_grad():
            whole = {}
            if sharding.reducer is not None:
                slots = sharding.slots_now
                wish = (lambda k: (0, slots[k].elements)) if self._sync.group.rank == to else (lambda k: None)
                parts = self._collect(sharding.reducer.shards, wish, torch.device("cpu"))
                whole = {id(self._sync.parameters[k]): to_plain(part, slots[k]) for k, part in parts.items()}
            else:
                whole = dict(self._pending)
        self._whole = self._plain(whole) if self._sync.group.rank == to else None

    def _plain(self, whole: Dict[int, Dict[str, Any]]) -> dict:
        """As an optimizer of torch.optim has it."""
        order = {id(parameter): i for i, parameter in enumerate(self._all_parameters())}
        return {"state": {order[key]: state for key, state in sorted(whole.items(), key=lambda item: order.get(item[0], 0))
                          if key in order and state},
                "param_groups": [{**{key: value for key, value in group.items() if key != "params"},
                                  "params": [order[id(parameter)] for parameter in group["params"]]}
                                 for group in self.param_groups]}

    def state_dict(self) -> dict:
        """As the optimizer inside has it of whole tensors; and, with parameter_dtype, "master" of each. After
        consolidate_state_dict, on the rank that it names."""
        if self._whole is None:
            raise RuntimeError("state_dict: the optimizer's state is shared out among workers. Call "
                               "consolidate_state_dict(to=RANK) on all workers first, after the last step, and this on that "
                               "rank")
        return self._whole

    def load_state_dict(self, state_dict: dict) -> None:
        """Of this class, or of the plain optimizer: all workers the same. Each takes what is its own."""
        groups_given, parameters = state_dict["param_groups"], self._all_parameters()
        if [len(group["params"]) for group in groups_given] != [len(group["params"]) for group in self.param_groups]:
            raise ValueError("load_state_dict: the parameter groups are not of the same sizes")
        for group, told in zip(self.param_groups, groups_given):
            group.update({key: value for key, value in told.items() if key != "params"})
        keys = [key for group in groups_given for key in group["params"]]
        states = state_dict["state"]
        loaded = {id(p): states[key] for key, p in zip(keys, parameters) if key in states}
        self._pending, self._whole = loaded, None
        if self._sharding.reducer is not None:
            self._sharding.drain()
            self._take_up(self._runs.parts())

    def __getstate__(self):
        raise TypeError("a ZeroRedundancyOptimizer cannot be copied or pickled; save its state_dict()")
