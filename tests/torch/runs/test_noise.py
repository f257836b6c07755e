# SPDX-License-Identifier: Apache-2.0
"""One cause is one finding, however often it strikes and wherever its numbers are computed again. Its steps are
counted as the program's loop counts them: each pass through the model is a step, skipped ones included. Each fault
has a repaired twin that is clean."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch")
import nanhunt  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

pytestmark = pytest.mark.usefixtures("library", "no_watch_left")
LEVELS = pytest.mark.parametrize("level", ["ops", "live"])
EVERY, STEPS = 5, 40
STRUCK = [i for i in range(STEPS) if i % EVERY == 3]


def nan_constant(y, bad):
    return (y * (math.nan if bad else 1.0)).square().mean()


def log_of_zero(y, bad):
    return torch.log(y.abs() * (0 if bad else 1) + (0 if bad else 1)).mean()


def zero_by_zero(y, bad):
    z = y * (0 if bad else 1)
    return (z / (z if bad else z.abs() + 1)).mean()


# What makes the loss, and the class and the operation that are named.
LOSSES = {
    "a NaN constant": (nan_constant, "invalid", "aten::mul"),
    "log(0)": (log_of_zero, "divide_by_zero", "aten::log"),
    "0/0": (zero_by_zero, "divide_by_zero", "aten::div"),
}
NAMED = pytest.mark.parametrize("name", LOSSES)


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(4, 4)

    def forward(self, x, bad):
        return torch.log(torch.relu(self.inner(x)) * (0 if bad else 1) + (0 if bad else 1))


class Checkpointed(torch.nn.Module):
    def __init__(self, reentrant) -> None:
        super().__init__()
        self.first, self.block, self.last = torch.nn.Linear(4, 4), Block(), torch.nn.Linear(4, 1)
        self.reentrant = reentrant

    def forward(self, x, bad):
        return self.last(checkpoint(self.block, self.first(x), bad, use_reentrant=self.reentrant))


def watched(folder, level, model, train):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with nanhunt.watch(model, optimizer, out=folder, level=level, quiet=True) as watch:
        train(model, optimizer)
    return watch


def loud(watch):
    return [f for f in watch.findings if f.severity != "info"]


@LEVELS
@NAMED
@pytest.mark.parametrize("bad", [True, False])
def test_a_bad_loss_every_few_steps_that_the_program_skips_is_one_finding_in_the_programs_steps(
    tmp_path, level, name, bad
):
    make_loss, cls, op = LOSSES[name]

    def train(model, optimizer):
        for i in range(STEPS):
            loss = make_loss(model(torch.rand(8, 4)), bad and i in STRUCK)
            if not torch.isfinite(loss):
                continue
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    torch.manual_seed(0)
    watch = watched(tmp_path / "run", level, torch.nn.Linear(4, 1), train)
    if not bad:
        assert (watch.verdict, watch.findings) == ("clean", [])
        return
    assert watch.verdict == "warning"
    (finding,) = loud(watch)
    assert (finding.class_, finding.op, finding.step) == (cls, op, STRUCK[0])
    assert (finding.bad_steps.count, finding.bad_steps.first_step) == (len(STRUCK), STRUCK[0])
    assert finding.bad_steps.last_step == STRUCK[-1]
    assert f"in {len(STRUCK)} of {STEPS} steps" in finding.explanation


@LEVELS
@NAMED
@pytest.mark.parametrize("bad", [True, False])
def test_a_bad_number_and_its_own_derivative_are_one_finding(tmp_path, level, name, bad):
    make_loss, cls, op = LOSSES[name]

    def train(model, optimizer):
        for i in range(6):
            optimizer.zero_grad()
            make_loss(model(torch.rand(8, 4)), bad and i == 3).backward()
            optimizer.step()

    torch.manual_seed(0)
    watch = watched(tmp_path / "run", level, torch.nn.Linear(4, 1), train)
    if not bad:
        assert (watch.verdict, watch.findings) == ("clean", [])
        return
    assert watch.verdict == "fault"
    (finding,) = loud(watch)
    assert (finding.class_, finding.op, finding.phase, finding.step) == (cls, op, "loss", 3)


@LEVELS
@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("bad", [True, False])
def test_what_a_checkpoint_computes_again_is_the_finding_of_its_forward(tmp_path, level, reentrant, bad):
    def train(model, optimizer):
        for i in range(6):
            optimizer.zero_grad()
            model(torch.rand(8, 4), bad and i == 3).square().mean().backward()
            optimizer.step()

    torch.manual_seed(0)
    watch = watched(tmp_path / "run", level, Checkpointed(reentrant), train)
    if not bad:
        assert (watch.verdict, watch.findings) == ("clean", [])
        return
    assert watch.verdict == "fault"
    (finding,) = loud(watch)
    assert (finding.op, finding.phase, finding.module, finding.step) == ("aten::log", "forward", "block", 3)
