"""Sharded gradients, of which each worker has a part. This is what `.grad` is between backward and the next zero_grad(), if
the plan uses reduce-scatters or gradients are averaged in another dtype than that of the parameters.

The class of such a `.grad` is `Scattered`. Operations that make sense for a part run on the local part: in-place
multiplication, clamping and zeroing, norms (with one collective for all gradients together), and GradScaler's check and
unscaling. Operations that would read the values raise an error that names the alternative.
"""

import math
import weakref
from typing import Callable, Dict, List, Optional, Sequence

import torch
from torch import Tensor

# By id of a tensor whose class is Scattered. Models that are dropped must not be kept alive from here.
_owners: "weakref.WeakValueDictionary[int, Gradients]" = weakref.WeakValueDictionary()
_places: Dict[int, int] = {}

ELEMENTWISE = {  # in place; other tensors may be numbers or of the same shape
    "mul_", "div_", "add_", "sub_", "neg_", "clamp_", "clamp_min_", "clamp_max_", "clip_", "nan_to_num_", "fill_", "lerp_",
    "addcmul_", "addcdiv_", "copy_", "true_divide_", "multiply_", "divide_", "subtract_", "sign_", "__imul__",
    "__itruediv__", "__iadd__", "__isub__", "__idiv__", "masked_fill_", "pow_", "sqrt_", "abs_", "reciprocal_"}
NORMS = {"norm", "linalg_vector_norm", "vector_norm"}
SAME = {"detach", "data", "detach_", "requires_grad_", "contiguous"}
SHAPE = {"size", "dim", "ndimension", "numel", "nelement", "stride", "element_size", "is_floating_point", "is_complex",
         "is_contiguous", "get_device", "register_hook", "__len__", "shape", "device", "layout", "requires_grad", "is_leaf",
         "grad_fn", "is_cuda", "is_cpu", "is_meta", "is_sparse", "is_sparse_csr", "ndim", "_backward_hooks", "is_quantized",
         "is_xla", "is_mps", "names", "retains_grad", "grad", "is_nested", "has_names", "_post_accumulate_grad_hooks",
         "_is_view", "is_conj", "is_neg", "is_mkldnn", "storage_offset", "untyped_storage"}  # Dynamo asks for these


def _name(function: Callable) -> str:
    name = getattr(function, "__name__", "")
    return getattr(function.__self__, "__name__", name) if name == "__get__" else name


