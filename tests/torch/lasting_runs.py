# SPDX-License-Identifier: Apache-2.0
"""A run at level ops between whose steps somebody writes, and what users write on purpose."""
from __future__ import annotations

import copy

import nanhunt
import torch
from saved import report_of
from torch import nn


class Centred(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.register_buffer("mean", torch.zeros(size))

    def forward(self, x):
        with torch.no_grad():
            self.mean.lerp_(x.detach().mean(0), 0.1)
        return x - self.mean


def train(folder, between, steps=6, device="cpu"):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), Centred(8), nn.Tanh(), nn.Linear(8, 2)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, foreach=False)
    with nanhunt.watch(out=folder, level="ops", quiet=True) as watch:
        for step in range(steps):
            loss = model(torch.randn(16, 4).to(device)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            between(step, model, optimizer)
    assert not [note for note in watch.notes if note.startswith("errors inside")], watch.notes
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
