"""One worker of test_use: situations that happen, right and wrong, in one job for each transport.

usage: worker_use.py TRANSPORT. Each rank prints a JSON object: situation -> "ok" or what went wrong.
"""

import copy
import datetime
import json
import os
import pickle
import sys
import tempfile
import traceback

import torch
import torch.distributed as dist
import torch.nn as nn

import mgwfbp
import mgwfbp.torch
import models
from mgwfbp.torch import groups

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
TRANSPORT = sys.argv[1]


def generator(step):
    return torch.Generator().manual_seed(100 * step + RANK)


def wrap(model, **options):
    return mgwfbp.torch.DistributedDataParallel(model, transport=TRANSPORT, **{"profile_steps": 2, **options})


def step(model, number, optimizer=None, **how):
    inner = getattr(model, "module", model)
    if optimizer:
        optimizer.zero_grad(set_to_none=how.get("set_to_none", False))
    inner.loss(model, generator(number)).backward()
    if optimizer:
        optimizer.step()


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


def assert_same_on_all_ranks(model):
    for name, tensor in model.module.named_parameters():
        high, low = tensor.detach().clone(), tensor.detach().clone()
        dist.all_reduce(high, op=dist.ReduceOp.MAX)
        dist.all_reduce(low, op=dist.ReduceOp.MIN)
        assert torch.equal(high, low), f"{name} differs between ranks"


def assert_raises(kind, part, call):
    try:
        call()
    except kind as error:
        assert part in str(error), f"'{part}' is not in '{error}'"
    else:
        raise AssertionError(f"{kind.__name__} with '{part}' was not raised")


# ---- Right use ----


def test_gradients_are_in_the_arena():
    model = wrap(models.Cnn())
    optimizer = sgd(model)
    for number in range(4):
        step(model, number, optimizer)
    assert model.statistics()["copies"] == 0, model.statistics()
    addresses = [p.grad.data_ptr() for p in model._sync.parameters]
    assert addresses == sorted(addresses), "gradients do not lie in ready order"
    assert max(addresses) - min(addresses) < model.statistics()["arena_bytes"]
    assert model._sync.names[0].startswith("head"), model._sync.names


def test_what_is_copied_is_counted():
    model = wrap(models.Cnn())
    optimizer = sgd(model)
    for number in range(3):
        step(model, number, optimizer, set_to_none=True)
    counts = model.statistics()
    expected = sum(p.numel() for p in model.parameters()) * 4 * 2  # two steps after the survey
    assert counts["copied_bytes"] == expected, counts
    assert "copied" in str(model.report())


def test_dtype_changed_later():
    model = wrap(models.Cnn())
    step(model, 0)
    model.double()
    for parameter in model.parameters():
        parameter.grad = None
    step(model, 1)
    gradient = model.module.head.weight.grad
    assert gradient.dtype == torch.float64 and model.statistics()["copies"] > 0
    high = gradient.clone()
    dist.all_reduce(high, op=dist.ReduceOp.MAX)
    assert torch.equal(high, gradient), "not averaged"


def averages(model):
    """All gradients, each compared with everybody's."""
    gradients = [p.grad.detach().clone() for p in model.parameters()]
    for gradient in gradients:
        high, low = gradient.clone(), gradient.clone()
        dist.all_reduce(high, op=dist.ReduceOp.MAX)
        dist.all_reduce(low, op=dist.ReduceOp.MIN)
        assert torch.equal(high, low), "not averaged"
    return gradients


