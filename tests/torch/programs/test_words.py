# SPDX-License-Identifier: Apache-2.0
"""What a report says of a program is true of it: its advice, its counts, where harm arrived, what was seen."""

from __future__ import annotations

import math
import subprocess

import pytest
import torch
from hunting import cli
from own_programs import LEVELS, Net, Told, assert_silent, classifier, data, loop, told
from own_scalers import Own, own
from torch import nn
from torch.nn import functional as F


def advice(said: Told) -> list[str]:
    return [a["id"] for a in said.first["advice"]]


def averaged(dtype, decay=0.99999):
    def build():
        model = Net()
        opt = torch.optim.SGD(model.parameters(), lr=1e-3)
        shadow = [p.detach().clone().to(dtype) for p in model.parameters()]

        def step(i):
            x, y = data()
            opt.zero_grad()
            F.cross_entropy(model(x), y).backward()
            opt.step()
            with torch.no_grad():
                for s, p in zip(shadow, model.parameters(), strict=True):
                    s.mul_(decay).add_(p.detach().to(dtype), alpha=1 - decay)

        return step, model, opt, shadow

    return build


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_an_average_that_16_bits_lose_is_to_be_kept_in_fp32_and_has_its_line(dtype, level, tmp_path):
    # Given weights in fp32 and their average in 16 bits
    said = told(averaged(dtype), tmp_path, level, steps=24)
    # then the average is what to change, and its first write counts: it comes after the first optimizer step
    assert said.what[0] == "update_loss" and advice(said) == ["fp32-average"], said.show()
    assert "test_words.py" in said.first["call_site"] and said.first["step"] == 1, said.show()
    assert_silent(averaged(torch.float32), tmp_path, level, steps=24)


@pytest.mark.parametrize("level", LEVELS)
def test_the_first_op_of_an_average_is_an_update(level, tmp_path):
    said = told(averaged(torch.float32, math.nan), tmp_path, level)
    assert said.what[1:3] == ("aten::mul_", "update"), said.show()
    assert_silent(averaged(torch.float32), tmp_path, level)


def weights_of(dtype):
    def build():
        torch.manual_seed(0)
        net = Net().to(dtype)
        opt = torch.optim.SGD(net.parameters(), lr=1e-2)

        def step(i):
            x, y = data()
            opt.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                out = net(x)
            F.cross_entropy(out.float(), y).backward()
            opt.step()

        return step, net, opt

    return build


@pytest.mark.parametrize("level", LEVELS)
def test_a_cast_to_bf16_is_not_called_half(level, tmp_path):
    said = told(weights_of(torch.bfloat16), tmp_path, level)
    texts = [a["text"] for f in said.run.report["findings"] for a in f["advice"] if a["id"] == "no-manual-half"]
    assert texts and ".bfloat16()" in texts[0] and "half" not in texts[0], texts
    assert_silent(weights_of(torch.float32), tmp_path, level)


@pytest.mark.parametrize("level", LEVELS)
def test_no_scale_is_recommended_that_was_not_seen_to_hold(level, tmp_path):
    def scaled(bad):
        def build():
            net = Net()
            opt = torch.optim.SGD(net.parameters(), lr=1e-3)
            scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)

            def step(i):
                x, y = data()
                opt.zero_grad()
                with torch.autocast("cpu", torch.float16):
                    out = net(x)
                scaler.scale(F.cross_entropy(out.float(), y) * (math.nan if bad and i >= 4 else 1)).backward()
                scaler.step(opt)
                scaler.update()

            return step, net, opt

        return build

    for bad in (False, True):
        said = told(scaled(bad), tmp_path / str(bad), level, steps=20)
        assert said.status == ("fault" if bad else "clean"), said.show()
        assert said.run.report["scaler"]["recommended_init_scale"] is None


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("bad", [math.nan, 1e38])
def test_steps_that_its_own_scaler_skips_at_the_end_are_all_counted(bad, level, tmp_path):
    said = told(own(lambda: Own(2.0**16), bad=lambda i: bad if i >= 7 else 1.0), tmp_path, level, steps=24)
    assert said.run.report["scaler"]["skipped"] == 17, said.show()
    assert said.run.report["scaler"]["points"][-1]["skipped"]
    if bad == 1e38:  # the product with the scale overflows: a lower one may do, whether each step was kept or not
        assert said.status == "inconclusive" and not said.loud, said.show()
    twin = told(own(lambda: Own(256.0)), tmp_path, level, steps=24)
    assert twin.run.report["scaler"]["skipped"] == 0, twin.show()
    # and the loss is what the model lost, without its scale
    assert all(abs(step["loss"]) < 16 for step in twin.run.report["timeline"]["steps"])


