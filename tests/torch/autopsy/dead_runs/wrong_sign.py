# SPDX-License-Identifier: Apache-2.0
"""The optimizer climbs: every step makes the error larger until its square passes the largest number."""

import torch
from support import Lines, batch, folder, train
from torch import nn

out = folder()
model = nn.Linear(8, 4)


def loss_of(step):
    x, _ = batch(step)
    return ((model(x) - 3 * x[:, :4]) ** 2).mean()


train(model, torch.optim.SGD(model.parameters(), lr=8.0, maximize=True), loss_of, Lines(out), steps=40)
