# SPDX-License-Identifier: Apache-2.0
"""Averages of weights and teachers last as parameters do: what goes bad in one, or is lost in one, is found."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from own_programs import LEVELS, Net, assert_silent, data, told
from torch.nn import functional as F

FORMS = ("in place", "by list", "by copy")


def averaged(rate, dtype=torch.float32, lr=1e-2, teacher=False, form="in place", past=lambda i, shadow: None):
    """`rate(i)`: the weight of the average at step i. `past(i, shadow)` runs before it."""

    def build():
        model = Net()
        opt = torch.optim.SGD(model.parameters(), lr=lr)
        kept = copy.deepcopy(model).to(dtype).requires_grad_(False)
        shadow = list(kept.parameters()) if teacher else [p.detach().clone().to(dtype) for p in model.parameters()]

        def step(i):
            past(i, shadow)
            x, y = data()
            opt.zero_grad()
            F.cross_entropy(model(x), y).backward()
            opt.step()
            with torch.no_grad():
                decay = rate(i)
                if form == "by list":
                    torch._foreach_mul_(shadow, decay)
                    torch._foreach_add_(shadow, [p.detach().to(dtype) for p in model.parameters()], alpha=1 - decay)
                elif form == "by copy":
                    for s, p in zip(shadow, model.parameters(), strict=True):
                        s.copy_(decay * s + (1 - decay) * p.detach().to(dtype))
                else:
                    for s, p in zip(shadow, model.parameters(), strict=True):
                        s.mul_(decay).add_(p.detach().to(dtype), alpha=1 - decay)

        return step, model, opt, shadow

    return build


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("teacher", [False, True])
def test_an_average_of_weights_that_goes_bad_is_lasting_state(teacher, form, level, tmp_path):
    said = told(averaged(lambda i: 3e38 if i in (2, 3) else 0.9, teacher=teacher, form=form), tmp_path, level)
    assert said.status == "fault" and said.first["class"] == "overflow", said.show()
    assert said.first["phase"] == "update" and said.first["op"].startswith("aten::"), said.show()
    assert any("copy of first." in sink for sink in said.first["sinks"]), said.first["sinks"]
    assert_silent(averaged(lambda i: 0.9, teacher=teacher, form=form), tmp_path, level)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("number", [math.nan, math.inf, 3e38])
def test_a_number_that_is_written_into_an_average_past_pytorch_is_told_as_written(number, form, level, tmp_path):
    # Given an average that NumPy writes to before step `at`, just after it was made or later
    def writes(at):
        def past(i, shadow):
            if i == at:
                shadow[0].numpy()[1, 1] = number

        return averaged(lambda i: 0.9, form=form, past=past)

    for at in (1, 3):
        said = told(writes(at), tmp_path / str(at), level)
        # then that is what is told, of the step before which it happened
        assert said.what == ("corruption", "<state>", "data", "copy of first.weight"), said.show()
        assert said.first["step"] == at and "nothing writing" in said.first["title"], said.show()

    # and nothing of what is written there and stays as large
    def scales(i, shadow):
        shadow[0].numpy()[...] *= 0.9

    assert_silent(averaged(lambda i: 0.9, form=form, past=scales), tmp_path, level)


@pytest.mark.parametrize("level", LEVELS)
def test_what_is_divided_by_a_count_of_no_step_is_an_update_of_the_average(level, tmp_path):
    def unbiased(first):
        build = averaged(lambda i: 0.9)

        def made():
            step, model, opt, shadow = build()

            def debiased(i):
                step(i)
                bias = 1 - torch.tensor(0.5) ** torch.tensor(float(first + i % 3))
                for s in shadow:
                    s.div_(bias)

            return debiased, model, opt, shadow

        return made

    said = told(unbiased(0), tmp_path, level)
    assert said.what[:3] == ("divide_by_zero", "aten::div_", "update"), said.show()
    assert_silent(unbiased(1), tmp_path, level)




@pytest.mark.parametrize(("level", "at"), [("live", 2), ("live", 11), ("ops", 2)])
@pytest.mark.parametrize("form", ["in place", "by copy"])
def test_what_is_made_of_a_weight_after_the_optimizer_is_an_update(form, level, at, tmp_path):
    # Given rows of a weight that are put back to length 1, one of which was pruned
    def unit(least):
        def build():
            torch.manual_seed(0)
            net = Net()
            opt = torch.optim.SGD(net.parameters(), lr=1e-2)

            def step(i):
                x, y = data()
                opt.zero_grad()
                F.cross_entropy(net(x), y).backward()
                opt.step()
                weight = net.first.weight
                with torch.no_grad():
                    if i == at:
                        weight[0].zero_()
                    length = weight.norm(dim=1, keepdim=True).clamp(min=least)
                    if form == "in place":
                        weight.div_(length)
                    else:
                        weight.copy_(weight / length)

            return step, net, opt

        return build

    said = told(unit(0.0), tmp_path, level, at + 4)
    assert said.what[0] == "divide_by_zero" and said.what[1] in ("aten::div_", "aten::div"), said.show()
    assert said.first["phase"] == "update" and said.first["step"] == at + 1, said.show()
    assert_silent(unit(1e-6), tmp_path, level, at + 4)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("form", FORMS)
def test_updates_that_an_average_in_16_bits_loses_are_found(form, dtype, level, tmp_path):
    lost = told(averaged(lambda i: 0.99999, dtype=dtype, lr=1e-3, form=form), tmp_path, level, steps=24)
    assert "update_loss" in [cls for cls, _ in lost.loud], lost.show()
    assert lost.first["phase"] == "update" and lost.first["module"].startswith("copy of "), lost.show()
    assert_silent(averaged(lambda i: 0.99999, lr=1e-3, form=form), tmp_path, level, steps=24)
