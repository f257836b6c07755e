# SPDX-License-Identifier: Apache-2.0
"""A run at level ops between whose steps somebody writes, and what users write on purpose."""
from __future__ import annotations

import copy

import torch
from torch import nn
from watched import report_of


class Centred(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.register_buffer("mean", torch.zeros(size))

    def forward(self, x):
        with torch.no_grad():
            self.mean.lerp_(x.detach().mean(0), 0.1)
        return x - self.mean


def train(folder, between, steps=6, device="cpu"):
    from nanhunt import _levels
    from nanhunt._hooks import hooks
    from nanhunt._options import Options
    from nanhunt._session import Session

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), Centred(8), nn.Tanh(), nn.Linear(8, 2)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, foreach=False)
    session = Session(Options(out=str(folder), level="ops"))
    _levels.add_listeners(session)
    hooks.install(session)
    try:
        for step in range(steps):
            loss = model(torch.randn(16, 4).to(device)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            between(step, model, optimizer)
    finally:
        session.close()
    assert not [n for n in session.notes if n.startswith("errors inside")], session.last_error
    return report_of(folder)


def legitimate_writes():
    kept = {}

    def load(step, model, optimizer):
        if step == 1:
            kept["model"], kept["optimizer"] = copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict())
        if step == 3:
            model.load_state_dict(kept["model"])
            optimizer.load_state_dict(kept["optimizer"])

    def clip(step, model, optimizer):
        with torch.no_grad():
            for p in model.parameters():
                p.clamp_(-0.5, 0.5)

    def swap(step, model, optimizer):
        for p in model.parameters():
            p.data = p.data * 0.99

    def write_data(step, model, optimizer):
        for p in model.parameters():
            p.data.mul_(0.99)

    def by_numpy(step, model, optimizer):
        weight = model[0].weight.detach().numpy()
        weight *= 0.9

    return [load, clip, swap, write_data, by_numpy]
