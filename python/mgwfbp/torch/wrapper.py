"""What both wrappers, DistributedDataParallel and DistributedOptimizer, offer beside averaging."""

from . import report
from .sync import GradientSync


class Wrapper:
    """What they do with their GradientSync."""

    _sync: GradientSync

    def report(self) -> report.Report:
        """Iteration time, compute, exposed communication, messages, what each policy would do, and the most that
        could be gained: a table when printed, and its numbers as attributes. Any worker may ask, between steps."""
        return report.make(self._sync)

    def statistics(self) -> dict:
        """Counts of all steps: steps, plans, messages, arena_bytes, tensors, copies, copied_bytes; wire_bytes: of
        the gradients of one step as they travel."""
        return self._sync.statistics()

    def save_plan(self, path) -> None:
        """The plan in force, as a file: with `plan=` (or MGWFBP_PLAN) a later run has the same cuts. Between steps."""
        self._sync.reducer.save_plan(path)

    def set_policy(self, policy: str) -> None:
        """From the next step on, this policy: plans anew from what was measured. All workers must call it."""
        self._sync.options = self._sync.options._replace(policy=policy)
        self._sync.reducer.set_policy(policy)

    def close(self) -> None:
        """Ends averaging and frees what is held; the model can be used on, or wrapped anew."""
        self._sync.close()
