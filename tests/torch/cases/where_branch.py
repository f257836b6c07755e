# SPDX-License-Identifier: Apache-2.0
"""The unused branch of a conditional (pytorch/pytorch#68425, #52248, #18287).

A hand-written exponential-linear unit computes exp(x) also where x > 0. One image of 12-bit intensities makes that
overflow; `where` hides it in forward, and backward multiplies the zero gradient of the branch not taken by the Inf.
"""

from __future__ import annotations

from collections import OrderedDict

import torch
from support import digits, finish, options, rename_layers
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

BAD_STEP = 8
BATCH = 32


class ELU(nn.Module):
    def __init__(self, select_inputs: bool):
        super().__init__()
        self.select_inputs = select_inputs

    def forward(self, x):
        below = torch.where(x > 0, torch.zeros_like(x), x) if self.select_inputs else x
        return torch.where(x > 0, x, torch.exp(below) - 1)


def build(select_inputs: bool) -> nn.Module:
    features = nn.Sequential(
        OrderedDict(
            conv=nn.Conv2d(1, 8, 3, padding=1),
            act=ELU(select_inputs),
            pool=nn.MaxPool2d(2),
        )
    )
    classifier = nn.Sequential(nn.Flatten(), nn.Linear(8 * 4 * 4, 10))
    return nn.Sequential(OrderedDict(features=features, classifier=classifier))


def main():
    args = options(__doc__, steps=20)
    images, labels = digits()
    images = images.view(-1, 1, 8, 8)[: args.steps * BATCH].clone()
    labels = labels[: len(images)]
    images[BAD_STEP * BATCH + 3] *= 4095.0  # read from a camera of 12 bits, never scaled
    model = build(args.fixed)
    rename_layers(model, args.rename_seed)
    model.to(args.device)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.05)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    losses = []
    for inputs, targets in DataLoader(TensorDataset(images, labels), batch_size=BATCH):
        optimizer.zero_grad()
        inputs, targets = inputs.to(args.device), targets.to(args.device)
        outputs = model(inputs)
        loss = criterion(outputs, targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    finish(model, losses)


if __name__ == "__main__":
    main()
