"""One worker of test_dropin: what programs rely on with PyTorch's DDP, beside it.

usage: worker_dropin.py TRANSPORT. Each rank prints a JSON object: situation -> "ok" or what went wrong.
"""

import contextlib
import copy
import dataclasses
import inspect
import os
import pickle
import sys
import warnings

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook, post_localSGD_hook
from torch.distributed.algorithms.join import Join
from torch.utils.checkpoint import checkpoint

import mgwfbp
import mgwfbp.torch
import models
import situations

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
TRANSPORT = sys.argv[1]
STEPS = 50
Stock = nn.parallel.DistributedDataParallel


def wrap(model, **options):
    options = {"profile_steps": 3, "replan_steps": 7, **options}
    return mgwfbp.torch.DistributedDataParallel(model, transport=TRANSPORT, **options)


def generator(step):
    return torch.Generator().manual_seed(100 * step + RANK)


def assert_raises(kind, part, call):
    try:
        call()
    except kind as error:
        assert part in str(error), f"'{part}' is not in '{error}'"
    else:
        raise AssertionError(f"{kind.__name__} with '{part}' was not raised")


def train(wrapper, model, steps=STEPS, optimizer=torch.optim.SGD, inside=contextlib.nullcontext, scope=None, **how):
    """Rank 0's model after so many steps; `inside(wrapped)` around each, `scope` around all."""
    model = copy.deepcopy(model)
    wrapped = wrapper(model)
    updates = optimizer(model.parameters(), lr=0.05)
    with scope(wrapped) if scope else contextlib.nullcontext():
        for number in range(steps):
            updates.zero_grad(set_to_none=how.get("set_to_none", number % 2 == 0))
            with inside():
                model.loss(wrapped, generator(number)).backward()
            updates.step()
    if hasattr(wrapped, "close"):
        wrapped.close()
    return model.state_dict()


def compare(model, options=(), ours=(), prepare=lambda wrapped: wrapped, tolerance=0.0, **how):
    """Weights after training with stock DDP and with ours."""
    torch.manual_seed(5 + RANK)
    model = model()
    expected = train(lambda m: prepare(Stock(m, **dict(options))), model, **how)
    found = train(lambda m: prepare(wrap(m, **dict(options), **dict(ours))), model, **how)
    for name in expected:
        worst = float((found[name].double() - expected[name].double()).abs().max())
        assert worst <= tolerance, f"{name} differs by {worst}"


# ---- It is a DDP ----


def test_is_a_ddp():
    model = wrap(models.Cnn(), gradient_as_bucket_view=True)
    assert isinstance(model, Stock)
    for name in ("process_group", "device_ids", "output_device", "static_graph", "find_unused_parameters",
                 "require_backward_grad_sync", "parameters_to_ignore", "broadcast_buffers", "dim", "device"):
        getattr(model, name)
    assert set(model.state_dict()) == set(Stock(models.Cnn()).state_dict())
    model.close()


def test_keywords():
    """By position as the PyTorch at hand has them; each known one has its meaning, or a warning that names it."""
    model = mgwfbp.torch.DistributedDataParallel(models.Cnn(), None, None, 0, False)
    assert not model.broadcast_buffers
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = wrap(models.Cnn(), bucket_cap_mb=5, bucket_cap_mb_list=[1, 2], check_reduction=True, batched_grad_copy=True,
                     skip_all_reduce_unused_params=True)
    for name in ("bucket_cap_mb ", "bucket_cap_mb_list", "check_reduction", "batched_grad_copy",
                 "skip_all_reduce_unused_params"):
        assert any(name in str(each.message) and each.filename == __file__ for each in caught), name
    assert_raises(TypeError, "bucket_cap", lambda: wrap(models.Cnn(), bucket_cap=5))
    assert_raises(ValueError, "same time", lambda: wrap(models.Cnn(), delay_all_reduce_named_params=[]))
    torch.manual_seed(RANK)
    linear = nn.Linear(2, 2)
    before = linear.weight.detach().clone()
    wrap(linear, init_sync=False)
    assert torch.equal(before, linear.weight), "init_sync=False is no matter"


def test_rank_and_size():
    assert (mgwfbp.rank(), mgwfbp.size()) == (dist.get_rank(), dist.get_world_size())