def test_cast_to_and_fro():
    """Gradients are cast with the model, away from the arena."""
    for set_to_none in (True, False):
        torch.manual_seed(11)
        model = wrap(models.Cnn())
        plain = copy.deepcopy(model.module)
        for number in range(3):
            step(model, number)
            model.zero_grad(set_to_none=set_to_none)
        model.half()
        model.float()
        plain.half().float()
        plain.load_state_dict(model.module.state_dict())
        for number in (3, 4):
            model.zero_grad(set_to_none=set_to_none)
            step(model, number)
            plain.zero_grad()
            step(plain, number)
            ours = averages(model)
            for gradient, parameter in zip(ours, plain.parameters()):
                average = parameter.grad.clone()
                dist.all_reduce(average)
                assert torch.allclose(gradient, average / SIZE, rtol=1e-4, atol=1e-6), "another step's gradient"


def test_complex_parameters():
    """Averaged as pairs of real numbers, beside real ones."""
    class Complex(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Parameter(torch.randn(3, 4, dtype=torch.complex64))
            self.b = nn.Parameter(torch.randn(4))

        def forward(self, x):
            return (self.a @ x.to(torch.complex64)).abs().sum() + (self.b * x[:, 0]).sum()

    model = wrap(Complex())
    for number in range(5):
        model.zero_grad(set_to_none=number % 2 == 0)
        x = torch.randn(4, 5, generator=generator(number))
        model(x).backward()
        for parameter, own in zip(model.parameters(), torch.autograd.grad(model.module.forward(x), model.parameters())):
            expected, found = (torch.view_as_real(t) if t.is_complex() else t for t in (own.clone(), parameter.grad))
            dist.all_reduce(expected)
            assert torch.allclose(found, expected / SIZE, atol=1e-5), number


def test_evaluation_of_different_length():
    """Without gradients a forward pass is nobody else's business."""
    model = wrap(models.Cnn())
    optimizer = sgd(model)
    step(model, 0, optimizer)
    with torch.no_grad():
        for number in range(2 + RANK):
            model.module.loss(model, generator(number))
    step(model, 1, optimizer)
    assert_same_on_all_ranks(model)


def test_copies_of_the_module():
    """Neither calls the original's hooks."""
    model = wrap(models.Cnn())
    step(model, 0)
    for other in (copy.deepcopy(model.module), pickle.loads(pickle.dumps(model.module))):
        if RANK == 0:
            other.loss(other, generator(5)).backward()
    before = model.statistics()["steps"]
    step(model, 1)
    assert model.statistics()["steps"] == before + 1
    averages(model)


def test_output_that_is_a_parameter():
    class Scaled(models.Cnn):
        def __init__(self):
            super().__init__()
            self.bias = nn.Parameter(torch.ones(1))

        def forward(self, inputs):
            return super().forward(inputs) * self.bias, self.bias

        def loss(self, call, generator):
            return super().loss(lambda inputs: call(inputs)[0], generator)

    model = wrap(Scaled())
    for number in range(4):
        step(model, number)
    assert not model.module.bias._backward_hooks, "hooks pile up"
    averages(model)


def test_accumulated_in_part():
    """An epoch whose number of batches is not a multiple."""
    torch.manual_seed(11)
    model = models.Cnn()
    optimizer = mgwfbp.torch.DistributedOptimizer(sgd(model), model, transport=TRANSPORT, backward_passes_per_step=2)
    for epoch in range(3):
        for batch in range(3):
            model.loss(model, generator(10 * epoch + batch))  # a forward pass that nobody goes back from
            model.loss(model, generator(10 * epoch + batch)).backward()
            if batch != 0:
                optimizer.step()
                averages(model)
                optimizer.zero_grad()
    optimizer.close()


def test_scaler_of_a_fused_optimizer():
    model = models.Cnn()
    inner = sgd(model)
    optimizer = mgwfbp.torch.DistributedOptimizer(inner, model, transport=TRANSPORT)
    told = {}
    inner.step = lambda **named: told.update(named, scale=inner.grad_scale, inf=inner.found_inf)
    optimizer.grad_scale, optimizer.found_inf = 8, 1
    optimizer.step(grad_scaler="scaler")
    del optimizer.grad_scale, optimizer.found_inf
    assert told == {"grad_scaler": "scaler", "scale": 8, "inf": 1}, told
    assert not hasattr(inner, "grad_scale")
    optimizer.close()


def test_plans_change_messages_not_results():
    states = []
    for policy in ("optimal", "wfbp", "single", "naive", "ddp:1024,4096"):
        torch.manual_seed(3)
        model = wrap(models.Cnn(), policy=policy, cluster="paper-2-10gbe")
        optimizer = sgd(model)
        for number in range(6):
            step(model, number, optimizer)
        counts = model.statistics()
        assert counts["plans"] >= 1, counts
        tensors = len(list(model.parameters()))
        assert counts["messages"] == {"wfbp": tensors, "naive": tensors, "single": 1}.get(policy, counts["messages"])
        states.append(model.module.state_dict())
        model.close()
    for state in states[1:]:
        for name in state:
            close = torch.equal if SIZE <= 2 else torch.allclose
            assert close(state[name], states[0][name]), name


def test_set_policy():
    model = wrap(models.Cnn())
    for number in range(4):
        step(model, number)
    model.set_policy("wfbp")
    step(model, 5)
    assert model.statistics()["messages"] == len(list(model.parameters()))
    model.set_policy("single")
    step(model, 6)
    assert model.statistics()["messages"] == 1
    assert_raises(mgwfbp.Error, "best", lambda: model.set_policy("best"))


CHEAP = {"format": "mgwfbp-cluster-1", "name": "cheap", "workers": 2, "cost": {"a_s": 1e-7, "b_s_per_byte": 1e-9}}


def same_everywhere(number):
    row = torch.tensor([float(number), -float(number)], dtype=torch.float64)
    dist.all_reduce(row, op=dist.ReduceOp.MAX)
    return row[0] == -row[1]


def shared_file(name):
    """The same on all ranks, and nobody else's."""
    return os.path.join(tempfile.gettempdir(), f"mgwfbp-{os.environ['MASTER_PORT']}-{TRANSPORT.split(':')[0]}-{SIZE}-{name}")


def cheap_network():
    """Of which the model thinks that messages cost nothing: it cuts everywhere, DDP nowhere."""
    path = shared_file("cheap.json")
    if RANK == 0:
        with open(path, "w") as file:
            json.dump(CHEAP, file)
    dist.barrier()
    return path


def test_trials():
    """Plans take turns in steps; results are as without, and workers agree at every step."""
    states, cluster = [], cheap_network()
    for trials in (True, False):
        torch.manual_seed(4)
        model = wrap(models.Cnn(), trials=trials, cluster=cluster)
        optimizer, seen = sgd(model), set()
        for number in range(45):
            step(model, number, optimizer)
            seen.add(model.statistics()["messages"])
            assert same_everywhere(model.statistics()["messages"]), number
        counts, report = model.statistics(), model.report()
        if trials and SIZE > 1:
            assert counts["trial_steps"] > 0 and len(seen) > 1, (counts, seen)
            assert report.tried[0].name == "ddp" and report.tried[0].messages == 1, report.tried
            assert len(report.tried) > 1 and all(each.predicted_s > 0 for each in report.tried), report.tried
            assert any(each.measured_s > 0 for each in report.tried), report.tried
            assert "whole step" in str(report), str(report)
        else:
            assert counts["trial_steps"] == counts["trying"] == 0 and report.tried == [], (counts, report.tried)
        states.append(model.module.state_dict())
        model.close()
    for name in states[0]:
        assert (torch.equal if SIZE <= 2 else torch.allclose)(states[0][name], states[1][name]), name


def test_pinned():
    """The same cuts again, from the first plan on; whatever the policy."""
    path, other = shared_file("plan.json"), shared_file("other.json")
    model = wrap(models.Cnn(), policy="ddp:256,1024")
    assert_raises(RuntimeError, "there is no plan yet", lambda: model.save_plan(path))
    for number in range(4):
        step(model, number)
    messages = model.statistics()["messages"]
    assert messages > 2, messages
    if RANK == 0:
        model.save_plan(path)
    model.close()
    dist.barrier()
    again = wrap(models.Cnn(), plan=path, policy="single")
    for number in range(12):
        step(again, number)
        assert number == 0 or again.statistics()["messages"] == messages
    assert again.statistics()["plans"] == 1 and again.statistics()["trial_steps"] == 0
    again.close()
    if RANK == 0:
        with open(path) as file, open(other, "w") as changed:
            changed.write(file.read().replace(".weight", ".wait"))
    dist.barrier()

    def first_steps(**options):
        model = wrap(models.Cnn(), **options)
        for number in range(2):
            step(model, number)

    assert_raises(mgwfbp.Error, ".tensors: '", lambda: first_steps(plan=other))
    assert_raises(mgwfbp.Error, other, lambda: first_steps(plan=other))
    if SIZE > 1:
        assert_raises(RuntimeError, "plan=", lambda: first_steps(plan=other if RANK else path))
    dist.barrier()
    if RANK == 0:
        os.remove(path), os.remove(other)


def test_report():
    model = wrap(models.Cnn())
    assert "not measured yet" in str(model.report())
    for number in range(5):
        step(model, number)
    report = model.report()
    assert report.workers == SIZE and report.iteration_s >= report.compute_s > 0
    rows = {row.policy: row for row in report.predicted}
    assert rows["wfbp"].messages == len(list(model.parameters())) and rows["single"].messages == 1
    best = min(row.iteration_s for row in report.predicted)
    assert rows["optimal"].iteration_s <= best * (1 + 1e-9) and report.lower_bound_s <= best * (1 + 1e-9)
    assert "optimal *" in str(report) and "lower bound" in str(report)


def test_second_model():
    """Two models, in turn and in one loss."""
    first, second = wrap(models.Cnn()), wrap(models.Mixed())
    optimizers = [sgd(first), sgd(second)]
    for number in range(5):
        step(first, number, optimizers[0])
        step(second, number, optimizers[1])
    for optimizer in optimizers:
        optimizer.zero_grad(set_to_none=False)
    (first.module.loss(first, generator(8)) + second.module.loss(second, generator(9))).backward()
    for optimizer in optimizers:
        optimizer.step()
    assert_same_on_all_ranks(first)
    assert_same_on_all_ranks(second)


def test_forward_without_backward():
    model = wrap(models.Cnn())
    optimizer = sgd(model)
    for number in range(4):
        model.module.loss(model, generator(50 + number))
        with torch.no_grad():
            model.module.loss(model, generator(60 + number))
        step(model, number, optimizer)
        model.eval()
        model.module.loss(model, generator(70 + number))
        model.train()
    assert_same_on_all_ranks(model)


def test_grad_of_the_output_only():
    """torch.autograd.grad gives parameters no gradient: no step."""
    model = wrap(models.Mixed())
    step(model, 0)
    steps = model.statistics()["steps"]
    x = torch.randn(5, 6, requires_grad=True)
    torch.autograd.grad(model(x).sum(), x)
    assert model.statistics()["steps"] == steps
    step(model, 1)


def test_wrapped_again():
    module = models.Cnn()
    for _ in range(3):
        model = wrap(module)
        for number in range(3):
            step(model, number)
        kept = module.head.weight.grad
        before = kept.clone()
        model.close()
        assert torch.equal(kept, before)  # its memory is still there
        step(model, 3)  # not averaged any more
    module.loss(module, generator(1)).backward()  # and it can be used alone
    model = wrap(module)
    step(model, 2)


def test_optimizer():
    torch.manual_seed(1)
    model = models.Cnn()
    optimizer = mgwfbp.torch.DistributedOptimizer(sgd(model), model, transport=TRANSPORT, backward_passes_per_step=2)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    for number in range(3):
        optimizer.zero_grad(set_to_none=False)
        model.loss(model, generator(2 * number)).backward()
        model.loss(model, generator(2 * number + 1)).backward()
        optimizer.synchronize()
        optimizer.step()
        schedule.step()
    assert optimizer.statistics()["steps"] == 3 and optimizer.param_groups[0]["lr"] == 0.1 / 8
    state = optimizer.state_dict()
    optimizer.load_state_dict(state)
    wrapper = nn.Module()
    wrapper.module = model
    assert_same_on_all_ranks(wrapper)
    stranger = nn.Linear(2, 2)
    assert_raises(ValueError, "not the model's",
                  lambda: mgwfbp.torch.DistributedOptimizer(sgd(stranger), model, transport=TRANSPORT))


# ---- Small gradients, which are handed over by the message ----


class Towers(nn.Module):
    """Many small parameters, of several shapes, in towers that are added up; `order` says which ones, and in which order."""

    def __init__(self):
        super().__init__()
        self.towers = nn.ModuleList(nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 5), nn.LayerNorm(5))
                                    for _ in range(4))
        self.order = [0, 1, 2, 3]

    def forward(self, x):
        total = 0
        for place, number in enumerate(self.order):
            total = torch.tanh(total + self.towers[number](x) * (place + 1))
        return total

    def loss(self, call, generator):
        return call(torch.randn(7, 6, generator=generator)).square().mean()


