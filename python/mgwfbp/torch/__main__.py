"""python -m mgwfbp.torch trace: writes the trace of a torchvision model or of a model of your own."""

import argparse
import importlib
import os
import sys
from typing import Tuple

import torch

from .profile import Step, profile
from .sync import _tensors_in


def _torchvision(name: str, batch: int, size: int, device: torch.device, amp: bool) -> Tuple[torch.nn.Module, Step]:
    try:
        import torchvision.models
    except ImportError:
        sys.exit(f"mgwfbp.torch trace: --model {name}: torchvision is not installed; for a model of your own, use "
                 "--model MODULE:FUNCTION")
    make = getattr(torchvision.models, name, None)
    if not callable(make) or not name.islower():
        sys.exit(f"mgwfbp.torch trace: --model {name}: unknown torchvision model")
    options = {"init_weights": False} if name in ("googlenet", "inception_v3") else {}
    model = make(**options).to(device).train()
    inputs = torch.randn(batch, 3, size, size, device=device)
    targets = torch.randint(1000, (batch,), device=device)

    def step(model):
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=amp):
            loss = sum(torch.nn.functional.cross_entropy(output, targets) for output in _tensors_in(model(inputs)))
        loss.backward()

    return model, step


def _own(name: str, device: torch.device) -> Tuple[torch.nn.Module, Step]:
    module, _, function = name.partition(":")
    sys.path.insert(0, os.getcwd())
    try:
        made = getattr(importlib.import_module(module), function)()
    except (ImportError, AttributeError) as error:
        sys.exit(f"mgwfbp.torch trace: --model {name}: {error}")
    if not (isinstance(made, tuple) and len(made) == 2 and isinstance(made[0], torch.nn.Module) and callable(made[1])):
        sys.exit(f"mgwfbp.torch trace: --model {name}: the function must return a model and a step; the step takes "
                 "the model, computes a loss and calls backward")
    return made[0].to(device), made[1]


def trace(arguments) -> None:
    device = torch.device(arguments.device)
    if ":" in arguments.model:
        if arguments.amp:
            sys.exit("mgwfbp.torch trace: --amp works only with torchvision's models; call torch.autocast in your own step")
        model, step = _own(arguments.model, device)
        name = type(model).__name__
    else:
        model, step = _torchvision(arguments.model, arguments.batch, arguments.size, device, arguments.amp)
        name = arguments.model
    about = torch.cuda.get_device_name(device) if device.type == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    made = profile(model, step, arguments.steps, name=name, batch=arguments.batch, device=about,
                   precision="amp-bf16" if arguments.amp else "fp32")
    made.save(arguments.output)
    print(f"wrote {arguments.output}: {made.tensor_count} gradients, {sum(made.bytes) / 2**20:.1f} MiB, compute "
          f"{made.compute_s * 1e3:.1f} ms per step; mgwfbp plan {arguments.output} CLUSTER")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m mgwfbp.torch", description=__doc__.partition("\n")[0])
    command = parser.add_subparsers(dest="command", required=True).add_parser(
        "trace", help="measure a model on this machine and write its trace",
        description="Runs a few training steps of a model on one worker and records when each gradient becomes ready. "
        "`mgwfbp plan`, `simulate` and `replay` read the file.",
        epilog="examples: --model resnet50 --batch 32 --device cuda   --model my_models:small -o small.json")
    command.add_argument("--model", required=True, help="a model of torchvision.models, or MODULE:FUNCTION, where the "
                         "function returns a model and a step(model) that calls backward")
    command.add_argument("--batch", type=int, default=4, help="samples per step, for torchvision's models (default 4)")
    command.add_argument("--size", type=int, default=224, help="height and width of images (default 224)")
    command.add_argument("--device", default="cpu", help="cpu (default), cuda, cuda:1")
    command.add_argument("--amp", action="store_true", help="use torch.autocast with bfloat16")
    command.add_argument("--steps", type=int, default=8, help="steps to measure, after two warm-up steps (default 8)")
    command.add_argument("-o", "--output", default="trace.json", help="output file (default trace.json)")
    trace(parser.parse_args())


if __name__ == "__main__":
    main()