def at_zero(op, zero=True, scale=1.0, steps=(5, 6)):
    """`op` of numbers that are exactly 0 in these steps."""

    def build():
        torch.manual_seed(0)
        net = Net()
        opt = torch.optim.SGD(net.parameters(), lr=1e-3)
        scaler = torch.amp.GradScaler("cpu", init_scale=scale, enabled=scale != 1)

        def step(i):
            x, y = data()
            opt.zero_grad()
            out = net(x)
            z = out - out.detach() if zero and i in steps else out * 0 + 1
            scaler.scale(F.cross_entropy(out, y) + 1e-3 * op(z).mean()).backward()
            scaler.step(opt)
            scaler.update()

        return step, net, opt

    return build


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("scale", [1.0, 2.0])
@pytest.mark.parametrize("op", [lambda z: 1 / z, torch.log, torch.sqrt])
def test_bf16_is_no_cure_of_a_pole(op, scale, level, tmp_path):
    said = told(at_zero(op, scale=scale, steps=(5, 6, 7)), tmp_path, level, steps=12)
    assert said.status in ("fault", "warning"), said.show()
    assert not [a for f in said.run.report["findings"] for a in f["advice"] if a["id"] == "bf16"], said.show()
    assert_silent(at_zero(op, zero=False, scale=scale), tmp_path, level, steps=12)


DERIVATIVES = {
    "sqrt": (torch.sqrt, "aten::div", "0"),
    "acosh": (lambda z: torch.acosh(z + 1), "aten::rsqrt", "1"),
}


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", DERIVATIVES)
def test_what_autograd_computes_is_told_as_the_derivative_of_the_function_of_the_line(name, level, tmp_path):
    op, made_by, pole = DERIVATIVES[name]
    said = told(at_zero(op), tmp_path, level, steps=8)
    assert said.what[1:3] == (made_by, "backward"), said.show()
    assert f": the derivative of {name} is infinite at {pole}" in said.first["title"], said.show()
    assert said.first["part_of"] == f"the derivative of {name}", said.show()
    assert_silent(at_zero(op, zero=False), tmp_path, level, steps=8)


def with_determinant(sign):
    def build():
        net = Net()
        opt = torch.optim.SGD(net.parameters(), lr=1e-3)

        def step(i):
            x, y = data()
            opt.zero_grad()
            loss = F.cross_entropy(net(x), y) + torch.logdet(torch.diag(torch.tensor([sign, 1.0])))
            loss.backward()
            opt.step()
            assert math.isnan(loss.item()) == (sign < 0)  # which programs print

        return step, net, opt

    return build


@pytest.mark.parametrize("level", LEVELS)
def test_a_negative_determinant_is_told_as_logdet_of_each_step(level, tmp_path):
    said = told(with_determinant(-1.0), tmp_path, level, steps=4)
    assert said.first["title"].startswith("logdet") and said.first["part_of"] == "logdet", said.show()
    bad = said.first["bad_steps"]
    assert bad["anew"] + bad["unwatched"] == bad["count"] == 4, bad
    assert_silent(with_determinant(1.0), tmp_path, level, steps=4)


@pytest.mark.parametrize("level", LEVELS)
def test_one_over_x_is_told_as_a_division_with_what_made_x(level, tmp_path):
    said = told(at_zero(lambda z: 1 / z), tmp_path, level, steps=8)
    assert said.what[:2] == ("divide_by_zero", "aten::reciprocal"), said.show()
    assert ": a division by 0" in said.first["title"]
    lines = said.first["evidence"]
    assert any("aten::sub" in line and "24 zeros of 24" in line for line in lines), lines
    assert_silent(at_zero(lambda z: 1 / z, zero=False), tmp_path, level, steps=8)


@pytest.mark.parametrize("level", LEVELS)
def test_a_gradient_that_clipping_made_bad_arrives_in_its_phase(level, tmp_path):
    def clipped(least):
        def build():
            torch.manual_seed(0)
            net = Net()
            opt = torch.optim.SGD(net.parameters(), lr=1e-2)

            def step(i):
                x, y = data()
                opt.zero_grad()
                (F.cross_entropy(net(x), y) * (0 if i == 4 else 1)).backward()
                norm = torch.sqrt(sum((p.grad**2).sum() for p in net.parameters()))
                for p in net.parameters():
                    p.grad.div_(norm.clamp(min=least))
                opt.step()

            return step, net, opt

        return build

    said = told(clipped(0.0), tmp_path, level)
    assert said.first["phase"] == "clip", said.show()
    sinks = {node["op"]: node["phase"] for node in said.first["chain"]["nodes"] if node["role"] == "sink"}
    assert sinks["<gradient>"] == "clip", sinks
    assert_silent(clipped(1e-6), tmp_path, level)


