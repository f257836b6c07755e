# SPDX-License-Identifier: Apache-2.0
"""The last batch has one row; the standard deviation of one number is 0/0."""

import torch
from support import Lines, batch, folder, net, train
from torch import nn

out = folder()
model = net()


def loss_of(step):
    x, y = batch(step, 16 if step != 18 else 1)
    x = (x - x.mean(dim=0)) / (x.std(dim=0) + 1e-6)
    return nn.functional.cross_entropy(model(x), y)


train(model, torch.optim.Adam(model.parameters(), lr=1e-3), loss_of, Lines(out))
