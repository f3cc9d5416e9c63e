"""The models of the benchmarks on a GPU: each with a loss of made-up inputs, and the blocks that it repeats.

ResNet-50, DenseNet-201, GoogLeNet and BERT-base are those that the package was tuned with. ConvNeXt-Tiny and ViT-B/16 were
looked at while trials of plans were made; the others were kept out of all that.
"""

from typing import Callable, NamedTuple

import torch
from torch import nn


def image_model(name, batch, device):
    import torchvision
    options = {"init_weights": False, "aux_logits": False} if name == "googlenet" else {}
    model = getattr(torchvision.models, name)(**options).to(device)
    inputs = torch.randn(batch, 3, 224, 224, device=device)
    targets = torch.randint(1000, (batch,), device=device)
    return model, lambda wrapped: nn.functional.cross_entropy(wrapped(inputs).float(), targets)


def token_model(make, words, length, batch, device):
    model = make().to(device)
    tokens, targets = (torch.randint(words, (batch, length), device=device) for _ in range(2))
    return model, lambda wrapped: nn.functional.cross_entropy(wrapped(tokens).flatten(0, 1).float(), targets.flatten())


class Encoder(nn.Module):
    """BERT's shape: the embedding is the last layer, too."""

    def __init__(self, words, length, width, layers, heads):
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.first = nn.LayerNorm(width)
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(width, heads, 4 * width, activation="gelu",
                                                               batch_first=True) for _ in range(layers))
        self.head = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width))
        self.out = nn.Linear(width, words)
        self.out.weight = self.words.weight

    def forward(self, tokens):
        x = self.first(self.words(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device)))
        for layer in self.layers:
            x = layer(x)
        return self.out(self.head(x))


class Block(nn.Module):
    """Of a decoder: attention to what came before, then a feed-forward layer."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_feed = nn.LayerNorm(width), nn.LayerNorm(width)
        self.look, self.attended = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width))

    def forward(self, x):
        batch, length, width = x.shape
        parts = self.look(self.before_attention(x)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        seen = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.attended(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.feed(self.before_feed(x))


class Decoder(nn.Module):
    """GPT-2's shape: the embedding is the last layer, too."""

    def __init__(self, words, length, width, layers, heads):
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.layers = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.last = nn.LayerNorm(width)
        self.out = nn.Linear(width, words, bias=False)
        self.out.weight = self.words.weight
        self.apply(self._start)

    @staticmethod
    def _start(module):
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)

    def forward(self, tokens):
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        for layer in self.layers:
            x = layer(x)
        return self.out(self.last(x))


class Model(NamedTuple):
    batch: int
    inputs: str
    make: Callable  # of a batch and a device: the model, and the loss of a call
    blocks: tuple = ()  # where they are: modules whose children are what it repeats


def image(name, batch=32, blocks=()):
    return Model(batch, "224²", lambda batch, device: image_model(name, batch, device), blocks)


def text(kind, batch, words, length, *shape):
    return Model(batch, f"{length} tokens", lambda batch, device: token_model(
        lambda: kind(words, length, *shape), words, length, batch, device), ("layers",))


STAGES = ("layer1", "layer2", "layer3", "layer4")
MODELS = {"resnet50": image("resnet50", blocks=STAGES), "densenet201": image("densenet201", blocks=("features",)),
          "googlenet": image("googlenet"), "bert-base": text(Encoder, 8, 30522, 128, 768, 12, 12),
          "vit-b-16": image("vit_b_16", 64, ("encoder.layers",)),
          "convnext-tiny": image("convnext_tiny", 32, tuple(f"features.{i}" for i in (1, 3, 5, 7))),
          "vgg16": image("vgg16"), "efficientnet-b0": image("efficientnet_b0", 32, ("features",)),
          "mobilenet-v3": image("mobilenet_v3_large", 32, ("features",)),
          "gpt2": text(Decoder, 8, 50257, 1024, 768, 12, 12), "bert-large": text(Encoder, 8, 30522, 128, 1024, 24, 16),
          "small": text(Encoder, 4, 1000, 64, 256, 4, 4),
          "tiny": text(Encoder, 2, 500, 16, 32, 2, 2), "tiny-gpt": text(Decoder, 2, 500, 16, 32, 2, 2),
          "resnet18": image("resnet18", 2, STAGES)}


def blocks_of(name, model):
    """The modules that a model repeats."""
    return [block for path in MODELS[name].blocks for block in model.get_submodule(path).children()]
