"""One worker of test_graphs: several backward passes, graphs and wrappers in one step, as programs for PyTorch's DDP have
them.

usage: worker_graphs.py TRANSPORT. Each rank prints a JSON object: situation -> "ok" or what went wrong.
"""

import copy
import os
import sys
from types import SimpleNamespace

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.utils.checkpoint import checkpoint

import mgwfbp.torch
import situations

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
TRANSPORT = sys.argv[1]
STEPS = 5  # more than the steps that are measured


def wrap(model, **options):
    return mgwfbp.torch.DistributedDataParallel(model, transport=TRANSPORT, **{"profile_steps": 2, **options})


def inputs(number, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(100 * number + RANK))


def average(tensor):
    total = tensor.detach().clone()
    dist.all_reduce(total)
    return total / SIZE


def check_averages(model, loss):
    """Compares the model's gradients with the averages of those that autograd finds for the same loss."""
    parameters = list(model.parameters())
    for parameter, own in zip(parameters, torch.autograd.grad(loss, parameters)):
        expected = average(own)
        assert torch.allclose(parameter.grad, expected, rtol=1e-4, atol=1e-6), (parameter.grad, expected)


# ---- Several passes over one graph ----


def slope(model, x):
    """A loss that depends only on derivatives of the model's output."""
    derivative, = torch.autograd.grad(model(x).sum(), x, create_graph=True)
    return (derivative ** 2).mean()


def test_loss_of_derivatives():
    model = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1, bias=False))
    wrapped = wrap(model)
    for number in range(STEPS):
        wrapped.zero_grad()
        x = inputs(number, 16, 2).requires_grad_()
        slope(wrapped, x).backward()
        check_averages(model, slope(model, x))
    wrapped.close()


def test_loss_of_derivatives_with_an_optimizer():
    model = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1, bias=False))
    optimizer = mgwfbp.torch.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model, transport=TRANSPORT)
    for number in range(STEPS):
        optimizer.zero_grad()
        slope(model, inputs(number, 16, 2).requires_grad_()).backward()
        for parameter in model.parameters():
            assert torch.allclose(parameter.grad, average(parameter.grad)), "not averaged"
        optimizer.step()
    optimizer.close()


def test_parts_with_an_optimizer():
    """Horovod's optimizer does not ask how a model is called. The second pass of a step belongs to no forward pass."""
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = mgwfbp.torch.DistributedOptimizer(inner, model, transport=TRANSPORT, profile_steps=2)
    for number in range(2 * STEPS):
        optimizer.zero_grad()
        x = inputs(number, 5, 3)
        (model[1](model[0](x)) if number % 2 else model(x)).pow(2).sum().backward()
        (model[0].weight * inputs(number + 50, 4, 3)).sum().backward()
        optimizer.step()
        for parameter in model.parameters():
            assert torch.allclose(parameter, average(parameter)), number
    optimizer.close()


def test_two_forward_passes_with_buffers():
    """As in contrastive learning. Buffers are broadcast before both, and the first graph holds them."""
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    wrapped = wrap(model)
    for number in range(STEPS):
        wrapped.zero_grad()
        views = inputs(number, 5, 4), inputs(number + 50, 5, 4)
        (wrapped(views[0]) - wrapped(views[1])).pow(2).mean().backward()
        check_averages(model, (model(views[0]) - model(views[1])).pow(2).mean())
        mean = model[1].running_mean.clone()
        wrapped(views[0])
        assert RANK == 0 or not torch.equal(mean, model[1].running_mean), "buffers were not broadcast"
    wrapped.close()


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.policy, self.value, self.spare = nn.Linear(4, 2), nn.Linear(4, 1), nn.Linear(4, 1)

    def forward(self, x, spare=True):
        return self.policy(x), self.value(x) + (self.spare(x) if spare else 0)


def test_a_pass_for_each_head():
    model = TwoHeads()
    wrapped = wrap(model)
    for number in range(STEPS):
        wrapped.zero_grad()
        x = inputs(number, 3, 4)
        for output in wrapped(x):
            output.pow(2).sum().backward()
        check_averages(model, sum(output.pow(2).sum() for output in model(x)))
    wrapped.close()


def test_unused_in_all_passes():
    """The error names what no pass has used."""
    model = TwoHeads()
    wrapped = wrap(model)
    for number in range(3):
        for output in wrapped(inputs(number, 3, 4), spare=False):
            output.pow(2).sum().backward()
        try:
            wrapped(inputs(number, 3, 4))
        except RuntimeError as error:
            assert "spare.weight" in str(error) and "policy" not in str(error) and "value" not in str(error), error
        else:
            raise AssertionError("no error names spare")
    wrapped.close()


