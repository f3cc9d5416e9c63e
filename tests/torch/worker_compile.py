"""One worker of test_compile: models that torch.compile has compiled, in both orders, on one transport.

usage: worker_compile.py TRANSPORT BACKEND [SITUATION...]. Each rank prints a JSON object: situation -> "ok" or what went
wrong. BACKEND: inductor, or aot_eager, which cuts and differentiates graphs the same way, and runs them without a compiler.
"""

import contextlib
import copy
import os
import sys
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.utils.checkpoint import checkpoint

import mgwfbp.torch
import models
import situations
from mgwfbp.torch import compiled

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
TRANSPORT, BACKEND = sys.argv[1:3]
Stock = nn.parallel.DistributedDataParallel
compiled.SMALLEST = 1  # these models are small


def generator(step):
    return torch.Generator().manual_seed(1000 * step + RANK)


class Counting:
    """The backend, and the parameters of each graph that it was given."""

    def __init__(self):
        self.graphs = []
        self._torchdynamo_orig_callable = self

    def __call__(self, graph, inputs, **more):
        from torch._dynamo.backends.registry import lookup_backend
        self.graphs.append(sum(isinstance(value, nn.Parameter) for value in inputs))
        return lookup_backend(BACKEND)(graph, inputs, **more)


def ours(model, **options):
    return mgwfbp.torch.DistributedDataParallel(model, transport=TRANSPORT, **{"profile_steps": 2, **options})


def inside(model, backend, **options):
    wrapped = ours(torch.compile(model, backend=backend), **options)
    return wrapped, wrapped


def outside(model, backend, **options):
    wrapped = ours(model, **options)
    return torch.compile(wrapped, backend=backend), wrapped


def in_place(model, backend, **options):
    model.compile(backend=backend)
    wrapped = ours(model, **options)
    return wrapped, wrapped


ORDERS = {"inside": inside, "outside": outside, "in place": in_place}


def train(call, model, optimizer=None, steps=6, wrapped=None, accumulate=1, autocast=False, set_to_none=True):
    """The model's state after some steps."""
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for number in range(steps):
        for part in range(accumulate):
            quiet = part < accumulate - 1
            with wrapped.no_sync() if quiet else contextlib.nullcontext():
                with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
                    loss = model.loss(call, generator(accumulate * number + part))
                loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=set_to_none)
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def assert_close(found, expected, tolerance=1e-9):
    worst = max(float((found[name].double() - expected[name].double()).abs().max()) for name in expected)
    assert worst < tolerance, f"differs from eager DDP by {worst}"


def compare(make, orders=("inside", "outside"), pieces=3, tolerance=None, options=None, **how):
    """The same weights as eager DDP; returns the numbers of parameters in the graphs of each order."""
    options = options or {}
    model = make() if how.get("autocast") else make().double()
    plain = copy.deepcopy(model)
    stock = nn.parallel.DistributedDataParallel(plain, **options)
    expected = train(stock, plain, wrapped=stock, **how)
    counts = {}
    for order in orders:
        torch._dynamo.reset()
        own, backend = copy.deepcopy(model), Counting()
        call, wrapped = ORDERS[order](own, backend, **options)
        found = train(call, own, wrapped=wrapped, **how)
        assert_close(found, expected, tolerance or (2e-3 if how.get("autocast") else 1e-9))
        assert wrapped.statistics()["steps"] == 6, wrapped.statistics()
        assert len(backend.graphs) >= pieces, f"{order}: {len(backend.graphs)} graphs"
        counts[order] = backend.graphs
        wrapped.close()
    return counts


# ---- The same weights ----


def test_orders():
    counts = compare(models.Cnn, ORDERS)
    assert all(max(found) < 10 for found in counts.values()), counts  # of 10: no graph has all


def test_tied():
    compare(models.Transformer, pieces=5)


def test_unused():
    compare(models.Branches, pieces=2, options={"find_unused_parameters": True})


def test_accumulated():
    compare(models.Cnn, accumulate=3)
    compare(models.Cnn, ("outside",), accumulate=2, set_to_none=False)


def test_autocast():
    compare(models.Cnn, autocast=True)


def test_two_dtypes():
    compare(models.Mixed, pieces=2)


def test_checkpoints():
    """What is computed again in the backward pass is in the graphs, too."""
    class Again(models.Transformer):
        def forward(self, tokens):
            x = self.embedding(tokens)
            for layer in self.layers:
                x = checkpoint(layer, x, use_reentrant=False)
            return self.out(x)

    compare(Again, pieces=1)


def test_graph_breaks():
    class Broken(models.Cnn):
        def forward(self, x):
            x = self.body(x).flatten(1)
            torch._dynamo.graph_break()
            return self.head(x)

    compare(Broken)


