"""Broadcasts of buffers: which ones, in how many messages, and what happens when a module replaces them."""

import unittest

from support import TORCH, WHY

if TORCH:
    import torch
    import torch.nn as nn
    from mgwfbp.torch import broadcast


class Wire:
    """Two workers, the first before the second."""

    def __init__(self):
        self.messages = []

    def send(self, tensor):
        self.messages.append(tensor.clone())

    def receive(self, tensor):
        tensor.copy_(self.messages.pop(0))


def make_model(seed):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Sequential(nn.BatchNorm2d(8), nn.ReLU()))
    for _ in range(seed + 1):
        model(torch.randn(2, 3, 8, 8))
    model.register_buffer("shared", torch.randn(3, 5).t())
    model[2].register_buffer("again", model.shared)
    model.register_buffer("nothing", None)
    model.register_buffer("own", torch.tensor(float(seed)))
    return model


@unittest.skipUnless(TORCH, WHY)
class Broadcast(unittest.TestCase):
    def setUp(self):
        self.models = [make_model(0), make_model(1)]
        self.buffers = [broadcast.Buffers(model, ["own"]) for model in self.models]

    def run_once(self):
        """The number of messages."""
        wire = Wire()
        self.buffers[0].broadcast(True, wire.send)
        sent = len(wire.messages)
        self.buffers[1].broadcast(False, wire.receive)
        self.assertEqual(wire.messages, [])
        return sent

    def expect_same(self):
        first, second = (dict(model.named_buffers()) for model in self.models)
        for name in first:
            self.assertEqual(torch.equal(first[name], second[name]), name != "own", name)

    def test_finds_what_pytorch_finds(self):
        for model, buffers in zip(self.models, self.buffers):
            expected = [tensor for name, tensor in model.named_buffers() if name != "own"]
            self.assertEqual({id(t) for t in buffers.find()}, {id(t) for t in expected})
            self.assertEqual(len(buffers.find()), len(expected))

    def test_in_one_message(self):
        for _ in range(2):  # f32 and i64
            self.assertEqual(self.run_once(), 1)
            self.expect_same()
            self.models[0](torch.randn(2, 3, 8, 8))

    def test_follows_changes(self):
        self.run_once()
        for model in self.models:
            model[1].running_mean = torch.randn(8)
        self.run_once()
        self.expect_same()
        for model in self.models:
            model.double()
        self.run_once()
        self.expect_same()
        for model in self.models:
            model[2].register_buffer("more", torch.rand(7).half())
            model.shared.data = torch.randn(4)
        self.run_once()
        self.expect_same()

    def test_does_not_keep_what_is_large(self):
        for model in self.models:
            model.register_buffer("large", torch.rand(broadcast.MOST // 4))
        self.assertGreater(self.run_once(), 1)
        self.expect_same()
        self.assertIsNone(self.buffers[0].flats)

    def test_of_scripts(self):
        self.models = [torch.jit.script(nn.Sequential(nn.BatchNorm2d(3), nn.ReLU())) for _ in range(2)]
        self.buffers = [broadcast.Buffers(model) for model in self.models]
        self.models[0](torch.randn(2, 3, 4, 4))
        self.assertEqual(self.run_once(), 1)
        self.expect_same()
        kept = self.buffers[0].flats
        self.assertEqual(self.run_once(), 1)
        self.assertIs(self.buffers[0].flats, kept)

    def test_without_buffers(self):
        self.models = [nn.Linear(3, 3) for _ in range(2)]
        self.buffers = [broadcast.Buffers(model) for model in self.models]
        self.assertEqual(self.run_once(), 0)


if __name__ == "__main__":
    unittest.main()
