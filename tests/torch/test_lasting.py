# SPDX-License-Identifier: Apache-2.0
"""Level ops: contents that went bad past PyTorch are told; what users write on purpose is no corruption."""
from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from watched import report_of

pytestmark = pytest.mark.usefixtures("library")


class Centred(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.register_buffer("mean", torch.zeros(size))

    def forward(self, x):
        with torch.no_grad():
            self.mean.lerp_(x.detach().mean(0), 0.1)
        return x - self.mean


def train(folder, between, steps=6, device="cpu"):
    from nanhunt import _levels, _taps
    from nanhunt._session import Options, Session

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), Centred(8), nn.Tanh(), nn.Linear(8, 2)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, foreach=False)
    session = Session(Options(out=str(folder), level="ops"))
    _levels.add_listeners(session)
    _taps.install(session)
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


def test_a_weight_that_went_bad_behind_torch_is_corruption(tmp_path):
    def poison(step, model, optimizer):
        if step == 2:
            model[0].weight.detach().numpy()[1, 1] = float("nan")

    report = train(tmp_path / "run", poison)
    origin = next(f for f in report["findings"] if f["id"] == report["verdict"]["origin"])
    assert origin["class"] == "corruption" and origin["step"] == 3 and origin["module"] == "0.weight"


def test_a_buffer_that_went_bad_behind_torch_is_corruption(tmp_path):
    def poison(step, model, optimizer):
        if step == 2:
            model[1].mean.numpy()[3] = float("inf")

    report = train(tmp_path / "run", poison)
    classes = {(f["class"], f["module"]) for f in report["findings"]}
    assert ("corruption", "1.mean") in classes


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


@pytest.mark.parametrize("between", legitimate_writes(), ids=lambda f: f.__name__)
def test_what_users_write_on_purpose_is_no_finding(tmp_path, between):
    report = train(tmp_path / "run", between)
    assert report["verdict"]["status"] == "clean" and report["findings"] == []
