# SPDX-License-Identifier: Apache-2.0
"""Weights that a program tries and takes back, as a line search does: what is bad there harms nobody, and is a warning.
Averages that it copies in to evaluate them are what it wants to know about: a fault."""

from __future__ import annotations

import math

import pytest
import torch
from own_programs import LEVELS, Net, classifier, data, told
from torch.nn import functional as F

HUGE = 3e38


def evaluate(net):
    x, y = data()
    return F.cross_entropy(net(x), y).item()


def by_sum(weight):
    weight += HUGE


def by_product(weight):
    weight.mul_(1e39)


def by_copy(weight):
    weight.copy_(torch.full_like(weight, HUGE))


def slightly(weight):
    weight.mul_(1.5)


def trying(move, keep=False):
    """After each step one weight is `move`d and evaluated, and put back unless it is to be kept."""

    def after(i, net, x, y):
        with torch.no_grad():
            weight = net.last.weight
            before = weight.clone()
            move(weight)
            evaluate(net)
            if not keep:
                weight.copy_(before)

    return classifier(after=after)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("move", [by_sum, by_product], ids=lambda f: f.__name__)
def test_a_trial_that_is_taken_back_is_at_most_a_warning(move, level, tmp_path):
    said = told(trying(move), tmp_path, level, steps=8)
    assert said.status in ("warning", "clean"), said.show()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(("move", "keep"), [(by_copy, False), (by_sum, True)], ids=["swapped in", "kept"])
def test_weights_that_are_swapped_in_or_kept_are_a_fault(move, keep, level, tmp_path):
    said = told(trying(move, keep=keep), tmp_path, level, steps=8)
    assert said.status == "fault", said.show()


@pytest.mark.parametrize("level", LEVELS)
def test_a_fault_after_a_trial_is_still_one(level, tmp_path):
    # Given trials in each step, and a validation of the weights themselves that is bad once
    trial = trying(by_sum)

    def build():
        step, net, opt = trial()

        def then(i):
            step(i)
            with torch.no_grad():
                x, y = data()
                F.cross_entropy(net(x), y, weight=torch.full((3,), 0.0 if i == 5 else 1.0)).item()

        return then, net, opt

    said = told(build, tmp_path, level, steps=8)
    assert said.status == "fault" and said.first["severity"] == "fault", said.show()
    assert said.first["class"] != "overflow", said.show()


@pytest.mark.parametrize("level", LEVELS)
def test_a_trial_that_stays_finite_is_silent(level, tmp_path):
    said = told(trying(slightly), tmp_path, level, steps=8)
    assert said.status == "clean" and not said.loud, said.show()


def test_the_helpers_move_what_they_say():
    torch.manual_seed(0)
    net = Net()
    with torch.no_grad():
        by_sum(net.last.weight)
    assert not math.isfinite(evaluate(net))
