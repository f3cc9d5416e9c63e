"""What the situations of worker_zero_use.py share: a job with ZeroRedundancyOptimizer, and a plain one beside it."""

from mgwfbp.torch.scattered import Scattered
from using import *

ZeroRedundancyOptimizer = mgwfbp.torch.ZeroRedundancyOptimizer


class Job:
    """Ours, and a plain one that does the same: everything is compared with it."""

    def __init__(self, make=models.Mixed, kind=torch.optim.AdamW, ddp=None, policy="zero:1KiB", zero=None, plan=None,
                 **options):
        options = options or {"lr": 3e-3}
        torch.manual_seed(3)
        model = make().double()  # with three workers sums are in another order: rounding must stay small
        self.plain = nn.parallel.DistributedDataParallel(copy.deepcopy(model), **(ddp or {}))
        self.expected = kind(self.plain.module.parameters(), **options)
        self.model = mgwfbp.torch.DistributedDataParallel(model, transport=TRANSPORT, policy=policy, profile_steps=2,
                                                          plan=plan, **(ddp or {}))
        self.optimizer = ZeroRedundancyOptimizer(model.parameters(), kind, **options, **(zero or {}))
        self.number = 0

    pairs = property(lambda self: ((self.model, self.optimizer), (self.plain, self.expected)))

    def backward(self):
        for model, _ in self.pairs:
            model.module.loss(model, generator(self.number)).backward()
        self.number += 1

    def step(self, count=1, **how):
        for _ in range(count):
            for _, optimizer in self.pairs:
                optimizer.zero_grad(**how)
            self.backward()
            self.optimizer.step()
            self.expected.step()
        return self

    def check(self, what="weights"):
        for (name, got), wanted in zip(self.model.module.named_parameters(), self.plain.module.parameters()):
            close(got, wanted, f"{what}: {name}")

    def close(self):
        self.model.close()


def close(got, wanted, what=""):
    difference = float((got.detach() - wanted.detach()).abs().max()) if got.numel() else 0.0
    assert difference < 1e-9, f"{what}: {difference}"


def scattered(job):
    return [p for p in job.model.module.parameters() if type(p.grad) is Scattered]


def whole_state(optimizer, to=0):
    """Broadcasts a text from a rank."""
    optimizer.consolidate_state_dict(to=to)
    told = [optimizer.state_dict() if RANK == to else None]
    dist.broadcast_object_list(told, src=to)
    return told[0]
