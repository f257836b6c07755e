# SPDX-License-Identifier: Apache-2.0
"""What lasts in 16 bits and is added to in vain is told by name: counters, buffers, weights that something is merged
into. No number is ever bad."""

from __future__ import annotations

import pytest
import torch
from own_programs import LEVELS, Net, assert_silent, classifier, data, loop, told
from torch import nn
from torch.nn import functional as F


class Counting(torch.optim.Optimizer):
    """SGD whose rate falls with its own count of steps."""

    def __init__(self, params, lr, dtype, start):
        super().__init__(params, {"lr": lr})
        self.dtype, self.start = dtype, start

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["count"] = torch.tensor(self.start, dtype=self.dtype)
                    state["seen"] = torch.zeros_like(p)
                state["count"] += 1
                state["seen"].add_(p.grad.abs())
                p.sub_(group["lr"] * p.grad / state["count"].float().sqrt())


def counting(dtype, start):
    return classifier(optimizer=Counting, dtype=dtype, start=start)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    ("dtype", "start"), [(torch.bfloat16, 250.0), (torch.float16, 2040.0), (torch.bfloat16, 512.0)]
)
def test_a_counter_that_its_format_cannot_raise_is_told_where_it_stops(dtype, start, level, tmp_path):
    said = told(counting(dtype, start), tmp_path, level, steps=14)
    assert said.what[:3] == ("update_loss", "aten::add_", "optimizer"), said.show()
    assert [a["id"] for a in said.first["advice"]] == ["fp32-counter"] and said.status == "warning", said.show()
    first, last = {250.0: (6, 6), 2040.0: (8, 8), 512.0: (0, 2)}[start]  # once it was seen before a step
    assert first <= said.first["step"] <= last, said.show()
    # and its twins, in fp32 or far from the limit, are silent
    assert_silent(counting(torch.float32, start), tmp_path, level, steps=14)
    assert_silent(counting(dtype, 3.0), tmp_path, level, steps=14)


class Experts(Net):
    """Its buffer is moved after each step, by a fixed amount."""

    def __init__(self, dtype=torch.bfloat16, start=5.0):
        super().__init__()
        self.register_buffer("bias", torch.full((3,), start).to(dtype))

    def forward(self, x):
        return super().forward(x) + self.bias.float()


def balance(i, net, x, y):
    with torch.no_grad():
        net.bias += 1e-3 * torch.tensor([1.0, -1.0, 1.0])


def balance_in_place(i, net, x, y):
    with torch.no_grad():
        net.bias.add_(torch.tensor([1.0, -1.0, -1.0]), alpha=1e-3)


@torch.no_grad()
def balance_before(i, net, opt, x):
    net.bias.sub_(x.sign().mean(0)[:3].abs().clamp(min=0.01).clamp(max=0.01))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("hooks", [{"after": balance}, {"after": balance_in_place}, {"before": balance_before}])
def test_a_buffer_whose_updates_are_all_lost_is_told(hooks, level, tmp_path):
    said = told(classifier(model=Experts, **hooks), tmp_path, level, steps=9)
    assert said.what[0] == "update_loss" and said.first["module"] == "bias", said.show()
    assert [a["id"] for a in said.first["advice"]] == ["fp32-buffer"] and said.status == "warning", said.show()
    assert_silent(classifier(model=lambda: Experts(torch.float32), **hooks), tmp_path, level, steps=9)
    assert_silent(classifier(model=lambda: Experts(start=0.0), **hooks), tmp_path, level, steps=9)


class Adapted(nn.Module):
    def __init__(self, dtype=torch.bfloat16):
        super().__init__()
        self.base = nn.Parameter(torch.randn(3, 6).to(dtype), requires_grad=False)
        self.a, self.b = nn.Parameter(torch.randn(2, 6) * 0.01), nn.Parameter(torch.zeros(3, 2))

    def forward(self, x):
        return x @ self.base.float().T + (x @ self.a.T) @ self.b.T


def merged(dtype, when, scale=1.0):
    @torch.no_grad()
    def merge(i, net, x, y):
        if i == when:
            net.base += (scale * net.b @ net.a).to(net.base.dtype)

    return classifier(after=merge, model=lambda: Adapted(dtype))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("when", [2, 8, 11])  # the last: nothing comes after it
