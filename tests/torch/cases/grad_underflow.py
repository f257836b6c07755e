# SPDX-License-Identifier: Apache-2.0
"""fp16 autocast without loss scaling, and a loss so small that its gradients are stored as 0. Repaired by a
GradScaler.
"""

from __future__ import annotations

import torch
from support import digits, finish, options, rename_layers
from torch import nn

BATCH = 64


class Autoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(64, 24)
        self.middle = nn.Linear(24, 24)
        self.decoder = nn.Linear(24, 64)

    def forward(self, x):
        return self.decoder(torch.tanh(self.middle(torch.tanh(self.encoder(x)))))


def main():
    args = options(__doc__, steps=24)
    images, _ = digits(args.device)
    model = Autoencoder()
    rename_layers(model, args.rename_seed)
    model.to(args.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    scaler = torch.amp.GradScaler(args.device, init_scale=2.0**14, enabled=args.fixed)
    losses = []
    for _ in range(args.steps):
        x = images[torch.randint(len(images), (BATCH,))]
        with torch.autocast(args.device, dtype=torch.float16):
            difference = model(x).float() - x
            loss = 1e-4 * difference.square().mean()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    finish(model, losses)


if __name__ == "__main__":
    main()