def test_regions():
    """Blocks that are compiled one by one, in both ways that there are."""
    class Block(nn.Module):  # PyTorch does not compile layers of its own in place
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 8)

        def forward(self, x):
            return x + self.second(torch.tanh(self.first(x)))

    class Blocks(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers, self.head = nn.ModuleList(Block() for _ in range(3)), nn.Linear(8, 3)

        def forward(self, x):
            for layer in self.layers:
                x = layer(x)
            return self.head(x)

        def loss(self, call, generator):
            x = torch.randn((5, 8), generator=generator, dtype=torch.float64)
            return nn.functional.cross_entropy(call(x), torch.randint(3, (5,), generator=generator))

    model = Blocks().double()
    plain = copy.deepcopy(model)
    expected = train(nn.parallel.DistributedDataParallel(plain), plain)
    for in_place in (True, False):
        torch._dynamo.reset()
        own, backend = copy.deepcopy(model), Counting()
        if in_place:
            for layer in own.layers:
                layer.compile(backend=backend)
        else:
            own.layers = nn.ModuleList(torch.compile(layer, backend=backend) for layer in own.layers)
        wrapped = ours(own)
        found = train(wrapped, own)
        assert_close({name.replace("._orig_mod", ""): tensor for name, tensor in found.items()}, expected)
        assert backend.graphs, "nothing was compiled"
        wrapped.close()


def test_other_shapes():
    """Graphs that are compiled anew, and then for any size."""
    class Sizes(models.Cnn):
        def loss(self, call, generator):
            batch = 2 + int(torch.randint(6, (1,), generator=generator))
            x = torch.randn((batch, 3, 8, 8), generator=generator, dtype=torch.float64)
            return nn.functional.cross_entropy(call(x), torch.randint(10, (batch,), generator=generator))

    compare(Sizes)


def test_whole_step():
    """Forward and backward pass in one compiled function."""
    model = models.Cnn().double()
    plain = copy.deepcopy(model)
    expected = train(nn.parallel.DistributedDataParallel(plain), plain)
    wrapped, backend = ours(model), Counting()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    @torch.compile(backend=backend)
    def step(x, y):
        loss = nn.functional.cross_entropy(wrapped(x), y)
        loss.backward()
        return loss

    for number in range(6):
        random = generator(number)
        x, y = models._normal(model, (4, 3, 8, 8), random), torch.randint(10, (4,), generator=random)
        step(x, y)
        optimizer.step()
        optimizer.zero_grad()
    assert_close(model.state_dict(), expected)
    assert len(backend.graphs) >= 3, backend.graphs


def test_compiled_autograd():
    """Refused before anything is sent."""
    model = models.Cnn()
    wrapped = ours(model)

    def step(x):
        wrapped(x).sum().backward()

    with torch._dynamo.config.patch(compiled_autograd=True):
        try:
            torch.compile(step, backend="eager")(torch.randn(4, 3, 8, 8))
        except RuntimeError as error:
            assert "compiled autograd" in str(error), error
        else:
            raise AssertionError("it was not refused")
    torch._dynamo.reset()
    step(torch.randn(4, 3, 8, 8))
    assert wrapped.statistics()["steps"] == 1, wrapped.statistics()
    wrapped.close()


def test_distributed_optimizer():
    model = models.Cnn().double()
    plain = copy.deepcopy(model)
    expected = train(nn.parallel.DistributedDataParallel(plain, broadcast_buffers=False), plain)
    backend = Counting()
    optimizer = mgwfbp.torch.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), model, transport=TRANSPORT, profile_steps=2)
    train(torch.compile(model, backend=backend), model, optimizer)
    assert_close({n: p.detach() for n, p in model.named_parameters()}, {n: expected[n] for n, _ in model.named_parameters()})
    assert len(backend.graphs) >= 3, backend.graphs


def test_zero():
    """Updates that are shared out: parameters are waited for before compiled code runs."""
    model = models.Transformer().double()
    plain = copy.deepcopy(model)
    adam = {"lr": 1e-2}
    expected = train(nn.parallel.DistributedDataParallel(plain), plain, torch.optim.AdamW(plain.parameters(), **adam))
    for order, make in ORDERS.items():
        torch._dynamo.reset()
        own, backend = copy.deepcopy(model), Counting()
        call, wrapped = make(own, backend, policy="zero:1KiB")
        optimizer = mgwfbp.torch.ZeroRedundancyOptimizer(wrapped, torch.optim.AdamW, **adam)
        found = train(call, own, optimizer)
        assert_close(found, expected)
        assert len(backend.graphs) >= 3 and optimizer.statistics()["held"] >= 2, (order, optimizer.statistics())
        wrapped.close()


