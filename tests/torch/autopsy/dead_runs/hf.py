# SPDX-License-Identifier: Apache-2.0
"""A Trainer whose model takes the logarithm of 0 from step 13 on."""

import torch
from support import batch, folder
from torch import nn
from transformers import Trainer, TrainingArguments


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
        self.calls = 0

    def forward(self, x, labels):
        self.calls += 1
        made = self.layers(x)
        p = torch.softmax(made * (1.0 if self.calls < 13 else 1e4), dim=1)
        loss = -(nn.functional.one_hot(labels, 4) * torch.log(p)).sum(dim=1).mean()
        return {"loss": loss, "logits": made}


def run(filtered: bool) -> None:
    out = folder()
    x, y = batch(0, 160)
    rows = [{"x": a, "labels": b} for a, b in zip(x, y, strict=True)]
    arguments = TrainingArguments(
        str(out), max_steps=20, per_device_train_batch_size=8, logging_steps=1, save_steps=4, report_to=[],
        use_cpu=True, disable_tqdm=True, learning_rate=1e-3, logging_nan_inf_filter=filtered,
    )  # fmt: skip
    Trainer(model=Model(), args=arguments, train_dataset=rows).train()
