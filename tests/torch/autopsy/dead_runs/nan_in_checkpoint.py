# SPDX-License-Identifier: Apache-2.0
"""The weights that are loaded hold NaN."""

import torch
from support import Lines, batch, folder, net, train
from torch import nn

out = folder()
model = net()
state = model.state_dict()
state["2.weight"][1, 1] = float("nan")
torch.save(state, out / "weights.pt")
model.load_state_dict(torch.load(out / "weights.pt"))


def loss_of(step):
    x, y = batch(step)
    return nn.functional.cross_entropy(model(x), y)


train(model, torch.optim.Adam(model.parameters(), lr=1e-3), loss_of, Lines(out))
