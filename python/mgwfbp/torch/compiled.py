"""torch.compile: splits graphs into pieces, so that communication can overlap with the backward pass.

A compiled backward pass delivers all of its gradients at its end, so no message could start before. While the forward pass
of a wrapped module runs, Dynamo is made to believe that it is PyTorch's own DDP, whose graphs it splits ("DDPOptimizer").
This file decides where to split. Each piece has its own backward pass, and its gradients arrive through the usual parameter
hooks when that ends. So everything works as without a compiler: tied or unused parameters, accumulation, autocast. Pieces
are finer than messages, since the plan is made later and may change.

The wrapper's own code is not traced: it runs between compiled pieces as it does between modules.
"""

import inspect
import operator
import sys
import warnings
from typing import Any, Callable, List, Optional, Sequence

import torch

PIECES = 24  # approximate number of pieces of a model; each costs the host about 0.1 ms
SMALLEST = 1 << 20  # bytes of gradients: less does not justify a piece
ENDS = 0.25  # size of the pieces with the first and the last gradients, relative to the others

INFINITE = float("inf")
IN_PLACE = ("iadd", "isub", "imul", "itruediv", "ifloordiv", "imatmul", "ipow", "imod", "iand", "ior", "ixor", "ilshift", "irshift")

Stock = torch.nn.parallel.DistributedDataParallel  # programs may put our class in its place; Dynamo asks the original
ALSO_AFTER_ERRORS = {"always_call": True} if hasattr(torch, "compile") else {}  # for forward hooks, which end the pieces
_decorate = getattr(torch, "_disable_dynamo", None)  # PyTorch 2.0 and later


def untraced(function: Callable) -> Callable:
    """Dynamo traces neither the function nor its callees."""
    return _decorate(function) if _decorate else function


def outside(function: Callable) -> Callable:
    """Dynamo does not trace the function, but traces its callees. Takes effect once a Pieces exists; costs nothing per
    call."""
    function._torchdynamo_disable = True  # type: ignore[attr-defined]
    _outside.append(function)
    return function


_outside: List[Callable] = []


def leave_alone(function: Callable) -> Callable:
    """Like `untraced`, without cost per call; only for functions that traced code does not call, such as autograd hooks."""
    if _decorate and hasattr(function, "__code__"):  # C functions are not traced
        from torch._dynamo import eval_frame
        try:
            from torch._dynamo.types import FrameAction, FrameExecStrategy
            eval_frame.set_code_exec_strategy(function.__code__, FrameExecStrategy(FrameAction.SKIP, FrameAction.SKIP))
        except (ImportError, AttributeError):  # before PyTorch 2.7: callees may be traced, which is correct but slow
            _skip(function)
    return function


def _skip(function: Callable) -> None:
    from torch._dynamo import eval_frame
    getattr(eval_frame, "skip_code", lambda code: None)(function.__code__)


def _check_autograd() -> None:
    """Compiled autograd traces hooks, and does not report when such a backward pass ends."""
    if getattr(sys.modules.get("torch._dynamo.compiled_autograd"), "compiled_autograd_enabled", False):
        raise RuntimeError("compiled autograd is not supported: gradients cannot be averaged during a backward pass that is "
                           "compiled as a whole. Set torch._dynamo.config.compiled_autograd = False")


# ---- Where to split ----


def _bytes(value: torch.Tensor) -> int:
    return value.numel() * value.element_size()


def _writes(node: Any, into: Any) -> bool:
    """Whether an operation modifies its first argument: `out += x`, x.add_(y), relu(x, inplace=True)."""
    if not node.args or node.args[0] is not into:
        return False
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    if name.endswith("_") and not name.endswith("__") or getattr(operator, name, None) is node.target and name in IN_PLACE:
        return True
    try:
        return bool(inspect.signature(node.target).bind(*node.args, **node.kwargs).arguments.get("inplace"))
    except (TypeError, ValueError):  # not a Python function
        return False


def _crossing(nodes: Sequence[Any], places: dict) -> List[float]:
    """By node: the number of tensors that are computed before it and used by it or later. Their sizes hardly matter: most
    are in memory anyway, for the next matrix multiplication. It is infinite between a tensor and an operation that modifies
    it in place, since the next piece would have to copy it; between a tuple and its users; and at nodes that Dynamo's
    splitter does not ask about."""
    crossing = [0.0 if node.op == "call_function" else INFINITE for node in nodes]
    for place, node in enumerate(nodes):
        last = max((places.get(user, len(nodes) - 1) for user in node.users), default=place)
        written = max((places[user] for user in node.users if user in places and _writes(user, node)),
                      default=place)
        value = node.meta.get("example_value")
        weight = INFINITE if isinstance(value, (tuple, list, dict)) else float(isinstance(value, torch.Tensor))
        for between in range(place + 1, last + 1):
            crossing[between] += INFINITE if between <= written else weight
    return crossing


def _completed(graph: Any, nodes: Sequence[Any], places: dict, wanted: Callable[[Any], bool]) -> List[int]:
    """By node: bytes of the gradients that are complete after its backward pass: those of parameters whose first use it
    is."""
    completed = [0] * len(nodes)
    for node in graph.nodes:
        value = node.meta.get("example_value") if node.op == "placeholder" else None
        users = [places[user] for user in node.users if user in places]
        if users and isinstance(value, torch.nn.Parameter) and value.requires_grad and wanted(value):
            completed[min(users)] += _bytes(value)
    return completed