class Raising(Net):
    bad = False

    def forward(self, x):
        hidden = self.first(x)
        if self.bad:
            hidden = torch.log(hidden - 100)
        if not torch.isfinite(hidden).all():
            raise RuntimeError("hidden is not finite")
        return self.last(hidden)


@pytest.mark.parametrize("level", ["live", "ops"])
@pytest.mark.parametrize("clears", ["before forward", "after forward", "after the step"])
def test_a_forward_that_raises_is_not_held_against_gradients_of_the_step_before(clears, level, tmp_path):
    def raising(at):
        def build():
            torch.manual_seed(0)
            net = Raising()
            opt = torch.optim.SGD(net.parameters(), lr=1e-2)

            def step(i):
                x, y = data()
                net.bad = i == at
                if clears == "before forward":
                    opt.zero_grad()
                try:
                    out = net(x)
                except RuntimeError:
                    if i + 1 < 16:
                        raise
                    return
                if clears == "after forward":
                    opt.zero_grad()
                F.cross_entropy(out, y).backward()
                opt.step()
                if clears == "after the step":
                    opt.zero_grad()

            return step, net, opt

        return build

    said = told(raising(15), tmp_path, level, steps=16)
    assert said.what[:3] == ("invalid", "aten::log", "forward"), said.show()
    assert said.first["confidence"] != "inferred", said.show()
    lines = " ".join(said.first["evidence"])
    assert "differ" not in lines and "nothing" not in lines, lines
    ends = [node for node in said.first["chain"]["nodes"] if node["role"] == "sink"]
    assert [(node["op"], node["phase"]) for node in ends] == [("<output>", "forward")], ends
    assert_silent(raising(-1), tmp_path, level, steps=16)


def given(optimizer, **options):
    """Training whose embedding has rows without a gradient."""
    def build():
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Embedding(12, 6), torch.nn.Linear(6, 3))
        opt = optimizer(model.parameters(), **options)

        def step(i):
            opt.zero_grad()
            F.cross_entropy(model(torch.arange(6)), torch.arange(6) % 3).backward()
            opt.step()

        return step, model, opt

    return build


@pytest.mark.parametrize("fused", [True, False])
def test_an_optimizer_whose_eps_is_0_is_to_be_given_one(fused, tmp_path):
    said = told(given(torch.optim.AdamW, eps=0.0, fused=fused), tmp_path, "live")
    assert said.what[0] == "divide_by_zero" and advice(said) == ["optimizer-eps"], said.show()
    assert "eps is 0" in said.first["title"], said.show()
    assert_silent(given(torch.optim.AdamW, fused=fused), tmp_path, "live")


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW])
def test_an_infinite_learning_rate_is_what_to_check(optimizer, tmp_path):
    said = told(given(optimizer, lr=math.inf), tmp_path, "live")
    assert said.what[0] == "invalid" and advice(said) == ["check-lr"], said.show()
    rate = "1 - lr * weight_decay = -Inf" if optimizer is torch.optim.AdamW else "alpha = -Inf"
    assert said.first["title"].endswith(f" is given an infinite number: {rate}"), said.show()
    assert_silent(given(optimizer, lr=1e-3), tmp_path, "live")


def ended(loss_of):
    """A program of its own whose loss is taken of probabilities of which one can be 0."""
    def build():
        torch.manual_seed(0)
        net = Net()
        opt = torch.optim.SGD(net.parameters(), lr=1e-2)

        def step(i):
            x, _ = data()
            opt.zero_grad()
            loss_of(torch.sigmoid(net(x)) * torch.tensor([0.0, 1.0, 1.0]), i).backward()
            opt.step()

        return step, net, opt

    return build


