# SPDX-License-Identifier: Apache-2.0
"""The schedule restarts at step 20 with a learning rate a thousand times as high."""

import torch
from support import Board, batch, folder, train
from torch import nn

out = folder()
model = nn.Linear(8, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)


def loss_of(step):
    x, _ = batch(step)
    return ((model(x) - 3 * x[:, :4]) ** 4).mean()


def before(step):
    if step == 20:
        optimizer.param_groups[0]["lr"] = 1e9


train(model, optimizer, loss_of, Board(out), before=before)
