# SPDX-License-Identifier: Apache-2.0
"""Cross entropy written by hand (GRIST, subjects 1, 3, 5, 10, 12, 18 to 21).

The probability of a wrong class rounds to 0, its logarithm is -Inf, and -Inf times a target of 0 is NaN. Layers are
called one by one, two micro-batches make a step, and the image that does it is in the second one of step 14.
"""

from __future__ import annotations

import torch
from support import digits, finish, options, rename_layers
from torch import nn

BAD_STEP = 14
MICRO_BATCHES, BATCH = 2, 16


class Layers(nn.Module):
    """Holds the parameters; the training loop calls the layers."""

    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(64, 32)
        self.norm = nn.LayerNorm(32)
        self.output = nn.Linear(32, 10, bias=False)


def cross_entropy(logits, one_hot, repaired):
    if repaired:
        return -(one_hot * logits.log_softmax(dim=1)).sum(dim=1).mean()
    probabilities = torch.softmax(logits, dim=1)
    return -(one_hot * torch.log(probabilities)).sum(dim=1).mean()


def main():
    args = options(__doc__, steps=24)
    images, labels = digits(args.device)
    net = Layers()
    rename_layers(net, args.rename_seed)
    net.to(args.device)
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3, amsgrad=True)
    order = torch.randperm(len(images))
    losses = []
    for step in range(args.steps):
        total = 0.0
        for micro in range(MICRO_BATCHES):
            first = (step * MICRO_BATCHES + micro) * BATCH
            chosen = order[first : first + BATCH]
            hidden = net.norm(torch.relu(net.hidden(images[chosen])))
            if step == BAD_STEP and micro == 1:
                hidden = hidden * torch.where(torch.arange(BATCH) == 5, 2000.0, 1.0)[:, None].to(args.device)  # sure
            one_hot = nn.functional.one_hot(labels[chosen], 10).float()
            loss = cross_entropy(net.output(hidden), one_hot, args.fixed) / MICRO_BATCHES
            loss.backward()
            total += loss.item()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(total)
    finish(net, losses)


if __name__ == "__main__":
    main()
