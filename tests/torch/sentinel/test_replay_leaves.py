# SPDX-License-Identifier: Apache-2.0
"""What forward changes besides its output, a replay puts back: the run is the same with and without it."""
from __future__ import annotations

import random

import pytest
import torch
from nanhunt import _attach
from nanhunt._options import Options
from nanhunt._sentinel.sentinel import Sentinel
from torch import nn

OUTSIDE = torch.Generator()


class Model(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.kind, self.body, self.head = kind, nn.Linear(4, 4), nn.Linear(4, 2)
        self.key = nn.Parameter(torch.ones(4, 4), requires_grad=False)
        self.bank, self.counts, self.own = [], {"calls": 0}, random.Random(3)
        self.hidden = [nn.BatchNorm1d(4)]

    def forward(self, x):
        h = self.body(x)
        if self.kind == "momentum weights":
            with torch.no_grad():
                self.key.mul_(0.9).add_(self.body.weight, alpha=0.1)
            h = h @ self.key
        elif self.kind == "momentum weights by data":
            self.key.data = self.key.data * 0.9 + self.body.weight.data * 0.1
            h = h @ self.key
        elif self.kind == "new parameter":
            self.key = nn.Parameter(self.key.data * 0.9, requires_grad=False)
            h = h @ self.key
        elif self.kind == "list":
            self.bank.append(float(h.mean()))
            h = h * (1 + 0.01 * len(self.bank))
        elif self.kind == "dict":
            self.counts["calls"] += 1
            h = h * (1 + 0.01 * self.counts["calls"])
        elif self.kind == "own random":
            h = h * self.own.random()
        elif self.kind == "generator outside":
            h = h * torch.rand(4, generator=OUTSIDE)
        elif self.kind == "unregistered module":
            h = self.hidden[0](h)
        return self.head(h)


def train(kind, folder):
    torch.manual_seed(5)
    OUTSIDE.manual_seed(7)
    model = Model(kind)
    session = None
    if folder is not None:
        session = _attach.attach(Options(out=str(folder), budget=0.0))
        next(part for part in session.listeners if isinstance(part, Sentinel)).wanted = {0, 3, 6, 9}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(10):
        loss = model(torch.randn(6, 4)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if session is not None:
        session.close()
        assert session.errors == 0, session.last_error
    return [t.clone() for t in (*model.parameters(), *model.hidden[0].buffers())], (
        len(model.bank), model.counts["calls"], OUTSIDE.get_state().sum().item())


@pytest.mark.parametrize("kind", [
    "nothing", "momentum weights", "momentum weights by data", "new parameter", "list", "dict", "own random",
    "generator outside", "unregistered module"])
def test_training_is_the_same_with_replays_of_healthy_steps(kind, library, no_watch_left, tmp_path):
    alone = train(kind, None)
    watched = train(kind, tmp_path / "run")
    assert watched[1] == alone[1]
    assert all(torch.equal(a, b) for a, b in zip(alone[0], watched[0], strict=True))


def test_a_generator_of_losses_is_read_by_backward_alone(library, no_watch_left, tmp_path):
    model = nn.Linear(3, 2)
    _attach.attach(Options(out=str(tmp_path / "run")))
    model(torch.ones(2, 3))
    torch.autograd.backward(p.sum() for p in model.parameters())
    assert all(p.grad is not None for p in model.parameters())


def test_tracing_is_left_alone(library, no_watch_left, tmp_path):
    _attach.attach(Options(out=str(tmp_path / "run")))
    traced = torch.jit.trace(nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)).eval(), torch.ones(4, 3))
    assert traced(torch.ones(4, 3)).shape == (4, 2)


def test_a_model_that_was_frozen_at_first_is_watched_once_it_trains(library, no_watch_left, tmp_path):
    session = _attach.attach(Options(out=str(tmp_path / "run")))
    judge = nn.Linear(3, 1).requires_grad_(False)
    judge(torch.ones(1, 3))
    judge.requires_grad_(True)
    judge(torch.ones(1, 3))
    assert session.recorder is not None


def test_models_and_optimizers_that_ended_are_let_go(library, no_watch_left, tmp_path):
    import gc
    import weakref

    session = _attach.attach(Options(out=str(tmp_path / "run")))
    ended = []
    for _ in range(3):
        model = nn.Linear(3, 2)
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(2):
            model(torch.ones(2, 3)).sum().backward()
            optimizer.step()
        ended.append(weakref.ref(optimizer))
    del model, optimizer
    gc.collect()
    assert [one() for one in ended[:-1]] == [None] * 2
    assert session.errors == 0
