#!/usr/bin/env python3
"""accelerate, transformers and Lightning with stock DDP and with ours: the largest difference between the weights they end
with. Needs a PyTorch 2 with these installed, and MGWFBP_LIBRARY and PYTHONPATH as bench/ddp.py has them.

usage: ddp_clients.py    (each client is started by torchrun, as two workers on the CPU)
"""

import os
import subprocess
import sys
import tempfile

import torch
import torch.nn as nn


def take_the_place():
    """The one line for clients that look DDP up where PyTorch has it."""
    import mgwfbp.torch
    nn.parallel.DistributedDataParallel = mgwfbp.torch.DistributedDataParallel


def accelerate(ours):
    from accelerate import Accelerator
    if ours:
        take_the_place()
    torch.manual_seed(3)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    data = torch.utils.data.TensorDataset(torch.randn(160, 8), torch.randint(3, (160,)))
    model, optimizer, loader = accelerator.prepare(model, optimizer, torch.utils.data.DataLoader(data, batch_size=4))
    for inputs, targets in [batch for _ in range(3) for batch in loader]:
        with accelerator.accumulate(model):
            accelerator.backward(nn.functional.cross_entropy(model(inputs), targets))
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    return accelerator.unwrap_model(model), type(model)


def transformers(ours):
    if ours:
        take_the_place()
    from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments, set_seed
    set_seed(3)
    model = BertForSequenceClassification(BertConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=16, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0))
    generator = torch.Generator().manual_seed(1)
    data = [{"input_ids": torch.randint(50, (8,), generator=generator), "labels": number % 2} for number in range(64)]
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(model=model, train_dataset=data, args=TrainingArguments(
            folder, use_cpu=True, num_train_epochs=3, per_device_train_batch_size=4, report_to=[], save_strategy="no",
            logging_strategy="no", seed=3, disable_tqdm=True))
        trainer.train()
    return model, type(trainer.model_wrapped)


def lightning(ours):
    import lightning as pl
    from lightning.pytorch.strategies import DDPStrategy
    kinds = []

    class Strategy(DDPStrategy):
        """The documented way to another wrapper."""

        def _setup_model(self, model):
            import mgwfbp.torch
            wrap = mgwfbp.torch.DistributedDataParallel if ours else nn.parallel.DistributedDataParallel
            kinds.append(wrap)
            return wrap(model, **self._ddp_kwargs)

    class Model(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))

        def training_step(self, batch, number):
            return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=1e-2)

    pl.seed_everything(3)
    model = Model()
    data = torch.utils.data.TensorDataset(torch.randn(128, 8), torch.randint(3, (128,)))
    pl.Trainer(accelerator="cpu", devices=2, strategy=Strategy(process_group_backend="gloo"), max_epochs=3, logger=False,
               enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False).fit(
                   model, torch.utils.data.DataLoader(data, batch_size=4))
    return model, kinds[0]


CLIENTS = {"accelerate": accelerate, "transformers": transformers, "lightning": lightning}


def work(client, whose, path):
    model, kind = CLIENTS[client](whose == "ours")
    if (whose == "ours") != kind.__module__.startswith("mgwfbp"):
        raise RuntimeError(f"{client} has wrapped the model in {kind}")
    if os.environ["RANK"] == "0":
        torch.save(model.state_dict(), path)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()  # gloo has threads, which must not outlive the interpreter


def main():
    with tempfile.TemporaryDirectory() as folder:
        for client in CLIENTS:
            states = []
            for whose in ("stock", "ours"):
                path = f"{folder}/{client}-{whose}"
                subprocess.run([sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", __file__,
                                client, whose, path], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=300)
                states.append(torch.load(path))
            worst = max(float((states[0][name].double() - states[1][name].double()).abs().max()) for name in states[0])
            print(f"{client}: largest difference {worst}", flush=True)


if __name__ == "__main__":
    work(*sys.argv[1:]) if len(sys.argv) > 1 else main()
