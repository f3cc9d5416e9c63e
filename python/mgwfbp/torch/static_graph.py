"""static_graph=True: every step uses the same parameters, as often as the first one did.

So a parameter that gets gradients in several reentrant backward passes is ready with the last of them, and parameters that
the first step did not use need not be waited for or checked.
"""

import weakref
from typing import Any, Callable, List, Optional

CHANGED = ("Your training graph has changed in this iteration, e.g., one parameter is unused in first iteration, but then got "
           "used in the second iteration. this is not compatible with static_graph set to True.")


class StaticGraph:
    def __init__(self, count: int):
        self.times: Optional[List[int]] = None  # how often each parameter got a gradient in the first step
        self.somewhere: List[float] = []  # above 0: some worker used the parameter
        self.fired = [0] * count  # in this step

    def order(self, order: List[int]) -> List[int]:
        """The ready order of the first step: a parameter is ready with its last gradient."""
        return list(dict.fromkeys(reversed(order)))[::-1]

    def learn(self, order: Any, somewhere: List[float]) -> None:
        """The first step is over, and parameters have a new order."""
        self.times = [self.fired[k] for k in order]
        self.somewhere = [somewhere[k] for k in order]
        self.end_step()

    def end_step(self) -> None:
        self.fired[:] = [0] * len(self.fired)

    def unused(self) -> List[int]:
        return [k for k, times in enumerate(self.times or ()) if times == 0]

    def wrap(self, sync: Any, k: int, call: Callable) -> Callable:
        """Makes a parameter's hook that may be called several times in a step."""
        this, fired = weakref.ref(sync), self.fired
        is_survey = not sync.reducer.views  # which may be a later one: it counts again
        expected = self.times[k] if self.times and not is_survey else None
        if expected == 1:
            return call

        def gradient_is_there(*_):
            sync = this()
            if not sync.syncing:
                return call()
            fired[k] += 1
            if expected == 0:
                if not sync.in_step:  # the other workers' step will not end here
                    sync._begin()
                raise sync.failure(CHANGED)
            if expected is None and fired[k] > 1:
                sync.reducer.ready(k)
            elif expected is None or fired[k] == expected:
                call()
            elif not sync.in_step:
                sync._arm()
                sync._begin()

        return gradient_is_there
