"""An optimizer's state by tensor, independent of the optimizer object: it moves when the plan, the number of workers or the
parameter groups change, and is what checkpoints hold.

A `Part` is what a worker has of one tensor: numbers for the whole tensor (the step count), and arrays with an entry for
each of its elements. When a plan changes, what changes owners moves, bit for bit. For checkpoints, the owners' blocks are
gathered, one piece of memory at a time.
"""

import json
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

import torch
from torch import Tensor

from .. import core
from .groups import Group
from .halves import gather_blocks
from .ownership import Ownership, Piece
from .slots import DTYPES, Slot

MASTER = "master"  # name of the array with a parameter's f32 master
NUMBERS = {"step", "mu_product", "eta", "mu"}  # state that optimizers keep once per tensor


class Part(NamedTuple):
    """Elements first .. first+count-1 of a tensor."""

    first: int
    count: int
    arrays: Dict[str, Tensor]  # flat, of `count` elements
    numbers: Dict[str, Any]  # Python numbers, or 0-dimensional tensors


Parts = Dict[int, Part]  # by tensor
Wish = Callable[[int], Optional[Tuple[int, int]]]  # the wanted elements of a tensor (first, count), if any


# ---- The state of all workers ----


def _describe(parts: Parts) -> Dict[str, Any]:
    """Names, dtypes and numbers, for JSON."""
    def number(value):
        if not isinstance(value, Tensor):
            return [None, value, None]
        return [str(value.dtype).partition(".")[2], value.item(), value.device.type]

    return {str(k): {"arrays": {name: str(a.dtype).partition(".")[2] for name, a in sorted(part.arrays.items())},
                     "numbers": {name: number(value) for name, value in sorted(part.numbers.items())}}
            for k, part in parts.items()}


def _number(described, device: torch.device):
    dtype, value, where = described
    if dtype is None:
        return value
    return torch.tensor(value, dtype=getattr(torch, dtype), device="cpu" if where == "cpu" else device)


def _agree(group: Group, parts: Parts) -> Dict[int, Dict[str, Any]]:
    """Describes the state of all workers: a worker without a part of a tensor does not know its state. Collective."""
    own, known = json.dumps(_describe(parts)), {}
    for rank in range(group.size):
        known.update({int(k): what for k, what in json.loads(group._text_of(own, rank)).items()})
    return known


# ---- Moving ----

Mover = Callable[[str, Tensor], Tensor]  # moves an array of this worker's shards of a dtype, to its shards of the new plan


def move(group: Group, slots: Sequence[Slot], parts: Parts, before: Ownership, after: Ownership, mover: Mover,
         device: torch.device) -> Parts:
    """This worker's parts under `after`, from those under `before`, whose arrays are taken out: state need not exist three
    times. Collective."""
    known = _agree(group, parts)
    found = {shard.tensor: Part(shard.first, shard.count, {}, _numbers(known[shard.tensor], device))
             for shard in after.own if shard.tensor in known}
    kinds = {(DTYPES[slots[k].real], *item) for k, what in known.items() for item in what["arrays"].items()}
    for real, name, dtype in sorted(kinds):
        array = torch.zeros(before.length(real), dtype=getattr(torch, dtype), device=device)
        for shard in before.own:
            part = parts.get(shard.tensor)
            if shard.dtype == real and part is not None and name in part.arrays and part.arrays[name].dtype == array.dtype:
                array[shard.at:shard.at + shard.count].copy_(part.arrays.pop(name))  # freed with its last shard
        moved = mover(real, array)
        for shard in after.own:
            if shard.dtype == real and known.get(shard.tensor, {}).get("arrays", {}).get(name) == dtype:
                found[shard.tensor].arrays[name] = moved[shard.at:shard.at + shard.count]
    return found


def _numbers(what: Dict[str, Any], device: torch.device) -> Dict[str, Any]:
    return {name: _number(value, device) for name, value in what["numbers"].items()}


