# SPDX-License-Identifier: Apache-2.0
"""The derivative of a distance at zero (pytorch/pytorch#2421, #6394).

Two calls of one network embed a pair of digits; at one step a pair is twice the same image. The loss is right and
finite; the square root's derivative is 1 / 0, and the square behind it makes NaN of that.
"""

from __future__ import annotations

import torch
import torch.nn as nn
from support import digits, finish, options, rename_layers

BAD_STEP = 5
BATCH = 32


class Embedder(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(64, 48)
        self.act = nn.Tanh()
        self.fc2 = nn.Linear(48, 16)

    def forward(self, x):
        return self.fc2(self.act(self.fc1(x)))


class ContrastiveLoss(nn.Module):
    def __init__(self, eps: float, margin: float = 1.0):
        super().__init__()
        self.eps, self.margin = eps, margin

    def forward(self, a, b, same):
        distance = torch.sqrt(((a - b) ** 2).sum(dim=1) + self.eps)
        return torch.where(same, distance, torch.relu(self.margin - distance)).mean()


def main():
    args = options(__doc__, steps=15)
    images, labels = digits(args.device)
    net = Embedder()
    rename_layers(net, args.rename_seed)
    net.to(args.device)
    criterion = ContrastiveLoss(eps=1e-6 if args.fixed else 0.0)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4, foreach=False)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=args.steps)
    losses = []
    for step in range(args.steps):
        left = torch.randint(len(images), (BATCH,))
        right = (left + torch.randint(1, len(images), (BATCH,))) % len(images)
        if step == BAD_STEP:
            right[7] = left[7]
        optimizer.zero_grad(set_to_none=False)
        loss = criterion(net(images[left]), net(images[right]), labels[left] == labels[right])
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    finish(net, losses)


if __name__ == "__main__":
    main()
