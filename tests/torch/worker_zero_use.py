"""One worker of test_zero_use: what programs do with ZeroRedundancyOptimizer, right and wrong, in one job for each transport.

usage: worker_zero_use.py TRANSPORT [SITUATION...]. Each rank prints a JSON object: situation -> "ok" or what went wrong.
"""

import gc
import io
import weakref

import situations
from using_zero import *
from using_zero_between import *
from using_zero_state import *
from using_zero_unseen import *


# ---- Gradients ----


def test_gradients_are_not_read_unless_whole():
    job = Job().step(4)
    job.optimizer.zero_grad(), job.expected.zero_grad()
    job.backward()
    parts = scattered(job)
    assert parts
    for read in (lambda g: g.sum(), lambda g: g + 1, lambda g: g.clone(), lambda g: g[0], lambda g: g.tolist(),
                 lambda g: torch.isfinite(g), lambda g: g.numpy(), lambda g: torch.zeros_like(g).add_(g), copy.deepcopy,
                 lambda g: g.data_ptr(), lambda g: g.norm(dim=0), lambda g: g.abs().sum(), lambda g: torch.stack([g, g]),
                 lambda g: torch.save(g, io.BytesIO()), lambda g: g.abs().min(), lambda g: g.detach().cpu(),
                 lambda g: torch.optim.SGD([parts[0]], lr=1.0).step()):
        assert_raises(RuntimeError, "gather_gradients()", lambda: read(parts[0].grad))
    assert "each worker has a part" in repr(parts[0].grad) and f"{parts[0].grad}" == str(parts[0].grad)
    assert parts[0].grad.shape == parts[0].shape and parts[0].grad.dtype == parts[0].dtype
    for order in (2.0, 1.0, 3.0, float("inf")):
        for got, wanted in zip(job.model.module.parameters(), job.plain.module.parameters()):
            close(torch.norm(got.grad, order), torch.norm(wanted.grad, order), f"norm {order}")
            close(torch.linalg.vector_norm(got.grad, order), torch.linalg.vector_norm(wanted.grad, order))
    job.optimizer.gather_gradients()
    assert not scattered(job)
    for got, wanted in zip(job.model.module.parameters(), job.plain.module.parameters()):
        close(got.grad, wanted.grad, "gathered gradient")
        got.grad.mul_(0.5)
        wanted.grad.mul_(0.5)
    job.optimizer.step(), job.expected.step()
    job.step(2)
    job.check()
    job.close()


def halve(gradient):
    gradient.data /= 2


def test_gradients_changed_in_place():
    job = Job().step(3)
    for change in (lambda g, p: g.mul_(0.5), lambda g, p: g.div_(torch.tensor(3.0, dtype=g.dtype)),
                   lambda g, p: g.add_(p.detach(), alpha=0.1), lambda g, p: g.clamp_(-0.01, 0.01),
                   lambda g, p: g.data.mul_(2.0), lambda g, p: g.detach().neg_(), lambda g, p: halve(g), lambda g, p: g.zero_()):
        job.optimizer.zero_grad(), job.expected.zero_grad()
        job.backward()
        for model, _ in job.pairs:
            for parameter in model.module.parameters():
                change(parameter.grad, parameter)
        job.optimizer.step(), job.expected.step()
        job.check("after a change in place")
    job.optimizer.zero_grad(), job.expected.zero_grad()
    job.backward()
    for model, _ in job.pairs:
        gradients = [p.grad for p in model.module.parameters() if p.dtype == torch.float64]
        torch._foreach_mul_(gradients, 0.25)
        for gradient, norm in zip(gradients, torch._foreach_norm(gradients, 2)):
            gradient.mul_(1 / (1 + norm))
    job.optimizer.step(), job.expected.step()
    job.check("after _foreach_")
    job.close()


def test_gradients_given_by_hand():
    job = Job().step(3)
    job.optimizer.zero_grad(), job.expected.zero_grad()
    job.backward()
    for model, _ in job.pairs:
        for i, parameter in enumerate(model.module.parameters()):
            if i % 3 == 0:
                parameter.grad = torch.full_like(parameter, 0.25)
            elif i % 3 == 1:
                parameter.grad = None  # it is not updated
    job.optimizer.step(), job.expected.step()
    job.check()
    job.step(2)
    job.check()
    job.close()


