"""Uses of awaited parameters (awaited.py) that PyTorch does not tell their class.

Some of them pass through functions of PyTorch that are written in Python: these ask for what they use first. Scripted
modules read their parameters unnoticed at any time, so modules that are scripted or traced are remembered. What is left,
such as extensions in C++, sharding.py notices afterwards.
"""

import importlib
import weakref
from typing import Any, Callable, Dict

import torch

from . import awaited

# Functions of PyTorch 2 that take parameters out of the reach of their class; earlier versions lack some of them.
TAKING = (("torch._functorch.utils", "unwrap_dead_wrappers"),  # autograd.Function.apply
          ("torch._functorch.eager_transforms", "_wrap_tensor_for_grad"),
          ("torch._functorch.eager_transforms", "_wrap_all_tensors_to_functional"),
          ("torch._functorch.vmap", "_create_batched_inputs"))

_scripted: Dict[int, "weakref.ref[torch.Tensor]"] = {}  # by id


def is_scripted(parameter: torch.Tensor) -> bool:
    """Whether a module that was scripted or traced has the parameter."""
    return id(parameter) in _scripted and _scripted[id(parameter)]() is parameter


def _ask_first(owner: Any, name: str, ask: Callable) -> None:
    """From now on, that function calls `ask` with its arguments before it does its work."""
    call = getattr(owner, name, None)
    if call is None:
        return

    def asking(*args, **kwargs):
        ask(args, kwargs)
        return call(*args, **kwargs)

    setattr(owner, name, asking)


def _arrive(args: tuple, kwargs: dict) -> None:
    if awaited.are_any():
        awaited.arrive_all(args)
        awaited.arrive_all(kwargs.values())


def _note_module(args: tuple, kwargs: dict) -> None:
    module = args[0] if args else kwargs["nn_module"]
    for parameter in module.parameters():
        awaited.arrive(parameter)
        _scripted[id(parameter)] = weakref.ref(parameter, lambda _, key=id(parameter): _scripted.pop(key, None) and None)


def listen() -> None:
    """Once, when the package is loaded: modules may be scripted before there is an optimizer."""
    _ask_first(torch.jit.ScriptFunction, "__call__", _arrive)
    _ask_first(torch.jit._recursive, "create_script_module", _note_module)
    for module, name in TAKING:
        try:
            _ask_first(importlib.import_module(module), name, _arrive)
        except ImportError:
            pass


listen()
