"""Models for the tests: small, and each with something that makes averaging gradients hard."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint


def _normal(model, shape, generator):
    """Random input in the dtype of the model's first layer."""
    return torch.randn(shape, generator=generator).to(next(model.parameters()).dtype)


class Cnn(nn.Module):
    """Convolutions and batch norm: buffers that every worker changes."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(),
                                  nn.Conv2d(8, 16, 3, stride=2), nn.BatchNorm2d(16), nn.ReLU())
        self.head = nn.Linear(16 * 9, 10)

    def forward(self, x):
        return self.head(self.body(x).flatten(1))

    def loss(self, call, generator):
        x, y = _normal(self, (4, 3, 8, 8), generator), torch.randint(10, (4,), generator=generator)
        return F.cross_entropy(call(x), y)


class Transformer(nn.Module):
    """A language model whose embedding is its last layer, too."""

    def __init__(self, words=50, width=32, layers=2):
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(width, 4, 64, dropout=0.0, batch_first=True)
                                    for _ in range(layers))
        self.out = nn.Linear(width, words, bias=False)
        self.out.weight = self.embedding.weight
        self.words = words

    def forward(self, tokens):
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.out(x)

    def loss(self, call, generator):
        tokens = torch.randint(self.words, (4, 9), generator=generator)
        return F.cross_entropy(call(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


class Checkpointed(Transformer):
    """Layers that are computed again in the backward pass, in an inner backward pass of their own."""

    def forward(self, tokens):
        x = self.embedding(tokens)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=True)
        return self.out(x)


class Branches(nn.Module):
    """Frozen, used by some workers only, unused in some steps, and never used."""

    def __init__(self):
        super().__init__()
        self.frozen = nn.Linear(8, 8)
        self.frozen.requires_grad_(False)
        self.left, self.right = nn.Linear(8, 8), nn.Linear(8, 8)
        self.rare, self.never = nn.Linear(8, 8), nn.Linear(8, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, x, left, rare):
        x = self.frozen(x)
        x = self.left(x) if left else self.right(x)
        return self.head(self.rare(x) if rare else x)

    def loss(self, call, generator):
        x, y = _normal(self, (5, 8), generator), torch.randint(3, (5,), generator=generator)
        left = bool(torch.randint(2, (1,), generator=generator))
        rare = int(torch.randint(6, (1,), generator=generator)) == 0
        return F.cross_entropy(call(x, left, rare), y)


class Mixed(nn.Module):
    """Two dtypes in one model."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 7)
        self.second = nn.Linear(7, 7).double()
        self.third = nn.Linear(7, 4)

    def forward(self, x):
        x = torch.tanh(self.first(x)).to(self.second.weight.dtype)
        return self.third(torch.tanh(self.second(x)).to(self.third.weight.dtype))

    def loss(self, call, generator):
        x, y = _normal(self, (5, 6), generator), torch.randint(4, (5,), generator=generator)
        return F.cross_entropy(call(x), y)


class ChannelsLast(Cnn):
    """Parameters that do not lie in memory row by row."""

    def __init__(self):
        super().__init__()
        self.to(memory_format=torch.channels_last)
