# SPDX-License-Identifier: Apache-2.0
"""Loss scalers as programs write them themselves: what goes wrong in later steps, and forms of scaling, clipping and
unscaling."""

from __future__ import annotations

import math

import pytest
import torch
from listening import needs_saved_shown
from own_programs import LEVELS, Net, assert_silent, data, told
from own_scalers import Half, Masters, Own, own
from torch import nn
from torch.nn import functional as F

LATE = 12


class Loud(Net):
    """From one step on its hidden numbers pass fp16."""

    bad_from, calls = LATE, 0

    def forward(self, x):
        hidden = torch.tanh(self.first(x)).half()
        self.calls += 1
        if self.calls > self.bad_from:
            hidden = hidden * (60000.0 / hidden.detach().abs().max()) * 2.0
        return self.last(hidden.float())


class Sound(Loud):
    bad_from = 1000


class Scalar(Own):
    """Its scale is a tensor of one number, which is halved in place."""

    def __init__(self, scale):
        super().__init__(torch.tensor(scale))

    def of(self, loss):
        return self.scale * loss

    def step(self, opt, parameters):
        if self.is_bad(parameters):
            self.scale.div_(2)
            return
        self.divide(parameters)
        opt.step()


class Given(Own):
    """Backward begins with its scale."""

    def of(self, loss):
        self.loss = loss
        return self

    def backward(self):
        self.loss.backward(gradient=torch.tensor(self.scale))


class GivenByCall(Given):
    def backward(self):
        torch.autograd.backward(self.loss, grad_tensors=torch.tensor(self.scale))


class Mean(Own):
    """The scaled loss is divided by a number of micro-batches."""

    def of(self, loss):
        return (loss * self.scale) / 4


MAKES = {"float": Own, "kept": Scalar, "made": lambda scale: Own(scale, as_tensor=True), "given": Given,
         "given by call": GivenByCall, "averaged": Mean}  # fmt: skip


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("make", MAKES.values(), ids=MAKES)
def test_a_scale_that_falls_without_end_has_collapsed(make, level, tmp_path):
    said = told(own(lambda: make(1024.0), model=Loud), tmp_path, level, steps=LATE + 26)
    assert said.status == "fault", said.show()
    assert said.what[:3] == ("scaler_collapse", "aten::mul", "forward") and said.first["step"] == LATE, said.show()
    assert "down to" in said.first["title"], said.show()
    assert_silent(own(lambda: make(1024.0), model=Sound), tmp_path, level, steps=LATE + 26)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("at", [3, LATE])
def test_gradients_kept_after_a_skip_are_told_first_whatever_the_scale_does(at, dynamic, level, tmp_path):
    def build(clears):
        scaler = lambda: Own(1024.0, dynamic=dynamic, clears=clears)  # noqa: E731
        return own(scaler, bad=lambda i: 1e6 if i == at else 1.0, steps_clear_after=True)

    said = told(build(False), tmp_path, level, steps=at + 10)
    assert said.status == "fault" and said.first["class"] == "api_misuse", said.show()
    assert said.what[1:3] == ("aten::add_", "backward") and said.first["step"] == at + 1, said.show()
    fixed = told(build(True), tmp_path, level, steps=at + 10)
    assert fixed.status in ("clean", "calibrating") and not fixed.loud, fixed.show()


class Recurrent(Net):
    """One layer is called several times: autograd adds its gradients up."""

    def forward(self, x):
        state = torch.zeros_like(x)
        for _ in range(4):
            state = torch.tanh(self.first(x + state))[:, :6]
        return self.last(torch.cat([state, state[:, :2]], 1))


@pytest.mark.parametrize("level", LEVELS)
def test_gradients_that_are_cleared_after_each_skip_are_not_kept(level, tmp_path):
    def build(scale):
        return own(lambda: Own(scale, dynamic=False), model=Recurrent)

    said = told(build(2.0**30), tmp_path, level, steps=LATE + 5)
    assert said.what[::2] == ("overflow", "backward") and said.first["step"] == 0, said.show()
    assert "api_misuse" not in [cls for cls, _ in said.loud], said.show()
    assert_silent(build(1024.0), tmp_path, level, steps=LATE + 5)


def accumulating(every, bad=lambda i: 1.0):
    """Looks at its gradients after each backward, and steps after `every(step)` of them."""

    def build():
        net = Net()
        opt = torch.optim.SGD(net.parameters(), lr=1e-3)

        def step(i):
            opt.zero_grad()
            for _ in range(every(i)):
                x, y = data()
                (F.cross_entropy(net(x), y) * bad(i) * 64.0).backward()
                assert math.isfinite(float(net.last.weight.grad.norm()))
            for p in net.parameters():
                p.grad.div_(64.0 * every(i))
            opt.step()

        return step, net, opt

    return build