def test_default_dtype_of_the_program():
    """It is for the program's own tensors; gloo of PyTorch 1.13 cannot sum this one."""
    model = TwoHeads()
    wrapped = wrap(model, find_unused_parameters=True)
    for number in range(STEPS):
        x = inputs(number, 3, 4)
        torch.set_default_dtype(torch.bfloat16)
        wrapped.zero_grad(set_to_none=True)
        sum(output.pow(2).sum() for output in wrapped(x, spare=number % 2 == RANK)).backward()
        torch.set_default_dtype(torch.float32)
        for parameter in model.parameters():
            assert torch.allclose(parameter.grad, average(parameter.grad)), "not averaged"
    wrapped.close()


def test_a_pass_again_after_an_exception():
    """Before any parameter got a gradient."""
    model = TwoHeads()
    wrapped = wrap(model)
    for number in range(STEPS):
        wrapped.zero_grad()
        x = inputs(number, 3, 4)
        outputs = wrapped(x)
        loss = sum(output.pow(2).sum() for output in outputs)
        fault = outputs[1].register_hook(lambda gradient: 1 / 0)  # it is the first one in backward
        try:
            loss.backward(retain_graph=True)
        except ZeroDivisionError:
            fault.remove()
        loss.backward()
        check_averages(model, sum(output.pow(2).sum() for output in model(x)))
    wrapped.close()


def test_closed_after_an_exception():
    """The closed wrapper passes everything on, and the model can be wrapped again."""
    model = TwoHeads()
    wrapped, x = wrap(model), inputs(0, 3, 4)
    sum(output.sum() for output in wrapped(x)).backward()
    fault = model.policy.weight.register_hook(lambda gradient: 1 / 0)
    try:
        sum(output.sum() for output in wrapped(x)).backward()
    except ZeroDivisionError:
        fault.remove()
    wrapped.close()
    wrapped(x)[0].sum().backward()
    again = wrap(model)
    again.zero_grad()
    again(x)[0].sum().backward()
    again.close()  # with an error that is to be raised: parameters of the other head were not used
    again(x)[0].sum().backward()


class Checkpoints(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        middle = checkpoint(self.first, x, use_reentrant=True)
        return SimpleNamespace(parts=[checkpoint(self.second, middle, use_reentrant=True)])


def test_checkpoints_behind_an_object():
    """Each checkpoint has its own backward pass inside; none of them is the end of the step."""
    model = Checkpoints()
    wrapped = wrap(model)
    for number in range(STEPS):
        wrapped.zero_grad()
        x = inputs(number, 3, 4).requires_grad_()
        wrapped(x).parts[0].pow(2).sum().backward()
        check_averages(model, model.second(model.first(x)).pow(2).sum())
    wrapped.close()


# ---- Passes that do not concern a wrapper ----


def test_passes_before_the_first_forward_pass():
    """One worker tries the model by itself."""
    model = nn.Linear(3, 2)
    wrapped = wrap(model)
    if RANK == 0:
        model(inputs(0, 4, 3)).sum().backward()
        wrapped.zero_grad(set_to_none=True)
    x = inputs(1, 4, 3)
    wrapped(x).sum().backward()
    check_averages(model, model(x).sum())
    wrapped.close()


# ---- Hooks of the program ----


def test_hooks_that_come_later():
    """They change the gradients of this worker, before or after the first step, or between forward and backward pass."""
    if not hasattr(nn.Parameter, "register_post_accumulate_grad_hook"):
        return

    def clamp(parameter):
        parameter.grad.clamp_(-0.01, 0.01)

    def add(model):
        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(clamp)

    for options in ({}, {"gradient_as_bucket_view": False}, {"static_graph": True}):
        for when in range(4):
            model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 2))
            wrapped = wrap(model, **options)
            for number in range(6):
                x = inputs(number, 3, 6)
                wrapped.zero_grad(set_to_none=number % 2 == 0)
                if number == when:
                    add(wrapped)
                loss = wrapped(x).pow(2).sum()
                if number == when + 1:
                    add(wrapped)
                loss.backward()
                own = torch.autograd.grad(model(x).pow(2).sum(), list(model.parameters()))
                if number >= when:
                    own = [gradient.clamp(-0.01, 0.01) for gradient in own]
                for parameter, expected in zip(model.parameters(), own):
                    torch.distributed.all_reduce(expected)
                    assert torch.allclose(parameter.grad, expected / SIZE, atol=1e-7), (options, when, number)
            wrapped.close()


# ---- Optimizers that step in backward ----


