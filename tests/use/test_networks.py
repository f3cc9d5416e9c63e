"""Our networks and optimizers against PyTorch's: same weights, same images; loss, gradients and running statistics.

The reference is torchvision where it has the model, otherwise a definition here, written from the papers.
"""

import math
import os
import subprocess
import unittest

from support import BUILD

try:
    import torch
    import torchvision
except ImportError:
    torch = None

TOOL = BUILD / "bin" / "nn_gradients"


def definitions():
    """The models that torchvision does not have."""
    nn, F = torch.nn, torch.nn.functional

    class LeNet5(nn.Module):
        def __init__(self, classes):
            super().__init__()
            self.conv1 = nn.Conv2d(1, 6, 5, padding=2)
            self.conv2 = nn.Conv2d(6, 16, 5)
            self.fc1, self.fc2, self.fc3 = nn.Linear(400, 120), nn.Linear(120, 84), nn.Linear(84, classes)

        def forward(self, x):
            x = F.max_pool2d(F.relu(self.conv1(x)), 2)
            x = F.max_pool2d(F.relu(self.conv2(x)), 2).flatten(1)
            return self.fc3(F.relu(self.fc2(F.relu(self.fc1(x)))))

    class Basic(nn.Module):
        def __init__(self, channels_in, channels, stride):
            super().__init__()
            self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, 1, bias=False)
            self.bn1 = nn.BatchNorm2d(channels)
            self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
            self.bn2 = nn.BatchNorm2d(channels)
            self.stride = stride

        def forward(self, x):
            y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
            if self.stride == 2:
                x = x[:, :, ::2, ::2]
                x = torch.cat((x, torch.zeros_like(x)), 1)
            return F.relu(x + y)

    class ResNet20(nn.Module):
        def __init__(self, classes):
            super().__init__()
            self.conv1, self.bn1 = nn.Conv2d(1, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16)
            self.layer1 = nn.Sequential(*(Basic(16, 16, 1) for _ in range(3)))
            self.layer2 = nn.Sequential(Basic(16, 32, 2), Basic(32, 32, 1), Basic(32, 32, 1))
            self.layer3 = nn.Sequential(Basic(32, 64, 2), Basic(64, 64, 1), Basic(64, 64, 1))
            self.fc = nn.Linear(64, classes)

        def forward(self, x):
            x = self.layer3(self.layer2(self.layer1(F.relu(self.bn1(self.conv1(x))))))
            return self.fc(x.mean((2, 3)))

    class Conv(nn.Module):
        def __init__(self, channels_in, channels, size, stride=1, padding=0):
            super().__init__()
            self.conv = nn.Conv2d(channels_in, channels, size, stride, padding, bias=False)
            self.bn = nn.BatchNorm2d(channels, eps=1e-3)

        def forward(self, x):
            return F.relu(self.bn(self.conv(x)))

    def row(channels_in, channels, n):
        return Conv(channels_in, channels, (1, n), 1, (0, n // 2))

    def column(channels_in, channels, n):
        return Conv(channels_in, channels, (n, 1), 1, (n // 2, 0))

    class Module(nn.Module):
        """Parallel branches; a branch is convolutions, optionally after a function."""

        def __init__(self, *branches, before=()):
            super().__init__()
            for i, branch in enumerate(branches):
                setattr(self, f"branch{i}", nn.ModuleList(branch))
            self.count, self.before = len(branches), dict(before)

        def branch(self, i, x):
            x = self.before.get(i, lambda y: y)(x)
            for layer in getattr(self, f"branch{i}"):
                x = layer(x)
            return [x]

        def forward(self, x):
            return torch.cat([y for i in range(self.count) for y in self.branch(i, x)], 1)

    class Forked(Module):
        """Branches 1 and 2 end in two parallel convolutions."""

        def branch(self, i, x):
            if i not in (1, 2):
                return super().branch(i, x)
            *chain, left, right = getattr(self, f"branch{i}")
            for layer in chain:
                x = layer(x)
            return [left(x), right(x)]

    def halved(x):
        return F.max_pool2d(x, 3, 2)

    def averaged(x):
        return F.avg_pool2d(x, 3, 1, 1, count_include_pad=False)

    def a():
        return Module([Conv(384, 96, 1)], [Conv(384, 64, 1), Conv(64, 96, 3, 1, 1)],
                      [Conv(384, 64, 1), Conv(64, 96, 3, 1, 1), Conv(96, 96, 3, 1, 1)],
                      [Conv(384, 96, 1)], before={3: averaged})

    def b():
        return Module([Conv(1024, 384, 1)], [Conv(1024, 192, 1), row(192, 224, 7), column(224, 256, 7)],
                      [Conv(1024, 192, 1), column(192, 192, 7), row(192, 224, 7), column(224, 224, 7),
                       row(224, 256, 7)],
                      [Conv(1024, 128, 1)], before={3: averaged})

    def c():
        return Forked([Conv(1536, 256, 1)], [Conv(1536, 384, 1), row(384, 256, 3), column(384, 256, 3)],
                      [Conv(1536, 384, 1), column(384, 448, 3), row(448, 512, 3), row(512, 256, 3),
                       column(512, 256, 3)],
                      [Conv(1536, 256, 1)], before={3: averaged})

    class InceptionV4(nn.Module):
        def __init__(self, classes):
            super().__init__()
            self.features = nn.Sequential(
                Module([Conv(3, 32, 3, 2)]), Module([Conv(32, 32, 3)]), Module([Conv(32, 64, 3, 1, 1)]),
                Module([], [Conv(64, 96, 3, 2)], before={0: halved}),
                Module([Conv(160, 64, 1), Conv(64, 96, 3)],
                       [Conv(160, 64, 1), row(64, 64, 7), column(64, 64, 7), Conv(64, 96, 3)]),
                Module([Conv(192, 192, 3, 2)], [], before={1: halved}),
                *(a() for _ in range(4)),
                Module([Conv(384, 384, 3, 2)], [Conv(384, 192, 1), Conv(192, 224, 3, 1, 1), Conv(224, 256, 3, 2)],
                       [], before={2: halved}),
                *(b() for _ in range(7)),
                Module([Conv(1024, 192, 1), Conv(192, 192, 3, 2)],
                       [Conv(1024, 256, 1), row(256, 256, 7), column(256, 320, 7), Conv(320, 320, 3, 2)],
                       [], before={2: halved}),
                *(c() for _ in range(3)))
            self.last_linear = nn.Linear(1536, classes)

        def forward(self, x):
            return self.last_linear(self.features(x).mean((2, 3)))

    vision = torchvision.models
    return {
        "lenet5": LeNet5,
        "resnet20": ResNet20,
        "inception_v4": InceptionV4,
        "resnet50": lambda k: vision.resnet50(num_classes=k),
        "resnet152": lambda k: vision.resnet152(num_classes=k),
        "densenet161": lambda k: vision.densenet161(num_classes=k),
        "densenet201": lambda k: vision.densenet201(num_classes=k),
        "googlenet": lambda k: vision.googlenet(num_classes=k, aux_logits=False, init_weights=False,
                                                transform_input=False),
    }


# Model, batch, channels, size, classes; how far from ReLU's bend normalised numbers are moved: further in large networks,
# but not so far that a gradient vanishes in the next normalisation; the largest relative error of the loss and of each
# gradient.
CASES = [
    ("lenet5", 32, 1, 28, 10, 2, 1e-5),
    ("resnet20", 16, 1, 28, 10, 2, 2e-3),
    ("resnet50", 4, 3, 64, 20, 2, 2e-3),
    ("resnet152", 4, 3, 64, 20, 2, 2e-3),
    ("googlenet", 4, 3, 64, 20, 2, 2e-3),
    ("densenet161", 4, 3, 64, 20, 3, 2e-3),
    ("densenet201", 4, 3, 64, 20, 3, 2e-3),
    ("inception_v4", 4, 3, 107, 20, 2, 2e-3),
]

# The processor as it is, and as older ones are: oneDNN has other code for each, and for some only reference code.
PROCESSORS = (None, "AVX2", "SSE41")


def environment(processor):
    return {**os.environ, "ONEDNN_MAX_CPU_ISA": processor} if processor else None


def random_weights(model, shift):
    """Scales and shifts that matter, and that keep most numbers away from where ReLU bends: there, rounding
    decides whether a gradient is passed on, in PyTorch's own float as much as here."""
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        if isinstance(module, torch.nn.BatchNorm2d):
            torch.nn.init.uniform_(module.weight, 0.5, 1.5)
            on = torch.rand_like(module.bias) < 0.75
            module.bias.data = torch.where(on, shift, -shift) + 0.1 * torch.randn_like(module.bias)


@unittest.skipUnless(torch, "PyTorch and torchvision are not installed (python3-torch, python3-torchvision)")
@unittest.skipUnless(TOOL.exists(), "built without oneDNN")
class Networks(unittest.TestCase):
    def run_ours(self, model, name, images, labels, classes, processor):
        """Loss, gradients by name, running statistics in forward order."""
        shape = [str(x) for x in (*images.shape[:3], classes)]
        listed = subprocess.run([TOOL, name, *shape, "--names"], check=True, stdout=subprocess.PIPE,
                                encoding="utf-8").stdout
        counts = {line.split()[0]: int(line.split()[1]) for line in listed.splitlines()}
        parameters = dict(model.named_parameters())
        self.assertEqual(counts, {n: p.numel() for n, p in parameters.items()})
        given = b"".join([parameters[n].detach().numpy().tobytes() for n in counts] +
                         [images.permute(0, 2, 3, 1).contiguous().numpy().tobytes(),
                          labels.int().numpy().tobytes()])
        told = subprocess.run([TOOL, name, *shape], check=True, input=given, stdout=subprocess.PIPE,
                              env=environment(processor)).stdout
        told = torch.frombuffer(bytearray(told), dtype=torch.float32).double()
        loss, *gradients = told[:1 + sum(counts.values())].split([1, *counts.values()])
        return float(loss), dict(zip(counts, gradients)), told[1 + sum(counts.values()):]

    def errors(self, name, batch, channels, size, classes, shift, seed, processors):
        """The largest relative error of loss and gradients, and whose it is, by processor."""
        torch.manual_seed(seed)
        torch.set_num_threads(1)  # with two, Debian's PyTorch 1.13 is not always right under load
        model = definitions()[name](classes).train()
        random_weights(model, float(shift))
        images = torch.randn(batch, channels, size, size)
        labels = torch.randint(classes, (batch,))
        ours = {p: self.run_ours(model, name, images, labels, classes, p) for p in processors}
        model = model.double()  # so that what differs is ours
        loss = torch.nn.functional.cross_entropy(model(images.double()), labels)
        loss.backward()
        return {p: self.largest(model, loss, *ours[p]) for p in processors}

    def largest(self, model, loss, our_loss, gradients, running):
        errors = [(abs(our_loss - float(loss)) / float(loss), "loss")]
        for n, p in model.named_parameters():
            errors.append((float((gradients[n] - p.grad.flatten()).norm() / p.grad.norm()), n))
        theirs = [torch.cat((m.running_mean, m.running_var)) for m in model.modules()
                  if isinstance(m, torch.nn.BatchNorm2d)]
        for ours, wanted in zip(running.split([len(t) for t in theirs]), theirs):
            errors.append((float((ours - wanted).norm() / wanted.norm()), "running statistics"))
        self.assertTrue(all(math.isfinite(error) for error, _ in errors), errors)
        return max(errors)

    def test_every_network_has_pytorchs_gradients(self):
        for *case, bound in CASES:
            with self.subTest(case[0]):
                # A number that still falls on the bend spoils a run, but not the next one.
                left, worst = PROCESSORS, {}
                for seed in range(1, 6):
                    worst |= self.errors(*case, seed, left)
                    left = [p for p in left if worst[p][0] >= bound]
                    if not left:
                        break
                for processor, (error, whose) in worst.items():
                    self.assertLess(error, bound, (processor, whose))
                    print(f"\n{case[0]}{f' with {processor}' if processor else ''}: at most {error:.1e} ({whose})",
                          end="", flush=True)


@unittest.skipUnless(torch, "PyTorch is not installed (python3-torch)")
@unittest.skipUnless(TOOL.exists(), "built without oneDNN")
class Optimizers(unittest.TestCase):
    """Equal to PyTorch's element by element, within the rounding of a few operations."""

    COUNT, STEPS = 10007, 30

    def ours(self, name, weights, gradients, parts, rate, decay, momentum=0.0, betas=(0.0, 0.0), eps=0.0):
        numbers = [str(x) for x in (self.COUNT, self.STEPS, parts, rate, decay, momentum, *betas, eps)]
        given = b"".join(t.numpy().tobytes() for t in (weights, *gradients))
        told = subprocess.run([BUILD / "bin" / "nn_optimizer", name, *numbers], check=True, input=given,
                              stdout=subprocess.PIPE).stdout
        return torch.frombuffer(bytearray(told), dtype=torch.float32).view(-1, self.COUNT)

    def theirs(self, make, names, weights, gradients):
        parameter = torch.nn.Parameter(weights.clone())
        optimizer = make([parameter])
        rows = []
        for gradient in gradients:
            parameter.grad = gradient.clone()
            optimizer.step()
            rows.append(parameter.detach().clone())
        return torch.stack(rows + [optimizer.state[parameter][name] for name in names])

    def check(self, name, make, names, **rule):
        torch.manual_seed(1)
        weights = torch.randn(self.COUNT)
        scale = 10 ** (4 * torch.rand(self.COUNT) - 3)  # some gradients are tiny beside epsilon's reach, some large
        gradients = [scale * torch.randn(self.COUNT) for _ in range(self.STEPS)]
        gradients[3][:100] = 0
        ours = self.ours(name, weights, gradients, 1, **rule)
        self.assertTrue(torch.equal(ours, self.ours(name, weights, gradients, 7, **rule)))  # whatever the stretches
        theirs = self.theirs(make, names, weights, gradients)
        self.assertEqual(ours.shape, theirs.shape)
        # Beside the numbers that went into them: where those cancel each other, rounding remains.
        steps = torch.cat((weights[None], theirs[:self.STEPS])).diff(dim=0).abs().cumsum(0)
        into = torch.stack((*(steps + weights.abs()), *(scale ** (k + 1) for k in range(len(names)))))
        error = float(((ours - theirs).abs() / into).max())
        self.assertLess(error, 5e-6)
        # One step apart they would differ by far more: the bound can tell.
        self.assertGreater(float((ours[1] - theirs[2]).abs().max()), 1e-4)
        print(f"\n{name}: at most {error:.1e}", end="", flush=True)

    def test_sgd(self):
        self.check("sgd", lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=5e-4, foreach=False),
                   ["momentum_buffer"], rate=0.05, decay=5e-4, momentum=0.9)

    def test_adamw(self):
        for rate, decay, betas, eps in ((1e-3, 1e-2, (0.9, 0.999), 1e-8), (3e-2, 0.1, (0.8, 0.95), 1e-6),
                                        (1e-3, 0.0, (0.0, 0.5), 1e-8)):
            self.check("adamw",
                       lambda p: torch.optim.AdamW(p, lr=rate, betas=betas, eps=eps, weight_decay=decay, foreach=False),
                       ["exp_avg", "exp_avg_sq"], rate=rate, decay=decay, betas=betas, eps=eps)


if __name__ == "__main__":
    unittest.main()
