"""Which worker owns which elements under a plan: mgw_shards, in the form that the sharded optimizer needs."""

from typing import List, NamedTuple, Optional, Sequence, Tuple

from .. import core


class Piece(NamedTuple):
    """A piece of a dtype's memory that no operation cuts. Every worker has all of it or, if `shared_out`, its own part."""

    dtype: str
    begin: int
    length: int
    shared_out: bool
    reduced_by: int
    gathered_by: Optional[int]
    owned: List[Tuple[int, int]]  # by rank: begin in the memory, and length


class Ownership:
    """Pieces in memory order, dtype by dtype; and `own`, the shards of this rank, tensor by tensor."""

    def __init__(self, layout: core.Layout, operations: Sequence[core.Operation], rank: int, workers: int):
        self._shards, self._rank = core.Shards(layout, operations, workers), rank
        self.pieces: List[Piece] = []
        for i, piece in enumerate(self._shards.pieces()):
            owned = [self._shards.owned(i, each) for each in range(workers)]
            self.pieces.append(Piece(*piece[:5], piece.gathered_by if piece.shared_out else None,
                                     [(part.start, part.stop - part.start) for part in owned]))
        self.own = self._shards.of(rank)

    def is_same(self, other: "Ownership") -> bool:
        """Whether all workers own the same elements."""
        mine, others = ([(p.dtype, p.begin, p.length) for p in each.pieces if p.shared_out] for each in (self, other))
        return mine == others

    def length(self, dtype: str) -> int:
        """Elements of an array that holds this worker's shards of a dtype, one after the other."""
        return self._shards.length(self._rank, dtype)

    def moves_to(self, after: "Ownership", dtype: str) -> Tuple[List[core.Move], int]:
        """The moves that turn such an array into the one under `after`, and the elements of the scratch."""
        return self._shards.moves(after._shards, self._rank, dtype)

    def pieces_of(self, operation: int, dtype: str) -> List[Piece]:
        """The pieces that a half moves."""
        return [p for p in self.pieces if p.dtype == dtype and operation in (p.reduced_by, p.gathered_by)]
