# SPDX-License-Identifier: Apache-2.0
"""Training that diverges is told as that, in one finding with the learning rate: by one update that is far too long, or
by several. What is long for another reason is not."""

from __future__ import annotations

import pytest
import torch
from own_programs import LEVELS, assert_silent, loop, told
from torch import nn
from torch.nn import functional as F


def regression(lr, optimizer=torch.optim.SGD, unit=300.0, bad=(), layers=2, **options):
    """One column of the inputs is in other units; a batch of steps `bad` is far out of scale."""

    def build():
        torch.manual_seed(0)
        inner = [part for _ in range(layers) for part in (nn.Linear(32, 32), nn.ReLU())]
        net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), *inner, nn.Linear(32, 1))
        opt = optimizer(net.parameters(), lr=lr, **options)
        scale = torch.tensor([1.0] * 7 + [unit])

        def step(i):
            x = torch.randn(64, 8) * scale * (1e18 if i in bad else 1.0)
            opt.zero_grad()
            F.mse_loss(net(x), x.sum(1, keepdim=True)).backward()
            opt.step()

        return step, net, opt

    return build


DIVERGES = {
    "sgd": (regression(0.5, momentum=0.9), regression(1e-6, momentum=0.9)),
    "plain": (regression(3.0, unit=30.0), regression(1e-5, unit=30.0)),
    "adam": (regression(1e12, torch.optim.Adam, unit=1.0), regression(1e-3, torch.optim.Adam, unit=1.0)),
}


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("which", DIVERGES)
def test_one_update_that_is_far_too_long_is_divergence_with_its_rate(which, level, tmp_path):
    planted, twin = DIVERGES[which]
    said = told(planted, tmp_path, level, steps=8)
    assert said.what[0] == "exploding" and len(said.loud) == 1, said.show()
    assert "the update of step 0" in said.first["title"], said.show()
    assert said.first["advice"][0]["id"] == "lower-lr", said.show()
    assert any("At a learning rate of" in line for line in said.first["evidence"]), said.first["evidence"]
    wide = any("column 7 of input 0 reaches" in line for line in said.first["evidence"])
    assert wide == (which == "sgd") == ("scale-inputs" in [one["id"] for one in said.first["advice"]]), said.first
    assert_silent(twin, tmp_path, level, steps=8)


@pytest.mark.parametrize("level", LEVELS)
def test_a_batch_that_is_out_of_scale_is_no_divergence(level, tmp_path):
    said = told(regression(1e-6, bad=(4,)), tmp_path, level, steps=7)
    assert said.status == "fault" and said.what[0] != "exploding", said.show()


def written_over(number):
    """In step 4 the program writes numbers of its own over a weight, before it calls the model."""

    def step(i, net, opt):
        if i == 4:
            with torch.no_grad():
                net.weight[1] = number
        opt.zero_grad()
        (torch.exp(net(torch.ones(8, 4))).mean() * 1e-3).backward()
        opt.step()

    return loop(step, lambda: nn.Linear(4, 3), torch.optim.Adam, 1e-3)


@pytest.mark.parametrize("level", LEVELS)
def test_weights_that_the_program_itself_makes_large_are_no_update_that_is_too_long(level, tmp_path):
    said = told(written_over(50.0), tmp_path, level, steps=7)
    assert said.status == "fault" and said.what[:2] == ("overflow", "aten::exp"), said.show()
    assert "lower-lr" not in [one["id"] for one in said.first["advice"]], said.first["advice"]
    assert_silent(written_over(0.5), tmp_path, level, steps=7)


class Signed(torch.optim.Optimizer):
    """Its weight decay has the wrong sign, or the right one."""

    def __init__(self, params, lr, decay):
        super().__init__(params, {"lr": lr, "decay": decay})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                p.mul_(1 + group["decay"]).sub_(group["lr"] * p.grad.sign())


def decaying(decay, unit=1.0):
    def build():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4))
        opt = Signed(net.parameters(), 1e-4, decay)

        def step(i):
            x = torch.randn(16, 8)
            opt.zero_grad()
            F.cross_entropy(net(x * unit), x[:, :4].argmax(1)).backward()
            opt.step()

        return step, net, opt

    return build


@pytest.mark.parametrize("level", LEVELS)
def test_weights_that_grow_a_little_in_each_step_are_divergence_when_they_overflow(level, tmp_path):
    said = told(decaying(0.05, unit=1e30), tmp_path, level, steps=240)
    assert said.what[0] == "exploding" and len(said.loud) == 1, said.show()
    assert [a["id"] for a in said.first["advice"]] == ["check-update"], said.show()
    assert_silent(decaying(-1e-3), tmp_path, level, steps=80)


@pytest.mark.parametrize("level", LEVELS)
def test_a_loss_that_has_grown_without_an_overflow_is_a_warning(level, tmp_path):
    said = told(decaying(0.5), tmp_path, level, steps=40)
    assert said.status == "warning" and [one[0] for one in said.loud] == ["exploding"], said.show()
    assert "the loss has grown from" in said.first["title"], said.show()


def scheduled(lowest):
    def build():
        torch.manual_seed(0)
        net = nn.Linear(8, 4)
        opt = torch.optim.SGD(net.parameters(), lr=1.0)
        schedule = torch.optim.lr_scheduler.LambdaLR(opt, lambda i: max(lowest, 1 - i / 5))

        def step(i):
            x = torch.randn(16, 8)
            opt.zero_grad()
            F.cross_entropy(net(x), x[:, :4].argmax(1)).backward()
            opt.step()
            schedule.step()

        return step, net, opt

    return build


@pytest.mark.parametrize("level", LEVELS)
def test_a_learning_rate_below_0_is_a_warning_though_nothing_overflows(level, tmp_path):
    said = told(scheduled(-10), tmp_path, level, steps=16)
    assert said.status == "warning", said.show()
    assert said.first["title"] == "The learning rate is below 0 in 10 steps, first in step 6", said.show()
    assert said.first["advice"][0]["id"] == "mend-schedule", said.show()
    assert_silent(scheduled(0), tmp_path, level, steps=16)
