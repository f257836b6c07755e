# SPDX-License-Identifier: Apache-2.0
"""Calls of modules inside of a root: natively, and by Python's function where there is no tap that can."""
from __future__ import annotations

import inspect
import sys

import pytest
import torch
from nanhunt import _watch
from nanhunt._hooks import calls, hooks
from nanhunt._tap.tap_library import load_tap
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
    with _watch.watch(model, optimizer, out=folder, quiet=True, **options):
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
    monkeypatch.setattr(calls, "call_natively", lambda function, own: load_tap().calls(id(function), id(own), None))
    by_python = train(tmp_path / "python", **options)
    keys = ("op", "module", "phase", "step", "class", "call_site")
    assert [[f[key] for key in keys] for f in natively["findings"]] == [
        [f[key] for key in keys] for f in by_python["findings"]]
    assert natively["findings"][0]["module"] == "1.1"


def test_inner_modules_are_not_asked_about_in_python(tmp_path):
    # Given a watched root with five modules inside, when it trains, then Python's function runs for the root alone.
    ran = []

    def look(frame, event, arg):
        if event == "call" and frame.f_code is hooks._module_called.__code__:
            ran.append(type(frame.f_locals["module"]).__name__)

    model = nn.Sequential(*[nn.Linear(2, 2) for _ in range(5)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with _watch.watch(model, optimizer, out=tmp_path / "run", level="ops", quiet=True):
        for step in range(3):
            sys.setprofile(look if step == 2 else None)
            try:
                model(torch.ones(1, 2)).sum().backward()
            finally:
                sys.setprofile(None)
            optimizer.step()
    assert ran == ["Sequential"]


def test_what_stands_for_a_modules_call_is_a_function_of_pythons_that_may_be_taken_off_and_put_back(tmp_path):
    # Given a watched process, when a tool takes Module.__call__ off and puts it back (torch.fx does), then calls work.
    own = nn.Module.__call__
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    with _watch.watch(model, out=tmp_path / "run", level="ops", quiet=True):
        model(torch.ones(1, 2)).sum().backward()
        assert inspect.isfunction(nn.Module.__call__)
        traced = torch.fx.symbolic_trace(model)
        assert torch.equal(traced(torch.ones(1, 2)), model(torch.ones(1, 2)))
    assert nn.Module.__call__ is own
