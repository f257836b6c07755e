# SPDX-License-Identifier: Apache-2.0
"""Level live: operations are heard as they run, held in memory, and in the trace where a step was not healthy."""
from __future__ import annotations

import math
import time

import nanhunt
import pytest
import torch
from saved import report_of
from step_runs import Root, batch, net, run_once
from torch import nn

pytestmark = pytest.mark.usefixtures("library")
BAD = 3
FIRST = 8  # steps that are heard in any case
LEARN = 4  # steps that must have run unheard before it is known what hearing one costs
UNHEARD = "operations of steps that the budget had no room for"


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


def one_of_two_ranks(monkeypatch, rank=0):
    """Several ranks hear the same steps, by counting: one in so many, whatever time they take."""
    monkeypatch.setenv("RANK", str(rank))
    monkeypatch.setenv("WORLD_SIZE", "2")


@pytest.mark.parametrize("every", [3, 4, 5])
def test_contents_that_changed_while_nobody_listened_are_not_held_against_anybody(tmp_path, monkeypatch, every):
    # Given steps that are heard now and then,
    one_of_two_ranks(monkeypatch)
    bad = 4 * every
    build, steps = trained(steps=bad + 3, loss=at(bad, lambda y: (y * 0).log().sum(), lambda y: y.square().mean()),
                           optimizer=lambda p: torch.optim.AdamW(p, lr=0.01))
    # when one of them goes bad,
    run = watched(tmp_path, build, steps, budget=99.0 if every == 3 else 200.0 / every)
    assert run.notes[UNHEARD] == bad - FIRST - (bad - 1) // every + (FIRST - 1) // every
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


def test_a_bad_step_that_the_budget_left_out_says_so_and_the_next_ones_are_heard(tmp_path):
    # Given two bad steps in a row, when it is not known yet what hearing a step costs:
    first = FIRST + 1

    def without_update(i, model):
        for p in model.parameters() if i == first else ():
            p.grad = None

    build, steps = trained(without_update, lambda y, i: torch.log(y * 0).sum() if i in (first, first + 1)
                           else mean_square(y), steps=first + 4)
    run = watched(tmp_path, build, steps, budget=1.0)
    # then of the first it is said that it was not heard and what to do,
    assert [step for step, _ in run.unheard] == [first] and "without `--budget`" in run.unheard[0][1], run.unheard
    # and the second one's operation is named.
    found = run.report["findings"]
    assert any(f["op"] == "aten::log" and f["step"] == first + 1 for f in found), found


# The budget, with a clock of our own.
def included():
    return repr(torch._C._dispatch_tls_local_include_set())


def heard_steps(folder, monkeypatch, budget, steps, seconds):
    """Which of so many steps were heard: where the tap listens stands in PyTorch's thread. `seconds(step, heard)`: what
    a step takes."""
    now, kinds = [0.0], []
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x, alone = torch.ones(1, 2), included()
    with monkeypatch.context() as patched, nanhunt.watch(out=folder, budget=budget, quiet=True) as watch:
        patched.setattr(time, "perf_counter", lambda: now[0])
        for i in range(steps):
            loss = model(x).sum()
            kinds.append(included() != alone)
            loss.backward()
            now[0] += seconds(i, kinds[-1])
            optimizer.step()
            optimizer.zero_grad()
    assert kinds.count(False) == watch.notes.get(UNHEARD, 0)
    return kinds


def costly(i, heard):
    return 3.0 if heard else 1.0


def test_the_first_steps_are_heard_then_as_many_as_the_share_has_room_for(tmp_path, monkeypatch):
    kinds = heard_steps(tmp_path / "run", monkeypatch, 3, 1000, costly)
    assert all(kinds[:FIRST]) and not any(kinds[FIRST:FIRST + LEARN])
    extra = 2.0 * sum(kinds[FIRST:])
    total = sum(3.0 if kind else 1.0 for kind in kinds)
    assert 0.02 * total < extra <= 0.03 * total


def test_time_between_steps_earns_nothing(tmp_path, monkeypatch):
    # Given a program that waits a thousand times as long as it computes after each tenth step,
    kinds = heard_steps(tmp_path / "run", monkeypatch, 3, 1000,
                        lambda i, heard: costly(i, heard) + (1000.0 if i % 10 == 9 else 0.0))
    # then no more of its steps are heard than if it had counted for a step or two.
    most = 1000 + 2 * 100 + 9 * sum(kinds)  # of what counts
    assert 2 * (sum(kinds[FIRST:]) - 1) <= 0.03 * most


def test_of_steps_that_cost_nothing_to_hear_all_are_heard_but_for_a_sample(tmp_path, monkeypatch):
    kinds = heard_steps(tmp_path / "run", monkeypatch, 3, 100, lambda i, heard: 1.0)[FIRST + LEARN:]
    assert 0.85 * len(kinds) <= sum(kinds) < len(kinds)


def test_unheard_steps_that_were_slow_when_they_were_first_measured_do_not_hide_what_hearing_costs(
        tmp_path, monkeypatch):
    # Given a program whose first unheard steps take longer than heard ones do (it warms up, the machine is busy),
    kinds = heard_steps(tmp_path / "run", monkeypatch, 3, 1000, lambda i, heard: 2.0 if heard else
                        2.5 if i < FIRST + LEARN else 1.0)
    # then it is found out soon, though for a while hearing seemed to cost nothing.
    assert sum(kinds) <= 150


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_whole_time_is_every_step_and_none_is_none(tmp_path, monkeypatch, ranks):
    if ranks > 1:
        one_of_two_ranks(monkeypatch)
    for budget, heard in ((100, True), (0, False)):
        assert heard_steps(tmp_path / str(budget), monkeypatch, budget, 50, costly) == [heard] * 50


def test_ranks_hear_the_same_steps_whatever_time_they_take(tmp_path, monkeypatch):
    heard = []
    for rank, seconds in enumerate((costly, lambda i, heard: 50.0 if heard else 2.0)):
        one_of_two_ranks(monkeypatch, rank)
        heard.append(heard_steps(tmp_path / str(rank), monkeypatch, 3, 1000, seconds))
    one, other = heard
    assert one == other and all(one[:FIRST]) and 10 <= sum(one[FIRST:]) <= 0.03 * 1000 / 2 + 1


def test_bad_steps_whose_operations_are_not_kept_are_counted_and_no_others(tmp_path):
    build, steps = trained(loss=lambda y, i: (y.square().mean() + torch.log(y.sum() * 0)), steps=40)
    run = watched(tmp_path, build, steps)
    kept = {row["step"] for row in run.records("ops")}
    said = [note for note in run.report["coverage"]["unwatched"] if note.endswith("not kept op by op.")]
    assert said == [f"{steps - len(kept)} later bad steps were not kept op by op."], (said, kept)


def test_healthy_steps_leave_few_bytes(tmp_path):
    """At most 5 MB for 10,000 of them."""
    def size(steps):
        build, _ = trained()
        run_once(build, steps, tmp_path / str(steps))
        return sum(file.stat().st_size for file in (tmp_path / str(steps)).rglob("*") if file.is_file())

    assert size(600) - size(100) <= 500 * 500
