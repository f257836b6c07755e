# SPDX-License-Identifier: Apache-2.0
"""A number that is not finite and that the program itself writes, into a parameter or into its batch, is told as that:
what it was written into, and where. A finite one is nothing, and neither is a mask."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from own_programs import LEVELS, assert_silent, classifier, data, loop, told
from torch.nn import functional as F

HERE = Path(__file__).name


def training(write=lambda w: None, batch=lambda x: None, at=3):
    """`write(weight)` between two steps, `batch(x)` before a step uses it."""

    def before(i, net, opt, x):
        if i == at:
            with torch.no_grad():
                write(net.first.weight)
            batch(x)

    return classifier(before)


def element(number):
    def write(t):
        t[0, 0] = number

    return write


def all_of_it(number):
    return lambda t: t.fill_(number)


def a_copy(number):
    return lambda t: t.copy_(torch.tensor(number))


def by_mask(number):
    def write(t):
        t[torch.eye(*t.shape, dtype=torch.bool)] = number

    return write


WRITES = {"element": element, "all": all_of_it, "copy": a_copy, "by mask": by_mask}


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("number", [math.nan, math.inf])
@pytest.mark.parametrize("name", WRITES)
def test_what_the_program_writes_into_a_parameter_is_told_with_its_line(name, number, level, tmp_path):
    said = told(training(WRITES[name](number)), tmp_path, level)
    word = "NaN" if math.isnan(number) else "Inf"
    assert said.first["title"] == f"The program writes {word} into parameter first.weight", said.show()
    where = tuple(said.first[key] for key in ("class", "module", "step"))
    assert where == ("invalid", "first.weight", 3), said.show()
    assert said.first["call_site"].startswith(HERE + ":"), said.first
    assert_silent(training(WRITES[name](0.5)), tmp_path, level)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", ["element", "all", "by mask"])
def test_what_the_program_writes_into_its_batch_is_told_with_its_line(name, level, tmp_path):
    said = told(training(batch=WRITES[name](math.nan)), tmp_path, level)
    assert said.first["title"] == "The program writes NaN into batch tensor input 0", said.show()
    assert said.first["call_site"].startswith(HERE + ":"), said.first
    assert_silent(training(batch=WRITES[name](0.5)), tmp_path, level)


@pytest.mark.parametrize("at", [9, 13])
def test_an_infinity_that_loss_and_gradients_hide_is_a_fault_in_steps_that_are_not_watched_too(at, tmp_path):
    """tanh makes it 1: whether the weights are read in a step or after the last one."""
    said = told(training(element(math.inf), at=at), tmp_path, "live", steps=18 if at == 9 else 14)
    assert said.status == "fault" and said.first["module"] == "first.weight", said.show()
    assert_silent(training(element(1.0), at=at), tmp_path, "live", steps=18)


def test_what_is_written_after_the_last_step_is_a_bad_parameter_though_no_operation_is_heard(tmp_path):
    said = told(training(element(math.inf), at=13), tmp_path, "steps", steps=14)
    assert said.status == "fault" and "first.weight" in said.first["title"], said.show()
    assert_silent(training(element(1.0), at=13), tmp_path, "steps", steps=14)


def smoothed(kept):
    """Classes that do not exist are masked; from step 4 on the loss is smoothed over `kept` of all 8."""

    def step(i, net, opt):
        x, y = data()
        scores = net(x)
        scores[:, 5:] = -math.inf
        logs = F.log_softmax(scores, -1)
        loss = F.nll_loss(logs, y)
        if i >= 4:
            loss = 0.9 * loss - 0.1 * logs[:, :kept].mean(-1).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()

    return loop(step, model=lambda: torch.nn.Linear(6, 8), lr=0.1)


@pytest.mark.parametrize("level", LEVELS)
def test_a_mean_over_masked_entries_is_the_origin_and_not_the_mask(level, tmp_path):
    said = told(smoothed(8), tmp_path, level, steps=6)
    assert said.what[:3] == ("invalid", "aten::mean", "loss") and said.first["step"] == 4, said.show()
    assert said.first["advice"][0]["id"] == "leave-masked-out" and len(said.loud) == 1, said.show()
    assert_silent(smoothed(5), tmp_path, level, steps=6)