def towers(**options):
    """Its plan in force, and what it would be without averaging."""
    torch.manual_seed(21)
    model = wrap(Towers(), **{"policy": "single", **options})
    for number in range(5):
        step(model, number)
        model.zero_grad(set_to_none=True)
    return model, copy.deepcopy(model.module)


def alone(model):
    """The names of those that are taken in by themselves from now on."""
    names, take_in = [], model._sync._take_in
    model._sync._take_in = lambda k: (names.append(model._sync.names[k]), take_in(k))
    return names


def check_step(model, plain, number, set_to_none=True, **how):
    """A step of both: gradients are the averages of what every worker computes by itself."""
    plain.order = model.module.order
    for each in (model, plain):
        each.zero_grad(set_to_none=set_to_none)
        loss = model.module.loss(each, generator(number))
        loss.backward(**how)
    for (name, own), parameter in zip(plain.named_parameters(), model.parameters()):
        expected = torch.zeros_like(own) if own.grad is None else own.grad.detach().clone()
        dist.all_reduce(expected)
        assert parameter.grad is not None or not expected.any(), f"{name} has no gradient"
        assert parameter.grad is None or torch.allclose(parameter.grad, expected / SIZE, atol=1e-6), (number, name)


def test_small_gradients_go_together():
    for policy, most in (("single", 1), ("ddp:1024,1024", 3)):
        model, plain = towers(policy=policy)
        by_themselves = alone(model)
        for number in range(8):
            del by_themselves[:]
            check_step(model, plain, number, set_to_none=number % 4 < 2)
            assert len(by_themselves) <= most, (policy, by_themselves)
        model.close()