def test_zero_compiled_later():
    """Parameters are on their way when the model is compiled."""
    model = models.Transformer().double()
    plain = copy.deepcopy(model)
    expected = train(nn.parallel.DistributedDataParallel(plain), plain, torch.optim.AdamW(plain.parameters(), lr=1e-2))
    call, wrapped = outside(model, Counting(), policy="zero:1KiB")
    optimizer = mgwfbp.torch.ZeroRedundancyOptimizer(wrapped, torch.optim.AdamW, lr=1e-2)
    calls = []

    def later(tokens):
        calls.append(tokens)
        return (wrapped if len(calls) < 4 else call)(tokens)

    assert_close(train(later, model, optimizer), expected)
    assert 1 <= optimizer.statistics()["held"] <= 3, optimizer.statistics()
    wrapped.close()


# ---- When gradients come ----


class Deep(nn.Module):
    """Layers that take long, so that the clock tells when their gradients come."""

    def __init__(self, layers=8, width=256):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(layers))
        self.width = width

    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x

    def loss(self, call, generator):
        return call(torch.randn((4096, self.width), generator=generator)).square().mean()


def test_order_and_time():
    """Gradients come last layer first, as they are computed, and the first messages leave before the last are there."""
    for order, make in ORDERS.items():
        torch._dynamo.reset()
        model = Deep()
        call, wrapped = make(model, Counting(), policy="wfbp")
        came = []
        for k, layer in enumerate(model.layers):
            layer.weight.register_post_accumulate_grad_hook(lambda _, k=k: came.append((k, time.perf_counter())))
        shares = []
        for number in range(6):
            del came[:]
            loss = model.loss(call, generator(number))
            begun = time.perf_counter()
            loss.backward()
            assert [k for k, _ in came] == list(reversed(range(8))), came
            shares.append((came[0][1] - begun) / (came[-1][1] - begun))
        assert min(shares[1:]) < 0.5, f"{order}: the first gradient came after {shares} of the backward pass"
        measured = wrapped._sync.reducer.measured()
        if measured is not None:  # as the planner sees it
            ready = [at - measured.forward_s for at in measured.ready_s]
            assert ready[0] < 0.5 * ready[-1], ready
        wrapped.close()


def test_compiled_before():
    """What was compiled before the model was wrapped is in one piece, and not used on."""
    for order in ("inside", "in place"):
        torch._dynamo.reset()
        model, backend = models.Cnn(), Counting()
        if order == "inside":
            run = torch.compile(model, backend=backend)
        else:
            model.compile(backend=backend)
            run = model
        model.loss(run, generator(0)).backward()
        assert len(backend.graphs) == 1, (order, backend.graphs)
        wrapped = ours(run)
        model.loss(wrapped, generator(1)).backward()
        assert len(backend.graphs) >= 4, (order, backend.graphs)
        wrapped.close()


def test_others_are_left_alone():
    """A model that is not wrapped is compiled in one piece; a forward pass that fails changes nothing in that."""
    def with_optimizer(model):
        return mgwfbp.torch.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model, transport=TRANSPORT)

    for wrapper in (ours, with_optimizer):
        for recovers in (False, True):
            torch._dynamo.reset()
            model, backend = models.Cnn(), Counting()
            wrapped = wrapper(model)
            call = model if wrapper is with_optimizer else wrapped
            for failing in (call, torch.compile(call, backend=backend)):
                try:
                    failing("not a tensor")
                except Exception:
                    pass
            backend.graphs.clear()
            if recovers:
                model.loss(call, generator(0)).backward()
            other = models.Mixed()
            other.loss(torch.compile(other, backend=backend), generator(1)).backward()
            assert len(backend.graphs) == 1, (wrapper, recovers, backend.graphs)
            wrapped.close()


def test_in_the_place_of_stock():
    """As for frameworks that look DDP up in PyTorch's namespace: it is cut all the same."""
    nn.parallel.DistributedDataParallel = mgwfbp.torch.DistributedDataParallel
    try:
        model, backend = models.Cnn(), Counting()
        wrapped = nn.parallel.DistributedDataParallel(model, transport=TRANSPORT)
        model.loss(torch.compile(wrapped, backend=backend), generator(0)).backward()
        assert len(backend.graphs) >= 3, backend.graphs
        wrapped.close()
    finally:
        nn.parallel.DistributedDataParallel = Stock


def test_one_graph_only():
    """fullgraph=True holds for the model; the wrapper is outside of it."""
    for in_place in (False, True):
        torch._dynamo.reset()
        model, backend = models.Cnn(), Counting()
        if in_place:
            model.compile(backend=backend, fullgraph=True)
        wrapped = ours(model)
        call = wrapped if in_place else torch.compile(wrapped, backend=backend, fullgraph=True)
        for number in range(3):
            model.loss(call, generator(number)).backward()
        assert len(backend.graphs) >= 3, (in_place, backend.graphs)
        wrapped.close()


if __name__ == "__main__":
    import torch._dynamo
    situations.run(globals(), sys.argv[3:], torch._dynamo.reset)
