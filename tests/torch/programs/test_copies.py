# SPDX-License-Identifier: Apache-2.0
"""Averages of weights and teachers last as parameters do: what goes bad in one, or is lost in one, is found."""

from __future__ import annotations

import copy

import pytest
import torch
from own_programs import LEVELS, Net, assert_silent, data, told
from torch.nn import functional as F


def averaged(rate, dtype=torch.float32, lr=1e-2, teacher=False, foreach=False):
    """`rate(i)`: the weight of the average at step i."""

    def build():
        model = Net()
        opt = torch.optim.SGD(model.parameters(), lr=lr)
        kept = copy.deepcopy(model).to(dtype).requires_grad_(False)
        shadow = list(kept.parameters()) if teacher else [p.detach().clone().to(dtype) for p in model.parameters()]

        def step(i):
            x, y = data()
            opt.zero_grad()
            F.cross_entropy(model(x), y).backward()
            opt.step()
            with torch.no_grad():
                decay = rate(i)
                if foreach:
                    torch._foreach_mul_(shadow, decay)
                    torch._foreach_add_(shadow, [p.detach().to(dtype) for p in model.parameters()], alpha=1 - decay)
                else:
                    for s, p in zip(shadow, model.parameters(), strict=True):
                        s.mul_(decay).add_(p.detach().to(dtype), alpha=1 - decay)

        return step, model, opt, shadow

    return build


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize("teacher", [False, True])
def test_an_average_of_weights_that_goes_bad_is_lasting_state(teacher, foreach, level, tmp_path):
    said = told(averaged(lambda i: 3e38 if i in (2, 3) else 0.9, teacher=teacher, foreach=foreach), tmp_path, level)
    assert said.status == "fault" and said.first["class"] == "overflow", said.show()
    assert said.first["phase"] == "update" and said.first["op"].startswith("aten::"), said.show()
    assert any("copy of first." in sink for sink in said.first["sinks"]), said.first["sinks"]
    assert_silent(averaged(lambda i: 0.9, teacher=teacher, foreach=foreach), tmp_path, level)


def test_updates_that_an_average_in_fp16_loses_are_found(tmp_path):
    lost = told(averaged(lambda i: 0.99999, dtype=torch.float16, lr=1e-3), tmp_path, "ops", steps=24)
    assert "update_loss" in [cls for cls, _ in lost.loud], lost.show()
    assert_silent(averaged(lambda i: 0.99999, lr=1e-3), tmp_path, "ops", steps=24)