def test_order_that_changes():
    for policy in ("single", "ddp:1024,1024", "wfbp"):
        model, plain = towers(policy=policy)
        for number, order in enumerate(([3, 2, 1, 0], [0, 1, 2, 3], [2, 0, 3, 1], [1, 3, 0, 2])):
            model.module.order = order if number % 2 else order[RANK:] + order[:RANK]  # not the same everywhere
            check_step(model, plain, number, set_to_none=number % 3 > 0)
        model.close()


def test_unused_in_a_message():
    model, plain = towers()
    model.module.order = [0, 2, 3] if RANK == 0 else [0, 1, 2, 3]
    step(model, 1)
    if RANK == 0:
        names = [name for name in model._sync.names if name.startswith("towers.1")]
        assert_raises(RuntimeError, f"for rank 0: {', '.join(names)} (6 of 24 parameters", lambda: model(torch.ones(7, 6)))
    model.module.order = [0, 1, 2, 3]
    check_step(model, plain, 2)


def test_unused_here_and_there():
    """Another set on each rank, and one that nobody uses."""
    model, plain = towers(find_unused_parameters=True)
    for number, order in enumerate(([RANK % 2, 3], [3, RANK % 2], [0, 1, 2, 3], [3], [2, RANK % 2, 3])):
        model.module.order = order
        check_step(model, plain, number, set_to_none=True)
        used_anywhere = {0, 1, 2, 3} if number == 2 else {0, 1, 3} if SIZE > 1 else {0, 3}
        used_anywhere = {3} if number == 3 else used_anywhere | ({2} if number == 4 else set())
        for k, tower in enumerate(model.module.towers):
            assert (tower[0].weight.grad is not None) == (k in used_anywhere), (number, k)


