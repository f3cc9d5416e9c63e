"""Finds which of several candidates takes the least time per step, by trying them in turn. PyTorch is not needed."""

from collections import namedtuple
from ctypes import c_double, c_size_t
from typing import List, Optional, Sequence

from . import _lib
from ._lib import lib

# The results of a candidate: see mgwfbp/trial.h.
Outcome = namedtuple("Outcome", [name for name, _ in _lib.TrialOutcome._fields_])


class Trial(_lib.Object, kind="mgw_trial"):
    """Candidate 0 is the baseline: it wins unless another is clearly not worse. Zeros stand for defaults.

    >>> trial = Trial(3, most_rounds=50)
    >>> while trial.winner is None:
    ...     trial.round([Trial.turn([(1.0, 0.9, 1.2)[candidate]] * (trial.turn_steps - 1)) for candidate in trial.left])
    >>> trial.winner, trial.steps, round(trial.result(2).ratio, 3)
    (1, 30, 1.333)
    """

    def __init__(self, candidates: int, close: float = 0.0, risk: float = 0.0, turn_steps: int = 0,
                 most_rounds: int = 0):
        self.candidates = candidates
        super().__init__(lib.mgw_trial_create(_lib.TrialOptions(close, risk, turn_steps, most_rounds), candidates))
        options = lib.mgw_trial_options_of(self)
        self.close_share, self.risk = options.close, options.risk
        self.turn_steps, self.most_rounds = options.turn_steps, options.most_rounds

    @property
    def left(self) -> List[int]:
        """The candidates still in, in the order of their turns in the next round."""
        order = (c_size_t * self.candidates)()
        return order[:lib.mgw_trial_left(self, order)]

    @staticmethod
    def turn(seconds: Sequence[float]) -> float:
        """The time of a step in a turn, from the times of its steps except the first."""
        return lib.mgw_trial_turn((c_double * len(seconds))(*seconds), len(seconds))

    def round(self, seconds: Sequence[float]) -> None:
        """Reports a round: the time of a step of each candidate, in the order of `left`."""
        if len(seconds) != len(self.left):
            raise ValueError(f"seconds: {len(seconds)} numbers, but {len(self.left)} candidates are left")
        lib.mgw_trial_round(self, (c_double * len(seconds))(*seconds))

    @property
    def winner(self) -> Optional[int]:
        """The winner; None until the trial is over."""
        over, winner = lib.mgw_trial_over(self)
        return winner if over else None

    def result(self, candidate: int) -> Outcome:
        if not 0 <= candidate < self.candidates:
            raise IndexError(f"candidate {candidate} is out of range: there are {self.candidates}")
        found = lib.mgw_trial_result(self, candidate)
        return Outcome(*(getattr(found, name) for name in Outcome._fields))

    @property
    def steps(self) -> int:
        """The number of steps in all rounds so far."""
        return lib.mgw_trial_steps(self)