def cut(completed: Sequence[int], crossing: Sequence[float], piece: int) -> List[int]:
    """Where pieces of about `piece` bytes begin, last first; among the possible places, the one that the fewest tensors
    cross. The backward pass goes from the last node to the first. Its first piece is small, so that communication starts
    early, and so is its last, since no computation hides its communication."""
    cuts, end, left, goal = [], len(completed), sum(completed), piece * ENDS

    def best(low: float, high: float, aim: float) -> Optional[tuple]:
        """A place with between low and high bytes after it, or the first one with more."""
        found, behind = None, 0
        for place in range(end - 1, 0, -1):
            behind += completed[place]
            if behind == left or behind > high and found:
                break
            if behind >= low and crossing[place] < INFINITE:
                found = min(found or (INFINITE,), (crossing[place], abs(behind - aim), place, behind))
        return found and found[2:]

    while left > piece:
        place, behind = best(goal / 2, 1.5 * goal, goal) or (0, 0)
        if not place:
            break
        cuts.append(place)
        end, left, goal = place, left - behind, piece
    if left > 2 * ENDS * piece and cuts:
        place, behind = best(left - 1.5 * ENDS * piece, left, left - ENDS * piece) or (0, 0)
        if place:
            cuts.append(place)
    return cuts


def _make_cutter() -> type:
    """The class that Dynamo uses instead of its DDPOptimizer, with our splits."""
    from torch._dynamo.backends import distributed

    class Cutter(distributed.DDPOptimizer):
        def __init__(self, bucket_bytes_cap: int, backend_compile_fn: Callable, **more: Any):
            Stock._active_ddp_module.use()
            super().__init__(bucket_bytes_cap, backend_compile_fn, min(bucket_bytes_cap, SMALLEST))
            self.cuts: List[int] = []
            self.places: dict = {}

        def compile_fn(self, gm: Any, example_inputs: list, **more: Any) -> Callable:
            if hasattr(distributed.DDPOptimizer, "add_param_args"):  # else it splits by size only
                nodes = [node for node in gm.graph.nodes if node.op not in ("placeholder", "output")]
                self.places = {node: place for place, node in enumerate(nodes)}
                self.completed = _completed(gm.graph, nodes, self.places, lambda p: not self._ignore_parameter(p))
                self.cuts = cut(self.completed, _crossing(nodes, self.places), self.bucket_bytes_cap)
                self.first_bucket_cap = self.bucket_bytes_cap
            try:
                return super().compile_fn(gm, example_inputs, **more)
            except NotImplementedError as error:  # older versions, if there are checkpoints in the graph
                warnings.warn(f"mgwfbp: cannot split a compiled graph, so its gradients will not overlap with computation: {error}")
                return self.backend_compile_fn(gm, example_inputs, **more)

        def add_param_args(self, bucket: Any, node: Any) -> None:
            """Called for each operation, last first; a full bucket ends."""
            place = self.places[node]
            if self.completed[place]:
                bucket.size = max(bucket.size, 1)  # 0: a bucket without parameters is merged with the next
            while self.cuts and place <= self.cuts[0]:
                self.cuts.pop(0)
                bucket.size = self.bucket_bytes_cap

        def add_param(self, bucket: Any, param: torch.Tensor, name: str) -> None:
            if not self.places:
                bucket.size += _bytes(param)
            bucket.params.append(name)

    return Cutter


class Pieces:
    """Stands in for a DDP module, for Dynamo, while a wrapped module's forward pass runs."""

    _cutter: Optional[type] = None

    def __init__(self, module: torch.nn.Module, parameters: Sequence[torch.Tensor]):
        self.bucket_bytes_cap = max(SMALLEST, sum(p.numel() * p.element_size() for p in parameters) // PIECES)
        self._before: Optional[tuple] = None
        self.are_used = False
        self.before_tracing: Callable = lambda: None  # returns a function to call, or None: a WeakMethod
        if _decorate:
            self._forget(module)
            while _outside:
                _skip(_outside.pop())

    @staticmethod
    def _forget(module: torch.nn.Module) -> None:
        """Code that was compiled before is not split, and would still be used."""
        from torch._dynamo import eval_frame
        reset = getattr(eval_frame, "reset_code", lambda code: None)
        for inner in module.modules():
            code = getattr(getattr(inner.forward, "__func__", None), "__code__", None)
            if code is not None:
                reset(code)

    def use(self) -> None:
        """Called when Dynamo is about to trace a frame."""
        self.are_used, call = True, self.before_tracing()
        if call:
            call()

    def enter(self) -> None:
        """A forward pass begins."""
        _check_autograd()
        if "torch._dynamo" not in sys.modules or not hasattr(Stock, "_active_ddp_module"):
            return
        from torch._dynamo.backends import distributed
        if Pieces._cutter is None:
            Pieces._cutter = _make_cutter()
        if self._before is None:  # else the previous forward pass was aborted
            self._before = Stock._active_ddp_module, distributed.DDPOptimizer
            Stock._active_ddp_module, distributed.DDPOptimizer = self, Pieces._cutter

    def leave(self) -> None:
        if self._before is not None:
            from torch._dynamo.backends import distributed
            Stock._active_ddp_module, distributed.DDPOptimizer = self._before
            self._before = None