def test_backward_on_top_of_an_average():
    job = Job().step(4)
    job.optimizer.zero_grad(), job.expected.zero_grad()
    job.backward()
    assert scattered(job)
    loss = job.model.module.loss(job.model, generator(7))
    assert_raises(RuntimeError, "call zero_grad() before backward", loss.backward)
    job.model._sync.in_step = False  # the job cannot go on, as the error says; this test must
    job.close()


def test_zero_grad_of_everybody():
    job = Job().step(3)
    for way in (lambda m, o: o.zero_grad(set_to_none=False), lambda m, o: m.zero_grad(set_to_none=False),
                lambda m, o: m.zero_grad(set_to_none=True), lambda m, o: [p.grad.zero_() for p in m.module.parameters()],
                lambda m, o: torch._foreach_zero_([p.grad for p in m.module.parameters()])):
        job.step(1)
        for model, optimizer in job.pairs:
            way(model, optimizer)
        job.backward()
        job.optimizer.step(), job.expected.step()
        job.check()
    # Also between the forward and the backward pass.
    for _ in range(2):
        for model, optimizer in job.pairs:
            loss = model.module.loss(model, generator(job.number))
            optimizer.zero_grad(set_to_none=False)
            loss.backward()
            optimizer.step()
        job.number += 1
        job.check()
    job.close()


def test_steps_that_are_left_out():
    """As a GradScaler does; and forward passes without a backward pass."""
    job = Job().step(3)
    for _ in range(2):
        job.optimizer.zero_grad(), job.expected.zero_grad()
        job.backward()
        for model, _ in job.pairs:
            model.module.loss(model, generator(50))
            model.module.loss(model, generator(51))
        job.step(2)
        job.check()
    job.close()


def test_step_without_gradients():
    job = Job()
    job.optimizer.step()  # nothing to do, as with any optimizer
    job.step(3)
    assert_raises(RuntimeError, "no gradients were averaged since the last step", job.optimizer.step)
    job.optimizer.zero_grad()
    job.optimizer.step()
    job.step(1)
    job.check()
    job.close()


def test_closure():
    job = Job().step(3)

    def closure(model, optimizer):
        def call():
            optimizer.zero_grad()
            loss = model.module.loss(model, generator(33))
            loss.backward()
            return loss
        return call

    got, wanted = (optimizer.step(closure(model, optimizer)) for model, optimizer in job.pairs)
    close(got, wanted)
    job.check()
    job.close()


# ---- Parameters ----


def test_parameters_read_by_hand():
    """During gathers: reading a parameter gives its complete value."""
    job = Job(models.Cnn, torch.optim.SGD, lr=0.05)
    reads = [lambda p: p.detach().clone(), lambda p: p.data.clone(), lambda p: torch.cat([p.flatten()]).view(p.shape),
             lambda p: torch.tensor(p.tolist(), dtype=p.dtype), lambda p: torch.from_numpy(p.detach().numpy().copy()),
             lambda p: copy.deepcopy(p), lambda p: p * 1, lambda p: p.abs() * p.sign()]
    held = 0
    for read in reads:
        job.step(2)
        for got, wanted in zip(job.model.module.parameters(), job.plain.module.parameters()):
            close(read(got), wanted, "read by hand")
        assert job.optimizer.statistics()["held"] == held
    job.step(1)
    state = job.model.module.state_dict()  # buffers are rank 0's behind a step, and DDP's are not yet
    for name, wanted in job.plain.module.named_parameters():
        close(state[name], wanted, name)
    del state
    buffer = io.BytesIO()
    job.step(1)
    torch.save(job.model.module, buffer)
    assert job.model.statistics()["gathers"] > 0 or SIZE == 1
    job.close()


def test_memory_shown_to_others():
    """What was made before the step shows what comes after it: then the step waits for all gathers."""
    job = Job().step(4)
    views = [p.data for p in job.model.module.parameters()]
    array = job.model.module.first.weight.detach().numpy()
    job.step(2)
    assert job.optimizer.statistics()["held"] == 2
    for got, wanted in zip(views, job.plain.module.parameters()):
        close(got, wanted, "a view of before")
    close(torch.from_numpy(array.copy()), job.plain.module.first.weight)
    del views, array, got
    job.step(2)
    assert job.optimizer.statistics()["held"] == 2
    job.optimizer.drain()
    job.check()
    job.close()


