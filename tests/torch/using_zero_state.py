"""Situations of worker_zero_use.py: the optimizer's state in checkpoints, with 16-bit parameters, and where memory runs
out."""

from using_zero import *


# ---- Checkpoints ----


def test_state_of_a_plain_optimizer():
    job = Job(models.Transformer).step(5)
    assert_raises(RuntimeError, "consolidate_state_dict(to=RANK)", job.optimizer.state_dict)
    assert_raises(RuntimeError, "consolidate_state_dict()", lambda: job.optimizer.state[next(job.model.parameters())])
    assert_raises(TypeError, "save its state_dict()", lambda: copy.deepcopy(job.optimizer))
    last = SIZE - 1
    state = whole_state(job.optimizer, last)
    wanted = job.expected.state_dict()
    assert set(state["state"]) == set(wanted["state"])
    assert [g["params"] for g in state["param_groups"]] == [g["params"] for g in wanted["param_groups"]]
    for index, values in wanted["state"].items():
        assert set(values) == set(state["state"][index])
        for name, value in values.items():
            assert state["state"][index][name].shape == torch.as_tensor(value).shape
            close(state["state"][index][name], torch.as_tensor(value), name)
    other = torch.optim.AdamW(job.plain.module.parameters(), lr=1.0)
    other.load_state_dict(state)  # ours into a plain one
    job.expected = other
    job.optimizer.load_state_dict(wanted)  # and a plain one's into ours
    job.step(3)
    if RANK == last:
        assert_raises(RuntimeError, "After the last step", job.optimizer.state_dict)
    job.check()
    assert_raises(ValueError, "the parameter groups have different sizes", lambda: job.optimizer.load_state_dict(torch.optim.SGD(
        [torch.zeros(1)], lr=1).state_dict()))
    job.close()


def test_state_loaded_before_the_first_step():
    job = Job(models.Transformer).step(5)
    state, weights = whole_state(job.optimizer), copy.deepcopy(job.model.module)
    job.close()
    again = mgwfbp.torch.DistributedDataParallel(weights, transport=TRANSPORT, policy="zero:2KiB", profile_steps=1)
    optimizer = ZeroRedundancyOptimizer(weights.parameters(), torch.optim.AdamW, lr=1.0)
    optimizer.load_state_dict(state)
    same = whole_state(optimizer)
    assert same["param_groups"] == state["param_groups"] and set(same["state"]) == set(state["state"])
    job.model, job.optimizer = again, optimizer
    job.step(4)
    job.check()
    job.close()


# ---- 16 bits ----


def _train_wide_and_narrow(gradient_dtype, optimizer_options):
    """Compares with masters kept by hand: bf16 parameters, f32 masters, averaged in f32 or bf16."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(24, 40), nn.Tanh(), nn.Linear(40, 17), nn.Tanh(), nn.Linear(17, 3))
    reference = copy.deepcopy(model)
    masters = [p.detach().clone().requires_grad_() for p in reference.parameters()]
    expected = torch.optim.SGD(masters, **optimizer_options)
    reference.bfloat16()
    wrapped = mgwfbp.torch.DistributedDataParallel(model, transport=TRANSPORT, policy="zero:1KiB", profile_steps=2)
    optimizer = ZeroRedundancyOptimizer(wrapped, torch.optim.SGD, parameter_dtype=torch.bfloat16,
                                        gradient_dtype=gradient_dtype, **optimizer_options)
    assert all(p.dtype == torch.bfloat16 for p in model.parameters())
    for number in range(8):
        x = torch.randn(6, 24, generator=generator(number)).bfloat16()
        for p in reference.parameters():
            p.grad = None
        reference(x).float().square().mean().backward()
        for master, p in zip(masters, reference.parameters()):
            row = p.grad.float() / SIZE
            dist.all_reduce(row)
            # The first step is a survey: its average is rounded as .grad is.
            master.grad = row.bfloat16().float() if number == 0 or gradient_dtype == torch.bfloat16 else row
        expected.step()
        with torch.no_grad():
            for master, p in zip(masters, reference.parameters()):
                p.copy_(master)
        optimizer.zero_grad()
        wrapped(x).float().square().mean().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1e6)  # as nothing
        optimizer.step()
    return model, wrapped, optimizer, masters, reference


def test_masters():
    if TRANSPORT == "torch" and not hasattr(torch, "compile"):
        kinds = (torch.float32,)  # gloo of PyTorch 1.13 cannot all-reduce bf16
    else:
        kinds = (torch.float32, torch.bfloat16)
    for gradient_dtype in kinds:
        model, wrapped, optimizer, masters, reference = _train_wide_and_narrow(
            gradient_dtype, {"lr": 0.1, "momentum": 0.9})
        state = whole_state(optimizer)
        for i, (p, q, master) in enumerate(zip(model.parameters(), reference.parameters(), masters)):
            kept = state["state"][i]["master"]
            assert kept.dtype == torch.float32 and kept.shape == p.shape
            worst = float((kept - master).abs().max())
            most = 5e-3 if gradient_dtype == torch.bfloat16 else 1e-6 if SIZE <= 2 else 5e-4  # a third is rounded
            assert worst < most, (gradient_dtype, i, worst)
            assert torch.equal(kept.bfloat16(), p.detach().cpu()), "parameters are rounded masters"
        # What is written by hand counts; masters that were not written keep their digits.
        first = next(model.parameters())
        with torch.no_grad():
            first.data[0].fill_(0.5)
        before = state["state"][0]["master"].clone()
        optimizer.zero_grad()
        wrapped(torch.zeros(1, 24).bfloat16()).float().mul(0.0).sum().backward()
        for group in optimizer.param_groups:
            group["lr"] = 0.0
        optimizer.step()
        after = whole_state(optimizer)["state"][0]["master"]
        assert torch.equal(after[0], torch.full_like(after[0], 0.5)) and torch.equal(after[1:], before[1:])
        wrapped.close()


# ---- Memory ----


def test_no_memory_for_the_next_plan():
    """The error says what needs the memory, and what to do."""
    job = Job().step(5)

    def make(parts):
        raise torch.cuda.OutOfMemoryError("Tried to allocate 7.00 GiB")

    job.optimizer._runs.make = make
    if SIZE == 1:
        return job.close()  # there is one owner, whatever the plan
    assert_raises(RuntimeError, "policy='sharded'", lambda: job.model.set_policy("single"))
    job.model = job.optimizer = None
