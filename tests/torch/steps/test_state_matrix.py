# SPDX-License-Identifier: Apache-2.0
"""Whatever a model keeps, and wherever: a run that is watched ends with the same weights, and keeps the same."""
from __future__ import annotations

import functools
import sys
from pathlib import Path

import pytest
import torch
from step_runs import digest_of, run_once

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "neutral"))

from states import KINDS  # noqa: E402

STEPS = 12
BAD = 9
HOW = {"live": {}, "ops": {"level": "ops"}, "steps": {"level": "steps"}}


GROUPS = {"kinds 1": KINDS[0::3], "kinds 2": KINDS[1::3], "kinds 3": KINDS[2::3]}


class Together(torch.nn.Module):
    def __init__(self, kinds):
        super().__init__()
        self.models = torch.nn.ModuleList([kind() for kind in kinds])

    def forward(self, x):
        return [model(x) for model in self.models]


def training(kinds, calibrates, ends):
    """A healthy run whose loss scale grows until it is too high; or one in which a batch gives NaN. `ends` has what
    each kind comes to: weights and state."""

    def build():
        together = Together(kinds)
        optimizer = torch.optim.SGD(together.parameters(), lr=0.002)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**115, growth_interval=1, enabled=calibrates)

        def step(i):
            x, y = torch.randn(8, 6), torch.randn(8, 3)
            if i == BAD and not calibrates:
                x[0, 0] = float("nan")
            optimizer.zero_grad()
            loss = sum((out - y).square().sum() for out in together(x))
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()

        def end():
            for model in together.models:  # once: what a pipe holds is gone when it was read
                ends[type(model).__name__] = digest_of(list(model.parameters()), str(model.state()))
            return str(ends)

        return step, end

    return build


@functools.cache
def alone(group, calibrates):
    ends = {}
    return run_once(training(GROUPS[group], calibrates, ends), STEPS).digest, ends


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("calibrates", [True, False], ids=["calibrates", "bad"])
@pytest.mark.parametrize("group", GROUPS)
def test_what_models_keep_is_the_same_watched_and_alone(tmp_path, group, calibrates, how):
    # Given models that keep a state of their own, each of another kind,
    digest, ends = alone(group, calibrates)
    # when they train watched, and a step is bad,
    watched_ends = {}
    watched = run_once(training(GROUPS[group], calibrates, watched_ends), STEPS, tmp_path / "run", **HOW[how])
    # then weights and state of each, and random states, are those of the run alone.
    assert [kind for kind, end in ends.items() if watched_ends[kind] != end] == []
    assert watched.digest == digest
    assert watched.unheard == [] or how == "steps"


def test_a_forward_more_is_seen():
    """The matrix would notice it: each kind's state differs after one call more."""
    for kind in KINDS:
        ends = []
        for more in (0, 1):
            torch.manual_seed(1)
            model = kind()
            for i in range(2 + more):
                torch.manual_seed(2 + i)
                model(torch.randn(8, 6)).sum().backward()
            ends.append(digest_of(str(model.state())))
        assert ends[0] != ends[1], kind.__name__
