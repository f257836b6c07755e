# SPDX-License-Identifier: Apache-2.0
"""One batch overflows fp16 in front of a BatchNorm. The scaler skips the step and training goes on well, but the
running statistics keep the Inf: evaluation gives NaN. Repaired by an image of the right scale.
"""

from __future__ import annotations

import torch
from support import digits, finish, options, rename_layers
from torch import nn

BAD_STEP = 9
BATCH = 32


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(64, 32)
        self.norm = nn.BatchNorm1d(32)
        self.fc2 = nn.Linear(32, 10)
        nn.init.normal_(self.fc1.weight, std=0.5)

    def forward(self, x):
        return self.fc2(torch.relu(self.norm(self.fc1(x))))


def main():
    args = options(__doc__, steps=20)
    images, labels = digits(args.device)
    model = Net()
    rename_layers(model, args.rename_seed)
    model.to(args.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    scaler = torch.amp.GradScaler(args.device, init_scale=256.0)
    losses = []
    for step in range(args.steps):
        chosen = torch.randint(len(images), (BATCH,))
        x = images[chosen]
        if step == BAD_STEP and not args.fixed:
            x[11] *= 60000.0
        with torch.autocast(args.device, dtype=torch.float16):
            loss = nn.functional.cross_entropy(model(x), labels[chosen])
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    model.eval()
    with torch.no_grad():
        print(f"evaluation finite: {bool(torch.isfinite(model(images)).all())}")
    finish(model, losses)


if __name__ == "__main__":
    main()
