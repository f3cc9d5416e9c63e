"""Methods of both wrappers, DistributedDataParallel and DistributedOptimizer, besides averaging."""

from typing import Any

from ..planning import Trace
from . import report
from .sync import GradientSync


class Wrapper:
    """Methods that use the wrapper's GradientSync."""

    _sync: GradientSync

    def report(self) -> report.Report:
        """Step time, computation, exposed communication, messages, the prediction for each policy, and an upper bound on
        the possible gain: a table when printed, with its numbers as attributes. Any worker may call it, between steps."""
        return report.make(self._sync)

    def statistics(self) -> dict:
        """Counts over all steps: steps, plans, messages, arena_bytes, tensors, copies, copied_bytes; and wire_bytes, the
        bytes of the gradients of one step as sent."""
        return self._sync.statistics()

    def save_plan(self, path) -> None:
        """Saves the current plan to a file. A later run uses it with `plan=` (or MGWFBP_PLAN). Between steps."""
        self._sync.reducer.save_plan(path)

    def save_measurements(self, trace, cluster, **about: Any) -> None:
        """Saves what the steps have shown to two files, for `mgwfbp advise TRACE CLUSTER` and other commands: a step of the
        model without messages, and the network as training sees it. `about` are further members of the trace: model, batch,
        precision, device. Any worker may call it, between steps."""
        described = report.describe(self._sync)
        if described is None:
            raise RuntimeError(f"{trace}: nothing measured yet; the first plan is made after a few steps")
        Trace.of({**described[0].dict(), **about}).save(trace)
        described[1].save(cluster)

    def set_policy(self, policy: str) -> None:
        """Uses this policy from the next step on, with a new plan made from the measurements. All workers must call it."""
        self._sync.options = self._sync.options._replace(policy=policy)
        self._sync.reducer.set_policy(policy)

    def close(self) -> None:
        """Stops averaging and frees resources; the model can still be used, or wrapped again."""
        self._sync.close()
