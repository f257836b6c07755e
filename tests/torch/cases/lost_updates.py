# SPDX-License-Identifier: Apache-2.0
"""Pure bf16 with a small learning rate: weight plus update rounds back to the weight. Repaired by fp32 weights,
bf16 by autocast.
"""

from __future__ import annotations

import torch
from support import digits, finish, options, rename_layers
from torch import nn

BATCH = 64


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(64, 48)
        self.fc2 = nn.Linear(48, 10)

    def forward(self, x):
        return self.fc2(torch.relu(self.fc1(x)))


def main():
    args = options(__doc__, steps=30)
    images, labels = digits(args.device)
    model = Net().to(torch.float32 if args.fixed else torch.bfloat16)
    rename_layers(model, args.rename_seed)
    model.to(args.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-5)
    losses = []
    for _ in range(args.steps):
        chosen = torch.randint(len(images), (BATCH,))
        x = images[chosen].to(model.fc1.weight.dtype)
        with torch.autocast(args.device, dtype=torch.bfloat16, enabled=args.fixed):
            logits = model(x)
        loss = nn.functional.cross_entropy(logits.float(), labels[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    finish(model, losses)


if __name__ == "__main__":
    main()