def test_parameters_written_by_hand():
    job = Job().step(3)
    for write in (lambda p: p.data.mul_(0.9), lambda p: p.data.copy_(torch.ones_like(p) * 0.1),
                  lambda p: setattr(p, "data", p.data * 1.1)):
        for model, _ in job.pairs:
            with torch.no_grad():
                for parameter in model.module.parameters():
                    write(parameter)
        job.check("written")
        job.step(2)
        job.check("after it was written")
    for model, _ in job.pairs:
        model.module.load_state_dict({name: tensor * 0.5 for name, tensor in job.plain.module.state_dict().items()}
                                     if model is job.model else
                                     {name: tensor * 0.5 for name, tensor in model.module.state_dict().items()})
    job.step(2)
    job.check("after load_state_dict")
    job.close()


def test_parameters_moved_away():
    job = Job().step(3)
    job.optimizer.zero_grad()
    job.model.module.float()
    job.model.module.loss(job.model, generator(0)).backward()
    assert_raises(RuntimeError, "was moved or cast after ZeroRedundancyOptimizer", job.optimizer.step)
    job.close()


def test_buffers():
    """step() broadcasts rank 0's buffers; the forward pass does so only if there was no step."""
    job = Job(models.Cnn)
    calls, broadcast = [], job.model._sync.buffers.broadcast
    job.model._sync.buffers.broadcast = lambda *call: (calls.append(job.number), broadcast(*call))
    job.step(4)
    for name, buffer in job.model.module.named_buffers():
        first = buffer.clone()
        dist.broadcast(first, 0)
        close(buffer, first, name)
    assert calls == ([0, 1, 2, 3, 4] if SIZE > 1 else []), calls  # the first forward pass, and the steps
    for _ in range(2):
        for _, optimizer in job.pairs:
            optimizer.zero_grad()
        job.backward()
    job.model.broadcast_buffers = False
    job.step()
    assert calls == ([0, 1, 2, 3, 4, 5] if SIZE > 1 else []), calls
    job.close()


def test_evaluation_and_average_of_models():
    job = Job(models.Transformer).step(2)
    averages = [torch.optim.swa_utils.AveragedModel(model.module) for model, _ in job.pairs]
    for _ in range(4):
        job.step(1)
        for average, (model, _) in zip(averages, job.pairs):
            average.update_parameters(model.module)
        outputs = []
        for model, _ in job.pairs:
            model.eval()
            with torch.no_grad():
                outputs.append(model.module(torch.arange(8).view(1, 8)))
            model.train()
        close(outputs[0], outputs[1], "evaluation")
    for got, wanted in zip(averages[0].parameters(), averages[1].parameters()):
        close(got, wanted, "average of models")
    job.check()
    job.close()


def test_scripted_code_is_waited_for():
    class Scripted(models.Mixed):
        def __init__(self):
            super().__init__()
            self.first = torch.jit.script(self.first)

    job = Job(models.Mixed)
    job.close()
    torch.manual_seed(3)
    model = Scripted().double()
    wrapped = mgwfbp.torch.DistributedDataParallel(model, transport=TRANSPORT, policy="zero:1KiB", profile_steps=2)
    optimizer = ZeroRedundancyOptimizer(wrapped, torch.optim.AdamW, lr=3e-3)
    for number in range(5):
        optimizer.zero_grad()
        model.loss(wrapped, generator(number)).backward()
        optimizer.step()
        job.expected.zero_grad()
        job.plain.module.loss(job.plain, generator(number)).backward()
        job.expected.step()
    assert optimizer.statistics()["held"] == 5 or SIZE == 1, optimizer.statistics()
    for got, wanted in zip(model.parameters(), job.plain.module.parameters()):
        close(got, wanted)
    wrapped.close()


def test_compiled_code_is_waited_for():
    """As a whole: then it is known. A function that is compiled inside of forward may not be (with PyTorch 2.13 it is), and
    is right in both cases."""
    if not hasattr(torch, "compile"):
        return
    for inside in (False, True):
        job = Job().step(3)
        inner = job.model.module
        if inside:
            inner.third.forward = torch.compile(inner.third.forward, backend="eager")
        else:
            inner.first.compile(backend="eager")
        job.step(4)
        assert inside or job.optimizer.statistics()["held"] == 4, job.optimizer.statistics()
        job.check()
        job.close()


