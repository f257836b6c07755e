# SPDX-License-Identifier: Apache-2.0
"""Level live: operations are heard as they run, held in memory, and in the trace where a step was not healthy."""
from __future__ import annotations

import math

import nanhunt
import pytest
import torch
from nanhunt._steps import live
from nanhunt._steps.live import FIRST, Budget, BudgetOfRanks
from step_runs import Root, batch, net, run_once
from torch import nn
from watched import report_of

pytestmark = pytest.mark.usefixtures("library")
BAD = 3


class Counted(nn.Module):
    """Has state of its own: calls of it are counted."""

    calls = 0

    def forward(self, x):
        Counted.calls += 1
        return x


def trained(between=lambda step, model: None, loss=lambda y, step: y.square().mean(), steps=6, extra=(),
            optimizer=None):
    """As run_once takes it."""
    def build():
        Counted.calls = 0
        model = net(*extra)
        optimize = (optimizer or (lambda p: torch.optim.SGD(p, lr=0.01)))(model.parameters())

        def step(i):
            x, _ = batch(bad=False)
            optimize.zero_grad()
            loss(model(x), i).backward()
            between(i, model)
            optimize.step()

        return step, model, optimize, lambda: torch.tensor(Counted.calls)

    return build, steps


def watched(tmp_path, build, steps, budget=None, **options):
    alone = run_once(build, steps)
    run = run_once(build, steps, tmp_path / "run", budget=budget, **options)
    assert run.digest == alone.digest, "the run is another one"
    run.ops = run.report["coverage"]["ops"]
    return run


def at(step, bad, good):
    return lambda y, i: bad(y) if i == step else good(y)


def own_clipping(step, bad=BAD):
    """A program's own clipping, which divides by a norm that is 0 once."""
    def clip(i, model):
        if i == step:
            for p in model.parameters():
                p.grad.div_(p.grad.norm() * (0.0 if bad is not None else 1.0))

    return clip


def mean_square(y):
    return y.square().mean()


def tiny_gradients(i, model):
    if i == BAD:
        for p in model.parameters():
            p.grad.mul_(1e-30)


FAULTS = {
    "in a loss of bare functions": (trained(loss=at(BAD, lambda y: torch.log(y * 0).sum(), mean_square)), "aten::log"),
    "between backward and the optimizer": (trained(between=own_clipping(BAD)), "aten::div_"),
    "in a vmapped loss": (trained(loss=at(BAD, lambda y: torch.vmap(lambda row: (row * 0).log().sum())(y).sum(),
                                          mean_square)), "aten::log"),
    "in the optimizer": (trained(between=tiny_gradients, optimizer=lambda p: torch.optim.Adam(
        p, lr=0.01, eps=0.0, betas=(0.0, 0.0))), None),
}


@pytest.mark.parametrize("where", FAULTS)
def test_a_fault_is_named_where_it_began_and_nothing_is_run_again(tmp_path, where):
    (build, steps), op = FAULTS[where]
    run = watched(tmp_path, build, steps)
    assert run.unheard == []
    origin = run.headline
    assert run.report["verdict"]["status"] == "fault" and origin["step"] == BAD, origin
    assert op is None or (origin["op"] == op and origin["confidence"] == "proved"), origin
    assert op is None or origin["call_site"].startswith("test_live.py:"), origin
    assert run.ops > 0 and not any("errors inside" in note for note in run.notes), run.notes


TWINS = {
    "in a loss of bare functions": trained(loss=lambda y, i: torch.log(y.square() + 1).sum()),
    "between backward and the optimizer": trained(between=own_clipping(BAD, bad=None)),
    "in a vmapped loss": trained(loss=lambda y, i: torch.vmap(lambda row: (row.square() + 1).log().sum())(y).sum()),
    "in the optimizer": trained(optimizer=lambda p: torch.optim.Adam(p, lr=0.01)),
    "masks of -Inf in every step": trained(loss=lambda y, i: torch.softmax(
        y.masked_fill(torch.arange(3) > 1, -math.inf), 1)[:, :2].square().sum()),
}