class Scattered(Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        kwargs, name = kwargs or {}, _name(function)
        if name in SHAPE:
            return _plain(function, args, kwargs)
        first = args[0] if args else None
        if len(args) == 2 and args[1] is first and function == Tensor.data.__set__:  # the end of `g.data /= 2`
            return None
        if name.startswith("_foreach_") or name.startswith("_amp_foreach_"):
            own = [t for t in first if type(t) is Scattered]
            if own and not _any_scattered(args[1:]) and not _any_scattered(kwargs.values()):
                return _owners[id(own[0])].many(name, function, list(first), args[1:], kwargs)
        if type(first) is Scattered and not _any_scattered(args[1:]) and not _any_scattered(kwargs.values()):
            return _owners[id(first)].one(name, function, first, args[1:], kwargs)
        raise _refusal(name, next(_scattered_in(args + tuple(kwargs.values())), None))

    def __repr__(self, **_):
        owner = _owners[id(self)]
        return f"<gradient of '{owner.names[_places[id(self)]]}', {list(self.shape)}; each worker has a part>"

    __str__ = __repr__

    def __format__(self, _):
        return repr(self)

    def __deepcopy__(self, memo):
        raise _refusal("deepcopy", self)

    def __reduce_ex__(self, protocol):
        raise _refusal("pickle", self)


def _plain(function, args, kwargs):
    with torch._C.DisableTorchFunction():
        return function(*args, **kwargs)


def _scattered_in(values):
    for value in values:
        if type(value) is Scattered:
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _scattered_in(value)


def _any_scattered(values) -> bool:
    return next(_scattered_in(values), None) is not None


def _refusal(name: str, tensor: Optional[Tensor]) -> RuntimeError:
    owner = _owners.get(id(tensor))
    whose = f" of '{owner.names[_places[id(tensor)]]}'" if owner else ""
    return RuntimeError(
        f"{name}: the gradient{whose} is sharded: each worker has only the part that it updates. Norms and in-place "
        "multiplication, clamping and addition work. To read it, first call gather_gradients() of the "
        "ZeroRedundancyOptimizer on all workers")


class _Magnitudes:
    """The result of `gradient.abs()`, of which only max() works: PyTorch 1.13 uses it to clip by the infinity norm."""

    def __init__(self, norm: Callable[[], Tensor], refuse: Callable[[str], Exception]):
        self.max, self._refuse = norm, refuse

    def __getattr__(self, name: str):
        raise self._refuse(f"abs().{name}")


class Gradients:
    """The gradients of all parameters, in ready order. `views` are the whole tensors in memory, `shards` this worker's
    parts."""

    def __init__(self, names: Sequence[str], views: Sequence[Tensor], total: Callable[[Tensor, str], None]):
        self.names, self.views, self.total = names, views, total
        self.shards: List[Tensor] = []
        self.marked: Dict[int, Tensor] = {}
        self.norms: Dict[float, Tensor] = {}

    def share(self, shards: List[Tensor], is_partial: List[bool]) -> None:
        """Sets this worker's part of each gradient, flat. If it is not partial, every worker has all of it."""
        device = self.views[0].device
        self.shards, self.is_whole = shards, ~torch.tensor(is_partial, device=device)
        self.by_dtype = []
        for dtype in dict.fromkeys(shard.dtype for shard in shards):
            some = [k for k, shard in enumerate(shards) if shard.dtype == dtype and shard.numel()]
            if some:
                self.by_dtype.append((torch.tensor(some, device=device), [shards[k] for k in some]))

    # ---- Marking tensors ----

    def mark(self, k: int, gradient: Tensor) -> None:
        """From now on this tensor, a parameter's .grad, stands for the local part."""
        _owners[id(gradient)], _places[id(gradient)] = self, k
        self.marked[k] = gradient
        gradient.__class__ = Scattered

    def unmark(self, k: int) -> None:
        gradient = self.marked.pop(k, None)
        if gradient is not None:
            gradient.__class__ = Tensor
            _owners.pop(id(gradient), None)  # it is gone if this object is garbage
            del _places[id(gradient)]

    def changed(self) -> None:
        self.norms.clear()

    # ---- Operations ----

    def one(self, name: str, function: Callable, gradient: Tensor, args: Sequence, kwargs: dict):
        k = _places[id(gradient)]
        if name in SAME:
            return gradient
        if name == "dtype":
            return self.views[k].dtype
        if name == "zero_":
            self.unmark(k)
            self.views[k].zero_()
            return gradient.zero_()
        if name in ELEMENTWISE:
            self.changed()
            with torch.no_grad():
                function(self._part(k, (*args, *kwargs.values())), *args, **kwargs)
            return gradient
        if name in NORMS:
            return self.norm(k, *_order(name, args, kwargs, gradient))
        if name == "abs":
            return _Magnitudes(lambda: self.norm(k, math.inf), lambda what: _refusal(what, gradient))
        raise _refusal(name, gradient)

    def _part(self, k: int, others: Sequence) -> Tensor:
        """The local part; or the whole memory if other arguments are tensors of the same shape, although some of that work
        is wasted."""
        whole = any(isinstance(other, Tensor) and other.dim() for other in others)
        return self.views[k] if whole else self.shards[k]

    def many(self, name: str, function: Callable, gradients: List[Tensor], args: Sequence, kwargs: dict):
        """Functions of the _foreach_ family."""
        if name == "_foreach_norm":
            order = _order(name, args, kwargs, gradients[0])
            return tuple(self.norm(_places[id(g)], *order) if type(g) is Scattered else
                         torch.linalg.vector_norm(g, *order[:1]) for g in gradients)
        if name == "_foreach_zero_":
            for gradient in gradients:
                gradient.zero_()
            return None
        short = name.partition("_foreach_")[2]
        if name != "_amp_foreach_non_finite_check_and_unscale_" and short not in ELEMENTWISE:
            raise _refusal(name, next(_scattered_in(gradients)))
        self.changed()
        lists = [a for a in (*args, *kwargs.values()) if isinstance(a, (list, tuple))]
        tensors = [t for some in lists for t in some]
        parts = [self._part(_places[id(g)], tensors) if type(g) is Scattered else g for g in gradients]
        with torch.no_grad():
            if name.startswith("_amp_"):
                return self._unscale(function, parts, *args, **kwargs)
            return function(parts, *args, **kwargs)

    def _unscale(self, function: Callable, parts: List[Tensor], found_inf: Tensor, inv_scale: Tensor):
        """An infinity or NaN in any worker's part counts on all workers."""
        by_dtype: Dict[torch.dtype, List[Tensor]] = {}
        for part in parts:
            if part.numel():
                by_dtype.setdefault(part.dtype, []).append(part)
        for some in by_dtype.values():
            function(some, found_inf, inv_scale)
        self.total(found_inf, "max")

    def norm(self, k: int, order: float, dtype: Optional[torch.dtype] = None) -> Tensor:
        """All workers must ask for the same norms, in the same order."""
        if order not in self.norms:
            self.norms[order] = self._agree(order)
        result = self.norms[order][k]
        return result.to(dtype or self.views[k].dtype)

    def _agree(self, order: float) -> Tensor:
        """Computes the norms of all gradients in one collective: parts are combined; gradients that every worker has in
        full need no combining."""
        sums = torch.zeros(len(self.shards), dtype=torch.float64, device=self.views[0].device)
        for places, parts in self.by_dtype:
            sums[places] = torch.stack(torch._foreach_norm(parts, order)).double()
        if math.isinf(order):
            self.total(sums, "max")
            return sums
        powers = sums if order == 0 else sums ** order
        shared = torch.where(self.is_whole, torch.zeros_like(powers), powers)
        self.total(shared, "sum")
        powers = torch.where(self.is_whole, powers, shared)
        return powers if order == 0 else powers ** (1.0 / order)


def _order(name: str, args: Sequence, kwargs: dict, gradient: Tensor):
    """The order and dtype of the norm; raises for norms over some dimensions only."""
    names = ("ord" if "vector" in name or "foreach" in name else "p", "dim", "keepdim", "dtype")
    told = {**dict(zip(names, args)), **kwargs}
    order, dtype = told.pop(names[0], 2), told.pop("dtype", None)
    if order in ("fro", None):
        order = 2
    if any(value is not None and value is not False for value in told.values()) or isinstance(order, str) or order == -math.inf:
        raise _refusal(name, gradient)
    return float(order), dtype