@pytest.mark.parametrize("level", LEVELS)
def test_more_micro_batches_than_before_are_no_step_that_is_given_up(level, tmp_path):
    assert_silent(accumulating(lambda i: 1 if i < LATE else 3), tmp_path, level, steps=LATE + 4)


# Forms of clipping and unscaling.
def by_number(parameters):
    total = torch.stack([p.grad.norm() for p in parameters]).norm().item()
    if total > 0.5:
        for p in parameters:
            p.grad.mul_(0.5 / (total + 1e-6))


def by_squares(parameters):
    total = sum(float((p.grad**2).sum()) for p in parameters) ** 0.5
    for p in parameters:
        p.grad.mul_(min(0.5 / total, 1.0))


def by_norms(parameters):
    total = math.sqrt(sum(p.grad.norm().item() ** 2 for p in parameters))
    for p in parameters:
        p.grad = p.grad * min(0.5 / total, 1.0)


def by_division(parameters):
    total = torch.cat([p.grad.flatten() for p in parameters]).norm().item()
    torch._foreach_div_([p.grad for p in parameters], max(total / 0.5, 1.0))


class Clips(Own):
    def __init__(self, clip, late, constant=None):
        super().__init__(4096.0, dynamic=False)
        self.clip, self.late = clip, late

    def divide(self, parameters):
        if not self.late:
            self.clip(parameters)
        torch._foreach_div_([p.grad for p in parameters], self.scale)
        if self.late:
            self.clip(parameters)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("clip", [by_number, by_squares, by_norms, by_division])
def test_clipping_by_a_number_of_python_before_unscaling_is_misuse(clip, level, tmp_path):
    said = told(own(lambda: Clips(clip, late=False)), tmp_path, level)
    assert said.status == "fault" and said.first["class"] == "api_misuse", said.show()
    assert said.first["phase"] == "clip" and "clipped before they are unscaled" in said.first["title"], said.show()
    assert_silent(own(lambda: Clips(clip, late=True)), tmp_path, level)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("factor", [1 / 3, 0.9137])
def test_averaging_before_unscaling_is_no_clipping(factor, level, tmp_path):
    def average(parameters):
        norm = torch.stack([p.grad.norm() for p in parameters]).norm().item()
        assert math.isfinite(norm)
        for p in parameters:
            p.grad.mul_(factor)

    assert_silent(own(lambda: Clips(average, late=False)), tmp_path, level)


class ByRate(Own):
    """The optimizer's rate is divided by the scale instead of the gradients."""

    def divide(self, parameters): ...


@pytest.mark.parametrize("level", LEVELS)
def test_a_rate_divided_by_the_scale_is_silent_and_a_scale_that_never_fits_is_not(level, tmp_path):
    def build(scale):
        return own(lambda: ByRate(scale, dynamic=False), lr=1e-3 / scale)

    assert_silent(build(1024.0), tmp_path, level, steps=16)
    said = told(build(2.0**24), tmp_path, level, steps=16)
    assert said.status == "fault" and said.what[::2] == ("overflow", "backward"), said.show()


def fairseq(scale, bad=lambda i: 1.0, first_clip=False):
    """The norm is taken scaled, and one product unscales and clips; an overflow raises and is caught. `first_clip`: the
    scaled gradients are clipped by the call, and unscaled afterwards."""

    def build():
        net = Half()
        its = Masters(net)
        state = {"scale": scale}

        def multiply_grads(by):
            for m, p in zip(its.masters, net.parameters(), strict=True):
                m.grad = p.grad.float().mul_(by)

        def step(i):
            x, y = data()
            net.zero_grad()
            (F.cross_entropy(net(x), y).float() * bad(i) * state["scale"]).backward()
            try:
                if first_clip:
                    nn.utils.clip_grad_norm_(net.parameters(), 0.5)
                norm = torch.stack([p.grad.float().norm() for p in net.parameters()]).norm().item() / state["scale"]
                if not math.isfinite(norm):
                    state["scale"] /= 2
                    raise OverflowError(f"setting loss scale to {state['scale']}")
                by = 1.0 / state["scale"]
                multiply_grads(by if first_clip else by * min(0.5 / (norm + 1e-6), 1.0))
                its.opt.step()
                its.give()
            except OverflowError:
                net.zero_grad()

        return step, net, its.opt

    return build


@pytest.mark.parametrize("level", LEVELS)
def test_unscaling_and_clipping_in_one_product_calibrates_and_breaks(level, tmp_path):
    calibrates = told(fairseq(2.0**22), tmp_path, level, steps=20)
    assert calibrates.status in ("calibrating", "clean") and not calibrates.loud, calibrates.show()
    breaks = told(fairseq(1024.0, lambda i: math.nan if i >= LATE else 1.0), tmp_path, level, steps=LATE + 24)
    assert breaks.status == "fault" and breaks.first["step"] == LATE, breaks.show()
    assert_silent(fairseq(1024.0), tmp_path, level, steps=10)
    clipped = told(fairseq(1024.0, first_clip=True), tmp_path, level, steps=10)
    assert clipped.status == "fault" and clipped.what[:3:2] == ("api_misuse", "clip"), clipped.show()


