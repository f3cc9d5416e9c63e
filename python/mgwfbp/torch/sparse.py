"""Sparse gradients (Embedding with sparse=True): averaged outside the arena, by rows.

As with DDP, modules tell before the first step which parameters have sparse gradients. Each worker's rows are sent to all
workers when backward has ended; the average has the rows of all.
"""

from typing import Callable, List, Optional, Sequence, Set, Tuple

import torch

from .groups import Group


def names_of(module: torch.nn.Module) -> Set[str]:
    """Names of the parameters whose modules declare sparse gradients."""
    return {f"{prefix}.{name}" if prefix else name for prefix, owner in module.named_modules()
            if isinstance(owner, (torch.nn.Embedding, torch.nn.EmbeddingBag)) and owner.sparse
            for name, _ in owner.named_parameters(recurse=False)}


class SparseGradients:
    def __init__(self, named: Sequence[Tuple[str, torch.Tensor]], group: Group):
        self.names, self.parameters = [name for name, _ in named], [parameter for _, parameter in named]
        self.group, self.hooks = group, []  # type: Group, list

    def __bool__(self) -> bool:
        return bool(self.parameters)

    def register(self, hook: Callable, call: Callable) -> None:
        self.hooks = [hook(parameter, call) for parameter in self.parameters]

    def unregister(self) -> None:
        for handle, _ in self.hooks:
            handle.remove()
        self.hooks = []

    def average(self, divisor: float, joined: bool = False) -> None:
        """`joined`: this worker has no inputs any more, and contributes nothing. Collective."""
        for parameter in self.parameters:
            own = None if joined else parameter.grad
            total = self._sum(parameter, own)
            if not joined:
                parameter.grad = None if total is None else total / divisor

    def _sum(self, parameter: torch.Tensor, own: Optional[torch.Tensor]) -> Optional[torch.Tensor]:
        """The sum over all workers; None if no worker has a gradient."""
        with torch.no_grad():
            own = own if own is None or own.is_sparse else own.to_sparse(1)
            own = own.coalesce() if own is not None else None
            rows = own._nnz() if own is not None else 0
            dense = parameter.dim() - (own.sparse_dim() if own is not None else 1)
            row = [0.0] * (3 * self.group.size)
            row[3 * self.group.rank:3 * self.group.rank + 3] = [float(own is not None), float(rows), float(dense)]
            counts = self.group.largest(row)
            if not any(counts[::3]):
                return None
            sparse_dim = parameter.dim() - int(max(counts[2::3]) if own is None else dense)
            indices: List[torch.Tensor] = []
            values: List[torch.Tensor] = []
            for rank in range(self.group.size):
                count = int(counts[3 * rank + 1])
                if not count:
                    continue
                mine = rank == self.group.rank and own is not None
                index = own.indices().contiguous() if mine else torch.empty(
                    sparse_dim, count, dtype=torch.int64, device=parameter.device)
                value = own.values().contiguous() if mine else torch.empty(
                    (count, *parameter.shape[sparse_dim:]), dtype=parameter.dtype, device=parameter.device)
                for tensor in (index, value):
                    there = tensor.to(self.group.device)
                    self.group.broadcast(there, rank)
                    tensor.copy_(there)
                indices.append(index)
                values.append(value)
            index = torch.cat(indices, 1) if indices else torch.empty(sparse_dim, 0, dtype=torch.int64,
                                                                      device=parameter.device)
            value = torch.cat(values) if values else torch.empty((0, *parameter.shape[sparse_dim:]), dtype=parameter.dtype,
                                                                 device=parameter.device)
            return torch.sparse_coo_tensor(index, value, parameter.shape).coalesce()
