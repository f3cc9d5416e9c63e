"""Parameters whose gather is under way: whoever uses one waits for it, and nobody else does.

While a parameter is on its way its class is `Awaited`. PyTorch asks such a class before every function that takes the
parameter, wherever it is called from: its own module, another one, a functional call, state_dict(), a copy. The first one
waits, and the parameter is a plain one again. So no module has to say which parameters it uses, and the order in which
they are needed is the order in which they are used.

What PyTorch cannot ask about: other tensors that show the same memory (`w = p.data` of before), scripted and compiled code.
`References` counts the former; zero.py waits for everything where there are any.
"""

import copy
import ctypes
from typing import Callable, Dict, List, Optional

import torch
from torch import Tensor
from torch.nn import Parameter

_arrivals: Dict[int, Callable[[], None]] = {}  # by id of the parameter: what waits for it


def _getters(*names: str):
    return [getattr(Tensor, name).__get__ for name in names if hasattr(Tensor, name)]


# What says nothing about the numbers: `grad`, shapes, hooks. All else waits.
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
    """A class of somebody else's is not to be touched."""
    return type(parameter) is Parameter or type(parameter) is Awaited


def expect(parameter: Tensor, wait: Callable[[], None]) -> None:
    """From now on the first use of the parameter calls `wait`, which comes back when it is there."""
    _arrivals[id(parameter)] = wait
    parameter.__class__ = Awaited


def arrive(parameter: Tensor) -> None:
    """It is used: waits, if it has to be waited for. A copy of one that was expected is not."""
    if type(parameter) is Awaited:
        parameter.__class__ = Parameter
        wait = _arrivals.pop(id(parameter), None)
        if wait:
            wait()


def arrived(parameter: Tensor) -> None:
    """It is there."""
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


# ---- Who else has the memory ----


def _count(storage) -> int:
    """References to a storage, by PyTorch's own account: the count behind the pointer to its methods."""
    return ctypes.c_uint32.from_address(storage._cdata + 8).value


def _storage(tensor: Tensor):
    return tensor.untyped_storage() if hasattr(tensor, "untyped_storage") else tensor.storage()._storage


def _counts_right() -> bool:
    """Whether that is so in this version of PyTorch."""
    try:
        tensor = torch.zeros(4)
        before = _count(_storage(tensor))
        others = [tensor[1:], tensor.detach(), tensor.numpy()]
        during = _count(_storage(tensor))
        others.clear()
        return during == before + 3 and _count(_storage(tensor)) == before
    except Exception:
        return False


class References:
    """To some pieces of memory: whether there are any besides our own. What is made inside of `ours` is."""

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