def test_gradients_here_and_there():
    """Some are in place, some are elsewhere, one has another layout, one came with a graph of its own."""
    model, plain = towers()
    for number in range(6):
        check_step(model, plain, number, set_to_none=False)
        for k, parameter in enumerate(model.parameters()):
            parameter.grad = None if k % 3 == number % 3 else torch.zeros_like(parameter)
        plain.zero_grad()
        step(model, 50 + number)
        step(plain, 50 + number)
        for own, parameter in zip(plain.parameters(), model.parameters()):
            expected = own.grad.clone()
            dist.all_reduce(expected)
            assert torch.allclose(parameter.grad, expected / SIZE, atol=1e-6), number
        weight = model.module.towers[1][0].weight
        weight.grad = torch.zeros(weight.shape[::-1]).t()
        check_step(model, plain, number, set_to_none=False)
    check_step(model, plain, 7, create_graph=True)
    check_step(model, plain, 8)


def test_no_sync_between():
    model, plain = towers()
    for number in range(3):
        model.zero_grad(set_to_none=True)
        plain.zero_grad(set_to_none=True)
        with model.no_sync():
            step(model, 30 + number)
        own = [p.grad.clone() for p in model.parameters()]
        step(plain, 30 + number)
        assert all(torch.equal(a, p.grad) for a, p in zip(own, plain.parameters())), "averaged inside of no_sync"
        step(model, 40 + number)
        step(plain, 40 + number)
        for p, own in zip(model.parameters(), plain.parameters()):
            expected = own.grad.clone()
            dist.all_reduce(expected)
            assert torch.allclose(p.grad, expected / SIZE, atol=1e-6), number