def test_captured_code():
    """As torch.cuda.make_graphed_callables leaves a module: refused before parameters have moved, held afterwards."""
    def make_graphed_callables(module):
        module.forward = (lambda forward: lambda x: forward(x))(module.forward)

    job = Job().step(4)
    make_graphed_callables(job.model.module.first)
    job.step(2)
    assert job.optimizer.statistics()["held"] == 2
    job.check()
    job.close()
    wrapped = mgwfbp.torch.DistributedDataParallel(job.model.module, transport=TRANSPORT)
    assert_raises(RuntimeError, "capture it after the first step", lambda: ZeroRedundancyOptimizer(wrapped))
    wrapped.close()


# ---- Where it is used ----


def test_refused():
    model = models.Mixed()
    assert_raises(RuntimeError, "wrap the model in mgwfbp.torch.DistributedDataParallel first",
           lambda: ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=1.0))
    wrapped = mgwfbp.torch.DistributedDataParallel(model, transport=TRANSPORT)
    for name in ("LBFGS", "SparseAdam", "Adafactor", "Muon"):
        if hasattr(torch.optim, name):
            assert_raises(ValueError, f"{name} is not known to be elementwise",
                   lambda: ZeroRedundancyOptimizer(wrapped, getattr(torch.optim, name)))
    assert_raises(ValueError, "not the process group in which the model's gradients are averaged",
           lambda: ZeroRedundancyOptimizer(wrapped, torch.optim.SGD, object(), lr=1.0))
    assert_raises(ValueError, "parameter_dtype", lambda: ZeroRedundancyOptimizer(wrapped, parameter_dtype=torch.float64))
    assert_raises(ValueError, "gradient_dtype", lambda: ZeroRedundancyOptimizer(wrapped, gradient_dtype=torch.float64))
    assert_raises(ValueError, "some parameters do not belong to the wrapped model", lambda: ZeroRedundancyOptimizer(
        [*model.parameters(), nn.Parameter(torch.zeros(1))], torch.optim.SGD, lr=1.0))
    assert_raises(ValueError, "Invalid learning rate", lambda: ZeroRedundancyOptimizer(wrapped, lr=-1.0))
    optimizer = ZeroRedundancyOptimizer(wrapped, torch.optim.SGD, None, True, lr=1.0)
    assert_raises(RuntimeError, "already has a ZeroRedundancyOptimizer",
           lambda: ZeroRedundancyOptimizer(wrapped, torch.optim.SGD, lr=1.0))
    assert_raises(ValueError, "must require a gradient when the model is wrapped",
           lambda: optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(1))]}))
    assert len(optimizer.param_groups) == 1
    wrapped.close()


def test_default_policy_and_report():
    model = models.Transformer()
    wrapped = mgwfbp.torch.DistributedDataParallel(model, transport=TRANSPORT, profile_steps=2)
    optimizer = ZeroRedundancyOptimizer(wrapped, lr=1e-3)
    for number in range(8):
        optimizer.zero_grad()
        model.loss(wrapped, generator(number)).backward()
        optimizer.step()
    report = wrapped.report()
    assert report.policy == "overlap" and "overlap *" in str(report), str(report)
    assert {"gathers", "parameter_bytes", "stall_s"} <= set(wrapped.statistics())
    assert report.iteration_s >= report.compute_s > 0
    overlap = next(row for row in report.predicted if row.policy == "overlap")
    assert all(overlap.iteration_s <= row.iteration_s * 1.001 for row in report.predicted), str(report)
    wrapped.close()


def check_state_is_shared_out(policy):
    model = nn.Sequential(*[nn.Linear(64, 64) for _ in range(6)])
    model.loss = lambda call, generator: call(torch.randn(4, 64, generator=generator)).square().mean()
    wrapped = mgwfbp.torch.DistributedDataParallel(model, transport=TRANSPORT, policy=policy, profile_steps=1,
                                                   trials=40)
    optimizer = ZeroRedundancyOptimizer(wrapped, lr=1e-3)
    whole = 2 * 4 * sum(p.numel() for p in model.parameters())
    for number in range(6 if policy != "sharded" else 80):  # from the first step on: there may be no memory for more
        optimizer.zero_grad()
        model.loss(wrapped, generator(number)).backward()
        optimizer.step()
        counts = optimizer.statistics()
        assert counts["state_bytes"] < whole / SIZE * 1.2, (number, counts, whole)
    assert counts["runs"] <= 8, counts
    wrapped.close()


