"""Measures a model: runs a few steps on one worker and returns their times as a trace."""

import contextlib
import statistics
from typing import Callable, List, Optional, Tuple

import torch

from .. import core, planning
from ..environment import Options
from .reducer import Forward, Measured, Steps
from .slots import Slot, trace_of
from .hooks import hook_after_gradient

Step = Callable[[torch.nn.Module], None]  # takes the model, computes a loss and calls backward; does not update


class _Profiler:
    """Times every gradient of a model, on one worker that sends nothing, until it is closed."""

    def __init__(self, model: torch.nn.Module):
        self.named = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
        if not self.named:
            raise RuntimeError("nothing to profile: no parameter of the model requires a gradient")
        self.order: List[int] = []  # of the last step
        self.steps: Optional[Steps] = None  # None until the order is known
        self.forwards: List[Forward] = []
        self.handles = [hook_after_gradient(p, self._hook(k)) for k, (_, p) in enumerate(self.named)]
        self.handles.append((model.register_forward_pre_hook(lambda *_: self.steps and self.steps.start()), None))

    def _hook(self, k: int) -> Callable:
        def gradient_is_there(*_):
            if self.steps and not self.order:
                self.steps.begin()
            self.order.append(k)
            if self.steps and k in self.places:
                self.steps.ready(self.places[k])

        return gradient_is_there

    def run(self, model: torch.nn.Module, step: Step) -> None:
        model.zero_grad(set_to_none=True)
        self.order = []
        step(model)
        if not self.order:
            raise RuntimeError("step: no parameter got a gradient; step must compute a loss and call backward")

    def measure(self, model: torch.nn.Module, step: Step, count: int) -> Tuple[List[Slot], Measured]:
        """The parameters that get gradients, in ready order, and their times."""
        self.places = {k: place for place, k in enumerate(dict.fromkeys(self.order))}
        slots = [Slot.of(*self.named[k]) for k in self.places]
        never = Options("single", None, 1 << 30, 1 << 30, 0)  # look only at the end
        nothing = planning.Cluster.line("none", 2, 0.0, 1e-12)
        self.steps = steps = Steps(slots, never, nothing, core.Exchange(), self.named[0][1].device)
        for _ in range(max(count, 2 * steps.time.sampled)):
            steps.forward = Forward(steps.time)  # one per step: the median counts
            self.forwards.append(steps.forward)
            self.run(model, step)
            for k in set(self.places) - set(self.order):
                steps.ready(self.places[k])
            steps.wait()
        steps.look()
        for forward in self.forwards:
            forward.stop()  # those of a device are over by now
        steps.forward.seconds = statistics.median(forward.seconds for forward in self.forwards)
        return slots, steps.measured()

    def close(self) -> None:
        for handle, _ in self.handles:
            handle.remove()
        for _, parameter in self.named:
            parameter.grad = None


def measure(model: torch.nn.Module, step: Step, steps: int = 8, warm_up: int = 2) -> Tuple[List[Slot], Measured]:
    with contextlib.closing(_Profiler(model)) as profiler:
        for _ in range(max(1, warm_up)):
            profiler.run(model, step)
        return profiler.measure(model, step, steps)


def profile(model: torch.nn.Module, step: Step, steps: int = 8, warm_up: int = 2, name: str = "",
            **about) -> planning.Trace:
    """Measures a model on this device, and returns its trace.

    `about` are further members of the file: batch, precision, device.

    >>> trace = profile(model, lambda m: m(inputs).sum().backward())    # doctest: +SKIP
    >>> trace.save("mine.json")                                         # doctest: +SKIP
    """
    slots, times = measure(model, step, steps, warm_up)
    return trace_of(slots, times.ready_s, times.forward_s, name or type(model).__name__, **about)
