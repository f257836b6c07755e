# SPDX-License-Identifier: Apache-2.0
"""From one step on every batch overflows fp16 in forward. No scale helps: the scaler skips and halves for ever.
Repaired by intensities divided by their maximum.
"""

from __future__ import annotations

import torch
from support import digits, finish, options, rename_layers
from torch import nn

BAD_STEP = 6
BATCH = 32


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(64, 32, bias=False)
        self.fc2 = nn.Linear(32, 10)
        nn.init.normal_(self.fc1.weight, std=0.5)

    def forward(self, x):
        return self.fc2(torch.relu(self.fc1(x)))


def main():
    args = options(__doc__, steps=45)
    images, labels = digits(args.device)
    model = Net()
    rename_layers(model, args.rename_seed)
    model.to(args.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, foreach=True)
    scaler = torch.amp.GradScaler(args.device, init_scale=1024.0)
    losses = []
    for step in range(args.steps):
        chosen = torch.randint(len(images), (BATCH,))
        top = 60000.0 if step >= BAD_STEP else 1.0  # 16-bit intensities: still fp16 numbers, but their sums are not
        x = images[chosen] * top
        if args.fixed:
            x = x / top
        with torch.autocast(args.device, dtype=torch.float16):
            loss = nn.functional.cross_entropy(model(x), labels[chosen])
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    finish(model, losses)


if __name__ == "__main__":
    main()
