# SPDX-License-Identifier: Apache-2.0
"""Kernels that a program launches past PyTorch's dispatcher, as by Triton. Here a stand-in of the tests' own, which
launches as Triton does and computes with NumPy: what it writes PyTorch does not hear of."""

from __future__ import annotations

import functools
import inspect
import sys
import types

import numpy as np
import pytest
import torch
from own_programs import assert_silent, told
from torch import nn

BAD, STEPS = 3, 6
HUGE = 3e38


class JITFunction:
    def __init__(self, fn):
        self.fn = fn

    def __getitem__(self, grid):
        return functools.partial(self.run, grid=grid, warmup=False)

    def run(self, *args, grid, warmup, **kwargs):
        with np.errstate(all="ignore"):
            self.fn(*(a.detach().numpy() if isinstance(a, torch.Tensor) else a for a in args), **kwargs)


@pytest.fixture(autouse=True)
def triton(monkeypatch):
    """As it is imported by the program."""
    jit = types.ModuleType("triton.runtime.jit")
    jit.JITFunction = JITFunction
    monkeypatch.setitem(sys.modules, "triton.runtime.jit", jit)


@JITFunction
def scale(x, out, by):
    np.multiply(x, np.float32(by), out=out)


@JITFunction
def scale_in_place(x, by):
    x *= np.float32(by)


@JITFunction
def weighted(x, weight, out):
    np.multiply(x, weight, out=out)


@JITFunction
def descend(parameter, gradient, rate):
    parameter -= np.float32(rate) * gradient


@JITFunction
def adam(parameter, gradient, m, v, rate):
    m += np.float32(0.1) * (gradient - m)
    v += np.float32(0.01) * (gradient * gradient - v)
    parameter -= np.float32(rate) * m / (np.sqrt(v) + np.float32(1e-8))


@JITFunction
def refuse(x):
    raise ValueError("no such kernel")


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, by):
        out = torch.empty_like(x)
        scale[(1,)](x, out, by)  # HERE
        return out

    @staticmethod
    def backward(ctx, g):
        out = torch.empty_like(g)
        scale[(1,)](g, out, 1.0)
        return out, None


class ScaledInPlace(Scaled):
    @staticmethod
    def forward(ctx, x, by):
        y = x.clone()
        scale_in_place[(1,)](y, by)  # HERE
        return y


