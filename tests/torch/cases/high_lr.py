# SPDX-License-Identifier: Apache-2.0
"""A learning rate that is too high (facebookresearch/detectron2#1128, #1545; facebookresearch/detr#285).

No op is at fault: every update overshoots, and loss, gradients and weights grow by orders of magnitude per step
until something overflows. Where that is, is arbitrary. Repaired by a small rate.
"""

from __future__ import annotations

import torch
from support import digits, finish, options, rename_layers
from torch import nn

BATCH = 64


class Boxes(nn.Module):
    """Where in the image the digit is: left, top, width, height, in pixels."""

    def __init__(self):
        super().__init__()
        self.backbone = nn.Linear(64, 32)
        self.regressor = nn.Linear(32, 4)

    def forward(self, x):
        return self.regressor(nn.functional.leaky_relu(self.backbone(x), 0.2))


def boxes(images: torch.Tensor) -> torch.Tensor:
    ink = images.view(-1, 8, 8) > 0.3
    columns, rows = ink.any(1).float(), ink.any(2).float()
    position = torch.arange(8.0)
    left, top = columns.argmax(1).float(), rows.argmax(1).float()
    right, bottom = (columns * position).amax(1), (rows * position).amax(1)
    return torch.stack([left, top, right - left + 1, bottom - top + 1], dim=1)


def main():
    args = options(__doc__, steps=12)
    images, _ = digits()
    images, targets = images.to(args.device), boxes(images).to(args.device)
    model = Boxes()
    rename_layers(model, args.rename_seed)
    model.to(args.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01 if args.fixed else 0.5)
    losses = []
    for _ in range(args.steps):
        chosen = torch.randint(len(images), (BATCH,))
        loss = nn.functional.mse_loss(model(images[chosen]), targets[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    finish(model, losses)


if __name__ == "__main__":
    main()