def test_copies_of_the_wrapper():
    """As with DDP: it can be copied and saved, by one rank alone, too; the copy trains."""
    torch.manual_seed(3)
    model = wrap(models.Cnn())
    model.module.loss(model, generator(0)).backward()
    for make in (copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))):
        if RANK == 0:
            alone = make(model)
            with torch.no_grad():
                alone.module.loss(alone, generator(1))  # evaluated by one rank
        other = make(model)
        for number in range(3):
            other.zero_grad()
            other.module.loss(other, generator(number)).backward()
        high = other.module.head.weight.grad.clone()
        dist.all_reduce(high, op=dist.ReduceOp.MAX)
        assert torch.equal(high, other.module.head.weight.grad), "the copy is not averaged"
        other.close()
    model.module.loss(model, generator(2)).backward()
    model.close()


def test_nothing_on_the_module():
    """Hooks are the wrapper's: the module can be scripted, traced, saved and copied."""
    module = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    model = wrap(module)
    model(torch.ones(2, 3)).sum().backward()
    assert not module._forward_pre_hooks and not module._forward_hooks
    torch.jit.script(module)
    torch.jit.trace(module, torch.ones(2, 3))
    copy.deepcopy(module), pickle.loads(pickle.dumps(module))
    model(torch.ones(2, 3)).sum().backward()
    model.close()


# ---- Weights are DDP's ----


class Rows(nn.Module):
    """A sparse embedding beside dense layers; `alone`: nothing else."""

    def __init__(self, alone=False):
        super().__init__()
        self.rows = nn.Embedding(20, 4, sparse=True)
        self.head = None if alone else nn.Linear(4, 3)

    def forward(self, x):
        x = self.rows(x)
        return self.head(x) if self.head else x[..., :3]

    def loss(self, call, generator):
        x, y = torch.randint(20, (6,), generator=generator), torch.randint(3, (6,), generator=generator)
        return F.cross_entropy(call(x), y)


def test_sparse():
    compare(Rows)
    compare(lambda: Rows(alone=True), set_to_none=True)
    model = wrap(Rows())
    with model.no_sync():
        model.module.loss(model, generator(1)).backward()
    model.module.loss(model, generator(2)).backward()
    gradient = model.module.rows.weight.grad
    assert gradient.is_sparse
    dense = gradient.to_dense()
    high = dense.clone()
    dist.all_reduce(high, op=dist.ReduceOp.MAX)
    assert torch.equal(high, dense), "not averaged"
    model.close()


def test_gradients_of_their_own():
    """gradient_as_bucket_view=False: who keeps a gradient keeps its numbers."""
    compare(models.Cnn, {"gradient_as_bucket_view": False})
    compare(models.Branches, {"gradient_as_bucket_view": False, "find_unused_parameters": True})
    model = wrap(models.Cnn(), gradient_as_bucket_view=False)
    for number in range(4):
        model.zero_grad(set_to_none=True)
        model.module.loss(model, generator(number)).backward()
        if number:
            assert torch.equal(kept, before), "a kept gradient was overwritten"
        kept = model.module.head.weight.grad
        before = kept.clone()
    model.close()


class Twice(nn.Module):
    """One layer in two reentrant checkpoints, and one that is not used."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.third = nn.Linear(6, 7), nn.Linear(7, 7), nn.Linear(7, 4)
        self.never = nn.Linear(3, 3)

    def forward(self, x):
        x = torch.tanh(self.first(x))
        for _ in range(2):
            x = checkpoint(lambda y: torch.tanh(self.second(y)), x, use_reentrant=True)
        return self.third(x)

    def loss(self, call, generator):
        x, y = torch.randn(5, 6, generator=generator), torch.randint(4, (5,), generator=generator)
        return F.cross_entropy(call(x), y)


class Smooth(Twice):
    """Where a rounding stays one."""

    def __init__(self):
        super().__init__()
        del self.never

    def forward(self, x):
        return self.third(torch.tanh(self.second(torch.tanh(self.first(x)))))


def test_buffers_at_the_start():
    """Rank 0's, or left alone: as this PyTorch has it."""
    every = [{}, {"broadcast_buffers": False}, {"broadcast_buffers": True}]
    if "forward_sync_buffers" in inspect.signature(Stock.__init__).parameters:
        every += [{"forward_sync_buffers": False}, {"forward_sync_buffers": True, "broadcast_buffers": False}]
    for options in every:
        found = []
        for wrapper in (Stock, wrap):
            model = nn.BatchNorm1d(3)
            model.running_mean.fill_(RANK)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                wrapped = wrapper(model, **options)
            found.append(model.running_mean.clone())
            del wrapped
        assert torch.equal(*found), (options, found)


