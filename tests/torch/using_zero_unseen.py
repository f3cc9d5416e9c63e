"""Situations of worker_zero_use.py: parameters that are used where PyTorch does not tell their class, and graphs and objects that
outlive an update."""

import gc
import warnings
import weakref

from using_zero import *


class Biased(nn.Module):
    """Gives parameters to `call`, wherever that uses them."""

    def __init__(self, call):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8, bias=False) for _ in range(4))
        self.biases = nn.ParameterList(nn.Parameter(torch.zeros(8)) for _ in range(4))
        self.calls = [call]  # not a part of copies

    def __deepcopy__(self, memo):
        copied = Biased(self.calls[0])
        copied.load_state_dict(self.state_dict())
        return copied.to(next(self.parameters()).dtype)

    def forward(self, x):
        for layer, bias in zip(self.layers, self.biases):
            x = self.calls[0](layer(x), bias)
        return x

    def loss(self, call, generator):
        return (call(torch.randn(4, 8, generator=generator, dtype=self.biases[0].dtype)) - 1).pow(2).mean()


def smooth(x, bias):
    y = x + bias
    return y * torch.sigmoid(1.7 * y)


def unnoticed(x, bias):
    with torch._C.DisableTorchFunction():  # as in an extension
        return smooth(x, bias)


def test_scripted_functions():
    job = Job(lambda: Biased(torch.jit.script(smooth)), policy="fsdp:64B")
    for number in range(12):
        job.step()
        job.check(f"step {number}")
    assert job.optimizer.statistics()["held"] == 0
    job.close()


def test_functions_of_autograd():
    """Their forward pass may be an extension, which does not ask for what it gets."""
    class Smooth(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, bias):
            ctx.save_for_backward(x, bias)
            return unnoticed(x, bias)

        @staticmethod
        def backward(ctx, slope):
            with torch.enable_grad():
                inputs = [each.detach().requires_grad_() for each in ctx.saved_tensors]
                return torch.autograd.grad(smooth(*inputs), inputs, slope)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        job = Job(lambda: Biased(Smooth.apply), policy="fsdp:64B")
        for number in range(12):
            job.step()
            job.check(f"step {number}")
    job.close()


