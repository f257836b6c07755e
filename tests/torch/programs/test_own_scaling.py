# SPDX-License-Identifier: Apache-2.0
"""Loss scalers as programs write them themselves, known by what they do: calibration is no fault, a hopeless scale
is."""

from __future__ import annotations

import json
import math
import subprocess
from contextlib import contextmanager

import nanhunt
import pytest
import torch
from hunting import cli, needs_cli
from listening import shows_saved
from own_programs import LEVELS, assert_silent, data, told
from own_scalers import Half, Masters, Own, own
from torch import nn
from torch.nn import functional as F


class ByInverse(Own):
    def divide(self, parameters):
        torch._foreach_mul_([p.grad for p in parameters], 1.0 / self.scale)


class ByKernel(Own):
    """As `torch.amp` does it, without its class."""

    def step(self, opt, parameters):
        found, inverse = torch.zeros(1), torch.tensor([1.0 / self.scale])
        torch._amp_foreach_non_finite_check_and_unscale_([p.grad for p in parameters], found, inverse)
        if found.item():
            self.scale /= 2
            return False
        opt.step()
        return True


class ByNorm(Own):
    """Its overflow test sums squares up in fp16, which overflow where the gradients do not."""

    def is_bad(self, parameters):
        total = sum((p.grad.half() ** 2).sum() for p in parameters)
        return not math.isfinite(total.item())


CALIBRATING = {
    "plain": own(lambda: Own(2.0**24)),
    "a tensor": own(lambda: Own(2.0**24, as_tensor=True)),
    "by its inverse": own(lambda: ByInverse(2.0**24)),
    "by PyTorch's kernel": own(lambda: ByKernel(2.0**24)),
    "cleared at once": own(lambda: Own(2.0**24), steps_clear_after=True),
}


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", CALIBRATING)
def test_a_scale_that_finds_its_size_is_no_fault(name, level, tmp_path):
    said = told(CALIBRATING[name], tmp_path, level, steps=16)
    assert said.status in ("calibrating", "clean") and not said.loud, said.show()
    assert said.first["class"] == "scaler_calibration", said.show()
    assert said.run.report["scaler"]["skipped"] >= 2, said.run.report["scaler"]


@needs_cli
@pytest.mark.parametrize("level", LEVELS)
def test_what_an_own_scaler_did_can_be_dumped(level, tmp_path):
    told(CALIBRATING["plain"], tmp_path, level, steps=16)
    said = subprocess.run([cli(), "dump", tmp_path / "run", "--kind", "scaler", "--json"], capture_output=True,
                          text=True, check=True, timeout=600)
    rows = [json.loads(line) for line in said.stdout.splitlines()]
    scales = [row["scale"] for row in rows]
    assert scales[0] == 2.0**24 and sorted(scales, reverse=True) == scales
    if level == "ops" or shows_saved():
        assert len(set(scales)) >= 3, rows
    else:
        assert any("does not show it" in note for note in nanhunt.load(tmp_path / "run").unwatched)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", CALIBRATING)
def test_healthy_own_scaling_is_silent(name, level, tmp_path):
    make = {
        "plain": Own,
        "a tensor": lambda s: Own(s, as_tensor=True),
        "by its inverse": ByInverse,
        "by PyTorch's kernel": ByKernel,
        "cleared at once": Own,
    }[name]
    assert_silent(own(lambda: make(1024.0), steps_clear_after=name == "cleared at once"), tmp_path, level)


@pytest.mark.parametrize("level", LEVELS)
def test_a_scale_that_falls_without_end_is_hopeless(level, tmp_path):
    def build(cured):
        return own(lambda: Own(16.0), bad=lambda i: 1.0 if cured or i < 4 else math.nan)

    said = told(build(False), tmp_path, level, steps=24)
    assert said.status == "fault", said.show()
    assert {"scaler_collapse", "invalid"} & {said.first["class"]}, said.show()
    assert_silent(build(True), tmp_path, level, steps=24)


@pytest.mark.parametrize("level", LEVELS)
def test_a_run_that_only_ever_skips_is_a_fault(level, tmp_path):
    def build(scale):
        return own(lambda: Own(scale, dynamic=False))

    said = told(build(2.0**24), tmp_path, level, steps=16)
    assert said.status == "fault" and said.first["class"] == "overflow", said.show()
    assert said.first["phase"] == "backward", said.show()
    assert_silent(build(1024.0), tmp_path, level, steps=16)


