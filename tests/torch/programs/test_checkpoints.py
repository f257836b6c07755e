# SPDX-License-Identifier: Apache-2.0
"""A module that a reentrant checkpoint calls by itself is part of forward, though gradients are off there."""

from __future__ import annotations

import pytest
import torch
from own_programs import LEVELS, data, told
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


class Log(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.factor = nn.Linear(6, 8), 1.0

    def forward(self, x):
        return torch.log(self.inner(x).abs() * self.factor + 1e-3 * (self.factor != 0))


def training(bad, at):
    def build():
        torch.manual_seed(0)
        first, last = Log(), nn.Linear(8, 3)
        opt = torch.optim.SGD([*first.parameters(), *last.parameters()], lr=1e-3)

        def step(i):
            x, y = data()
            first.factor = 0.0 if bad and i == at else 1.0
            opt.zero_grad()
            hidden = checkpoint(first, x.requires_grad_(), use_reentrant=True)
            F.cross_entropy(last(hidden), y).backward()
            opt.step()

        return step, first, last, opt

    return build


@pytest.mark.parametrize(("level", "at"), [*[(level, 3) for level in LEVELS], ("live", 12)])
def test_it_is_told_in_forward_with_its_module(level, at, tmp_path):
    said = told(training(True, at), tmp_path, level, steps=at + 1)
    assert said.what == ("divide_by_zero", "aten::log", "forward", "Log"), said.show()
    assert said.first["step"] == at and len(said.loud) == 1, said.show()
    twin = told(training(False, at), tmp_path, level, steps=at + 1)
    assert twin.status == "clean" and not twin.loud, twin.show()


class Remembered(torch.autograd.Function):
    """As a program writes a checkpoint of its own, with another gradient: it is not computed again."""

    @staticmethod
    def forward(ctx, module, x):
        with torch.no_grad():
            out = module(x)
        ctx.module = module
        ctx.save_for_backward(x)
        return out * 1

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            out = ctx.module(x.detach().requires_grad_())
        torch.autograd.backward(out, 2 * gradient)
        return None, gradient.sum(1, keepdim=True).expand_as(x)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("bad", [True, False])
def test_a_function_of_the_programs_own_that_calls_a_module_is_forward_too(level, bad, tmp_path):
    def build():
        torch.manual_seed(0)
        first, last = nn.Linear(6, 8), nn.Linear(8, 3)
        opt = torch.optim.SGD([*first.parameters(), *last.parameters()], lr=1e-3)

        def step(i):
            x, y = data()
            if bad and i == 12:
                x = x * 0 + float("inf")
            opt.zero_grad()
            F.cross_entropy(last(Remembered.apply(first, x.requires_grad_())), y).backward()
            opt.step()

        return step, first, last, opt

    said = told(build, tmp_path, level, steps=13)
    assert said.status == ("fault" if bad else "clean"), said.show()
    assert not [title for cls, title in said.loud if "validation" in title or cls == "not_reproducible"], said.show()