def test_optimizers_in_backward():
    """They step with averages, and not inside no_sync, applied before wrapping or after it. PyTorch 1.13's DDP does not know
    them."""
    if not hasattr(nn.Parameter, "register_post_accumulate_grad_hook"):
        return
    from torch.distributed.optim import _apply_optimizer_in_backward
    for options in ({}, {"gradient_as_bucket_view": False}):
        model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
        expected = copy.deepcopy(model)
        _apply_optimizer_in_backward(torch.optim.SGD, model[0].parameters(), {"lr": 0.1, "momentum": 0.9})
        optimizer = torch.optim.SGD(expected.parameters(), lr=0.1, momentum=0.9)
        wrapped = wrap(model, **options)
        _apply_optimizer_in_backward(torch.optim.SGD, model[2].parameters(), {"lr": 0.1, "momentum": 0.9})  # after wrapping
        for number in range(STEPS):
            x = inputs(number, 3, 4)
            with wrapped.no_sync():
                wrapped(x).pow(2).mean().backward()
            wrapped(x).pow(2).mean().backward()
            assert all(parameter.grad is None for parameter in model.parameters())
            optimizer.zero_grad()
            (2 * expected(x).pow(2).mean()).backward()
            for own in expected.parameters():
                own.grad = average(own.grad)
            optimizer.step()
            for own, parameter in zip(expected.parameters(), model.parameters()):
                assert torch.allclose(own, parameter, atol=1e-6), number
        wrapped.close()


# ---- Two wrappers ----


def test_a_part_of_two_models_that_take_turns():
    part = nn.Linear(4, 4)
    models = [nn.Sequential(part, nn.Linear(4, outputs)) for outputs in (2, 3)]
    wrappers = [wrap(model) for model in models]
    for number in range(2 * STEPS):
        model, wrapped, x = models[number % 2], wrappers[number % 2], inputs(number, 3, 4)
        model.zero_grad(set_to_none=number % 4 < 2)
        wrapped(x).pow(2).sum().backward()
        check_averages(model, model(x).pow(2).sum())
    for wrapped in wrappers:
        wrapped.close()


def test_one_loss_of_two_models_that_share_a_parameter():
    """Small gradients are handed over together, large ones by themselves; with views and without, zeroed or new."""
    for width, options in ((4, {}), (300, {}), (4, {"gradient_as_bucket_view": False}),
                           (4, {"find_unused_parameters": True})):
        models = [nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, width)) for _ in range(2)]
        first, second = models
        wrapped = wrap(first, **options)
        x = inputs(9, 3, width)
        for number in range(STEPS):
            wrapped.zero_grad()
            wrapped(x).pow(2).mean().backward()
        second[0].weight = first[2].weight  # whose gradient is a view by now
        both, again = nn.ModuleList(models), wrap(second)
        for number in range(2 * STEPS):
            both.zero_grad(set_to_none=number % 4 < 2)
            x = inputs(number, 3, width)
            again(wrapped(x)).pow(2).mean().backward()
            check_averages(both, second(first(x)).pow(2).mean())
        both.zero_grad()
        wrapped(x).pow(2).mean().backward()  # one of them by itself
        check_averages(first, first(x).pow(2).mean())
        again.close()
        wrapped.close()


def test_a_shared_parameter_cannot_be_sharded():
    models = [nn.Linear(4, 4), nn.Linear(4, 4)]
    models[1].weight = models[0].weight
    wrapped, other = map(wrap, models)
    try:
        mgwfbp.torch.ZeroRedundancyOptimizer(wrapped.parameters(), torch.optim.SGD, lr=0.1)
    except RuntimeError as error:
        assert "'weight' does" in str(error), error
    else:
        raise AssertionError("no error names weight")
    other.close()
    wrapped.close()


# ---- Parameters frozen after wrapping ----


def test_frozen_while_another_model_trains():
    """As a discriminator is, in the steps of the generator."""
    judge, maker = nn.Linear(4, 1), nn.Linear(4, 4)
    wrapped = wrap(judge)
    for number in range(STEPS):
        x = inputs(number, 3, 4)
        wrapped.zero_grad()
        wrapped(x).pow(2).sum().backward()
        check_averages(judge, judge(x).pow(2).sum())
        wrapped.requires_grad_(False)
        wrapped(maker(x)).sum().backward()
        wrapped.requires_grad_(True)
    wrapped.close()


def test_frozen_when_hooks_are_registered_again():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    wrapped = wrap(model, find_unused_parameters=True)
    for number in range(2 * STEPS):
        model[0].requires_grad_(number // 2 % 2 == 1)  # frozen in the first step, at whose end hooks are registered again
        if number == 4:
            wrapped.register_comm_hook(None, default_hooks.fp16_compress_hook)  # this registers them as well
        wrapped.zero_grad(set_to_none=True)
        wrapped(inputs(number, 3, 4)).pow(2).sum().backward()
        assert (model[0].weight.grad is None) == (not model[0].weight.requires_grad), number
        for parameter in model.parameters():
            assert parameter.grad is None or torch.allclose(parameter.grad, average(parameter.grad)), "not averaged"
    wrapped.close()


if __name__ == "__main__":
    situations.run(globals(), sys.argv[2:])
