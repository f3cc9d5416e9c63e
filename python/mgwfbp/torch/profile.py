"""A model's own times: runs some steps on one worker, and gives them as a trace."""

import json
from typing import Callable, List, Tuple

import torch

from .. import planning
from . import clock
from .planner import trace_of
from .slots import Slot
from .sync import _hook_after_gradient

Step = Callable[[torch.nn.Module], None]
"""A training step without its update: takes the model, computes a loss with it, and calls backward."""


class _Profiler:
    """Takes the time of every gradient of a model, for as long as it is open."""

    def __init__(self, model: torch.nn.Module):
        named = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
        if not named:
            raise RuntimeError("no parameter of the model requires a gradient: there is nothing to profile")
        self.named, self.order = named, []
        self.clock = clock.for_device(named[0][1].device, len(named))
        self.handles = [_hook_after_gradient(p, self._hook(k)) for k, (_, p) in enumerate(named)]
        self.module_handle = model.register_forward_pre_hook(lambda *_: self.clock.start())
        self.began = False

    def _hook(self, k: int) -> Callable:
        def gradient_is_there(*_):
            if not self.began:
                self.began, self.order = True, []
                self.clock.begin()
            self.order.append(k)
            self.clock.mark(k)

        return gradient_is_there

    def step(self, model: torch.nn.Module, step: Step) -> None:
        for _, parameter in self.named:
            parameter.grad = None
        self.began = False
        step(model)
        if not self.began:
            raise RuntimeError("step: no parameter got a gradient; it must compute a loss and call backward")
        self.clock.end()

    def result(self) -> Tuple[List[Slot], clock.Times]:
        """The parameters that got gradients, in ready order, and their times."""
        times = self.clock.collect()
        slots = [Slot.of(*self.named[k]) for k in self.order]
        ready, latest = [], 0.0
        for k in self.order:
            latest = max(latest, times.ready_s[k])
            ready.append(latest)
        return slots, times._replace(ready_s=ready)

    def close(self) -> None:
        for handle, _ in self.handles:
            handle.remove()
        self.module_handle.remove()
        for _, parameter in self.named:
            parameter.grad = None


def measure(model: torch.nn.Module, step: Step, steps: int = 8, warm_up: int = 2) -> Tuple[List[Slot], clock.Times]:
    profiler = _Profiler(model)
    try:
        for number in range(warm_up + max(steps, profiler.clock.STEPS_NEEDED)):
            if number == warm_up:
                profiler.clock.reset()
            profiler.step(model, step)
        return profiler.result()
    finally:
        profiler.close()


def profile(model: torch.nn.Module, step: Step, steps: int = 8, warm_up: int = 2, name: str = "",
            **about) -> planning.Trace:
    """Measures a model on this device, and returns its trace.

    `about` are further members of the file: batch, precision, device.

    >>> trace = profile(model, lambda m: m(inputs).sum().backward())    # doctest: +SKIP
    >>> trace.save("mine.json")                                         # doctest: +SKIP
    """
    slots, times = measure(model, step, steps, warm_up)
    trace = trace_of(slots, times.ready_s, times.forward_s, name or type(model).__name__).dict()
    trace.update(about)
    return planning.Trace.parse(json.dumps(trace))
