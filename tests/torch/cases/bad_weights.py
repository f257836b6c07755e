# SPDX-License-Identifier: Apache-2.0
"""Training starts from a checkpoint that holds a NaN. The optimizer takes a closure. Repaired by the layer's own
start.
"""

from __future__ import annotations

import torch
from support import digits, finish, options, rename_layers
from torch import nn

BATCH = 64


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(64, 32)
        self.fc2 = nn.Linear(32, 10)

    def forward(self, x):
        return self.fc2(torch.tanh(self.fc1(x)))


def main():
    args = options(__doc__, steps=6)
    images, labels = digits(args.device)
    model = Net()
    arrays = {name: value.numpy().copy() for name, value in model.state_dict().items()}  # as they come from a file
    if not args.fixed:
        arrays["fc2.weight"][4, 17] = float("nan")
    model.load_state_dict({name: torch.from_numpy(array) for name, array in arrays.items()})
    rename_layers(model, args.rename_seed)
    model.to(args.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    losses = []
    for _ in range(args.steps):
        chosen = torch.randint(len(images), (BATCH,))

        def closure(chosen=chosen):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images[chosen]), labels[chosen])
            loss.backward()
            return loss

        losses.append(optimizer.step(closure).item())
    finish(model, losses)


if __name__ == "__main__":
    main()
