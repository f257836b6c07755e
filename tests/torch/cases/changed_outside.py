# SPDX-License-Identifier: Apache-2.0
"""Weights are normalised through NumPy after every fifth step. One row has only zeros: 0 / 0, written where no op
of PyTorch is. Repaired by a floor under the norm.
"""

from __future__ import annotations

import numpy as np
import torch
from support import digits, finish, options, rename_layers
from torch import nn

BATCH = 32
BAD_STEP = 5  # its first use; written at the end of step 4


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(64, 32)
        self.fc2 = nn.Linear(32, 10)
        with torch.no_grad():
            self.fc1.weight[9] = 0  # a dead unit: no gradient reaches it
            self.fc1.bias[9] = -1

    def forward(self, x):
        return self.fc2(torch.relu(self.fc1(x)))


def normalise(weight: np.ndarray, floor: float) -> None:
    with np.errstate(invalid="ignore"):
        weight /= np.maximum(np.linalg.norm(weight, axis=1, keepdims=True), floor)


def main():
    args = options(__doc__, steps=12)
    images, labels = digits()
    model = Net()
    rename_layers(model, args.rename_seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step in range(args.steps):
        chosen = torch.randint(len(images), (BATCH,))
        loss = nn.functional.cross_entropy(model(images[chosen]), labels[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 5 == 4:
            normalise(model.fc1.weight.detach().numpy(), floor=1e-6 if args.fixed else 0.0)
        losses.append(loss.item())
    finish(model, losses)


if __name__ == "__main__":
    main()
