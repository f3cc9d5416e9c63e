"""Parameters whose all-gather is in flight: using one waits for it.

While its all-gather is in flight, a parameter has the class `Awaited`. PyTorch calls __torch_function__ of that class
before every function that takes the parameter, wherever it is called from: its own module, another one, a functional call,
state_dict(), a copy. The first call waits and turns the parameter back into a plain one. So modules need not declare which
parameters they use, and the order of need is the order of use.

PyTorch does not see uses through other tensors with the same memory (an earlier `w = p.data`) or in scripted and compiled
code. `References` counts the former; if there are any, sharding.py waits for all gathers at once. hidden.py is about the latter.
"""

import contextlib
import copy
import ctypes
from typing import Callable, Dict, List, Optional

import torch
from torch import Tensor
from torch.nn import Parameter

_arrivals: Dict[int, Callable[[], None]] = {}  # by id of the parameter: the function that waits for it


def _getters(*names: str):
    return [getattr(Tensor, name).__get__ for name in names if hasattr(Tensor, name)]


# Functions that do not depend on the values: `grad`, shapes, hooks. All others wait.
ASIDE = set(_getters("grad", "_grad", "shape", "dtype", "device", "layout", "requires_grad", "is_leaf", "grad_fn", "is_cuda",
                     "is_cpu", "is_meta", "is_sparse", "is_quantized", "is_xla", "is_mps", "ndim", "names", "_version",
                     "retains_grad", "is_nested", "is_sparse_csr", "_backward_hooks", "output_nr", "itemsize", "nbytes",
                     "_post_accumulate_grad_hooks", "grad_dtype"))
ASIDE |= {Tensor.grad.__set__, Tensor.grad.__delete__, Tensor._grad.__set__, Tensor.requires_grad.__set__}
ASIDE |= {getattr(Tensor, name) for name in (
    "size", "dim", "ndimension", "numel", "nelement", "stride", "element_size", "is_floating_point", "is_complex",
    "is_contiguous", "is_signed", "get_device", "requires_grad_", "register_hook", "storage_offset", "__len__",
    "register_post_accumulate_grad_hook", "type", "is_inference", "has_names") if hasattr(Tensor, name)}


class Awaited(Parameter):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if function in ASIDE and not (function is Tensor.type and len(args) > 1):
            with torch._C.DisableTorchFunction():
                return function(*args, **kwargs)
        arrive_all(args)
        if kwargs:
            arrive_all(kwargs.values())
        return function(*args, **kwargs)

    def __deepcopy__(self, memo):
        arrive(self)
        return copy.deepcopy(self, memo)

    def __reduce_ex__(self, protocol):
        arrive(self)
        return self.__reduce_ex__(protocol)

    def __repr__(self, **named):
        arrive(self)
        return repr(self)


def can_await(parameter: Tensor) -> bool:
    """Only plain parameters: the class of a subclass must not be changed."""
    return type(parameter) is Parameter or type(parameter) is Awaited


def expect(parameter: Tensor, wait: Callable[[], None]) -> None:
    """From now on, the first use of the parameter calls `wait`, which returns when the parameter is complete."""
    _arrivals[id(parameter)] = wait
    parameter.__class__ = Awaited


def arrive(parameter: Tensor) -> None:
    """The parameter is used: waits for it if necessary. Copies of an awaited parameter need not wait."""
    if type(parameter) is Awaited:
        parameter.__class__ = Parameter
        wait = _arrivals.pop(id(parameter), None)
        if wait:
            with _outside_transforms():
                wait()


def _outside_transforms():
    """Inside of a transform of torch.func, what arrives must not be a part of it."""
    functorch = getattr(torch._C, "_functorch", None)
    if functorch is None or getattr(functorch, "peek_interpreter_stack", lambda: None)() is None:
        return contextlib.nullcontext()
    from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
    return temporarily_clear_interpreter_stack()


def are_any() -> bool:
    return bool(_arrivals)


def arrived(parameter: Tensor) -> None:
    """The parameter is complete: uses need not wait any more."""
    if type(parameter) is Awaited:
        parameter.__class__ = Parameter
        _arrivals.pop(id(parameter), None)


def arrive_all(values) -> None:
    for value in values:
        kind = type(value)
        if kind is Awaited:
            arrive(value)
        elif kind is Tensor or kind is Parameter:
            continue
        elif isinstance(value, (list, tuple)):
            arrive_all(value)
        elif isinstance(value, dict):
            arrive_all(value.values())


# ---- Other references to the memory ----


def _count(storage) -> int:
    """The reference count of a storage, which PyTorch keeps after the vtable pointer."""
    return ctypes.c_uint32.from_address(storage._cdata + 8).value


def _storage(tensor: Tensor):
    return tensor.untyped_storage() if hasattr(tensor, "untyped_storage") else tensor.storage()._storage


def _counts_right() -> bool:
    """Whether this holds in this version of PyTorch."""
    try:
        tensor = torch.zeros(4, device="cpu")
        before = _count(_storage(tensor))
        others = [tensor[1:], tensor.detach(), tensor.numpy()]
        during = _count(_storage(tensor))
        others.clear()
        return during == before + 3 and _count(_storage(tensor)) == before
    except Exception:
        return False


class References:
    """Tells whether others have references to our memory. References that are made inside a `with` block are our own."""

    can_count: Optional[bool] = None

    def __init__(self, memories: List[Tensor]):
        if References.can_count is None:
            References.can_count = _counts_right()
        self.memories, self.known = memories, 0
        self.known = self.now()

    def now(self) -> int:
        return sum(_count(_storage(memory)) for memory in self.memories) if self.can_count else 0

    def __enter__(self) -> None:
        self.before = self.now()

    def __exit__(self, *_) -> None:
        self.known += self.now() - self.before

    def has_others(self) -> bool:
        return not self.can_count or self.now() > self.known