def test_twice_in_a_message():
    """Noted and not sent yet, or sent already: a second gradient is an error, in this backward pass."""
    from torch.utils.checkpoint import checkpoint

    for policy in ("single", "wfbp"):
        model, _ = towers(policy=policy)
        x = torch.randn(7, 6, generator=generator(0))
        model.zero_grad(set_to_none=True)
        inner = model.module.towers[2][2]
        model.module.forward = lambda x: checkpoint(inner, checkpoint(
            lambda y: inner(y).repeat(1, 2)[:, :8], model.module.towers[0][0](x), use_reentrant=True), use_reentrant=True).sum()
        assert_raises(RuntimeError, "twice", lambda: model(x).backward())
        assert_raises(RuntimeError, "did not end", lambda: model(x))
        model.close()


def test_checkpoints_of_other_layers():
    """Hooks run in inner backward passes, and none of it is over before the outer one is."""
    from torch.utils.checkpoint import checkpoint

    model, plain = towers()
    forward = Towers.forward
    for number in range(4):
        Towers.forward = lambda self, x: sum(checkpoint(tower, x, use_reentrant=True) for tower in self.towers)
        try:
            x = torch.randn(7, 6, generator=generator(number), requires_grad=True)
            for each in (model, plain):
                each.zero_grad(set_to_none=number % 2 == 0)
                each(x).square().mean().backward()
        finally:
            Towers.forward = forward
        for own, parameter in zip(plain.parameters(), model.parameters()):
            expected = own.grad.clone()
            dist.all_reduce(expected)
            assert torch.allclose(parameter.grad, expected / SIZE, atol=1e-6), number