def test_what_nan_to_num_hides_in_forward_is_the_origin_and_not_its_derivative(tmp_path):
    def hidden(least):
        return ended(lambda p, i: torch.nan_to_num(-torch.log(p + least).mean()))

    said = told(hidden(0.0), tmp_path, "live")
    assert said.status == "fault" and said.what[:3] == ("divide_by_zero", "aten::log", "loss"), said.show()
    assert "aten::nan_to_num in <loss> hides it until backward" in said.first["title"], said.show()
    assert any(sink.startswith("parameter") for sink in said.first["sinks"]), said.show()
    assert advice(said)[0] in ("with-logits", "clamp-input"), said.show()
    assert_silent(hidden(1e-3), tmp_path, "live")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_limit_of_a_clamp_that_its_format_rounds_to_the_pole_is_the_cause(dtype, tmp_path):
    def limited(most):
        def loss(p, i):
            q = (1 - p).to(dtype).clamp(1e-2, most)
            return -torch.log(1 - q).float().mean()

        return ended(loss)

    said = told(limited(1 - 1e-8), tmp_path, "live")
    name = "fp16" if dtype is torch.float16 else "fp32"
    assert said.first["title"] == f"clamp(max = 1 - 1e-8) is 1 in {name}: log of 0 in <loss>", said.show()
    assert "held-bound" in advice(said), advice(said)
    assert_silent(limited(0.99), tmp_path, "live")


@pytest.mark.parametrize("written", [True, False])
@pytest.mark.parametrize("kind", [torch.float32, torch.bool])
def test_nan_that_a_mask_multiplies_is_to_be_selected_away_before_the_arithmetic(kind, written, tmp_path):
    def masked(selects):
        def loss(p, i):
            known = torch.arange(24).view(8, 3) % 4 != 0
            y = torch.full((8, 3), 0.5)
            if written:
                y[~known] = math.nan
            else:
                y = torch.tensor([math.nan if n % 4 == 0 else 0.5 for n in range(24)]).view(8, 3)
            if selects:
                y = torch.where(known, y, 0.0)
            mask = known.to(kind)
            return ((p - y) ** 2 * mask).sum() / mask.sum()

        return ended(loss)

    said = told(masked(False), tmp_path, "live")
    assert said.status == "fault" and advice(said)[0] == "select-before", said.show()
    assert said.first["title"].endswith("; aten::mul in <loss> multiplies it by 0, and it stays NaN"), said.show()
    assert_silent(masked(True), tmp_path, "live")


def test_numbers_that_met_are_all_shown_also_those_that_were_written_over(tmp_path):
    def in_place(least):
        return ended(lambda p, i: (p[:, :1] * 1).div_(p[:, 0].sum() + least).sum())

    def power(least):
        return ended(lambda p, i: ((p + least) ** -0.5).mean())

    for build, numbers in ((in_place, [("self", 0), ("other", 0)]), (power, [("self", 0), ("exponent", -0.5)])):
        said = told(build(0.0), tmp_path, "live")
        operands = said.first["element"]["operands"]
        assert [(one["slot"], one["value"]) for one in operands] == numbers, said.first["element"]
        assert_silent(build(1e-2), tmp_path, "live")


def test_a_statement_of_several_lines_is_in_the_report_as_a_whole(tmp_path):
    def several(least):
        def loss(p, i):
            total = p[:, 0].sum() + least
            return (
                p[:, 0]
                / total
            ).sum()

        return ended(loss)

    said = told(several(0.0), tmp_path, "live")
    command = [cli(), "report", said.run.path]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600).stdout
    answer = " ".join(shown.split())
    assert "return (p[:, 0] / total).sum()" in answer, answer
    assert "p[:, 0] / total = 0 / 0 = NaN at [0]" in answer, answer
    assert_silent(several(1e-2), tmp_path, "live")


@pytest.mark.parametrize("at", [3, 13])
def test_a_buffer_that_stays_infinite_is_bad_in_every_step_to_the_end(at, tmp_path):
    class Average(Net):
        def __init__(self):
            super().__init__()
            self.register_buffer("mean", torch.ones(3))

        def forward(self, x):
            y = super().forward(x)
            with torch.no_grad():
                self.mean.mul_(0.9).add_(self.rate * y.square().mean(0), alpha=self.rate)
            return y + torch.tanh(y) / (1 + self.mean)

    def kept(rate):
        def before(i, net, opt, x):
            net.rate = rate if i == at else 0.3

        return classifier(before, model=Average)

    said = told(kept(1e30), tmp_path, "live", steps=14)
    bad = said.first["bad_steps"]
    assert "buffer mean" in said.first["sinks"], said.show()
    # It is read once more when the watch ends, after the last step.
    assert (bad["count"], bad["last_step"], bad["open"]) == (15 - at, 14, False), bad
    assert_silent(kept(0.3), tmp_path, "live", steps=14)