@pytest.mark.parametrize("where", TWINS)
def test_a_healthy_run_is_clean_and_leaves_the_ops_of_its_first_step_alone(tmp_path, where):
    build, steps = TWINS[where]
    run = watched(tmp_path, build, steps)
    assert run.report["verdict"]["status"] == "clean" and run.report["findings"] == []
    assert run.report["coverage"]["steps"] == 6
    (tmp_path / "shorter").mkdir()
    assert run.ops == watched(tmp_path / "shorter", build, 2).ops > 0


def test_a_model_is_called_as_often_as_alone_though_a_step_goes_bad(tmp_path):
    # Given a model that counts its calls, and a step that goes bad,
    build, steps = trained(extra=(Counted(), Root()), loss=at(BAD, lambda y: (y * 0).log().sum(), lambda y: y.mean()))
    # when its steps are watched as they run, then the count is that of the run alone (run_once compares it).
    assert watched(tmp_path, build, steps).report["verdict"]["status"] == "fault"


@pytest.mark.parametrize("pattern", [(True, False, False), (False, True), (True, True, False)], ids=str)
def test_contents_that_changed_while_nobody_listened_are_not_held_against_anybody(tmp_path, monkeypatch, pattern):
    # Given steps that are watched now and then,
    monkeypatch.setattr(Budget, "has_room", lambda self: pattern[self.steps % len(pattern)])
    bad = 9
    build, steps = trained(steps=12, loss=at(bad, lambda y: (y * 0).log().sum(), lambda y: y.square().mean()),
                           optimizer=lambda p: torch.optim.AdamW(p, lr=0.01))
    # when one of either kind goes bad,
    run = watched(tmp_path, build, steps, budget=50.0)
    # then it is named, and what the optimizer wrote in between is no corruption.
    assert run.headline["op"] == "aten::log" and run.headline["step"] == bad, run.report["findings"]
    assert {f["class"] for f in run.report["findings"]} & {"corruption", "unseen_kernel", "uninitialised"} == set()


@pytest.mark.parametrize("part", [False, True], ids=["whole", "a part"])
@pytest.mark.parametrize("bad", [0, BAD])
def test_the_op_after_compiled_code_is_named(tmp_path, bad, part):
    # Given a model that was compiled, by a compiler that runs it as it is written,
    def build():
        model = nn.Sequential(nn.Sequential(torch.compile(net(), backend="eager"))) if part else torch.compile(
            net(), backend="eager")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

        def step(i):
            x, _ = batch()
            y = model(x)
            (torch.log(y * 0).sum() if i == bad else y.mean()).backward()
            optimizer.step()
            optimizer.zero_grad()

        return step, model, optimizer

    # when what follows it goes bad, then the op is named.
    run = run_once(build, 5, tmp_path / "run")
    assert run.unheard == []
    assert run.headline["op"] == "aten::log" and run.headline["step"] == bad


def test_the_end_of_a_watch_keeps_a_step_that_ended_badly(tmp_path):

    model = net()
    with pytest.raises(AssertionError), nanhunt.watch(model, out=tmp_path / "run"):
        x, _ = batch()
        loss = torch.log(model(x) * 0).sum()
        assert torch.isfinite(loss)
    report = report_of(tmp_path / "run")
    origin = next(f for f in report["findings"] if f["id"] == report["verdict"]["origin"])
    assert origin["op"] == "aten::log" and origin["confidence"] == "proved"


class CountedOptimizer(torch.optim.SGD):
    """Makes what it stores infinite in one step."""

    def step(self, closure=None):
        super().step(closure)
        self.steps = getattr(self, "steps", -1) + 1
        if self.steps == BAD:
            with torch.no_grad():
                for group in self.param_groups:
                    torch._foreach_div_(group["params"], 0.0)