def flat(scale, bad=lambda i: 1.0, twice=False):
    """Half layers with one flat fp32 master, as ZeRO keeps a partition. `twice`: clipped flat while still scaled."""

    def build():
        net = Half()
        parameters = list(net.parameters())
        master = torch.cat([p.detach().flatten().float() for p in parameters]).requires_grad_()
        opt = torch.optim.AdamW([master], lr=1e-3)
        state = {"scale": scale}

        def step(i):
            x, y = data()
            net.zero_grad()
            (F.cross_entropy(net(x), y).float() * bad(i) * state["scale"]).backward()
            gradient = torch.cat([p.grad.flatten() for p in parameters]).float()
            total = gradient.norm()
            if not math.isfinite(total.item()):
                state["scale"] = max(state["scale"] / 2, 2.0**-20)
                return
            if twice:
                gradient.mul_(torch.clamp(0.5 / total, max=1.0))
                gradient.mul_(1.0 / state["scale"])
            else:
                combined = max(total.item() / state["scale"] / 0.5, 1.0) * state["scale"]
                gradient.mul_(1.0 / combined)
            master.grad = gradient
            opt.step()
            with torch.no_grad():
                for p, new in zip(parameters, master.split([p.numel() for p in parameters]), strict=True):
                    p.copy_(new.view_as(p))

        return step, net, opt

    return build


@pytest.mark.parametrize("level", LEVELS)
def test_a_flat_master_calibrates_and_breaks(level, tmp_path):
    calibrates = told(flat(2.0**22), tmp_path, level, steps=20)
    assert calibrates.status in ("calibrating", "clean") and not calibrates.loud, calibrates.show()
    breaks = told(flat(1024.0, lambda i: math.nan if i >= LATE else 1.0), tmp_path, level, steps=LATE + 24)
    assert breaks.status == "fault" and breaks.first["step"] == LATE, breaks.show()
    assert_silent(flat(1024.0), tmp_path, level, steps=10)
    clipped = told(flat(1024.0, twice=True), tmp_path, level, steps=10)
    assert clipped.status == "fault" and clipped.what[:3:2] == ("api_misuse", "clip"), clipped.show()


def times(a, b):
    return a * b


@needs_saved_shown
@pytest.mark.parametrize("level", LEVELS)
def test_a_weight_in_the_loss_is_no_scale_though_one_line_multiplies_by_both(level, tmp_path):
    def build():
        net, scale = Net(), [2.0**17]
        opt = torch.optim.SGD(net.parameters(), lr=1e-3)

        def step(i):
            x, y = data()
            opt.zero_grad()
            out = net(x)
            loss = F.cross_entropy(out, y)
            if i >= 6 and i % 2:
                loss = loss + times(out.square().sum(), 0.01)
            times(loss, scale[0]).backward()
            total = sum(p.grad.sum() for p in net.parameters()) * (1e38 if i < 2 else 1.0)
            if not math.isfinite(float(total)):
                scale[0] /= 2
                return
            for p in net.parameters():
                p.grad.mul_(1 / scale[0])
            opt.step()

        return step, net, opt

    scaler = told(build, tmp_path, level, 20).run.report["scaler"]
    assert (scaler["backoffs"], scaler["growths"], scaler["final_scale"]) == (2, 0, 2.0**15), scaler


def by_none(net, opt):
    for p in net.parameters():
        p.grad = None


def by_hand(net, opt):
    for p in net.parameters():
        if p.grad is not None:
            p.grad.zero_()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("clear", [by_none, by_hand, lambda net, opt: opt.zero_grad(set_to_none=False)])
def test_all_steps_that_were_given_up_are_counted_however_gradients_are_cleared(clear, level, tmp_path):
    def build(bad_from=10):
        net, scale = Net(), [2.0**12]
        opt = torch.optim.SGD(net.parameters(), lr=1e-3)

        def step(i):
            x, y = data()
            clear(net, opt)
            out = net(x)
            loss = F.cross_entropy(out, y)
            if i >= bad_from:
                off = out - out.detach()
                loss = loss + (off * off).sum().sqrt()
            (loss * scale[0]).backward()
            if not all(bool(torch.isfinite(p.grad).all()) for p in net.parameters()):
                scale[0] /= 2
                return
            for p in net.parameters():
                p.grad.mul_(1 / scale[0])
            opt.step()

        return step, net, opt

    said = told(build, tmp_path / "bad", level, 40)
    steps = said.first["bad_steps"]
    assert (steps["count"], steps["first_step"], steps["last_step"]) == (30, 10, 39), steps
    assert len(said.loud) == 1, said.show()
    assert said.what[1:3] == ("aten::div", "backward"), said.show()
    assert_silent(lambda: build(100), tmp_path / "twin", level, 12)
