# SPDX-License-Identifier: Apache-2.0
"""Compiled graphs that write parameters: which of them are an optimizer's step? As many are counted as eagerly."""

from __future__ import annotations

import pytest
import torch
from compiled_programs import MARKS
from own_programs import told
from torch import nn

pytestmark = MARKS
TURNS = 4


class Scaled(nn.Module):
    """Its forward bounds a parameter."""

    def __init__(self):
        super().__init__()
        self.inner, self.scale = nn.Linear(8, 8), nn.Parameter(torch.tensor(1.0))

    def forward(self, x):
        with torch.no_grad():
            self.scale.clamp_(0, 4.6)
        return self.inner(x) * self.scale.exp()


def a_loss(model):
    return model(torch.randn(4, 8)).square().mean()


def a_bound_in_forward(compiled):
    net = Scaled()
    opt = torch.optim.SGD(net.parameters(), lr=1e-2)
    model = compiled(net)

    def step(i):
        opt.zero_grad()
        for _ in range(3):
            a_loss(model).backward()
        opt.step()

    return step, net, opt


def a_decay_before_the_optimizer(compiled):
    net = nn.Linear(8, 8)
    opt = torch.optim.SGD(net.parameters(), lr=1e-2)

    @compiled
    def decay(parameters):
        for p in parameters:
            p.mul_(0.99)

    def step(i):
        opt.zero_grad()
        a_loss(net).backward()
        with torch.no_grad():
            decay(list(net.parameters()))
        opt.step()

    return step, net, opt


def two_optimizers_one_of_them_often(compiled):
    critic, maker = nn.Linear(8, 1), nn.Linear(8, 8)
    opts = [torch.optim.SGD(net.parameters(), lr=1e-2) for net in (critic, maker)]
    steps = [compiled(opt.step) for opt in opts]

    def step(i):
        for n in (0, 0, 0, 1):
            opts[n].zero_grad()
            critic(maker(torch.randn(4, 8))).square().mean().backward()
            steps[n]()

    return step, nn.ModuleList([critic, maker]), opts


def a_part_of_two_optimizers(compiled):
    update = compiled(lambda p, g, lr: p.sub_(g * lr))

    class Own(torch.optim.Optimizer):
        def __init__(self, parameters):
            super().__init__(parameters, {"lr": 0.01})

        @torch.no_grad()
        def step(self, closure=None):
            for group in self.param_groups:
                for p in group["params"]:
                    update(p, p.grad, group["lr"])

    nets = [nn.Linear(8, 8, bias=False) for _ in range(2)]
    opts = [Own(net.parameters()) for net in nets]

    def step(i):
        for net, opt in zip(nets, opts, strict=True):
            opt.zero_grad()
            a_loss(net).backward()
            opt.step()

    return step, nn.ModuleList(nets), opts


@pytest.mark.parametrize("level", ["live", "steps"])
@pytest.mark.parametrize(
    "program",
    [a_bound_in_forward, a_decay_before_the_optimizer, two_optimizers_one_of_them_often, a_part_of_two_optimizers],
)
def test_as_many_steps_are_counted_as_where_nothing_is_compiled(program, level, tmp_path):
    eager = told(lambda: program(lambda f: f), tmp_path / "eager", level, TURNS)
    compiled = told(lambda: program(torch.compile), tmp_path / "compiled", level, TURNS)
    steps = [len(said.run.report["timeline"]["steps"]) for said in (eager, compiled)]
    assert steps[0] == steps[1] >= TURNS and eager.status == compiled.status == "clean", (steps, compiled.show())
