# SPDX-License-Identifier: Apache-2.0
"""The first steps under dynamic loss scaling (pytorch/pytorch#55585; huggingface/transformers#11106, #11144).

Nothing is wrong: the default scale of 65536 is too large for this loss, the scaled gradient of the fp16 logits
overflows, steps are skipped and the scale falls until it fits. The twin starts with a scale that fits.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from support import digits, finish, options, rename_layers
from torch import nn
from torch.utils.checkpoint import checkpoint

BATCH = 32


class Residual(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x):
        return x + self.dropout(self.down(F.gelu(self.up(self.norm(x)))))


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(64, 32)
        self.blocks = nn.ModuleList(Residual(32) for _ in range(2))
        self.head = nn.Linear(32, 10)

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return self.head(x)


def main():
    args = options(__doc__, steps=30)
    images, labels = digits(args.device)
    model = Classifier()
    rename_layers(model, args.rename_seed)
    model.to(args.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=10)
    scaler = torch.amp.GradScaler(args.device, init_scale=128.0) if args.fixed else torch.amp.GradScaler(args.device)
    losses = []
    for _ in range(args.steps):
        chosen = torch.randint(len(images), (BATCH,))
        with torch.autocast(device_type=args.device, dtype=torch.float16):
            logits = model(images[chosen])
            # Digits are weighted by hand, and summed: the gradient of a logit is up to 12.
            loss = 12 * F.cross_entropy(logits, labels[chosen], reduction="sum")
        optimizer.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        before = scaler.get_scale()
        scaler.update()
        if scaler.get_scale() >= before:
            schedule.step()
        losses.append(loss.item())
    finish(model, losses)


if __name__ == "__main__":
    main()
