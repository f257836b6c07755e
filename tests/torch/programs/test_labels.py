# SPDX-License-Identifier: Apache-2.0
"""Labels, targets and weights that are bad when the loss reads them, at any level, whether the step is watched or not:
bad input, at the line that reads them. At level ops, where an operation of PyTorch made them so, it is that operation.
"""

from __future__ import annotations

import numpy
import pytest
import torch
from own_programs import LEVELS, Net, assert_silent, told
from torch import nn
from torch.nn import functional as F

STEPS, BAD = 14, 11
HOW = ("live", "ops")


def training(target_of, loss_of):
    """The targets are the program's own, from no call of a module: a file, an environment, a table."""

    def build():
        net = Net()
        opt = torch.optim.SGD(net.parameters(), 1e-2)

        def step(i):
            x = torch.randn(8, 6)
            target = target_of(i)
            opt.zero_grad()
            loss_of(net(x), target).backward()
            opt.step()

        return step, net, opt

    return build


def of_a_file(bad):
    """As NumPy has read it: row 5 has no label in one step."""

    def target(i):
        rows = numpy.full((8, 3), 0.25, dtype=numpy.float32)
        if bad and i == BAD:
            rows[5, 1] = numpy.nan
        return torch.from_numpy(rows)

    return target


def advantages(bad):
    """A program's own, brought to variance 1: all are the same once."""

    def target(i):
        reward = torch.arange(24.0).view(8, 3) if not bad or i != BAD else torch.full((8, 3), 0.25)
        return (reward - reward.mean()) / reward.std()

    return target


def weighted(out, weight):
    return (out.square() * weight).mean()


LOSSES = {"squared error": lambda out, y: (out - y).square().mean(), "torch's own": F.mse_loss, "weights": weighted}


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("loss", LOSSES)
def test_a_label_that_no_operation_made_bad_is_bad_input_at_the_line_that_reads_it(loss, how, tmp_path):
    said = told(training(of_a_file(True), LOSSES[loss]), tmp_path / "bad", how, STEPS)
    assert said.status == "fault" and said.first["class"] == "bad_input", said.show()
    assert (said.first["step"], said.first["phase"]) == (BAD, "loss")
    assert "1 NaN of 24, in row 5" in said.first["title"]
    assert said.first["call_site"].startswith("test_labels.py:")
    assert [advice["id"] for advice in said.first["advice"]] == ["look-beyond-ops", "drop-bad-samples"]
    assert_silent(training(of_a_file(False), LOSSES[loss]), tmp_path / "good", how, STEPS)


@pytest.mark.parametrize("how", HOW)
def test_a_target_that_the_program_computed_is_that_operation(how, tmp_path):
    said = told(training(advantages(True), weighted), tmp_path / "bad", how, STEPS)
    assert said.what[:3] == ("divide_by_zero", "aten::div", "data"), said.show()
    assert_silent(training(advantages(False), weighted), tmp_path / "good", how, STEPS)


@pytest.mark.parametrize("how", HOW)
def test_what_an_environment_gave_after_a_rollout_is_what_the_loss_reads_and_no_evaluation_s(how, tmp_path):
    def rewards(bad):
        given = of_a_file(bad)

        def build():
            net = Net()
            opt = torch.optim.SGD(net.parameters(), 1e-2)

            def step(i):
                x = torch.randn(8, 6)
                with torch.no_grad():
                    net(x)
                reward = given(i).clone()
                reward = (reward - reward.mean()) / (reward.std() + 1e-8)
                opt.zero_grad()
                weighted(net(x), reward).backward()
                opt.step()

            return step, net, opt

        return build

    said = told(rewards(True), tmp_path / "bad", how, STEPS)
    assert said.first["class"] == "bad_input" and said.first["phase"] == "loss", said.show()
    assert said.first["title"].startswith(f"The loss of step {BAD} reads a tensor"), said.show()
    assert_silent(rewards(False), tmp_path / "good", how, STEPS)