@pytest.mark.parametrize("level", LEVELS)
def test_bad_gradients_that_are_kept_after_a_skip_are_found(level, tmp_path):
    def build(clears):
        return own(lambda: Own(1024.0, clears=clears), bad=lambda i: 1e6 if i == 3 else 1.0, steps_clear_after=True)

    said = told(build(False), tmp_path, level, steps=10)
    assert "api_misuse" in [cls for cls, _ in said.loud] and said.status == "fault", said.show()
    fixed = told(build(True), tmp_path, level, steps=10)
    assert fixed.status in ("clean", "calibrating") and not fixed.loud, fixed.show()


@pytest.mark.parametrize("level", LEVELS)
def test_an_overflow_test_that_overflows_itself_is_named(level, tmp_path):
    def build(make):
        return own(lambda: make(2.0**14, dynamic=False))

    said = told(build(ByNorm), tmp_path, level, steps=10)
    assert said.status == "fault" and said.first["class"] == "overflow", said.show()
    assert said.first["phase"] == "clip" and said.first["op"] in ("aten::pow", "aten::sum"), said.show()
    assert_silent(build(Own), tmp_path, level, steps=10)


@pytest.mark.parametrize("level", LEVELS)
def test_a_program_that_skips_its_nan_by_design_and_learns_is_warned(level, tmp_path):
    def build(bad):
        return own(lambda: Own(1.0, dynamic=False), bad=lambda i: math.nan if bad and i == 3 else 1.0)

    said = told(build(True), tmp_path, level, steps=10)
    assert said.status == "warning", said.show()
    assert_silent(build(False), tmp_path, level, steps=10)


def half_loss(scale, dynamic=True):
    """The loss is stored in fp16, and so is what the scale makes of it."""

    def build():
        net = Half()
        its = Masters(net)
        state = {"scale": scale}

        def step(i):
            x, y = data()
            net.zero_grad()
            (F.cross_entropy(net(x), y).half() * state["scale"]).backward()
            if all(bool(torch.isfinite(p.grad).all()) for p in net.parameters()):
                its.take(state["scale"])
                its.opt.step()
                its.give()
            elif dynamic:
                state["scale"] /= 2

        return step, net, its.opt

    return build


@pytest.mark.parametrize("level", LEVELS)
def test_a_scaled_loss_that_leaves_its_format_is_calibrated_away_or_never_fits(level, tmp_path):
    said = told(half_loss(2.0**19), tmp_path, level, steps=16)
    assert said.status == "calibrating" and not said.loud, said.show()
    assert said.what[:3] == ("scaler_calibration", "aten::mul", "scale"), said.show()
    stays = told(half_loss(2.0**19, dynamic=False), tmp_path, level, steps=16)
    assert stays.status == "fault" and stays.what[:3] == ("overflow", "aten::mul", "scale"), stays.show()
    assert_silent(half_loss(1024.0), tmp_path, level, steps=16)


class Clipping(Own):
    """Clips gradients to a norm of 1, before or after it divides them."""

    def __init__(self, clip, late):
        super().__init__(1024.0)
        self.clip, self.late = clip, late

    def divide(self, parameters):
        if not self.late:
            self.clip(parameters)
        super().divide(parameters)
        if self.late:
            self.clip(parameters)


def clip_by_call(parameters):
    nn.utils.clip_grad_norm_(parameters, 1.0)


def clip_by_hand(parameters):
    total = torch.sqrt(sum((p.grad**2).sum() for p in parameters))
    factor = torch.clamp(1.0 / (total + 1e-6), max=1.0)
    for p in parameters:
        p.grad.mul_(factor)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("clip", [clip_by_call, clip_by_hand])
def test_clipping_before_its_own_unscaling_is_misuse(clip, level, tmp_path):
    said = told(own(lambda: Clipping(clip, late=False)), tmp_path, level)
    assert said.status == "fault" and said.first["class"] == "api_misuse", said.show()
    assert said.first["phase"] == "clip" and "clipped before they are unscaled" in said.first["title"], said.show()
    assert "unscale-before-clip" in [a["id"] for a in said.first["advice"]]
    assert_silent(own(lambda: Clipping(clip, late=True)), tmp_path, level)


@pytest.mark.parametrize("level", LEVELS)
def test_a_run_that_ends_with_a_step_that_its_own_scaler_skips_is_no_fault(level, tmp_path):
    last = own(lambda: Own(2.0**14), bad=lambda i: 1e6 if i in (1, 19) else 1.0)
    said = told(last, tmp_path, level, steps=20)
    assert said.status in ("calibrating", "inconclusive") and not said.loud, said.show()


