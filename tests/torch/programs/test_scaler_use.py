# SPDX-License-Identifier: Apache-2.0
"""`torch.amp.GradScaler` as programs use it, rightly and wrongly, and formats that lose what an optimizer adds."""

from __future__ import annotations

from contextlib import suppress

import pytest
import torch
from hunting import hunt, needs_cli
from own_programs import LEVELS, Net, adversarial, assert_silent, classifier, data, told
from torch import nn
from torch.nn import functional as F


def scaled(between=None, gain=lambda i: 1.0, updates=True, init=1024.0, interval=2000, narrow=True, after=None):
    """A scaler, and fp16 autocast where `narrow`. `between(scaler, optimizer, parameters)` runs after backward,
    `after(optimizer)` once the scaler has stepped."""

    def build():
        net = Net()
        opt = torch.optim.SGD(net.parameters(), lr=1e-3)
        scaler = torch.amp.GradScaler("cpu", init_scale=init, growth_interval=interval)

        def step(i):
            x, y = data()
            opt.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16, enabled=narrow):
                out = net(x)
            loss = F.cross_entropy(out.float(), y) * gain(i)
            scaler.scale(loss).backward()
            if between is not None:
                between(scaler, opt, list(net.parameters()))
            with suppress(RuntimeError):  # of a scaler that was not updated
                scaler.step(opt)
            if updates:
                scaler.update()
            if after is not None:
                after(opt)

        return step, net, opt

    return build


@pytest.mark.parametrize("level", LEVELS)
def test_what_the_scaler_does_after_the_optimizer_belongs_to_the_step_that_ends(level, tmp_path):
    said = told(scaled(gain=lambda i: 1e6 if i == 4 else 1.0, interval=2), tmp_path, level, steps=7)
    assert [row["step"] for row in said.run.records("scaler") if row["action"] == "update"] == list(range(7))
    section = said.run.report["scaler"]
    changes = [(event["what"], event["step"]) for event in section["events"] if event["what"] in ("growth", "backoff")]
    assert changes == [("growth", 1), ("growth", 3), ("backoff", 4), ("growth", 6)]
    # ... and a step's own scale is that before its update.
    assert [point["scale"] for point in section["points"]] == [1024, 1024, 2048, 2048, 4096, 2048, 2048]
    assert section["steps"] == 7 and section["final_scale"] == 4096


@pytest.mark.parametrize("level", LEVELS)
def test_a_scaled_loss_beyond_fp32_is_calibrated_away_where_the_scale_falls(level, tmp_path):
    """The scaler finds infinite gradients, as of any other overflow, and halves its scale."""
    too_large = scaled(gain=lambda i: 8.0, init=2.0**127, narrow=False)
    said = told(too_large, tmp_path, level, steps=10)
    assert said.status == "calibrating" and not said.loud, said.show()
    assert said.what[:3] == ("scaler_calibration", "aten::mul", "scale"), said.show()
    assert said.run.report["scaler"]["skipped"] >= 2


def clip(scaler, opt, parameters):
    nn.utils.clip_grad_norm_(parameters, 0.1)


def unscale_and_clip(scaler, opt, parameters):
    scaler.unscale_(opt)
    clip(scaler, opt, parameters)


@pytest.mark.parametrize("level", LEVELS)
def test_clipping_before_unscaling_is_misuse(level, tmp_path):
    said = told(scaled(clip), tmp_path, level)
    assert said.status == "fault" and said.what[:3] == ("api_misuse", "clip_grad_norm_", "clip"), said.show()
    assert said.first["step"] == 0 and "unscale-before-clip" in [a["id"] for a in said.first["advice"]], said.show()
    assert_silent(scaled(unscale_and_clip), tmp_path, level)


def by_number(scale, parameters):
    for p in parameters:
        p.grad.div_(scale)


def by_tensor(scale, parameters):
    for p in parameters:
        p.grad = p.grad * torch.tensor(1 / scale)


def by_list(scale, parameters):
    torch._foreach_mul_([p.grad for p in parameters], 1 / scale)


def past_the_scaler(unscale=None, lr=1e-3, scale=1024.0, by_scaler=False):
    """The optimizer steps by itself, after the loss was scaled. `unscale(scale, parameters)`: the program does.
    `by_scaler`: the scaler steps it."""

    def build():
        net = Net()
        opt = torch.optim.SGD(net.parameters(), lr=lr)
        scaler = torch.amp.GradScaler("cpu", init_scale=scale)

        def step(i):
            x, y = data()
            opt.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                out = net(x)
            scaler.scale(F.cross_entropy(out.float(), y)).backward()
            if unscale is not None:
                unscale(scaler.get_scale(), list(net.parameters()))
            if by_scaler:
                scaler.step(opt)
                scaler.update()
            else:
                opt.step()

        return step, net, opt

    return build