def test_state_is_shared_out():
    """By buckets, and by plans that are tried."""
    for policy in ("zero:16KiB", "sharded"):
        check_state_is_shared_out(policy)


def test_given_plan():
    """It shards from the first step on, too."""
    with tempfile.TemporaryDirectory(prefix="mgwfbp-zero-") as folder:
        job = Job().step(4)
        gathers, path = job.model.statistics()["gathers"], f"{folder}/plan.json"
        job.model.save_plan(path)
        job.close()
        job = Job(plan=path)
        for _ in range(4):
            job.step()
            job.check()
        assert job.model.statistics()["gathers"] == gathers and (gathers or SIZE == 1), gathers
        job.close()


def test_made_late_and_closed():
    job = Job()
    job.close()
    inner = job.model.module
    wrapped = mgwfbp.torch.DistributedDataParallel(inner, transport=TRANSPORT, policy="optimal", profile_steps=1)
    job.model, job.optimizer = wrapped, torch.optim.AdamW(inner.parameters(), lr=3e-3)
    job.step(3)
    state = job.optimizer.state_dict()
    job.optimizer = ZeroRedundancyOptimizer(wrapped, torch.optim.AdamW, policy="zero:1KiB", lr=3e-3)
    job.optimizer.load_state_dict(state)
    job.step(4)
    assert wrapped.statistics()["gathers"] > 0
    job.check()
    state = whole_state(job.optimizer)
    wrapped.close()
    job.model = nn.parallel.DistributedDataParallel(inner)  # weights are where any others are
    job.optimizer = torch.optim.AdamW(inner.parameters(), lr=3e-3)
    job.optimizer.load_state_dict(state)
    job.step(2)
    job.check()


def test_dropped_without_close():
    """The module has its values and can be used alone; everything else is freed, also from inside inference mode."""
    for releases in (False, True):
        job = Job().step(5)
        if releases:
            job.optimizer.zero_grad()
        module, sync = job.model.module, weakref.ref(job.model._sync)
        job.model = job.optimizer = None
        with torch.inference_mode():
            gc.collect()
        assert sync() is None, "it is kept alive"
        for parameter, wanted in zip(module.parameters(), job.plain.module.parameters()):
            assert type(parameter) is nn.Parameter and type(parameter.grad) is not Scattered
            close(parameter, wanted)
        module.loss(module, generator(9)).backward()
        torch.optim.SGD(module.parameters(), lr=0.1).step()
        alone = weakref.ref(module)
        del module, parameter
        gc.collect()
        assert alone() is None, "the module is kept alive"


def test_complex_and_scalar_parameters():
    class Waves(nn.Module):
        def __init__(self):
            super().__init__()
            self.wave = nn.Parameter(torch.randn(9, 5, dtype=torch.complex64))
            self.scale = nn.Parameter(torch.tensor(0.5))
            self.linear = nn.Linear(5, 3)

        def forward(self, x):
            return self.linear((x.to(self.wave.dtype) @ self.wave).real * self.scale)

        def loss(self, call, generator):
            return call(torch.randn(4, 9, generator=generator)).square().mean()

    torch.manual_seed(3)
    model = Waves()
    plain = copy.deepcopy(model)
    expected = torch.optim.Adam(plain.parameters(), lr=1e-2)
    wrapped = mgwfbp.torch.DistributedDataParallel(model, transport=TRANSPORT, policy="zero:64B", profile_steps=2)
    optimizer = ZeroRedundancyOptimizer(wrapped, torch.optim.Adam, lr=1e-2)
    for number in range(6):  # the same on all workers, so that an average is what one has
        for call, each in ((wrapped, optimizer), (plain, expected)):
            each.zero_grad()
            model.loss(call, torch.Generator().manual_seed(number)).backward()
            each.step()
    state = whole_state(optimizer)
    assert state["state"][0]["exp_avg"].dtype == torch.complex64
    for i, (got, wanted) in enumerate(zip(model.parameters(), plain.parameters())):
        assert float((got.detach() - wanted.detach()).abs().max()) < 1e-5, i
        assert state["state"][i]["exp_avg"].shape == wanted.shape
    wrapped.close()


if __name__ == "__main__":
    situations.run(globals(), sys.argv[2:])