# Programs as the libraries are used: fp16 layers, fp32 masters.
def apex(scale, bad):
    """amp.scale_loss: the loss in fp32 times the scale; on the way out gradients are taken and the scale updated."""

    def build():
        net = Half()
        its = Masters(net)
        state = {"scale": scale, "skip": False, "clean": 0}

        @contextmanager
        def scale_loss(loss):
            yield loss.float() * state["scale"]
            its.take(state["scale"])
            total = sum(float(p.grad.float().sum()) for p in net.parameters())
            state["skip"] = not math.isfinite(total)
            if state["skip"]:
                state["scale"] /= 2
                for m in its.masters:
                    m.grad = None

        def step(i):
            x, y = data()
            net.zero_grad()
            loss = F.cross_entropy(net(x), y) * bad(i)
            with scale_loss(loss) as scaled:
                scaled.backward()
            if not state["skip"]:
                its.opt.step()
                its.give()

        return step, net, its.opt

    return build


def deepspeed(scale, bad):
    """Gradients are looked at scaled; unscaling and clipping are one product; hysteresis holds the scale once."""

    def build():
        net = Half()
        its = Masters(net)
        state = {"scale": scale, "hysteresis": 2}

        def step(i):
            x, y = data()
            loss = F.cross_entropy(net(x), y) * bad(i)
            (loss.float() * state["scale"]).backward()
            norms = [p.grad.float().norm() for p in net.parameters()]
            total = torch.stack(norms).norm()
            if not math.isfinite(total.item()):
                if state["hysteresis"] > 1:
                    state["hysteresis"] -= 1
                else:
                    state["scale"] = max(state["scale"] / 2, 1.0)
                net.zero_grad()
                return
            combined = state["scale"]
            if total.item() / state["scale"] > 1e3:
                combined = total.item() / 1e3
            for m, p in zip(its.masters, net.parameters(), strict=True):
                m.grad = p.grad.float().mul_(1.0 / combined)
            its.opt.step()
            its.give()
            net.zero_grad()

        return step, net, its.opt

    return build


def fastai(scale, bad):
    """The optimizer is called on a skip as well, without gradients."""

    def build():
        net = Half()
        its = Masters(net)
        state = {"scale": scale}

        def step(i):
            x, y = data()
            loss = F.cross_entropy(net(x), y) * bad(i)
            (loss * state["scale"]).backward()
            if any(not math.isfinite(float(p.grad.float().sum())) for p in net.parameters()):
                state["scale"] /= 2
                net.zero_grad()
            else:
                its.take(state["scale"])
                net.zero_grad()
            its.opt.step()
            its.opt.zero_grad()
            its.give()

        return step, net, its.opt

    return build


def patched(scale, bad):
    """Apex's amp at O2: a step that is to be skipped is one call of `optimizer.step` that does nothing; masters are
    given back all the same."""

    def build():
        net = Half()
        its = Masters(net)
        state = {"scale": scale}

        def skip(*args, **kwargs):
            del its.opt.step

        def step(i):
            x, y = data()
            for p in net.parameters():
                p.grad = None
            loss = F.cross_entropy(net(x), y).float() * bad(i)
            (loss * state["scale"]).backward()
            finite = all(bool(torch.isfinite(p.grad).all()) for p in net.parameters())
            its.take(state["scale"])
            if not finite:
                state["scale"] /= 2
                its.opt.step = skip
            its.opt.step()
            its.give()

        return step, net, its.opt

    return build


LIBRARIES = {"Apex": apex, "Apex by a patched step": patched, "DeepSpeed": deepspeed, "fastai": fastai}


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", LIBRARIES)
def test_loops_of_the_libraries_calibrate_and_break_as_with_gradscaler(name, level, tmp_path):
    loop = LIBRARIES[name]
    calibrates = told(loop(2.0**22, lambda i: 1.0), tmp_path, level, steps=20)
    assert calibrates.status in ("calibrating", "clean") and not calibrates.loud, calibrates.show()
    breaks = told(loop(1024.0, lambda i: math.nan if i >= 3 else 1.0), tmp_path, level, steps=24)
    assert breaks.status == "fault", breaks.show()
    assert_silent(loop(1024.0, lambda i: 1.0), tmp_path, level, steps=10)