def test_what_an_optimizer_makes_bad_is_named(tmp_path):
    build, steps = trained(optimizer=lambda p: CountedOptimizer(p, lr=0.01))
    run = watched(tmp_path, build, steps)
    assert run.headline["op"] == "aten::_foreach_div_" and run.headline["step"] == BAD, run.report["findings"]


def test_a_bad_step_that_the_budget_left_out_says_so_and_the_next_ones_are_heard(tmp_path, monkeypatch):
    # Given a budget without room, and two bad steps in a row:
    monkeypatch.setattr(Budget, "has_room", lambda self: False)
    def without_update(i, model):
        for p in model.parameters() if i == BAD else ():
            p.grad = None

    bad = (BAD, BAD + 1)
    build, steps = trained(without_update, lambda y, i: torch.log(y * 0).sum() if i in bad else mean_square(y))
    run = watched(tmp_path, build, steps, budget=1.0)
    # then of the first it is said that it was not heard and what to do,
    assert [step for step, _ in run.unheard] == [BAD] and "without `--budget`" in run.unheard[0][1], run.unheard
    # and the second one's operation is named.
    assert any(f["op"] == "aten::log" and f["step"] == BAD + 1 for f in run.report["findings"]), run.report["findings"]


# The budget, with times of our own.
def spend(budget, steps, plain=1.0, live=3.0):
    """Which of so many steps were watched."""
    kinds = []
    for _ in range(steps):
        watch = budget.has_room()
        kinds.append(watch)
        budget.step_took(live if watch else plain, watch)
    return kinds


def test_the_first_steps_are_watched_then_as_many_as_the_share_has_room_for():
    kinds = spend(Budget(0.03), 1000)
    assert all(kinds[:FIRST]) and not any(kinds[FIRST:FIRST + live._LEARN])
    extra = 2.0 * sum(kinds[FIRST:])
    total = sum(3.0 if kind else 1.0 for kind in kinds)
    assert 0.02 * total < extra <= 0.03 * total


def test_time_between_steps_earns_nothing():
    # Given a program that waits a thousand times as long as it computes after each tenth step,
    budget, kinds = Budget(0.03), []
    for i in range(1000):
        watch = budget.has_room()
        kinds.append(watch)
        budget.step_took((3.0 if watch else 1.0) + (1000.0 if i % 10 == 9 else 0.0), watch)
    # then no more of its steps are watched than if it had counted for a step or two.
    most = 1000 + 2 * 100 + 9 * sum(kinds)  # of what counts
    assert 2 * (sum(kinds[FIRST:]) - 1) <= 0.03 * most


def test_of_steps_that_cost_nothing_to_watch_all_are_watched_but_for_a_sample():
    kinds = spend(Budget(0.03), 100, live=1.0)[FIRST + live._LEARN:]
    assert sum(kinds) >= 0.85 * len(kinds)


def test_unwatched_steps_that_were_slow_when_they_were_first_measured_do_not_hide_what_watching_costs():
    # Given a program whose first unwatched steps take longer than watched ones do (it warms up, the machine is busy),
    budget, watched, plain = Budget(0.03), 0, 0
    for _ in range(1000):
        if budget.has_room():
            budget.step_took(2.0, True)
            watched += 1
        else:
            budget.step_took(2.5 if plain < live._LEARN else 1.0, False)
            plain += 1
    # then it is found out soon, though for a while watching seemed to cost nothing.
    assert watched <= 150


@pytest.mark.parametrize("kind", [Budget, BudgetOfRanks])
def test_the_whole_time_is_every_step_and_none_is_none(kind):
    assert all(spend(kind(1.0), 50)) and not any(spend(kind(0.0), 50))


def test_ranks_watch_the_same_steps_whatever_time_they_take():
    one, other = spend(BudgetOfRanks(0.03), 1000), spend(BudgetOfRanks(0.03), 1000, plain=2.0, live=50.0)
    assert one == other and all(one[:FIRST]) and 10 <= sum(one[FIRST:]) <= 0.03 * 1000 / 2 + 1