# ---- Wrong use ----


def test_parameters_that_differ():
    model = nn.Linear(4, 3 if RANK == SIZE - 1 else 2)
    if SIZE > 1:
        assert_raises(RuntimeError, "is 'weight torch.float32 [2, 4]' on rank 0 and 'weight torch.float32 [3, 4]' on "
                      f"rank {SIZE - 1}", lambda: wrap(model))
        model = nn.Linear(4, 2, bias=RANK == 0)
        assert_raises(RuntimeError, "workers disagree", lambda: wrap(model))


def test_options_that_differ():
    if SIZE > 1:
        assert_raises(RuntimeError, "workers disagree",
                      lambda: wrap(nn.Linear(2, 2), policy="wfbp" if RANK == 0 else "single"))


def test_changed_graph():
    """Rank 0 leaves a layer out without having said so: it hears which in its next forward pass, and all can go on."""

    class Shrinking(models.Cnn):
        def forward(self, x):
            return super().forward(x) if not self.short else self.body(x).flatten(1)[:, :10]

    torch.manual_seed(2)
    model = wrap(Shrinking())
    optimizer = sgd(model)
    for number in range(8):
        model.module.short = RANK == 0 and number in (0, 3, 6)
        if model.module.short:
            optimizer.zero_grad(set_to_none=number == 3)
            model.module.loss(model, generator(number)).backward()
            optimizer.step()
            assert_raises(RuntimeError, f"for rank 0: {'head.weight'}", lambda: model(torch.zeros(4, 3, 8, 8)))
        else:
            step(model, number, optimizer)
    assert_same_on_all_ranks(model)


def test_first_step_without_the_first_layer():
    """What is missing is told by its name, though the survey changes the order."""
    model = wrap(nn.ModuleDict({"first": nn.Linear(3, 2), "second": nn.Linear(3, 2)}))
    model.module.forward = lambda x: model.module["second"](x).sum()
    model(torch.ones(4, 3)).backward()
    assert_raises(RuntimeError, f"did not receive grad for rank {RANK}: 0 1\nParameters which did not receive grad for rank "
                  f"{RANK}: first.weight, first.bias (2 of 4 ", lambda: model(torch.ones(4, 3)))


def test_exception_before_any_gradient():
    """As with DDP: nothing was sent, so everything goes on."""
    model = wrap(models.Cnn())
    optimizer = sgd(model)

    def fail(gradient):
        raise KeyError("from a hook")

    for number in range(4):
        step(model, number, optimizer)
        output = model(torch.randn(4, 3, 8, 8))
        output.register_hook(fail)
        assert_raises(KeyError, "from a hook", output.sum().backward)
    assert_same_on_all_ranks(model)


def test_exception_in_backward():
    """Messages are on the way: the next forward pass says so; wrapped anew, it goes on."""
    module = models.Cnn()
    model = wrap(module)
    for number in range(4):
        step(model, number)

    def fail(gradient):
        raise KeyError("from a hook")

    handle = module.body[0].weight.register_hook(fail)
    assert_raises(KeyError, "from a hook", lambda: step(model, 5))
    assert_raises(RuntimeError, "did not end", lambda: step(model, 6))
    assert_raises(RuntimeError, "did not end", lambda: step(model, 6))
    handle.remove()
    model.close()
    dist.barrier()
    model = wrap(module)
    optimizer = sgd(model)
    for number in range(4):
        step(model, number, optimizer)
    assert_same_on_all_ranks(model)


