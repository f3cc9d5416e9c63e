"""Situations of worker_zero_use.py: what programs do between a backward pass and its update, and parameters and plans that
come and go."""

from using_zero import *

PLANS = ("single", "zero:1KiB", "wfbp", "zero:4KiB")


def test_forward_pass_before_the_update():
    """One more forward pass with gradients, to log a loss: the update belongs to the backward pass before it."""
    for policy in ("zero:1KiB", "overlap"):
        job = Job(policy=policy)
        for number in range(12):
            for _, optimizer in job.pairs:
                optimizer.zero_grad()
            job.backward()
            for model, optimizer in job.pairs:
                if number % 3:
                    model.module.loss(model, generator(number))
                optimizer.step()
            job.check(f"{policy}, step {number}")
        job.close()


def test_policy_set_in_a_step():
    """Before the update, before the backward pass, and twice: gradients stay with their owners until the update."""
    for moment in ("before update", "before backward", "twice"):
        job = Job()
        for number in range(16):
            losses = []
            for model, optimizer in job.pairs:
                optimizer.zero_grad()
                losses.append(model.module.loss(model, generator(number)))
            if moment == "before backward":
                job.model.set_policy(PLANS[number % 4])
            for loss in losses:
                loss.backward()
            if moment != "before backward":
                job.model.set_policy(PLANS[number % 4])
            if moment == "twice":
                job.model.set_policy(PLANS[(number + 1) % 4])
            job.optimizer.step()
            job.expected.step()
            job.check(f"{moment}, step {number}")
        losses = [model.module.loss(model, generator(16)) for model, _ in job.pairs]
        assert_raises(mgwfbp.Error, "best", lambda: job.model.set_policy("best"))
        job.close()


def test_parameter_in_no_group():
    """Nobody updates it, and its gradient is not added up."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 9), nn.Tanh(), nn.Linear(9, 3)).double()
    plain = nn.parallel.DistributedDataParallel(copy.deepcopy(model))
    wrapped = mgwfbp.torch.DistributedDataParallel(model, transport=TRANSPORT, policy="zero:64B", profile_steps=2)
    optimizer = ZeroRedundancyOptimizer(model[4].parameters(), torch.optim.AdamW, lr=1e-2)
    expected = torch.optim.AdamW(plain.module[4].parameters(), lr=1e-2)
    for number in range(9):
        if number == 5:  # thawed
            optimizer.add_param_group({"params": list(model[2].parameters())})
            expected.add_param_group({"params": list(plain.module[2].parameters())})
            plain.zero_grad()
        for call, each in ((wrapped, optimizer), (plain, expected)):
            each.zero_grad()
            call(torch.randn(4, 6, generator=generator(number)).double()).square().mean().backward()
            each.step()
    for got, wanted in zip(model.parameters(), plain.module.parameters()):
        close(got, wanted)
    wrapped.close()


def test_state_after_close():
    job = Job().step(3)
    job.optimizer.consolidate_state_dict()
    job.optimizer.param_groups[0]["lr"] = 0.25
    if RANK == 0:
        assert job.optimizer.state_dict()["param_groups"][0]["lr"] == 0.25, "those of now"
    job.close()
    assert_raises(RuntimeError, "before close()", job.optimizer.consolidate_state_dict)


def test_workers_in_another_order():
    """Lanes would have other ranks than the group."""
    import inspect
    if SIZE == 1 or "sort_ranks" not in inspect.signature(dist.new_group).parameters:
        return
    group = dist.new_group(list(range(SIZE))[::-1], sort_ranks=False)
    assert not groups.ProcessGroup(group, torch.device("cpu")).is_whole()
    assert groups.ProcessGroup(None, torch.device("cpu")).is_whole()