def test_uses_that_nobody_tells():
    """The first step shows them: then gathers are waited for."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        job = Job(lambda: Biased(unnoticed), policy="fsdp:64B")
        for number in range(12):
            job.step()
            job.check(f"step {number}")
    assert any("PyTorch does not tell" in str(each.message) for each in said), [str(each.message) for each in said]
    counts = job.optimizer.statistics()
    assert counts["held"] > 0 or SIZE == 1, counts
    job.close()


def test_uses_that_nobody_tells_later():
    """An error, since values may have been old; but not if all gathers were waited for."""
    job = Job(lambda: Biased(smooth), policy="fsdp:64B").step(6)
    for model, _ in job.pairs:
        model.module.calls[0] = unnoticed
    for _ in range(2):
        job.optimizer.drain()
        job.step()
    if SIZE == 1:
        return job.close()
    job.optimizer.zero_grad()
    assert_raises(RuntimeError, "where PyTorch does not tell", lambda: job.model.module.loss(job.model, generator(8)).backward())
    dist.barrier()


def test_modules_that_were_scripted_or_traced():
    """They share the parameters, and read them at any time."""
    sample = torch.randn(3, 6, dtype=torch.float64, generator=generator(0))
    ways = {"scripted": torch.jit.script, "traced": lambda model: torch.jit.trace(model, sample)}
    for when in ("before", "after"):
        for way, make in ways.items():
            torch.manual_seed(3)
            model = nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 2)).double()
            model.loss = lambda call, g: call(torch.randn(4, 6, generator=g, dtype=torch.float64)).pow(2).mean()
            other = make(model) if when == "before" else None
            job = Job(lambda: model, policy="zero:64B")
            for number in range(8):
                job.step()
                if when == "after" and number == 6:
                    other = make(job.model.module)
                if other is not None:
                    with torch.no_grad():
                        close(other(sample), job.plain.module(sample), f"{way} {when}, step {number}")
            job.check()
            job.close()


def test_transforms_of_functions():
    """torch.func, after an update, with parameters as arguments and as captured values."""
    if not hasattr(torch, "func"):
        return
    from torch.func import functional_call, grad, jacrev, vjp, vmap
    job = Job(lambda: Biased(smooth), policy="fsdp:64B")
    x = torch.randn(4, 8, dtype=torch.float64, generator=generator(0))

    def value(model, parameters):
        return functional_call(model, parameters, (x,)).sum()

    ways = {"grad": lambda m: list(grad(lambda p: value(m, p))(dict(m.named_parameters())).values()),
            "captured": lambda m: [jacrev(lambda row: m(row))(x[0])],
            "vjp": lambda m: list(vjp(lambda p: value(m, p), dict(m.named_parameters()))[1](torch.ones((), dtype=x.dtype))[0].values()),
            "vmap": lambda m: [vmap(lambda p, row: functional_call(m, p, (row,)), (None, 0))(dict(m.named_parameters()), x)]}
    for number in range(12):
        job.step()
        way = list(ways)[number % 4]
        got, wanted = (ways[way](model.module) for model, _ in job.pairs)
        for a, b in zip(got, wanted):
            close(a, b, f"{way}, step {number}")
    job.check()
    job.close()


def test_graphs_from_before_an_update():
    """As with a plain optimizer, they cannot be used any more."""
    job = Job().step(4)
    x = [model.module.loss(model, generator(5)) for model, _ in job.pairs]
    for loss, (_, optimizer) in zip(x, job.pairs):
        optimizer.zero_grad()
        loss.backward(retain_graph=True)
        optimizer.step()
    for loss in reversed(x):
        assert_raises(RuntimeError, "modified by an inplace operation", lambda: torch.autograd.grad(
            loss, [next(job.model.module.parameters()) if loss is x[0] else next(job.plain.module.parameters())], allow_unused=True))
    dist.barrier()


def test_nothing_is_left_of_closed_jobs():
    """Not even until garbage is collected."""
    gc.collect()
    gc.disable()
    try:
        model = nn.Linear(6, 3)
        wrapped = mgwfbp.torch.DistributedDataParallel(model, transport=TRANSPORT, policy="zero:64B", profile_steps=2)
        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam)
        for number in range(5):
            optimizer.zero_grad()
            wrapped(torch.ones(2, 6)).sum().backward()
            optimizer.step()
        left = [weakref.ref(each) for each in (optimizer, optimizer._sharding, optimizer._sharding.reducer, wrapped._sync)]
        wrapped.close()
        del optimizer, wrapped
        assert [each() for each in left] == [None] * 4, [each() for each in left]
    finally:
        gc.enable()


def test_closed_before_the_first_update():
    """Parameters are plain ones again."""
    job = Job()
    job.model.module.loss(job.model, generator(0))
    job.close()
    assert all(type(parameter) is nn.Parameter for parameter in job.model.module.parameters())


def test_tracing_between_gradient_and_update():
    """zero_grad() after the forward pass, and a batch of another size, for which a compiled model is traced again."""
    if not hasattr(torch, "compile") or not torch._dynamo.is_dynamo_supported():
        return
    finals = []
    for ours in (True, False):
        torch._dynamo.reset()
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4)).double()
        compiled = torch.compile(model, backend="aot_eager")
        if ours:
            wrapped = mgwfbp.torch.DistributedDataParallel(compiled, transport=TRANSPORT, policy="fsdp:64B", profile_steps=1, trials=False)
            optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)
        else:
            wrapped = nn.parallel.DistributedDataParallel(compiled)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for number in range(9):
            loss = wrapped(torch.randn(3 if number == 7 else 4, 8, generator=generator(number), dtype=torch.float64)).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        finals.append([parameter.detach().clone() for parameter in model.parameters()])
        if ours:
            wrapped.close()
    for got, wanted in zip(*finals):
        close(got, wanted)
