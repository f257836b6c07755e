# SPDX-License-Identifier: Apache-2.0
"""Modules and parameters are called by the path that the user wrote, whatever torch wraps around them."""
from __future__ import annotations

import json

import nanhunt
import pytest
import torch
from saved import records_of, report_of
from step_runs import Holds
from torch import nn

pytestmark = pytest.mark.usefixtures("library")


class Logarithm(nn.Module):
    def forward(self, x):
        return torch.log(x * 0)


@pytest.mark.parametrize(("path", "plain"), [
    ("block._orig_mod.fc", "block.fc"), ("_fsdp_wrapped_module.a._checkpoint_wrapped_module.b", "a.b"),
    ("module.fc", "module.fc"), ("my_orig_mod.fc", "my_orig_mod.fc"),
])
def test_names_of_wrappers_are_left_out_and_no_others(tmp_path, path, plain):
    model = nn.Sequential(nn.Linear(4, 4), Logarithm())
    for name in reversed(path.split(".")):
        model = Holds(name, model)
    with nanhunt.watch(model, out=tmp_path / "run", quiet=True) as watch:
        model(torch.ones(2, 4)).sum().backward()
        torch.optim.SGD(model.parameters(), lr=0.1).step()
    assert watch.findings[0].module == f"{plain}.1"
    assert f"{plain}.0.weight" in {row["path"] for row in records_of(watch.path, "marks")}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        block = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), Logarithm())
        self.block = torch.compile(block, backend="eager")

    def forward(self, x):
        return self.block(self.first(x))


@pytest.mark.parametrize("level", ["live", "ops"])
def test_a_compiled_part_is_called_by_its_place_in_the_model(tmp_path, level, monkeypatch):
    monkeypatch.setenv("NANHUNT_SOURCE", "0")  # this file's lines have the name
    torch.manual_seed(0)
    torch._dynamo.reset()
    model = Net()
    with nanhunt.watch(out=tmp_path / "run", level=level, quiet=True):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.randn(8, 4)).sum().backward()
            optimizer.step()
    report = report_of(tmp_path / "run")
    assert report["verdict"]["status"] == "fault"
    assert "_orig_mod" not in json.dumps(report)
    names = {row["path"] for row in records_of(tmp_path / "run", "marks")}
    assert any("block.0.weight" in name for name in names) and not any("_orig_mod" in name for name in names), names