@pytest.mark.parametrize("level", LEVELS)
def test_an_optimizer_that_steps_past_the_scaler_is_misuse(level, tmp_path):
    said = told(past_the_scaler(), tmp_path, level)
    assert said.loud and said.what[:3] == ("api_misuse", "step", "optimizer"), said.show()
    assert "1024 times too large" in said.first["title"] and said.first["step"] == 0, said.show()
    assert "step-by-scaler" in [a["id"] for a in said.first["advice"]], said.show()


@pytest.mark.parametrize("unscale", [by_number, by_tensor, by_list])
def test_a_program_that_unscales_by_itself_may_step_past_the_scaler(unscale, tmp_path):
    assert_silent(past_the_scaler(unscale), tmp_path, "live")


def test_a_run_that_diverges_with_gradients_that_were_never_unscaled_has_that_as_its_cause(tmp_path):
    said = told(past_the_scaler(lr=1.0), tmp_path, "live", steps=20)
    assert said.status == "fault" and said.what[:2] == ("api_misuse", "step"), said.show()


@pytest.mark.parametrize("by_scaler", [False, True])
def test_gradients_that_overflow_where_the_optimizer_steps_past_the_scaler_follow_from_that(by_scaler, tmp_path):
    said = told(past_the_scaler(scale=2.0**22, by_scaler=by_scaler), tmp_path, "live", steps=12)
    if by_scaler:
        assert not said.loud, said.show()
        return
    assert said.status == "fault" and said.what[:3] == ("api_misuse", "step", "optimizer"), said.show()
    assert said.first["call_site"] and [a["id"] for a in said.first["advice"]] == ["step-by-scaler"], said.show()
    assert any("overflows fp16" in line for line in said.first["evidence"]), said.show()


def stepped_again(clears):
    """After the scaler's step the optimizer makes one of its own; `clears`: there are no gradients by then."""

    def again(opt):
        if clears:
            opt.zero_grad()
        opt.step()

    return scaled(gain=lambda i: 1e6 if i == 4 else 1.0, after=again)


@pytest.mark.parametrize("level", LEVELS)
def test_an_optimizer_that_makes_the_step_that_the_scaler_skipped_is_misuse(level, tmp_path):
    said = told(stepped_again(clears=False), tmp_path, level, steps=7)
    assert said.status == "fault" and said.what[:3] == ("api_misuse", "step", "optimizer"), said.show()
    assert said.first["call_site"] and "had skipped" in said.first["title"], said.show()
    assert not any("Seen" in line for line in said.first["evidence"]), "one call, whatever it updates"
    assert [a["id"] for a in said.first["advice"]] == ["no-step-beside-scaler"], said.show()
    repaired = told(stepped_again(clears=True), tmp_path, level, steps=7)
    assert repaired.status == "calibrating" and not repaired.loud, repaired.show()


@pytest.mark.parametrize("level", LEVELS)
def test_a_scaler_that_is_not_updated_is_misuse(level, tmp_path):
    said = told(scaled(updates=False), tmp_path, level)
    assert said.loud and said.what[:2] == ("api_misuse", "step"), said.show()
    assert "since the last update" in said.first["title"] and said.first["step"] == 1, said.show()
    assert "scaler-call-order" in [a["id"] for a in said.first["advice"]], said.show()
    assert_silent(scaled(), tmp_path, level)


def narrow(dtype, masters, lr=1e-5):
    """`masters`: the optimizer has fp32 copies, which are copied back."""

    def build():
        net = Net().to(dtype)
        own = [p.detach().clone().float().requires_grad_() for p in net.parameters()] if masters else []
        opt = torch.optim.SGD(own or net.parameters(), lr=lr)

        def step(i):
            x, y = data()
            net.zero_grad()
            F.cross_entropy(net(x.to(dtype)).float(), y).backward()
            for m, p in zip(own, net.parameters(), strict=False):
                m.grad = p.grad.float()
            opt.step()
            with torch.no_grad():
                for m, p in zip(own, net.parameters(), strict=False):
                    p.copy_(m)

        return step, net, opt

    return build


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["fp16", "bf16"])
def test_updates_that_16_bit_parameters_lose_are_found(dtype, level, tmp_path):
    said = told(narrow(dtype, masters=False), tmp_path, level, steps=8)
    assert said.status == "fault" and said.what[:3] == ("update_loss", "aten::add_", "optimizer"), said.show()
    assert_silent(narrow(dtype, masters=True), tmp_path, level, steps=8)