class Weighted(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        out = torch.empty_like(x)
        weighted[(1,)](x, weight, out)
        return out

    @staticmethod
    def backward(ctx, g):
        x, weight = ctx.saved_tensors
        return g * weight, (g * x).sum(0)


class Descent(torch.optim.Optimizer):
    """Each parameter by one launch."""

    def __init__(self, parameters, lr=1e-3):
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                descend[(1,)](p, p.grad, group["lr"])  # HERE


class OwnAdam(Descent):
    """With its state in one kernel."""

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state.update(m=torch.zeros_like(p), v=torch.zeros_like(p))
                adam[(1,)](p, p.grad, state["m"], state["v"], group["lr"])  # HERE


def line_of(kind):
    lines, first = inspect.getsourcelines(kind)
    return first + next(n for n, line in enumerate(lines) if "# HERE" in line)


class Net(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.first, self.last, self.function = nn.Linear(6, 8), nn.Linear(8, 3), function

    def forward(self, x, by):
        return self.last(self.function.apply(self.first(x), by))


def training(function, bad, spoil=lambda x: x, optimizer=torch.optim.SGD):
    def build():
        torch.manual_seed(0)
        net = Net(function)
        opt = optimizer(net.parameters(), lr=1e-3)

        def step(i):
            opt.zero_grad()
            x = torch.randn(4, 6)
            net(spoil(x * 10) if i == bad else x, HUGE if i == bad else 1.0).square().mean().backward()
            opt.step()

        return step, net, opt

    return build


@pytest.mark.parametrize("level", ["live", "ops"])
@pytest.mark.parametrize("function", [Scaled, ScaledInPlace])
def test_a_kernel_that_makes_something_bad_is_named_with_the_line_that_launches_it(function, level, tmp_path):
    said = told(training(function, BAD), tmp_path / "bad", level, STEPS)
    kernel = "scale" if function is Scaled else "scale_in_place"
    assert said.what[:3] == ("unseen_kernel", f"triton::{kernel}", "forward"), said.show()
    assert said.first["step"] == BAD and len(said.loud) == 1, said.show()
    assert said.first["call_site"].endswith(f"test_launched_kernels.py:{line_of(function)}"), said.first["call_site"]
    assert_silent(training(function, None), tmp_path / "twin", level, STEPS)


def test_a_kernel_is_not_blamed_for_what_it_was_given(tmp_path):
    said = told(training(Scaled, BAD, spoil=lambda x: (x - x.amax()).log()), tmp_path, "live", STEPS)
    assert said.what[:2] == ("invalid", "aten::log"), said.show()


def test_weights_that_a_kernel_reads_count_as_read(tmp_path):
    class Gain(nn.Module):
        def __init__(self):
            super().__init__()
            self.gain = nn.Parameter(torch.ones(6))

        def forward(self, x, by):
            return Weighted.apply(x, self.gain) * by

    def build(bad=BAD):
        torch.manual_seed(0)
        net = Gain()
        opt = torch.optim.SGD(net.parameters(), lr=1e-3)

        def step(i):
            opt.zero_grad()
            net(torch.randn(4, 6) * 10, HUGE if i == bad else 1.0).square().mean().backward()
            opt.step()

        return step, net, opt

    said = told(build, tmp_path / "bad", "live", STEPS)
    assert said.what[:2] == ("overflow", "aten::mul") and said.first["step"] == BAD, said.show()
    assert_silent(lambda: build(None), tmp_path / "twin", "live", STEPS)


@pytest.mark.parametrize("level", ["live", "ops"])
@pytest.mark.parametrize("optimizer", [Descent, OwnAdam])
def test_an_optimizer_that_launches_kernels_writes_parameters(optimizer, level, tmp_path):
    def build(bad=BAD):
        step, net, opt = training(Scaled, None, optimizer=optimizer)()

        def spoilt(i):
            opt.param_groups[0]["lr"] = 1e39 if i == bad else 1e-3
            step(i)

        return spoilt, net, opt

    said = told(build, tmp_path / "bad", level, STEPS)
    kernel = "triton::descend" if optimizer is Descent else "triton::adam"
    assert said.what[:3] == ("unseen_kernel", kernel, "optimizer") and len(said.loud) == 1, said.show()
    assert said.first["call_site"].endswith(f"test_launched_kernels.py:{line_of(optimizer)}"), said.first["call_site"]
    assert_silent(lambda: build(None), tmp_path / "twin", level, STEPS)


def test_weights_that_a_kernel_updates_by_hand_end_a_step(tmp_path):
    def build(bad=BAD):
        torch.manual_seed(0)
        net = Net(Scaled)

        def step(i):
            net(torch.randn(4, 6), 1.0).square().mean().backward()
            for p in net.parameters():
                descend[(1,)](p.data, p.grad, 1e39 if i == bad else 1e-3)
                p.grad = None

        return step, net, None

    said = told(build, tmp_path / "bad", "live", STEPS)
    assert said.what[:2] == ("unseen_kernel", "triton::descend") and said.first["step"] == BAD, said.show()
    twin = told(lambda: build(None), tmp_path / "twin", "live", STEPS)
    assert twin.status == "clean" and twin.run.report["coverage"]["steps"] == STEPS, twin.show()


@pytest.mark.parametrize("level", ["live", "ops"])
@pytest.mark.parametrize("tail", [0.0, float("nan")])
def test_memory_that_kernels_write_over_from_step_to_step_is_no_data(tail, level, tmp_path):
    """A workspace, whose tail nothing reads."""

    def build(bad=BAD):
        torch.manual_seed(0)
        net, work = nn.Linear(6, 8), torch.full((64,), tail)
        opt = torch.optim.SGD(net.parameters(), lr=1e-3)

        def step(i):
            opt.zero_grad()
            h = net(torch.randn(4, 6) * (10 if i == bad else 1))
            scale[(1,)](h.detach().reshape(-1), work[:32], HUGE if i == bad else 1.0)
            (h * work[:32].reshape(4, 8)).square().mean().backward()
            opt.step()

        return step, net, opt

    said = told(build, tmp_path / "bad", level, STEPS)
    assert said.what[:2] == ("unseen_kernel", "triton::scale") and said.first["step"] == BAD, said.show()
    assert_silent(lambda: build(None), tmp_path / "twin", level, STEPS)


def test_a_mask_that_a_kernel_reads_is_not_what_it_made(tmp_path):
    def build(bad=BAD):
        step, net, opt = training(Scaled, None)()
        mask = torch.full((4, 8), float("-inf"))

        def masked(i):
            weighted[(1,)](mask, torch.ones(8), torch.empty(4, 8))
            opt.zero_grad()
            x = torch.randn(4, 6) * (HUGE if i == bad else 1.0)
            net(x * 10, 1.0).square().mean().backward()
            opt.step()

        return masked, net, opt

    said = told(build, tmp_path / "bad", "live", STEPS)
    assert said.what[:2] == ("overflow", "aten::mul") and len(said.loud) == 1, said.show()
    assert_silent(lambda: build(None), tmp_path / "twin", "live", STEPS)


def test_a_launch_that_raises_raises_into_the_program_and_the_watch_goes_on(tmp_path):
    def build():
        step, net, opt = training(Scaled, BAD)()

        def refused(i):
            with pytest.raises(ValueError, match="no such kernel"):
                refuse[(1,)](torch.ones(2))
            step(i)

        return refused, net, opt

    said = told(build, tmp_path, "live", STEPS)
    assert said.what[:2] == ("unseen_kernel", "triton::scale") and len(said.loud) == 1, said.show()
