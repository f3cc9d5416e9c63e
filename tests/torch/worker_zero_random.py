"""One worker of test_zero_use: random jobs with ZeroRedundancyOptimizer, whose plans change every few steps, beside a plain
optimizer on averages made by hand. With up to two workers, weights and state must be the same but for the last bits.

usage: worker_zero_random.py TRANSPORT FIRST COUNT. Rank 0 prints what differs, by seed, as JSON; a seed repeats its job.
"""

import contextlib
import random

from using_zero import *

STEPS = 30
POLICIES = ("overlap", "sharded", "zero:2KiB", "zero:6KiB", "fsdp:1KiB", "dear:1", "optimal", "ddp", "single", "wfbp")
NETWORKS = ((1e-5, 2e-6), (1e-6, 1e-6), (1e-4, 1e-8))  # a and b: each has other plans
OPTIMIZERS = {
    "SGD": ({"lr": .05}, {"lr": .05, "momentum": .9, "nesterov": True, "weight_decay": .01}, {"lr": .05, "foreach": False}),
    "AdamW": ({"lr": 3e-3}, {"lr": 3e-3, "amsgrad": True}, {"lr": 3e-3, "foreach": False}, {"lr": 3e-3, "maximize": True}),
    "Adam": ({"lr": 3e-3, "amsgrad": True, "foreach": True}, {"lr": 3e-3, "weight_decay": .1}),
    "RMSprop": ({"lr": 1e-3, "momentum": .9, "centered": True},), "Adagrad": ({"lr": 1e-2},), "NAdam": ({"lr": 1e-3},),
    "RAdam": ({"lr": 1e-3},), "Adamax": ({"lr": 1e-3},), "Rprop": ({"lr": 1e-3},), "Adadelta": ({"lr": 1.},)}


class Net(nn.Module):
    """Layers, some of which some workers leave out, and parameters of other kinds."""

    def __init__(self, choose):
        super().__init__()
        width = self.width = choose.choice([8, 17, 33, 70])
        self.leaves_out = choose.random() < .35
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(choose.randint(2, 5)))
        self.frozen = nn.Linear(width, width).requires_grad_(False)
        self.wave = nn.Parameter(torch.randn(width, width, dtype=torch.complex128) * .1) if choose.random() < .3 else None
        self.narrow = nn.Linear(width, width).float() if choose.random() < .4 else None
        self.empty = nn.Parameter(torch.zeros(0, 3)) if choose.random() < .4 else None
        self.scale = nn.Parameter(torch.tensor(0.5))
        self.late = nn.Linear(width, width)  # whose group may be added later

    def forward(self, x, used):
        x = self.frozen(x)
        for layer, is_used in zip(self.layers, used):
            x = torch.tanh(layer(x)) if is_used else x
        if self.narrow is not None:
            x = torch.tanh(self.narrow(x.float())).to(x.dtype)
        if self.wave is not None:
            x = (x.to(self.wave.dtype) @ self.wave).real
        x = self.late(x) * self.scale
        return x if self.empty is None else x + self.empty.sum()


def average(model):
    """As DDP: gradients that nobody has stay None."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    have = torch.tensor([float(p.grad is not None) for p in parameters])
    dist.all_reduce(have)
    for p, some in zip(parameters, have.tolist()):
        if some:
            whole = torch.zeros_like(p) if p.grad is None else p.grad / SIZE
            dist.all_reduce(torch.view_as_real(whole) if whole.is_complex() else whole)
            p.grad = whole
        else:
            p.grad = None


def differing(got, wanted):
    """Entries of the plain optimizer's state that ours does not have, or has otherwise."""
    for k, state in wanted["state"].items():
        if not any(isinstance(value, torch.Tensor) and value.dim() and value.numel() for value in state.values()):
            continue  # of a parameter without elements
        for name, value in state.items():
            if not isinstance(value, torch.Tensor):
                continue
            ours = got["state"].get(k, {}).get(name)
            if ours is None and not value.any():  # plain Adagrad has it before the first step
                continue
            if ours is None or float((torch.as_tensor(ours) - value).abs().max()) > 1e-6 * (1 + float(value.abs().max())):
                yield f"{k}: {name}: {ours}, not {value}"[:200]