class OwnCall(nn.Module):
    """Its calls go past nn.Module's, as those of GPyTorch's modules do."""

    def __call__(self, x):
        return self.forward(x)


class ToUnit(OwnCall):
    eps = 0.0

    def forward(self, x):
        return (x - x.amin()) / (x.amax() - x.amin() + self.eps)


class OwnNet(OwnCall):
    def __init__(self):
        super().__init__()
        self.first, self.to_unit, self.last = nn.Linear(6, 8), ToUnit(), nn.Linear(8, 3)

    def forward(self, x):
        return self.last(self.to_unit(self.first(x)))


@pytest.mark.parametrize("level", LEVELS)
def test_a_module_whose_class_calls_its_forward_past_pytorch_is_named(level, tmp_path, monkeypatch):
    def constant(i, net, opt, x):
        if i == 3:
            with torch.no_grad():
                net.first.weight.zero_(), net.first.bias.zero_()

    said = told(classifier(constant, model=OwnNet), tmp_path, level)
    assert said.what[:2] == ("divide_by_zero", "aten::div") and said.first["step"] == 3, said.show()
    assert (said.first["module"], said.first["module_class"]) == ("to_unit", "ToUnit"), said.show()
    assert said.first["title"] == "aten::div in to_unit: 0/0", said.show()
    monkeypatch.setattr(ToUnit, "eps", 1e-3)
    assert_silent(classifier(constant, model=OwnNet), tmp_path, level)


def measured(of):
    """`of(wave, loud)` is added to what a model is given; in step 3 the wave is loud."""

    def step(i, net, opt):
        x, y = data()
        wave = torch.full((6,), 190.0 if i == 3 else 1.0)
        opt.zero_grad()
        F.cross_entropy(net(x + of(wave, i == 3)), y).backward()
        opt.step()

    return loop(step)


def whole(cast):
    return lambda wave, loud: (cast(wave.to(torch.int16)) ** 2).float().mean().sqrt() * 1e-3


def spread(format, beside=None):
    """`beside`: a second column of prices, which are small."""

    def of(wave, loud):
        prices = (2e4 if loud else 0.0) + torch.tensor([0.1, 0.2, 0.3, 0.1, 0.35]).to(format)
        if beside is not None:
            prices = torch.stack([prices, beside.to(format)], 1)
        mean, squares = prices.mean(0), prices.square().mean(0)
        variance = squares - mean * mean
        return ((variance if loud else variance.abs()).sqrt() * 1e-3).float().mean()

    return of


@pytest.mark.parametrize("level", LEVELS)
def test_squares_of_whole_numbers_that_wrapped_are_told_and_no_clamp_is_advised(level, tmp_path):
    said = told(measured(whole(lambda wave: wave)), tmp_path, level)
    assert said.what[:2] == ("invalid", "aten::sqrt") and "integer overflow" in said.first["cause"], said.show()
    assert advice(said) == ["cast-before-product"], said.show()
    assert_silent(measured(whole(lambda wave: wave.float())), tmp_path, level)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("beside", [None, torch.tensor([0.1, 0.2, 0.5, 0.3, 0.9])], ids=["alone", "beside small ones"])
def test_a_variance_that_rounding_made_negative_is_told_and_no_clamp_is_advised(beside, level, tmp_path):
    said = told(measured(spread(torch.float32, beside)), tmp_path, level)
    assert said.what[:2] == ("invalid", "aten::sqrt") and "cancellation" in said.first["cause"], said.show()
    assert advice(said) == ["avoid-cancellation"], said.show()
    assert_silent(measured(spread(torch.float64, beside)), tmp_path, level)


def shared_root(x):
    return x.sqrt()


def called(bad):
    """A helper that two lines call: what one of them gives it is 0 in step 3, where its derivative is infinite."""

    def step(i, net, opt):
        out = net(data()[0])
        opt.zero_grad()
        length = shared_root(out.square().mean())
        other = shared_root(out.mean().square() * (0.0 if bad and i == 3 else 1.0))
        (length + other).backward()
        opt.step()

    return loop(step)


@pytest.mark.parametrize("level", LEVELS)
def test_a_helper_that_several_lines_call_is_told_with_its_callers(level, tmp_path):
    said = told(called(True), tmp_path, level)
    assert said.what[0] == "divide_by_zero" and said.first["phase"] == "backward", said.show()
    lines = [line for line in said.first["evidence"] if line.startswith("It is called from")]
    assert len(lines) == 1 and lines[0].count("test_words.py:") == 2, said.first["evidence"]
    assert_silent(called(False), tmp_path, level)
