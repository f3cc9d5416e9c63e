"""One worker of test_use: situations that happen, right and wrong, in one job for each transport.

usage: worker_use.py TRANSPORT. Each rank prints a JSON object: situation -> "ok" or what went wrong.
"""

import situations
from using import *
from using_messages import *
from using_wrongly import *


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


def test_dtype_of_a_part_changed_later():
    """A layer whose parameters are not the first ones, neither of the model nor in ready order."""
    model = wrap(nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 2)))
    optimizer = sgd(model)
    for number in range(6):
        if number == 2:
            model.module[1].double().register_forward_pre_hook(lambda layer, inputs: inputs[0].double())
            model.module[1].register_forward_hook(lambda layer, inputs, output: output.float())
        optimizer.zero_grad(set_to_none=True)
        model(torch.randn(5, 3, generator=generator(number))).pow(2).mean().backward()
        optimizer.step()
        assert_same_on_all_ranks(model)
    assert model.module[1].weight.grad.dtype == torch.float64


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
    """Averaged as pairs of real numbers, together with real ones."""
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


def test_lazy_gradients():
    """Views whose memory holds the conjugates or the negatives of their values."""
    class Lazy(nn.Module):
        def __init__(self):
            super().__init__()
            self.waves = nn.ParameterList([nn.Parameter(torch.randn(4, dtype=torch.complex64)) for _ in range(4)])
            self.numbers = nn.ParameterList([nn.Parameter(torch.randn(())) for _ in range(3)])

        def forward(self, x):
            waves = sum((x * wave.conj()).real.sum() for wave in self.waves)
            return waves + sum((torch.complex(number, number).conj() * x[0]).real for number in self.numbers)

    model = wrap(Lazy())
    for number in range(4):
        model.zero_grad(set_to_none=True)
        x = torch.randn(4, dtype=torch.complex64, generator=generator(number))
        own = torch.autograd.grad(model.module(x), list(model.parameters()))
        assert own[0].is_conj(), "nothing is tested"
        model(x).backward()
        for parameter, gradient in zip(model.parameters(), own):
            expected, found = (torch.view_as_real(t.resolve_conj()) if t.is_complex() else t.resolve_neg()
                               for t in (gradient, parameter.grad))
            expected = expected.clone()
            dist.all_reduce(expected)
            assert torch.allclose(found, expected / SIZE, atol=1e-5), number


def test_evaluation_of_different_length():
    """A forward pass without gradients does not involve other workers."""
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


def test_measurements():
    """Files for the commands: as the report predicts, so does the planner from them."""
    trace, cluster = shared_file("measured.json"), shared_file("network.json")
    model = wrap(models.Cnn())
    assert_raises(RuntimeError, "nothing measured yet", lambda: model.save_measurements(trace, cluster))
    for number in range(12):
        step(model, number)
    if RANK == 0:
        model.save_measurements(trace, cluster, batch=8, model="cnn")
        saved = mgwfbp.Trace.load(trace).dict()
        assert (saved["model"], saved["batch"]) == ("cnn", 8), saved
        names = [name for name, parameter in models.Cnn().named_parameters() if parameter.requires_grad]
        assert sorted(tensor["name"] for tensor in saved["tensors"]) == sorted(names), saved
        for row in model.report().predicted:
            planned = mgwfbp.plan(trace, cluster, row.policy)
            assert planned.message_count == row.messages, row
            assert abs(planned.iteration_s / row.iteration_s - 1) < 1e-6, (planned.iteration_s, row)
    model.close()
    dist.barrier()


def test_pinned():
    """The same cuts again, from the first plan on; whatever the policy."""
    path, other = shared_file("plan.json"), shared_file("other.json")
    model = wrap(models.Cnn(), policy="ddp:256B,1024")
    assert_raises(RuntimeError, "no plan yet; the first one is made after a few steps", lambda: model.save_plan(path))
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


def test_planned_wires():
    """A plan that says of one message that it travels as bf16: that one is rounded, the other is not."""
    path = shared_file("wires.json")

    def run(plan=None, hook=None, bytes=4 * (40 * 30 + 30 * 20), told=None):
        model = wrap(torch.nn.Sequential(torch.nn.Linear(40, 30, bias=False), torch.nn.Linear(30, 20, bias=False)),
                     plan=plan, policy="wfbp", trials=False, profile_steps=1)
        if hook:
            model.register_comm_hook(None, hook)
        for _ in range(3):
            model.zero_grad(set_to_none=True)
            torch.manual_seed(3)  # the same on all workers: averages are what each of them has
            model(torch.randn(8, 40)).square().sum().backward()
        found = [parameter.grad.clone() for parameter in model.parameters()]
        assert model.statistics()["wire_bytes"] == bytes, model.statistics()
        assert told in str(model.report()) if told else "f32 as" not in str(model.report()), model.report()
        if plan is None and RANK == 0:
            model.save_plan(path)
        model.close()
        dist.barrier()
        return found

    torch.manual_seed(1)
    exact = run()
    if RANK == 0:
        with open(path) as file:
            plan = json.load(file)
        first = plan["operations"][0]  # the last layer's: the first that is ready
        assert len(plan["operations"]) == 2 and len(first["tensors"]) == 1, plan
        first.update(wire="bf16", bytes=first["bytes"] // 2)
        with open(path, "w") as file:
            json.dump(plan, file)
    dist.barrier()
    torch.manual_seed(1)
    planned = run(path, bytes=4 * 40 * 30 + 2 * 30 * 20, told="f32 as bf16 or f32 (5.9 KiB a step)")
    assert torch.allclose(planned[0], exact[0], rtol=1e-6), "as it is"
    if SIZE > 1:  # else nothing travels
        assert not torch.equal(planned[1], exact[1]), "rounded"
        assert torch.equal(planned[1], planned[1].bfloat16().float()), "to bf16"
    assert torch.allclose(planned[1], exact[1], rtol=2e-2, atol=1e-4)
    if TRANSPORT == "torch":  # a hook decides itself, and who gave the plan hears of it
        torch.manual_seed(1)
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            hooked = run(path, default_hooks.allreduce_hook)
        assert any("wire has no effect" in str(each.message) for each in heard), heard
        assert all(map(torch.allclose, hooked, exact))
    dist.barrier()
    if RANK == 0:
        os.remove(path)


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
    assert_raises(ValueError, "that does not belong to the model",
                  lambda: mgwfbp.torch.DistributedOptimizer(sgd(stranger), model, transport=TRANSPORT))


if __name__ == "__main__":
    situations.run(globals(), sys.argv[2:])