class RandomJob:
    def __init__(self, seed):
        self.choose, self.seed, self.history = random.Random(seed), seed, []
        choose = self.choose
        torch.manual_seed(seed)
        model = Net(choose).double()
        if model.narrow is not None:
            model.narrow.float()
        plain = copy.deepcopy(model)
        name = choose.choice(sorted(OPTIMIZERS))
        options, kind = choose.choice(OPTIMIZERS[name]), getattr(torch.optim, name)
        if model.wave is not None and "amsgrad" in options:  # PyTorch 1.13 has no maximum of complex numbers
            options = {"lr": 3e-3}
        self.tries = choose.random() < .5  # plans of overlap are tried, instead of policies set
        a, b = choose.choice(NETWORKS)
        self.file = os.path.join(tempfile.gettempdir(), f"mgwfbp-random-{os.environ['MASTER_PORT']}.json")
        if RANK == 0:
            mgwfbp.Cluster.line("random", max(2, SIZE), a, b).save(self.file)
        dist.barrier()
        self.wrapped = mgwfbp.torch.DistributedDataParallel(
            model, transport=TRANSPORT, policy="overlap" if self.tries else choose.choice(POLICIES), cluster=self.file,
            profile_steps=choose.randint(1, 3), replan_steps=choose.choice([1, 2, 5, 7]), replan_percent=0,
            find_unused_parameters=model.leaves_out)
        adds = choose.random() < .5 and name != "Adagrad"  # PyTorch's has no state for groups that are added
        self.added = choose.randint(3, STEPS - 5) if adds else None
        self.ours = ZeroRedundancyOptimizer(self.groups(model), kind, **options)
        self.theirs = kind(self.groups(plain), **options)
        self.model, self.plain = model, plain
        self.pairs = ((self.wrapped, model, self.ours), (plain, plain, self.theirs))
        self.clips, self.about = choose.random() < .25, f"{name} {options}"

    def groups(self, model):
        late = set(map(id, model.late.parameters())) if self.added else ()
        some = [p for p in model.parameters() if p.requires_grad and id(p) not in late]
        return [{"params": [p for p in some if p.dim() > 1], "lr": 2e-3}, {"params": [p for p in some if p.dim() <= 1]}]

    def evaluate(self):
        inside = self.choose.choice([torch.no_grad, torch.inference_mode, contextlib.nullcontext])
        with inside():
            one, other = (call(torch.ones(3, self.model.width, dtype=torch.float64), [True] * 5) for call, *_ in self.pairs)
        close(one, other, "evaluation")

    def save_and_load(self):
        to = self.choose.randrange(SIZE)
        self.ours.consolidate_state_dict(to=to)
        told = [self.ours.state_dict() if RANK == to else None]
        dist.broadcast_object_list(told, src=to)
        wrong = list(differing(told[0], self.theirs.state_dict()))
        assert not wrong, f"state of {wrong[:3]}"
        if self.choose.random() < .5:
            self.ours.load_state_dict(told[0])

    def set_policy(self):
        if not self.tries:
            self.wrapped.set_policy(self.choose.choice(POLICIES))

    def change_rate(self):
        for *_, optimizer in self.pairs:
            for group in optimizer.param_groups:
                group["lr"] *= .9

    def write(self):
        with torch.no_grad():
            for _, model, _ in self.pairs:
                for p in model.parameters():
                    p.data.mul_(.99)

    def drop_gradients(self):
        dropped = [self.choose.random() < .3 for _ in self.model.parameters()]
        for _, model, _ in self.pairs:
            for p, is_dropped in zip(model.parameters(), dropped):
                if is_dropped:
                    p.grad = None

    def one_more_forward(self):
        self.wrapped(torch.ones(2, self.model.width, dtype=torch.float64), [True] * 5)

    def perhaps(self, *what):
        for each in what:
            if self.choose.random() < .12:
                self.history.append(each.__name__)
                each()

    def backward(self, number):
        used = random.Random(1000 * self.seed + 10 * number + RANK)
        parts = self.choose.choice([1, 1, 1, 2, 3])
        for part in range(parts):
            x = torch.randn(4, self.model.width, dtype=torch.float64, generator=generator(1000 * self.seed + 10 * number + part))
            mask = [not self.model.leaves_out or used.random() < .6 for _ in range(5)]
            with self.wrapped.no_sync() if part < parts - 1 else contextlib.nullcontext():
                self.wrapped(x, mask).square().mean().backward()
            self.plain(x, mask).square().mean().backward()
        average(self.plain)

    def step(self, number):
        self.history = [f"step {number}"]
        if number == self.added:
            for _, model, optimizer in self.pairs:
                optimizer.add_param_group({"params": list(model.late.parameters())})
        self.perhaps(self.evaluate, self.save_and_load, self.set_policy, self.change_rate, self.write)
        none = self.model.leaves_out or self.choose.random() < .7
        for _, model, optimizer in self.pairs:
            optimizer.zero_grad(set_to_none=none)
            if self.added and number < self.added:
                for p in model.late.parameters():
                    p.grad = None
        self.backward(number)
        self.perhaps(self.drop_gradients, self.set_policy, self.one_more_forward)
        if self.clips:
            for _, model, _ in self.pairs:
                nn.utils.clip_grad_norm_([p for p in model.parameters() if p.grad is not None and p.numel()], .5)
        if self.choose.random() < .9:
            self.ours.step()
            self.theirs.step()
        for (name, got), wanted in zip(self.model.named_parameters(), self.plain.named_parameters()):
            most = 1e-4 if got.dtype == torch.float32 else 1e-8
            difference = float((got.detach() - wanted[1].detach()).abs().max()) if got.numel() else 0.0
            assert difference < most, f"{name} differs by {difference}"

    def run(self):
        for number in range(STEPS):
            self.step(number)
        self.wrapped.close()
        dist.barrier()
        if RANK == 0:
            os.unlink(self.file)


def main(first, count):
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
    torch.set_num_threads(1)
    trouble = {}
    for seed in range(first, first + count):
        job = RandomJob(seed)
        try:
            job.run()
        except Exception as error:
            trouble[seed] = f"{', '.join(job.history)} with {job.about}: {type(error).__name__}: {error}"
            break  # the ranks may be apart from here on
    if RANK == 0 or trouble:
        print(json.dumps(trouble))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*map(int, sys.argv[2:]))
