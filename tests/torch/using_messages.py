"""Situations of worker_use.py: small gradients, which are handed over by the message."""

from using import *


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
    """A different set on each rank, and one that no rank uses."""
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
