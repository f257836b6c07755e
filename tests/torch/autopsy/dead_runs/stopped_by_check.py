# SPDX-License-Identifier: Apache-2.0
"""The program ends itself on a bad loss: a variance whose exponential passes the largest number."""

import sys

import torch
from support import Text, batch, folder, net
from torch import nn

out = folder()
model = net()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
log = Text(out)
for step in range(20):
    x, y = batch(step)
    made = model(x)
    log_variance = made[:, 0] + (200.0 if step == 13 else 0.0)
    loss = nn.functional.cross_entropy(made, y) + torch.exp(log_variance).mean()
    log.log(step, loss=loss.item())
    if not torch.isfinite(loss):
        print(f"Loss is {loss.item()}, stopping training", flush=True)
        sys.exit(1)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
