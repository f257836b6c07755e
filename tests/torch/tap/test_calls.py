# SPDX-License-Identifier: Apache-2.0
"""Calls of modules inside of a root: natively, and by Python's function where there is no tap that can."""
from __future__ import annotations

import inspect
import sys
from pathlib import Path

import nanhunt
import pytest
import torch
from listening import calls_followed_by_python
from saved import report_of
from torch import nn

pytestmark = pytest.mark.usefixtures("library", "no_watch_left")


class Refuses(nn.Module):
    def forward(self, x):
        if x.shape[0] == 3:
            raise ValueError("three rows")
        return torch.log(torch.relu(x))


def train(folder, **options):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.ReLU(), Refuses()), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with nanhunt.watch(model, optimizer, out=folder, quiet=True, **options):
        for rows in (2, 3, 2):
            optimizer.zero_grad()
            try:
                model(torch.ones(rows, 4)).sum().backward()
            except ValueError:
                continue
            optimizer.step()
    return report_of(folder)


@pytest.mark.parametrize("options", [{"level": "ops"}, {}], ids=["ops", "live"])
def test_calls_that_are_followed_natively_are_told_as_python_tells_them(tmp_path, options, monkeypatch):
    # Given a model whose inner module raises once, and once makes an infinity,
    natively = train(tmp_path / "natively", **options)
    # when Python's function follows the calls instead, then the findings are the same.
    calls_followed_by_python(monkeypatch)
    by_python = train(tmp_path / "python", **options)
    keys = ("op", "module", "phase", "step", "class", "call_site")
    assert [[f[key] for key in keys] for f in natively["findings"]] == [
        [f[key] for key in keys] for f in by_python["findings"]]
    assert natively["findings"][0]["module"] == "1.1"


OURS = str(Path(nanhunt.__file__).parent)


@pytest.mark.parametrize("level", ["live", "ops"])
def test_inner_modules_are_not_asked_about_in_python(tmp_path, level):
    # Given watched roots of 5 and of 50 modules, when one is called, then as many functions of ours run.
    def ran_for(modules):
        ran = []
        model = nn.Sequential(*[nn.Linear(2, 2) for _ in range(modules)])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with nanhunt.watch(model, optimizer, out=tmp_path / str(modules), level=level, quiet=True):
            for step in range(4):
                sys.setprofile((lambda frame, event, arg: ran.append(frame.f_code.co_name) if event == "call" and
                                frame.f_code.co_filename.startswith(OURS) else None) if step == 3 else None)
                try:
                    y = model(torch.ones(1, 2))
                finally:
                    sys.setprofile(None)
                y.sum().backward()
                optimizer.step()
        return ran

    few, many = ran_for(5), ran_for(50)
    assert few and many == few


def test_what_stands_for_a_modules_call_is_a_function_of_pythons_that_may_be_taken_off_and_put_back(tmp_path):
    # Given a watched process, when a tool takes Module.__call__ off and puts it back (torch.fx does), then calls work.
    own = nn.Module.__call__
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    with nanhunt.watch(model, out=tmp_path / "run", level="ops", quiet=True):
        model(torch.ones(1, 2)).sum().backward()
        assert inspect.isfunction(nn.Module.__call__)
        traced = torch.fx.symbolic_trace(model)
        assert torch.equal(traced(torch.ones(1, 2)), model(torch.ones(1, 2)))
    assert nn.Module.__call__ is own