def test_static_graph():
    compare(Twice, {"static_graph": True})


def test_static_graph_with_a_late_hook():
    """The step after register_comm_hook counts uses again."""
    native = TRANSPORT.startswith("native")
    model = wrap(Twice(), static_graph=True)
    for number in range(5):
        if number == 2:
            model.register_comm_hook(None, default_hooks.fp16_compress_hook if native else default_hooks.allreduce_hook)
        model.zero_grad()
        model.module.loss(model, generator(number)).backward()
        high = model.module.second.weight.grad.clone()
        dist.all_reduce(high, op=dist.ReduceOp.MAX)
        assert torch.equal(high, model.module.second.weight.grad), "not averaged"
        assert model.module.never.weight.grad is None
    model.close()


def test_wire():
    """bf16 and f16 within their rounding: of every gradient once on the way, and of the average once."""
    for wire, tolerance in (("bf16", 1e-2), ("f16", 1e-3)):
        compare(Smooth, ours={"wire": wire}, tolerance=tolerance)
    model = wrap(nn.Linear(64, 64, bias=False), wire="bf16")
    for _ in range(3):  # the first step is as it is
        model.zero_grad()
        own = torch.randn(64, 64, generator=generator(9))
        model.module.weight.grad = None
        (model(torch.eye(64)) * own.t()).sum().backward()
    rows = [torch.empty(64, 64) for _ in range(SIZE)]
    dist.all_gather(rows, own)
    exact = sum((row / SIZE).to(torch.bfloat16).float() for row in rows)
    sent_whole = (sum(row.to(torch.bfloat16).float() for row in rows) / SIZE)
    found = model.module.weight.grad.t()
    close = [(found - expected.to(torch.bfloat16).float()).abs().max() for expected in
             (exact, exact.t(), sent_whole, sent_whole.t())]
    assert min(map(float, close)) == 0.0, f"not rounded once: {close}"
    assert "f32 as bf16" in str(model.report())
    model.close()


def test_wire_by_the_environment():
    os.environ["MGWFBP_WIRE"] = "bf16"
    try:
        model = wrap(nn.Linear(2, 2))
        assert model._sync.options.wire == "bf16"
        model.close()
    finally:
        del os.environ["MGWFBP_WIRE"]
    assert_raises(ValueError, "wire: 'int3'", lambda: wrap(nn.Linear(2, 2), wire="int3"))


def hooked(state, hook):
    def prepare(wrapped):
        wrapped.register_comm_hook(state() if callable(state) else state, hook)
        return wrapped

    return prepare


def test_compressing_hooks():
    """fp16: the hook itself over process groups, `wire` over native. bf16: `wire` where there is no NCCL."""
    native = TRANSPORT.startswith("native")
    compare(Smooth, prepare=hooked(None, default_hooks.fp16_compress_hook), tolerance=1e-3 if native else 0.0)
    model = wrap(models.Cnn())
    model.register_comm_hook(None, default_hooks.bf16_compress_hook)
    assert model._sync.options.wire == "bf16"
    model.module.loss(model, generator(1)).backward()
    assert_raises(RuntimeError, "once", lambda: model.register_comm_hook(None, default_hooks.bf16_compress_hook))
    model.close()


