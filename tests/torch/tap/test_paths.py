# SPDX-License-Identifier: Apache-2.0
"""Modules and parameters are called by the path that the user wrote, whatever torch wraps around them."""
from __future__ import annotations

import json

import pytest
import torch
from nanhunt import _levels
from nanhunt._hooks import hooks
from nanhunt._names import plain_path
from nanhunt._options import Options
from nanhunt._session import Session
from torch import nn
from saved import report_of

pytestmark = pytest.mark.usefixtures("library")


@pytest.mark.parametrize(("path", "plain"), [
    ("block._orig_mod.fc", "block.fc"), ("_orig_mod", ""),
    ("_fsdp_wrapped_module.a._checkpoint_wrapped_module.b", "a.b"),
    ("module.fc", "module.fc"), ("my_orig_mod.fc", "my_orig_mod.fc"), ("", ""),
])
def test_names_of_wrappers_are_left_out_and_no_others(path, plain):
    assert plain_path(path) == plain
    assert plain_path("model", path, "") == ".".join(p for p in ("model", plain) if p)


class Logarithm(nn.Module):
    def forward(self, x):
        return torch.log(x * 0)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        block = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), Logarithm())
        self.block = torch.compile(block, backend="eager")

    def forward(self, x):
        return self.block(self.first(x))


@pytest.mark.parametrize("level", ["live", "ops"])
def test_a_compiled_part_is_called_by_its_place_in_the_model(tmp_path, level):
    torch.manual_seed(0)
    torch._dynamo.reset()
    model = Net()
    session = Session(Options(out=str(tmp_path / "run"), level=level))
    _levels.add_listeners(session)
    hooks.install(session)
    try:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.randn(8, 4)).sum().backward()
            optimizer.step()
    finally:
        session.close()
    report = report_of(tmp_path / "run")
    assert report["verdict"]["status"] == "fault"
    assert "_orig_mod" not in json.dumps(report)
    assert any("block.0.weight" in name for name in session.parameter_names.values()), session.parameter_names
    assert not any("_orig_mod" in name for name in session.parameter_names.values())