@pytest.mark.parametrize("level", LEVELS)
def test_infinite_weights_that_the_loss_leaves_out_are_no_fault(level, tmp_path):
    def build(bad):
        def target(i):
            return torch.full((8, 3), float("inf") if bad and i == BAD else 1.0)

        return training(target, lambda out, w: torch.where(torch.isfinite(w), out.square() * w.clamp(max=2), 0).mean())

    assert_silent(build(True), tmp_path / "kept out", level, STEPS)


def read_ahead(bad):
    """The samples of a batch are put together while the step before is trained, as loaders of packages do."""

    def build():
        torch.manual_seed(0)
        rows = numpy.random.default_rng(0).standard_normal((80, 6), numpy.float32)
        if bad is not None:
            rows[8 * bad + 3, 2] = numpy.nan
        samples = [torch.from_numpy(row) for row in rows]
        net = nn.Linear(6, 3)
        opt = torch.optim.SGD(net.parameters(), lr=1e-3)
        following = [torch.stack(samples[:8])]

        def step(i):
            x = following.pop()
            following.append(torch.stack(samples[8 * i + 8 : 8 * i + 16]))
            opt.zero_grad()
            net(x).square().mean().backward()
            opt.step()

        return step, net, opt

    return build


@pytest.mark.parametrize("level", ["live", "ops"])
def test_a_batch_that_was_read_ahead_is_of_the_step_that_trains_on_it(level, tmp_path):
    said = told(read_ahead(4), tmp_path / "bad", level, 7)
    assert said.what[0] == "bad_input" and said.first["step"] == 4, said.show()
    assert "step 4" in said.first["title"] and said.first["bad_steps"]["first_step"] == 4, said.show()
    assert_silent(read_ahead(None), tmp_path / "twin", level, 7)


def counted(least):
    """A loss is added up and divided by how many labels there are, as packages do: of one batch none is left."""

    def target(i):
        labels = torch.arange(8) % 3
        return torch.full_like(labels, -100) if i == BAD else labels

    def loss(out, y):
        return F.cross_entropy(out, y, reduction="sum") / (y != -100).sum().clamp(min=least)

    return training(target, loss)


@pytest.mark.parametrize("level", LEVELS)
def test_a_loss_divided_by_its_labels_says_that_all_of_them_are_ignored(level, tmp_path):
    said = told(counted(0), tmp_path / "bad", level, STEPS)
    assert said.what[:2] == ("divide_by_zero", "aten::div") and said.first["step"] == BAD, said.show()
    assert said.first["title"] == "aten::div in <loss> divides a loss by its number of labels: 0/0", said.show()
    assert "the ignored index -100" in said.first["explanation"]
    assert [advice["id"] for advice in said.first["advice"]] == ["skip-unlabelled"]
    assert_silent(counted(1), tmp_path / "good", level, STEPS)


def of_classes(weight_of_last, smoothing):
    """Classes have weights; every label of one batch is of the last class."""
    weight = torch.tensor([1.0, 1.0, weight_of_last])

    def target(i):
        labels = torch.arange(8) % 3
        return torch.full_like(labels, 2) if i == BAD else labels

    def loss(out, y):
        return F.cross_entropy(out, y, weight=weight, label_smoothing=smoothing)

    return training(target, loss)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_labels_that_all_have_class_weight_0_are_told_by_their_weights(smoothing, tmp_path):
    said = told(of_classes(0.0, smoothing), tmp_path / "bad", "live", STEPS)
    assert said.what[0] == "divide_by_zero" and said.first["step"] == BAD, said.show()
    assert "class weights of its labels, which are all 0" in said.first["title"], said.show()
    assert [advice["id"] for advice in said.first["advice"]] == ["weigh-classes"], said.show()
    assert_silent(of_classes(0.5, smoothing), tmp_path / "good", "live", STEPS)