def test_an_adapter_that_is_lost_in_the_weights_it_is_merged_into_is_told(when, level, tmp_path):
    said = told(merged(torch.bfloat16, when), tmp_path, level, steps=12)
    assert said.what[:2] == ("update_loss", "aten::add_") and said.first["module"] == "base", said.show()
    assert [a["id"] for a in said.first["advice"]] == ["fp32-merge"] and said.status == "warning", said.show()
    assert_silent(merged(torch.float32, when), tmp_path, level, steps=12)
    assert_silent(merged(torch.bfloat16, when, scale=1e5), tmp_path, level, steps=12)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("optimizer", [torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop])
def test_what_an_optimizer_makes_for_one_update_is_no_counter(optimizer, level, tmp_path):
    def build():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1)).bfloat16()  # a bias of one element
        opt = optimizer(net.parameters(), lr=1e-2)

        def step(i):
            x = torch.randn(32, 6, dtype=torch.bfloat16)
            opt.zero_grad()
            (net(x) - x.sum(1, keepdim=True)).square().mean().backward()  # PyTorch 2.4 has no mse_loss in bf16
            opt.step()

        return step, net, opt

    said = told(build, tmp_path, level, steps=10)
    assert not any("counter" in title for _, title in said.loud), said.show()


class Coded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 32), nn.Linear(32, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.tanh(self.first(x)))


def coding(weight):
    """The loss is computed in fp32, outside of autocast, and weighs little."""

    def build():
        torch.manual_seed(0)
        net = Coded()
        opt = torch.optim.Adam(net.parameters(), 1e-3)

        def step(i):
            x = torch.randn(64, 6)
            with torch.autocast("cpu", dtype=torch.float16):
                out = net(x)
            opt.zero_grad()
            (weight * (out.float() - x).square().mean()).backward()
            opt.step()

        return step, net, opt

    return build


@pytest.mark.parametrize("level", LEVELS)
def test_gradients_that_all_become_0_in_fp16_are_told_though_no_number_is_bad(level, tmp_path):
    said = told(coding(1e-7), tmp_path, level, steps=12)
    assert said.status == "fault" and said.what[:3:2] == ("underflow", "backward"), said.show()
    assert [a["id"] for a in said.first["advice"]][0] == "loss-scaling", said.show()
    # Its twin weighs as much as others. That it has no loss scaler is said of both.
    twin = told(coding(1.0), tmp_path, level, steps=12)
    assert twin.status == "warning" and [kind for kind, _ in twin.loud] == ["api_misuse"], twin.show()


class Sign(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.sign()

    @staticmethod
    def backward(ctx, slope):
        return slope


def binary(act):
    return classifier(model=lambda: nn.Sequential(nn.Linear(6, 8), act(), nn.Linear(8, 3), act()))


class Plain(nn.Module):
    def forward(self, x):
        return x.sign()


class StraightThrough(nn.Module):
    def forward(self, x):
        return Sign.apply(x)


@pytest.mark.parametrize("level", LEVELS)
def test_gradients_that_are_all_0_for_long_are_a_warning(level, tmp_path):
    said = told(binary(Plain), tmp_path, level, steps=20)
    assert said.status == "warning" and [one[0] for one in said.loud] == ["update_loss"], said.show()
    assert "every gradient is exactly 0, in the last 20 steps" in said.first["title"], said.show()
    assert said.first["advice"][0]["id"] == "let-gradients-through", said.show()
    assert_silent(binary(StraightThrough), tmp_path, level, steps=20)


@pytest.mark.parametrize("level", LEVELS)
def test_gradients_that_are_0_where_the_loss_is_0_are_clean(level, tmp_path):
    def step(i, net, opt):
        opt.zero_grad()
        F.relu(net(data()[0]) - 1e3).mean().backward()  # a margin that is met
        opt.step()

    assert_silent(loop(step), tmp_path, level, steps=20)


def units(bias):
    """Units that are given no number above 0 are dead."""

    def build():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
        with torch.no_grad():
            net[0].bias.fill_(bias)
        opt = torch.optim.SGD(net.parameters(), lr=1e-2)

        def step(i):
            x, y = data()
            opt.zero_grad()
            F.cross_entropy(net(x), y).backward()
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            opt.step()

        return step, net, opt

    return build


def test_gradients_of_most_parameters_that_are_0_for_long_are_information(tmp_path):
    said = told(units(-1e3), tmp_path, "live", steps=24)
    assert said.status == "clean" and not said.loud, said.show()
    assert said.first["title"] == "The gradients of 3 of 4 parameters are exactly 0, in the last 16 steps", said.show()
    assert not told(units(0.1), tmp_path, "live", steps=24).run.report["findings"]
