"""Situations of worker_use.py: program errors, and their messages."""

from using import *


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
    """Rank 0 skips a layer without find_unused_parameters: its next forward pass names the layer, and all can continue."""

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
    """The error names the missing parameters, although the survey changes the order."""
    model = wrap(nn.ModuleDict({"first": nn.Linear(3, 2), "second": nn.Linear(3, 2)}))
    model.module.forward = lambda x: model.module["second"](x).sum()
    model(torch.ones(4, 3)).backward()
    assert_raises(RuntimeError, f"did not receive grad for rank {RANK}: 0 1\nParameters which did not receive grad for rank "
                  f"{RANK}: first.weight, first.bias (2 of 4 ", lambda: model(torch.ones(4, 3)))


def test_exception_before_any_gradient():
    """As with DDP: nothing was sent, so training continues."""
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
    """Messages are in flight: the next forward pass raises an error; after wrapping again, training continues."""
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
    assert_raises(RuntimeError, "its gradient is sparse, but it does not belong to a torch.nn.Embedding",
                  lambda: model(torch.tensor([1, 2])).sum().backward())
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
    assert_raises(RuntimeError, "works in GPU memory, but the model is on the CPU", lambda: mgwfbp.torch.DistributedDataParallel(
        models.Cnn(), transport="native:nccl"))


def test_two_wrappers():
    """The earlier wrapper closes by itself, but not in the middle of a step."""
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
    assert_raises(RuntimeError, "an unfinished backward pass; close() that wrapper first", lambda: wrap(module))
    second._sync.in_step = False
    step(second, 3)
    averages(second)


def test_failure_on_one_rank():
    """A failed rank does not wait for the others in its next forward pass."""
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
    assert_raises(RuntimeError, "emulated networks work only in host memory", lambda: groups._split("emulated:1e-3,1e-9", gpu))
