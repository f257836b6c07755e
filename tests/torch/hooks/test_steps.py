# SPDX-License-Identifier: Apache-2.0
"""Where steps end in loops with several optimizers, as they are written: nobody says what belongs together."""
from __future__ import annotations

import nanhunt
import pytest
import torch
from step_runs import Root, watched
from torch import nn

pytestmark = pytest.mark.usefixtures("library")


class Loop:
    """A maker and a judge. Notes the number of the step in which each of their losses is computed."""

    def __init__(self, watch, frozen=False):
        self.watch, self.told = watch, []
        self.maker, self.judge = nn.Linear(2, 3), nn.Linear(3, 1)
        self.judge.requires_grad_(not frozen)
        self.second = torch.optim.SGD(self.maker.parameters(), lr=0.1)
        self.first = torch.optim.SGD(self.judge.parameters(), lr=0.1)

    def _train(self, name, optimizer, loss):
        self.told.append((name, self.watch.step_number))
        loss.backward()
        optimizer.step()

    def judge_once(self, grad=True, buffered=False):
        with torch.set_grad_enabled(grad):
            fake = torch.zeros(4, 3) if buffered else self.maker(torch.ones(4, 2))
        self.first.zero_grad()
        self._train("judge", self.first, (self.judge(torch.ones(4, 3)) - self.judge(fake.detach())).mean())

    def make_once(self):
        self.second.zero_grad()
        self._train("maker", self.second, self.judge(self.maker(torch.ones(4, 2))).mean())

    def steps(self, name):
        return [step for who, step in self.told if who == name]


@pytest.fixture
def watch(tmp_path):
    with nanhunt.watch(out=tmp_path / "watched", level="ops", quiet=True) as one:
        yield one


@pytest.mark.parametrize("grad", [True, False], ids=["detached", "without gradient"])
def test_a_judge_and_then_a_maker_are_one_step_from_the_first_on(watch, grad):
    loop = Loop(watch)
    for _ in range(4):
        loop.judge_once(grad)
        loop.make_once()
    assert loop.steps("judge") == loop.steps("maker") == [0, 1, 2, 3]


def test_a_judge_whose_samples_were_made_before_and_a_maker_are_one_step_from_the_first_on(watch):
    loop = Loop(watch)
    for _ in range(4):
        loop.judge_once(buffered=True)
        loop.make_once()
    assert loop.steps("judge") == loop.steps("maker") == [0, 1, 2, 3]


def test_a_maker_and_then_a_judge_are_one_step_from_the_first_on(watch):
    loop = Loop(watch)
    for _ in range(4):
        loop.make_once()
        loop.judge_once()
    assert loop.steps("judge") == loop.steps("maker") == [0, 1, 2, 3]


@pytest.mark.parametrize("judge_first", [True, False])
def test_a_judge_that_is_frozen_at_first_joins_the_steps_that_are_counted(watch, judge_first):
    loop = Loop(watch, frozen=True)
    for i in range(6):
        if i == 3:
            loop.judge.requires_grad_(True)
        if judge_first and i >= 3:
            loop.judge_once()
        loop.make_once()
        if not judge_first and i >= 3:
            loop.judge_once()
    assert loop.steps("maker") == [0, 1, 2, 3, 4, 5]
    assert loop.steps("judge") == [3, 4, 5]


def test_several_critics_are_steps_of_their_own_and_the_maker_comes_with_the_next(watch):
    """That a maker follows cannot be known at the critic's boundary. StepTracker stay right otherwise."""
    loop = Loop(watch)
    for i in range(9):
        loop.judge_once()
        if i % 3 == 2:
            loop.make_once()
    # The first border is seen late: one who could step and does not is waited for once.
    assert loop.steps("judge") == [0, 0, 2, 3, 4, 5, 6, 7, 8]
    assert loop.steps("maker") == [3, 6, 9]


def test_an_optimizer_that_nothing_was_computed_for_is_not_waited_for(watch):
    model, other = nn.Linear(2, 1), nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    unused = torch.optim.SGD(other.parameters(), lr=0.1)  # noqa: F841
    told = []
    for _ in range(3):
        loss = model(torch.ones(1, 2)).sum()
        told.append(watch.step_number)
        loss.backward()
        optimizer.step()
    assert told == [0, 1, 2] and watch.step_number == 3


def test_two_optimizers_of_the_same_parameters_take_turns(watch):
    model = nn.Linear(2, 1)
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1), torch.optim.Adam(model.parameters())]
    told = []
    for i in range(6):
        told.append(watch.step_number)
        model(torch.ones(1, 2)).sum().backward()
        optimizers[i // 3].step()
    assert told[:3] == [0, 1, 2] and watch.step_number == 6
    assert told[3:] == [3, 3, 5]  # the change is seen when the second one comes again


class Guide(nn.Module):
    """Never called. It makes its parameters when it is first asked for something."""

    def __init__(self):
        super().__init__()
        self.scales = nn.Module()

    def draw(self, spoilt):
        if not hasattr(self.scales, "a"):
            self.scales.a, self.scales.b = (nn.Parameter(torch.ones(2)) for _ in range(2))
        return (self.scales.a * (0.0 if spoilt else 1.0)).log() + self.scales.b


@pytest.mark.parametrize("bad", [None, 4])
def test_of_optimizers_that_are_made_one_for_each_parameter_when_they_first_step_each_round_is_a_step(bad, tmp_path):
    def build():
        guide, optimizers = Guide(), {}

        def step(i):
            guide.draw(i == bad).sum().backward()
            for p in guide.parameters():
                if p not in optimizers:
                    optimizers[p] = torch.optim.SGD([p], lr=0.01)
                optimizers[p].step()
                p.grad = None

        return step, guide, None

    run = watched(build, tmp_path, 6, level="live")
    if bad is None:
        assert "in 6 steps" in run.report["verdict"]["headline"], run.report["verdict"]
        assert run.report["verdict"]["status"] == "clean", run.report["verdict"]
        return
    assert (run.headline["op"], run.headline["step"], run.headline["bad_steps"]["last_step"]) == ("aten::log", 4, 5)
    assert "parameter scales.a" in run.headline["sinks"], run.headline["sinks"]


def test_what_came_after_a_border_that_is_seen_late_is_found(tmp_path):
    """The judge could have stepped and did not: the first step's end is seen at the second one's boundary. Until then
    operations are those of the first."""
    def build(bad=()):
        maker, judge = nn.Sequential(nn.Linear(6, 6), Root()), nn.Linear(6, 1)
        second, first = torch.optim.SGD(maker.parameters(), lr=0.1), torch.optim.SGD(judge.parameters(), lr=0.1)

        def step(i):
            x = torch.randn(4, 6) + (5000.0 if i in bad else 0.0)
            second.zero_grad()
            judge(maker(x)).mean().backward()
            second.step()

        return step, maker, judge, second, first

    run = watched(lambda: build({1}), tmp_path, steps=3)
    assert run.unheard == []
    assert (run.headline["op"], run.headline["step"]) == ("aten::sqrt", 0)
    first = run.records("health")[0]
    assert (first["step"], first["bad"]) == (0, [])
