# SPDX-License-Identifier: Apache-2.0
"""An Inf that is swallowed: in fp16 the square inside a hand-written norm overflows and x / Inf is 0. No number is
ever bad where training looks, but behind the norm everything is 0. Repaired by squares in fp32.
"""

from __future__ import annotations

import torch
from support import digits, finish, options, rename_layers
from torch import nn

BAD_STEP = 6
BATCH = 32


class RMSNorm(nn.Module):
    def __init__(self, width: int, in_fp32: bool):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(width))
        self.in_fp32 = in_fp32

    def forward(self, x):
        wide = x.float() if self.in_fp32 else x
        mean_square = (wide * wide).mean(-1, keepdim=True)
        return wide * torch.rsqrt(mean_square + 1e-5) * self.gain


class Net(nn.Module):
    def __init__(self, in_fp32: bool):
        super().__init__()
        self.fc1 = nn.Linear(64, 32)
        self.norm = RMSNorm(32, in_fp32)
        self.fc2 = nn.Linear(32, 10)

    def forward(self, x):
        return self.fc2(torch.relu(self.norm(self.fc1(x))))


def main():
    args = options(__doc__, steps=20)
    images, labels = digits(args.device)
    model = Net(args.fixed)
    rename_layers(model, args.rename_seed)
    model.to(args.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    scaler = torch.amp.GradScaler(args.device, init_scale=256.0)
    losses = []
    for step in range(args.steps):
        chosen = torch.randint(len(images), (BATCH,))
        # From this step on images are read as 12-bit intensities: no row of hidden units stays below sqrt(65504).
        x = images[chosen] * 4095 if step >= BAD_STEP else images[chosen]
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
