# SPDX-License-Identifier: Apache-2.0
"""A distance of exactly 0 in step 9: sqrt has no finite derivative there, and 0 times Inf is NaN."""

import torch
from support import Wandb, batch, folder, net, train

out = folder()
model = net()


def loss_of(step):
    x, _ = batch(step)
    made = model(x)
    other = made if step == 9 else made.detach().roll(1, 0)
    return torch.sqrt(((made - other) ** 2).sum(dim=1)).mean() + made.square().mean()


train(model, torch.optim.Adam(model.parameters(), lr=1e-3), loss_of, Wandb(out), norms=True)
