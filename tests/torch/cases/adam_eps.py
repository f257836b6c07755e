# SPDX-License-Identifier: Apache-2.0
"""Adam in pure fp16 (openai/CLIP#40, #57; NVIDIA/apex#240).

eps = 1e-8 rounds to 0 in fp16, and so do the squares of small gradients: the first update divides 0 (pixels that
are always 0) or a moment by 0. The gradients are finite. Repaired as the issues advise: fp32 weights and state,
fp16 by autocast.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from support import digits, finish, options, rename_layers
from torch import nn

BATCH = 64


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(64, 64)
        self.fc2 = nn.Linear(64, 10)

    def forward(self, x):
        return self.fc2(F.relu(self.fc1(x)))


def main():
    args = options(__doc__, steps=10)
    images, labels = digits(args.device)
    model = Net()
    if not args.fixed:
        model.half()
    rename_layers(model, args.rename_seed)
    model.to(args.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler(args.device, init_scale=128.0, enabled=args.fixed)
    losses = []
    for _ in range(args.steps):
        chosen = torch.randint(len(images), (BATCH,))
        inputs = images[chosen].to(next(model.parameters()).dtype)
        with torch.autocast(args.device, dtype=torch.float16, enabled=args.fixed):
            loss = F.cross_entropy(model(inputs), labels[chosen])
        model.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    finish(model, losses)


if __name__ == "__main__":
    main()
