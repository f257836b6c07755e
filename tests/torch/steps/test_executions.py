# SPDX-License-Identifier: Apache-2.0
"""Nothing of the program's runs twice: its forward, hooks and generators are called as often watched as alone."""
from __future__ import annotations

import random
import sys
from pathlib import Path

import nanhunt
import pytest
import torch
from step_runs import net, run_once
from torch import nn

pytestmark = pytest.mark.usefixtures("library")
BAD = 5
STEPS = 10
OURS = str(Path(nanhunt.__file__).parent)
MOST_CALLS = {"live": 54, "steps": 44}  # of our own Python functions in a healthy step


class Calls:
    def __init__(self):
        self.of = {}

    def add(self, what):
        self.of[what] = self.of.get(what, 0) + 1


class Doubled(torch.autograd.Function):
    calls = Calls()

    @staticmethod
    def forward(ctx, x):
        Doubled.calls.add("forward of a custom function")
        return x * 2

    @staticmethod
    def backward(ctx, g):
        Doubled.calls.add("backward of a custom function")
        return g * 2


class Model(nn.Module):
    def __init__(self, calls):
        super().__init__()
        self.calls, self.inner = calls, net()
        self.generator = torch.Generator().manual_seed(3)

    def forward(self, x):
        self.calls.add("forward")
        noise = torch.randn(x.shape, generator=self.generator) * random.random()
        return self.inner(Doubled.apply(x + noise))


def training(calls):
    def build():
        calls.of.clear()
        Doubled.calls = calls
        model = Model(calls)
        model.register_forward_pre_hook(lambda *_: calls.add("forward pre-hook"))
        model.inner[0].register_forward_hook(lambda *_: calls.add("forward hook"))
        model.inner[2].register_full_backward_hook(lambda *_: calls.add("backward hook"))
        model.inner[0].weight.register_hook(lambda g: calls.add("gradient hook"))
        model.inner[0].bias.register_post_accumulate_grad_hook(lambda p: calls.add("accumulated"))
        opt = torch.optim.AdamW(model.parameters(), lr=0.01)
        opt.register_step_pre_hook(lambda *_: calls.add("optimizer hook"))

        def step(i):
            x = torch.randn(8, 6)
            opt.zero_grad()
            with torch.autograd.graph.saved_tensors_hooks(lambda t: (calls.add("pack"), t)[1],
                                                          lambda t: (calls.add("unpack"), t)[1]):
                y = model(x)
                loss = y.square().mean() if i != BAD else torch.log(y * 0).sum()
            if i == BAD:
                for p in model.parameters():
                    p.grad = torch.full_like(p, float("nan"))
                return
            loss.backward()
            opt.step()

        return step, model, opt, lambda: repr(sorted(calls.of.items())), lambda: model.generator.get_state()

    return build


@pytest.mark.parametrize("level", ["live", "ops", "steps"])
def test_forward_hooks_and_generators_are_called_as_often_as_alone(tmp_path, level):
    # Given a run with a step that goes bad and is given up,
    calls = Calls()
    alone = run_once(training(calls), STEPS)
    expected = dict(calls.of)
    # when it is watched,
    watched = run_once(training(calls), STEPS, tmp_path / "run", level=level)
    # then everything of the program's was called as often, and the run ends with the same bits.
    assert calls.of == expected and expected["forward"] == STEPS
    assert watched.digest == alone.digest


def our_calls(step, i):
    """How many of our Python functions a step calls."""
    count = 0

    def profile(frame, event, arg):
        nonlocal count
        count += event == "call" and frame.f_code.co_filename.startswith(OURS)

    sys.setprofile(profile)
    try:
        step(i)
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("level", ["live", "steps"])
def test_a_healthy_step_calls_few_of_our_python_functions(tmp_path, level):
    model = nn.Sequential(*[part for _ in range(6) for part in (nn.Linear(8, 8), nn.ReLU())])
    opt = torch.optim.AdamW(model.parameters(), lr=0.01)
    x = torch.randn(4, 8)

    def step(i):
        opt.zero_grad()
        model(x).square().mean().backward()
        opt.step()

    with nanhunt.watch(model, opt, out=tmp_path / "run", level=level, quiet=True):
        for i in range(20):
            step(i)
        counts = [our_calls(step, i) for i in range(20, 36)]  # in some of each 8 more is compared
    assert sorted(counts)[len(counts) // 2] <= MOST_CALLS[level], counts