def test_other_hooks():
    """PyTorch's own, and their state: with one bucket they do with ours what they do with DDP."""
    if TRANSPORT.startswith("native"):
        return
    compare(models.Cnn, prepare=hooked(None, default_hooks.allreduce_hook))
    compare(models.Branches, {"find_unused_parameters": True}, prepare=hooked(None, default_hooks.allreduce_hook))
    power = hooked(lambda: powerSGD_hook.PowerSGDState(None, 1, start_powerSGD_iter=3, min_compression_rate=0.5),
                   powerSGD_hook.powerSGD_hook)
    compare(Smooth, prepare=power, tolerance=1e-5)
    compare(models.Cnn, prepare=hooked(lambda: post_localSGD_hook.PostLocalSGDState(None, dist.group.WORLD, 4),
                                       post_localSGD_hook.post_localSGD_hook))
    indices = []

    def hook(state, bucket):
        indices.append((bucket.index(), bucket.is_last(), len(bucket.gradients()), len(bucket.parameters())))
        work = dist.all_reduce(bucket.buffer(), async_op=True)
        return work.get_future().then(lambda future: future.value()[0] / SIZE)

    compare(models.Mixed, ours={"policy": "wfbp"}, prepare=hooked(None, hook))
    assert (5, True, 1, 1) in indices or SIZE == 1, indices[-8:]


# ---- Uneven inputs ----


def uneven(wrapper, all, joins):
    """Rank r has 6 + 3 r batches."""
    torch.manual_seed(7)
    model = models.Cnn()
    wrapped = wrapper(model)
    updates = torch.optim.SGD(model.parameters(), lr=0.05)
    with joins(wrapped, all):
        for number in range(6 + 3 * RANK):
            updates.zero_grad(set_to_none=False)
            with wrapped.no_sync() if number % 4 == 3 else contextlib.nullcontext():
                model.loss(wrapped, generator(number)).backward()
            updates.step()
    for number in range(2):  # and evenly again
        model.loss(wrapped, generator(number)).backward()
    if hasattr(wrapped, "close"):
        wrapped.close()
    return {**model.state_dict(), "gradient": model.head.weight.grad}


def test_join():
    for all in (True, False):
        for joins in (lambda wrapped, all: wrapped.join(divide_by_initial_world_size=all),
                      lambda wrapped, all: Join([wrapped], divide_by_initial_world_size=all)):
            expected = uneven(Stock, all, joins)
            found = uneven(wrap, all, joins)
            for name in expected:
                assert torch.allclose(found[name].double(), expected[name].double(), rtol=1e-5, atol=1e-6), (name, all)


def test_join_from_the_start():
    """A worker that has nothing at all; unused parameters, sparse rows, and a hook."""
    hook = hooked(None, default_hooks.allreduce_hook)
    unused = {"find_unused_parameters": True}
    for make, options, prepare in ((models.Branches, unused, lambda m: m), (Rows, {}, lambda m: m), (models.Branches, unused, hook)):
        if prepare is hook and TRANSPORT.startswith("native"):
            continue
        torch.manual_seed(7)
        model = make()
        wrapped = prepare(wrap(model, **options))
        with wrapped.join():
            for number in range(0 if RANK == 0 else 5):
                model.loss(wrapped, generator(number)).backward()
        for name, tensor in model.named_parameters():
            high = tensor.detach().clone()
            dist.all_reduce(high, op=dist.ReduceOp.MAX)
            assert torch.equal(high, tensor), name
        wrapped.close()


# ---- Groups ----


def test_two_groups():
    """Two models, each of which is averaged among some workers only; and the workers of a process group, natively."""
    halves = [dist.new_group([rank for rank in range(SIZE) if rank % 2 == part]) for part in range(2)]
    mine = halves[RANK % 2]
    torch.manual_seed(3)
    model = wrap(models.Cnn(), process_group=mine)
    assert model._sync.group.size == dist.get_world_size(mine)
    for number in range(5):
        model.zero_grad()
        model.module.loss(model, generator(number)).backward()
    own = [p.grad.clone() for p in model.parameters()]
    for gradient in own:
        high = gradient.clone()
        dist.all_reduce(high, op=dist.ReduceOp.MAX, group=mine)
        assert torch.equal(high, gradient), "not averaged in the group"
    assert_raises(RuntimeError, "default process group", lambda: pickle.dumps(model))
    model.close()