class Normed(nn.Module):
    def __init__(self, eps):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(6, 8), nn.LayerNorm(8, eps=eps), nn.Linear(8, 3)

    def forward(self, x):
        return self.last(self.norm(self.first(x)))


def guarded(where, eps):
    return classifier(
        model=lambda: Normed(eps if where == "norm" else 1e-5),
        optimizer=torch.optim.Adam,
        lr=1e-3,
        eps=eps if where == "optimizer" else 1e-8,
    )


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("where", ["optimizer", "norm"])
def test_an_eps_that_rounds_to_0_is_an_error_and_a_subnormal_one_a_warning(where, level, tmp_path):
    lost = told(guarded(where, 1e-46), tmp_path, level)
    assert lost.status == "fault" and lost.first["class"] == "eps_underflow", lost.show()
    assert lost.first["step"] == 0 and "eps 1e-46 is 0 in fp32" in lost.first["title"], lost.show()
    assert "Raise eps to 1e-37 or more" in lost.first["advice"][0]["text"], lost.first["advice"]
    tiny = told(guarded(where, 1e-40), tmp_path, level)
    assert tiny.status == "warning" and tiny.first["class"] == "eps_underflow", tiny.show()
    assert_silent(guarded(where, 1e-12), tmp_path, level)


class Unit(nn.Module):
    """Compares directions in fp16, whose norms have a least value: through a view of it, and written in place."""

    def __init__(self, how, eps):
        super().__init__()
        self.first, self.how, self.eps = nn.Linear(6, 8), how, eps

    def forward(self, x):
        h = self.first(x).half()
        if self.how == "normalize":
            return nn.functional.normalize(h, dim=-1, eps=self.eps)[:, :3].float()
        anchors = torch.eye(8, dtype=torch.float16)[:3]
        return nn.functional.cosine_similarity(h[:, None], anchors, dim=-1, eps=self.eps).float()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("how", ["normalize", "cosine_similarity"])
def test_a_least_norm_that_rounds_to_0_is_a_warning_while_no_norm_is_0(how, level, tmp_path):
    said = told(classifier(model=lambda: Unit(how, 1e-12)), tmp_path, level)
    assert said.status == "warning" and said.what[0] == "eps_underflow", said.show()
    assert_silent(classifier(model=lambda: Unit(how, 1e-4)), tmp_path, level)


STOPPED = """
import sys, torch
torch.manual_seed(0)
net = torch.nn.Linear(6, 3)
opt = torch.optim.SGD(net.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu")
torch.autograd.set_detect_anomaly("anomaly" in sys.argv)
for i in range(30):
    opt.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = (net(torch.randn(8, 6)) * 50).float().abs().mean() * 100
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
"""


@needs_cli
@pytest.mark.parametrize("level", LEVELS)
def test_a_scale_that_anomaly_detection_stops_at_is_too_large_and_not_the_format_too_small(level, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(STOPPED, encoding="utf-8")
    stopped = hunt(tmp_path / "stopped", level, script, "anomaly")
    first = stopped.headline
    assert stopped.verdict == "fault" and (first["class"], first["phase"]) == ("overflow", "backward"), stopped.told()
    assert first["advice"][0]["id"] == "init-scale" and "lowers its scale" in first["explanation"], first
    found = hunt(tmp_path / "found", level, script)
    assert found.verdict == "calibrating", found.told()


@pytest.mark.parametrize("level", [*LEVELS, "steps"])
def test_gradients_that_another_networks_loss_left_bad_do_no_harm_once_they_are_cleared(level, tmp_path):
    said = told(adversarial(init=2.0**20), tmp_path, level, steps=14)
    assert said.status == "calibrating" and not said.loud, said.show()
    assert said.run.report["scaler"]["skipped"] > 1, said.show()


@pytest.mark.parametrize("level", LEVELS)
def test_what_makes_one_network_of_two_bad_is_named(level, tmp_path):
    said = told(adversarial(init=1.0, bad=5), tmp_path, level, steps=8)
    assert said.status == "fault" and said.what[:2] == ("invalid", "aten::log") and said.first["step"] == 5, said.show()