def collect(group: Group, shards: Ownership, layout: core.Layout, slots: Sequence[Slot], parts: Parts, wish: Wish,
            device: torch.device) -> Parts:
    """Collects the parts that this worker wishes for, from the parts of all workers under `shards`. Collective."""
    known = _agree(group, parts)
    found: Dict[int, Part] = {}
    for piece in shards.pieces:
        tensors = [k for k in range(len(slots)) if k in known and slots[k].elements
                   and _lies_in(piece, layout, slots, k)]
        for name, dtype in sorted({item for k in tensors for item in known[k]["arrays"].items()}):
            having = [k for k in tensors if known[k]["arrays"].get(name) == dtype]
            whole = _gather(group, piece, layout, parts, having, name, getattr(torch, dtype), device)
            for k in having:
                span = wish(k)
                if span is not None:
                    part = found.setdefault(k, Part(*span, {}, {}))
                    part.arrays[name] = whole(k, *span)
    for k, what in known.items():
        span = wish(k)
        if span is not None:
            part = found.setdefault(k, Part(*span, {}, {}))
            part.numbers.update(_numbers(what, device))
    return found


def _lies_in(piece: Piece, layout: core.Layout, slots: Sequence[Slot], k: int) -> bool:
    begin = layout.offset(k)
    return DTYPES[slots[k].real] == piece.dtype and piece.begin <= begin < piece.begin + piece.length


def _gather(group: Group, piece: Piece, layout: core.Layout, parts: Parts, tensors: List[int], name: str,
            dtype: torch.dtype, device: torch.device) -> Callable[[int, int, int], Tensor]:
    """Gathers a piece; returns a function that copies elements of a tensor out of it."""
    if not piece.shared_out:
        return lambda k, first, count: parts[k].arrays[name][first - parts[k].first:][:count].clone()
    whole = torch.zeros(piece.length, dtype=dtype, device=device)
    for k in tensors:
        part = parts.get(k)
        if part is not None and part.count:
            at = layout.offset(k) - piece.begin + part.first
            whole[at:at + part.count].copy_(part.arrays[name])
    gather_blocks(group, whole)

    def take(k: int, first: int, count: int) -> Tensor:
        at = layout.offset(k) - piece.begin + first
        return whole[at:at + count].clone()

    return take


# ---- The format of plain optimizers ----


def to_plain(part: Part, slot: Slot) -> Dict[str, Any]:
    """The state of a whole tensor in the format of a plain optimizer."""
    def shown(array: Tensor) -> Tensor:
        like = slot._replace(dtype=_complex_of(array.dtype) if slot.dtype.is_complex else array.dtype)
        return like.view(array)

    numbers = {name: v.clone() if isinstance(v, Tensor) else v for name, v in part.numbers.items()}
    return {**numbers, **{name: shown(array) for name, array in part.arrays.items()}}


def _complex_of(dtype: torch.dtype) -> torch.dtype:
    return {torch.float64: torch.complex128}.get(dtype, torch.complex64)


def from_plain(state: Dict[str, Any], slot: Slot, first: int, count: int, dtype: torch.dtype,
               device: torch.device) -> Part:
    """The part of a plain optimizer's state for some elements of a tensor."""
    part = Part(first, count, {}, {})
    for name, value in state.items():
        if isinstance(value, Tensor) and name not in NUMBERS and tuple(value.shape) == slot.shape:
            flat = torch.empty(slot.elements, dtype=dtype, device=device)
            like = slot._replace(dtype=_complex_of(dtype) if slot.dtype.is_complex else dtype)
            like.view(flat).copy_(value)
            part.arrays[name] = flat[first:first + count].clone()
        elif isinstance(value, Tensor) and value.dim() == 0:
            part.numbers[name] = value.clone()
        elif isinstance(value, Tensor):
            raise ValueError(f"state '{name}' of parameter '{slot.name}' has shape {list(value.shape)}, but the "
                             f"parameter has shape {list(slot.shape)}")
        else:
            part.numbers[name] = value
    return part