def test_default_group():
    """Given as such: the same as not given."""
    for options in ({}, {"process_group": dist.group.WORLD}):
        model = wrap(models.Cnn(), **options)
        model.module.loss(model, generator(1)).backward()
        for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            assert copied.process_group is dist.group.WORLD
        for group in (None, dist.group.WORLD):
            mgwfbp.torch.ZeroRedundancyOptimizer(model, torch.optim.SGD, group, lr=0.1)
            model.close()
            model = wrap(model.module, **options)
        model.close()
    group = dist.new_group(list(range(SIZE)))
    model = wrap(models.Cnn(), process_group=group)
    assert_raises(ValueError, "not the process group",
                  lambda: mgwfbp.torch.ZeroRedundancyOptimizer(model, torch.optim.SGD, dist.group.WORLD, lr=0.1))
    mgwfbp.torch.ZeroRedundancyOptimizer(model, torch.optim.SGD, group, lr=0.1)
    model.close()


# ---- Mended ----


class NoGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return None if RANK == 0 else gradient


def test_backward_that_returns_none():
    class Cut(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 3)

        def forward(self, x):
            return self.b(NoGradient.apply(self.a(x)))

    for unused in (False, True):
        model = wrap(Cut(), find_unused_parameters=unused)
        for _ in range(4):
            model.zero_grad(set_to_none=True)
            try:
                model(torch.ones(2, 3)).sum().backward()
            except RuntimeError as error:  # PyTorch 2 does not call the hook: then it is a parameter without a gradient
                assert "did not receive grad" in str(error), error
                model(torch.ones(2, 3)).sum().backward()
            if SIZE > 1:
                assert model.module.a.weight.grad is not None
                high = model.module.a.weight.grad.clone()
                dist.all_reduce(high, op=dist.ReduceOp.MAX)
                assert torch.equal(high, model.module.a.weight.grad)
        model.close()


def test_output_that_is_a_dataclass():
    """One with slots has no __dict__."""
    if sys.version_info < (3, 10):
        return

    @dataclasses.dataclass(slots=True)
    class Output:
        logits: torch.Tensor
        late: torch.Tensor = dataclasses.field(init=False)

    class Wrapped(models.Cnn):
        def forward(self, x):
            return Output(super().forward(x))

        def loss(self, call, generator):
            return super().loss(lambda x: call(x).logits, generator)

    compare(Wrapped, steps=3)


def test_inference_mode_first():
    model = wrap(models.Cnn())
    model.eval()
    with torch.inference_mode():
        model(torch.zeros(4, 3, 8, 8))
    model.train()
    for number in range(3):
        model.module.loss(model, generator(number)).backward()
        with torch.inference_mode():
            model(torch.zeros(4, 3, 8, 8))
    model.close()


def test_backward_beside_the_wrapper():
    """One rank calls the module itself, which does not affect the others."""
    model = wrap(models.Cnn())
    for number in range(3):
        model.zero_grad()
        model.module.loss(model, generator(number)).backward()
        if RANK == 0:
            model.module.loss(model.module, generator(50 + number)).backward()
    output = model(torch.ones(4, 3, 8, 8, requires_grad=True)).sum()
    output.backward(retain_graph=True)
    steps = model.statistics()["steps"]
    output.backward()  # again, from what the wrapper gave
    assert model.statistics()["steps"] == steps + 1
    model.close()


def test_sync_by_hand():
    """require_backward_grad_sync is what no_sync() sets."""
    model = wrap(models.Cnn())
    model.module.loss(model, generator(0)).backward()
    steps = model.statistics()["steps"]
    model.require_backward_grad_sync = False
    model.module.loss(model, generator(1)).backward()
    assert model.statistics()["steps"] == steps
    model.require_backward_grad_sync = True
    model.module.loss(model, generator(2)).backward()
    assert model.statistics()["steps"] == steps + 1
    model.close()


def test_time_to_wait():
    """As PyTorch's own, unless the program or the environment says otherwise."""
    if not TRANSPORT.startswith("native"):
        return
    told = os.environ.pop("MGWFBP_TIMEOUT", None)
    try:
        model = wrap(nn.Linear(2, 2))
        assert model._sync.group.timeout_s == 1800, model._sync.group.timeout_s
        model.close()
    finally:
        if told:
            os.environ["MGWFBP_TIMEOUT"] = told


def test_several_devices():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, device="meta"))
    assert_raises(RuntimeError, "several devices (cpu, meta)", lambda: wrap(model))


if __name__ == "__main__":
    situations.run(globals(), sys.argv[2:])
