# SPDX-License-Identifier: Apache-2.0
"""Gradients of three batches are added up and clipped, and the program prints its loss when the optimizer has stepped.
The number that it reads then belongs to no step that it could give up."""

from __future__ import annotations

import math

import pytest
import torch
from own_programs import LEVELS, Net, loop, told
from torch import nn
from torch.nn import functional as F

BATCHES, OF_STEP, BAD_BATCH = 12, 3, 7


class Causal(Net):
    """Its mask is infinite, as masks are."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.tanh(self.first(x))
        scores = h @ h.t() + torch.full((len(x), len(x)), float("-inf")).triu(1)
        return self.last(scores.softmax(-1) @ h)


def accumulating(bad):
    def step(i, net, opt):
        x = torch.randn(8, 6)
        y = torch.full((8,), -100) if bad and i == BAD_BATCH else torch.randint(0, 3, (8,))
        loss = F.cross_entropy(net(x), y) / OF_STEP
        loss.backward()
        if i % OF_STEP == OF_STEP - 1:
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            opt.step()
            opt.zero_grad()
            loss.item()

    return loop(step, Causal, torch.optim.Adam, 1e-3)


@pytest.mark.parametrize("level", LEVELS)
def test_a_loss_that_is_read_after_the_step_gives_no_gradients_up(level, tmp_path):
    said = told(accumulating(bad=False), tmp_path, level, steps=BATCHES)
    assert said.status == "clean" and not said.loud, said.show()
    assert said.run.report["coverage"]["steps"] == BATCHES // OF_STEP, said.run.report["coverage"]


@pytest.mark.parametrize("level", LEVELS)
def test_the_batch_that_makes_it_nan_is_named_in_the_step_that_it_is_part_of(level, tmp_path):
    said = told(accumulating(bad=True), tmp_path, level, steps=BATCHES)
    assert said.status == "fault" and said.what[:3] == ("divide_by_zero", "aten::nll_loss_forward", "loss"), said.show()
    assert said.first["step"] == BAD_BATCH // OF_STEP, said.show()


OPTIMIZERS = {"in lists": {"foreach": True}, "one by one": {"foreach": False}, "fused": {"fused": True}}
LOOKS = {
    "none": lambda parameters, loss: None,
    "the loss": lambda parameters, loss: loss.item(),
    "the gradients' norm": lambda parameters, loss: torch.stack([p.grad.norm() for p in parameters]).norm().item(),
}


def calibrated(optimizer, look, batches=2, init=2.0**24, clips=False):
    """After each batch the program writes a number down: after its backward, or, where it `clips`, once it may have
    stepped."""

    def build():
        torch.manual_seed(0)
        net = Net()
        opt = torch.optim.AdamW(net.parameters(), 1e-3, **OPTIMIZERS[optimizer])
        scaler = torch.amp.GradScaler("cpu", init_scale=init)

        def step(i):
            x, y = torch.randn(8, 6), torch.randint(0, 3, (8,))
            with torch.autocast("cpu", torch.float16):
                out = net(x)
            loss = F.cross_entropy(out.float(), y) / batches
            scaler.scale(loss).backward()
            if not clips:
                LOOKS[look](list(net.parameters()), loss)
            if i % batches == batches - 1:
                if clips:
                    scaler.unscale_(opt)
                    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
                scaler.step(opt)
                scaler.update()
                opt.zero_grad()
            if clips:
                LOOKS[look](list(net.parameters()), loss)

        return step, net, opt

    return build


@pytest.mark.parametrize("level", LEVELS)
def test_a_loss_that_is_read_after_a_step_that_the_scaler_skips_gives_no_gradients_up(level, tmp_path):
    said = told(calibrated("in lists", "the loss", clips=True), tmp_path, level, steps=24)
    assert said.status == "calibrating" and not said.loud, said.show()
    assert said.run.report["coverage"]["steps"] == 12 and said.run.report["scaler"]["skipped"] > 2, said.show()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_scale_is_found_whatever_optimizer_steps_and_whatever_is_written_down(optimizer, look, level, tmp_path):
    said = told(calibrated(optimizer, look), tmp_path, level, steps=24)
    assert said.status == "calibrating" and not said.loud, said.show()
    assert said.run.report["coverage"]["steps"] == 12 and said.run.report["scaler"]["skipped"] > 2, said.show()


@pytest.mark.parametrize("level", LEVELS)
def test_batches_that_are_left_over_at_the_end_are_no_fault_while_the_scale_is_still_too_large(level, tmp_path):
    said = told(calibrated("fused", "none", batches=3, init=2.0**40), tmp_path, level, steps=13)
    assert said.status == "inconclusive" and not said.loud, said.show()


def written_down(bad, skips=False):
    """After each batch the largest gradient is written down. The program steps after four of them, or `skips` each
    batch whose gradients are not finite, and clears none."""

    def step(i, net, opt):
        out = net(torch.randn(8, 6))
        out = torch.sqrt(out - 100) if bad and i == 12 else out
        out.square().mean().backward()
        largest = max(p.grad.abs().max().item() for p in net.parameters())
        if math.isfinite(largest) if skips else i % 4 == 3:
            opt.step()
            if not skips:
                opt.zero_grad()

    return loop(step)


@pytest.mark.parametrize("level", LEVELS)
def test_gradients_that_are_written_down_after_each_batch_are_not_given_up_before_the_last(level, tmp_path):
    said = told(written_down(bad=True), tmp_path, level, steps=24)
    assert said.what[:2] == ("invalid", "aten::sqrt") and said.first["step"] == 3, said.show()
    assert "api_misuse" not in dict(said.loud), said.show()
    assert said.run.report["coverage"]["steps"] == 6, said.run.report["coverage"]
    sound = told(written_down(bad=False), tmp_path / "sound", level, steps=24)
    assert sound.status == "clean" and not sound.loud, sound.show()
    kept = told(written_down(bad=True, skips=True), tmp_path / "kept", level, steps=24)
    assert "api_misuse" in dict(kept.loud), kept.show()


MARKED = 4  # batches


def marked(bad):
    """Labels that are missing are NaN. The program reads its gradients after each batch, and leaves a batch out whose
    gradients it finds too large."""

    def step(i, net, opt):
        x, y = torch.randn(8, 6), torch.randn(8, 3)
        y[torch.rand(8, 3) < 0.3] = math.nan
        known = ~y.isnan()
        (((net(x) - y)[known] ** 2).mean() * (1e25 if bad and i == MARKED else 1)).backward()
        norm = torch.stack([p.grad.square().sum() for p in net.parameters()]).sum().sqrt()
        if not math.isfinite(norm.item()):
            opt.zero_grad()
        elif i % 2:
            opt.step()
            opt.zero_grad()

    return loop(step)


@pytest.mark.parametrize("level", LEVELS)
def test_labels_that_are_nan_where_they_are_missing_give_no_gradients_up(level, tmp_path):
    said = told(marked(bad=False), tmp_path, level, steps=8)
    assert said.status == "clean" and not said.loud, said.show()
    assert said.run.report["coverage"]["steps"] == 4, said.run.report["coverage"]


@pytest.mark.parametrize("level", LEVELS)
def test_a_norm_that_is_infinite_though_its_gradients_are_finite_gives_them_up(level, tmp_path):
    said = told(marked(bad=True), tmp_path, level, steps=8)
    assert said.status == "warning", said.show()
    assert said.what[1] in ("aten::pow", "aten::sum", "aten::square"), said.show()


def measured(bad, looks=False):
    """After each of two batches that are added up the program reads how often its outputs are right; or it `looks` at
    the norm of its gradients, and reads how often what it chose is right, which is 0/0."""

    def step(i, net, opt):
        x, y = torch.randn(8, 6), torch.randint(0, 3, (8,))
        out = net(x).sqrt() if bad and i == MARKED else net(x)
        (F.cross_entropy(out, y) / 2).backward()
        if looks:
            torch.stack([p.grad.square().sum() for p in net.parameters()]).sum().sqrt().item()
            chosen = out.detach().argmax(-1) == 99
            ((chosen & (y == 1)).float().sum() / chosen.float().sum()).item()
        if i % 2:
            opt.step()
            opt.zero_grad()
        (out.detach().argmax(-1) == y).float().mean().item()

    return loop(step, optimizer=torch.optim.Adam, lr=1e-3)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("bad", [True, False])
def test_a_metric_that_is_read_before_more_is_added_gives_no_gradients_up(bad, level, tmp_path):
    said = told(measured(bad), tmp_path, level, steps=12)
    assert said.run.report["coverage"]["steps"] == 6, said.run.report["coverage"]
    if bad:
        assert said.status == "fault" and said.what[:2] == ("invalid", "aten::sqrt"), said.show()
        assert said.first["step"] == MARKED // 2, said.show()
    else:
        assert said.status == "clean" and not said.loud, said.show()


@pytest.mark.parametrize("level", LEVELS)
def test_a_metric_of_nothing_beside_a_norm_that_is_read_gives_no_gradients_up(level, tmp_path):
    said = told(measured(bad=False, looks=True), tmp_path, level, steps=12)
    assert said.run.report["coverage"]["steps"] == 6 and "skipped" not in str(said.loud), said.show()


def apart(first_is_bad):
    """Two losses have a backward each; the program steps where all gradients are finite."""

    def step(i, net, opt):
        opt.zero_grad()
        h = net.first(torch.randn(8, 6))
        losses = [h.square().mean() * (1e38 * 1e10 if i == 4 else 1), net.last(h.detach()).square().mean()]
        for loss in losses if first_is_bad else losses[::-1]:
            loss.backward()
        if all(bool(torch.isfinite(p.grad).all()) for p in net.parameters()):
            opt.step()

    return loop(step)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("first_is_bad", [True, False])
def test_gradients_of_any_backward_of_the_step_are_looked_at(first_is_bad, level, tmp_path):
    said = told(apart(first_is_bad), tmp_path, level, steps=8)
    assert said.run.report["coverage"]["steps"] == 8 and said.status != "fault", said.show()
