# SPDX-License-Identifier: Apache-2.0
"""A second process goes on from the checkpoint, but with the learning rate of another set-up."""

import sys

import torch
from support import Board, batch, folder
from torch import nn

out = folder()


def part(first, last, lr):
    model = nn.Linear(8, 4)
    if first:
        model.load_state_dict(torch.load(out / "step_20.pt"))
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    log = Board(out)
    for step in range(first, last):
        x, _ = batch(step)
        loss = ((model(x) - 3 * x[:, :4]) ** 4).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        log.log(step, loss=loss.item())
    log.close()
    torch.save(model.state_dict(), out / f"step_{last}.pt")


if len(sys.argv) > 2 or (out / "step_20.pt").exists():
    part(20, 30, 1e4)
else:
    part(0, 20, 1e-4)