def test_gradient_twice():
    """Two reentrant backward passes over one parameter in one step."""
    from torch.utils.checkpoint import checkpoint

    class Twice(models.Mixed):
        def forward(self, x):
            x = torch.tanh(self.first(x))
            for _ in range(2):
                x = checkpoint(lambda y: torch.tanh(self.second(y.double())).float(), x, use_reentrant=True)
            return self.third(x)

    model = wrap(Twice())
    assert_raises(RuntimeError, "twice", lambda: step(model, 0))
    model.close()


def test_sparse_where_nobody_said_so():
    class Rows(nn.Module):
        def __init__(self):
            super().__init__()
            self.rows = nn.Parameter(torch.randn(10, 4))

        def forward(self, x):
            return torch.nn.functional.embedding(x, self.rows, sparse=True)

    model = wrap(Rows())
    assert_raises(RuntimeError, "its module did not say so", lambda: model(torch.tensor([1, 2])).sum().backward())
    model.close()


def test_refusals():
    model = wrap(models.Cnn())
    assert_raises(TypeError, "must be callable", lambda: model.register_comm_hook(None, None))
    if TRANSPORT.startswith("native"):
        assert_raises(RuntimeError, "transport='torch'", lambda: model.register_comm_hook(None, lambda state, bucket: None))
    assert_raises(ValueError, "one worker has one device", lambda: wrap(models.Cnn(), device_ids=[0, 1]))
    assert_raises(mgwfbp.Error, "best", lambda: step(wrap(models.Cnn(), policy="best"), 0))
    assert_raises(ValueError, "profile_steps", lambda: wrap(models.Cnn(), profile_steps=0))
    frozen = models.Cnn().requires_grad_(False)
    assert_raises(RuntimeError, "nothing to average", lambda: wrap(frozen))
    assert_raises(ValueError, "pigeon", lambda: mgwfbp.torch.DistributedDataParallel(models.Cnn(), transport="pigeon"))
    assert_raises(RuntimeError, "transport='torch'", lambda: mgwfbp.torch.DistributedDataParallel(
        nn.Linear(2, 2, device="meta"), transport="native"))
    assert_raises(RuntimeError, "memory of a GPU", lambda: mgwfbp.torch.DistributedDataParallel(
        models.Cnn(), transport="native:nccl"))


def test_two_wrappers():
    """The one before lets go by itself; but not in the middle of a step."""
    module = models.Cnn()
    first = wrap(module)
    step(first, 0)
    second = wrap(module)
    step(second, 1)
    averages(second)
    steps = second.statistics()["steps"]
    step(first, 2)  # as after close()
    assert second.statistics()["steps"] == steps
    second._sync.in_step = True
    assert_raises(RuntimeError, "close() that first", lambda: wrap(module))
    second._sync.in_step = False
    step(second, 3)
    averages(second)


def test_failure_on_one_rank():
    """Who has failed does not wait for the others in its next forward pass."""
    model = wrap(models.Cnn())
    step(model, 0)
    if RANK == 1:
        model._sync.in_step = True  # as an exception in its backward pass leaves it
        assert_raises(RuntimeError, "did not end", lambda: step(model, 1))
        model._sync.in_step = False
    dist.barrier()
    step(model, 1)


def test_transports_on_gpus():
    gpu = torch.device("cuda", 0)
    for name, expected in ((None, (None, True)), ("nccl", (None, True)), ("nccl:mpi", ("mpi", True)), ("shm", ("shm", True))):
        assert groups._split(name, gpu) == expected, name
    assert_raises(RuntimeError, "only the memory of the host", lambda: groups._split("emulated:1e-3,1e-9", gpu))


def main():
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=120))
    torch.set_num_threads(1)
    results = {}
    for name, test in sorted(globals().items()):
        if name.startswith("test_"):
            dist.barrier()
            torch.manual_seed(11)
            try:
                test()
                results[name] = "ok"
            except Exception:
                results[name] = traceback.format_exc()
                break  # the ranks may be apart from here on
    print(json.dumps(results))


if __name__ == "__main__":
    main()
    dist.destroy_process_group()  # gloo has threads, which must not outlive the interpreter
