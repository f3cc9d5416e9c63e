"""Fashion-MNIST: a small CNN, batches drawn at random, accuracy on the test set at the end."""

import argparse
import gzip
from pathlib import Path

import torch
import torch.nn as nn
import torch.nn.functional as F

import mgwfbp.torch


def load(folder, name):
    """Images as floats around 0 and labels, from the dataset's own files (Debian: dataset-fashion-mnist)."""
    with gzip.open(Path(folder) / f"{name}-images-idx3-ubyte.gz") as file:
        images = torch.frombuffer(bytearray(file.read()[16:]), dtype=torch.uint8).view(-1, 1, 28, 28)
    with gzip.open(Path(folder) / f"{name}-labels-idx1-ubyte.gz") as file:
        labels = torch.frombuffer(bytearray(file.read()[8:]), dtype=torch.uint8).long()
    return images.float() / 127.5 - 1, labels


def make_model():
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * 7 * 7, 128), nn.ReLU(), nn.Linear(128, 10))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="/usr/share/datasets/fashion-mnist", help="folder of the four .gz files")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch", type=int, default=64, help="samples per worker and step")
    options = parser.parse_args()
    images, labels = load(options.data, "train")
    model = mgwfbp.torch.DistributedDataParallel(make_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    draw = torch.Generator()
    draw.seed()  # another one in every run, and on every worker
    for step in range(options.steps):
        index = torch.randint(len(images), (options.batch,), generator=draw)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images[index]), labels[index])
        loss.backward()
        optimizer.step()
        if step % 100 == 99:
            print(f"step {step + 1}: loss {loss.item():.3f}")
    model.eval()
    images, labels = load(options.data, "t10k")
    with torch.no_grad():
        right = sum(int((model(x).argmax(1) == y).sum()) for x, y in zip(images.split(500), labels.split(500)))
    print(f"accuracy {right / len(labels):.1%}")


if __name__ == "__main__":
    main()
