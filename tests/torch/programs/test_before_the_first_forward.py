# SPDX-License-Identifier: Apache-2.0
"""What a program computes before it calls its model for the first time: weights of a loss, data that is made ready."""

from __future__ import annotations

import pytest
import torch
from own_programs import LEVELS, Net, assert_silent, told
from torch.nn import functional as F


def prepared(prepare):
    """`prepare()` gives the inputs and the weights of the loss, in the first step, before anything else."""

    def build():
        torch.manual_seed(0)
        net = Net()
        opt = torch.optim.SGD(net.parameters(), lr=1e-2)
        made = {}

        def step(i):
            if i == 0:
                made["x"], made["weight"] = prepare()
            x, y = made["x"], torch.arange(8) % 3
            opt.zero_grad()
            (F.cross_entropy(net(x), y, reduction="none") * made["weight"]).mean().backward()
            opt.step()

        return step, net, opt

    return build


def spread(columns):
    """Weights by how far the values of a row are apart: of one value that is 0 / 0."""
    def prepare():
        return torch.randn(8, 6), torch.randn(8, columns).std(dim=1)

    return prepare


def standardised(constant, floor):
    """Inputs by column; one of them is the same in all rows."""
    def prepare():
        x = torch.randn(8, 6)
        if constant:
            x[:, 2] = 1.0
        return (x - x.mean(0)) / x.std(0).clamp_min(floor), torch.ones(8)

    return prepare


def by_count(counts):
    """Weights by how often a class is there: one is not."""
    def prepare():
        counted = torch.tensor(counts, dtype=torch.float32)
        weights = counted.sum() / counted
        return torch.randn(8, 6), (weights / weights.sum())[torch.arange(8) % 3]

    return prepare


PROGRAMS = {
    "a spread of one value": (spread(1), spread(4), "divide_by_zero", "aten::std"),
    "a column without a spread": (standardised(True, 0.0), standardised(True, 1e-3), "divide_by_zero", "aten::div"),
    "a class that is not there": (by_count([4, 0, 4]), by_count([4, 1, 3]), "divide_by_zero", "aten::div"),
}


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_operation_before_the_first_forward_is_named_and_the_repaired_program_is_clean(name, level, tmp_path):
    bad, mended, kind, op = PROGRAMS[name]
    said = told(prepared(bad), tmp_path / "bad", level)
    assert said.what[:3] == (kind, op, "data") and said.first["step"] == 0, said.show()
    assert said.first["call_site"].startswith("test_before_the_first_forward.py:"), said.first
    assert_silent(prepared(mended), tmp_path / "mended", level)
